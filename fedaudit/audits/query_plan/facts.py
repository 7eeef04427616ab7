"""Measures, client table, verdict and words of the query-plan audit."""

from __future__ import annotations

from fedaudit.audits.facts import (
    GREATER,
    LESS,
    Advice,
    AuditFacts,
    Column,
    Decision,
    Measure,
    Words,
)

PERSISTING = "recoverable_if_updates_persist"

FACTS = AuditFacts(
    measures=(
        Measure(
            "smallest_exposed_group",
            LESS,
            "clients",
            "clients in the smallest group that some combination of answers exposes",
        ),
        Measure(
            "smallest_group_by_scalars",
            LESS,
            "clients",
            "clients in the smallest group whose inner products with templates are known",
        ),
        Measure(
            "recoverable_updates",
            GREATER,
            "share of updates",
            "updates that a round's answers determine exactly",
        ),
        Measure(
            "rank_per_client",
            GREATER,
            "share of clients",
            "independent combinations of a round's answers, per client",
        ),
        Measure(
            PERSISTING,
            GREATER,
            "share of clients",
            "clients that all rounds together determine, if their updates persist",
        ),
        Measure("recovered_cosine", GREATER, "cosine", "recovered updates against the true ones"),
        Measure(
            "persistent_cosine",
            GREATER,
            "cosine",
            "least-squares estimate of a client's mean update against the true one",
        ),
        Measure(
            "guessed_cosine",
            GREATER,
            "cosine",
            "best linear guess of a client's mean update against the true one",
        ),
    ),
    columns=(
        Column(
            "rounds_recoverable",
            GREATER,
            exact=True,
            words="rounds in which the sums determine its update",
        ),
        Column(
            "part_of_row_space",
            GREATER,
            exact=True,
            words="1: the sums of a round determine its update",
        ),
        Column(
            "part_over_all_rounds",
            GREATER,
            exact=True,
            words="part_of_row_space over all rounds, as far as updates persist",
        ),
        Column(
            "uploads_per_round",
            GREATER,
            exact=True,
            words="masked uploads that the sums require from it",
        ),
    ),
    decision=Decision(counts=True, side_measures={PERSISTING: "part_over_all_rounds"}),
    words=Words(
        short="Single clients in the sums?",
        learns="narrow sums down to groups of {value} where {baseline} were declared",
        measure="clients in the smallest group that some combination of answers exposes",
        leak="Combined, the answers expose a group of {value} below the threshold of {baseline}: "
        "{notes}.",
        no_evidence="Every combination of a round's answers that was found has at least {value} "
        "clients (threshold {baseline}): {notes}.",
        advice=(
            Advice("ask for disjoint groups (fedaudit plan design)"),
            Advice("let the aggregator refuse such queries (refuse_isolating = true)"),
        ),
        against="threshold",
        counted=("client in the smallest sum", "clients in the smallest sum"),
        known="Single updates arrive without summation, {first}.",
        known_advice=(
            Advice("let only sums leave ([protections.secure_sum] or secure_aggregation)"),
        ),
        beside={
            PERSISTING: "{value} of the clients can be estimated alone from the sums of all "
            "rounds, if their updates persist."
        },
    ),
    needs_truth=False,
    single_updates_in_sums="recoverable_updates",
)
