"""Measures, client table, verdict and words of the attribution audit."""

from __future__ import annotations

from fedaudit.audits.facts import (
    GREATER,
    LESS,
    UNKNOWN,
    Advice,
    AuditFacts,
    Column,
    Decision,
    Measure,
    Words,
)

FACTS = AuditFacts(
    measures=(
        Measure(
            "clients_named",
            GREATER,
            "clients",
            "clients named as having trained on marked records",
        ),
        Measure("detected", GREATER, "share of marked clients", "marked clients named"),
        Measure(
            "published_detected",
            GREATER,
            "share of marked clients",
            "marked clients named by the published score",
        ),
        # a wrong alarm accuses a client; a right one exposes a client
        Measure("false_alarms", GREATER, "share of other clients", "unmarked clients named"),
        Measure(
            "published_false_alarms",
            GREATER,
            "share of other clients",
            "unmarked clients named by the published score",
        ),
        Measure(
            "false_alarm_rate_per_test",
            GREATER,
            "share of tests",
            "unused keys that raise an alarm",
        ),
        Measure(
            "published_false_alarm_rate_per_test",
            GREATER,
            "share of tests",
            "unused keys on which the published score alarms",
        ),
        Measure("signal", UNKNOWN, "score", "smallest mean score of a marked client (m)"),
        Measure("noise", UNKNOWN, "score", "deviation of scores within a client (nu)"),
        Measure("drift", UNKNOWN, "score", "largest mean score of a benign client (eps)"),
    ),
    columns=(
        Column("part", GREATER, has_interval=True),
        Column("named", GREATER, exact=True),
        Column("adjusted_p", LESS),
        Column("published_z", GREATER),
        Column("sums_per_round", GREATER, exact=True),
        Column("named_after_round", LESS, exact=True),
        Column("stands_out", GREATER),
        Column("named_from", LESS),
        Column("published_above_growing", GREATER),
        Column("published_above_anytime", GREATER),
        Column("key"),
        Column("marked"),
    ),
    decision=Decision(found="attributed", counts=True, strength="named_from"),
    words=Words(
        measure="clients named as having trained on marked records",
        leak="{value} clients are named as having trained on marked records; false alarms stay "
        "below the stated rate: {first}.",
        no_evidence="No client is named as having trained on marked records.",
        advice=(
            Advice("if you do not want this: answer fewer subset sums"),
            Advice("use larger groups"),
            Advice("add noise at the clients; the query_plan audit measures what else sums reveal"),
        ),
        against="without marks",
        counted=("client named", "clients named"),
        weak="A client is named if its mark stands out by {strength} deviations of unused keys or "
        "more; weaker marks may go unseen.",
    ),
)
