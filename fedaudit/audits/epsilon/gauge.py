"""Noise and sampling, measured without any canary.

An upload is noise plus a client's own gradients. Whatever these are, the squared length of the sum
is at least as large as that of the noise alone, in distribution: a non-central chi-square variable
dominates a central one. Too little power is therefore a fault; too much may be training. The same
holds for the difference of two uploads, which shrinks if both carry the same noise.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fedaudit.arrays import Floats
from fedaudit.layout import Layout


@dataclass(frozen=True)
class NoisePower:
    """Measured `power` over the declared one of `numbers` independent noisy numbers.

    `either`: of differences, the power of what was subtracted; as large if both are independent.
    """

    power: float
    numbers: int
    either: float = math.nan

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
    both = np.square(first) + np.square(second)
    return NoisePower(power, apart.size, float((both.sum(axis=1) / variance).sum()) / apart.size)


def between_tensors(rows: Floats, variance: Floats, layout: Layout) -> Iterator[NoisePower]:
    """Differences of tensors within rows (n, d), whose noise has variance (n,) per number.

    Tensors of similar size make disjoint pairs, so that differences are independent. A generator
    that begins anew for every tensor gives the smaller of a pair the larger one's first numbers.
    """
    largest = sorted(layout.entries, key=lambda e: -e.size)
    for one, other in zip(largest[::2], largest[1::2], strict=False):
        first, second = (rows[:, e.columns][:, : other.size] for e in (one, other))
        yield of_differences(first, second, 2 * variance)


def pooled(powers: list[NoisePower]) -> NoisePower:
    """One power over independent parts."""
    numbers = sum(p.numbers for p in powers)
    return NoisePower(
        sum(p.power * p.numbers for p in powers) / numbers,
        numbers,
        sum(p.either * p.numbers for p in powers) / numbers,
    )


def spread_of_sizes(size: Floats, pool: Floats, rate: Floats) -> float:
    """Variance of batch sizes (n,) over that of Poisson sampling at rates below 1.

    Also of how often examples were drawn: `pool` (n,) is then the number of steps.
    """
    return float((np.square(size - pool * rate) / (pool * rate * (1 - rate))).mean())


def spread_interval(spread: float, pool: Floats, rate: Floats, tail: float) -> tuple[float, float]:
    """Ends around `spread_of_sizes` of Poisson samples, each missed with probability `tail`.

    Two variables of the same mean and variance: chi-square, and a shifted gamma that has the
    skewness of squared binomial sizes too. In each tail the further quantile counts.
    """
    from scipy.special import chdtri, gammainccinv, gammaincinv

    s, n = rate * (1 - rate), len(pool)
    v = pool * s
    # moments of a squared, standardised binomial size, from the cumulants of the size
    second = np.maximum(2 + (1 - 6 * s) / v, 1e-9)
    third = 15 + (25 - 130 * s) / v + (1 - 30 * s + 120 * s * s) / v**2 - 3 * (second + 1) + 2
    variance = float(second.sum()) / n**2
    skewness = max(float(third.sum()) / n**3 / variance**1.5, 1e-6)
    freedom, shape = 2 / variance, 4 / skewness**2
    width = math.sqrt(variance / shape)
    most = max(
        float(chdtri(freedom, tail)) / freedom,
        1 + width * (float(gammainccinv(shape, tail)) - shape),
    )
    least = float(chdtri(freedom, 1 - tail)) / freedom
    further = 1 + width * (float(gammaincinv(shape, tail)) - shape)
    if further > 0:  # of few rare draws, the gamma may lie below zero
        least = min(least, further)
    return spread / most, spread / max(least, 1e-9)
