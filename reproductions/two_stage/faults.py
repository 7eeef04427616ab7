"""The published loop of figure 4, fault by fault: what makes IID risk fall.

The public code keeps one Adam state for all clients and rounds, draws other random numbers for
either of the two scores that it compares, and divides inputs by 255 that lie in [0, 1] already. Its
loss is the squared error, without a factor, plus the divergence. Each can be switched here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedaudit.audits.two_stage_membership.theory import phi
from fedaudit.randomness import Seed
from fedaudit.tasks.vae import Autoencoder

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Faults:
    """What is done as in the public code."""

    shared_optimiser: bool = False
    unequal_noise: bool = False
    scaled_twice: bool = False
    squared_error: bool = False


ALL = Faults(shared_optimiser=True, unequal_noise=True, scaled_twice=True, squared_error=True)
VARIANTS = {
    "as published": ALL,
    "shared optimiser alone": Faults(shared_optimiser=True),
    "unequal noise alone": Faults(unequal_noise=True),
    "scaled twice alone": Faults(scaled_twice=True),
    "squared error alone": Faults(squared_error=True),
    "all but shared optimiser": Faults(unequal_noise=True, scaled_twice=True, squared_error=True),
    "mended": Faults(),
}


class SquaredError(Autoencoder):
    """The public code's loss: squared error of the reconstruction plus the divergence."""

    def criterion(self, output: tuple[Tensor, Tensor, Tensor], x: Tensor, y: Tensor) -> Tensor:
        logits, mean, log_variance = output
        lead = y.dim()
        squared = (torch.sigmoid(logits).flatten(lead) - x.flatten(lead)).square().sum(-1)
        return squared + 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum(-1)


def trajectory(
    task: Autoencoder,
    clients: list[tuple[Tensor, Tensor]],
    *,
    rounds: int,
    epochs: int,
    faults: Faults,
    seed: Seed,
) -> dict[str, Floats]:
    """SUR and J (T, K) of every round and client, by one loop over clients.

    `clients` x (n, ...) and y (n,); J is over all records of a client, one draw per score.
    """
    if faults.squared_error:
        task = SquaredError(task.module, task.settings)
    if faults.scaled_twice:
        clients = [(x / 255, y) for x, y in clients]
    draws = seed.torch_generator("faults")
    current = task.initial()
    weights = current.clone().requires_grad_()
    optimiser = torch.optim.Adam([weights], lr=1e-3)

    def noise(n: int) -> Tensor:
        return torch.randn(n, *task.noise_shape(), generator=draws)

    def scores(model: Tensor, x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        with torch.no_grad():
            return task.scores(task.named(model), x, y, z)

    sur, advantage = [], []
    for _ in range(rounds):
        updates = []
        for x, y in clients:
            if not faults.shared_optimiser:
                optimiser = torch.optim.Adam([weights], lr=1e-3)
            weights.data.copy_(current)
            for _ in range(epochs):
                loss = task.losses(task.named(weights), x, y, noise(len(x))).mean()
                (weights.grad,) = torch.autograd.grad(loss, weights)
                optimiser.step()
            updates.append((weights.data - current) / len(clients))
        moved = torch.stack(updates).sum(dim=0)
        sur.append([float(u.norm() / moved.norm()) for u in updates])
        row = []
        for (x, y), u in zip(clients, updates, strict=True):
            z = noise(len(x))
            other = noise(len(x)) if faults.unequal_noise else z
            base = scores(current + moved - u, x, y, other)
            row.append(float(phi((scores(current + moved, x, y, z) - base).numpy()).mean()))
        advantage.append(row)
        current = current + moved
    return {"sur": np.array(sur), "j": np.array(advantage)}
