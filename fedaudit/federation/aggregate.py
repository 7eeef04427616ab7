"""How uploads become the next model: averages by weight, by region, by neighbourhood.

    Theta_{t+1} = Theta_t + lambda * Avg({delta_t^k})                  [Fingerprint] Eq. (2)

written for deltas (the negative of the published gradients), with optional server momentum.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


def weighted_sum(rows: Tensor, weights: npt.NDArray[np.float64]) -> Tensor:
    """Sum over clients of weight * row: (n, d) and (n,) to (d,)."""
    return torch.from_numpy(weights).to(rows.dtype) @ rows


def regional_means(
    rows: Tensor, weights: npt.NDArray[np.float64], region: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], Tensor, npt.NDArray[np.float64]]:
    """Each region's weighted mean and total weight: region numbers (R,), (R, d), (R,).

    Averaging these by their weights gives the average over all clients.
    """
    numbers = np.unique(region)
    member = (region[None, :] == numbers[:, None]).astype(np.float64) * weights
    totals = member.sum(axis=1)
    means = torch.from_numpy(member / totals[:, None]).to(rows.dtype) @ rows
    return numbers, means, totals


@dataclass
class ServerOptimiser:
    """A step along the mean delta, with momentum: v <- m v + delta, W <- W + rate * v."""

    learning_rate: float = 1.0
    momentum: float = 0.0
    velocity: Tensor | None = None

    def step(self, model: Tensor, mean_delta: Tensor) -> Tensor:
        """The next model (d,)."""
        if self.momentum:
            old = self.velocity if self.velocity is not None else torch.zeros_like(model)
            self.velocity = self.momentum * old + mean_delta
            mean_delta = self.velocity
        return model + self.learning_rate * mean_delta
