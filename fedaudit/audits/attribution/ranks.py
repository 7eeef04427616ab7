"""p-values from unused keys: ranks, and an extrapolated tail beyond all of them.

Scores of a key that nobody trained on and scores of unused keys are exchangeable. So for any
statistic, its rank among theirs gives an exact p-value ("rank"). If no unused key reaches the
statistic, the rank only says at most 1 / (U + 1), and the tail is extrapolated ("tail"): as one
more draw from a normal sample, and as one more exceedance over the top tenth of unused keys, which
may be heavier. The larger p-value counts. `tests/nightly` measures the error rate of both.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedaudit.arrays import Bools, Floats

EXTRAPOLATE_FROM = 50
"""Fewest unused keys from which a tail is extrapolated."""


@dataclass(frozen=True)
class PValues:
    """`p` (K, S) of every client and key; `tail` (K, S) if it uses the extrapolated tail;
    `distance` (K, S) how far the statistic lies from those of `unused` keys, in their
    deviations."""

    p: Floats
    tail: Bools
    distance: Floats
    unused: int

    @property
    def floor(self) -> float:
        """The smallest p-value that ranks alone can give."""
        return 1 / (self.unused + 1)

    def taking(self, other: PValues, which: Bools) -> PValues:
        """These values, replaced by the other's where `which` (K, S)."""
        return PValues(
            np.where(which, other.p, self.p),
            np.where(which, other.tail, self.tail),
            np.where(which, other.distance, self.distance),
            min(self.unused, other.unused),
        )

    def worse(self, other: PValues, *, but: int | None) -> PValues:
        """The larger p-value of the two; client `but` keeps this one."""
        larger = other.p > self.p
        if but is not None:
            larger[but] = False
        return self.taking(other, larger)


def p_values(statistics: npt.ArrayLike, keys: int) -> PValues:
    """p-values from statistics (K, S + U), the owner's S keys first.

    Rank: (1 + unused keys that score as high) / (U + 1), exact for exchangeable keys. If no unused
    key scores as high, the tail is extrapolated: the larger p-value of Student's with U - 1 degrees
    of freedom and of `_Exceedances`, at most the rank's. With fewer than `EXTRAPOLATE_FROM` unused
    keys the rank alone counts.
    """
    from scipy.special import stdtr

    all_keys = np.asarray(statistics, dtype=np.float64)
    own, null = all_keys[:, :keys], np.sort(all_keys[:, keys:], axis=1)
    unused = null.shape[1]
    above = np.stack(
        [unused - np.searchsorted(row, x, side="left") for row, x in zip(null, own, strict=True)]
    ).reshape(own.shape)
    # a NaN statistic is no evidence
    above = np.where(np.isnan(own), unused, above)
    rank = (1 + above) / (unused + 1)
    centre, spread = null.mean(axis=1, keepdims=True), null.std(axis=1, ddof=1, keepdims=True)
    far = np.divide(own - centre, spread, out=np.zeros_like(own), where=spread > 0)
    if unused < EXTRAPOLATE_FROM:
        return PValues(rank, np.zeros(own.shape, dtype=np.bool_), far, unused)
    scale = spread * math.sqrt(1 + 1 / unused)
    z = np.divide(own - centre, scale, out=np.zeros_like(own), where=scale > 0)
    beyond = (above == 0) & (scale > 0)
    extrapolated = np.maximum(stdtr(unused - 1, -z), _Exceedances.of(null).tail(own))
    extrapolated = np.maximum(extrapolated, np.finfo(np.float64).tiny)
    return PValues(np.where(beyond, np.minimum(extrapolated, rank), rank), beyond, far, unused)


@dataclass(frozen=True)
class _Exceedances:
    """Tail model from the n largest (a tenth) of sorted unused keys (K, U).

    `edge` (K, 1) is the largest of the others. A score exceeds it by y with probability

        n / U (1 + shape y / mean)^(-1 / shape),    shape = max(1 / n, fitted).

    With shape 1 / n this is one more draw from an exponential sample of n, as Student's is from a
    normal one. Scores that are means of few terms have heavier tails: their generalised Pareto
    shape by L-moments (Hosking and Wallis, 1987) is larger. The scale stays at the mean.
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
        # if all unused keys score alike there is no tail: the rank counts
        far = np.divide(own - self.edge, self.mean, out=np.zeros_like(own), where=self.mean > 0)
        grown = np.log1p(self.shape * np.maximum(far, 0.0)) / self.shape
        return np.asarray(self.share * np.exp(-grown))

    def reached(self, level: float) -> Floats:
        """The score (K, 1) at which the p-value falls to `level`."""
        grown = np.expm1(self.shape * np.log(max(self.share / level, 1.0))) / self.shape
        return np.where(self.mean > 0, self.edge + self.mean * grown, np.inf)


def needed(statistics: npt.ArrayLike, keys: int, level: float) -> Floats:
    """The smallest score (K,) with a p-value of at most `level`, in deviations of unused keys from
    their mean; infinite if no score has one."""
    from scipy.special import stdtrit

    null = np.sort(np.asarray(statistics, dtype=np.float64)[:, keys:], axis=1)
    unused = null.shape[1]
    centre, spread = null.mean(axis=1), null.std(axis=1, ddof=1)
    may_reach = math.floor(level * (unused + 1) + 1e-9) - 1  # unused keys that may score as high
    if may_reach >= 0:
        score = null[:, unused - may_reach - 1]
    elif unused >= EXTRAPOLATE_FROM:
        normal = centre - spread * math.sqrt(1 + 1 / unused) * stdtrit(unused - 1, level)
        score = np.maximum(normal, _Exceedances.of(null).reached(level)[:, 0])
        score = np.maximum(score, null[:, -1])
    else:
        score = np.full(len(null), np.inf)
    return np.divide(score - centre, spread, out=np.full(len(null), np.inf), where=spread > 0)
