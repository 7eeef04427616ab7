"""Measures, client table, verdict and words of the topology audit."""

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

EXPLAINED = "share of the variation in class mix between clients that an observer explains"

FACTS = AuditFacts(
    measures=(
        Measure("explained", GREATER, "share of the spread", EXPLAINED),
        Measure("lift", GREATER, "squared share", "gain over one guess for all, the true mean"),
        Measure(
            "lift_over_shadow_mean",
            GREATER,
            "squared share",
            "gain over one guess for all, the mean of the shadows",
        ),
        Measure(
            "topology_contribution",
            GREATER,
            "squared share",
            "gain of parameters, place and organisation over parameters alone",
        ),
        Measure("structure_part", GREATER, "squared share", "gain that a client's place adds"),
        Measure("organisation_part", GREATER, "squared share", "gain that the organisation adds"),
        # a larger error reveals less about the clients
        Measure("calibration_loss", LESS, "squared share", "mean squared error of the guesses"),
        Measure(
            "top_recovery", GREATER, "share of the top k", "top k clients that are guessed right"
        ),
        Measure(
            "auroc", GREATER, "area from 0 to 1", "clients above the threshold told from the others"
        ),
        Measure(
            "shadow_explained",
            GREATER,
            "share of the spread",
            "the same on shadow federations, where this run has too few clients",
        ),
        Measure("shadow_lift", GREATER, "squared share", "gain on held-out shadows"),
        Measure(
            "shadow_lift_change",
            UNKNOWN,
            "squared share",
            "change of the gain on shadows under another hierarchy",
        ),
        Measure("null_lift", UNKNOWN, "squared share", "gain with permuted class mixes"),
    ),
    columns=(
        Column("gain", GREATER, words="improvement of the guess over that mean, in squared error"),
        Column("guess", words="the observer's guess of p"),
        Column("p", words="its true share of the sensitive classes"),
        Column("mean", words="the one guess for all clients"),
        Column("from", words="low end of the guess"),
        Column("to", words="high end of the guess"),
    ),
    decision=Decision(side_measures={"shadow_explained": ""}),
    words=Words(
        short="A client's class mix?",
        learns="estimate each client's class mix",
        measure=EXPLAINED,
        beside={
            "shadow_explained": "This run has too few clients to rule out chance. In federations "
            "of its kind, which the observer trained itself, an observer of the wire explains "
            "{value} of how clients differ in their share of the sensitive classes."
        },
        leak="An observer of the wire explains {value} of how clients differ in their share of the "
        "sensitive classes ({baseline}: no better than one guess for all).",
        no_evidence="An observer of the wire explains {value} of how clients differ in their share "
        "of the sensitive classes, which chance can explain (one guess for all: {baseline}).",
        advice=(
            Advice(
                "add noise against leaks through parameters (a class mix needs far more noise "
                "than single records)"
            ),
            Advice(
                "change the hierarchy against leaks through place and organisation, which "
                "noise does not reduce (the audit's setting what_if tries others)"
            ),
        ),
        percent=True,
        against="one guess for all clients",
    ),
)
