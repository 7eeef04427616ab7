"""Inputs of a linear layer from its update: x = dW_u / db_u. [Geiping] Proposition 3.1

Every record adds (its error at unit u) times (its input, 1) to the row (dW_u, db_u). Where one
record alone drives a unit, the ratio is that record, whatever the error, the learning rate and the
number of local steps. Where several do, it is their mean, weighted by their errors.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fedaudit.arrays import Bools, Floats
from fedaudit.stats.bias_ratios import ratios

MARGIN = 0.05
"""Part of a column's range, or of the usual column's, by which a record may exceed it."""
INSIDE = 0.95
"""Share of columns inside the range from which on a ratio looks like a record."""


def plausible(x: Floats, low: Floats, high: Floats) -> Bools:
    """Which rows of x (..., D) lie in the range of records, but for a few columns."""
    wide = high - low
    usual = float(np.median(wide[wide > 0])) if (wide > 0).any() else 1e-12
    # a constant column has no range of its own, and noise moves it too
    margin = MARGIN * np.maximum(wide, usual)
    inside = (x >= low - margin) & (x <= high + margin)
    return np.asarray(inside.mean(axis=-1) >= INSIDE)


def distinct(
    x: Floats, order: npt.NDArray[np.int64], near: float, most: int
) -> npt.NDArray[np.int64]:
    """Indices of at most `most` rows of x (n, D), in the given order, without near doubles.

    Two rows are doubles if their distance is below `near`.
    """
    kept: list[int] = []
    for i in order:
        if len(kept) == most:
            break
        if not kept or np.square(x[kept] - x[i]).sum(axis=1).min() > near**2:
            kept.append(int(i))
    return np.array(kept, dtype=np.int64)


def candidates(
    weight: npt.NDArray[np.float32],
    bias: npt.NDArray[np.float32],
    low: Floats,
    high: Floats,
    *,
    smallest: float,
    most: int,
) -> list[Floats]:
    """Guesses (m, D) for each row of updates (K, h, D) and (K, h), the strongest units first."""
    x, usable = ratios(weight, bias, smallest)
    good = usable & plausible(x, low, high)
    near = 1e-3 * float(np.linalg.norm(high - low))
    out = []
    for row, change, fits in zip(x, np.abs(bias), good, strict=True):
        order = np.flatnonzero(fits)
        order = order[np.argsort(-change[order], kind="stable")]
        out.append(np.clip(row[distinct(row, order, near, most)], low, high))
    return out
