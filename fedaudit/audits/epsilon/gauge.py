"""Noise and sampling, measured without any canary.

An upload is noise plus a client's own gradients. Whatever these are, the squared length of the sum
is at least as large as that of the noise alone, in distribution: a non-central chi-square variable
dominates a central one. Too little power is therefore a fault; too much may be training. The same
holds for the difference of two uploads, which shrinks if both carry the same noise.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedaudit.arrays import Floats
from fedaudit.layout import Layout


@dataclass(frozen=True)
class NoisePower:
    """Measured `power` over the declared one of `numbers` independent noisy numbers."""

    power: float
    numbers: int

    def interval(self, tail: float) -> tuple[float, float]:
        """Ends of an interval for noise alone, each missed with probability `tail`."""
        return chi_square_interval(self.power, self.numbers, tail)


def chi_square_interval(ratio: float, freedom: float, tail: float) -> tuple[float, float]:
    """Ends around a chi-square variable over its degrees of freedom, each missed with `tail`."""
    from scipy.special import chdtri

    # chdtri(v, p): the value that a chi-square variable exceeds with probability p
    most, least = float(chdtri(freedom, tail)), float(chdtri(freedom, 1 - tail))
    return ratio * freedom / most, ratio * freedom / least


def of_tensors(rows: Floats, variance: Floats, layout: Layout) -> dict[str, NoisePower]:
    """Tensor -> power of rows (n, d), whose noise has variance (n,) per number."""
    out = {}
    for e in layout.entries:
        part = rows[:, e.columns]
        power = float((np.square(part).sum(axis=1) / variance).sum()) / part.size
        out[e.name] = NoisePower(power, part.size)
    return out


def of_differences(first: Floats, second: Floats, variance: Floats) -> NoisePower:
    """NoisePower of the differences of paired rows (n, d); `variance` (n,): of both together."""
    apart = first - second
    power = float((np.square(apart).sum(axis=1) / variance).sum()) / apart.size
    return NoisePower(power, apart.size)


def pooled(powers: list[NoisePower]) -> NoisePower:
    """One power over independent parts."""
    numbers = sum(p.numbers for p in powers)
    return NoisePower(sum(p.power * p.numbers for p in powers) / numbers, numbers)


def spread_of_sizes(size: Floats, pool: Floats, rate: Floats) -> float:
    """Variance of batch sizes (n,) over that of Poisson sampling at rates below 1."""
    return float((np.square(size - pool * rate) / (pool * rate * (1 - rate))).mean())


def spread_freedom(pool: Floats, rate: Floats) -> float:
    """Degrees of freedom of the chi-square variable with the variance of `spread_of_sizes`."""
    variance = pool * rate * (1 - rate)
    # fourth moment of a binomial size: 3 + (1 - 6 p (1 - p)) / variance
    each = 2 + (1 - 6 * rate * (1 - rate)) / variance
    return float(2 * len(pool) ** 2 / each.sum())
