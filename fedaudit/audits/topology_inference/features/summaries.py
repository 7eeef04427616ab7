"""Features over rounds: mean, deviation, trend and last value of signals, and whole sequences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from fedaudit.arrays import Floats
from fedaudit.audits.topology_inference.features.names import (
    NORM,
    TO_MEAN,
    TO_NEIGHBOURS,
    UPDATE_NORM,
    is_published,
)
from fedaudit.audits.topology_inference.features.signals import Signals32
from fedaudit.trace import View

Which = Literal["all", "published", "own", "neighbours"]

WHOLE_SEQUENCE = (NORM, TO_NEIGHBOURS, UPDATE_NORM, TO_MEAN)
SUMMARIES = ("mean", "std", "trend", "last")


def summarise(
    values: Signals32, names: Sequence[str], *, rounds: int | None = None, which: Which = "all"
) -> tuple[npt.NDArray[np.float32], tuple[str, ...]]:
    """(..., T, n, S) to features (..., n, D) of the first `rounds` rounds, and their names.

    `which`: all signals, those of the paper's list, those that need no graph, or the one that does.
    Columns without any value (a cosine to neighbours without edges) are left out.
    """
    wanted: dict[str, Callable[[str], bool]] = {
        "all": lambda name: True,
        "published": is_published,
        "own": lambda name: name != TO_NEIGHBOURS,
        "neighbours": lambda name: name == TO_NEIGHBOURS,
    }
    keep = [i for i, name in enumerate(names) if wanted[which](name)]
    x = values[..., :rounds, :, :][..., keep].astype(np.float64)
    chosen = [names[i] for i in keep]
    there = np.isfinite(x)
    count = there.sum(axis=-3)
    filled = np.where(there, x, 0.0)
    mean = _over(filled.sum(axis=-3), count)
    spread = np.where(there, x - mean[..., None, :, :], 0.0)
    std = np.sqrt(_over(np.square(spread).sum(axis=-3), count))
    at = np.arange(x.shape[-3], dtype=np.float64)[:, None, None]
    centre = _over((at * there).sum(axis=-3), count)
    away = np.where(there, at - centre[..., None, :, :], 0.0)
    slope = _over((away * spread).sum(axis=-3), np.square(away).sum(axis=-3))
    slope = np.where(count == 1, 0.0, slope)
    latest = x.shape[-3] - 1 - np.argmax(np.flip(there, axis=-3), axis=-3)
    last = np.take_along_axis(x, latest[..., None, :, :], axis=-3)[..., 0, :, :]
    blocks = [mean, std, slope, last]
    labels = [f"{what}, {name}" for what in SUMMARIES for name in chosen]
    for name in WHOLE_SEQUENCE:
        if name in chosen:
            blocks.append(np.moveaxis(x[..., chosen.index(name)], -2, -1))
            labels += [f"{name}, round {t + 1}" for t in range(x.shape[-3])]
    out = np.concatenate(blocks, axis=-1).astype(np.float32)
    known = np.isfinite(out).reshape(-1, out.shape[-1]).any(axis=0)
    return out[..., known], tuple(labels[i] for i in np.flatnonzero(known))


def _over(total: Floats, count: npt.NDArray[Any]) -> Floats:
    """total / count, NaN where nothing was counted."""
    return np.divide(total, count, out=np.full(total.shape, np.nan), where=count > 0)


def noise_column(view: View, n: int) -> Floats | None:
    """(n, 1) declared noise multipliers if they differ between clients.

    They are public, so that even A1, the adversary who sees updates alone, has them.
    """
    for declared in view.declared:
        z = declared.get("noise_multiplier")
        if isinstance(z, list | tuple) and len(z) == n and len(set(z)) > 1:
            return np.array(z, dtype=np.float64)[:, None]
    return None
