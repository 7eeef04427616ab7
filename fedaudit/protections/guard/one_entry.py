"""Rows that read one input alone: W1 = [I; -I] and W_V = I of the known adversaries.

The share of a row's energy in its largest entry, which neither the order nor the scale of rows
changes. [ActiveMembership] Eq. (2), Algorithm 3
"""

from __future__ import annotations

import numpy as np

from fedaudit.protections.guard.tensors import FEW, Received, Score, needed, surprise

NAME, UNIT = "one_entry", 1.0


def check(model: Received) -> Score | None:
    """The surprise of the last of the rows that are needed, at its largest over all matrices."""
    best: Score | None = None
    for m in model.matrices:
        rows, n = m.units, m.rows.shape[1]
        if len(rows) < FEW or n < FEW:
            continue
        shares = np.sort(np.square(rows).max(axis=1))[::-1]
        k = needed(len(rows))
        share = float(shares[k - 1])
        value = float(surprise(share, n, n))
        if best is None or value > best.value:
            words = f"{k} or more rows of {n} have {share:.0%} of their energy in one entry"
            best = Score(value, m.where, words)
    return best
