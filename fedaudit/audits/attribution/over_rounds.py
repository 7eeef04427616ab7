"""Groups of all rounds together: estimate each client's mean update and score it at one model.

The mean of a group of five dilutes one client's mark, and scores that are not linear in an update
show less than a fifth of it. But clients change groups, and much of a client's update is the same
in every round. So the sums of all rounds together estimate each client's mean update, and this
estimate is scored at its full strength.

The model of an update is u_k + noise, with a share `persistence` of the variance in u_k. From group
means S (R, d) with design A (R, K) and sizes N (R,) the best guess of u is

    (A' N A + lambda I)^-1 A' N S,    lambda = (1 - persistence) / persistence.

It contains a part of every client that was ever in a group with this one. So, as for single groups
(`leave_out`), a client is tested on guesses from the groups *without* another client, for every
other client in turn, and the worst p-value counts: another holder of the key is then not in them.

Shapes: means (R, d), design (R, K), scores (K, S + U) for each client left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from fedaudit.arrays import Floats
from fedaudit.audits.attribution import calibration, ranks, scoring
from fedaudit.audits.attribution.calibration import NamingDecision, Sequential
from fedaudit.audits.attribution.leave_out import distinguishable
from fedaudit.audits.attribution.ranks import PValues, needed
from fedaudit.audits.attribution.scoring import Marks

PERSISTENCE = 2 / 3
"""Share of an update's variance that stays from round to round."""

PAIRS = 2000
"""Most guesses for which every client is tested with every other left out. Beyond it, only clients
that would be named with all clients kept are tested further."""


def coefficients(
    design: npt.ArrayLike, left_out: int | None, persistence: float = PERSISTENCE
) -> Floats:
    """Weights (K, R) of group means in each client's guess; 0 for groups with `left_out`."""
    rows = np.asarray(design, dtype=np.float64)
    used = np.ones(len(rows), np.bool_) if left_out is None else rows[:, left_out] == 0
    a = rows[used]
    size = (a != 0).sum(axis=1)
    ridge = (1 - persistence) / persistence * np.eye(rows.shape[1])
    out = np.zeros((rows.shape[1], len(rows)))
    out[:, used] = np.linalg.solve((a.T * size) @ a + ridge, a.T * size)
    return out


@dataclass(frozen=True)
class LeftOutScores:
    """Scores of guesses with one client, or nobody, left out: `clients` (k,), `scores` (k, S + U).

    Clients in none of the groups that remain are missing.
    """

    clients: npt.NDArray[np.int64]
    scores: Floats


ScoreTables = Mapping[int | None, LeftOutScores]
"""By the client left out; None: nobody."""


def tables(
    design: npt.ArrayLike,
    means: npt.ArrayLike,
    model: npt.ArrayLike,
    marks: Marks,
    unused: int,
    *,
    error: float,
    every: bool = True,
) -> ScoreTables:
    """Guess each client's update from group means (R, d) of all rounds so far, score at `model`
    (d,).

    Unless `every`: a client that would not be named at `error` with all clients kept is not tested
    further. Its largest p-value is at least this one, and larger p-values never add names in Holm.
    """
    rows, sent = np.asarray(design, dtype=np.float64), np.asarray(means)
    start = np.asarray(model, dtype=np.float64)
    clients, keys = rows.shape[1], len(marks.keys)
    reference = marks.statistics(start[None], unused)[0]

    def scored(left_out: int | None, which: npt.NDArray[np.int64]) -> LeftOutScores:
        weights = coefficients(rows, left_out)
        there = which[(weights[which] != 0).any(axis=1) & (which != left_out)]
        if not len(there):
            return LeftOutScores(there, np.zeros((0, len(reference))))
        raw = marks.statistics(start + weights[there] @ sent, unused)
        return LeftOutScores(there, scoring.differential(raw, reference))

    out: dict[int | None, LeftOutScores] = {None: scored(None, np.arange(clients))}
    which = np.arange(clients)
    if not every or clients * (clients - 1) > PAIRS:
        apart = bool(getattr(marks, "apart", False))
        which = np.flatnonzero(
            decide(rows, {None: out[None]}, keys, error, apart=apart).named.flagged
        )
    for left_out in range(clients) if len(which) else ():
        out[left_out] = scored(left_out, which)
    return out


def _p_values(table: LeftOutScores, clients: int, keys: int, apart: bool) -> PValues:
    """p-values (K, S) against unused keys; 1 for clients that are not in the table."""
    shape = (clients, keys)
    out = PValues(np.ones(shape), np.zeros(shape, dtype=np.bool_), np.zeros(shape), 0)
    for block in scoring.blocks(table.scores.shape[1], keys, apart):
        out = replace(out, unused=len(block.null))
        if len(table.clients):
            found = ranks.p_values(table.scores[:, block.columns], len(block.own))
            at = np.ix_(table.clients, block.own)
            out.p[at], out.tail[at], out.distance[at] = found.p, found.tail, found.distance
    return out


def p_values(scored: ScoreTables, clients: int, keys: int, *, apart: bool = False) -> PValues:
    """p-values (K, S): for each client the largest over the left-out clients.

    For a client that was not tested further: the p-value with all clients kept. It is a lower limit
    of the largest, and already too large for a name.
    """
    out = _p_values(scored[None], clients, keys, apart)
    asked = {int(k) for j, t in scored.items() if j is not None for k in t.clients}
    followed = np.isin(np.arange(clients), sorted(asked))[:, None]
    for left_out, table in scored.items():
        if left_out is not None:
            each = _p_values(table, clients, keys, apart)
            each = replace(each, p=np.where(followed, each.p, 0.0))
            out = out.worse(each, but=left_out)
    return out


def decide(
    design: npt.ArrayLike, scored: ScoreTables, keys: int, error: float, *, apart: bool = False
) -> NamingDecision:
    """Name clients, with Holm over all clients and keys. `design` (R, K) of the groups."""
    rows = np.asarray(design, dtype=np.float64)
    found = p_values(scored, rows.shape[1], keys, apart=apart)
    testable = distinguishable(rows)
    return NamingDecision(
        found, testable, calibration.name_clients(found.p, error, testable=testable)
    )


def smallest_named(
    design: npt.ArrayLike, scored: ScoreTables, keys: int, error: float, *, apart: bool = False
) -> Floats:
    """As `calibration.smallest_named` (K,), over all tables that a client is in.

    NaN for clients that were not tested further: the value with another client left out is unknown.
    """
    rows = np.asarray(design, dtype=np.float64)
    testable = distinguishable(rows)
    out = np.where(testable, -np.inf, np.inf)
    level = calibration.first_step(error, int(testable.sum()), keys)
    for table in scored.values():
        for block in scoring.blocks(table.scores.shape[1], keys, apart):
            if len(table.clients):
                mine = table.scores[:, block.columns]
                each = needed(mine, len(block.own), level)
                out[table.clients] = np.maximum(out[table.clients], each)
    asked = {int(k) for j, t in scored.items() if j is not None for k in t.clients}
    followed = np.isin(np.arange(len(out)), sorted(asked))
    short = len(scored) == 1 or not followed[testable].all()
    out = np.where(testable & ~followed & short & np.isfinite(out), np.nan, out)
    return np.where(np.isneginf(out), np.inf, out)


def select_columns(
    scored: ScoreTables, columns: npt.NDArray[np.int64]
) -> dict[int | None, LeftOutScores]:
    """The same tables with the keys `columns` alone."""
    return {j: LeftOutScores(t.clients, t.scores[:, columns]) for j, t in scored.items()}


def sequential(
    designs: Sequence[Floats],
    means: Sequence[npt.NDArray[np.float32]],
    models: Sequence[Floats],
    marks: Marks,
    unused: int,
    error: float,
    final: ScoreTables,
) -> Sequential:
    """Test all rounds so far after every round, as `calibration.sequential` does for scores.

    One design (R_t, K), group means (R_t, d) and starting model (d,) per round. `final`: the tables
    of all rounds at the last model.
    """
    keys, apart = len(marks.keys), bool(getattr(marks, "apart", False))
    first = np.zeros(designs[0].shape[1], dtype=np.int64)
    made = 0
    for t in range(1, len(designs) + 1):
        rows = np.concatenate(designs[:t])
        if not distinguishable(rows).any():
            continue  # no client can be tested yet, so no error is spent
        made += 1
        level, scored = calibration.error_at_look(error, made), final
        if t < len(designs):
            sent = np.concatenate(means[:t])
            scored = tables(rows, sent, models[t - 1], marks, unused, error=level, every=False)
        found = decide(rows, scored, keys, level, apart=apart)
        first[(first == 0) & found.named.flagged] = t
    return Sequential(first, made)
