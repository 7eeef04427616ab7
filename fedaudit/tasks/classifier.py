"""Classification: a module that maps examples to logits, with cross-entropy per example."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fedaudit.data.dataset import Dataset
from fedaudit.tasks.stacked import Parameters
from fedaudit.tasks.task import Examples, Task, as_tensor, refuse_text


class Classifier(Task):
    """Cross-entropy over classes; logits (..., classes)."""

    kind = "classifier"

    def encode(self, dataset: Dataset) -> Examples:
        refuse_text(dataset, "a classifier")
        assert not isinstance(dataset.x, tuple)
        n = len(dataset)
        return Examples(as_tensor(dataset.x), as_tensor(dataset.y), torch.arange(n))

    def criterion(self, output: Tensor, x: Tensor, y: Tensor) -> Tensor:
        losses = F.cross_entropy(output.flatten(0, -2), y.flatten(), reduction="none")
        return losses.view(y.shape)

    def evidence(self, scores: Tensor) -> Tensor:
        """Log-odds of the true class, log p - log(1 - p); log p alone piles up at 0."""
        tiny = torch.finfo(scores.dtype).eps
        return scores - torch.log(-torch.expm1(scores.clamp(max=-tiny)))

    def measures(
        self, p: Parameters, x: Tensor, y: Tensor, noise: Tensor | None
    ) -> dict[str, Tensor]:
        logits = self.output(p, x, y, noise)
        return {"loss": self.criterion(logits, x, y), "accuracy": logits.argmax(-1) == y}
