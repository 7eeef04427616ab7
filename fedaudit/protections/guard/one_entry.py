"""Rows that read one input alone: W1 = [I; -I] and W_V = I of the known adversaries.

The share of a row's energy in its largest entry, which neither the order nor the scale of rows
changes. [ActiveMembership] Eq. (2), Algorithm 3
"""

from __future__ import annotations

import math

import numpy as np

from fedaudit.protections.guard.tensors import (
    FEW,
    NEARLY_ZERO,
    Matrix,
    Score,
    needed,
    surprise,
)

NAME, UNIT = "one_entry", 32.0


def reach(rows: int, n: int) -> float:
    """Of R rows of n: every row that is not zero has one entry."""
    return -math.inf if min(rows, n) < FEW else float(surprise(1.0, n, n))


def check(m: Matrix) -> Score:
    """The surprise of the last of the rows that are needed."""
    rows, n = m.units, m.shape[1]
    most = reach(*m.shape)
    if most == -math.inf:
        return m.score(most)
    if len(rows) < FEW:
        return m.score(most, 0.0, NEARLY_ZERO)
    k = needed(len(rows))
    share = float(np.sort(np.square(rows).max(axis=1))[-k])
    words = f"{k} or more rows of {n} have {share:.0%} of their energy in one entry"
    return m.score(most, float(surprise(share, n, n)), words)
