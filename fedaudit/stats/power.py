"""How much evidence an audit needs before it can conclude.

An audit concludes when an interval lies wholly beyond its baseline. The closed forms give the
probability of that (the power) for a true value and a number of units, the units needed for a
power, and the smallest value that given units detect. Tests compare them with simulation.

Symbols: z_p is the normal quantile at p; an interval at confidence 1 - a uses z_{1-a/2}.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from fedaudit.arrays import Floats
from fedaudit.errors import UsageError
from fedaudit.settings import Fraction, PositiveFinite, require
from fedaudit.stats.intervals import check_confidence, clopper_pearson_bounds

MOST = 10**9
"""Largest sample size that is searched for."""


def check_power(power: float) -> None:
    require(Fraction, power=power, remedy="write 0.9 for 90 %")


def _quantiles(power: float, confidence: float) -> float:
    """z_{1-a/2} + z_power: the needed effect in standard errors."""
    check_power(power)
    normal = NormalDist()
    alpha = check_confidence(confidence)
    return normal.inv_cdf(1.0 - alpha / 2.0) + normal.inv_cdf(power)


def _check_above(what: str, value: float, chance: float) -> None:
    if not 0.0 <= chance < value <= 1.0:
        raise UsageError(
            f"{what} must lie above chance",
            expected=f"above {chance:g}, at most 1",
            got=f"{value:g}",
            remedy="give the value itself, not its difference from chance",
        )


def _at_least(count: npt.ArrayLike, n: npt.ArrayLike, share: npt.ArrayLike) -> Floats:
    """P(binomial(n, share) >= count), broadcast; 0 for a count above n."""
    from scipy.special import betainc

    k, total = np.broadcast_arrays(np.asarray(count, np.float64), np.asarray(n, np.float64))
    tail = betainc(np.maximum(k, 1.0), np.maximum(total - k + 1.0, 1.0), share)
    return np.where(k <= 0, 1.0, np.where(k > total, 0.0, tail))


# -- shares: linkage, games won ------------------------------------------------------------------


def least_successes(chance: float, n: npt.ArrayLike, confidence: float = 0.95) -> Floats:
    """Fewest successes of `n` trials whose Wilson interval lies above `chance`; n + 1 if none.

    Wilson's interval inverts the score test, so its low end exceeds the baseline exactly when
    share - chance > z sqrt(chance (1 - chance) / n). Shape as `n`.
    """
    z = NormalDist().inv_cdf(1.0 - check_confidence(confidence) / 2.0)
    total = np.asarray(n, dtype=np.float64)
    edge = total * chance + z * np.sqrt(total * chance * (1.0 - chance))
    return np.minimum(np.floor(edge + 1e-9) + 1.0, total + 1.0)


def share_power(share: float, chance: float, n: npt.ArrayLike, confidence: float = 0.95) -> Floats:
    """Probability that `n` independent trials at `share` give a Wilson interval above `chance`.

    Exact: a binomial tail. Shape as `n`.
    """
    return _at_least(least_successes(chance, n, confidence), n, share)


def trials_for_share(
    share: float, chance: float, power: float = 0.9, confidence: float = 0.95
) -> int:
    """Number of independent trials from which the power stays at `power` or above.

    The power of a discrete test is a sawtooth: it may reach `power` earlier and fall again.
    """
    _check_above("a share to be found", share, chance)
    check_power(power)
    check_confidence(confidence)
    z, normal = NormalDist().inv_cdf(1.0 - (1.0 - confidence) / 2.0), NormalDist()
    # normal approximation of the same test: standard result for one proportion
    spread = z * math.sqrt(chance * (1 - chance)) + normal.inv_cdf(power) * math.sqrt(
        share * (1 - share)
    )
    rough = (max(spread, 0.0) / (share - chance)) ** 2
    if rough > MOST:
        return math.ceil(rough)
    reach = int(2 * rough) + 200
    if reach > 2_000_000:
        return math.ceil(rough)  # here the sawtooth is far below one trial in a thousand
    reached = share_power(share, chance, np.arange(1, reach + 1), confidence) >= power
    below = np.flatnonzero(~reached)
    return int(below[-1]) + 2 if len(below) else 1


# -- games: a fair coin each, exact binomial test -------------------------------------------------


def games_power(success: npt.ArrayLike, games: npt.ArrayLike, confidence: float = 0.95) -> Floats:
    """Probability that the Clopper-Pearson interval of `games` lies above one half; broadcast.

    Exact: coins are fair, so the number of correct answers is binomial.
    """
    least = _least_right(np.asarray(games, dtype=np.int64), confidence)
    return _at_least(least, games, success)


def _least_right(games: npt.NDArray[np.int64], confidence: float) -> npt.NDArray[np.int64]:
    """Fewest correct answers whose interval lies above one half; games + 1 if none."""
    tail = check_confidence(confidence) / 2.0
    low, high = np.zeros_like(games), games + 1
    while (high - low > 1).any():
        middle = (low + high) // 2
        above = _at_least(middle, games, 0.5) < tail
        high = np.where(above, middle, high)
        low = np.where(above, low, middle)
    return high


def games_for_success(success: float, power: float = 0.9, confidence: float = 0.95) -> int:
    """Games from which on a success rate is distinguished from one half with `power`.

    The power of a discrete test is a sawtooth: it may reach `power` earlier and fall again.
    """
    _check_above("a success rate to be found", success, 0.5)
    reach = _quantiles(power, confidence) / (success - 0.5)
    rough = math.ceil(0.25 * reach**2)
    if rough > 200_000:
        return rough
    reached = games_power(success, np.arange(1, 2 * rough + 200), confidence) >= power
    below = np.flatnonzero(~reached)
    return int(below[-1]) + 2 if len(below) else 1


def detectable_success(games: int, power: float = 0.9, confidence: float = 0.95) -> float | None:
    """The smallest success rate that this many games detect with probability `power`."""
    check_power(power)
    if games < 1 or float(games_power(1.0, games, confidence)) < power:
        return None
    return _bisect(lambda s: float(games_power(s, games, confidence)) >= power, 0.5, 1.0)


# -- area under the ROC curve --------------------------------------------------------------------


def auc_deviation(auc: float, members: float, others: float) -> float:
    """Standard error of an AUC (Hanley and McNeil 1982).

    sqrt((A(1-A) + (n1-1)(Q1 - A^2) + (n0-1)(Q2 - A^2)) / (n1 n0)), Q1 = A/(2-A), Q2 = 2A^2/(1+A):
    exact for exponential scores, close for others.
    """
    a = auc
    one, two = a / (2.0 - a), 2.0 * a * a / (1.0 + a)
    variance = a * (1.0 - a) + (members - 1.0) * (one - a * a) + (others - 1.0) * (two - a * a)
    return math.sqrt(max(variance, 0.0) / (members * others))


def auc_power(auc: float, members: int, others: int, confidence: float = 0.95) -> float:
    """Probability that the interval of an AUC lies above one half (normal form)."""
    z = NormalDist().inv_cdf(1.0 - check_confidence(confidence) / 2.0)
    se = auc_deviation(auc, members, others)
    if se == 0.0:
        return 1.0 if auc > 0.5 else 0.0
    return NormalDist().cdf((auc - 0.5) / se - z)


def records_for_auc(
    auc: float, power: float = 0.9, confidence: float = 0.95, *, others_per_member: float = 1.0
) -> int:
    """Members needed to distinguish an AUC from one half, with `others_per_member` others each."""
    _check_above("an AUC to be found", auc, 0.5)
    check_power(power)

    def enough(members: int) -> bool:
        others = max(2, round(members * others_per_member))
        return auc_power(auc, members, others, confidence) >= power

    return _first(enough, 2)


def detectable_auc(
    members: int, others: int, power: float = 0.9, confidence: float = 0.95
) -> float | None:
    """The smallest AUC that these members and others detect with probability `power`."""
    check_power(power)
    if min(members, others) < 2:
        return None
    found = _bisect(lambda a: auc_power(a, members, others, confidence) >= power, 0.5, 1.0)
    return found if found < 1.0 else None


# -- true positives at a small false-positive rate -----------------------------------------------


def members_for_rate(
    true_positive_rate: float, rate: float, power: float = 0.9, confidence: float = 0.95
) -> int:
    """Members needed to show a true-positive rate above the false-positive rate `rate`.

    For a fixed threshold; `roc.nonmembers_needed` gives the non-members to set it. Exact, with the
    Clopper-Pearson interval of the audits.
    """
    _check_above("a true-positive rate to be found", true_positive_rate, rate)
    check_power(power)
    tail = check_confidence(confidence) / 2.0
    reach = 2 * trials_for_share(true_positive_rate, rate, power, confidence) + 200
    if reach > 200_000:
        return reach // 2 - 100

    n = np.arange(1, reach + 1)
    # Clopper-Pearson's low end lies above the rate if and only if the exact tail at the rate is
    # below its error. It grows with the count: bisect for the first such count, for every n
    low, high = np.zeros(reach, dtype=np.int64), n + 1
    while (high - low > 1).any():
        middle = (low + high) // 2
        above = _at_least(middle, n, rate) < tail
        high = np.where(above, middle, high)
        low = np.where(above, low, middle)
    below = np.flatnonzero(_at_least(high, n, true_positive_rate) < power)
    return int(below[-1]) + 2 if len(below) else 1


def detectable_rate(
    rate: float, members: int, power: float = 0.9, confidence: float = 0.95
) -> float | None:
    """The smallest true-positive rate that these members show to exceed `rate`."""
    check_power(power)
    if members < 1:
        return None
    counts = np.arange(members + 1)
    low = clopper_pearson_bounds(counts, members, check_confidence(confidence) / 2.0)[0]
    above = np.flatnonzero(low > rate)
    if not len(above):
        return None
    least = int(above[0])
    return _bisect(lambda t: float(_at_least(least, members, t)) >= power, rate, 1.0)


# -- explained variance --------------------------------------------------------------------------


def clients_for_explained(explained: float, power: float = 0.9, confidence: float = 0.95) -> int:
    """Clients needed to distinguish a share of explained variance from zero.

    For calibrated guesses the share is the squared correlation r^2 with the truth, and atanh r of
    n clients has deviation 1/sqrt(n - 3) (Fisher).
    """
    require(Fraction, explained=explained, remedy="0.1 for a tenth of the variance")
    reach = _quantiles(power, confidence) / math.atanh(math.sqrt(explained))
    return math.ceil(reach**2 + 3)


# -- anything with a normal interval -------------------------------------------------------------


def units_for_effect(
    half_width: float, n: int, effect: float, power: float = 0.9, confidence: float = 0.95
) -> int:
    """Units needed to detect an effect over the baseline, given the half width of `n` units.

    A standard error shrinks with the root of the units: n' = n (h / z (z + z_power) / e)^2.
    """
    require(PositiveFinite, effect=effect, remedy="give the leak's distance from chance")
    z = NormalDist().inv_cdf(1.0 - check_confidence(confidence) / 2.0)
    return max(2, math.ceil(n * (half_width / z * _quantiles(power, confidence) / effect) ** 2))


def detectable_effect(half_width: float, power: float = 0.9, confidence: float = 0.95) -> float:
    """The smallest effect over the baseline that an interval of this half width detects."""
    z = NormalDist().inv_cdf(1.0 - check_confidence(confidence) / 2.0)
    return half_width / z * _quantiles(power, confidence)


# -- searches ------------------------------------------------------------------------------------


def _first(enough: Callable[[int], bool], start: int) -> int:
    """The first whole number that meets a monotone condition, by doubling and bisection."""
    low, high = start - 1, start
    while not enough(high):
        if high > MOST:
            return high
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _bisect(enough: Callable[[float], bool], low: float, high: float) -> float:
    """The smallest number in (low, high] that meets a monotone condition, to 1e-6."""
    while high - low > 1e-6:
        middle = (low + high) / 2.0
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
