"""Estimates of the constants m, eps and nu of [FedAttr] Assumption 1 from one run (Figure 2)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedaudit.arrays import Floats
from fedaudit.results import Estimate, Underpowered


@dataclass(frozen=True)
class Constants:
    """m, eps and nu of [FedAttr] Assumption 1, estimated from one run (Figure 2).

    `signal`: smallest mean score of a marked client; `drift`: largest absolute mean of a benign
    one; `noise`: deviation within clients. The assumption also asks for bounds over all rounds and
    for sub-Gaussian tails; one run only gives means over rounds.
    """

    signal: Estimate | Underpowered
    drift: Estimate | Underpowered
    noise: Estimate | Underpowered


def assumption_constants(
    scores: npt.ArrayLike,
    marked: npt.ArrayLike,
    *,
    confidence: float = 0.95,
) -> Constants:
    """Constants from differential scores (T, K), NaN where a client was absent; needs two rounds.

    Intervals hold for all marked, or all benign, clients at once: Student's with Bonferroni around
    each mean, with the pooled deviation within these clients. The smallest (largest) true mean lies
    between the smallest (largest) lower end and the smallest (largest) upper end.
    """
    z, is_marked = np.asarray(scores, dtype=np.float64), np.asarray(marked, dtype=np.bool_)
    clients = _Within.of(z[:, is_marked]), _Within.of(z[:, ~is_marked])
    signal, drift = clients[0].smallest(confidence), clients[1].largest_size(confidence)
    every = _Within.of(z)
    if every.freedom < 2:
        noise: Estimate | Underpowered = Underpowered(what="noise nu", have=every.freedom, needed=2)
    else:
        from scipy.special import chdtri

        tail = (1 - confidence) / 2
        noise = Estimate(
            value=math.sqrt(every.squares / every.freedom),
            low=math.sqrt(every.squares / chdtri(every.freedom, tail)),
            high=math.sqrt(every.squares / chdtri(every.freedom, 1 - tail)),
            n=every.freedom,
            confidence=confidence,
            method="pooled within clients, chi-squared",
        )
    return Constants(signal, drift, noise)


@dataclass(frozen=True)
class _Within:
    """`means` (k,) of clients over their `rounds` (k,), and the sum of `squares` around them."""

    means: Floats
    rounds: npt.NDArray[np.int64]
    squares: float
    freedom: int

    @classmethod
    def of(cls, z: Floats) -> _Within:
        rounds = (~np.isnan(z)).sum(axis=0)
        z, rounds = z[:, rounds > 0], rounds[rounds > 0]
        means = np.nansum(z, axis=0) / rounds
        return cls(means, rounds, float(np.nansum((z - means) ** 2)), int((rounds - 1).sum()))

    def _half(self, confidence: float) -> Floats:
        """Half the width (k,) of intervals that hold for all clients at once."""
        from scipy.special import stdtrit

        t = stdtrit(self.freedom, 1 - (1 - confidence) / 2 / len(self.means))
        return np.asarray(t * np.sqrt(self.squares / self.freedom / self.rounds))

    def _estimate(self, value: float, low: float, high: float, confidence: float) -> Estimate:
        return Estimate(
            value=value,
            low=low,
            high=high,
            n=len(self.means),
            confidence=confidence,
            method="Student's, Bonferroni over clients, deviation pooled within them",
        )

    def smallest(self, confidence: float) -> Estimate | Underpowered:
        if self.freedom < 1:
            return Underpowered(what="signal m", have=self.freedom, needed=1)
        low, high = self.means - self._half(confidence), self.means + self._half(confidence)
        return self._estimate(float(self.means.min()), low.min(), high.min(), confidence)

    def largest_size(self, confidence: float) -> Estimate | Underpowered:
        if self.freedom < 1:
            return Underpowered(what="drift eps", have=self.freedom, needed=1)
        size, half = np.abs(self.means), self._half(confidence)
        low, high = np.maximum(size - half, 0.0).max(), (size + half).max()
        return self._estimate(float(size.max()), float(low), float(high), confidence)
