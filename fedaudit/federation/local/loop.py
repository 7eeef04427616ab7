"""Tier 4: one client after another, plain autograd. Slow and obvious: the reference for the others.

It is also the only tier for modules with buffers (normalisation statistics change in place).
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedaudit.errors import ConfigError
from fedaudit.tasks.task import Task


class Loop:
    """Gradient sums client by client."""

    name = "loop"

    def __init__(self, task: Task) -> None:
        self.task = task

    def _loss_inputs(
        self, row: Tensor, x: Tensor, y: Tensor, noise: Tensor | None
    ) -> tuple[dict[str, Tensor], Tensor]:
        named = self.task.named(row)
        for e in self.task.layout.entries:
            if e.role == "parameter":
                named[e.name] = named[e.name].detach().requires_grad_()
        return named, self.task.losses(named, x, y, noise)

    def sums(self, p: Tensor, x: Tensor, y: Tensor, weight: Tensor, noise: Tensor | None) -> Tensor:
        """Sum over a batch of weight * gradient: p (K, d), x (K, B, ...), weight (K, B) -> (K, d).

        Examples of weight 0 are padding; the module never sees them.
        """
        out = torch.zeros_like(p)
        for k in range(len(p)):
            keep = weight[k] != 0
            if not keep.any():
                continue
            z = None if noise is None else noise[k][keep]
            try:
                named, losses = self._loss_inputs(p[k], x[k][keep], y[k][keep], z)
            except ValueError as error:
                if "more than 1 value per channel" not in str(error):
                    raise
                raise ConfigError(
                    "batch normalisation cannot train on a batch of one example",
                    expected="at least two examples in every batch",
                    got="a client, or the last batch of an epoch, with one",
                    remedy="change training.batch_size or the partition, or use GroupNorm",
                ) from error
            trained = [e for e in self.task.layout.entries if e.role == "parameter"]
            leaves = [named[e.name] for e in trained]
            grads = torch.autograd.grad(
                (losses * weight[k][keep]).sum(), leaves, materialize_grads=True
            )
            for e, g in zip(trained, grads, strict=True):
                out[k, e.columns] = g.reshape(-1)
        return out

    def per_example(
        self, p: Tensor, x: Tensor, y: Tensor, weight: Tensor, noise: Tensor | None
    ) -> Tensor:
        """Per-example gradients (K, B, d); zero where the weight is zero."""
        k, b = weight.shape
        out = torch.zeros(k, b, p.shape[1])
        for j in range(b):
            one = torch.zeros_like(weight)
            one[:, j] = (weight[:, j] != 0).float()
            out[:, j] = self.sums(p, x, y, one, noise)
        return out
