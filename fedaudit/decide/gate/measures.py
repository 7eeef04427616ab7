"""The names a policy may use: the measures that audits declare, and those of a whole run.

A measure is written `audit.estimate` ("fingerprint.linkage_accuracy"), with a qualifier in brackets
where an audit states several ("topology_inference.explained (A1)"), or `audit.column` if a limit
holds per client. A name that no audit declares is a mistake, not a measure that is missing.
"""

from __future__ import annotations

from collections.abc import Iterable

from fedaudit.audits import AUDITS, facts_of
from fedaudit.audits.facts import GREATER, LESS, Column, base_name
from fedaudit.errors import ConfigError, nearest

VERDICT, EPSILON = "verdict", "epsilon"
UTILITY = {"accuracy": LESS, "loss": GREATER}
"""Held-out metrics of the last model; worse is what a user of the model loses."""

LOSS = "accuracy_loss"
"""Held-out accuracy that protection costs: of the same federation unprotected, minus its own."""


def covers(named: str, measure: str) -> bool:
    """Whether `named` is the measure itself, or the measure without its qualifier."""
    return named in (measure, base_name(measure))


def can_measure(audit: str, estimate: str) -> bool:
    return audit in AUDITS and facts_of(audit).measure(estimate) is not None


def column(audit: str, name: str) -> Column | None:
    """What is known of a per-client column."""
    return facts_of(audit).column(name)


def estimate_names() -> list[str]:
    return [f"{audit}.{m.name}" for audit in AUDITS for m in facts_of(audit).measures]


def column_names() -> list[str]:
    return [f"{audit}.{c.name}" for audit in AUDITS for c in facts_of(audit).columns]


def special_names() -> list[str]:
    return [EPSILON, VERDICT, *UTILITY, LOSS, *(f"{audit}.{VERDICT}" for audit in AUDITS)]


def check_metric(metric: str, per_client: bool, where: str) -> None:
    """Refuse a measure that no audit can give, with the nearest that one can."""
    audit, dot, name = metric.partition(".")
    if metric in (EPSILON, VERDICT, LOSS) or metric in UTILITY or (dot and name == VERDICT):
        if name == VERDICT and audit not in AUDITS:
            raise _unknown(metric, where, [f"{a}.{VERDICT}" for a in AUDITS])
        if per_client and metric != EPSILON:
            raise ConfigError(
                f"{where}: {metric} is not a measure per client",
                expected='per = "federation", or a column of a per-client table',
                got=f'{metric} with per = "client"',
                remedy="one of: " + ", ".join(column_names()),
            )
        return
    if per_client:
        if column(audit, name) is None:
            raise _unknown(metric, where, column_names(), "a column of an audit's client table")
    elif not can_measure(audit, name):
        if column(audit, name) is not None:
            raise ConfigError(
                f"{where}: {metric} is measured per client",
                expected='per = "client" beside it',
                got='per = "federation" (the default)',
                remedy='add the line: per = "client"',
            )
        raise _unknown(metric, where, [*special_names(), *estimate_names()])


def _unknown(
    metric: str, where: str, valid: Iterable[str], kind: str = "a measure of an audit"
) -> ConfigError:
    names = list(valid)
    audit = metric.partition(".")[0]
    # a name of the right audit is nearer than a like one of another
    own = [n for n in names if n.partition(".")[0] == audit and n != f"{audit}.{VERDICT}"]
    return ConfigError(
        f"{where}: there is no measure {metric!r}",
        expected=f"{kind}, as audit.name or audit.name (qualifier)",
        got=repr(metric),
        remedy=nearest(metric, own or names, see="fedaudit list measures"),
    )
