"""Checks for rows of one constant (W2 = -1) and for constant negative biases (b_O = -gamma).

The value is the squared cosine with a vector of ones. Biases of zeros or of one positive number do
not count: many models start that way, and a planted threshold is negative. [ActiveMembership] Eqs.
(3, 8)
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from fedaudit.protections.guard.tensors import NEARLY_ZERO, CheckScore, Matrix, Received, surprise

ROW, BIAS = "constant_row", "constant_bias"
UNIT = 35.0
"""Nats: a row of a published sentence encoder reaches 34, published plants 136 or more."""
SHORTEST = 8


def reach(n: int) -> float:
    """Largest value of a row or bias of n numbers: all equal, and all other rows zero."""
    return -math.inf if n < SHORTEST else float(surprise(1.0, n))


def row(m: Matrix) -> CheckScore:
    """The most constant row: a detector may be a single neuron."""
    n = m.shape[1]
    if n < SHORTEST:
        return m.score(reach(n))
    if not len(m.units):
        return m.score(reach(n), 0.0, NEARLY_ZERO)
    share = float((np.square(m.units.sum(axis=1, dtype=np.float64)) / n).max())
    value = float(surprise(share, n, len(m.units)))
    return m.score(reach(n), value, f"a row of {n} is {share:.0%} one constant")


def biases(model: Received) -> Iterator[CheckScore]:
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
