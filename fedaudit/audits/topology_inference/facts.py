"""Measures, client table, verdict and words of the topology audit."""

from __future__ import annotations

from fedaudit.audits.facts import (
    GREATER,
    LESS,
    UNKNOWN,
    Advice,
    AuditFacts,
    Column,
    Measure,
    Words,
)

EXPLAINED = "share of the spread of class mixes between clients that an observer explains"

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
        # a guess that is further off says less about the clients
        Measure("calibration_loss", LESS, "squared share", "mean squared error of the guesses"),
        Measure(
            "top_recovery", GREATER, "share of the top k", "clients rightly guessed to be highest"
        ),
        Measure(
            "auroc", GREATER, "area from 0 to 1", "clients above the threshold told from the others"
        ),
        Measure("shadow_lift", GREATER, "squared share", "gain on shadows that were not learnt"),
        Measure(
            "shadow_lift_change", UNKNOWN, "squared share", "change of it under another hierarchy"
        ),
        Measure(
            "null_lift", UNKNOWN, "squared share", "gain if class mixes are dealt out at random"
        ),
    ),
    columns=(
        Column("gain", GREATER),
        *(Column(name) for name in ("guess", "p", "mean", "from", "to")),
    ),
    words=Words(
        measure=EXPLAINED,
        leak="An observer of the wire explains {value} of how clients differ in their share of the "
        "sensitive classes ({baseline}: no better than one guess for all).",
        no_evidence="An observer of the wire explains {value} of how clients differ in their share "
        "of the sensitive classes, no more than one guess for all ({baseline}) can reach by "
        "chance.",
        advice=(
            Advice(
                "noise against what parameters tell (DP-SGD hides records, a class mix needs far "
                "more)"
            ),
            Advice(
                "another hierarchy against what place and organisation tell, where no noise helps "
                "(the audit's setting what_if measures others)"
            ),
        ),
        percent=True,
        against="one guess for all clients",
    ),
)
