"""Measures, client table, verdict and words of the two-stage membership audit."""

from __future__ import annotations

from fedaudit.audits.facts import (
    GREATER,
    NOISE,
    ONLY_SUMS,
    UNKNOWN,
    Advice,
    AuditFacts,
    Column,
    Decision,
    Measure,
    Words,
)

SURVIVAL = "stage_1_survival"
ADVANTAGE = "stage_2_advantage"
ON_MEMBERS = "j_on_members"
FROM_TRUE = "empirical_from_true_advantage"
ROWS_LINKED = "rows_linked"
RANK_CORRELATION = "rank_correlation"
POWER = "update_detection_power"
BEYOND_THEOREM_1, BEYOND_LEMMA_7 = "j_beyond_theorem_1", "j_beyond_lemma_7"
BEYOND_LEMMA_6 = "increment_beyond_lemma_6"
SHARE_BEYOND_LEMMA_6 = "increments_beyond_lemma_6"

FACTS = AuditFacts(
    measures=(
        Measure(
            "membership_auc",
            GREATER,
            "area from 0 to 1",
            "area under the ROC curve of the membership attack",
        ),
        Measure(
            "auc", GREATER, "area from 0 to 1", "area under the ROC curve of one statistic alone"
        ),
        Measure(
            "true_positive_rate",
            GREATER,
            "share of members",
            "members found at the stated false-positive rate",
        ),
        Measure(
            "ts_mia",
            GREATER,
            "share of draws",
            "two-stage risk: a member's update survives and J > 0",
            above_non_members=True,
        ),
        # the ratio rises if updates cancel, so a higher value does not mean a larger leak
        Measure(SURVIVAL, UNKNOWN, "share of updates", "stage I: updates that survive averaging"),
        Measure(
            ADVANTAGE,
            GREATER,
            "share of draws",
            "stage II: draws with J > 0, given survival",
            above_non_members=True,
        ),
        Measure(
            POWER,
            GREATER,
            "share of updates",
            "power to find an update at the stated false-positive rate",
        ),
        Measure(
            ROWS_LINKED,
            GREATER,
            "share of rows",
            "anonymous rows linked to their client by its candidate records",
        ),
        Measure(
            ON_MEMBERS,
            GREATER,
            "score difference",
            "mean score advantage J on members",
            above_non_members=True,
        ),
        Measure("sur", UNKNOWN, "ratio", "signal-to-update ratio of stage I"),
        Measure(
            FROM_TRUE,
            GREATER,
            "score difference",
            "distance of the empirical from the true score advantage (Eqs. 11, 12)",
            above_non_members=True,
        ),
        Measure(RANK_CORRELATION, UNKNOWN, "correlation", "rank correlation of a risk and the AUC"),
        Measure(BEYOND_THEOREM_1, UNKNOWN, "score difference", "J beyond Theorem 1, worst case"),
        Measure(BEYOND_LEMMA_7, UNKNOWN, "score difference", "J beyond Lemma 7, worst case"),
        Measure(
            BEYOND_LEMMA_6, UNKNOWN, "score difference", "increment beyond Lemma 6, worst case"
        ),
        Measure(
            SHARE_BEYOND_LEMMA_6,
            UNKNOWN,
            "share of increments",
            "increments beyond Lemma 6 with a smaller constant",
        ),
    ),
    columns=(
        Column("AUC", GREATER, has_interval=True),
        Column("SUR"),
        Column("SNR", GREATER),
        Column("J", GREATER),
        Column("members asked", exact=True),
        Column("J of nobody's"),
        Column("SNR without B"),
        Column("SNR at most"),
        Column("L as published"),
        Column("L by Hessian"),
        Column("gamma"),
        Column("lambda"),
        Column("r"),
    ),
    decision=Decision(own="AUC", asked="members asked", ranked=True),
    words=Words(
        measure="area under the ROC curve of the membership attack",
        leak="An attack on the recorded rounds tells a client's training records from matched "
        "others with AUC {value} (chance {baseline}).",
        no_evidence="The membership attack reaches AUC {value}, which chance ({baseline}) can "
        "explain.",
        advice=(*NOISE, Advice("train fewer local epochs"), ONLY_SUMS),
    ),
)
