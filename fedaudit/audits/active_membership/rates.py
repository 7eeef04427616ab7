"""Rates of correct answers in one set of games, with intervals, and what a set can show.

Independent games: coins are fair, so the number of correct answers is binomial and the interval of
the success rate is Clopper and Pearson's, at the stated level. Success and AUC read the same games:
one max-T test over both decides, and shares its error with the games against single clients. F1
grows with both rates; its interval, from the ends of two intervals that share the error rate, is
wider than stated. Published trials: games of a trial share
data and targets, so the bootstrap resamples whole trials.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedaudit.arrays import Bools, Floats, Indices
from fedaudit.results import Bound, Estimate, FamilyTest, Underpowered
from fedaudit.stats import max_t, roc
from fedaudit.stats.combine import holm, two_halves
from fedaudit.stats.intervals import bootstrap, clopper_pearson, clopper_pearson_bounds

Estimates = dict[str, Estimate | Underpowered]

MOST_GAMES = 1 << 22
"""Largest number of games to ask for: a ceiling that needs more is as good as chance."""


@dataclass(frozen=True)
class Counts:
    """Members called members (`found`), and non-members not called (`cleared`)."""

    found: int
    members: int
    cleared: int
    others: int

    @classmethod
    def of(cls, called: Bools, member: Bools) -> Counts:
        return cls(
            int((called & member).sum()),
            int(member.sum()),
            int((~called & ~member).sum()),
            int((~member).sum()),
        )

    @property
    def games(self) -> int:
        return self.members + self.others


def success(c: Counts, confidence: float) -> Estimate | Underpowered:
    """Share of correct answers, chance 1/2: with fair coins its mean is (TPR + TNR) / 2."""
    if not c.members or not c.others:
        return Underpowered(what="a success rate", have=min(c.members, c.others), needed=1)
    found = clopper_pearson(c.found + c.cleared, c.games, confidence, baseline=0.5)
    return replace(found, method="Clopper-Pearson (fair coins)")


@dataclass(frozen=True)
class GamesTest:
    """The test of all readings, client -> its p-value adjusted for readings and clients, and the
    smallest success that the test would have seen (None: none at all)."""

    test: FamilyTest
    clients: Mapping[str, float]
    detectable: float | None


def readings_test(
    values: Floats,
    member: Bools,
    cut: float,
    confidence: float,
    rng: np.random.Generator,
    clients: Mapping[str, Counts] | None = None,
) -> GamesTest:
    """One test of success and AUC of independent games, and of single clients' own games.

    One-sided at (1 - confidence) / 2, the error above an interval. With fair coins every labelling
    of the games is equally likely if scores say nothing about membership, and the correct answers
    about a client are binomial. Readings (max-T) and clients (exact, Holm) are two halves of one
    family.
    """
    called = values > cut
    found = max_t.max_t(
        [max_t.success_weights(called), max_t.rank_weights(values)], member, rng=rng, coins=True
    )
    level = (1.0 - confidence) / 2.0
    alone = {n: _by_chance(c) for n, c in (clients or {}).items() if c.games}
    corrected = holm(list(alone.values())) if alone else np.ones(0)
    one, two = two_halves(found.p, float(corrected.min())) if alone else (1.0, 1.0)
    success, auc = (min(1.0, float(p) * one) for p in found.adjusted)
    # the statistic is the number of correct answers minus that of games not called
    critical = float(found.critical(level / 2 if alone else level)[0])
    least = (critical + float((~called).sum())) / len(member)
    drawn = (
        f"in all {found.labellings:,} ways" if found.exact else f"{found.labellings - 1:,} times"
    )
    method = f"max-T over readings, fair coins drawn anew {drawn}"
    if alone:
        method += f"; {len(alone)} clients exactly; Holm over both"
    test = FamilyTest(
        adjusted={"success": success, "auc": auc},
        decided=("success", "auc")[found.decided],
        level=level,
        method=method,
    )
    p_of = {n: min(1.0, float(p) * two) for n, p in zip(alone, corrected, strict=True)}
    return GamesTest(test, p_of, least if least <= 1.0 else None)


def _by_chance(c: Counts) -> float:
    """The chance of at least as many correct answers without a leak: fair coins."""
    from scipy.special import bdtrc

    right = c.found + c.cleared
    return float(bdtrc(right - 1, c.games, 0.5)) if right else 1.0


ALWAYS_YES = 2.0 / 3.0
"""F1 of always saying yes, if half of the games have a member."""


def f1(c: Counts, confidence: float) -> Estimate | Underpowered:
    """2 TP / (2 TP + FP + FN) for a fair coin; always saying yes gives 2/3."""
    return _from_both_rates(
        c, confidence, lambda tpr, tnr: 2.0 * tpr / (tpr + 2.0 - tnr), ALWAYS_YES
    )


def _from_both_rates(
    c: Counts, confidence: float, function: Callable[[float, float], float], baseline: float
) -> Estimate | Underpowered:
    """A function that grows with both rates, with a conservative interval."""
    if not c.members or not c.others:
        return Underpowered(what="a success rate", have=min(c.members, c.others), needed=1)
    tail = (1.0 - confidence) / 4.0  # two rates, two sides
    low, high = clopper_pearson_bounds(
        np.array([c.found, c.cleared]), np.array([c.members, c.others]), tail
    )
    return Estimate(
        value=function(c.found / c.members, c.cleared / c.others),
        low=function(float(low[0]), float(low[1])),
        high=function(float(high[0]), float(high[1])),
        n=c.members + c.others,
        confidence=confidence,
        baseline=baseline,
        method="Clopper-Pearson on both rates",
    )


def from_independent_games(
    values: Floats, member: Bools, cut: float, confidence: float, *, corner: bool = True
) -> Estimates:
    """Estimates from independent games with scores `values` (G,).

    `corner` adds the true-positive rate at few false positives.
    """
    c = Counts.of(values > cut, member)
    out: Estimates = {"success": success(c, confidence)}
    if c.members and c.others:
        # a blind guess says yes to members as often as to non-members
        out["true_positive_rate"] = clopper_pearson(
            c.found, c.members, confidence, baseline=1.0 - c.cleared / c.others
        )
        out["true_negative_rate"] = clopper_pearson(
            c.cleared, c.others, confidence, baseline=1.0 - c.found / c.members
        )
    out["f1"] = f1(c, confidence)
    out["auc"] = roc.auc(values, member, confidence=confidence)
    if corner:
        out["true_positive_rate (at 1 %)"] = roc.true_positive_rate_at(
            values, member, 0.01, confidence=confidence
        )
    return out


def from_trials(
    values: Floats,
    member: Bools,
    trial: Indices,
    cut: float,
    confidence: float,
    rng: np.random.Generator,
) -> Estimates:
    """The same for published trials; intervals resample whole trials."""
    called = values > cut
    rows = []
    areas = []
    for t in np.unique(trial):
        own = trial == t
        c = Counts.of(called[own], member[own])
        rows.append([c.found, c.members, c.cleared, c.others])
        area = roc.auc(values[own], member[own], confidence=confidence)
        if isinstance(area, Estimate):
            areas.append(area.value)
    counts = np.array(rows, dtype=np.float64)

    def rates(stack: Floats) -> tuple[Floats, Floats]:
        total = stack.sum(axis=1)
        return total[:, 0] / np.maximum(total[:, 1], 1), total[:, 2] / np.maximum(total[:, 3], 1)

    def resampled(function: Callable[[Floats, Floats], Floats], baseline: float) -> Any:
        found = bootstrap(
            counts,
            lambda stack: function(*rates(stack)),
            rng=rng,
            confidence=confidence,
            baseline=baseline,
        )
        if isinstance(found, Estimate):
            return replace(found, method=f"bootstrap over {len(counts)} trials")
        return found

    tpr, tnr = (float(rate[0]) for rate in rates(counts[None]))
    out: Estimates = {
        "success": resampled(lambda p, q: 0.5 * (p + q), 0.5),
        "true_positive_rate": resampled(lambda p, q: p, 1.0 - tnr),
        "true_negative_rate": resampled(lambda p, q: q, 1.0 - tpr),
        "f1": resampled(lambda p, q: 2.0 * p / (p + 2.0 - q), ALWAYS_YES),
    }
    area = bootstrap(np.array(areas), rng=rng, confidence=confidence, baseline=0.5)
    if isinstance(area, Estimate):
        area = replace(area, method=f"mean over trials, bootstrap over {len(areas)} of them")
    out["auc"] = area
    return out


def smallest_success(games: int, confidence: float) -> float:
    """The smallest success rate of this many games whose interval lies above one half.

    Infinite if even a success in every game does not.
    """
    right = np.arange(games + 1)
    low = clopper_pearson_bounds(right, games, (1.0 - confidence) / 2.0)[0]
    seen = np.flatnonzero(low > 0.5)
    return float(right[seen[0]] / games) if len(seen) else math.inf


def detectable_by_trials(found: Estimate) -> float | None:
    """The smallest success whose interval would lie above one half, if trials spread like these.

    None if these trials do not spread at all.
    """
    reach = found.value - found.low
    return min(1.0, 0.5 + reach) if reach > 0 else None


def _is_detectable(success: float, games: int, confidence: float) -> bool:
    """Whether this many games would show a success just below `success`."""
    just_below = math.ceil(success * games) - 1
    return bool(clopper_pearson_bounds(just_below, games, (1.0 - confidence) / 2.0)[0] > 0.5)


def too_few_for_ceilings(
    games: int, detectable: float | None, bounds: Mapping[str, Bound], confidence: float
) -> tuple[Underpowered, ...]:
    """Underpowered if `games` would not show even an adversary at the ceiling."""
    tops = [b.value for b in bounds.values() if b.kind == "upper" and b.of == "success"]
    if not tops or min(tops) <= 0.5 or (detectable is not None and detectable < min(tops)):
        return ()
    needed = 2 * games
    while needed < MOST_GAMES and not _is_detectable(min(tops), needed, confidence):
        needed *= 2
    what = f"a success of {min(tops):.4g}, the most any adversary can reach here: games"
    return (Underpowered(what=what, have=games, needed=needed, measure="success"),)
