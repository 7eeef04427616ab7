"""Measures, client table, verdict and words of the active membership audit."""

from __future__ import annotations

from fedaudit.audits.facts import (
    GREATER,
    NOISE,
    UNITS,
    Advice,
    AuditFacts,
    Column,
    Decision,
    Measure,
    Words,
)

ANY_ARCHITECTURE = "success_any_architecture"
ADJUSTED_P = "adjusted_p"

FACTS = AuditFacts(
    gravity="named",
    measures=(
        Measure(
            "success",
            GREATER,
            "share of games",
            "games that the server decided correctly, members and non-members",
        ),
        Measure(
            ANY_ARCHITECTURE,
            GREATER,
            "share of games",
            "the same games if clients accept any architecture, and take one step",
            given="clients accept any architecture",
        ),
        Measure(
            "true_positive_rate", GREATER, "share of members", "members that the server recognised"
        ),
        Measure(
            "true_negative_rate", GREATER, "share of others", "non-members that the server cleared"
        ),
        Measure("f1", GREATER, "score from 0 to 1", "F1 of the answer 'member'"),
        Measure("auc", GREATER, "area from 0 to 1", "area under the ROC curve of the games"),
        Measure(
            "right_client_named",
            GREATER,
            "share of federations",
            "federations in which the server named the right client",
        ),
    ),
    columns=(
        Column(
            "share",
            GREATER,
            has_interval=True,
            words="how often the attack was right about this client",
        ),
        Column(
            "members_found",
            GREATER,
            words="share of its records that the server correctly calls members",
        ),
        Column(
            "others_cleared",
            GREATER,
            words="share of other records that the server correctly calls non-members",
        ),
        Column("games", exact=True, words="number of trials"),
        Column(ADJUSTED_P, words="p-value against chance, adjusted for all readings and clients"),
    ),
    beside_headline=(ANY_ARCHITECTURE,),
    decision=Decision(
        client_value="share",
        client_p=ADJUSTED_P,
        sample_size="games",
        headline_differs_with="success (gradient in the clear)",
    ),
    words=Words(
        short="Record used? (crafted model)",
        learns="tell with crafted models which records were used",
        measure="games that the server decided correctly, members and non-members",
        leak="With planted weights the server is right in {value} of games (chance {baseline}): "
        "one answer reveals whether a record is in a client's data. What it takes: {first}.",
        no_evidence="With planted weights the server is right in {value} of games, which chance "
        "({baseline}) can explain. What it takes: {first}.",
        advice=(
            Advice("check received models before training (fedaudit guard)"),
            *NOISE,
            UNITS,
            Advice("give local DP a smaller exact budget", only=("randomises_records",)),
        ),
        percent=True,
        only_with={", even under local DP": "randomises_records"},
    ),
)
