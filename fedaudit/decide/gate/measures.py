"""What audits can measure, and which way is worse: the names a policy may use.

A measure is written `audit.estimate` ("fingerprint.linkage_accuracy"), or `audit.column` where a
limit holds per client. `*` in a name of the table stands for any text: the method, channel or
statistic that an audit was set up with. A name that is in no table is a mistake, not a measure
that is missing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from fedaudit.errors import ConfigError, nearest

GREATER, LESS, UNKNOWN = 1, -1, 0
"""Which way a measure gets worse for those whose data it is about."""

VERDICT, EPSILON = "verdict", "epsilon"
UTILITY = {"accuracy": LESS, "loss": GREATER}
"""Held-out metrics of the last model; worse is what a user of the model loses."""

LOSS = "accuracy_loss"
"""Held-out accuracy that protection costs: of the same federation unprotected, minus its own."""

_LINKAGE = (
    "linkage_accuracy",
    "link_precision",
    "rand_index",
    "adjusted_rand",
    "purity",
    "mutual_information",
)

ESTIMATES: dict[str, dict[str, int]] = {
    "active_membership": {
        "success": GREATER,
        "success (*)": GREATER,
        "true positive rate": GREATER,
        "true negative rate": GREATER,
        "true positive rate at 1 % false positives": GREATER,
        "true positive rate at * false positives": GREATER,
        "F1": GREATER,
        "AUC": GREATER,
        "right client named": GREATER,
    },
    "attribution": {
        "clients_named": GREATER,
        "detected": GREATER,
        "published_detected": GREATER,
        # a wrong alarm accuses somebody; a right one exposes somebody
        "false_alarms": GREATER,
        "published_false_alarms": GREATER,
        "false_alarm_rate_per_test": GREATER,
        "published_false_alarm_rate_per_test": GREATER,
        "signal": UNKNOWN,
        "noise": UNKNOWN,
        "drift": UNKNOWN,
    },
    "coverage": {"kinds_outside_protection": GREATER},
    "fingerprint": {
        **dict.fromkeys(_LINKAGE, GREATER),
        **{f"{name} (*)": GREATER for name in _LINKAGE},
        "messages_by_name": GREATER,
    },
    "query_plan": {
        "smallest_exposed_group": LESS,
        "recoverable_updates": GREATER,
        "rank_per_client": GREATER,
        "recoverable_if_updates_persist": GREATER,
        "recovered_cosine": GREATER,
        "persistent_cosine": GREATER,
        "guessed_cosine": GREATER,
    },
    "topology_inference": {
        "explained (*)": GREATER,
        "lift (*)": GREATER,
        "lift over the shadow mean (*)": GREATER,
        "topology contribution": GREATER,
        "structure's part": GREATER,
        "organisation's part": GREATER,
        # a guess that is further off says less about the clients
        "calibration loss (*)": LESS,
        "top-* recovery (*)": GREATER,
        "AUROC (*)": GREATER,
        "shadow lift (*)": GREATER,
        "shadow lift (*), *": GREATER,
        "change of shadow lift (*), *": UNKNOWN,
        "null lift (*)": UNKNOWN,
    },
    "two_stage_membership": {
        "membership_auc": GREATER,
        "auc, *": GREATER,
        "true_positive_rate at 1 %": GREATER,
        "true_positive_rate at 0.1 %": GREATER,
        "ts_mia": GREATER,
        # the ratio rises where updates cancel: neither says by itself that more can be found
        "stage I: share of updates that survive": UNKNOWN,
        "stage II: share of draws with J > 0, given survival": GREATER,
        "power to find an update at * false positives": GREATER,
        "rows linked to their client by its candidates": GREATER,
        "J on members": GREATER,
        "SUR": UNKNOWN,
        "empirical from true score advantage (Eqs. 11, 12)": GREATER,
        "rank correlation of * with the attack's AUC": UNKNOWN,
        "J beyond Theorem 1": UNKNOWN,
        "J beyond Lemma 7": UNKNOWN,
        "increment beyond Lemma 6": UNKNOWN,
        "increments beyond Lemma 6 with *": UNKNOWN,
    },
}
"""audit -> estimate -> which way is worse."""

_AGAINST_NON_MEMBERS = {
    "two_stage_membership": {
        "ts_mia",
        "stage II: share of draws with J > 0, given survival",
        "J on members",
        "empirical from true score advantage (Eqs. 11, 12)",
    },
}


def has_non_member_baseline(audit: str, estimate: str) -> bool:
    """Whether only what lies above the baseline, the same on records that nobody trained on, says
    anything: both can rise together."""
    return estimate in _AGAINST_NON_MEMBERS.get(audit, ())


@dataclass(frozen=True)
class Column:
    """A column of the per-client table: which way is worse, and whether `low` and `high` of the
    same row are its interval."""

    worse: int = UNKNOWN
    has_interval: bool = False


COLUMNS: dict[str, dict[str, Column]] = {
    "active_membership": {
        "share": Column(GREATER, has_interval=True),
        "members found": Column(GREATER),
        "others cleared": Column(GREATER),
        "games": Column(),
    },
    "attribution": {
        "part": Column(GREATER, has_interval=True),
        "named": Column(GREATER),
        "adjusted_p": Column(LESS),
        "published_z": Column(GREATER),
        "sums_per_round": Column(GREATER),
        "named_after_round": Column(LESS),
        "stands_out": Column(GREATER),
        "named_from": Column(LESS),
        "published_above_growing": Column(GREATER),
        "published_above_anytime": Column(GREATER),
        "key": Column(),
        "marked": Column(),
    },
    "coverage": {},
    "fingerprint": {
        "share": Column(GREATER, has_interval=True),
        "found": Column(GREATER),
        "longest chain": Column(GREATER),
        "links": Column(),
        "sure after links": Column(LESS),
        "epsilon per *": Column(GREATER),
    },
    "query_plan": {
        "rounds_recoverable": Column(GREATER),
        "part_of_row_space": Column(GREATER),
        "part_over_all_rounds": Column(GREATER),
        "uploads_per_round": Column(GREATER),
    },
    "topology_inference": {
        "gain": Column(GREATER),
        **dict.fromkeys(("guess (*)", "p", "mean", "from", "to"), Column()),
    },
    "two_stage_membership": {
        "AUC": Column(GREATER, has_interval=True),
        "SUR": Column(),
        "SNR": Column(GREATER),
        "J": Column(GREATER),
        **dict.fromkeys(
            (
                "members asked",
                "J of nobody's",
                "SNR without B",
                "SNR at most",
                "L as published",
                "L by Hessian",
                "gamma",
                "lambda",
                "r",
            ),
            Column(),
        ),
    },
}
"""audit -> column of its per-client table."""

EXACT_COLUMNS = {
    "attribution": {"named", "sums_per_round", "named_after_round"},
    "fingerprint": {"found", "longest chain", "links"},
    "query_plan": {*COLUMNS["query_plan"]},
    "active_membership": {"games"},
    "two_stage_membership": {"members asked"},
}
"""Columns that are counts or algebra of what was recorded: they have no error, so no interval."""


def matches(pattern: str, name: str) -> bool:
    """Whether a name is meant by a pattern, in which `*` stands for any text."""
    parts = [re.escape(part) for part in pattern.split("*")]
    return re.fullmatch("(.+)".join(parts), name) is not None


def direction(audit: str, estimate: str) -> int:
    """Which way an estimate is worse; UNKNOWN for what is in no table."""
    table = ESTIMATES.get(audit, {})
    if estimate in table:
        return table[estimate]
    return next((worse for p, worse in table.items() if matches(p, estimate)), UNKNOWN)


def column(audit: str, name: str) -> Column | None:
    """What is known of a per-client column."""
    table = COLUMNS.get(audit, {})
    return table.get(name) or next((c for p, c in table.items() if matches(p, name)), None)


def can_measure(audit: str, estimate: str) -> bool:
    return any(matches(p, estimate) for p in ESTIMATES.get(audit, {}))


def estimate_names() -> list[str]:
    return [f"{audit}.{name}" for audit, table in ESTIMATES.items() for name in table]


def column_names() -> list[str]:
    return [f"{audit}.{name}" for audit, table in COLUMNS.items() for name in table]


def special_names() -> list[str]:
    return [EPSILON, VERDICT, *UTILITY, LOSS, *(f"{audit}.{VERDICT}" for audit in ESTIMATES)]


def check_metric(metric: str, per_client: bool, where: str) -> None:
    """Refuse a measure that no audit can give, with the nearest that one can."""
    audit, dot, name = metric.partition(".")
    if metric in (EPSILON, VERDICT, LOSS) or metric in UTILITY or (dot and name == VERDICT):
        if name == VERDICT and audit not in ESTIMATES:
            raise _unknown(metric, where, [f"{a}.{VERDICT}" for a in ESTIMATES])
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
        expected=f"{kind}, as audit.name (* stands for any text)",
        got=repr(metric),
        remedy=nearest(metric, own or names, see="the results/*.json of a run state theirs"),
    )
