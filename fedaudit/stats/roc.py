"""How well scores separate members from non-members.

Shapes: `scores` (n,) finite floats, greater means "member"; `member` (n,) bool. Records must be
independent. If they are not (many games over one noise draw), summarise per trial and use
`intervals.bootstrap` over trials.

At a small false-positive rate f only n f non-members lie above the threshold, so a true-positive
rate there needs at least 10/f non-members.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from fedaudit.arrays import Floats, require_finite
from fedaudit.errors import UsageError
from fedaudit.results import Estimate, Underpowered
from fedaudit.settings import Fraction, require
from fedaudit.stats.intervals import (
    check_confidence,
    clopper_pearson,
    clopper_pearson_bounds,
)

# A true-positive rate at rate f needs at least this many expected false positives.
EXPECTED_FALSE_POSITIVES = 10
AucInterval = Literal["delong", "bootstrap"]


@dataclass(frozen=True, kw_only=True)
class Curve:
    """An ROC curve: a record is called a member when its score is >= the threshold.

    `threshold`, `false_positive_rate`, `true_positive_rate`: (k + 1,) for k distinct scores,
    from (0, 0) at an infinite threshold to (1, 1) at the smallest score.
    """

    threshold: Floats
    false_positive_rate: Floats
    true_positive_rate: Floats
    members: int
    nonmembers: int


def split(scores: npt.ArrayLike, member: npt.ArrayLike) -> tuple[Floats, Floats]:
    """Scores of members (n1,) and of non-members (n0,)."""
    s = np.asarray(scores, dtype=np.float64)
    m = np.asarray(member)
    if s.ndim != 1 or m.shape != s.shape or not (m.dtype == bool or np.isin(m, (0, 1)).all()):
        raise UsageError(
            "scores and membership do not fit",
            expected="two vectors of equal length, membership true or false",
            got=f"scores {s.shape}, membership {m.shape} of {m.dtype}",
            remedy="pass one score and one true/false per record",
        )
    require_finite(s, "scores", remedy="leave these records out and report how many")
    m = m.astype(bool)
    return s[m], s[~m]


def _missing(what: str, inside: Floats, outside: Floats) -> Underpowered | None:
    if len(inside) == 0:
        return Underpowered(what=f"{what} (members)", have=0, needed=1)
    if len(outside) == 0:
        return Underpowered(what=f"{what} (non-members)", have=0, needed=1)
    return None


def _levels(inside: Floats, outside: Floats) -> tuple[Floats, Floats, Floats]:
    """Distinct scores ascending (k,), with counts of members and of non-members (k,)."""
    levels, where = np.unique(np.concatenate([inside, outside]), return_inverse=True)
    k = len(levels)
    positives = np.bincount(where[: len(inside)], minlength=k).astype(np.float64)
    negatives = np.bincount(where[len(inside) :], minlength=k).astype(np.float64)
    return levels, positives, negatives


def curve(scores: npt.ArrayLike, member: npt.ArrayLike) -> Curve | Underpowered:
    """The ROC curve with one point per distinct score: ties move along both axes at once."""
    inside, outside = split(scores, member)
    if (lack := _missing("an ROC curve", inside, outside)) is not None:
        return lack
    levels, positives, negatives = _levels(inside, outside)
    return Curve(
        threshold=np.concatenate([[np.inf], levels[::-1]]),
        false_positive_rate=np.concatenate([[0.0], negatives[::-1].cumsum() / len(outside)]),
        true_positive_rate=np.concatenate([[0.0], positives[::-1].cumsum() / len(inside)]),
        members=len(inside),
        nonmembers=len(outside),
    )


# --- area under the curve --------------------------------------------------------------------


def auc(
    scores: npt.ArrayLike,
    member: npt.ArrayLike,
    *,
    confidence: float = 0.95,
    interval: AucInterval = "delong",
    rng: np.random.Generator | None = None,
    resamples: int = 2000,
) -> Estimate | Underpowered:
    """P(member scores above non-member) + P(tie)/2, with an interval; chance is 1/2.

    "delong": DeLong, DeLong and Clarke-Pearson's variance from midranks, O(n log n).
    "bootstrap": percentile, resampling members and non-members apart; needs `rng`.
    With perfect separation both collapse to a point, even for few records; then the bound is exact
    over min(n1, n0) disjoint pairs, all ordered alike.
    """
    alpha = check_confidence(confidence)
    require(AucInterval, interval=interval)
    inside, outside = split(scores, member)
    n1, n0 = len(inside), len(outside)
    if min(n1, n0) < 2:
        which = "members" if n1 < n0 else "non-members"
        return Underpowered(what=f"an AUC ({which})", have=min(n1, n0), needed=2)
    _, positives, negatives = _levels(inside, outside)
    # Rank of each member among the non-members (below + half of ties), and the reverse.
    below = negatives.cumsum() - negatives / 2
    above = n1 - (positives.cumsum() - positives / 2)
    value = float(positives @ below) / (n1 * n0)
    if value in (0.0, 1.0):
        pairs = min(n1, n0)
        low, high = clopper_pearson_bounds(pairs * int(value), pairs, alpha / 2)
        return Estimate(
            value=value,
            low=float(low),
            high=float(high),
            n=n1 + n0,
            confidence=confidence,
            baseline=0.5,
            method="exact over disjoint pairs (perfect separation)",
        )
    if interval == "delong":
        from scipy.special import ndtri

        v1 = float(positives @ (below / n0 - value) ** 2) / (n1 - 1)
        v0 = float(negatives @ (above / n1 - value) ** 2) / (n0 - 1)
        half = float(ndtri(1.0 - alpha / 2)) * math.sqrt(v1 / n1 + v0 / n0)
        ends, method = (max(0.0, value - half), min(1.0, value + half)), "DeLong"
    else:
        if rng is None:
            raise UsageError(
                "a bootstrap needs a random generator",
                expected="rng, a numpy Generator",
                got="None",
                remedy='pass rng=..., or use interval="delong"',
            )
        draws = _auc_resamples(positives, negatives, rng, resamples)
        low_high = np.quantile(draws, [alpha / 2, 1 - alpha / 2])
        ends = (float(low_high[0]), float(low_high[1]))
        method = f"bootstrap (percentile, {resamples} resamples)"
    return Estimate(
        value=value,
        low=ends[0],
        high=ends[1],
        n=n1 + n0,
        confidence=confidence,
        baseline=0.5,
        method=method,
    )


def midranks(values: Floats) -> Floats:
    """Ranks from 1, ties averaged (scipy.stats has them too, but takes a second to load)."""
    _, where, counts = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(counts) - (counts - 1) / 2)[where.reshape(-1)])


def plain_auc(scores: Floats, member: npt.NDArray[np.bool_]) -> float:
    """The AUC without an interval, of at least one member and one other."""
    ranks = midranks(scores)
    inside = int(member.sum())
    outside = len(member) - inside
    return float((ranks[member].sum() - inside * (inside + 1) / 2) / (inside * outside))


def _auc_resamples(
    positives: Floats, negatives: Floats, rng: np.random.Generator, resamples: int
) -> Floats:
    """AUC of stratified resamples: multinomial counts per score level, no sorting needed."""
    n1, n0 = int(positives.sum()), int(negatives.sum())
    out = np.empty(resamples)
    block = max(1, (1 << 21) // len(positives))
    for start in range(0, resamples, block):
        stop = min(resamples, start + block)
        p = rng.multinomial(n1, positives / n1, size=stop - start).astype(np.float64)
        q = rng.multinomial(n0, negatives / n0, size=stop - start).astype(np.float64)
        out[start:stop] = (p * (q.cumsum(axis=1) - q / 2)).sum(axis=1) / (n1 * n0)
    return out


# --- true positives at a small false-positive rate -------------------------------------------


def nonmembers_needed(rate: float) -> int:
    """Non-members needed for a true-positive rate at `rate`: 10 / rate."""
    require(Fraction, rate=rate, remedy="write 0.01 for 1 %")
    return math.ceil(EXPECTED_FALSE_POSITIVES / rate - 1e-6)


def _calls_at(inside: Floats, outside: Floats, rate: float) -> tuple[int, int]:
    """Members called, and false positives allowed, at the conservative threshold.

    Calls every score strictly above the (k+1)-th largest non-member, k = floor(rate n0). Ties with
    it are not called, so at most k non-members are: the rate is never exceeded.
    """
    k = math.floor(rate * len(outside) + 1e-9)
    threshold = np.partition(outside, len(outside) - 1 - k)[len(outside) - 1 - k]
    return int(np.count_nonzero(inside > threshold)), k


def true_positive_rate_at(
    scores: npt.ArrayLike,
    member: npt.ArrayLike,
    rate: float,
    *,
    confidence: float = 0.95,
) -> Estimate | Underpowered:
    """True-positive rate at a false-positive rate of at most `rate`, or `Underpowered`.

    The Clopper-Pearson interval treats the threshold as fixed. `baseline` is the mean for
    exchangeable scores, (k+1)/(n0+1). The threshold is in fact estimated from the non-members: with
    few of them, the interval misses the baseline more often than stated.
    """
    check_confidence(confidence)
    needed = nonmembers_needed(rate)
    inside, outside = split(scores, member)
    what = f"a true-positive rate at {rate:.4g} false positives"
    if len(outside) < needed:
        return Underpowered(what=f"{what} (non-members)", have=len(outside), needed=needed)
    if len(inside) == 0:
        return Underpowered(what=f"{what} (members)", have=0, needed=1)
    called, k = _calls_at(inside, outside, rate)
    stated = clopper_pearson(called, len(inside), confidence, baseline=(k + 1) / (len(outside) + 1))
    return replace(stated, method="Clopper-Pearson at a fixed threshold")
