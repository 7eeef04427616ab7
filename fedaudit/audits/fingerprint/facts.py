"""Measures, client table, verdict and words of the fingerprint audit."""

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
    Decision,
    Measure,
    Words,
)

FACTS = AuditFacts(
    measures=(
        Measure(
            "linkage_accuracy",
            GREATER,
            "share of links",
            "links to a client's next update that were found",
        ),
        Measure(
            "link_precision", GREATER, "share of links", "links made by the attack that are right"
        ),
        Measure(
            "rand_index", GREATER, "share of pairs", "pairs of updates that are grouped correctly"
        ),
        Measure("adjusted_rand", GREATER, "score, 0 by chance", "Rand index, corrected for chance"),
        Measure("purity", GREATER, "share of updates", "updates by the main client of their group"),
        Measure(
            "mutual_information", GREATER, "nats", "information of the groups about the senders"
        ),
        Measure(
            "messages_by_name", GREATER, "share of messages", "messages that name their sender"
        ),
    ),
    columns=(
        Column(
            "share",
            GREATER,
            has_interval=True,
            words="how often the attack was right about this client",
        ),
        Column("found", GREATER, exact=True, words="pairs that the attack linked correctly"),
        Column(
            "longest_chain", GREATER, exact=True, words="largest number of correct links in a row"
        ),
        Column("links", exact=True, words="pairs of consecutive rounds with this client"),
        P_COLUMN,
        Column(
            "sure_after_links",
            LESS,
            words="number of links after which chance is ruled out; empty: never",
        ),
        Column(
            "epsilon", GREATER, words="privacy loss over the whole run; smaller protects better"
        ),
    ),
    guess_columns=(
        Column("updates", words="messages that the attack assigns to this group"),
        Column("from_round", words="first round of the group"),
        Column("to_round", words="last round of the group"),
        MESSAGES_COLUMN,
    ),
    beside_headline=("purity",),
    decision=Decision(
        client_value="share",
        client_counts=("found", "links"),
        client_p="p",
        sample_size="links",
        single_updates_only=True,
    ),
    words=Words(
        short="Updates of the same client?",
        learns="follow each client",
        measure="links to a client's next update that were found",
        leak="{value} of a client's updates were linked to its next one (chance {baseline}): "
        "shuffling hides names, not content.",
        no_evidence="{value} of a client's updates were linked to its next one, which chance "
        "({baseline}) can explain.",
        advice=(*NOISE, ONLY_SUMS),
        known="Linking needs no attack: the sender of an update is known {first}.",
        known_advice=HIDE_SENDERS,
        percent=True,
    ),
)
