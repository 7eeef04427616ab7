"""Rows that are others with the opposite sign ([I; -I]), and rows that stand twice (equal heads).

For every row its most opposite and its most similar other row in the same matrix, by cosine. How
surprising that is depends on how many directions the rows have at all: those of an adapter that
began at zero, of positions or of small filters lie in a few, and are close to each other without
anybody's doing. [ActiveMembership] Eq. (2), Algorithm 3
"""

from __future__ import annotations

import numpy as np

from fedaudit.protections.guard.tensors import (
    FEW,
    MOST,
    Floats,
    Matrix,
    Score,
    needed,
    surprise,
)

UNIT = 32.0
"""Nats: layers of published models reach 33 (a sentence encoder), published plants 60 to 140."""
MIRRORED, REPEATED = "mirrored", "repeated"
WORDS = ("have a mirror image", "stand twice")
_BLOCK = 512


def extremes(rows: Floats) -> tuple[Floats, Floats, float]:
    """The smallest and the largest cosine (r,) of each row (r, n) of length 1 to another one, and
    the mean squared cosine of all pairs."""
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


def both(m: Matrix) -> tuple[Score | None, Score | None]:
    """Mirrored and repeated rows."""
    rows, n = _thinned(m.units), m.shape[1]
    if len(rows) < FEW or n < FEW:
        return None, None
    k = needed(len(rows))
    low, high, mean_square = extremes(rows)
    # random directions of n dimensions have a mean squared cosine of 1 / n
    directions = min(float(n), 1.0 / mean_square) if mean_square > 0 else float(n)
    out = []
    for i, cosines in enumerate((-low, high)):
        c = max(0.0, float(np.sort(cosines)[-k]))
        value = float(surprise(c * c, directions, len(rows)))
        out.append(m.score(value, f"{k} or more rows {WORDS[i]} (cosine {(-c, c)[i]:.2f})"))
    return out[0], out[1]


def _thinned(rows: Floats) -> Floats:
    """At most `MOST` rows, drawn alike every time: pairs of them cost the square."""
    if len(rows) <= MOST:
        return rows
    kept = np.random.default_rng(0).choice(len(rows), MOST, replace=False)
    return np.asarray(rows[np.sort(kept)])
