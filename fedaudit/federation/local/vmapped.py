"""Tier 3: `torch.func.vmap` over clients, for any module that torch.func can trace."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.func import grad, vmap

from fedaudit.tasks.task import Task


def _quiet(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Silence vmap's warning that some operators (attention) fall back to a slow loop."""

    def call(*args: Tensor) -> Tensor:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="There is a performance drop")
            return function(*args)

    return call


LARGE = 16_000_000
"""Numbers in a model, frozen ones too, beyond which the loop is faster.

Vectorising saves the cost of starting small operations. A large model does not notice that cost,
and holds the outputs of all clients at once: for a language model of 135 million numbers the loop
takes 2.4 times less. The rule looks at sizes and never at a clock, so a resumed run takes the same
tier.
"""


class Vmapped:
    """Gradient sums of all clients by one vectorised backward pass."""

    name = "vmap"

    @staticmethod
    def fits(task: Task) -> bool:
        """Whether vectorising is worth it: see `LARGE`."""
        return sum(p.numel() for p in task.module.parameters()) <= LARGE

    def __init__(self, task: Task) -> None:
        self.task = task
        with_noise = task.noise_shape() is not None

        def total(row: Tensor, x: Tensor, y: Tensor, weight: Tensor, noise: Any = None) -> Tensor:
            return (task.losses(task.named(row), x, y, noise) * weight).sum()

        def single(row: Tensor, x: Tensor, y: Tensor, noise: Any = None) -> Tensor:
            z = None if noise is None else noise.unsqueeze(0)
            return task.losses(task.named(row), x.unsqueeze(0), y.unsqueeze(0), z).sum()

        extra = (0,) if with_noise else ()
        self._sums = _quiet(vmap(grad(total), in_dims=(0, 0, 0, 0, *extra)))
        self._each = _quiet(vmap(vmap(grad(single), in_dims=(None, 0, 0, *extra))))

    def sums(self, p: Tensor, x: Tensor, y: Tensor, weight: Tensor, noise: Tensor | None) -> Tensor:
        """p (K, d), x (K, B, ...), weight (K, B) -> (K, d)."""
        args = (p, x, y, weight) if noise is None else (p, x, y, weight, noise)
        out: Tensor = self._sums(*args)
        return out

    def per_example(
        self, p: Tensor, x: Tensor, y: Tensor, weight: Tensor, noise: Tensor | None
    ) -> Tensor:
        """Per-example gradients (K, B, d), zero where the weight is zero."""
        args = (p, x, y) if noise is None else (p, x, y, noise)
        out: Tensor = self._each(*args)
        return out * (weight != 0).unsqueeze(-1).to(torch.float32)
