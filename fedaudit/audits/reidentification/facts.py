"""Measures, client table, verdict and words of the re-identification audit."""

from __future__ import annotations

from fedaudit.audits.facts import (
    GREATER,
    HIDE_SENDERS,
    LESS,
    MESSAGES_COLUMN,
    NOISE,
    ONLY_SUMS,
    P_COLUMN,
    AuditFacts,
    Column,
    CurveDrawing,
    Decision,
    Measure,
    Words,
)

NAMING = "naming_rate"
BY_NAME = "messages_by_name"
SET = "anonymity_set"
GAIN = "membership_gain"
NAMED_AUC = "membership_auc_named"
SURE = "sure_after_rows"
BY_RECORDS = "naming by records held"
BY_ROUNDS = "naming by rounds seen"

FACTS = AuditFacts(
    measures=(
        Measure(NAMING, GREATER, "share of rows", "anonymous rows named after their sender"),
        Measure(
            SET,
            LESS,
            "clients",
            "perplexity of P(client | row): among so many clients a sender hides",
        ),
        Measure(
            NAMED_AUC,
            GREATER,
            "area from 0 to 1",
            "area under the ROC curve of membership, with the named row against all others",
        ),
        Measure(
            GAIN,
            GREATER,
            "difference of areas",
            "what naming adds to the area under the ROC curve of membership",
        ),
        Measure(BY_NAME, GREATER, "share of messages", "messages that name their sender"),
    ),
    columns=(
        Column(
            "share", GREATER, has_interval=True, words="share of this client's rows named correctly"
        ),
        Column("named", GREATER, exact=True, words="rows of this client that were named correctly"),
        Column("rows", exact=True, words="anonymous rows of this client"),
        P_COLUMN,
        Column(
            SURE,
            LESS,
            words="rounds until named: rows after which chance is ruled out; empty: never",
        ),
        Column("anonymity_set", LESS, words="among so many clients its rows hide, on average"),
    ),
    guess_columns=(
        Column("rows_assigned", words="rows that the attack assigns to this client"),
        Column("mean_probability", words="how sure the attack is of these, on average"),
        MESSAGES_COLUMN,
    ),
    drawings=(
        CurveDrawing(
            curve=BY_RECORDS,
            kind="lines",
            dashed=("chance",),
        ),
        CurveDrawing(
            curve=BY_ROUNDS,
            kind="lines",
            dashed=("chance",),
        ),
    ),
    beside_headline=(SET, GAIN),
    decision=Decision(
        client_value="share",
        client_counts=("named", "rows"),
        client_p="p",
        sample_size="rows",
        single_updates_only=True,
    ),
    words=Words(
        short="Who sent an update?",
        learns="name each update's sender",
        measure="anonymous rows whose sender was named correctly",
        leak="{value} of anonymous rows were given their sender's name (chance {baseline}), by "
        "whoever holds a few records of every site.",
        no_evidence="{value} of anonymous rows were given their sender's name, which chance "
        "({baseline}) can explain.",
        advice=(*NOISE, ONLY_SUMS),
        known="Naming needs no attack: the sender of an update is known {first}.",
        known_advice=HIDE_SENDERS,
        percent=True,
    ),
)
