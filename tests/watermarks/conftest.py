"""A language model small enough to know by heart: the next token depends on the last one alone.

A row holds its logits, (V * V,): a change of a row is a change of known probabilities.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch


class Bigram:
    """A `Reader` over rows of logits."""

    def __init__(self, vocabulary: int, longest: int = 64) -> None:
        self.vocabulary_size, self.longest = vocabulary, longest

    def table(self, models: Any) -> np.ndarray:
        v = self.vocabulary_size
        logits = torch.as_tensor(models).reshape(-1, v, v).double()
        return logits.log_softmax(-1).float().numpy()

    def log_probabilities(self, models: Any, tokens: Any) -> np.ndarray:
        return self.table(models)[:, np.asarray(tokens)]

    def last_log_probabilities(self, models: Any, prompts: Sequence[Sequence[int]]) -> np.ndarray:
        return self.table(models)[:, [p[-1] for p in prompts]]

    def generate(
        self,
        models: Any,
        prompts: Sequence[Sequence[int]],
        steps: int,
        *,
        uniforms: np.ndarray | None = None,
        processor: Any = None,
        temperature: float = 1.0,
        top_p: float = 1.0,
        banned: Sequence[int] = (),
    ) -> np.ndarray:
        assert top_p == 1.0, "not part of this reader"
        assert not banned, "not part of this reader"
        out = []
        for table in self.table(models):
            last = torch.tensor([[p[-1]] for p in prompts])
            made = []
            for s in range(steps):
                logits = torch.from_numpy(table)[last[:, -1]]
                if processor is not None:
                    logits = processor(last, logits)
                if uniforms is None:
                    new = logits.argmax(-1)
                else:
                    sums = torch.softmax(logits.double() / temperature, -1).cumsum(-1)
                    goal = torch.from_numpy(uniforms[:, s : s + 1].copy())
                    new = torch.searchsorted(sums, goal).squeeze(1).clamp_max(len(table) - 1)
                last = torch.cat([last, new[:, None]], dim=1)
                made.append(new.numpy())
            out.append(np.stack(made, axis=1))
        return np.stack(out)


@pytest.fixture
def bigram() -> type[Bigram]:
    return Bigram
