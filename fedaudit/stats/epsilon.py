"""Lower bounds on epsilon: from independent games, and from many coins in one run.

**Independent games.** If a mechanism is (epsilon, delta)-DP, every test of "record in" against
"record out" obeys TPR <= e^epsilon FPR + delta and TNR <= e^epsilon FNR + delta. The counts of an
attack therefore refute every smaller epsilon, at the stated confidence.

A threshold chosen on the same games would refute too much. `from_scores` therefore chooses it on
one half and measures on the other. `from_counts` takes calls fixed beforehand, and the number of
sets of calls that were tried.

**One run.** m canaries are inserted or not, each by a fair coin; r guesses were fixed before the
coins were known, and v of them are right. Four tests, each against one claim:

    coins_p_value        any (epsilon, delta) mechanism           [OneRun]
    f_dp_refutes         one trade-off curve                      [FDPOneRun]
    independent_p_value  one total variation, independent canaries only
    rehearsals_bound     the mean share of right guesses, from repeated runs   [Betting]

The first two hold for any dependence between canaries that the mechanism allows.

[OneRun]: Steinke, Nasr and Jagielski 2023, Privacy Auditing with One (1) Training Run.
[FDPOneRun]: Mahloujifar, Melis and Chaudhuri 2024, Auditing f-Differential Privacy in One Run.
[Betting]: Waudby-Smith and Ramdas 2024, Estimating means of bounded random variables by betting.
"""

from __future__ import annotations

import math
from collections.abc import Callable

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


# -- one run, many coins --------------------------------------------------------------------------

LeastFalse = Callable[[float], float]
"""A trade-off curve: the smallest false-positive rate at which a true-positive rate is possible."""


def coins_p_value(coins: int, guesses: int, right: int, *, epsilon: float, delta: float) -> float:
    """Largest chance of `right` or more right guesses under (epsilon, delta)-DP.

    [OneRun]: beta + 2 m delta max_i (P[v > X >= v - i] / i), with X binomial of r
    guesses at e^epsilon / (1 + e^epsilon) and beta = P[X >= v].
    """
    _check_coins(coins, guesses, right)
    if right == 0:
        return 1.0
    # P[X >= j] for j = v, v - 1, ..., 0
    tails = _binomial_tails(guesses, right, 1 / (1 + math.exp(-epsilon)))
    beta = float(tails[0])
    if delta == 0:
        return min(1.0, beta)
    i = np.arange(1, right + 1)
    alpha = max(0.0, float(((tails[1:] - beta) / i).max()))
    return min(1.0, beta + 2 * coins * delta * alpha)


def coins_bound(
    coins: int, guesses: int, right: int, *, delta: float = 0.0, confidence: float = 0.95
) -> float:
    """The largest epsilon that the guesses refute, whatever the mechanism (L0)."""
    alpha = check_confidence(confidence)
    _check_delta(delta)

    def refuted(at: float) -> bool:
        return coins_p_value(coins, guesses, right, epsilon=at, delta=delta) <= alpha

    return _largest(refuted)


def least_shown(coins: int, confidence: float) -> float:
    """The least epsilon that a tenth of the coins, guessed as an epsilon-DP bit allows, shows.

    The median share of right guesses is e^epsilon / (1 + e^epsilon); at this epsilon it is what
    refutes 0.
    """
    from scipy.special import bdtrc

    alpha = check_confidence(confidence)
    guesses = min(coins, max(100, coins // 10))
    right = np.arange(guesses + 1)
    enough = np.flatnonzero(np.append(1.0, bdtrc(right[:-1], guesses, 0.5)) <= alpha)
    if not len(enough):
        return math.inf
    share = right[enough[0]] / guesses
    return math.log(share / (1 - share)) if share < 1 else math.inf


def _binomial_tails(trials: int, top: int, chance: float) -> Floats:
    """P[X >= j] for j = top, top - 1, ..., 0: (top + 1,)."""
    from scipy.special import bdtrc

    tails: Floats = bdtrc(np.arange(top - 1, -1, -1), trials, chance)
    return np.append(tails, 1.0)


def f_dp_refutes(
    coins: int, guesses: int, right: int, curve: LeastFalse, significance: float
) -> bool:
    """Whether the guesses refute a trade-off curve at `significance`: [FDPOneRun].

    With W right guesses, suppose P[W >= v] = tau. Then the guess on one canary is right and W >= i
    with probability at least r_i, and wrong and W >= i with at least h_i. The curve ties them,
    h_i >= curve(r_i), from i = v down to 0. Both together cannot exceed r / m.
    """
    m, k = coins, guesses
    r, h = significance * right / m, significance * (k - right) / m
    most = k / m
    for i in range(right - 1, -1, -1):
        forced = curve(r)
        if forced <= h:
            break  # neither changes any more
        r, h = min(1.0, r + i / (k - i) * (forced - h)), forced
        if r + h > most:
            return True
    return r + h > most


def f_dp_p_value(coins: int, guesses: int, right: int, curve: LeastFalse) -> float:
    """The smallest significance (to 1 %) at which the guesses refute a trade-off curve."""
    _check_coins(coins, guesses, right)
    if not f_dp_refutes(coins, guesses, right, curve, 1.0):
        return 1.0
    low, high = 1e-12, 1.0
    while high > 1.01 * low:
        middle = math.sqrt(low * high)
        refuted = f_dp_refutes(coins, guesses, right, curve, middle)
        low, high = (low, middle) if refuted else (middle, high)
    return high


def f_dp_bound(
    coins: int,
    guesses: int,
    right: int,
    family: Callable[[int], LeastFalse],
    *,
    confidence: float = 0.95,
    most: int = 400,
) -> int | None:
    """The largest index of a family of curves that the guesses refute; None if they refute none.

    Curves leak more with growing index. The search starts at index 0, goes up or down in growing
    steps until the answer changes or `most` is reached, and halves the last step.
    """
    alpha = check_confidence(confidence)

    def refuted(at: int) -> bool:
        return f_dp_refutes(coins, guesses, right, family(at), alpha)

    if refuted(0):
        low, high = 0, 1
        while refuted(high):
            if high == most:
                return high
            low, high = high, min(2 * high, most)
    else:
        low, high = -1, 0
        while not refuted(low):
            if low == -most:
                return None
            low, high = max(2 * low, -most), low
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


def independent_p_value(coins: int, right: int, *, total_variation: float) -> float:
    """Chance of `right` or more of m guesses, none withheld, each right by (1 + TV) / 2 (L2).

    Right for independent canaries only. Where canaries share what moves them, its coverage falls
    far below the stated confidence: it says whether a mechanism is consistent, and is no bound.
    """
    from scipy.special import bdtrc

    _check_coins(coins, coins, right)
    return float(bdtrc(right - 1, coins, 0.5 * (1 + total_variation))) if right else 1.0


def rehearsals_bound(shares: npt.ArrayLike, *, confidence: float = 0.95) -> float:
    """Lower confidence bound on the mean share of right guesses, from independent runs (R,).

    Canaries of one run may depend on each other; runs may not. Betting against each mean
    ([Betting]): capital prod(1 + lambda_t (x_t - mean)) exceeds 1 / alpha with
    probability at most alpha. Bets are set from earlier runs only.
    """
    alpha = check_confidence(confidence)
    x = np.atleast_1d(np.asarray(shares, dtype=np.float64))
    if not len(x) or not ((x >= 0) & (x <= 1)).all():
        raise UsageError(
            "shares of right guesses are out of range",
            expected="one share in [0, 1] per run",
            got=f"{len(x)} values",
            remedy="divide the right guesses of each run by its guesses",
        )
    t = np.arange(1, len(x) + 1)
    # plug-in mean and variance before each run, drawn towards 1/2 and 1/4 by one imagined run
    mean = np.concatenate([[0.5], (0.5 + np.cumsum(x)) / (t + 1)])
    spread = np.concatenate([[0.25], (0.25 + np.cumsum((x - mean[1:]) ** 2)) / (t + 1)])
    bet = np.sqrt(2 * math.log(1 / alpha) / (spread[:-1] * len(x)))

    def refuted(claim: float) -> bool:
        # a bet of at most 1 / claim keeps the capital above zero
        stake = np.minimum(bet, 0.75 / claim)
        capital = np.cumsum(np.log1p(stake * (x - claim)))
        return bool(capital.max() >= math.log(1 / alpha))

    low, high = 1e-6, 1.0
    if not refuted(low):
        return 0.0
    while high - low > 1e-6:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


def _largest(refuted: Callable[[float], bool]) -> float:
    """The largest epsilon of a monotone refutation, to 1e-9; 0 if none is refuted."""
    if not refuted(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while refuted(high) and high < 1024:
        low, high = high, 2 * high
    while high - low > 1e-9:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


def _check_coins(coins: int, guesses: int, right: int) -> None:
    if not 0 <= right <= guesses <= coins or coins < 1:
        raise UsageError(
            "the counts of guesses are out of range",
            expected="0 <= right <= guesses <= coins, and at least one coin",
            got=f"{right} right of {guesses} guesses on {coins} coins",
            remedy="pass coins, guesses, right guesses in this order",
        )


def _check_delta(delta: float) -> None:
    require(ShareBelowOne, delta=delta, remedy="use the tested guarantee's delta, such as 1e-5")
