"""From what the adversary saw of a rehearsal to one score per canary: arrays in, arrays out."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from fedaudit.arrays import Floats, Indices

RARE = 1e-9
"""Chance below which a number of draws in a round is left out of a likelihood."""

GUESSED, GUESSED_IF_PLAIN = 0.1, 0.4
LEAST_GUESSED = 100
"""Guesses on a tenth of the coins, and at least a hundred: fixed before any coin is known."""
PLAIN = 0.75
"""Total variation from which most coins are plain to see: more guesses then raise the ceiling."""


def guesses_on(coins: int, total_variation: float = 0.0) -> int:
    """The number of guesses on `coins` coins; the others are withheld.

    It depends on the declared mechanism alone, whose total variation is given.
    """
    share = GUESSED if total_variation < PLAIN else GUESSED_IF_PLAIN
    return min(coins, max(LEAST_GUESSED, round(share * coins)))


def draws_in_round(steps: int, rate: float) -> tuple[Indices, Floats]:
    """How often a canary is drawn in a round of `steps` steps, and the logarithm of its chance."""
    from scipy.special import gammaln

    j = np.arange(steps + 1)
    if rate >= 1:
        return np.array([steps]), np.zeros(1)
    chance = gammaln(steps + 1) - gammaln(j + 1) - gammaln(steps - j + 1)
    chance += j * math.log(rate) + (steps - j) * math.log1p(-rate)
    kept = chance > math.log(RARE)
    return j[kept], chance[kept]


def log_ratio(signal: npt.ArrayLike, variance: npt.ArrayLike, steps: int, rate: float) -> Floats:
    """ln(likelihood with the canary / without), for a signal that counts draws of the canary.

    Without it the signal is N(0, variance); with it, its mean is the number of draws, binomial.
    """
    x, v = np.asarray(signal, dtype=np.float64), np.asarray(variance, dtype=np.float64)
    total = np.full(np.broadcast(x, v).shape, -np.inf)
    for j, chance in zip(*draws_in_round(steps, rate), strict=True):
        total = np.logaddexp(total, chance + (2 * x * j - j * j) / (2 * v))
    return total


def among_rows(ratios: Floats) -> Floats:
    """The ratio (m,) if one of n anonymous rows (n, m) holds the canary, each equally likely.

    ln mean exp of the rows' own ratios.
    """
    top = ratios.max(axis=0)
    mean: Floats = top + np.log(np.exp(ratios - top).mean(axis=0))
    return mean


def calls(ratios: Floats, group: Indices, total_variation: float = 0.0) -> Indices:
    """Guesses (m,) from log-likelihood ratios: 1 inserted, -1 not, 0 withheld.

    In every group, the guesses are on the surest coins: a coin is guessed rightly with probability
    1 / (1 + e^-|ratio|).
    """
    out = np.zeros(len(ratios), dtype=np.int64)
    for g in np.unique(group):
        inside = np.flatnonzero(group == g)
        surest = inside[np.argsort(-np.abs(ratios[inside]), kind="stable")]
        chosen = surest[: guesses_on(len(inside), total_variation)]
        out[chosen] = np.where(ratios[chosen] > 0, 1, -1)
    return out


def robust_variance(signal: Floats) -> float:
    """Variance of most values: squared median deviation over that of a normal variable."""
    return float((np.median(np.abs(signal - np.median(signal))) / 0.6745) ** 2)
