"""Closed forms: what one unit tells, and the ceiling that differential privacy sets."""

from __future__ import annotations

from collections.abc import Callable


def ceiling(prior_success: float, most_true_positives: Callable[[float], float]) -> float:
    """Largest share of records that any attack can rebuild. [Hayes] Theorem 2, [Balle] Theorem 4

    `prior_success`: share that a guess without the training rebuilds (kappa).
    `most_true_positives`: false-positive rate -> largest true-positive rate of any membership test
    on the same release, the trade-off curve of its guarantee. Assumes that records are independent
    draws from what the guess without training knows.
    """
    if not 0.0 <= prior_success <= 1.0:
        raise ValueError(f"a share lies between 0 and 1, got {prior_success}")
    return min(1.0, max(prior_success, most_true_positives(prior_success)))


def records_to_show(share: float, power: float, confidence: float) -> int:
    """Records asked about so that a share of them rebuilt is significant with this power."""
    from scipy.stats import binom

    hits = records_for_level((1.0 - confidence) / 2.0)
    count = hits
    while binom.sf(hits - 1, count, share) < power:
        count += max(1, count // 100)
    return count


def records_for_level(level: float) -> int:
    """Fewest rebuilt records that rule out chance if no other record was hit.

    Each is equally likely a member or its twin that nobody trained on: 2^-h <= level.
    """
    count = 1
    while 0.5**count > level:
        count += 1
    return count
