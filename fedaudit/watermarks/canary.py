"""Canary sets for classifiers: records and labels that nobody has but who got them from the owner.

A key stands for one set of `records` pairs. Every feature of a record is drawn from the owner's
corpus by itself, so that values look usual and records are like no other; labels are drawn evenly.
A model that was trained on a set gives its labels more than their due. Keys are drawn alike, used
or not: for a model that never saw a set, the owner's keys and unused ones are exchangeable, which
is what makes thousands of unused keys a null ([FedAttr] Section 3.2 asks for any such score).

The score of a set is the mean over its records of

    margin      the label's logit minus the mean logit over classes: 0 on average over labels,
                whatever the model, so that common drifts cancel
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

_AT_ONCE = 4_000_000  # logits per block


@dataclass(frozen=True, kw_only=True)
class Canaries:
    """The family of sets: features drawn from `corpus` (n, ...), `classes`, `records` in a set."""

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
        many = (self.records, self._flat.shape[1])
        rows = rng.integers(len(self._flat), size=many)
        x = self._flat[rows, np.arange(many[1])]
        y = rng.integers(self.classes, size=self.records)
        return x.reshape(self.records, *self.corpus.shape[1:]), y.astype(np.int64)

    def draw_all(
        self, keys: Sequence[int]
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
        """The sets of many keys one behind the other: x (keys records, ...), y (keys records,)."""
        drawn = [self.draw(int(key)) for key in keys]
        return np.concatenate([x for x, _ in drawn]), np.concatenate([y for _, y in drawn])


@dataclass(frozen=True, kw_only=True)
class CanaryMarks:
    """The owner at its desk: scores of models on the sets of its `keys`, and on unused ones.

    `logits` of models; `null_seed` draws the unused keys, each as the owner's own were drawn.
    """

    canaries: Canaries
    keys: tuple[int, ...]
    logits: Logits
    null_seed: int = 0
    statistic: Statistic = "margin"

    def unused(self, many: int) -> tuple[int, ...]:
        """Keys that nobody trained on, other than the owner's."""
        drawn = Seed(self.null_seed).bits("marks/unused", np.arange(many + len(self.keys)))
        fresh = [int(k) for k in drawn if int(k) not in set(self.keys)]
        return tuple(fresh[:many])

    def statistics(self, rows: Any, unused: int) -> Floats:
        """Scores (M, keys + unused) of models (M, d): the owner's keys first."""
        return self.scores(rows, (*self.keys, *self.unused(unused)))

    def scores(self, rows: Any, keys: Sequence[int]) -> Floats:
        """Scores (M, keys) of models (M, d)."""
        import torch

        if not len(keys):
            raise UsageError(
                "there are no probes to score a model with",
                expected="at least one key",
                got="none",
                remedy="give the owner's keys, or ask for unused ones",
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

        kept = self._drawn.get(keys)
        if kept is None:
            x, y = self.canaries.draw_all(keys)
            kept = torch.from_numpy(x), torch.from_numpy(y)
            if len(self._drawn) < 8:
                self._drawn[keys] = kept
        return kept

    @cached_property
    def _drawn(self) -> dict[tuple[int, ...], tuple[Tensor, Tensor]]:
        """The last sets that were drawn: every round scores the same."""
        return {}


__all__ = ["Canaries", "CanaryMarks", "Logits", "Marking", "Statistic"]
