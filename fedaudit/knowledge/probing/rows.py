"""Records of all clients and held-out records as rows of numbers, and their universe indices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedaudit.arrays import Floats, Indices
from fedaudit.audits.active_membership.games import Universe
from fedaudit.data.text import IGNORE
from fedaudit.errors import NotApplicable

if TYPE_CHECKING:
    from fedaudit.tasks.task import Examples, Task


@dataclass(frozen=True)
class RecordRows:
    """Records as rows of numbers: `pool` (m, r), `label` (m,) and `owner` (m,).

    `shape`: of one record. `words`: size of the vocabulary, 0 for features.
    """

    pool: Floats
    label: Indices
    owner: Indices
    shape: tuple[int, ...]
    words: int
    remarks: list[str]

    @classmethod
    def of(cls, task: Task, parts: Sequence[Examples]) -> RecordRows:
        """From examples of a task: features and images, or windows of tokens."""
        y = [e.y.numpy() for e in parts]
        first, words, remarks = parts[0].x, 0, []
        if first.is_floating_point():
            x = [e.x.flatten(1).double().numpy() for e in parts]
            shape = tuple(first.shape[1:])
        elif vocabulary := getattr(task, "vocabulary", None):
            # a language model reads all tokens of a window except the last, which it predicts
            read = [e.x[:, :-1].numpy() for e in parts]
            full = [(x != IGNORE).all(axis=1) for x in read]
            x = [r[f].astype(np.float64) for r, f in zip(read, full, strict=True)]
            y = [of[f] for of, f in zip(y, full, strict=True)]
            shape, words = (first.shape[1] - 1,), len(vocabulary)
            remarks.append(f"a record is a full window of {shape[0]} of {words:,} tokens")
        else:
            raise NotApplicable(
                "games need records of features or of tokens",
                code="unsuitable_records",
                expected="features or images (floating-point numbers), or a language model",
                got=f"examples of {first.dtype}",
                remedy="embed the records first, and audit the embeddings as your own data",
            )
        owner = np.concatenate([np.full(len(p), i) for i, p in enumerate(x)])
        return cls(np.concatenate(x), np.concatenate(y), owner, shape, words, remarks)


def numbers_of(universe: Universe, pool: Floats) -> tuple[Indices, Indices]:
    """For every universe record the first equal record of `pool` (N,), and the universe index (m,)
    of every record of `pool`, -1 if it is not in the universe."""
    clean = np.ascontiguousarray(universe.channel.clean(pool) + 0.0)
    known = {row.tobytes(): i for i, row in enumerate(universe.values)}
    number = np.array([known.get(row.tobytes(), -1) for row in clean])
    first = np.empty(len(universe), dtype=np.int64)
    inside = np.flatnonzero(number >= 0)[::-1]
    first[number[inside]] = inside  # the last assignment is the first record
    return first, number
