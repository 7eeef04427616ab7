"""Closed forms for the mean of Gaussians."""

from __future__ import annotations

import math


def gaussian_auc(shift: float) -> float:
    """AUC of the likelihood ratio of N(0, 1) and N(shift, 1): Phi(shift / sqrt 2)."""
    return 0.5 * math.erfc(-shift / 2.0)


def mean_shift(records: int, dimensions: int) -> float:
    """Shift of the likelihood ratio's normal law for the mean of n records of N(0, I_d).

    With the record x, the released mean is N(x / n, (n - 1) / n^2 I); without it N(0, I / n). For
    large n the law is that of a shift of |x| / sqrt(n), and |x| is about sqrt(d).
    """
    return math.sqrt(dimensions / records)
