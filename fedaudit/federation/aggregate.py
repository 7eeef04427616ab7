"""How uploads become the next model: sums by weight, a server that steps, neighbours that mix.

    Theta_{t+1} = Theta_t + lambda * Avg({delta_t^k})                  [Fingerprint] Eq. (2)

written for deltas (the negative of the published gradients), with optional server momentum.

Low-rank adapters are put together in two ways: FedIT averages A and B each for itself, FLoRA sums
the dense products B A. The first is what `weighted_sum` does to rows of adapters;
`average_adapters` and `sum_products` do both for adapters by name, as peft saves them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedaudit.errors import UsageError


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
    """Gossip weights (n, n) when only `clients` take part: what others would carry stays at home.

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


DOWN, UP = ".lora_A.weight", ".lora_B.weight"  # peft's names: (rank, in) and (out, rank)


def average_adapters(
    adapters: Sequence[Mapping[str, Tensor]], weights: npt.ArrayLike
) -> dict[str, Tensor]:
    """FedIT: A = sum_k p_k A_k and B = sum_k p_k B_k, with p_k = weight / sum of weights.

    Not the average of the products. Adapters of unequal rank have no average, and are refused.
    """
    share = _shares(adapters, weights)
    first = adapters[0]
    for k, other in enumerate(adapters):
        for name, tensor in first.items():
            if name not in other or other[name].shape != tensor.shape:
                got = tuple(other[name].shape) if name in other else "no such tensor"
                raise UsageError(
                    "adapters of unequal rank cannot be averaged",
                    expected=f"{name} of shape {tuple(tensor.shape)} from every client",
                    got=f"{got} from client {k}",
                    remedy='give all clients one rank, or sum products: aggregation = "flora"',
                )
    return {
        name: sum((p * a[name] for p, a in zip(share, adapters, strict=True)), start=0.0 * tensor)
        for name, tensor in first.items()
    }


def sum_products(
    adapters: Sequence[Mapping[str, Tensor]], weights: npt.ArrayLike, scales: Sequence[float]
) -> Iterator[tuple[str, Tensor]]:
    """FLoRA: (layer, sum_k p_k scale_k B_k A_k) one layer after another; ranks may differ.

    What stacking the adapters side by side gives, as a sum: a secure aggregator can carry it. Only
    one layer's products exist at a time.
    """
    share = _shares(adapters, weights)
    if len(scales) != len(adapters):
        raise UsageError(
            "the scales do not fit the adapters",
            expected=f"{len(adapters)} scales (alpha / rank), one per client",
            got=str(len(scales)),
            remedy="give one for every client",
        )
    for name in [n.removesuffix(DOWN) for n in adapters[0] if n.endswith(DOWN)]:
        pairs = [(a[name + UP], a[name + DOWN]) for a in adapters]
        total = torch.zeros(pairs[0][0].shape[0], pairs[0][1].shape[1])
        for p, scale, (up, down) in zip(share, scales, pairs, strict=True):
            total.addmm_(up, down, alpha=p * scale)
        yield name, total


def _shares(adapters: Sequence[Mapping[str, Tensor]], weights: npt.ArrayLike) -> list[float]:
    w = np.asarray(weights, dtype=np.float64)
    if not len(adapters) or w.shape != (len(adapters),) or (w < 0).any() or not w.any():
        raise UsageError(
            "the weights do not fit the adapters",
            expected=f"{len(adapters)} non-negative weights, not all zero",
            got=f"shape {w.shape}",
            remedy="give the number of examples of every client",
        )
    return [float(p) for p in w / w.sum()]
