"""Rows that read one input alone: W1 = [I; -I] and W_V = I of the known adversaries.

The share of a row's energy in its largest entry, which neither the order nor the scale of rows
changes. [ActiveMembership] Eq. (2), Algorithm 3
"""

from __future__ import annotations

import numpy as np

from fedaudit.protections.guard.tensors import FEW, Matrix, Score, needed, surprise

NAME, UNIT = "one_entry", 32.0


def check(m: Matrix) -> Score | None:
    """The surprise of the last of the rows that are needed."""
    rows, n = m.units, m.shape[1]
    if len(rows) < FEW or n < FEW:
        return None
    k = needed(len(rows))
    share = float(np.sort(np.square(rows).max(axis=1))[-k])
    words = f"{k} or more rows of {n} have {share:.0%} of their energy in one entry"
    return m.score(float(surprise(share, n, n)), words)
