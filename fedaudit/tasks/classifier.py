"""Classification: any module from examples to logits, cross-entropy per example."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fedaudit.data.dataset import Dataset
from fedaudit.errors import DataError
from fedaudit.randomness import Seed
from fedaudit.tasks.task import Examples, Task


class Classifier(Task):
    """Cross-entropy over classes; logits (..., classes)."""

    kind = "classifier"

    def encode(self, dataset: Dataset) -> Examples:
        if isinstance(dataset.x, tuple):
            raise DataError(
                f"dataset {dataset.name!r} is text",
                expected="features or images for a classifier",
                got="documents",
                remedy='use task.kind = "gpt"',
            )
        n = len(dataset)
        return Examples(torch.from_numpy(dataset.x), torch.from_numpy(dataset.y), torch.arange(n))

    def criterion(self, output: Tensor, x: Tensor, y: Tensor) -> Tensor:
        losses = F.cross_entropy(output.flatten(0, -2), y.flatten(), reduction="none")
        return losses.view(y.shape)

    def metrics(self, flat: Tensor, examples: Examples, seed: Seed) -> dict[str, float]:
        from torch.func import functional_call

        with torch.no_grad():
            logits = functional_call(self.module, self.named(flat), (examples.x,))
            loss = F.cross_entropy(logits, examples.y)
            hit = (logits.argmax(-1) == examples.y).float().mean()
        return {"loss": float(loss), "accuracy": float(hit)}
