"""Rows that are others with the opposite sign ([I; -I]), and rows that stand twice (equal heads).

For every row its most opposite and its most similar other row in the same matrix, by cosine.
[ActiveMembership] Eq. (2), Algorithm 3
"""

from __future__ import annotations

import numpy as np

from fedaudit.protections.guard.tensors import (
    FEW,
    MOST,
    Floats,
    Received,
    Score,
    needed,
    surprise,
)

UNIT = 1.0
MIRRORED, REPEATED = "mirrored", "repeated"
WORDS = ("have a mirror image", "stand twice")
_BLOCK = 512


def extremes(rows: Floats) -> tuple[Floats, Floats]:
    """The smallest and the largest cosine (r,) of each row (r, n) of length 1 to another one."""
    low, high = np.empty(len(rows)), np.empty(len(rows))
    for start in range(0, len(rows), _BLOCK):
        part = rows[start : start + _BLOCK]
        cosines = part @ rows.T
        own = np.arange(len(part))
        cosines[own, start + own] = 0.0
        low[start : start + len(part)] = cosines.min(axis=1)
        high[start : start + len(part)] = cosines.max(axis=1)
    return low, high


def both(model: Received) -> tuple[Score | None, Score | None]:
    """Mirrored and repeated rows, each at its largest over all matrices."""
    best: list[Score | None] = [None, None]
    for m in model.matrices:
        rows, n = _thinned(m.units), m.rows.shape[1]
        if len(rows) < FEW or n < FEW:
            continue
        k = needed(len(rows))
        low, high = extremes(rows)
        for i, cosines in enumerate((-low, high)):
            c = max(0.0, float(np.sort(cosines)[::-1][k - 1]))
            value = float(surprise(c * c, n, len(rows)))
            before = best[i]
            if before is None or value > before.value:
                words = f"{k} or more rows {WORDS[i]} (cosine {(-c, c)[i]:.2f})"
                best[i] = Score(value, m.where, words)
    return best[0], best[1]


def _thinned(rows: Floats) -> Floats:
    """At most `MOST` rows, drawn alike every time: pairs of them cost the square."""
    if len(rows) <= MOST:
        return rows
    kept = np.random.default_rng(0).choice(len(rows), MOST, replace=False)
    return np.asarray(rows[np.sort(kept)])
