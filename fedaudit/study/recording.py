"""What an audit does before it reads a recording, and what its result says of it."""

from __future__ import annotations

from dataclasses import replace

from fedaudit.errors import NothingToSay
from fedaudit.results import AuditResult
from fedaudit.trace import Trace
from fedaudit.trace.health import Health, examine


def examined(trace: Trace) -> Health:
    """Examine a trace, whose views refuse what is torn from here on.

    TraceError or NothingToSay where no audit can say anything.
    """
    health = examine(trace)
    health.refuse("everything", None, "nothing can be audited")
    if health.expected and not health.arrived:
        raise NothingToSay(
            "no answer of any client arrived",
            code="nothing_arrived",
            expected=f"at least one of {health.expected} answers",
            got="none: what clients would have given away was not recorded",
            remedy="fedaudit verify TRACE says what was lost; record the federation again",
        )
    return health


def resting_on(health: Health, result: AuditResult) -> AuditResult:
    """The result, and what it rests on: how many answers arrived, and what of it is torn."""
    return replace(
        result,
        arrived=health.arrived,
        expected=health.expected,
        recording=health.summary(),
    )
