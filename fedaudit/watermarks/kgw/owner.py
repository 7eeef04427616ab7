"""The owner's test: scores of models under the owner's keys and under unused keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from fedaudit.arrays import Floats
from fedaudit.randomness import Seed
from fedaudit.watermarks.kgw.lists import GreenLists
from fedaudit.watermarks.kgw.mass import likely_mass
from fedaudit.watermarks.kgw.readings import GreenScore, ReadingMode
from fedaudit.watermarks.score import Reader, check_prompts


@dataclass(frozen=True, kw_only=True)
class GreenMarks:
    """The owner's test: scores of models under its `keys` and under unused keys.

    `probes`: texts (token numbers) that do not depend on these keys. `mode`: as in `GreenScore`.
    "mass" ignores tokens that a model finds unlikely, and weights a context by the square root of
    its frequency: models learn little after rare contexts, and the few most frequent ones would
    dominate. Neither rule depends on a key, so keys stay exchangeable.
    """

    reader: Reader
    lists: GreenLists
    keys: tuple[int, ...]
    probes: Sequence[Sequence[int]]
    mode: ReadingMode = "mass"
    steps: int = 24
    null_seed: int = 0
    apart: bool = field(default=False, init=False)
    linear: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        check_prompts(self.probes)
        _ = self._score  # runs its checks

    @cached_property
    def _score(self) -> GreenScore:
        return GreenScore(
            reader=self.reader,
            lists=self.lists,
            key=0,
            mode=self.mode,
            steps=self.steps,
            seed=Seed(self.null_seed),
        )

    def unused(self, count: int) -> tuple[int, ...]:
        """`count` keys without marked records, none of them the owner's."""
        drawn = Seed(self.null_seed).bits("marks/unused", np.arange(count + len(self.keys)))
        fresh = [int(k) for k in drawn if int(k) not in set(self.keys)]
        return tuple(fresh[:count])

    def statistics(self, rows: Any, unused: int) -> Floats:
        """Scores (M, keys + unused) of models (M, d): the owner's keys first."""
        keys = (*self.keys, *self.unused(unused))
        if self.mode != "mass":
            return self._score.by_key(rows, self.probes, keys)
        contexts, counts, p = self._score.tally(rows, self.probes)
        return likely_mass(self.lists, keys, contexts, p, weights=np.sqrt(counts))
