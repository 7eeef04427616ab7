"""What a query plan over several rounds can attribute, and what it leaks across rounds.

A plan is a 0/1 array (T, G, K). Two regressions run over its T G answers:

- of **scores**: a group's score is the sum of its marked members' effects, plus noise. Least
  squares gives every identifiable client's part with its standard deviation.
- of **updates**: the same coefficients applied to the sums estimate every client's mean update. The
  part of an update that persists is estimated well: that is the price of attribution over rounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Annotated

import numpy as np
import numpy.typing as npt
from annotated_types import Gt, Lt

from fedaudit.arrays import Floats
from fedaudit.errors import UsageError
from fedaudit.results import Estimate
from fedaudit.settings import Count, Positive, Share, checked, require
from fedaudit.stats.intervals import wilson

Draw = Callable[[int], npt.NDArray[np.uint8]]
"""Rounds -> a freshly drawn plan (T, G, K)."""

_ALONE = 1e-8  # largest squared part of a unit vector outside the row space


@dataclass(frozen=True)
class Regression:
    """Least squares of clients' parts on the answers of a plan.

    `coefficients` (K, T G) of the answers, of smallest norm; `deviation` (K,) of the estimates for
    answers with independent noise of deviation 1; `identifiable` (K,): whether the answers
    determine the part. Other parts are meaningless.
    """

    coefficients: Floats
    deviation: Floats
    identifiable: npt.NDArray[np.bool_]


def regression(plan: npt.ArrayLike) -> Regression:
    """The regression of a plan (T, G, K), or of stacked queries (Q, K)."""
    rows = np.asarray(plan, dtype=np.float64)
    rows = rows.reshape(-1, rows.shape[-1])
    values, vectors = np.linalg.eigh(rows.T @ rows)
    inside = values > 1e-10 * max(float(values[-1]), 1e-300)
    basis = vectors[:, inside]
    coefficients = (basis / values[inside]) @ (basis.T @ rows.T)
    outside = (vectors[:, ~inside] ** 2).sum(axis=1)
    deviation = np.sqrt(((basis**2) / values[inside]).sum(axis=1))
    return Regression(coefficients, deviation, outside <= _ALONE)


@dataclass(frozen=True, kw_only=True)
@checked("scores", error=UsageError)
class Scores:
    """Effect of marks on scores, in units of the noise of one group's score.

    One marked member adds `effect` to its group's score in one round; `marked` is the number of
    marked clients. A client is flagged if its estimate exceeds the 1 - `error` quantile of its
    noise.
    """

    effect: Positive = 1.0
    marked: Count = 3
    error: Annotated[float, Gt(0), Lt(0.5)] = 0.05

    @property
    def quantile(self) -> float:
        return NormalDist().inv_cdf(1.0 - self.error)


LEAST_LEFT = 0.05
"""Least part of a client's information that must be left once another client is taken out."""


@dataclass(frozen=True)
class Contrasts:
    """Information on clients' parts (K, K) in the answers of a plan (T, G, K), after each round's
    common part is taken out: N = sum of A' P A, with P orthogonal to the groups' sizes.

    A test of one client without another needs the two apart in some round, not full rank: a plan
    may keep the total of a few clients hidden and still tell each of them from each other one.
    """

    information: Floats
    rows: Floats

    @classmethod
    def of(cls, plan: npt.ArrayLike) -> Contrasts:
        groups = np.asarray(plan, dtype=np.float64)
        sizes = groups.sum(axis=2)
        unit = sizes / np.linalg.norm(sizes, axis=1, keepdims=True)
        common = np.einsum("tg,tgk->tk", unit, groups)
        rows = (groups - unit[:, :, None] * common[:, None]).reshape(-1, groups.shape[-1])
        return cls(rows.T @ rows, rows)

    @property
    def left(self) -> Floats:
        """Information (K, K) on client j once client i is taken out; all of it for j itself.

        A mark only adds: a client that would lower the other's estimate stays.
        """
        n = self.information
        own = np.diag(n)
        part = np.divide(np.maximum(n, 0.0) ** 2, own, out=np.zeros_like(n), where=own > 0)
        np.fill_diagonal(part, 0.0)
        return own[:, None] - part

    @property
    def testable(self) -> npt.NDArray[np.bool_]:
        """Clients (K,) that can be tested without each other client."""
        own = np.diag(self.information)
        fine = (self.left >= LEAST_LEFT * own[:, None]).all(axis=1)
        return np.asarray(fine & (own > 1e-9), dtype=np.bool_)

    def least(self, answers: Floats) -> Floats:
        """The smallest z (K,) of each client over whoever is taken out; noise has deviation 1."""
        n, b = self.information, self.rows.T @ answers
        own = np.diag(n)
        part = np.divide(np.maximum(n, 0.0), own, out=np.zeros_like(n), where=own > 0)
        np.fill_diagonal(part, 0.0)
        left = self.left
        fine = left > 1e-9
        z = np.divide(
            b[:, None] - part * b,
            np.sqrt(np.where(fine, left, 1.0)),
            where=fine,
            out=np.zeros_like(left),
        )
        return np.asarray(z.min(axis=1))


def contrast_power(
    draw: Draw, rounds: int, scores: Scores, rng: np.random.Generator, *, runs: int = 200
) -> Power:
    """As `power`, for the test of each client without every other one, which needs no full rank.

    Every marked client holds a key of its own, so that each key is tested where one client holds
    it; benign clients are tested on these keys.
    """
    found, wrong = [], []
    for _ in range(runs):
        plan = np.asarray(draw(rounds))
        contrasts, clients = Contrasts.of(plan), plan.shape[-1]
        _leave_benign(scores, clients)
        answers = rng.standard_normal(len(contrasts.rows))
        holder = int(rng.integers(clients))
        answers = answers + plan.reshape(-1, clients)[:, holder] * scores.effect
        flagged = contrasts.testable & (contrasts.least(answers) > scores.quantile)
        found.append(float(flagged[holder]))
        wrong.append(float(np.delete(flagged, holder).mean()))
    return Power(_share(found), _share(wrong, baseline=scores.error))


def _leave_benign(scores: Scores, clients: int) -> None:
    if scores.marked >= clients:
        raise UsageError(
            "too many clients are marked",
            expected=f"fewer than {clients} marked clients",
            got=str(scores.marked),
            remedy="leave some clients benign, to count false alarms",
        )


def expected_contrast_power(plan: npt.ArrayLike, scores: Scores) -> float:
    """Mean detection probability over clients, each without the client that hides it most.

    A bound from above: the smallest of many z is below that of the one with the least information.
    """
    contrasts = Contrasts.of(plan)
    far = scores.effect * np.sqrt(np.maximum(contrasts.left.min(axis=1), 0.0)) - scores.quantile
    phi = NormalDist().cdf
    fine = contrasts.testable
    return float(np.mean([phi(float(x)) if f else 0.0 for x, f in zip(far, fine, strict=True)]))


@dataclass(frozen=True)
class Power:
    """Flagged shares of marked and of benign clients, with Wilson intervals.

    Clients of one simulated run share its plan and noise, so the intervals count runs, not clients:
    rather too wide than too narrow.
    """

    detected: Estimate
    false_alarms: Estimate


def power(
    draw: Draw, rounds: int, scores: Scores, rng: np.random.Generator, *, runs: int = 200
) -> Power:
    """Detection and false alarms over `runs` fresh plans with random marks and Gaussian noise."""
    found, wrong = [], []
    for _ in range(runs):
        plan = draw(rounds)
        fit = regression(plan)
        clients = plan.shape[-1]
        _leave_benign(scores, clients)
        marked = np.zeros(clients, dtype=np.bool_)
        marked[rng.permutation(clients)[: scores.marked]] = True
        answers = plan.reshape(-1, clients) @ (scores.effect * marked)
        answers = answers + rng.standard_normal(len(answers))
        flagged = fit.identifiable & (fit.coefficients @ answers > scores.quantile * fit.deviation)
        found.append(flagged[marked].mean())
        wrong.append(flagged[~marked].mean())
    return Power(_share(found), _share(wrong, baseline=scores.error))


def _share(parts: list[float], baseline: float | None = None) -> Estimate:
    """The mean share over runs, with Wilson's interval for as many trials as runs."""
    value = float(np.mean(parts))
    near = wilson(round(value * len(parts)), len(parts), baseline=baseline)
    return Estimate(
        value=value,
        low=min(near.low, value),
        high=max(near.high, value),
        n=len(parts),
        confidence=near.confidence,
        baseline=baseline,
        method="Wilson over runs",
    )


def expected_power(plan: npt.ArrayLike, scores: Scores) -> float:
    """Closed form of `power` for one plan: the mean detection probability over clients.

    Least squares is unbiased, so a marked client's z has mean effect / deviation, whichever others
    are marked. A client that is not identifiable is never flagged.
    """
    fit = regression(plan)
    phi = NormalDist().cdf
    each = [
        phi(scores.effect / float(s) - scores.quantile) if fine else 0.0
        for s, fine in zip(fit.deviation, fit.identifiable, strict=True)
    ]
    return float(np.mean(each))


@dataclass(frozen=True)
class RoundsNeeded:
    """Rounds until at most `error` of the marked clients are missed; None: not within `most`.

    `low` and `high` are the rounds for the ends of the 95 % interval of the mean power over plans.
    """

    rounds: int | None
    low: int | None
    high: int | None
    most: int


def rounds_needed(
    draw: Draw,
    scores: Scores,
    *,
    first: int,
    most: int,
    plans: int = 30,
    expected: Callable[[npt.ArrayLike, Scores], float] = expected_power,
) -> RoundsNeeded:
    """Search by doubling and bisection on the mean `expected` power of `plans` fresh plans."""
    known: dict[int, tuple[float, float, float]] = {}

    def at(rounds: int) -> tuple[float, float, float]:
        if rounds not in known:
            each = np.array([expected(draw(rounds), scores) for _ in range(plans)])
            half = 1.96 * float(each.std(ddof=1)) / math.sqrt(plans)
            mean = float(each.mean())
            known[rounds] = (mean, mean - half, mean + half)
        return known[rounds]

    def search(which: int) -> int | None:
        low, high = 0, max(1, first)
        while at(min(high, most))[which] < 1.0 - scores.error:
            if high >= most:
                return None
            low, high = high, 2 * high
        high = min(high, most)
        while high - low > 1:
            middle = (low + high) // 2
            if at(middle)[which] < 1.0 - scores.error:
                low = middle
            else:
                high = middle
        return high

    return RoundsNeeded(search(0), search(2), search(1), most)


def best_guess(queries: Sequence[npt.ArrayLike], persistence: float) -> Floats:
    """Weights (K, R) of all answers in the best linear guess of every client's mean update.

    `queries` (G_t, K) of each round; updates as in `persistence_cosine`. With A the queries of all
    rounds, Cov(x_mean, sums) Cov(sums)^+ = (p + (1 - p) / T) A' (A A' * (p + (1 - p) [same
    round]))^+. Least squares assumes p = 1: near T = (K - 1) / (G - 1) it amplifies the changes
    from round to round, and would report less leakage for more answers.
    """
    _check_persistence(persistence)
    rows = [np.asarray(q, dtype=np.float64) for q in queries]
    stacked = np.concatenate(rows)
    number = np.repeat(np.arange(len(rows)), [len(q) for q in rows])
    alike = np.where(number[:, None] == number, 1.0, persistence)
    inverse = np.linalg.pinv(stacked @ stacked.T * alike, rcond=1e-10, hermitian=True)
    shared = persistence + (1 - persistence) / len(rows)
    return np.asarray(shared * stacked.T @ inverse)


def _check_persistence(persistence: float) -> None:
    remedy = "from 0 (fresh every round) to 1 (the same every round), such as 0.9"
    require(Share, persistence=persistence, remedy=remedy)


def persistence_cosine(plan: npt.ArrayLike, persistence: float, *, best: bool = False) -> Floats:
    """Cosine (K,) between the estimate of a client's mean update over the rounds and the truth.

    By least squares, or by the `best_guess` of an adversary who knows the persistence.

    Updates are x_k^t = sqrt(p) m_k + sqrt(1 - p) n_k^t with independent directions of equal length
    in many dimensions, so that two updates of a client have cosine p, and those of two clients 0;
    inner products then equal their expectations. With p = 1 identifiable clients have cosine 1.
    """
    _check_persistence(persistence)
    p = persistence
    groups = np.asarray(plan, dtype=np.float64)
    rounds, _, clients = groups.shape
    # weight of client j's update of round t in the estimate of client k: (K, T, K)
    by = best_guess([*groups], p) if best else regression(groups).coefficients
    parts = by.reshape(clients, rounds, -1)
    weights = np.einsum("ktg,tgj->ktj", parts, groups)
    own = weights[np.arange(clients), :, np.arange(clients)]  # (K, T)
    inner = p * own.sum(axis=1) + (1 - p) / rounds * own.sum(axis=1)
    across = (weights.sum(axis=1) ** 2).sum(axis=1)
    within = (weights**2).sum(axis=(1, 2))
    size = np.sqrt((p * across + (1 - p) * within) * (p + (1 - p) / rounds))
    return np.divide(inner, size, out=np.zeros(clients), where=size > 0)
