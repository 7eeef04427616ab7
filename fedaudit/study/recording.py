"""Check a recording before an audit reads it, and note its condition in the result."""

from __future__ import annotations

from dataclasses import replace

from fedaudit.errors import NothingToSay
from fedaudit.results import AuditResult
from fedaudit.trace import Trace
from fedaudit.trace.examination import examine
from fedaudit.trace.health import Health


def examined(trace: Trace) -> Health:
    """Examine a trace; its views then refuse torn parts.

    Raises TraceError or NothingToSay if no audit can say anything.
    """
    health = examine(trace)
    health.refuse("everything", None, "nothing can be audited")
    if health.expected and not health.arrived:
        raise NothingToSay(
            "no answer of any client arrived",
            code="nothing_arrived",
            expected=f"at least one of {health.expected} answers",
            got="none: the recording holds nothing that clients sent",
            remedy="fedaudit verify TRACE shows what was lost; record the federation again",
        )
    return health


def resting_on(health: Health, result: AuditResult) -> AuditResult:
    """The result with the number of answers that arrived and the problems of the recording."""
    return replace(
        result,
        arrived=health.arrived,
        expected=health.expected,
        recording=health.summary(),
    )
