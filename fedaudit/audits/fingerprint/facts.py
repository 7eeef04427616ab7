"""Measures, client table, verdict and words of the fingerprint audit."""

from __future__ import annotations

from fedaudit.audits.facts import (
    GREATER,
    LESS,
    NOISE,
    ONLY_SUMS,
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
            "linkage_accuracy",
            GREATER,
            "share of links",
            "links between neighbouring rounds that were right",
        ),
        Measure(
            "link_precision", GREATER, "share of links", "links made that were right, of those made"
        ),
        Measure(
            "rand_index", GREATER, "share of pairs", "pairs of updates grouped as the truth does"
        ),
        Measure("adjusted_rand", GREATER, "score, 0 by chance", "Rand index, corrected for chance"),
        Measure(
            "purity", GREATER, "share of updates", "updates of the most frequent client per group"
        ),
        Measure(
            "mutual_information", GREATER, "nats", "what the groups tell about who sent an update"
        ),
        Measure(
            "messages_by_name", GREATER, "share of messages", "messages that bear their sender"
        ),
    ),
    columns=(
        Column("share", GREATER, has_interval=True),
        Column("found", GREATER, exact=True),
        Column("longest chain", GREATER, exact=True),
        Column("links", exact=True),
        Column("sure after links", LESS),
        Column("epsilon", GREATER),
    ),
    decision=Decision(
        own="share", hits=("found", "links"), asked="links", single_updates_only=True
    ),
    words=Words(
        measure="links between neighbouring rounds that were right",
        leak="{value} of a client's updates were linked to its next one (chance {baseline}): "
        "shuffling hides names, not content.",
        no_evidence="{value} of a client's updates were linked to its next one, which chance "
        "({baseline}) can explain.",
        advice=(*NOISE, ONLY_SUMS),
        known="Nobody has to link anything: whose an update is, is known {first}.",
        known_advice=(
            Advice(
                "put a shuffler between clients and server ([protections.shuffle])",
                unless=("shuffle",),
            ),
            Advice("send nothing beside the update that tells clients apart", only=("shuffle",)),
            ONLY_SUMS,
        ),
        percent=True,
    ),
)
