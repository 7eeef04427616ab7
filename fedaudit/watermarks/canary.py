"""Canary sets for classifiers: made-up records with labels, known only to the owner and recipients.

A key determines one set of `records` labelled records. Every feature of a record is drawn
independently from the owner's corpus, so that values are typical but records are unique; labels are
uniform. A model trained on a set favours its labels. Used and unused keys have the same
distribution: for a model that never saw a set, the owner's keys and unused ones are exchangeable,
so thousands of unused keys form a null ([FedAttr] Section 3.2 allows any such score).

The score of a set is the mean over its records of

    margin      the label's logit minus the mean logit over classes: 0 on average over labels for
                any model, so that common drifts cancel
    loss        the log-likelihood of the label: minus the canary set's loss

Shapes: corpus (n, ...); a set x (records, ...), y (records,); rows of models (M, d); scores (M,).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from fedaudit.arrays import Floats
from fedaudit.errors import UsageError
from fedaudit.randomness import Seed
from fedaudit.watermarks.marking import Marking

if TYPE_CHECKING:
    from torch import Tensor

Statistic = Literal["margin", "loss"]
Logits = Callable[["Tensor", "Tensor"], "Tensor"]
"""Rows of models (M, d) and inputs (n, ...) -> logits (M, n, classes)."""

_AT_ONCE = 4_000_000  # logits in memory


@dataclass(frozen=True, kw_only=True)
class Canaries:
    """A family of canary sets, one per key.

    `corpus` (n, ...): source of features. `classes`: number of labels. `records`: size of a set.
    """

    corpus: npt.NDArray[np.float32]
    classes: int
    records: int

    def __post_init__(self) -> None:
        if len(self.corpus) < 1 or self.classes < 2 or self.records < 1:
            raise UsageError(
                "canary sets cannot be drawn",
                expected="a corpus, at least two classes, at least one record in a set",
                got=f"{len(self.corpus)} records, {self.classes} classes, {self.records} in a set",
                remedy="canaries are for classifiers: give records with labels",
            )

    @cached_property
    def _flat(self) -> npt.NDArray[np.float32]:
        return self.corpus.reshape(len(self.corpus), -1)

    def draw(self, key: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
        """The set of one key: x (records, ...), y (records,)."""
        rng = Seed(key).generator("canary")
        width = self._flat.shape[1]
        rows = rng.integers(len(self._flat), size=(self.records, width))
        x = self._flat[rows, np.arange(width)]
        y = rng.integers(self.classes, size=self.records)
        return x.reshape(self.records, *self.corpus.shape[1:]), y.astype(np.int64)

    def draw_all(
        self, keys: Sequence[int]
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
        """The sets of many keys, concatenated: x (keys * records, ...), y (keys * records,)."""
        drawn = [self.draw(int(key)) for key in keys]
        return np.concatenate([x for x, _ in drawn]), np.concatenate([y for _, y in drawn])


@dataclass(frozen=True, kw_only=True)
class CanaryMarks:
    """The owner's test: scores of models on the canary sets of its `keys` and of unused keys.

    `logits`: function from models and inputs to logits. `null_seed`: draws the unused keys, with
    the distribution of the owner's.
    """

    canaries: Canaries
    keys: tuple[int, ...]
    logits: Logits
    null_seed: int = 0
    statistic: Statistic = "margin"

    def unused(self, count: int) -> tuple[int, ...]:
        """`count` keys that nobody trained on, none of them the owner's."""
        drawn = Seed(self.null_seed).bits("marks/unused", np.arange(count + len(self.keys)))
        fresh = [int(k) for k in drawn if int(k) not in set(self.keys)]
        return tuple(fresh[:count])

    def statistics(self, rows: Any, unused: int) -> Floats:
        """Scores (M, keys + unused) of models (M, d): the owner's keys first."""
        return self.scores(rows, (*self.keys, *self.unused(unused)))

    def scores(self, rows: Any, keys: Sequence[int]) -> Floats:
        """Scores (M, keys) of models (M, d)."""
        import torch

        if not len(keys):
            raise UsageError(
                "there are no keys to score a model with",
                expected="at least one key",
                got="none",
                remedy="give the owner's keys, or request unused ones",
            )
        models = torch.as_tensor(np.atleast_2d(np.asarray(rows, dtype=np.float32)))
        size, out = self.canaries.records, []
        step = max(1, _AT_ONCE // (len(models) * size * self.canaries.classes))
        for start in range(0, len(keys), step):
            x, y = self._probes(tuple(keys[start : start + step]))
            with torch.no_grad():
                logits = self.logits(models, x)
                labels = y.expand(len(models), -1)[..., None]
                if self.statistic == "margin":
                    each = logits.gather(-1, labels)[..., 0] - logits.mean(-1)
                else:
                    each = logits.log_softmax(-1).gather(-1, labels)[..., 0]
            out.append(each.double().view(len(models), -1, size).mean(-1))
        return np.asarray(torch.cat(out, dim=1).numpy())

    def _probes(self, keys: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        import torch

        found = self._cache.get(keys)
        if found is None:
            x, y = self.canaries.draw_all(keys)
            found = torch.from_numpy(x), torch.from_numpy(y)
            if len(self._cache) < 8:
                self._cache[keys] = found
        return found

    @cached_property
    def _cache(self) -> dict[tuple[int, ...], tuple[Tensor, Tensor]]:
        """Keys -> their sets: every round scores the same keys."""
        return {}


__all__ = ["Canaries", "CanaryMarks", "Logits", "Marking", "Statistic"]
