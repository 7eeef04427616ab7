"""Additive noise on features between two bounds: Laplace and Gaussian.

Formal guarantees, for any two records within the bounds (width B = high - low per feature):

    Laplace   scale B / eps: pure epsilon per feature, r epsilon per record; tight
    Gaussian  deviation such that one feature is (epsilon, delta / r)-private; by composition a
              record is (r epsilon, delta)-private. The exact epsilon at that delta is smaller: the
              record is one Gaussian shift of length B sqrt(r). No finite epsilon holds at delta 0.

Both round values and noise to a grid of `steps` steps between the bounds and add whole numbers.
Noise added to doubles is not private: the last digits of the sum depend on the value (Mironov,
2012), and draws show it. The resolution of the generator, 2^-53, remains.

Differs: the textbook deviation sqrt(2 ln(1.25/delta)) B / eps holds for epsilon < 1 only; the
deviation here is the smallest that holds at any epsilon.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, ClassVar

import numpy as np
import numpy.typing as npt
from annotated_types import Ge, Le

from fedaudit.arrays import Floats
from fedaudit.errors import OutOfRange
from fedaudit.protections.local_dp.mechanism import Report, check_bounds, check_shape
from fedaudit.settings import Count, Fraction, PositiveFinite, checked

STEPS = 1 << 20
"""Steps of the grid: it loses a millionth of the width, and whole numbers stay exact."""
GridSteps = Annotated[int, Ge(1), Le(1 << 30)]


class Bounded:
    """Features on a grid between two bounds, for noise that is added to them."""

    low: float
    high: float
    features: int
    steps: int

    def __post_init__(self) -> None:
        check_bounds(self.low, self.high)

    @property
    def width(self) -> float:
        """B: the largest difference between two values of a feature."""
        return self.high - self.low

    @property
    def step(self) -> float:
        """Distance between neighbours on the grid."""
        return self.width / self.steps

    def worst_pair(self) -> tuple[Floats, Floats]:
        return np.full(self.features, self.low), np.full(self.features, self.high)

    def unbiased(self, report: Report) -> Floats:
        """The report itself: the noise has mean zero."""
        return np.asarray(report, dtype=np.float64)

    def _positions(self, x: npt.ArrayLike) -> Floats:
        """Grid positions, as whole numbers."""
        return np.rint((np.asarray(x, dtype=np.float64) - self.low) / self.step)

    def _within(self, x: npt.ArrayLike) -> Floats:
        """Grid positions (n, r) of records; raises DataError beyond the bounds."""
        values = np.asarray(x, dtype=np.float64)
        check_shape(values, self.features)
        if values.size and not (values.min() >= self.low and values.max() <= self.high):
            raise OutOfRange(
                "features lie outside the bounds of the noise",
                expected=f"finite numbers from {self.low:g} to {self.high:g}",
                got=f"{values.min():g} to {values.max():g}",
                remedy="encode them with encoders.Interval first, or widen the bounds",
            )
        return self._positions(values)

    def _with_noise(self, positions: Floats, noise: Floats) -> Floats:
        """Reports, computed from the whole number position + round(noise) alone."""
        return self.low + (positions + np.rint(noise / self.step)) * self.step


@dataclass(frozen=True, kw_only=True)
@checked("laplace")
class Laplace(Bounded):
    """Laplace noise on every feature. `epsilon` is that of one feature. Reports: floats (n, r)."""

    name: ClassVar[str] = "laplace"

    epsilon: PositiveFinite
    features: Count = 1
    low: float = 0.0
    high: float = 1.0
    steps: GridSteps = STEPS

    @property
    def delta(self) -> float:
        return 0.0

    @property
    def scale(self) -> float:
        return self.width / self.epsilon

    @property
    def claimed_epsilon(self) -> float:
        return float(self.features * self.epsilon)

    def worst_case_epsilon(self) -> float:
        """r B / scale = r epsilon."""
        return float(self.features * self.epsilon)

    def perturb(self, x: npt.ArrayLike, rng: np.random.Generator) -> Floats:
        positions = self._within(x)
        return self._with_noise(positions, rng.laplace(scale=self.scale, size=positions.shape))

    def log_likelihood(self, report: Report, x: npt.ArrayLike) -> Floats:
        """ln Pr: rounded noise is 0 with 1 - e^-h, k with sinh(h) e^(-2h|k|), h = eps/2/steps."""
        h = self.epsilon / 2.0 / self.steps
        apart = np.abs(self._positions(report) - self._positions(x))
        zero = math.log(-math.expm1(-h))
        # sinh overflows if one step holds hundreds of epsilons
        other = h + math.log(-math.expm1(-2.0 * h)) - math.log(2.0)
        at_zero = (apart == 0).sum(axis=-1)
        elsewhere = self.features - at_zero
        return np.asarray(at_zero * zero + elsewhere * other - 2.0 * h * apart.sum(axis=-1))


@dataclass(frozen=True, kw_only=True)
@checked("gaussian")
class Gaussian(Bounded):
    """Gaussian noise on every feature. `epsilon` is that of one feature at `delta` / r.

    `delta` is that of a whole record. Reports are floats (n, r).
    """

    name: ClassVar[str] = "gaussian"

    epsilon: PositiveFinite
    features: Count = 1
    delta: Fraction = 1e-5
    low: float = 0.0
    high: float = 1.0
    steps: GridSteps = STEPS

    @cached_property
    def standard_deviation(self) -> float:
        """The smallest deviation that makes one feature (epsilon, delta / r)-private."""
        return gaussian_multiplier(self.epsilon, self.delta / self.features) * self.width

    @property
    def claimed_epsilon(self) -> float:
        return float(self.features * self.epsilon)

    def worst_case_epsilon(self) -> float:
        """Exact at `delta` before rounding: a Gaussian of multiplier deviation / (B sqrt(r))."""
        multiplier = self.standard_deviation / (self.width * math.sqrt(self.features))
        return gaussian_epsilon(multiplier, self.delta)

    def perturb(self, x: npt.ArrayLike, rng: np.random.Generator) -> Floats:
        positions = self._within(x)
        noise = rng.normal(scale=self.standard_deviation, size=positions.shape)
        return self._with_noise(positions, noise)

    def log_likelihood(self, report: Report, x: npt.ArrayLike) -> Floats:
        """Log density before rounding; the fine grid does not change it noticeably."""
        s = self.standard_deviation
        apart = (self._positions(report) - self._positions(x)) * self.step
        constant = self.features * math.log(s * math.sqrt(2 * math.pi))
        return np.asarray(-(apart**2).sum(axis=-1) / (2 * s * s) - constant)


def gaussian_delta(multiplier: float, epsilon: float) -> float:
    """ln delta of Gaussian noise of `multiplier` times the shift it hides (Balle and Wang, 2018).

    delta = Phi(1/(2z) - eps z) - e^eps Phi(-1/(2z) - eps z), computed in logarithms.
    """
    from scipy.special import log_ndtr

    edge, z = 1.0 / (2.0 * multiplier), multiplier
    first = float(log_ndtr(edge - epsilon * z))
    second = epsilon + float(log_ndtr(-edge - epsilon * z))
    return first + math.log1p(-math.exp(second - first)) if second < first else -math.inf


def gaussian_epsilon(multiplier: float, delta: float) -> float:
    """The smallest epsilon at `delta`. dp-accounting computes it too, but loads for a second."""
    target = math.log(delta)
    if gaussian_delta(multiplier, 0.0) <= target:
        return 0.0
    return _smallest_reaching(lambda e: gaussian_delta(multiplier, e), target)


def gaussian_multiplier(epsilon: float, delta: float) -> float:
    """The smallest multiplier that is (epsilon, delta)-private."""
    return _smallest_reaching(lambda z: gaussian_delta(z, epsilon), math.log(delta))


def _smallest_reaching(function: Callable[[float], float], target: float) -> float:
    """The smallest positive number at which a falling function is at most `target`, by bisection
    to the last digits; the result always satisfies the bound."""
    high = 1.0
    while function(high) > target:
        high *= 2.0
    low = high / 2.0
    while function(low) <= target:
        low, high = low / 2.0, low
    while high - low > 1e-14 * high:
        middle = 0.5 * (low + high)
        low, high = (low, middle) if function(middle) <= target else (middle, high)
    return high
