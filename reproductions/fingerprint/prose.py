"""What the page says around its tables: the setting, and how each table was made.

Nothing here states a result: sentences with results are made from the numbers in `short`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

PAPER_NAME = {
    "newsgroups": "20NewsGroup (News)",
    "docs": "EmpatheticDialogue (Dial), another text",
    "sotu": "EmpatheticDialogue (Dial), another text",
}

INTRO = """# Fingerprint: published and measured

Written by `python -m reproductions.fingerprint.run` (`--render` writes it again from
`reproductions/fingerprint/results.json`; `--quick` is a tiny version). Source: *Fingerprint Attack:
Client De-Anonymization in Federated Learning*, tables 2 to 6 and 9 to 11, figures 2 and 3,
footnote 4.

**How to read it.** Cells are purity / Rand index / mutual information in nats. Measured purity has
a 95 % interval: a jackknife over clients, with the variance between seeds added. `chance` is the
mean over 1000 draws of a linker that deals one label per row and round; `random` is the published
baseline, independent uniform labels. `tracking` and `joint` are not in the paper.
"""

DIFFERS = """## What differs from the paper

- **Size.** The published model is a GPT-2 of width 192 on full vocabulary with {published_train}
  windows per client; this one is much smaller, so that two cores finish it. Clipping bounds are
  therefore quantiles of this model's gradient norms instead of 50, 100 and 200, set side by side by
  rank only.
- **Batch.** With q = 1/16 a batch has {batch} windows here and 32 there. Noise z C is divided by
  the batch, so at equal z (and equal epsilon) a clipped mean gradient carries {ratio} times the
  noise per coordinate. Results at equal z compare in epsilon, not in strength.
- **Text.** EmpatheticDialogue is not among the sets that fedaudit fetches. `docs` (the Python
  language reference, neighbouring topics as a client) and `sotu` (speeches, a president as a
  client) stand beside its tables as other natural clients, not as the same data.
- **Pretraining** is on windows of the same set that no client holds (the paper: WikiText). The
  model therefore knows the domain before the federation begins.
- **Server learning rate.** FedAvg on deltas: 1.0 is the ordinary step and 0.0001 hardly moves the
  model. The published 1e-6 and 1e-7 belong to another parameterisation; only the order compares.
- **Batches** are independent for every client and round, unless a table says otherwise, and rows
  are permuted before linking.
"""

CLIENTS = """Nearly frozen server (rate 0.0001), first block, fc and proj. Fewer clients than a set
has are drawn at random for every seed."""

ROUNDS = """The published figure prints no numbers. A shorter run is the beginning of the longest
one, with the same seeds."""

INSIDE = {
    "features": "`columns` standardises every column over all rounds, as the published code did; "
    "the other rows have unit norm, as the text says.",
    "layers": "Both weight matrices of one block's feed-forward part.",
}

RATE = """From nearly frozen to the ordinary step. Published rates and ours are not on one scale."""

SAME = """Part of the published linkage is determinism: a client that meets the same batches with a
model that has not moved sends the same update again, whatever its data are. `same` draws the
batches of a client once for all rounds; `independent` draws them anew."""

HALF = """Greedy matching of neighbouring rounds has no partner for a client that pauses; the paper
says so and does not measure it. `links found` is the share of a client's rows whose next row was
found, pauses included."""

MOMENTUM = """Every link that was made and joins two different clients is false. Momentum within a
round (the state is fresh in every round, as in the published simulator) changes the step length:
`rate / 10` keeps the effective step. `carried` clients keep their buffer from round to round and
upload it; `noise` is DP-SGD with z = 1 at the median clip."""

GRID = """DP-SGD at every client, noise on the sum of clipped gradients, Poisson batches with
q = 1/16, nearly frozen server. The published epsilons cover **one** round; a client takes part in
ten. Both are given, by Renyi divergences (rdp, the published way) and by privacy loss distributions
(pld); the number is that of rounds. Clip bounds are the 25, 50 and 90 % quantiles of per-example
gradient norms at the start.
`loss after a round` is held-out loss after one round with server rate 1.0: a nearly frozen model
has no utility to lose. The row without DP has shuffled batches of equal size, all others Poisson
batches, so its distance to `z = 0` is not due to clipping alone.
Table 6 is the greedy and spectral part of table 10."""

FINE = """The published steps of z are coarse. `{corpus}`, median clip, smaller steps; chance is
{chance}."""

CURVE = """Server rate 1.0, median clip. The published figure runs for hundreds of epochs and prints
no numbers. The target is the lowest loss that training without DP reaches here, {target:.3f}.
That is only {gain:.3f} below the start, for which two seeds give no interval worth the name: the
last column reads one curve, and cannot rank training without DP against clipping alone. What noise
adds to the loss, {cost:.2f} and more, is another matter."""


def head(
    scale: Mapping[str, Any],
    start: Mapping[str, Any],
    missing: Sequence[str],
    lacking: Sequence[str],
) -> str:
    """Introduction, setting, what is still to be measured, and what differs."""
    batch = scale["train"] // scale["steps"]
    lines = [
        f"- GPT of {scale['depth']} blocks, width {scale['width']}, {scale['heads']} heads, "
        f"{scale['length']} tokens, {scale['words']} words; {scale['train']} training and "
        f"{scale['held']} held-out windows per client.",
        f"- {scale['rounds']} rounds; local SGD, rate 0.1, no momentum, 16 steps with batches of "
        f"{batch} (q = 1/16).",
    ]
    for name, own in start.items():
        norms = ", ".join(f"{float(q):.0%}: {v:.2f}" for q, v in own["norms"].items())
        before, after = own["pretraining"]
        lines.append(
            f"- `{name}`: {own['owners']} owners with enough text; {own['numbers']:,} parameters, "
            f"pretrained for {scale['pretraining_steps']} steps of Adam on {own['windows']:,} "
            f"windows that no client holds (loss {before:.2f} to {after:.2f}); quantiles of "
            f"gradient norms {norms}."
        )
    lines += [f"- `{name}` was skipped: it had not been fetched." for name in missing]
    if lacking:
        left = Counter("/".join(key.split("/")[:2]) for key in lacking)
        named = ", ".join(f"{name} ({n})" for name, n in sorted(left.items()))
        lines.append(
            f"- **Not complete:** {len(lacking)} of the measurements are missing, and the tables "
            f"show what there is: {named}. The command goes on where it stopped."
        )
    differs = DIFFERS.format(published_train=512, batch=batch, ratio=32 // batch)
    return "\n".join([INTRO, "## Setting\n", *lines, "", differs])
