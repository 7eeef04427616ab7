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
        Column(
            "part",
            GREATER,
            has_interval=True,
            words="strength of the mark in its updates per round, in standard deviations of "
            "unused keys; around 0 there is none. stands_out decides who is named",
        ),
        Column("named", GREATER, exact=True, words="1: named as having trained on marked records"),
        Column("adjusted_p", LESS, words="p-value, corrected for all clients and keys"),
        Column("published_z", GREATER, words="score of the paper; above 4 the client is named"),
        Column("sums_per_round", GREATER, exact=True, words="number of sums that include it"),
        Column(
            "named_after_round",
            LESS,
            exact=True,
            words="first round after which a sequential test names it; that test may stop after "
            "any round and therefore names fewer clients than the test over all rounds",
        ),
        Column(
            "stands_out",
            GREATER,
            words="distance of its test statistic beyond unused keys, over all rounds",
        ),
        Column(
            "named_from",
            LESS,
            words="value of stands_out from which on it is named in any case; if others are "
            "named, a slightly lower value suffices",
        ),
        Column(
            "published_above_growing",
            GREATER,
            words="1: its published score is above a threshold that grows with rounds",
        ),
        Column(
            "published_above_anytime",
            GREATER,
            words="1: above a threshold that is valid after any number of rounds",
        ),
        Column("key", words="the tested mark"),
        Column("marked", words="1: it trained on marked records"),
    ),
    needs_truth=False,  # naming needs none; with a truth, hits and false alarms are counted too
    for_owner=("named", "adjusted_p"),
    under_client_noise="Client-level privacy and attribution exclude each other: with noise on "
    "inner products, of 30 marked clients in ten rounds 0 were found at epsilon 32, 6 at 64 and 20 "
    "at 256 (delta 1e-5; docs/reproductions/attribution.md).",
    decision=Decision(found="attributed", counts=True, strength="named_from"),
    words=Words(
        short="Who holds marked records?",
        learns="name the clients that trained on marked records",
        measure="clients named as having trained on marked records",
        leak="{value} clients are named as having trained on marked records; false alarms stay "
        "below the stated rate: {first}. For the owner this is evidence at that rate. For the "
        "clients, sums that were to protect them told who holds what.",
        no_evidence="No client is named as having trained on marked records.",
        advice=(
            Advice("clients who do not want this: answer fewer subset sums"),
            Advice("use larger groups"),
            Advice("add noise at the clients; the query_plan audit measures what else sums reveal"),
            Advice("the owner: a name is evidence at the stated error rate, not a proof"),
        ),
        against="without marks",
        counted=("client named", "clients named"),
        weak="A client is named if its mark stands out by {strength} deviations of unused keys or "
        "more; weaker marks may go unseen.",
    ),
)
