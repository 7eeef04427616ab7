"""The constants m, eps and nu of [FedAttr] Assumption 1, as far as a run shows them (Figure 2)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedaudit.arrays import Floats
from fedaudit.results import Estimate, Underpowered


@dataclass(frozen=True)
class Constants:
    """m, eps and nu of [FedAttr] Assumption 1 as far as a run shows them (Figure 2).

    `signal` the smallest mean score of a marked client, `drift` the largest absolute mean of a
    benign one, `noise` the deviation within clients. The assumption asks for bounds over all rounds
    as well, and for sub-Gaussian tails: means over rounds are what such a run can give.
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
    """From differential scores (T, K), NaN where a client was absent; needs two rounds.

    Intervals hold for all clients of a kind at once: Student's by Bonferroni around each mean, with
    the deviation within clients of that kind. The smallest (largest) of the true means then lies
    between the smallest (largest) of their lower and of their upper ends.
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
    """Means (k,) of clients over their rounds (k,), and the sum of squares around them."""

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
