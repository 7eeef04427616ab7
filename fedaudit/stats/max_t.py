"""One test over several readings of the same games: the max-T permutation test.

An audit often reads its games in several ways: the success rate at a cut, the AUC, a second attack,
every client alone. Under the null no reading depends on the labels (the membership coins), so all
labellings with the same number of members in every stratum are equally likely. The largest
standardised reading is compared with the largest one under each of these labellings (Westfall and
Young 1993). The chance that any reading alarms stays below the level, for any dependence between
the readings and any number of games: dependent readings cost little, equal readings nothing.

Assumes: labels are exchangeable within strata, as fair coins and draws without replacement are.
With `coins` they must be independent fair coins: then all 2^n labellings are equally likely, and
the test of a success rate alone is the exact binomial test. Scores must be fixed without the
labels, thresholds included.

Shapes: n games, k readings, b labellings. `labels` (n,) bool; a reading is a row of weights (n,),
with the statistic weights @ labels, or one column of a function from labels (b, n) to (b, k).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedaudit.arrays import Bools, Floats, Indices, require_finite
from fedaudit.errors import UsageError
from fedaudit.settings import Count, Fraction, require
from fedaudit.stats.roc import midranks

Statistic = Callable[[Bools], Floats]
"""Readings (b, k) of games labelled in b ways (b, n); greater means more leak."""

# Labellings are handled in blocks of about this many numbers, so that memory stays bounded.
_BLOCK = 1 << 22
# Two statistics closer than this (in standard deviations) are tied: sums differ in their last bits.
_TIED = 1e-9
LEAVE_OUT = "leave these games out and report how many"


@dataclass(frozen=True, kw_only=True, eq=False)
class MaxT:
    """A max-T test of k readings.

    `observed` (k,): the statistics. `expected`, `deviation` (k,): their mean and standard deviation
    over the labellings. `score` (k,): the standardised statistics, -inf for a reading that no
    labelling changes. `p_value` (k,): of each reading alone. `adjusted` (k,): step-down p-values;
    rejecting all readings with `adjusted` at most alpha makes any false rejection with probability
    at most alpha. `decided`: the reading with the smallest adjusted p-value. `labellings` are
    counted with the observed one; `exact`: they are all there are.
    """

    observed: Floats
    expected: Floats
    deviation: Floats
    score: Floats
    p_value: Floats
    adjusted: Floats
    decided: int
    labellings: int
    exact: bool
    _largest: Floats

    @property
    def p(self) -> float:
        """The p-value of the whole family: the adjusted one of the reading that decided."""
        return float(self.adjusted[self.decided])

    def critical(self, level: float) -> Floats:
        """The smallest statistic (k,) of each reading that would be significant at `level`.

        Infinite if no statistic would: there are too few labellings.
        """
        require(Fraction, level=level, remedy="write 0.05 for 5 %")
        ordered = np.sort(self._largest)[::-1]
        allowed = math.floor(level * self.labellings + _TIED)
        if allowed < 1:
            return np.full(len(self.observed), np.inf)
        # among the `allowed` largest, the smallest one that is not tied with the next
        top = ordered[:allowed]
        if allowed < len(ordered):
            top = top[top > ordered[allowed] + _TIED]
        if not len(top) or not np.isfinite(top[-1]):
            return np.full(len(self.observed), np.inf)
        return np.where(self.deviation > 0, self.expected + top[-1] * self.deviation, np.inf)


# -- readings -------------------------------------------------------------------------------------


def success_weights(called: npt.ArrayLike) -> Floats:
    """Weights (..., n) of the number of correct calls, `called` (..., n) bool.

    The statistic is the number of correct calls minus that of games not called.
    """
    return np.where(np.asarray(called, dtype=bool), 1.0, -1.0)


def rank_weights(scores: npt.ArrayLike, strata: npt.ArrayLike | None = None) -> Floats:
    """Weights (n,) of the centred rank sum, which orders labellings like the AUC of `scores` (n,).

    With `strata` (n,) ranks are taken within each stratum and divided by its size + 1: differences
    between strata do not count (van Elteren 1960).
    """
    s = np.asarray(scores, dtype=np.float64)
    require_finite(s, "readings", remedy=LEAVE_OUT)
    out = np.zeros(len(s))
    for rows in _rows_of(strata, len(s)):
        out[rows] = midranks(s[rows]) / (len(rows) + 1) - 0.5
    return out


def restricted(weights: npt.ArrayLike, masks: npt.ArrayLike) -> Floats:
    """The reading `weights` (n,) on each of several subsets of the games, `masks` (g, n): (g, n).

    Subsets may overlap: all clients, groups of clients and single clients can share one family.
    """
    w, m = np.asarray(weights, dtype=np.float64), np.asarray(masks, dtype=bool)
    return np.where(m, w, 0.0)


# -- the test -------------------------------------------------------------------------------------


def max_t(
    readings: npt.ArrayLike | Statistic | Sequence[npt.ArrayLike],
    labels: npt.ArrayLike,
    *,
    rng: np.random.Generator,
    strata: npt.ArrayLike | None = None,
    coins: bool = False,
    draws: int = 9999,
    enumerate_up_to: int = 20_000,
    two_sided: bool = False,
) -> MaxT:
    """Test k readings of n games at once; see the module's docstring.

    `readings`: weights (k, n), or a `Statistic`. `strata` (n,): labels are permuted within these
    only (default: one stratum). `coins`: labels are independent fair coins and are drawn anew
    instead. If there are at most `enumerate_up_to` labellings, all are used; else `draws` random
    ones and the observed one. `two_sided` also counts readings far below
    their mean.
    """
    y = _labels(labels)
    require(Count, draws=draws, remedy="leave the default of 9999")
    statistic = readings if callable(readings) else _linear(readings, len(y))
    if coins and strata is not None:
        raise UsageError(
            "independent coins have no strata",
            expected="either coins or strata",
            got="both",
            remedy="leave out strata: coins need none",
        )
    groups = _rows_of(strata, len(y))
    each = [math.comb(len(rows), int(y[rows].sum())) for rows in groups]
    exact = (1 << len(y) if coins else math.prod(each)) <= enumerate_up_to
    if coins:
        blocks = _all_coins(len(y)) if exact else _drawn_coins(len(y), draws, rng)
    else:
        blocks = _all_labellings(y, groups) if exact else _drawn_labellings(y, groups, draws, rng)
    observed = _call(statistic, y[None])[0]
    values = np.concatenate([_call(statistic, block) for block in blocks])
    if not exact:
        values = np.concatenate([observed[None], values])
    return from_values(observed, values, exact=exact, two_sided=two_sided)


def from_values(
    observed: npt.ArrayLike, values: npt.ArrayLike, *, exact: bool, two_sided: bool = False
) -> MaxT:
    """The test from readings under the null, however they were drawn.

    `observed` (k,); `values` (b, k) over the labellings, the observed one included. `exact`: these
    are all labellings.
    """
    observed, values = np.asarray(observed, np.float64), np.asarray(values, np.float64)
    expected, deviation = values.mean(axis=0), values.std(axis=0)
    # rounding in a sum of equal numbers is no spread
    flat = deviation <= 1e-12 * (1.0 + np.abs(values).max(axis=0))
    deviation = np.where(flat, 0.0, deviation)
    scores = _standardise(values, expected, deviation, two_sided=two_sided)
    score = _standardise(observed[None], expected, deviation, two_sided=two_sided)[0]
    alone = (scores >= score - _TIED).mean(axis=0)
    adjusted = _step_down(scores, score)
    best = np.flatnonzero(adjusted == adjusted.min())
    return MaxT(
        observed=observed,
        expected=expected,
        deviation=deviation,
        score=score,
        p_value=np.where(flat, 1.0, alone),
        adjusted=adjusted,
        decided=int(best[score[best].argmax()]),
        labellings=len(values),
        exact=exact,
        _largest=scores.max(axis=1),
    )


def _step_down(scores: Floats, score: Floats) -> Floats:
    """Adjusted p-values (k,) from standardised statistics (b, k) and the observed ones (k,).

    In descending order, each reading is compared with the largest of itself and all smaller ones.
    """
    order = np.argsort(-score, kind="stable")
    # the maximum over a reading and all after it, for every labelling
    tails = np.maximum.accumulate(scores[:, order[::-1]], axis=1)[:, ::-1]
    raw = (tails >= score[order] - _TIED).mean(axis=0)
    adjusted = np.empty(len(score))
    adjusted[order] = np.maximum.accumulate(raw)
    return np.where(np.isneginf(score), 1.0, adjusted)


def _standardise(values: Floats, mean: Floats, deviation: Floats, *, two_sided: bool) -> Floats:
    out = np.full(values.shape, -np.inf)
    np.divide(values - mean, deviation, out=out, where=np.broadcast_to(deviation > 0, values.shape))
    return np.where(deviation > 0, np.abs(out), out) if two_sided else out


# -- labellings -----------------------------------------------------------------------------------


def _all_labellings(labels: Bools, groups: Sequence[Indices]) -> Iterator[Bools]:
    """Every labelling with the same number of members in every stratum, in one block."""
    choices = [itertools.combinations(rows, int(labels[rows].sum())) for rows in groups]
    picked = [np.concatenate(p).astype(np.int64) for p in itertools.product(*choices)]
    out = np.zeros((len(picked), len(labels)), dtype=bool)
    for row, members in zip(out, picked, strict=True):
        row[members] = True
    yield out


def _drawn_labellings(
    labels: Bools, groups: Sequence[Indices], draws: int, rng: np.random.Generator
) -> Iterator[Bools]:
    step = max(1, _BLOCK // max(1, len(labels)))
    for start in range(0, draws, step):
        out = np.tile(labels, (min(draws, start + step) - start, 1))
        for rows in groups:
            if 0 < labels[rows].sum() < len(rows):
                out[:, rows] = rng.permuted(out[:, rows], axis=1)
        yield out


def _all_coins(n: int) -> Iterator[Bools]:
    yield (np.arange(1 << n)[:, None] >> np.arange(n)) & 1 == 1


def _drawn_coins(n: int, draws: int, rng: np.random.Generator) -> Iterator[Bools]:
    step = max(1, _BLOCK // n)
    for start in range(0, draws, step):
        yield rng.integers(0, 2, size=(min(draws, start + step) - start, n), dtype=np.int8) == 1


def _rows_of(strata: npt.ArrayLike | None, n: int) -> list[Indices]:
    """The rows of every stratum."""
    if strata is None:
        return [np.arange(n)]
    names = np.asarray(strata)
    if names.shape != (n,):
        raise UsageError(
            "strata and labels do not fit",
            expected=f"one stratum per game, shape ({n},)",
            got=f"shape {names.shape}",
            remedy="pass the client or the trial of every game",
        )
    _, where = np.unique(names, return_inverse=True)
    order = np.argsort(where, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(where[order])) + 1)


# -- input ----------------------------------------------------------------------------------------


def _labels(labels: npt.ArrayLike) -> Bools:
    y = np.asarray(labels)
    if y.ndim != 1 or not len(y) or not (y.dtype == bool or np.isin(y, (0, 1)).all()):
        raise UsageError(
            "labels must be true or false",
            expected="a vector of booleans, one per game",
            got=f"shape {y.shape} of {y.dtype}",
            remedy="pass the membership coins",
        )
    return y.astype(bool)


def _linear(readings: object, n: int) -> Statistic:
    weights = np.asarray(readings, dtype=np.float64)
    if weights.ndim != 2 or weights.shape[1] != n or not len(weights):
        raise UsageError(
            "readings and labels do not fit",
            expected=f"weights of shape (k, {n}), k >= 1",
            got=f"shape {weights.shape}",
            remedy="pass one row per reading; a game outside a reading has weight 0",
        )
    require_finite(weights, "readings", remedy=LEAVE_OUT)
    return lambda labels: np.asarray(labels.astype(np.float64) @ weights.T)


def _call(statistic: Statistic, labels: Bools) -> Floats:
    out = np.asarray(statistic(labels), dtype=np.float64)
    if out.ndim != 2 or len(out) != len(labels):
        raise UsageError(
            "a statistic must give k readings per labelling",
            expected=f"shape ({len(labels)}, k)",
            got=f"shape {out.shape}",
            remedy="return one row per labelling",
        )
    require_finite(out, "readings", remedy=LEAVE_OUT)
    return out
