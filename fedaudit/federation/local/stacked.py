"""Tier 2: one autograd graph over stacked parameters (batched matmul, grouped convolution)."""

from __future__ import annotations

import torch
from torch import Tensor

from fedaudit.tasks.task import Task


class Stacked:
    """Gradient sums of all clients by one backward pass over stacked layers."""

    name = "stacked"

    def __init__(self, task: Task) -> None:
        self.task = task

    def leaves(self, p: Tensor) -> dict[str, Tensor]:
        """Leaf views by name that share storage with p (K, d)."""
        return {k: v.detach().requires_grad_() for k, v in self.task.named(p).items()}

    def gradients(
        self, p: Tensor, x: Tensor, y: Tensor, weight: Tensor, noise: Tensor | None
    ) -> tuple[list[Tensor], tuple[Tensor, ...]]:
        """Views of p by name, and the gradient of each."""
        named = self.leaves(p)
        total = (self.task.stacked_losses(named, x, y, noise) * weight).sum()
        views = list(named.values())
        return views, torch.autograd.grad(total, views, materialize_grads=True)

    def sums(self, p: Tensor, x: Tensor, y: Tensor, weight: Tensor, noise: Tensor | None) -> Tensor:
        """p (K, d), x (K, B, ...), weight (K, B) -> (K, d)."""
        _, grads = self.gradients(p, x, y, weight, noise)
        return torch.cat([g.reshape(len(p), -1) for g in grads], dim=1)

    def sgd_(
        self,
        p: Tensor,
        x: Tensor,
        y: Tensor,
        weight: Tensor,
        noise: Tensor | None,
        rate: float,
    ) -> None:
        """p -= rate * sums, in place, without building the flat gradient."""
        views, grads = self.gradients(p, x, y, weight, noise)
        with torch.no_grad():
            for v, g in zip(views, grads, strict=True):
                v.sub_(g, alpha=rate)
