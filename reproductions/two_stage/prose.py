"""What the page says around its tables: the setting, and how each figure was made.

Nothing here states a result: sentences with results are made from the numbers in `short`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

INTRO = """# Two-stage membership: published and measured

Written by `python -m reproductions.two_stage.run` (`--render` writes it again from
`reproductions/two_stage/results.json`; `--quick` is a tiny version). Source: *The Geometry of
Privacy: A Two-Stage Analysis of Generative Membership Inference in Federated Learning*, figures 1
to 5.

**How to read it.** TS-MIA is the share of clients with SUR > tau and J > 0. Beside every value
stands its *baseline*: the same with J on as many records of the same classes that nobody trained
on. What is not above its baseline says nothing about membership. *Attack* is the area under the ROC
curve of a membership attack on the same recorded rounds (1/2 is chance), which the paper does not
run. Brackets are 95 % intervals over seeds: for TS-MIA Wilson's, where the clients and rounds of a
seed count for as many as they are worth (where all agree, for one); for the attack, J, SUR, SNR and
power Student's t (from the one seed's own interval where there is one). Bands of figures are the
same.
"""

DIFFERS = """## What differs from the paper

- **Faults mended.** Optimiser state is fresh for every client and round; both scores of an
  increment share their random numbers; inputs are scaled once. What each fault does is shown below.
- **Data.** PathMNIST is not among the sets that fedaudit fetches: 8 x 8 `digits` with a small
  autoencoder, and MNIST with the published architecture. Images of figures 2 and 3 are drawn from
  2,000 records, as published; federations on MNIST train on 1,000, half as many, for want of time.
- **Model.** The paper does not print the layers of its autoencoder; they are taken from its public
  code ({encoder:,} + {decoder:,} parameters with 3 colours and 10 classes, checked by a test). Left
  out are dropout of latent numbers, which that code leaves on while scoring, and the clamp of the
  log variance, which has no second derivative.
- **Score.** Bernoulli evidence lower bound, in nats; the public code has the squared error plus
  the divergence.
- **Batches.** The paper does not say; its public code takes each client's records at once, so that
  "3 epochs" are 3 steps. So do figures 4 and 5 here; batches of 16 stand beside them.
- **J** is a mean over the members that are asked about (up to 64 per client on `digits`, 16 on
  MNIST), with 4 draws and 1 of the autoencoder's noise, the same for all models.
"""

SURFACE = """Synthetic pairs in R^100 on the published grid, SUR measured against
SUR = 1 / sqrt(1 + r^2 + 2 r lambda). The right map is the sound stage I: others' updates add up to
|B| = 1, noise has deviation 1/3 per number, and u = B / r in length is found with power
Phi(|u|/sigma - z) at 5 % false alarms if B is known. It does not depend on lambda at all."""

BOUND = """50 images, 30 step sizes along the score gradient each, double precision. `published`:
step sizes in ascending order, every other one calibrates L = max 2 err / |v|^2, the rest test it;
`swapped`: the two halves change places; `curvature`: L from Hessian-vector products on nine points
of the segment, tested on all steps. `start` is the untrained model, as in the paper. Intervals:
Wilson over points, as published; and over images, whose points are not independent."""

ALIGNMENT = """One image, perturbations of length m / |g| at an angle to its score gradient g;
`largest distance` is that of J from phi(m cos), the proxy, over all angles, as a mean over
images with Student's t interval, where there is more than one."""

TRAJECTORY = """{clients} clients, {rounds} rounds, {epochs} whole-batch steps of Adam at 0.001 per
round, tau = 0.1. Risk is a mean over all clients; in `inverted` the target is client 0."""

NON_IID = """The label-sorted federation, means over clients and seeds; ranges over rounds. The
image is the first record of its client 0."""

FAULTS = """The published loop on the same clients, with its faults switched on one by one; J over
all records of a client with one draw, as there."""

BATCHED = """`batches` takes batches of 16 for {epochs} epochs, `long` for {long}: enough
training for an attack to find something."""

MANY = """Stage I binds where r is large. IID, batches of 16, {long} epochs; {many} clients have
about {each} records each."""

NOISE = """Gaussian noise of deviation z C at every client (C = {clip:g}), {clients} clients, IID,
batches of 16, {long} epochs. `tau from noise` is sigma sqrt(d) / |dW| (Remark 1). SNR
and power are those of the updates before their noise, which these runs keep; to SUR noise counts as
signal. With z = 0.3 training diverges here, so that SNR never falls as far as to bind, while the
tau of Remark 1 does from z = 0.003 on, long before the attack fails."""

READINGS = """Area under the ROC curve of every reading of the same recordings. `calibrated` is the
likelihood ratio whose reference are other clients' updates, summed over rounds with equal weight;
it is the headline of the audit. The last column is the difference of the first two over seeds:
below 0, adding up rounds of equal weight loses to the last round alone, where the model fits its
records best."""

PROTECTED = """{clients} clients, IID, batches of 16, {long} epochs, each protection alone. Behind a
secure sum the server reads what the model moved by, and there is no single update for TS-MIA to be
measured on (–); behind a shuffler it sees updates without names, and TS-MIA is measured with the
names that it lacks."""

CANCEL = """Two clients with other classes, softmax regression, whole-batch gradient
descent. The federation comes to rest where the two updates cancel, so lambda goes to -1 by itself.
Noise of deviation {noise:g} per number; `by trial` draws it {trials:,} times with the update in
the sum, and as often without (false alarms, to be at 5 %)."""


def head(
    scale: Mapping[str, Any],
    published: Mapping[str, Any],
    missing: Sequence[str],
    lacking: Sequence[str],
) -> str:
    """Title, how to read, what was not measured, what differs."""
    known = published["parameters"]
    out = [INTRO]
    for name in missing:
        out.append(f"`{name}` was skipped: it is not fetched (`fedaudit data get {name}`).\n")
    if lacking:
        counts = Counter("/".join(key.split("/")[:2]) for key in lacking)
        many = ", ".join(f"{name} ({n})" for name, n in sorted(counts.items()))
        out.append(
            f"**Not measured yet**, and not in the tables: {many}. `make reproduce-two-stage` "
            "continues where it stopped.\n"
        )
    out.append(DIFFERS.format(encoder=known["encoder"], decoder=known["decoder"]))
    return "\n".join(out)
