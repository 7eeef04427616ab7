"""The gradient of a task's mean loss on given examples, as a flat row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

if TYPE_CHECKING:
    from torch import Tensor

    from fedaudit.tasks.task import Task

_AT_ONCE = 128  # examples per backward pass


@dataclass(frozen=True, eq=False)
class MeanGradient:
    """The gradient (d,) of the mean loss at a model (d,), in evaluation mode; 0 for buffers."""

    task: Task

    def __call__(self, model: npt.NDArray[Any], x: Tensor, y: Tensor) -> npt.NDArray[np.float32]:
        flat = torch.tensor(np.asarray(model), dtype=torch.float32, requires_grad=True)
        total = torch.zeros_like(flat)
        with self.task.evaluating():
            for low in range(0, len(x), _AT_ONCE):
                some = slice(low, low + _AT_ONCE)
                losses = self.task.losses(self.task.differentiable(flat), x[some], y[some], None)
                total += torch.autograd.grad(losses.sum() / len(x), flat)[0]
        total[self.task.trained :] = 0.0
        found: npt.NDArray[np.float32] = total.numpy()
        return found
