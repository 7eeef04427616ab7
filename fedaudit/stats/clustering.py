"""Agreement between a linking of anonymous messages and their true senders.

Shapes: `truth` and `labels` are (N,) vectors of any hashable names: each message's sender and
cluster. All scores are functions of the contingency table (..., classes, clusters) and vectorised
over its leading axes.

Scores as in [Fingerprint] Section 4.1: purity, Rand index (not adjusted) and mutual information in
nats; also adjusted Rand, since a random linker scores far above zero on the first three. `chance`
gives a random linker's scores for the same design.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from fedaudit.arrays import Floats
from fedaudit.errors import UsageError
from fedaudit.results import Estimate
from fedaudit.settings import require
from fedaudit.stats.intervals import check_confidence

Array = npt.NDArray[Any]
Design = Literal["permutation", "uniform"]

_BLOCK = 1 << 20


def contingency(truth: npt.ArrayLike, labels: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """Number of messages of each class in each cluster: (classes, clusters)."""
    t, c = _codes(truth, labels)
    classes, clusters = int(t.max()) + 1, int(c.max()) + 1
    flat = np.bincount(t * clusters + c, minlength=classes * clusters)
    return flat.reshape(classes, clusters).astype(np.int64)


def _codes(truth: npt.ArrayLike, labels: npt.ArrayLike) -> tuple[Array, Array]:
    t, c = np.asarray(truth), np.asarray(labels)
    if t.ndim != 1 or t.shape != c.shape or len(t) == 0:
        raise UsageError(
            "truth and labels do not fit",
            expected="two vectors of equal length, not empty",
            got=f"truth {t.shape}, labels {c.shape}",
            remedy="pass the sender and the cluster of every message",
        )
    return np.unique(t, return_inverse=True)[1], np.unique(c, return_inverse=True)[1]


def _pairs(counts: Array) -> Floats:
    x = counts.astype(np.float64)
    return x * (x - 1.0) / 2.0


def _pair_counts(table: Array) -> tuple[Floats, Floats, Floats, Floats]:
    """Pairs joined in both, in truth, in labels, and all pairs; each (...,)."""
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
    # a single message has no pairs: full agreement
    return np.where(everything > 0, agree / np.maximum(everything, 1.0), 1.0)


def table_adjusted_rand(table: Array) -> Floats:
    """Rand index rescaled to mean 0 under random relabelling and 1 at agreement; (...,)."""
    both, in_truth, in_labels, everything = _pair_counts(table)
    expected = in_truth * in_labels / np.maximum(everything, 1.0)
    span = (in_truth + in_labels) / 2.0 - expected
    # span is 0 only if both partitions are trivial, and then they agree
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


def scores(truth: npt.ArrayLike, labels: npt.ArrayLike) -> dict[str, float]:
    """All four scores by name."""
    table = contingency(truth, labels)
    return {name: float(score(table)) for name, score in SCORES.items()}


def without_each_class(table: Array) -> dict[str, Floats]:
    """All four scores of a table (classes, clusters), leaving out each class in turn.

    Returns name -> (classes,). The cost grows with the non-empty cells: leaving out class i only
    removes n_ij from each cluster j. Counts may be fractions.
    """
    x = np.asarray(table, dtype=np.float64)
    if x.ndim != 2 or len(x) < 2:
        raise UsageError(
            "leaving one class out needs at least two classes",
            expected="a table (classes, clusters) of at least two classes",
            got=f"shape {x.shape}",
            remedy="pass the contingency table of two or more senders",
        )
    classes = len(x)
    i, j = np.nonzero(x)
    n, a, b = x[i, j], x.sum(axis=1), x.sum(axis=0)

    def over_cells(values: Floats) -> Floats:
        return _totals(i, values, classes)

    total = x.sum() - a
    both = _pairs(n).sum() - over_cells(_pairs(n))
    in_truth = _pairs(a).sum() - _pairs(a)
    in_labels = _pairs(b).sum() - over_cells(_pairs(b[j]) - _pairs(b[j] - n))
    # largest and second-largest class of a cluster: the second counts if the first is left out
    order = np.lexsort((n, j))
    last = np.flatnonzero(np.append(j[order][1:] != j[order][:-1], True))
    top = order[last]
    second = np.where(np.diff(last, prepend=-1) > 1, n[order[last - 1]], 0.0)
    lost = _totals(i[top], n[top] - second, classes)
    logs = (
        (_times_log(n).sum() - over_cells(_times_log(n)))
        - (_times_log(a).sum() - _times_log(a))
        - (_times_log(b).sum() - over_cells(_times_log(b[j]) - _times_log(b[j] - n)))
    )
    return _from_sums(total, n[top].sum() - lost, both, in_truth, in_labels, _pairs(total), logs)


def _totals(groups: Array, values: Floats, count: int) -> Floats:
    """Sum of `values` (n,) by group (n,): (count,)."""
    return np.asarray(np.bincount(groups, weights=values, minlength=count), dtype=np.float64)


def _times_log(x: Floats) -> Floats:
    """x ln x, and 0 for x <= 0 (rounding may leave values just below 0)."""
    positive = np.where(x > 0, x, 1.0)
    return positive * np.log(positive)


def _from_sums(
    total: Floats,
    largest: Floats,
    both: Floats,
    in_truth: Floats,
    in_labels: Floats,
    everything: Floats,
    logs: Floats,
) -> dict[str, Floats]:
    """The four scores from sums over a table, each (...,).

    `logs` is the sum of n ln n over cells, minus those over classes and over clusters.
    """
    agree = everything + 2.0 * both - in_truth - in_labels
    expected = in_truth * in_labels / np.maximum(everything, 1.0)
    span = (in_truth + in_labels) / 2.0 - expected
    # for fractions, rounding leaves span near 0; for whole numbers it is 0 or about 1/2 and more
    span = np.where(np.abs(span) <= 1e-9 + 1e-12 * everything, 0.0, span)
    return {
        "purity": largest / total,
        "rand_index": np.where(everything > 0, agree / np.maximum(everything, 1.0), 1.0),
        "mutual_information": np.maximum(logs / total + np.log(total), 0.0),
        "adjusted_rand": np.where(
            span == 0, 1.0, (both - expected) / np.where(span == 0, 1.0, span)
        ),
    }


def scores_of_labellings(
    truth: npt.NDArray[np.int64], labels: npt.NDArray[np.int64]
) -> dict[str, Floats]:
    """All four scores of many labellings (draws, N) of one truth (N,): name -> (draws,).

    Both are codes from 0 on.
    """
    return _scores_of_draws(truth, labels, int(truth.max()) + 1, int(labels.max()) + 1)


def _scores_of_draws(truth: Array, labels: Array, classes: int, clusters: int) -> dict[str, Floats]:
    """All four scores of many labellings (draws, N) of one truth (N,): name -> (draws,).

    After sorting (label, class) pairs, cells of the contingency table are runs of equal pairs.
    Empty cells, nearly all with many clients, cost nothing.
    """
    draws, n = labels.shape
    whole = np.dtype(np.int32 if classes * clusters < 1 << 31 else np.int64)
    cells = np.sort((labels * classes + truth).astype(whole), axis=1)
    starts = np.ones((draws, n), dtype=bool)
    np.not_equal(cells[:, 1:], cells[:, :-1], out=starts[:, 1:])
    at = np.flatnonzero(starts)
    draw = at // n
    counts = np.diff(at, append=draws * n).astype(np.float64)
    cluster = draw * clusters + cells.reshape(-1)[at] // classes
    first = np.flatnonzero(np.diff(cluster, prepend=-1))
    largest = np.maximum.reduceat(counts, first)
    sizes = _totals(cluster, counts, draws * clusters).reshape(draws, clusters)
    own = np.bincount(truth, minlength=classes).astype(np.float64)

    def per_draw(values: Floats, of: Array = draw) -> Floats:
        return _totals(of, values, draws)

    return _from_sums(
        np.full(draws, float(n)),
        per_draw(largest, draw[first]),
        per_draw(_pairs(counts)),
        np.full(draws, _pairs(own).sum()),
        _pairs(sizes).sum(axis=1),
        np.full(draws, n * (n - 1) / 2.0),
        per_draw(_times_log(counts)) - _times_log(own).sum() - _times_log(sizes).sum(axis=1),
    )


def chance(
    truth: npt.ArrayLike,
    rounds: npt.ArrayLike,
    *,
    rng: np.random.Generator,
    clusters: int | None = None,
    design: Design = "permutation",
    draws: int = 2000,
    confidence: float = 0.95,
) -> dict[str, Estimate]:
    """Simulated scores of a random linker in this design.

    `truth` (N,) is the sender of each message and `rounds` (N,) its round; `clusters` is the
    linker's number of labels (default: the number of senders).
    "permutation": one random assignment of distinct labels per round, for linkers that know that a
    client sends once per round. "uniform": independent uniform labels, as in the published random
    rows. Each estimate has the mean over draws as `value`, and the central range of single draws at
    `confidence` as [`low`, `high`].
    """
    alpha = check_confidence(confidence)
    require(Design, design=design)
    t, r = _codes(truth, rounds)
    classes = int(t.max()) + 1
    k = classes if clusters is None else clusters
    sizes = np.bincount(r)
    if draws < 100 or k < 1 or (design == "permutation" and int(sizes.max()) > k):
        raise UsageError(
            "this design has no random linker",
            expected="at least 100 draws, and as many labels as messages in the largest round",
            got=f"{draws} draws, {k} labels, up to {int(sizes.max())} messages in a round",
            remedy='raise `draws` or `clusters`, or use design="uniform"',
        )
    n = len(t)
    samples = {name: np.empty(draws) for name in SCORES}
    block = max(1, _BLOCK // n)
    for start in range(0, draws, block):
        stop = min(draws, start + block)
        labels = _random_labels(r, sizes, k, design, stop - start, rng)
        for name, values in _scores_of_draws(t, labels, classes, k).items():
            samples[name][start:stop] = values
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
