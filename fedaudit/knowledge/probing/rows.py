"""Records of all clients, and of nobody, as rows of numbers; and their numbers in a universe."""

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
class Dealing:
    """Records of all clients and of nobody as rows of numbers: `pool` (m, r), `label` (m,) and
    `owner` (m,), in the order given; `shape` of one; `words` of the vocabulary, 0 for features."""

    pool: Floats
    label: Indices
    owner: Indices
    shape: tuple[int, ...]
    words: int
    remarks: list[str]

    @classmethod
    def of(cls, task: Task, parts: Sequence[Examples]) -> Dealing:
        """From examples of a task: features and images, or windows of tokens."""
        y = [e.y.numpy() for e in parts]
        first, words, remarks = parts[0].x, 0, []
        if first.is_floating_point():
            x = [e.x.flatten(1).double().numpy() for e in parts]
            shape = tuple(first.shape[1:])
        elif vocabulary := getattr(task, "vocabulary", None):
            # what a language model reads of a window; the last token is only predicted
            read = [e.x[:, :-1].numpy() for e in parts]
            full = [(x != IGNORE).all(axis=1) for x in read]
            x = [r[f].astype(np.float64) for r, f in zip(read, full, strict=True)]
            y = [of[f] for of, f in zip(y, full, strict=True)]
            shape, words = (first.shape[1] - 1,), len(vocabulary)
            remarks.append(f"a record is a full window of {shape[0]} of {words:,} tokens")
        else:
            raise NotApplicable(
                "games are played with records of features, or of tokens",
                code="unsuitable_records",
                expected="features or images (floating-point numbers), or a language model",
                got=f"examples of {first.dtype}",
                remedy="embed them first, and audit the embeddings as data of your own",
            )
        owner = np.concatenate([np.full(len(p), i) for i, p in enumerate(x)])
        return cls(np.concatenate(x), np.concatenate(y), owner, shape, words, remarks)


def numbers_of(universe: Universe, pool: Floats) -> tuple[Indices, Indices]:
    """The first record (N,) of `pool` that has each number of the universe, and the number (m,) of
    every record of `pool`, -1 for those that are not in it."""
    clean = np.ascontiguousarray(universe.channel.clean(pool) + 0.0)
    known = {row.tobytes(): i for i, row in enumerate(universe.values)}
    number = np.array([known.get(row.tobytes(), -1) for row in clean])
    first = np.empty(len(universe), dtype=np.int64)
    inside = np.flatnonzero(number >= 0)[::-1]
    first[number[inside]] = inside  # the last assignment is the first record
    return first, number
