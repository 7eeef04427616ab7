"""Checks for mirrored rows ([I; -I]) and repeated rows (equal heads).

For every row: the most opposite and the most similar other row of the same matrix, by cosine. The
surprise depends on how many directions the rows span: rows of new adapters, positions or small
filters span few, and are close to each other in honest models too. [ActiveMembership] Eq. (2),
Algorithm 3
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from fedaudit.protections.guard.tensors import (
    CLOSE,
    FEW,
    MOST,
    NEARLY_ZERO,
    SHARE,
    CheckScore,
    Matrix,
    WeightArray,
    needed,
    surprise,
)

UNIT = 32.0
"""Nats: layers of published models reach 33 (a sentence encoder), published plants 60 to 140."""
MIRRORED, REPEATED = "mirrored", "repeated"
WORDS = ("have a mirror image", "are repeated")
_BLOCK = 512
WholeNumbers = npt.NDArray[np.integer[Any]]


def extremes(rows: WeightArray) -> tuple[WeightArray, WeightArray, float]:
    """The smallest and largest cosine (r,) of each unit row (r, n) with another row, and the mean
    squared cosine of all pairs."""
    low, high = np.zeros(len(rows)), np.zeros(len(rows))
    total = 0.0
    for start in range(0, len(rows), _BLOCK):
        end = min(start + _BLOCK, len(rows))
        cosines = rows[start:end] @ rows[start:].T  # every pair once: the rest is its mirror
        own = np.arange(end - start)
        cosines[own, own] = 0.0
        among, later = cosines[:, : end - start], cosines[:, end - start :]
        low[start:end] = np.minimum(low[start:end], cosines.min(axis=1))
        high[start:end] = np.maximum(high[start:end], cosines.max(axis=1))
        if later.size:
            low[end:] = np.minimum(low[end:], later.min(axis=0))
            high[end:] = np.maximum(high[end:], later.max(axis=0))
        total += float(np.einsum("ij,ij->", among, among, dtype=np.float64))
        total += 2.0 * float(np.einsum("ij,ij->", later, later, dtype=np.float64))
    pairs = len(rows) * (len(rows) - 1)
    return low, high, total / pairs if pairs else 0.0


def reach(rows: int, n: int) -> float:
    """Largest value of R rows of n numbers: the required pairs, all other rows far apart.

    Maximised over the number r of non-zero rows. Two rows with cosine c contribute to the sum of
    squared cosines like two orthogonal directions, of 1 + c and of 1 - c rows; `_least_squares`
    gives the smallest such sum.
    """
    if min(rows, n) < FEW:
        return -math.inf
    r = np.arange(FEW, min(rows, MOST) + 1)
    pairs = (np.maximum(FEW, r // SHARE) + 1) // 2  # rows as in `needed`
    squares = _least_squares(r, pairs, n)
    directions = np.minimum(n, r * (r - 1) / squares)
    return float(surprise(1.0 - CLOSE, directions, r).max())


def _least_squares(r: WholeNumbers, pairs: WholeNumbers, n: int) -> WeightArray:
    """The least sum of squared cosines between distinct rows, of r rows of n numbers with `pairs`
    pairs whose squared cosine is 1 - CLOSE.

    Weights w (1 + c and 1 - c for a pair, 1 for other rows) in n dimensions: from the heaviest on,
    each gets its own dimension as long as it exceeds the mean of the rest; the rest spreads evenly.
    Benedetto and Fickus (2003), Casazza et al. (2006).
    """
    c = math.sqrt(1.0 - CLOSE)
    heavy = pairs * (1 + c) ** 2
    room = np.maximum(n - pairs, 1)
    spread = heavy + (r - pairs * (1 + c)) ** 2 / room
    left = np.maximum(n - r + pairs, 1)
    tight = heavy + (r - 2 * pairs) + (pairs * (1 - c)) ** 2 / left
    apart = r + 2 * pairs * c**2
    total = np.select(
        [r <= n, r >= n * (1 + c), r >= n + pairs * c], [apart, r * r / n, spread], tight
    )
    return np.asarray(total - r)


def both(m: Matrix) -> tuple[CheckScore, CheckScore]:
    """Mirrored and repeated rows."""
    rows, n = _thinned(m.units), m.shape[1]
    most = reach(*m.shape)
    if most == -math.inf:
        return m.score(most), m.score(most)
    if len(rows) < FEW:
        return m.score(most, 0.0, NEARLY_ZERO), m.score(most, 0.0, NEARLY_ZERO)
    k = needed(len(rows))
    low, high, mean_square = extremes(rows)
    # random directions of n dimensions have a mean squared cosine of 1 / n
    directions = min(float(n), 1.0 / mean_square) if mean_square > 0 else float(n)
    out = []
    for i, cosines in enumerate((-low, high)):
        c = max(0.0, float(np.sort(cosines)[-k]))
        value = float(surprise(c * c, directions, len(rows)))
        out.append(m.score(most, value, f"{k} or more rows {WORDS[i]} (cosine {(-c, c)[i]:.2f})"))
    return out[0], out[1]


def _thinned(rows: WeightArray) -> WeightArray:
    """At most `MOST` rows, the same ones every time: the cost grows with their square."""
    if len(rows) <= MOST:
        return rows
    kept = np.random.default_rng(0).choice(len(rows), MOST, replace=False)
    return np.asarray(rows[np.sort(kept)])
