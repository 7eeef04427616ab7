"""Candidates of all clients as pools of equal length, with the random numbers of their scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fedaudit.audits.audit import Candidates

if TYPE_CHECKING:
    from fedaudit.audits.records.scoring import RecordBatch


def take_records(pools: RecordBatch, which: int, records: npt.NDArray[np.int64]) -> RecordBatch:
    """Some records of one pool, (n, ...)."""
    import torch

    from fedaudit.audits.records.scoring import RecordBatch

    rows = torch.from_numpy(records)
    noise = None if pools.noise is None else pools.noise[:, which][:, rows]
    return RecordBatch(pools.x[which][rows], pools.y[which][rows], noise)


def flatten_pools(pools: RecordBatch) -> RecordBatch:
    from fedaudit.audits.records.scoring import RecordBatch

    noise = None if pools.noise is None else pools.noise.flatten(1, 2)
    return RecordBatch(pools.x.flatten(0, 1), pools.y.flatten(0, 1), noise)


def pad_pools(
    pools: Sequence[Candidates], task: Any, draws: int, rng: np.random.Generator
) -> tuple[RecordBatch, npt.NDArray[np.bool_]]:
    """Pools of equal length (P, n, ...), and a mask (P, n) of the records that count.

    Short pools repeat their records; repeated ones do not count.
    """
    import torch

    from fedaudit.audits.records.scoring import RecordBatch

    longest = max(len(p) for p in pools)
    present = np.zeros((len(pools), longest), dtype=bool)
    x, y = [], []
    for i, pool in enumerate(pools):
        rows = torch.arange(longest) % len(pool)
        x.append(pool.x[rows])
        y.append(pool.y[rows])
        present[i, : len(pool)] = True
    noise = None
    if task.noise_shape() is not None:
        shape = (draws, len(pools), longest, *task.noise_shape())
        noise = torch.from_numpy(rng.standard_normal(shape).astype(np.float32))
    return RecordBatch(torch.stack(x), torch.stack(y), noise), present
