"""Closed forms: the mean of Gaussians, and what differential privacy allows.

A trade-off curve of (epsilon, delta) is concave, so it also bounds pooled records whose own curves
differ.
"""

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


def largest_rate(epsilon: float, delta: float, false_positives: float) -> float:
    """Largest true-positive rate of any test at a false-positive rate, under (epsilon, delta)."""
    steep = 1.0 if epsilon > 700 else math.exp(epsilon) * false_positives + delta
    flat = 1.0 - math.exp(-epsilon) * (1.0 - delta - false_positives)
    return max(false_positives, min(1.0, steep, flat))


def largest_auc(epsilon: float, delta: float) -> float:
    """Area under the curve of `largest_rate`."""
    corner = (1.0 - delta) * math.exp(-epsilon) / (1.0 + math.exp(-epsilon))
    height, end = 1.0 - corner, 1.0 - delta
    return 0.5 * (delta + height) * corner + 0.5 * (height + 1.0) * (end - corner) + delta


def largest_advantage(epsilon: float, delta: float) -> float:
    """Largest true-positive minus false-positive rate: tanh(epsilon / 2) and the part of delta."""
    corner = (1.0 - delta) * math.exp(-epsilon) / (1.0 + math.exp(-epsilon))
    return largest_rate(epsilon, delta, corner) - corner
