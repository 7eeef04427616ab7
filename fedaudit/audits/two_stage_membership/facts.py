"""Measures, client table, verdict and words of the two-stage membership audit."""

from __future__ import annotations

from fedaudit.audits.facts import (
    GREATER,
    NOISE,
    ONLY_SUMS,
    ROC,
    UNKNOWN,
    Advice,
    AuditFacts,
    Column,
    CurveDrawing,
    Decision,
    Measure,
    Words,
)

TS_MIA = "ts_mia"
TS_MIA_OF_OTHERS = "ts_mia_of_non_members"
TS_MIA_DIFFERENCE = "ts_mia_above_non_members"
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
STAGES, CHECKED = "stages by client and round", "checked updates by client and round"
ADJUSTED_P = "adjusted_p"
BY_LINKAGE = "paths found by linkage"
PROXY = "mean of phi(<H(0), u>)"

FACTS = AuditFacts(
    gravity="named",
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
            TS_MIA,
            GREATER,
            "share of draws",
            "two-stage risk: a member's update survives and J > 0",
            above_non_members=True,
        ),
        Measure(
            TS_MIA_OF_OTHERS,
            UNKNOWN,
            "share of draws",
            "the same of matched records that nobody trained on: the baseline of ts_mia",
        ),
        Measure(
            TS_MIA_DIFFERENCE,
            GREATER,
            "difference of shares",
            "ts_mia minus its baseline, paired by client and round",
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
        Column(
            "AUC",
            GREATER,
            has_interval=True,
            words="how well the attack separates its records from others (0.5: guessing, 1: "
            "perfect)",
        ),
        Column(
            "SUR", words="survival ratio: length of its update over the length of the sum of all"
        ),
        Column(
            "SNR",
            GREATER,
            words="signal-to-noise ratio: length of its update over the added noise (inf: no "
            "noise)",
        ),
        Column(
            "J",
            GREATER,
            words="increase of the score of its own records by its update, -1/2 to 1/2",
        ),
        Column(
            "members_asked",
            exact=True,
            words="tested records of this client, with as many non-members",
        ),
        Column(
            ADJUSTED_P,
            words="chance of an AUC as high in any client or reading without a leak",
        ),
        Column("J_of_non_members", words="J of records that nobody trained on, the baseline of J"),
        Column(
            "SNR_without_B", words="SNR if the other updates (B) are unknown and count as noise"
        ),
        Column(
            "SNR_at_most", words="upper limit of SNR if noise inside the update hides its length"
        ),
        Column("L_as_published", words="curvature of the score, estimated as in the paper"),
        Column("L_by_Hessian", words="curvature of the score, from second derivatives"),
        Column("gamma", words="alignment of the score's gradient with the update"),
        Column(
            "lambda",
            words="alignment of its update with the others (1 same direction, -1 opposite)",
        ),
        Column("r", words="length of the sum of all other updates over that of its own"),
    ),
    guess_columns=(
        Column("candidates", words="tested records"),
        Column(
            "likeliest_members",
            words="number of the record among the tested ones and its score in standard "
            "deviations, highest first",
        ),
    ),
    drawings=(
        ROC,
        CurveDrawing(
            curve="risk by round",
            kind="lines",
            needs=("round",),
            dashed=("J of nobody's", "TS-MIA of nobody's"),
        ),
        CurveDrawing(curve="survival", kind="survival", axes=("lambda", "r", "SUR")),
        CurveDrawing(
            curve="bound check",
            kind="bound",
            axes=("L |u|^2 / 2", "remainder"),
            error="its error",
        ),
        # one row per update: too many for lines over rounds
        CurveDrawing(curve=STAGES, kind="none", needs=("round", "client")),
        CurveDrawing(
            curve=CHECKED,
            kind="equality",
            axes=(PROXY, "J"),
            needs=("client",),
            words="J of single updates against its linear prediction; equal on the line.",
        ),
    ),
    beside_headline=(TS_MIA, TS_MIA_DIFFERENCE, "sur", ON_MEMBERS),
    decision=Decision(
        client_value="AUC", client_p=ADJUSTED_P, sample_size="members_asked", ranked=True
    ),
    words=Words(
        short="Record used? (from updates)",
        learns="partly tell which records were used",
        measure="area under the ROC curve of the membership attack",
        leak="An attack on the recorded rounds tells a client's training records from matched "
        "others with AUC {value} (chance {baseline}).",
        no_evidence="The membership attack reaches AUC {value}, which chance ({baseline}) can "
        "explain.",
        advice=(*NOISE, Advice("train fewer local epochs"), ONLY_SUMS),
    ),
)
