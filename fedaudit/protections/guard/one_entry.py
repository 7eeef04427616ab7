"""Check for rows that read a single input: W1 = [I; -I] and W_V = I of the known adversaries.

The value is the share of a row's energy in its largest entry; it does not depend on the order or
scale of rows. [ActiveMembership] Eq. (2), Algorithm 3
"""

from __future__ import annotations

import math

import numpy as np

from fedaudit.protections.guard.tensors import (
    FEW,
    NEARLY_ZERO,
    CheckScore,
    Matrix,
    needed,
    surprise,
)

NAME, UNIT = "one_entry", 32.0


def reach(rows: int, n: int) -> float:
    """Largest value of R rows of n numbers: every non-zero row has one entry."""
    return -math.inf if min(rows, n) < FEW else float(surprise(1.0, n, n))


def check(m: Matrix) -> CheckScore:
    """The surprise of the weakest of the rows that must look planted."""
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
