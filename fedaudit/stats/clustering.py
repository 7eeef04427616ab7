"""How well a linking of anonymous messages agrees with who sent them.

Shapes: `truth` and `labels` are (N,) vectors of any hashable names: the sender of each message,
and the cluster it was put into. All scores are functions of the contingency table
(..., classes, clusters) and vectorised over its leading axes.

Scores as in [Fingerprint] Section 4.1: purity, Rand index (not adjusted) and mutual information in
nats; adjusted Rand beside them, since the first three are far above zero for a random linker.
`chance` says how far, for the same design.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from fedaudit.errors import UsageError
from fedaudit.results import Estimate
from fedaudit.stats.intervals import check_choice, check_confidence

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]

_BLOCK = 1 << 20


def contingency(truth: npt.ArrayLike, labels: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """How many messages of each class fell into each cluster: (classes, clusters)."""
    t, c = _codes(truth, labels)
    classes, clusters = int(t.max()) + 1, int(c.max()) + 1
    flat = np.bincount(t * clusters + c, minlength=classes * clusters)
    return flat.reshape(classes, clusters).astype(np.int64)


def _codes(truth: npt.ArrayLike, labels: npt.ArrayLike) -> tuple[Array, Array]:
    t, c = np.asarray(truth), np.asarray(labels)
    if t.ndim != 1 or t.shape != c.shape or len(t) == 0:
        raise UsageError(
            "one cluster per message",
            expected="two vectors of equal length, not empty",
            got=f"truth {t.shape}, labels {c.shape}",
            remedy="pass the sender and the cluster of every message",
        )
    return np.unique(t, return_inverse=True)[1], np.unique(c, return_inverse=True)[1]


def _pairs(counts: Array) -> Floats:
    x = counts.astype(np.float64)
    return x * (x - 1.0) / 2.0


def _pair_counts(table: Array) -> tuple[Floats, Floats, Floats, Floats]:
    """Pairs together in both, in truth, in labels, and in all; each (...,)."""
    both = _pairs(table).sum(axis=(-2, -1))
    in_truth = _pairs(table.sum(axis=-1)).sum(axis=-1)
    in_labels = _pairs(table.sum(axis=-2)).sum(axis=-1)
    return both, in_truth, in_labels, _pairs(table.sum(axis=(-2, -1)))


def table_purity(table: Array) -> Floats:
    """Sum over clusters of the largest class, over N: (...,) from (..., classes, clusters)."""
    return np.asarray(table.max(axis=-2).sum(axis=-1) / table.sum(axis=(-2, -1)))


def table_rand_index(table: Array) -> Floats:
    """Share of pairs on which truth and labels agree, not adjusted for chance; (...,)."""
    both, in_truth, in_labels, everything = _pair_counts(table)
    agree = everything + 2.0 * both - in_truth - in_labels
    # one message has no pairs, and nothing to disagree about
    return np.where(everything > 0, agree / np.maximum(everything, 1.0), 1.0)


def table_adjusted_rand(table: Array) -> Floats:
    """Rand index rescaled to mean 0 under random relabelling and 1 at agreement; (...,)."""
    both, in_truth, in_labels, everything = _pair_counts(table)
    expected = in_truth * in_labels / np.maximum(everything, 1.0)
    span = (in_truth + in_labels) / 2.0 - expected
    # span is 0 only where both partitions are trivial, and then they agree
    return np.where(span == 0, 1.0, (both - expected) / np.where(span == 0, 1.0, span))


def table_mutual_information(table: Array) -> Floats:
    """Mutual information of truth and labels in nats, at most ln(classes); (...,)."""
    joint = table / table.sum(axis=(-2, -1), keepdims=True)
    product = joint.sum(axis=-1, keepdims=True) * joint.sum(axis=-2, keepdims=True)
    ratio = np.where(joint > 0, joint, 1.0) / np.where(joint > 0, product, 1.0)
    return np.maximum((joint * np.log(ratio)).sum(axis=(-2, -1)), 0.0)


SCORES: dict[str, Callable[[Array], Floats]] = {
    "purity": table_purity,
    "rand_index": table_rand_index,
    "mutual_information": table_mutual_information,
    "adjusted_rand": table_adjusted_rand,
}


def purity(truth: npt.ArrayLike, labels: npt.ArrayLike) -> float:
    """Share of messages that belong to the largest class of their cluster."""
    return float(table_purity(contingency(truth, labels)))


def rand_index(truth: npt.ArrayLike, labels: npt.ArrayLike) -> float:
    """Share of pairs of messages on which truth and labels agree."""
    return float(table_rand_index(contingency(truth, labels)))


def mutual_information(truth: npt.ArrayLike, labels: npt.ArrayLike) -> float:
    """Mutual information of truth and labels, in nats."""
    return float(table_mutual_information(contingency(truth, labels)))


def adjusted_rand(truth: npt.ArrayLike, labels: npt.ArrayLike) -> float:
    """Rand index adjusted for chance."""
    return float(table_adjusted_rand(contingency(truth, labels)))


def scores(truth: npt.ArrayLike, labels: npt.ArrayLike) -> dict[str, float]:
    """All four scores by name."""
    table = contingency(truth, labels)
    return {name: float(score(table)) for name, score in SCORES.items()}


def chance(
    truth: npt.ArrayLike,
    rounds: npt.ArrayLike,
    *,
    rng: np.random.Generator,
    clusters: int | None = None,
    design: Literal["permutation", "uniform"] = "permutation",
    draws: int = 2000,
    confidence: float = 0.95,
) -> dict[str, Estimate]:
    """What a linker that knows nothing scores in this design, by simulation.

    `truth` (N,) is the sender of each message and `rounds` (N,) its round; `clusters` is the
    number of labels the linker deals out (default: the number of senders).
    "permutation": one random assignment of distinct labels per round, as every linker that knows
    that a client sends once a round. "uniform": independent uniform labels, as in the published
    random rows. Of each estimate, `value` is the mean over draws and [`low`, `high`] the central
    range of single draws at `confidence`: where a real linker that knows nothing would fall.
    """
    alpha = check_confidence(confidence)
    check_choice("design", design, ("permutation", "uniform"))
    t, r = _codes(truth, rounds)
    classes = int(t.max()) + 1
    k = classes if clusters is None else clusters
    sizes = np.bincount(r)
    if draws < 100 or k < 1 or (design == "permutation" and int(sizes.max()) > k):
        raise UsageError(
            "a random linker cannot be drawn for this design",
            expected="at least 100 draws, and as many labels as messages in the largest round",
            got=f"{draws} draws, {k} labels, up to {int(sizes.max())} messages in a round",
            remedy='raise `draws` or `clusters`, or use design="uniform"',
        )
    n = len(t)
    samples = {name: np.empty(draws) for name in SCORES}
    block = max(1, _BLOCK // max(n, classes * k))
    for start in range(0, draws, block):
        stop = min(draws, start + block)
        labels = _random_labels(r, sizes, k, design, stop - start, rng)
        address = (np.arange(stop - start)[:, None] * classes + t[None, :]) * k + labels
        flat = np.bincount(address.ravel(), minlength=(stop - start) * classes * k)
        table = flat.reshape(stop - start, classes, k)
        for name, score in SCORES.items():
            samples[name][start:stop] = score(table)
    out = {}
    for name, drawn in samples.items():
        low, high = np.quantile(drawn, [alpha / 2, 1 - alpha / 2])
        out[name] = Estimate(
            value=float(drawn.mean()),
            low=float(low),
            high=float(high),
            n=n,
            confidence=confidence,
            method=f"random linker ({design}, {draws} draws)",
        )
    return out


def _random_labels(
    rounds: Array,
    sizes: Array,
    clusters: int,
    design: str,
    draws: int,
    rng: np.random.Generator,
) -> npt.NDArray[np.int64]:
    """Labels of a random linker, (draws, N)."""
    if design == "uniform":
        return rng.integers(0, clusters, size=(draws, len(rounds)))
    labels = np.empty((draws, len(rounds)), dtype=np.int64)
    deck = np.broadcast_to(np.arange(clusters), (draws, clusters))
    for number, size in enumerate(sizes):
        labels[:, rounds == number] = rng.permuted(deck, axis=1)[:, :size]
    return labels
