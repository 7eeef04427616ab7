"""A lower bound on epsilon from a distinguishing game.

If a mechanism is (epsilon, delta)-DP, every test of "record in" against "record out" obeys
TPR <= e^epsilon FPR + delta and TNR <= e^epsilon FNR + delta. The counts of an attack therefore
refute every smaller epsilon, at the stated confidence. Games must be independent.

A threshold chosen on the same games would refute too much. `from_scores` therefore chooses it on
one half and measures on the other. `from_counts` takes calls fixed beforehand, and the number of
sets of calls that were tried.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from fedaudit.arrays import Floats
from fedaudit.errors import UsageError
from fedaudit.results import Estimate, Underpowered
from fedaudit.settings import Count, ShareBelowOne, require
from fedaudit.stats.intervals import check_confidence, clopper_pearson_bounds
from fedaudit.stats.roc import split


def _log_ratio(share: Floats, delta: float, other: Floats) -> Floats:
    """max(0, ln((share - delta) / other)); infinite where `other` is zero and `share` is not."""
    top = np.maximum(share - delta, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.log(top) - np.log(other)
    return np.where(top <= 0.0, 0.0, np.maximum(ratio, 0.0))


def lower_bounds(
    true_positives: npt.ArrayLike,
    members: npt.ArrayLike,
    false_positives: npt.ArrayLike,
    nonmembers: npt.ArrayLike,
    *,
    delta: float,
    tail: float,
) -> Floats:
    """Lower bounds on epsilon, each wrong with probability at most `tail`; vectorised.

    Two one-sided Clopper-Pearson bounds share `tail` evenly. FNR = 1 - TPR and TNR = 1 - FPR, so
    both directions of the test use the same two events: taking the larger bound costs nothing.
    """
    tpr_low, _ = clopper_pearson_bounds(true_positives, members, tail / 2)
    _, fpr_high = clopper_pearson_bounds(false_positives, nonmembers, tail / 2)
    return np.maximum(
        _log_ratio(tpr_low, delta, fpr_high), _log_ratio(1 - fpr_high, delta, 1 - tpr_low)
    )


def from_counts(
    true_positives: int,
    members: int,
    false_positives: int,
    nonmembers: int,
    *,
    delta: float = 0.0,
    confidence: float = 0.95,
    calls_tried: int = 1,
) -> Estimate:
    """Epsilon from yes/no calls fixed before the games: plug-in value, lower bound, no upper.

    `calls_tried` is the number of sets of calls (thresholds, attacks) this one was chosen from; it
    divides the error rate. `high` is infinite, since an attack only bounds epsilon from below. The
    bound is one-sided, so it holds with the full `confidence`.
    """
    alpha = check_confidence(confidence)
    _check_delta(delta)
    for count, total, name in (
        (true_positives, members, "members"),
        (false_positives, nonmembers, "non-members"),
    ):
        if total < 1 or not 0 <= count <= total:
            raise UsageError(
                f"the counts of {name} are out of range",
                expected="at least one game and 0 <= called <= games",
                got=f"{count} called of {total}",
                remedy="pass true positives, members, false positives, non-members in this order",
            )
    require(Count, calls_tried=calls_tried, remedy="count every threshold and attack you tried")
    low = float(
        lower_bounds(
            true_positives,
            members,
            false_positives,
            nonmembers,
            delta=delta,
            tail=alpha / calls_tried,
        )
    )
    tpr = np.asarray(true_positives / members)
    fpr = np.asarray(false_positives / nonmembers)
    plug_in = max(float(_log_ratio(tpr, delta, fpr)), float(_log_ratio(1 - fpr, delta, 1 - tpr)))
    corrected = f", Bonferroni over {calls_tried}" if calls_tried > 1 else ""
    return Estimate(
        value=plug_in,
        low=low,
        high=math.inf,
        n=int(members + nonmembers),
        confidence=confidence,
        baseline=0.0,
        method=f"Clopper-Pearson on both rates, one-sided, delta={delta:g}{corrected}",
    )


def from_scores(
    scores: npt.ArrayLike,
    member: npt.ArrayLike,
    *,
    rng: np.random.Generator,
    delta: float = 0.0,
    confidence: float = 0.95,
) -> Estimate | Underpowered:
    """Epsilon from scores (n,) and membership (n,): threshold from one half, bound from the other.

    Halves each class at random. The first half picks the threshold with the largest lower bound, at
    a level split over all thresholds. The second half is independent of that choice, so its bound
    holds with the full confidence. `n` counts the games of the second half.
    """
    alpha = check_confidence(confidence)
    _check_delta(delta)
    inside, outside = split(scores, member)
    if min(len(inside), len(outside)) < 2:
        which = "members" if len(inside) < len(outside) else "non-members"
        return Underpowered(
            what=f"an epsilon bound ({which})", have=min(len(inside), len(outside)), needed=2
        )
    inside, outside = rng.permutation(inside), rng.permutation(outside)
    h1, h0 = len(inside) // 2, len(outside) // 2
    # Bounds that hold for all thresholds at once: without that, the largest one would lie in a thin
    # tail by luck, and the other half would not confirm it.
    threshold = _best_threshold(inside[:h1], outside[:h0], delta, alpha / (h1 + h0))
    test_in, test_out = inside[h1:], outside[h0:]
    measured = from_counts(
        int(np.count_nonzero(test_in >= threshold)),
        len(test_in),
        int(np.count_nonzero(test_out >= threshold)),
        len(test_out),
        delta=delta,
        confidence=confidence,
    )
    return Estimate(
        value=measured.value,
        low=measured.low,
        high=measured.high,
        n=measured.n,
        confidence=confidence,
        baseline=0.0,
        method=measured.method + ", threshold from the other half",
    )


def _best_threshold(inside: Floats, outside: Floats, delta: float, alpha: float) -> float:
    """The score with the largest lower bound on these games, each at level `alpha`.

    Ties go to the largest gap between the rates.
    """
    levels = np.unique(np.concatenate([inside, outside]))
    caught = len(inside) - np.searchsorted(np.sort(inside), levels, side="left")
    false = len(outside) - np.searchsorted(np.sort(outside), levels, side="left")
    bound = lower_bounds(caught, len(inside), false, len(outside), delta=delta, tail=alpha)
    # With too few games every bound is 0; then the gap between the rates decides.
    gap = caught / len(inside) - false / len(outside)
    return float(levels[np.lexsort((gap, bound))[-1]])


def _check_delta(delta: float) -> None:
    require(ShareBelowOne, delta=delta, remedy="use the tested guarantee's delta, such as 1e-5")
