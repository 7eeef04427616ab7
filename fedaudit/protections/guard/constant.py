"""Rows whose entries are all alike (W2 = -1), and biases that are (b_O = -gamma).

The squared cosine with a vector of ones. A bias of zeros is how many models begin, and counts for
nothing. [ActiveMembership] Eqs. (3, 8)
"""

from __future__ import annotations

import numpy as np

from fedaudit.protections.guard.tensors import Received, Score, surprise

ROW, BIAS = "constant_row", "constant_bias"
UNIT = 1.0
SHORTEST = 8


def rows(model: Received) -> Score | None:
    """One row is enough: a detector is one neuron."""
    best: Score | None = None
    for m in model.matrices:
        n = m.rows.shape[1]
        if n < SHORTEST or not len(m.units):
            continue
        share = float((np.square(m.units.sum(axis=1)) / n).max())
        value = float(surprise(share, n, len(m.units)))
        if best is None or value > best.value:
            best = Score(value, m.where, f"a row of {n} is {share:.0%} one constant")
    return best


def bias(model: Received) -> Score | None:
    best: Score | None = None
    for name, b, _ in model.biases():
        n, energy = len(b), float(np.square(b, dtype=np.float64).sum())
        if n < SHORTEST:
            continue
        share = float(b.sum(dtype=np.float64)) ** 2 / n / energy if energy > 0 else 0.0
        value = float(surprise(min(share, 1.0), n))
        if best is None or value > best.value:
            words = f"{n} biases are {share:.0%} one constant, {float(b.mean()):.3g}"
            best = Score(value, name, words)
    return best
