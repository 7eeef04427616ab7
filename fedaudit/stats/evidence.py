"""Link anonymous rows by everything that crosses the wire, weighed without labels.

Two rows of different rounds come from one client or from two. A trait (a direction, a norm, a field
in the clear) gives the log of a likelihood ratio for that, with one strength to learn, and traits
add up. What is learnt maximises the likelihood of neighbouring rounds: every row has one partner
among the K clients, so its ratio is the mean over all candidates. A trait is taken only if it gains
more than useless ones mostly do. Whether the links are right is for a test to say.

Shapes: N rows in T rounds of K clients; `rounds` (N,) are round numbers, sorted; a block (n, m) is
the pairs of the rows of two rounds.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from fedaudit.arrays import Floats, Indices, Rows
from fedaudit.stats.assignment import match

Block = tuple[Indices, Indices]
PAIRS = 200_000
"""Pairs of rows to learn from; more rounds are left out."""
SPARE = 3.0
"""Log-likelihood that a trait must gain beyond the logarithm of the number of traits.

Of 60 simulated federations of 24 clients without any trait, 4 took one.
"""
MOST_TRAITS = 6


class Trait(ABC):
    """One kind of evidence. `strengths`: the values of its parameter that are tried."""

    strengths: tuple[float, ...]

    @abstractmethod
    def ratio(self, a: Indices, b: Indices, strength: float) -> Floats:
        """ln P(values | one client) / P(values | two) for rows a (n,) and b (m,): (n, m)."""


class Direction(Trait):
    """Unit rows (N, m): cosines are normal, and larger by `strength` deviations for one client."""

    strengths = (0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 9.0)

    def __init__(self, units: Rows, rounds: Indices) -> None:
        self.units = units
        some = slice(None, None, max(1, len(units) // 500))
        apart = rounds[some][:, None] < rounds[some]  # rows of one round are centred
        own = (units[some] @ units[some].T)[apart]
        # nearly all pairs are of two clients; quartiles ignore the others
        low, self.middle, high = np.quantile(own, [0.25, 0.5, 0.75])
        self.spread = max(float(high - low) / 1.349, 1e-9)

    def ratio(self, a: Indices, b: Indices, strength: float) -> Floats:
        s = (self.units[a] @ self.units[b].T).astype(np.float64)
        return np.asarray(strength * (s - self.middle) / self.spread - strength**2 / 2)


class Quantity(Trait):
    """One number per row (N,): `strength` is the deviation of one client's differences.

    Two rows of one client differ by that little; two of different clients are as far apart as the
    density of values says. So two rows that agree on a rare value tell more than on a common one.
    Values are in standard deviations; with `drifts` of their round, whose mean is removed.
    """

    strengths = (0.5, 0.3, 0.2, 0.14, 0.1, 0.07, 0.05, 0.02, 0.005, 0.001)

    def __init__(self, values: Floats, rounds: Indices, *, drifts: bool = False) -> None:
        self.rounds = rounds
        self.values = _standardised(values, rounds if drifts else np.zeros_like(rounds))
        self.smooth = _density(self.values)
        self._others: dict[float, Floats] = {}
        self._excess: dict[float, float] = {}

    @property
    def varies(self) -> bool:
        return bool(self.values.std() > 0)

    def ratio(self, a: Indices, b: Indices, strength: float) -> Floats:
        if strength not in self._excess:
            self._excess[strength] = self._too_large(strength)
        return self._plain(a, b, strength) - self._excess[strength]

    def _too_large(self, strength: float) -> float:
        """Log of the mean ratio of rows of one round, which are of different clients, if above 0.

        A ratio is 1 on average for two clients. Values that many clients share make it larger.
        """
        total, pairs = 0.0, 0
        for t in np.unique(self.rounds):
            own = np.flatnonzero(self.rounds == t)
            each = np.exp(self._plain(own, own, strength))
            total += float(each.sum() - np.trace(each))
            pairs += len(own) * (len(own) - 1)
        return max(0.0, math.log(max(total / max(pairs, 1), 1e-300)))

    def _plain(self, a: Indices, b: Indices, strength: float) -> Floats:
        gap = (self.values[a][:, None] - self.values[b]) / strength
        one = -0.5 * gap**2 - math.log(strength * math.sqrt(2 * math.pi))
        others = self._of_others(strength)
        two = 0.5 * (others[a][:, None] + others[b])
        return np.asarray(np.maximum(one, LEAST) - np.log(two))

    def _of_others(self, width: float) -> Floats:
        """Density of other clients' values at each row's own: (N,).

        Smooth, but where clearly more of the other rows of its round lie within `width`, their
        density: they are of other clients. Many may have equal values (a count of zeros), and a
        smooth density would make every such pair look like one client.
        """
        if width not in self._others:
            found = self.smooth.copy()
            for t in np.unique(self.rounds):
                own = np.flatnonzero(self.rounds == t)
                x, ordered = self.values[own], np.sort(self.values[own])
                low = np.searchsorted(ordered, x - width, side="left")
                high = np.searchsorted(ordered, x + width, side="right")
                count, reach = high - low - 1, 2.0 * width * max(1, len(own) - 1)
                expected = self.smooth[own] * reach
                crowded = count > expected + 3.0 * np.sqrt(expected + 1.0)
                found[own[crowded]] = count[crowded] / reach
            self._others[width] = found
        return self._others[width]


def _density(values: Floats) -> Floats:
    """Smooth density (N,) of values (N,) in standard deviations, at these values.

    A Gaussian kernel on a grid that ends where outliers begin.
    """
    edges = np.linspace(-GRID, GRID, BINS + 1)
    x = np.clip(values, -GRID, GRID)
    count = np.histogram(x, edges)[0] + 0.5 / BINS
    middle = 0.5 * (edges[1:] + edges[:-1])
    kernel = np.exp(-0.5 * (np.subtract.outer(middle, middle) / SMOOTH) ** 2)
    found = (kernel / kernel.sum(axis=0)) @ count
    found /= found.sum() * (edges[1] - edges[0])
    return np.asarray(found[np.clip(np.searchsorted(edges, x, side="right") - 1, 0, BINS - 1)])


class Category(Trait):
    """Codes (N,): one client repeats its value with probability `strength`.

    How often two clients have equal values follows from the rows of one round. A rare value tells
    more than a frequent one.
    """

    strengths = (0.3, 0.6, 0.9, 0.99, 0.999)

    def __init__(self, codes: Indices, rounds: Indices) -> None:
        self.codes = codes
        equal, pairs = 0.0, 0.0
        for t in np.unique(rounds):
            count = np.bincount(codes[rounds == t]).astype(np.float64)
            equal += float((count * (count - 1)).sum())
            pairs += float(count.sum() * (count.sum() - 1))
        share = (np.bincount(codes) / len(codes))[codes]
        twins = (equal + 0.5) / (pairs + 1.0)
        self.chance = np.clip(share / share.mean() * twins, 1e-6, 1.0 - 1e-6)

    def ratio(self, a: Indices, b: Indices, strength: float) -> Floats:
        same = self.codes[a][:, None] == self.codes[b]
        q = self.chance[a][:, None]
        return np.where(same, np.log(strength / q), np.log((1.0 - strength) / (1.0 - q)))


BINS, GRID, SMOOTH = 160, 4.0, 0.25
"""Cells of a density, its range and the width of its kernel in standard deviations."""
LEAST = -30.0
"""Log density below which two values are equally unlike."""


def _standardised(values: Floats, groups: Indices) -> Floats:
    """Values (N,) with mean 0 and deviation 1 within every group; a constant becomes 0."""
    x = np.array(values, dtype=np.float64)
    for g in np.unique(groups):
        own = x[groups == g]
        spread = float(own.std())
        flat = spread <= 1e-9 * max(float(np.abs(own).max()), 1e-300)
        x[groups == g] = 0.0 if flat else (own - own.mean()) / spread
    return x


# -- learning -------------------------------------------------------------------------------------


@dataclass
class Weighing:
    """Chosen traits with their strengths, and the log-likelihood that they gain over chance."""

    traits: dict[str, tuple[Trait, float]] = field(default_factory=dict)
    gain: float = 0.0

    def ratio(self, a: Indices, b: Indices) -> Floats:
        """The summed log ratios (n, m)."""
        out = np.zeros((len(a), len(b)))
        for trait, strength in self.traits.values():
            out += trait.ratio(a, b, strength)
        return out


def gain(ratio: Floats, clients: int) -> float:
    """Log-likelihood of a block over chance: every row has one partner among the clients.

    Clients that are absent from the other round count with a ratio of one. The mean of both sides.
    """
    out = 0.0
    for side in (ratio, ratio.T):
        absent = max(clients - side.shape[1], 0)
        top = np.maximum(side.max(axis=1), 0.0 if absent else -np.inf)
        total = np.exp(side - top[:, None]).sum(axis=1)
        if absent:
            total += absent * np.exp(-top)
        chance = len(side) * math.log(absent + side.shape[1])
        out += 0.5 * (float((np.log(total) + top).sum()) - chance)
    return out


def weigh(traits: Mapping[str, Trait], rounds: Indices, clients: int) -> Weighing:
    """Choose traits one after the other, each with the strength of most gain.

    Numbers are freed of what the chosen ones say already.
    """
    blocks = _neighbours(rounds)
    found = Weighing()
    base = [np.zeros((len(a), len(b))) for a, b in blocks]
    left = dict(traits)
    price = math.log(max(1, len(traits))) + SPARE
    while len(found.traits) < MOST_TRAITS:
        left = {n: t for n, t in left.items() if not isinstance(t, Quantity) or t.varies}
        tried = {n: _best_strength(t, base, blocks, clients) for n, t in left.items()}
        if not tried:
            break
        name = max(tried, key=lambda n: tried[n][0])
        total, strength = tried[name]
        if total < found.gain + price:
            break
        trait = left.pop(name)
        found.traits[name] = (trait, strength)
        found.gain = total
        for own, (a, b) in zip(base, blocks, strict=True):
            own += trait.ratio(a, b, strength)
        if isinstance(trait, Quantity):
            left = {n: _freed(t, trait) if isinstance(t, Quantity) else t for n, t in left.items()}
    return found


def _neighbours(rounds: Indices) -> list[Block]:
    """Rows of neighbouring rounds, evenly spaced if they are too many."""
    at = [np.flatnonzero(rounds == t) for t in np.unique(rounds)]
    blocks = list(pairwise(at))
    pairs = sum(len(a) * len(b) for a, b in blocks)
    return blocks[:: max(1, -(-pairs // PAIRS))]


def _best_strength(
    trait: Trait, base: Sequence[Floats], blocks: Sequence[Block], clients: int
) -> tuple[float, float]:
    """The gain with this trait added, and its strength."""
    return max(
        (
            sum(
                gain(own + trait.ratio(a, b, s), clients)
                for own, (a, b) in zip(base, blocks, strict=True)
            ),
            s,
        )
        for s in trait.strengths
    )


def _freed(column: Quantity, of: Quantity) -> Quantity:
    """The column without its part along another one; zeros if little is left."""
    x, y = column.values, of.values
    rest = x - y * (x @ y) / max(float(y @ y), 1e-12)
    few = rest.std() < 0.05 * max(float(x.std()), 1e-12)
    return Quantity(np.zeros(len(rest)) if few else rest, column.rounds)


# -- linking --------------------------------------------------------------------------------------


def link(
    weighing: Weighing,
    rounds: Indices,
    clients: int,
    rng: np.random.Generator,
    *,
    restarts: int = 4,
) -> list[Indices]:
    """Labels by round that make the summed ratios within clients large, one row per round each.

    Rounds join one after the other, then one round at a time is assigned anew until nothing
    changes. Of several orders of joining, the one with the largest sum counts. Time and memory grow
    with the square of the rows.
    """
    at = [np.flatnonzero(rounds == t) for t in np.unique(rounds)]
    every = np.arange(len(rounds))
    ratio = weighing.ratio(every, every).astype(np.float32)
    room = max(clients, max(map(len, at)))
    best: tuple[float, Indices] | None = None
    for k in range(restarts):
        order = np.arange(len(at)) if k < 2 else rng.permutation(len(at))
        found = _assign(ratio, at, order[:: -1 if k == 1 else 1], room, rng)
        if best is None or found[0] > best[0] + 1e-6:
            best = found
    assert best is not None
    return [best[1][own] for own in at]


def _assign(
    ratio: Rows, at: Sequence[Indices], order: Indices, room: int, rng: np.random.Generator
) -> tuple[float, Indices]:
    """One run: the sum of the ratios within clients, and the labels (N,)."""
    labels = np.full(len(ratio), -1, dtype=np.int64)
    member = np.zeros((len(ratio), room), dtype=np.float32)  # row x label

    def place(t: int) -> bool:
        own = at[t]
        before = labels[own].copy()
        member[own] = 0.0
        score = ratio[own] @ member
        # solvers break ties in input order
        a, b = rng.permutation(len(own)), rng.permutation(room)
        rows, columns = match(-score[np.ix_(a, b)])
        new = np.empty(len(own), dtype=np.int64)
        new[a[rows]] = b[columns]
        each = np.arange(len(own))
        if before[0] >= 0 and score[each, new].sum() <= score[each, before].sum() + 1e-5:
            new = before
        labels[own] = new
        member[own, new] = 1.0
        return bool((new != before).any())

    for t in order:
        place(int(t))
    for _ in range(20):
        changed = sum(place(int(t)) for t in rng.permutation(len(at)))
        if not changed:
            break
    return float((member * (ratio @ member)).sum()), labels
