"""Measures, client table, verdict and words of the membership audit."""

from __future__ import annotations

from dataclasses import replace

from fedaudit.audits.facts import (
    GREATER,
    LESS,
    NOISE,
    ONLY_SUMS,
    ROC,
    Advice,
    AuditFacts,
    Column,
    CurveDrawing,
    Decision,
    Measure,
    Words,
)

HEADLINE, AREA = "membership_auc", "auc"
RATE, ADVANTAGE = "true_positive_rate", "advantage"
ADJUSTED_P = "adjusted_p"
GROUP, EXPOSED, ABOVE = "auc_of_group", "most_exposed", "others_above"

READINGS = {
    "own_updates": "LiRA on clients' own updates, all rounds",
    "unnamed_rows": "LiRA on the shuffled update, or the sum, that fits a record best, all rounds",
    "all_models": "LiRA on every round's model",
    "lira": "LiRA on the final model",
    "rmia": "RMIA on the final model",
    "loss": "loss under the final model",
}
"""Attack and its words, the qualifier of its AUC; the first that a view allows is the headline."""

FACTS = AuditFacts(
    gravity="named",
    measures=(
        Measure(
            HEADLINE,
            GREATER,
            "area from 0 to 1",
            "area under the ROC curve of the attack with the most evidence in this view",
        ),
        Measure(AREA, GREATER, "area from 0 to 1", "area under the ROC curve of another attack"),
        Measure(
            GROUP,
            GREATER,
            "area from 0 to 1",
            "area under the ROC curve of the first attack, on the records of one group",
        ),
        Measure(
            RATE, GREATER, "share of members", "members found at the stated false-positive rate"
        ),
        Measure(
            ADVANTAGE,
            GREATER,
            "difference of rates",
            "true-positive minus false-positive rate if the upper half of the evidence is called",
        ),
    ),
    columns=(
        Column(
            "AUC",
            GREATER,
            has_interval=True,
            words="how well the attack separates its records from others (0.5: guessing, 1: "
            "perfect)",
        ),
        Column("members_asked", exact=True, words="tested records of this client"),
        Column(
            EXPOSED,
            words="number of its training record with the most evidence, among those asked about; "
            "whose it is, only the truth tells",
        ),
        Column(ABOVE, LESS, words="share of other records with as much evidence as that record"),
        Column(ADJUSTED_P, words="p-value against chance, adjusted for all attacks and clients"),
    ),
    drawings=(
        replace(
            ROC,
            words=f"{ROC.words} Dashed: the most that a protection's guarantee allows any attack.",
        ),
        CurveDrawing(
            curve="most exposed records",
            kind="none",
            words="Training records with the most evidence.",
        ),
    ),
    decision=Decision(
        client_value="AUC", client_p=ADJUSTED_P, sample_size="members_asked", ranked=True
    ),
    words=Words(
        short="Record used? (with shadows)",
        learns="tell, by training the federation again, which records were used",
        measure="area under the ROC curve of LiRA or RMIA",
        leak="Shadow federations tell a client's training records from matched others with AUC "
        "{value} (chance {baseline}).",
        no_evidence="LiRA and RMIA reach AUC {value}, which chance ({baseline}) can explain.",
        advice=(*NOISE, Advice("train fewer local epochs"), ONLY_SUMS),
    ),
)
