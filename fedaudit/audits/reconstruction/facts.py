"""Measures, client table, verdict and words of the reconstruction audit."""

from __future__ import annotations

from fedaudit.audits.facts import (
    GREATER,
    LESS,
    NOISE,
    UNITS,
    UNKNOWN,
    Advice,
    AuditFacts,
    Column,
    Decision,
    Measure,
    Words,
)

REBUILT, EXACT = "records_rebuilt", "records_exact"
RIGHT, CLOSEST = "columns_right", "closest_guess"
DISHONEST = "records_rebuilt_dishonest"
CONSTANT, PSNR, SSIM = "columns_right_by_constant", "psnr", "ssim"
ALL_TOKENS, TOKENS, RUN = "all_tokens_named", "tokens_named", "longest_run"
PLACED = "tokens_in_place"
ADJUSTED_P = "adjusted_p"

FACTS = AuditFacts(
    gravity="rebuilt",
    measures=(
        Measure(
            REBUILT,
            GREATER,
            "share of records",
            "training records to which a guess comes closer than the tolerance, and closer than to "
            "any other record",
        ),
        Measure(
            EXACT,
            GREATER,
            "share of records",
            "training records rebuilt almost exactly (a twentieth of the usual distance)",
        ),
        Measure(
            DISHONEST,
            GREATER,
            "share of records",
            "training records that a server rebuilds if it plants weights in the run's own model",
            given="it plants weights",
        ),
        Measure(
            RIGHT,
            GREATER,
            "share of columns",
            "columns of a training record that its nearest guess has right",
            above_non_members=True,
        ),
        Measure(
            CONSTANT,
            UNKNOWN,
            "share of columns",
            "columns of a training record that one constant guess has right, the best one for the "
            "adversary's own records",
        ),
        Measure(
            PSNR,
            GREATER,
            "dB",
            "peak signal-to-noise ratio of the nearest guess to a training image",
            above_non_members=True,
        ),
        Measure(
            SSIM,
            GREATER,
            "similarity, at most 1",
            "structural similarity of the nearest guess to a training image",
            above_non_members=True,
        ),
        Measure(
            CLOSEST,
            LESS,
            "usual distances",
            "mean distance of a training record to its nearest guess, in median distances of two "
            "records",
        ),
        Measure(
            ALL_TOKENS,
            GREATER,
            "share of records",
            "training texts all of whose tokens one update names",
            above_non_members=True,
        ),
        Measure(
            TOKENS,
            GREATER,
            "share of tokens",
            "tokens of a training text that an update names",
            above_non_members=True,
        ),
        Measure(
            RUN,
            GREATER,
            "share of tokens",
            "longest run of consecutive tokens of a training text that one update names",
            above_non_members=True,
        ),
        Measure(
            PLACED,
            GREATER,
            "share of tokens",
            "tokens of a training text that an update of one text names at their position",
            above_non_members=True,
        ),
    ),
    columns=(
        Column("share", GREATER, has_interval=True, words="share of its records rebuilt"),
        Column("rebuilt", GREATER, exact=True, words="number of its records rebuilt"),
        Column("asked", exact=True, words="number of its records that were looked for"),
        Column("guesses", exact=True, words="guesses made for it, over all rounds"),
        Column(
            "closest",
            LESS,
            words="distance of its best guess to a record, in median distances of two records",
        ),
        Column(
            "labels_right",
            exact=True,
            words="share of its records whose class was counted right from the last layer's bias",
        ),
        Column("named", exact=True, words="tokens named by rows that may be its own"),
        Column("precision", words="share of the tokens named for it that its texts hold"),
        Column(ADJUSTED_P, words="p-value against chance, adjusted for all readings and clients"),
    ),
    decision=Decision(client_value="share", client_p=ADJUSTED_P, sample_size="asked"),
    words_by_headline={
        ALL_TOKENS: Words(
            short="Words of texts read?",
            learns="read the words of {value} of the texts, without their order",
            measure="training texts all of whose tokens an update names",
            leak="An update names every token of {value} of the training texts, and of {baseline} "
            "of texts that nobody trained on.",
            no_evidence="Updates name every token of {value} of the training texts, which chance "
            "({baseline}) can explain.",
            advice=(Advice("freeze the embedding, or train adapters"), *NOISE),
            percent=True,
            against="unused texts",
        )
    },
    words=Words(
        short="Records rebuilt?",
        learns="rebuild {value} of records",
        measure="training records that can be rebuilt",
        leak="{value} of training records can be rebuilt from what was sent ({baseline} of records "
        "that nobody trained on).",
        no_evidence="{value} of training records were rebuilt, which chance ({baseline}) can "
        "explain.",
        advice=(
            Advice("train on larger batches and more local steps before anything is sent"),
            *NOISE,
            UNITS,
        ),
        percent=True,
        against="unused records",
    ),
)
