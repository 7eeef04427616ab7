"""Language modelling: a tiny GPT on token windows, mean negative log-likelihood per window."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedaudit.data.dataset import Dataset
from fedaudit.data.text import IGNORE, windows
from fedaudit.errors import DataError
from fedaudit.tasks.stacked import Parameters
from fedaudit.tasks.task import Examples, Task


class Vocabulary(Protocol):
    """A vocabulary as a language model uses it."""

    def encode(self, text: str) -> list[int]: ...
    def __len__(self) -> int: ...


class LanguageModel(Task):
    """Next-token prediction. An example is a window of `length` + 1 tokens.

    Positions with target IGNORE (padding) do not count; their input is token 0.
    """

    kind = "language_model"

    def __init__(
        self,
        module: nn.Module,
        vocabulary: Vocabulary,
        length: int,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(module, settings)
        self.vocabulary, self.length = vocabulary, length

    def encode(self, dataset: Dataset) -> Examples:
        if not isinstance(dataset.x, tuple):
            raise DataError(
                f"dataset {dataset.name!r} is not text",
                expected="documents for a language model",
                got=dataset.kind,
                remedy='use task.kind = "mlp" or "cnn"',
            )
        parts, record = [], []
        for i, text in enumerate(dataset.x):
            w = windows(self.vocabulary.encode(text), self.length)
            parts.append(w)
            record += [i] * len(w)
        x = torch.from_numpy(np.concatenate(parts))
        y = torch.zeros(len(x), dtype=torch.int64)
        return Examples(x, y, torch.tensor(record, dtype=torch.int64))

    def inputs(self, x: Tensor, y: Tensor, noise: Tensor | None) -> tuple[Tensor, ...]:
        return (x[..., :-1].clamp_min(0),)

    def scores(self, p: Parameters, x: Tensor, y: Tensor, noise: Tensor | None) -> Tensor:
        """Log-likelihood of each window in nats: the loss is its mean over predicted tokens."""
        return -self.losses(p, x, y, noise) * self._predicted(x)

    def stacked_scores(self, p: Parameters, x: Tensor, y: Tensor, noise: Tensor | None) -> Tensor:
        return -self.stacked_losses(p, x, y, noise) * self._predicted(x)

    @staticmethod
    def _predicted(x: Tensor) -> Tensor:
        return (x[..., 1:] != IGNORE).sum(-1)

    def criterion(self, output: Tensor, x: Tensor, y: Tensor) -> Tensor:
        target = x[..., 1:]
        losses = F.cross_entropy(
            output.flatten(0, -2), target.flatten(), reduction="none", ignore_index=IGNORE
        ).view(target.shape)
        return losses.sum(-1) / (target != IGNORE).sum(-1).clamp_min(1)
