"""The published plan and a safe one on the same run: what each finds, asks for, and gives away.

Arrays in, arrays out: the models w^{t-1} (T, d) that were handed out, all updates (T, K, d) in the
clear (as a reproduction has them), and the owner's marks. Sums are formed as secure aggregation
would give them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedaudit.arrays import Bools, Floats
from fedaudit.audits.attribution import calibration, estimator, over_rounds, scoring
from fedaudit.audits.attribution.estimator import CandidateUpdates
from fedaudit.audits.attribution.scoring import Marks
from fedaudit.errors import UsageError
from fedaudit.stats import query_algebra, query_plans
from fedaudit.stats.plan_design import best_guess, regression


@dataclass(frozen=True)
class Plan:
    """`queries` per round (Q_t, K), the training aggregate first; `candidates` of each round."""

    queries: tuple[Floats, ...]
    candidates: tuple[CandidateUpdates, ...]


def published_plan(
    clients: int, others: int, repeats: int, rounds: int, rng: np.random.Generator
) -> Plan:
    """The paired subsets of [FedAttr] Eqs. (3) to (5), each distinct subset asked for once."""
    queries, candidates = [], []
    for _ in range(rounds):
        pairs = query_plans.paired_plan(clients, others, repeats, rng)
        rows = np.unique(np.concatenate([p.queries for p in pairs]), axis=0)
        asked = np.concatenate([np.ones((1, clients)), rows[rows.sum(axis=1) < clients]])
        queries.append(asked)
        candidates.append(estimator.published(pairs, asked))
    return Plan(tuple(queries), tuple(candidates))


def safe_plan(groups: npt.ArrayLike) -> Plan:
    """Groups (T, G, K) of a plan of partitions, beside the training aggregate."""
    plan = np.asarray(groups, dtype=np.float64)
    queries, candidates = [], []
    for rows in plan:
        made = estimator.groups(rows)
        queries.append(np.concatenate([np.ones((1, plan.shape[2])), rows]))
        beside = np.concatenate([np.zeros((len(rows), 1)), made.coefficients], axis=1)
        candidates.append(CandidateUpdates(beside, made.design, made.target))
    return Plan(tuple(queries), tuple(candidates))


@dataclass(frozen=True)
class Leakage:
    """Mean cosines of the server's guesses with updates.

    `within` a round, by least squares, with each client's update; with its mean update over all
    rounds by least squares (`across`) and by the best linear guess (`guessed`) of somebody who
    knows how much of an update persists: `persistence`, the mean cosine of two updates of a client.
    """

    within: float
    across: float
    guessed: float
    persistence: float


@dataclass(frozen=True)
class Reading:
    """What a plan gave on one run.

    `named` (K,) with Holm at the error rate, `published` (K,) by gamma (None for groups);
    `published_z` (T, K, S) or None; `change_z` (K, S) or None: Eq. (8)'s sum of raw differences in
    the unit that unused keys give this very sum, which is 1 for a key that nobody used;
    `queries`, `uploads` per round (and client); `smallest` group exposed within a round (proven
    floor of the search); what the sums give away of updates (`leaks`). `design` (R, K), `scores`
    (R, S + U) and `row_rounds` (R,), the round of each, are what was decided on, or `tables` for
    groups whose scores are not linear in updates.
    """

    named: Bools
    published: Bools | None
    published_z: Floats | None
    change_z: Floats | None
    queries: float
    uploads: float
    smallest: int
    leaks: Leakage
    design: Floats
    scores: Floats
    row_rounds: npt.NDArray[np.int64]
    tables: over_rounds.ScoreTables | None = None


def read(
    plan: Plan,
    starts: npt.ArrayLike,
    updates: npt.ArrayLike,
    marks: Marks,
    *,
    unused: int = 999,
    error: float = 0.05,
    threshold: float = 4.0,
) -> Reading:
    """Score one plan's candidates on a run, decide, and measure what its sums give away."""
    w, x = np.asarray(starts, dtype=np.float64), np.asarray(updates, dtype=np.float64)
    if len(w) != len(x) or len(plan.queries) != len(x):
        raise UsageError(
            "plan, models and updates are of different lengths",
            expected=f"{len(x)} rounds",
            got=f"{len(w)} models, {len(plan.queries)} rounds of queries",
            remedy="draw the plan for as many rounds as there are",
        )
    keys, apart = len(marks.keys), bool(getattr(marks, "apart", False))
    linear = bool(getattr(marks, "linear", True))
    designs, scores, singles, changes = [], [], [], []
    for t, candidates in enumerate(plan.candidates):
        decisive = estimator.decisive(candidates, plan.queries[t])
        # C (A x) as (C A) x: sums of large models need not stand in memory
        both = np.concatenate([c.design for c in dict.fromkeys((candidates, decisive))]) @ x[t]
        raw = marks.statistics(np.vstack([w[t][None], w[t] + both]), unused)
        scores.append(scoring.differential(raw[-len(decisive) :], raw[0]))
        designs.append(decisive.design)
        z = scoring.standardised(raw[: 1 + len(candidates)], keys, apart=apart)
        singles.append(scoring.differential(z[1:], z[0]))
        changes.append(scoring.differential(raw[1 : 1 + len(candidates)], raw[0]))
    design, decisive_scores = np.concatenate(designs), np.concatenate(scores)
    row_rounds = calibration.rounds_of_rows(designs)
    single = all((c.target >= 0).all() for c in plan.candidates)
    tables = None
    if not linear and all((c.target < 0).all() for c in plan.candidates):
        means = np.concatenate([c.design @ u for c, u in zip(plan.candidates, x, strict=True)])
        tables = over_rounds.tables(design, means, w[-1], marks, unused, error=error)
        found = over_rounds.decide(design, tables, keys, error, apart=apart)
    else:
        found = calibration.decide(
            design, decisive_scores, keys, error, apart=apart, linear=linear, row_rounds=row_rounds
        )
    published_z = np.stack(singles) if single else None
    flags, change_z = None, None
    if published_z is not None:
        change_z = scoring.standardised(
            scoring.stouffer_by_client(np.stack(changes)), keys, apart=apart
        )
        total = scoring.stouffer_by_client(published_z)
        flags = total.max(axis=1, initial=-np.inf) > threshold
    return Reading(
        named=found.named.flagged,
        published=flags,
        published_z=published_z,
        change_z=change_z,
        queries=float(np.mean([len(q) for q in plan.queries])),
        uploads=float(np.mean([(q != 0).sum(axis=0).mean() for q in plan.queries])),
        smallest=min(query_algebra.smallest_support(q).floor for q in plan.queries),
        leaks=leakage(plan.queries, x),
        design=design,
        scores=decisive_scores,
        row_rounds=row_rounds,
        tables=tables,
    )


def leakage(queries: Sequence[npt.ArrayLike], updates: npt.ArrayLike) -> Leakage:
    """What sums over `queries` (Q_t, K) tell of updates (T, K, d)."""
    x = np.asarray(updates, dtype=np.float64)
    rows = [np.asarray(q, dtype=np.float64) for q in queries]
    each = [_cosines(regression(q).coefficients @ q @ x[t], x[t]) for t, q in enumerate(rows)]
    persists = persistence(x)
    ends = np.cumsum([len(q) for q in rows])
    found = []
    for over in (regression(np.concatenate(rows)).coefficients, best_guess(rows, persists)):
        guess = np.zeros(x.shape[1:])
        for t, q in enumerate(rows):
            guess += over[:, ends[t] - len(q) : ends[t]] @ q @ x[t]
        found.append(float(np.mean(_cosines(guess, x.mean(axis=0)))))
    return Leakage(float(np.mean(each)), found[0], found[1], persists)


def persistence(updates: npt.ArrayLike) -> float:
    """Mean cosine of two updates of a client in two rounds (T, K, d), at least 0; 1 for one round.

    |sum_t x_t / |x_t||^2 = T + sum of the cosines of all ordered pairs.
    """
    x = np.asarray(updates, dtype=np.float64)
    if len(x) < 2:
        return 1.0
    size = np.linalg.norm(x, axis=2, keepdims=True)
    total = np.divide(x, size, out=np.zeros_like(x), where=size > 0).sum(axis=0)
    pairs = ((total**2).sum(axis=1) - len(x)) / (len(x) * (len(x) - 1))
    return float(np.clip(pairs.mean(), 0.0, 1.0))


def _cosines(a: Floats, b: Floats) -> Floats:
    size = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    return np.divide((a * b).sum(axis=1), size, out=np.zeros(len(a)), where=size > 0)
