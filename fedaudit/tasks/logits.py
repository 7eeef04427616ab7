"""Logits of many models on the same inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedaudit.tasks.stacked import NotStackable, forward

if TYPE_CHECKING:
    from fedaudit.tasks.task import Task


def logits_of(task: Task) -> Callable[[Tensor, Tensor], Tensor]:
    """A function from models (M, d) and inputs (n, ...) to logits (M, n, classes).

    Runs all models as one batch if the layers can be stacked, else one after another.
    """

    def logits(rows: Tensor, x: Tensor) -> Tensor:
        y = torch.zeros(len(x), dtype=torch.int64)
        with task.evaluating():
            try:
                out = forward(task.module, task.named(rows), x.expand(len(rows), *x.shape))
            except NotStackable:
                each = [task.output(task.named(row), x, y, None) for row in rows]
                out = torch.stack(each)
        found: Tensor = out
        return found

    return logits
