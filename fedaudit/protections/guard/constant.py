"""Rows whose entries are all alike (W2 = -1), and negative biases that are (b_O = -gamma).

The squared cosine with a vector of ones. A bias of zeros, or of one positive number, is how many
models begin, and counts for nothing: a threshold is negative.
[ActiveMembership] Eqs. (3, 8)
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from fedaudit.protections.guard.tensors import NEARLY_ZERO, Matrix, Received, Score, surprise

ROW, BIAS = "constant_row", "constant_bias"
UNIT = 35.0
"""Nats: a row of a published sentence encoder reaches 34, published plants 136 or more."""
SHORTEST = 8


def reach(n: int) -> float:
    """Of one row, or one bias, of n numbers: they are all the same, and other rows are zero."""
    return -math.inf if n < SHORTEST else float(surprise(1.0, n))


def row(m: Matrix) -> Score:
    """One row is enough: a detector is one neuron."""
    n = m.shape[1]
    if n < SHORTEST:
        return m.score(reach(n))
    if not len(m.units):
        return m.score(reach(n), 0.0, NEARLY_ZERO)
    share = float((np.square(m.units.sum(axis=1, dtype=np.float64)) / n).max())
    value = float(surprise(share, n, len(m.units)))
    return m.score(reach(n), value, f"a row of {n} is {share:.0%} one constant")


def biases(model: Received) -> Iterator[Score]:
    for _, b, _, empty in model.biases():
        n, top = len(b), float(np.abs(b).max(initial=0.0))
        empty = replace(empty, reach=reach(n))
        if n < SHORTEST:
            yield empty
            continue
        scaled = b / (top or 1.0)
        energy, total = float(np.square(scaled).sum()), float(scaled.sum())
        share = total**2 / n / energy if total < 0 else 0.0
        value = float(surprise(min(share, 1.0), n))
        words = f"{n} biases are {share:.0%} one negative constant, {float(b.mean()):.3g}"
        yield replace(empty, value=value, words=words)
