"""True records beside what was rebuilt of them: for the eyes of their owners only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedaudit.arrays import Floats
from fedaudit.audits.reconstruction.scores import Asked


@dataclass(frozen=True)
class RebuiltPairs:
    """Training records `true` (m, D), their nearest guesses `rebuilt` (m, D), the closest first.

    `client` (m,) whose they are, `distance` (m,) in usual distances, `low` and `high` (D,) of the
    adversary's own records, `shape` of one record.
    """

    true: Floats
    rebuilt: Floats
    client: tuple[str, ...]
    distance: Floats
    low: Floats
    high: Floats
    shape: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.true)


def closest_pairs(
    nearest: Floats,
    distance: Floats,
    asked: Asked,
    parties: Sequence[str],
    *,
    ranges: tuple[Floats, Floats],
    shape: tuple[int, ...],
    most: int,
) -> RebuiltPairs:
    """The training records whose nearest guess (n, D) is closest (n,), at most `most`."""
    known = np.flatnonzero(asked.member & np.isfinite(distance))
    chosen = known[np.argsort(distance[known], kind="stable")[:most]]
    return RebuiltPairs(
        true=asked.x[chosen],
        rebuilt=nearest[chosen],
        client=tuple(parties[i] for i in asked.owner[chosen]),
        distance=distance[chosen],
        low=ranges[0],
        high=ranges[1],
        shape=shape,
    )
