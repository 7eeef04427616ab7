"""Rows that have nothing to do with what they were one model ago.

Training moves all rows a little; planting writes some anew. For every row the cosine with itself in
the previous model, and of all rows the last of those that are needed.
"""

from __future__ import annotations

import numpy as np

from fedaudit.protections.guard.tensors import Received, Score, needed

NAME, UNIT = "rewritten", 0.02


def check(model: Received) -> Score | None:
    """1 - cosine, at its largest over all tensors; None without a previous model."""
    if model.previous is None:
        return None
    best: Score | None = None
    for name, now in model.tensors.items():
        if now.ndim < 2 or not now.size:
            continue
        a = now.reshape(len(now), -1).astype(np.float64)
        b = model.previous[name].reshape(len(now), -1).astype(np.float64)
        sizes = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
        same = (a == b).all(axis=1)
        # a row that became zero, or was zero, has no direction: half way between same and opposite
        cosines = np.where(sizes > 0, np.einsum("ij,ij->i", a, b) / np.maximum(sizes, 1e-300), 0.0)
        apart = 1.0 - np.where(same, 1.0, cosines)
        k = min(len(apart), needed(len(apart)))
        value = float(np.sort(apart)[::-1][k - 1])
        if best is None or value > best.value:
            words = f"{k} or more rows turned to a cosine of {1 - value:.2f} with what they were"
            best = Score(value, name, words)
    return best
