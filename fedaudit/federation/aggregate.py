"""From uploads to the next model: weighted sums, server steps, gossip mixing.

    Theta_{t+1} = Theta_t + lambda * Avg({delta_t^k})                  [Fingerprint] Eq. (2)

written for deltas (the negative of the published gradients), with optional server momentum.

Low-rank adapters are aggregated in two ways, both by `weighted_sum`: FedIT's rows are the adapters,
so A and B are averaged separately; FLoRA's rows are the dense products B A.
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


def mixing_among(
    weights: npt.NDArray[np.float64], clients: npt.NDArray[np.int64]
) -> npt.NDArray[np.float64]:
    """Gossip weights (n, n) among `clients`: the weight of absent neighbours goes to the diagonal.

    Rows and columns of the result sum to one if those of `weights` do and it is symmetric.
    """
    if len(clients) == len(weights):
        return weights
    out = np.eye(len(weights))
    inside = np.ix_(clients, clients)
    part = weights[inside].copy()
    np.fill_diagonal(part, 0.0)
    out[inside] = part + np.diag(1.0 - part.sum(axis=1))
    return out
