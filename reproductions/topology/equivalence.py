"""Two one-sided tests (TOST): is a difference shown to be smaller than a margin?

A large p-value of an ordinary test says "not shown to differ". Here a small p-value says "shown
to be practically equal": it rejects every difference of at least the margin.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedaudit.arrays import Floats
from fedaudit.errors import UsageError
from fedaudit.results import Estimate, Underpowered
from fedaudit.stats.intervals import check_confidence


@dataclass(frozen=True, kw_only=True)
class Equivalence:
    """The outcome of two one-sided tests.

    `difference` is mean(first) - mean(second) with the interval of level 1 - 2 alpha, which lies
    inside (-margin, margin) exactly when `equivalent` holds at level alpha. `difference_p_value`
    is that of the ordinary two-sided t-test, for comparison.
    """

    difference: Estimate
    margin: float
    p_value: float
    difference_p_value: float
    equivalent: bool


def paired(
    first: npt.ArrayLike, second: npt.ArrayLike, margin: float, *, confidence: float = 0.95
) -> Equivalence | Underpowered:
    """Equivalence of two measurements (n,) of the same n units, within `margin`.

    [TopologyAwareDP] Section VI-B uses it for accuracy with and without noise allocation.
    """
    a, b = _samples(first, second, margin)
    alpha = _error_rate(confidence)
    if a.shape != b.shape:
        raise UsageError(
            "paired measurements come in pairs",
            expected="two vectors of equal length",
            got=f"{len(a)} and {len(b)} values",
            remedy="use `two_sample` for unpaired measurements",
        )
    if len(a) < 2:
        return Underpowered(what="a paired equivalence test", have=len(a), needed=2)
    d = a - b
    if np.ptp(d) == 0.0:
        return _without_spread(float(d[0]), margin, alpha, len(d))
    from statsmodels.stats.weightstats import DescrStatsW

    stats = DescrStatsW(d)
    low, high = stats.tconfint_mean(alpha=2 * alpha)
    p_value = stats.ttost_mean(-margin, margin)[0]
    return _outcome(
        float(d.mean()), float(low), float(high), len(d), margin, alpha,
        float(p_value), float(stats.ttest_mean(0.0)[1]), "paired t",
    )  # fmt: skip


def two_sample(
    first: npt.ArrayLike, second: npt.ArrayLike, margin: float, *, confidence: float = 0.95
) -> Equivalence | Underpowered:
    """Equivalence of the means of two independent samples (n,) and (m,), variances unequal."""
    a, b = _samples(first, second, margin)
    alpha = _error_rate(confidence)
    if min(len(a), len(b)) < 2:
        return Underpowered(what="an equivalence test", have=min(len(a), len(b)), needed=2)
    if np.ptp(a) == 0.0 and np.ptp(b) == 0.0:
        return _without_spread(float(a[0] - b[0]), margin, alpha, len(a) + len(b))
    from statsmodels.stats.weightstats import CompareMeans, DescrStatsW

    stats = CompareMeans(DescrStatsW(a), DescrStatsW(b))
    low, high = stats.tconfint_diff(alpha=2 * alpha, usevar="unequal")
    p_value = stats.ttost_ind(-margin, margin, usevar="unequal")[0]
    return _outcome(
        float(a.mean() - b.mean()), float(low), float(high), len(a) + len(b), margin, alpha,
        float(p_value), float(stats.ttest_ind(usevar="unequal")[1]), "Welch t",
    )  # fmt: skip


def _outcome(
    difference: float,
    low: float,
    high: float,
    n: int,
    margin: float,
    alpha: float,
    p_value: float,
    difference_p_value: float,
    method: str,
) -> Equivalence:
    return Equivalence(
        difference=Estimate(
            value=difference,
            low=low,
            high=high,
            n=n,
            confidence=1.0 - 2.0 * alpha,
            baseline=0.0,
            method=method,
        ),
        margin=margin,
        p_value=p_value,
        difference_p_value=difference_p_value,
        equivalent=p_value <= alpha,
    )


def _without_spread(difference: float, margin: float, alpha: float, n: int) -> Equivalence:
    """All differences equal: t statistics are 0/0, and the answer is plain."""
    return _outcome(
        difference, difference, difference, n, margin, alpha,
        0.0 if abs(difference) < margin else 1.0,
        1.0 if difference == 0.0 else 0.0,
        "no spread",
    )  # fmt: skip


def _error_rate(confidence: float) -> float:
    """1 - confidence, below one half: an interval of level 1 - 2 alpha must exist."""
    alpha = check_confidence(confidence)
    if alpha >= 0.5:
        raise UsageError(
            "an equivalence test needs an error rate below one half",
            expected="confidence above 0.5",
            got=repr(confidence),
            remedy="leave the default of 0.95",
        )
    return alpha


def _samples(first: npt.ArrayLike, second: npt.ArrayLike, margin: float) -> tuple[Floats, Floats]:
    a, b = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if a.ndim != 1 or b.ndim != 1 or not (np.isfinite(a).all() and np.isfinite(b).all()):
        raise UsageError(
            "an equivalence test compares two samples",
            expected="two vectors of finite numbers",
            got=f"shapes {a.shape} and {b.shape}",
            remedy="average repeated measurements of one unit first",
        )
    if not (margin > 0.0 and math.isfinite(margin)):
        raise UsageError(
            "the margin is the smallest difference that matters",
            expected="a positive number in the unit of the measurements",
            got=repr(margin),
            remedy="0.005 for half a percentage point of an accuracy between 0 and 1",
        )
    return a, b
