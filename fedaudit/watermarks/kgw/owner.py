"""The owner of marks: models under the owner's own keys, beside keys that nobody marked with."""

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
from fedaudit.watermarks.kgw.readings import GreenScore, Reads
from fedaudit.watermarks.score import Reader, check_prompts


@dataclass(frozen=True, kw_only=True)
class GreenMarks:
    """The owner at its desk: scores of models under its `keys`, and under unused ones.

    `probes` are texts (token numbers) that do not depend on these keys; `mode` as in `GreenScore`.
    "mass" leaves out tokens that a model finds unlikely, and weighs a context by the square root of
    how often it occurs: after a rare one nobody learnt much, the few most frequent would drown the
    others. Neither depends on a key, so that keys stay exchangeable.
    """

    reader: Reader
    lists: GreenLists
    keys: tuple[int, ...]
    probes: Sequence[Sequence[int]]
    mode: Reads = "mass"
    steps: int = 24
    null_seed: int = 0
    apart: bool = field(default=False, init=False)
    linear: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        check_prompts(self.probes)
        _ = self._score  # its checks, at birth

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

    def unused(self, many: int) -> tuple[int, ...]:
        """Keys that nobody marked with, other than the owner's."""
        drawn = Seed(self.null_seed).bits("marks/unused", np.arange(many + len(self.keys)))
        fresh = [int(k) for k in drawn if int(k) not in set(self.keys)]
        return tuple(fresh[:many])

    def statistics(self, rows: Any, unused: int) -> Floats:
        """Scores (M, keys + unused) of models (M, d): the owner's keys first."""
        keys = (*self.keys, *self.unused(unused))
        if self.mode != "mass":
            return self._score.by_key(rows, self.probes, keys)
        contexts, counts, p = self._score.tally(rows, self.probes)
        return likely_mass(self.lists, keys, contexts, p, weights=np.sqrt(counts))
