"""p-values from unused keys: ranks, and beyond all of them a tail that is carried on.

For a key that nobody trained on, its scores and those of unused keys are exchangeable: whatever
the statistic, its rank among theirs gives an exact p-value ("rank"). Where no unused key reaches
the statistic, the rank only says below 1 / (U + 1), and the tail is carried on ("tail"): as one
more draw from a normal sample, and as one more exceedance over the top tenth of unused keys, which
may be heavier; the larger p-value counts. The error rate of both is measured, not assumed
(`tests/nightly`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedaudit.arrays import Bools, Floats

CARRIED = 50
"""Unused keys from which a tail is carried on beyond all of them."""


@dataclass(frozen=True)
class PValues:
    """`p` (K, S) of every client and key; `tail` (K, S) where it rests on the carried-on tail;
    `far` (K, S) how far the statistic lies from those of `unused` keys, in their deviations."""

    p: Floats
    tail: Bools
    far: Floats
    unused: int

    @property
    def floor(self) -> float:
        """The smallest p-value that ranks alone can give."""
        return 1 / (self.unused + 1)

    def taking(self, other: PValues, which: Bools) -> PValues:
        """The other's values where `which` (K, S)."""
        return PValues(
            np.where(which, other.p, self.p),
            np.where(which, other.tail, self.tail),
            np.where(which, other.far, self.far),
            min(self.unused, other.unused),
        )

    def worse(self, other: PValues, *, but: int | None) -> PValues:
        """The larger p-value of the two; the client `but` keeps its own."""
        larger = other.p > self.p
        if but is not None:
            larger[but] = False
        return self.taking(other, larger)


def p_values(statistics: npt.ArrayLike, keys: int) -> PValues:
    """From statistics (K, S + U) of which the first S are the owner's keys.

    Rank: (1 + unused keys that score as high) / (U + 1), exact for exchangeable keys. If none
    does, the tail is carried on, at most the rank's p-value: the larger of Student's with U - 1
    degrees of freedom and that of `_Exceedances`. Below `CARRIED` unused keys the rank is all there
    is.
    """
    from scipy.special import stdtr

    all_keys = np.asarray(statistics, dtype=np.float64)
    own, null = all_keys[:, :keys], np.sort(all_keys[:, keys:], axis=1)
    unused = null.shape[1]
    above = np.stack(
        [unused - np.searchsorted(row, x, side="left") for row, x in zip(null, own, strict=True)]
    ).reshape(own.shape)
    # what is no number speaks for nobody
    above = np.where(np.isnan(own), unused, above)
    rank = (1 + above) / (unused + 1)
    centre, spread = null.mean(axis=1, keepdims=True), null.std(axis=1, ddof=1, keepdims=True)
    far = np.divide(own - centre, spread, out=np.zeros_like(own), where=spread > 0)
    if unused < CARRIED:
        return PValues(rank, np.zeros(own.shape, dtype=np.bool_), far, unused)
    scale = spread * math.sqrt(1 + 1 / unused)
    z = np.divide(own - centre, scale, out=np.zeros_like(own), where=scale > 0)
    beyond = (above == 0) & (scale > 0)
    carried = np.maximum(stdtr(unused - 1, -z), _Exceedances.of(null).tail(own))
    carried = np.maximum(carried, np.finfo(np.float64).tiny)
    return PValues(np.where(beyond, np.minimum(carried, rank), rank), beyond, far, unused)


@dataclass(frozen=True)
class _Exceedances:
    """The n largest, a tenth, of sorted unused keys (K, U): what lies beyond the largest of the
    others, at `edge` (K, 1), by y has the probability

        n / U (1 + shape y / mean)^(-1 / shape),    shape = max(1 / n, fitted).

    With 1 / n this is one more draw from an exponential sample of n, as Student's is from a normal
    one. Scores that are means of few terms have heavier tails: there the generalised Pareto shape
    by L-moments (Hosking and Wallis, 1987) is larger, while its scale is kept at the mean.
    """

    share: float
    edge: Floats
    mean: Floats
    shape: Floats

    @classmethod
    def of(cls, null: Floats) -> _Exceedances:
        unused = null.shape[1]
        many = unused // 10
        edge = null[:, unused - many - 1, None]
        over = null[:, unused - many :] - edge
        mean = over.mean(axis=1, keepdims=True)
        weighted = (over * (np.arange(many) / (many - 1))).mean(axis=1, keepdims=True)
        second = 2 * weighted - mean  # the second L-moment
        fitted = 2 - np.divide(mean, second, out=np.full_like(mean, 2.0), where=second > 0)
        return cls(many / unused, edge, mean, np.maximum(fitted, 1 / many))

    def tail(self, own: Floats) -> Floats:
        """(K, S) -> p-values (K, S)."""
        # unused keys that all score alike carry no tail: the rank counts
        far = np.divide(own - self.edge, self.mean, out=np.zeros_like(own), where=self.mean > 0)
        grown = np.log1p(self.shape * np.maximum(far, 0.0)) / self.shape
        return np.asarray(self.share * np.exp(-grown))

    def reached(self, level: float) -> Floats:
        """The score (K, 1) at which the p-value falls to `level`."""
        grown = np.expm1(self.shape * np.log(max(self.share / level, 1.0))) / self.shape
        return np.where(self.mean > 0, self.edge + self.mean * grown, np.inf)


def needed(statistics: npt.ArrayLike, keys: int, level: float) -> Floats:
    """The smallest score (K,) that `p_values` puts at `level` or below, in deviations of unused
    keys from their mean; infinite where none would be."""
    from scipy.special import stdtrit

    null = np.sort(np.asarray(statistics, dtype=np.float64)[:, keys:], axis=1)
    unused = null.shape[1]
    centre, spread = null.mean(axis=1), null.std(axis=1, ddof=1)
    may_reach = math.floor(level * (unused + 1) + 1e-9) - 1  # unused keys that may score as high
    if may_reach >= 0:
        score = null[:, unused - may_reach - 1]
    elif unused >= CARRIED:
        normal = centre - spread * math.sqrt(1 + 1 / unused) * stdtrit(unused - 1, level)
        score = np.maximum(normal, _Exceedances.of(null).reached(level)[:, 0])
        score = np.maximum(score, null[:, -1])
    else:
        score = np.full(len(null), np.inf)
    return np.divide(score - centre, spread, out=np.full(len(null), np.inf), where=spread > 0)
