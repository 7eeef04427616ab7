"""Measures, verdict and words of the epsilon audit."""

from dataclasses import replace

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

NOISE = (
    Measure("noise", LESS, "of the declared power", "power of the noise in a tensor"),
    *(
        Measure(f"noise_between_{which}", LESS, "of the declared power", f"power of {words}")
        for which, words in (
            ("tensors", "differences of tensors"),
            ("clients", "differences of uploads"),
            ("rounds", "differences of rounds"),
        )
    ),
)

CHECKED = "epsilon_checked"

FACTS = AuditFacts(
    measures=(
        Measure("epsilon", GREATER, "epsilon", "epsilon that was measured, at least"),
        Measure(
            CHECKED,
            GREATER,
            "epsilon",
            "the same at the error that all checks of the declaration share",
        ),
        Measure(
            "epsilon_any_mechanism",
            GREATER,
            "epsilon",
            "the same, assuming nothing about the mechanism",
        ),
        Measure(
            "epsilon_rehearsals",
            GREATER,
            "epsilon",
            "the same from the share of right guesses in independent rehearsals",
        ),
        Measure(
            "share_of_declared",
            GREATER,
            "of the declared epsilon",
            "epsilon that was measured, at least, over the declared one",
        ),
        Measure("guessed", GREATER, "share of coins", "coins of canaries guessed correctly"),
        Measure("gain", UNKNOWN, "clips", "what an inserted canary moves over what it may move"),
        *NOISE,
        *(replace(m, name=f"run_{m.name}", words=f"{m.words} (run itself)") for m in NOISE),
        Measure("batch_sizes", UNKNOWN, "of the declared size", "mean size of a batch"),
        Measure("spread_of_batch_sizes", UNKNOWN, "of Poisson sampling", "variance of batch sizes"),
        Measure(
            "spread_of_draws",
            UNKNOWN,
            "of Poisson sampling",
            "variance of how often canaries are drawn",
        ),
        Measure("steps", GREATER, "steps", "steps of one client"),
        Measure("diverged_rounds", GREATER, "rounds", "rounds with numbers that are not finite"),
        Measure("delta_times_records", GREATER, "records", "delta times the number of records"),
    ),
    columns=(
        Column("declared", GREATER, exact=True, words="declared epsilon"),
        Column("guessed", GREATER, words="share of the client's coins guessed correctly"),
        Column("right", exact=True, words="right guesses"),
        Column("coins", exact=True, words="canaries of this client"),
        Column("at_most", exact=True, words="share that the declared mechanism allows"),
        Column("p", words="p-value against its declaration, adjusted for all clients (Holm)"),
    ),
    # to measure some of what was declared is no fault
    decision=Decision(found="no_evidence", bounds_error="false_alarms"),
    words=Words(
        short="Declared epsilon broken?",
        learns="learn more than the declared epsilon allows",
        measure="epsilon measured, at least",
        leak="{first}.",
        no_evidence="{first}.",
        advice=(
            Advice("add more noise in DP-SGD", only=("noise_at_step",)),
            Advice("add noise", unless=("noise_at_step",)),
        ),
        against="nothing",
    ),
)
