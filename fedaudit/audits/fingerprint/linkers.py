"""Linkers: rows of every round in, one label per row out.

Published: `random`, `kmeans`, `spectral`, `greedy`. Ours: `tracking` for partial participation
(tracks start, pause and end), and `joint`, which fits all rounds at once with at most one row per
client and round. Every linker permutes rows first: solvers break ties in input order, and
degenerate input would otherwise score 1.0.

Shapes: `rounds` is a list of unit rows (K_t, m); labels are a list of (K_t,) integers.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from fedaudit.arrays import Rows
from fedaudit.audits.rows.directions import Directions
from fedaudit.stats.assignment import Costs, Labels, match
from fedaudit.stats.products import inverse_lengths, product, square_lengths

Linker = Callable[[Sequence[Rows], int, np.random.Generator], list[Labels]]


# -- pieces ---------------------------------------------------------------------------------------


def distances(before: Rows, after: Rows) -> npt.NDArray[np.float32]:
    """D_ij = 1 - Sim(theta_i^t, theta_j^{t+1}) of unit rows, [Fingerprint] Eq. (11).

    (K_t, m) and (K_{t+1}, m) to (K_t, K_{t+1}).
    """
    return 1.0 - product(before, after)


def _split(labels: Labels, sizes: Sequence[int]) -> list[Labels]:
    return [own.copy() for own in np.split(labels, np.cumsum(sizes)[:-1])]


# -- published ------------------------------------------------------------------------------------


def random(rounds: Sequence[Rows], clients: int, rng: np.random.Generator) -> list[Labels]:
    """Independent uniform labels: the published random rows ([Fingerprint] Table 2)."""
    return [rng.integers(0, clients, size=len(r)) for r in rounds]


def gram(rounds: Sequence[Rows]) -> npt.NDArray[np.float64]:
    """Cosines (N, N) between all rows: every clustering here depends on these alone."""
    rows = np.concatenate(rounds)
    return (rows @ rows.T).astype(np.float64)


def embed(cosines: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Points (N, r) with the given inner products: the rows up to a rotation.

    Clustering them equals clustering the raw rows of d columns, at a cost of N columns.
    """
    from scipy.linalg import eigh

    values, vectors = eigh(cosines)
    keep = values > max(values[-1] * 1e-7, 1e-12)
    keep[-1] = True  # rows of zeros need a point, too
    out: npt.NDArray[np.float64] = vectors[:, keep] * np.sqrt(np.maximum(values[keep], 0.0))
    return out


ALL_DIRECTIONS = 800  # up to this many rows k-means sees whole rows, as published
PRODUCTS = 4000  # up to this many rows all pairwise products are computed


def cluster_points(
    rounds: Sequence[Rows], clients: int, rng: np.random.Generator
) -> npt.NDArray[np.floating]:
    """Points (N, r) to cluster: whole rows if few, else their `clients` strongest directions.

    The means of K clusters span at most K directions. The rest is noise within clusters, and slows
    the search.
    """
    total = sum(len(r) for r in rounds)
    if total <= max(ALL_DIRECTIONS, clients):
        return embed(gram(rounds))
    rows = np.concatenate(rounds)
    if total > PRODUCTS:
        from sklearn.utils.extmath import randomized_svd

        rank = min(clients, *rows.shape)
        left, sizes, _ = randomized_svd(rows, rank, random_state=int(rng.integers(1 << 31)))
        return np.asarray(left * sizes)
    from scipy.linalg import eigh

    values, vectors = eigh(rows @ rows.T, subset_by_index=(total - clients, total - 1))
    return np.asarray(vectors * np.sqrt(np.maximum(values, 0.0)))


def kmeans(rounds: Sequence[Rows], clients: int, rng: np.random.Generator) -> list[Labels]:
    """K-means over all rows of all rounds, [Fingerprint] Section 3.2.3."""
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    sizes = [len(r) for r in rounds]
    order = rng.permutation(sum(sizes))
    points = cluster_points(rounds, clients, rng)[order]
    with warnings.catch_warnings():
        # equal rows give fewer clusters than clients: a valid answer
        warnings.simplefilter("ignore", ConvergenceWarning)
        found = KMeans(clients, n_init=10, random_state=int(rng.integers(1 << 31))).fit(points)
    labels = np.empty(len(order), dtype=np.int64)
    labels[order] = found.labels_
    return _split(labels, sizes)


def spectral(rounds: Sequence[Rows], clients: int, rng: np.random.Generator) -> list[Labels]:
    """Spectral clustering over all rows, [Fingerprint] Section 3.2.3, with a Gaussian affinity."""
    from sklearn.cluster import SpectralClustering
    from sklearn.exceptions import ConvergenceWarning

    sizes = [len(r) for r in rounds]
    order = rng.permutation(sum(sizes))
    products = gram(rounds)
    own = np.diagonal(products)
    apart = np.maximum(own[:, None] + own - 2.0 * products, 0.0)
    affinity = np.exp(-apart)[np.ix_(order, order)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        found = SpectralClustering(
            clients,
            affinity="precomputed",
            random_state=int(rng.integers(1 << 31)),
            assign_labels="kmeans",
        ).fit(affinity)
    labels = np.empty(len(order), dtype=np.int64)
    labels[order] = found.labels_
    return _split(labels, sizes)


def chain(costs: Sequence[Costs], sizes: Sequence[int], rng: np.random.Generator) -> list[Labels]:
    """Match neighbouring rounds and propagate labels, given the costs of every pair."""
    labels: list[Labels] = [rng.permutation(sizes[0]).astype(np.int64)]
    fresh = sizes[0]
    for cost, size in zip(costs, sizes[1:], strict=True):
        a, b = rng.permutation(cost.shape[0]), rng.permutation(cost.shape[1])
        before, after = match(cost[np.ix_(a, b)])
        own = np.full(size, -1, dtype=np.int64)
        own[b[after]] = labels[-1][a[before]]
        new = np.flatnonzero(own < 0)
        own[new] = fresh + rng.permutation(len(new))
        fresh += len(new)
        labels.append(own)
    return labels


def greedy(rounds: Sequence[Rows], clients: int, rng: np.random.Generator) -> list[Labels]:
    """Step-wise greedy match, [Fingerprint] Section 3.2.4: match neighbours, chain the matches.

    A row without a partner in the previous round gets a new label.
    """
    apart = Directions.of(rounds)
    costs = [apart.distances(t) for t in range(len(apart) - 1)]
    return chain(costs, apart.sizes, rng)


# -- beyond the paper -----------------------------------------------------------------------------


ENOUGH_PAIRS = 1_000_000  # pairs of different clients: gives their spread to 0.1 %


def chance_similarity(units: Sequence[Rows], clients: int) -> float:
    """The cosine that the best of `clients` other clients seldom reaches, from directions
    [(K_t, m)].

    Rows of one round always come from different clients, so their spread measures coincidence
    without any label. Centring shifts the mean cosine within a round to -1/(K - 1), but not between
    rounds, so the spread is taken around its own mean.
    """
    pairs = sum(len(u) * (len(u) - 1) // 2 for u in units)
    count, total, squares = 0, 0.0, 0.0
    for u in units[:: max(1, pairs // ENOUGH_PAIRS)]:
        own = product(u, u).astype(np.float64)
        np.fill_diagonal(own, 0.0)
        count += own.size - len(own)
        total += float(own.sum())
        squares += float(np.square(own).sum())
    spread = np.sqrt(max(0.0, squares / count - (total / count) ** 2))
    return float(spread * NormalDist().inv_cdf(1.0 - 0.25 / max(2, clients)))


def tracking(
    rounds: Sequence[Rows],
    clients: int,
    rng: np.random.Generator,
    *,
    order: npt.NDArray[np.int64] | None = None,
) -> list[Labels]:
    """Tracks that start, pause and end, for partial participation.

    `order` (T,): the rounds in the order in which they are followed.

    A track is the weighted mean of its recent rows. Every round assigns rows to tracks at least
    total cost. A row may stay unmatched at the cost of a coincidental match between different
    clients, so a newcomer starts a new track instead of taking one. Once there are as many tracks
    as clients, a row goes to its most similar track.
    """
    apart = Directions.of(rounds)
    coincidence = chance_similarity(apart.units, clients)
    memory = np.zeros((max(clients, *apart.sizes), apart.units[0].shape[1]), dtype=np.float32)
    tracks = 0
    labels: list[Labels] = [np.empty(0, dtype=np.int64)] * len(apart)
    for t in np.arange(len(apart)) if order is None else order:
        units = apart.units[t]
        shuffled = rng.permutation(len(units))
        own = np.full(len(units), -1, dtype=np.int64)
        if tracks:
            known = memory[:tracks]
            similarity = product(units, known)  # (rows, tracks)
            similarity *= inverse_lengths(square_lengths(known))
            cost = _with_births(1.0 - similarity[shuffled], clients - tracks, 1.0 - coincidence)
            picked_rows, picked = match(cost)
            met = picked < tracks
            own[shuffled[picked_rows[met]]] = picked[met]
        born = np.flatnonzero(own < 0)
        own[born] = tracks + rng.permutation(len(born))
        tracks += len(born)
        if tracks > len(memory):
            memory = np.concatenate([memory, np.zeros_like(memory[: tracks - len(memory)])])
        # recent rounds count more: the model moves, and with it every client's direction
        for track, row in zip(own, units, strict=True):
            memory[track] *= 0.7
            memory[track] += row
        labels[t] = own
    return labels


def _with_births(cost: Costs, room: int, price: float) -> Costs:
    """Costs with extra columns for rows that start a new track.

    `room` of these columns cost `price`. More tracks than clients cost more than any match, and are
    offered only for rows that no track is left for.
    """
    rows, tracks = cost.shape
    cheap = min(rows, max(0, room))
    expensive = max(0, rows - tracks - cheap)
    births = np.full((rows, cheap + expensive), price, dtype=cost.dtype)
    births[:, cheap:] = 4.0
    return np.concatenate([cost, births], axis=1)


def joint(rounds: Sequence[Rows], clients: int, rng: np.random.Generator) -> list[Labels]:
    """All rounds at once: one cluster per client, with at most one row per round.

    The model is a direction per client plus noise. It starts from `tracking` through the rounds in
    several orders and, under full participation, also from `greedy`. It then reassigns one round at
    a time until nothing changes, at least total squared distance to each client's mean over the
    other rounds; a mean of few rows is shrunk more. The start that explains more of the rows wins.
    """
    apart = Directions.of(rounds)
    starts = [tracking(apart, clients, rng)]
    if sum(apart.sizes) <= PRODUCTS:
        ways = [np.arange(len(apart))[::-1], *(rng.permutation(len(apart)) for _ in range(2))]
        starts += [tracking(apart, clients, rng, order=way) for way in ways]
    if all(size == clients for size in apart.sizes):
        starts.append(greedy(apart, clients, rng))
    fit = JointFit(apart.units, starts[0], clients)
    found = [(fit.refine(rng), list(fit.labels))]
    for i, other in enumerate(starts[1:], start=1):
        if any(_same_partition(other, before) for before in starts[:i]):
            continue
        fit.relabel(other)
        found.append((fit.refine(rng), list(fit.labels)))
    return max(found, key=lambda pair: pair[0])[1]


def _same_partition(one: Sequence[Labels], other: Sequence[Labels]) -> bool:
    """Whether two labellings differ only in the names of their clusters."""
    a, b = np.concatenate(one), np.concatenate(other)
    pairs = len(np.unique(a * (b.max() + 1) + b))
    return pairs == len(np.unique(a)) == len(np.unique(b))


class JointFit:
    """Labels of all rounds, and the sum of the rows of every cluster.

    Products of a round's rows with the clusters of the **other** rounds are cached, and recomputed
    only for clusters that changed. `rounds` [(K_t, m)] are directions.
    """

    def __init__(self, rounds: Sequence[Rows], start: Sequence[Labels], clients: int) -> None:
        self.rounds, self.labels = rounds, [own.copy() for own in start]
        count = max(clients, int(max(own.max() for own in start)) + 1)
        self.sums = np.zeros((count, rounds[0].shape[1]), dtype=np.float32)
        self.sizes = np.zeros(count)
        for rows, own in zip(rounds, self.labels, strict=True):
            _add_rows(self.sums, own, rows, 1)
            self.sizes[own] += 1
        self._cross = [np.zeros((len(rows), count), dtype=np.float32) for rows in rounds]
        self._square = np.zeros((len(rounds), count))  # |sum without round t|^2
        self._stale = np.ones((len(rounds), count), dtype=bool)

    def move(self, t: int, new: Labels) -> None:
        """Give the rows of round t new labels."""
        own = self.labels[t]
        at = np.flatnonzero(new != own)
        _add_rows(self.sums, own[at], self.rounds[t][at], -1)
        _add_rows(self.sums, new[at], self.rounds[t][at], 1)
        self.sizes[own[at]] -= 1
        self.sizes[new[at]] += 1
        others = np.arange(len(self.rounds)) != t  # without round t, the clusters have not changed
        self._stale[np.ix_(others, np.union1d(own[at], new[at]))] = True
        self.labels[t] = new

    def relabel(self, other: Sequence[Labels]) -> None:
        """Switch to another labelling, renamed so that few rows move."""
        together = np.zeros((len(self.sizes), len(self.sizes)))
        for own, theirs in zip(self.labels, other, strict=True):
            together[theirs, own] += 1
        names = match(-together)[1]
        for t, labels in enumerate(other):
            self.move(t, names[labels])

    def costs(self, t: int, prior: float) -> npt.NDArray[np.float64]:
        """|x - s/(n + prior)|^2 - |x|^2 of rows x and the other rounds' clusters: (K_t, clusters).

        A client without rows in other rounds costs 0.
        """
        rows, own, stale = self.rounds[t], self.labels[t], self._stale[t]
        if stale.any():
            _add_rows(self.sums, own, rows, -1)
            some = slice(None) if stale.all() else np.flatnonzero(stale)
            others = self.sums[some]
            self._cross[t][:, some] = product(rows, others)
            self._square[t, some] = square_lengths(others)
            stale[:] = False
            _add_rows(self.sums, own, rows, 1)
        sizes = self.sizes.copy()
        sizes[own] -= 1
        shrunk = 1.0 / (sizes + prior)
        cost = self._square[t] * shrunk**2 - 2.0 * self._cross[t] * shrunk
        cost[:, sizes == 0] = 0.0
        return np.asarray(cost, dtype=np.float64)

    def refine(self, rng: np.random.Generator, sweeps: int = 20) -> float:
        """Reassign one round at a time until nothing changes; returns how much clusters explain."""
        prior = 1.0
        for _ in range(sweeps):
            changed = False
            prior = _prior(self.sums, self.sizes)
            for t in rng.permutation(len(self.rounds)):
                cost, own = self.costs(t, prior), self.labels[t]
                before, after = match(cost)
                new = np.empty_like(own)
                new[before] = after
                every = np.arange(len(own))
                if cost[every, new].sum() < cost[every, own].sum() - 1e-9:
                    self.move(t, new)
                    changed = True
            if not changed:
                break
        return float((square_lengths(self.sums) / (self.sizes + prior)).sum())


def _add_rows(sums: Rows, own: Labels, rows: Rows, sign: int) -> None:
    """sums[own] += sign * rows, row by row, without temporary copies."""
    change = np.add if sign > 0 else np.subtract
    for label, row in zip(own, rows, strict=True):
        change(sums[label], row, out=sums[label])


def _prior(sums: Rows, sizes: npt.NDArray[np.float64]) -> float:
    """Weight of the prior in rows: (1 - rho)/rho, rho the mean cosine within a cluster."""
    pairs = float((sizes * (sizes - 1)).sum())
    if pairs == 0:
        return 1.0
    rho = (float(square_lengths(sums).sum()) - float(sizes.sum())) / pairs
    rho = min(0.99, max(0.01, rho))
    return (1.0 - rho) / rho


LINKERS: dict[str, Linker] = {
    "greedy": greedy,
    "tracking": tracking,
    "joint": joint,
    "spectral": spectral,
    "kmeans": kmeans,
    "random": random,
}
