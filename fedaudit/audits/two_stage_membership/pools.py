"""Candidates of all clients side by side: pools of equal length, and their scores' own draws."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fedaudit.audits.audit import Candidates

if TYPE_CHECKING:
    from fedaudit.audits.two_stage_membership.scoring import Asked


def pools_of(pools: Asked, which: int, records: npt.NDArray[np.int64]) -> Asked:
    """Some records of one pool, (n, ...)."""
    import torch

    from fedaudit.audits.two_stage_membership.scoring import Asked as Records

    rows = torch.from_numpy(records)
    noise = None if pools.noise is None else pools.noise[:, which][:, rows]
    return Records(pools.x[which][rows], pools.y[which][rows], noise)


def flat(pools: Asked) -> Asked:
    from fedaudit.audits.two_stage_membership.scoring import Asked as Records

    noise = None if pools.noise is None else pools.noise.flatten(1, 2)
    return Records(pools.x.flatten(0, 1), pools.y.flatten(0, 1), noise)


def padded(
    pools: Sequence[Candidates], task: Any, draws: int, rng: np.random.Generator
) -> tuple[Asked, npt.NDArray[np.bool_]]:
    """Pools of equal length (P, n, ...): short ones repeat their records, which are not counted."""
    import torch

    from fedaudit.audits.two_stage_membership.scoring import Asked as Records

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
    return Records(torch.stack(x), torch.stack(y), noise), present
