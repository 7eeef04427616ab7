"""What differential privacy allows.

A trade-off curve of (epsilon, delta) is concave, so it also bounds pooled records whose own curves
differ.
"""

from __future__ import annotations

import math


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
