"""Tests that hold what they say: p-values from unused keys, corrected, valid at any time.

Others who did train on the key reach a client's candidate through the design, C A. Three ways out:

    parts       (published pairs, or updates solved for) least-squares parts of each client over
                all rounds, whose deviation adds what unused keys show to what this key's own
                residuals show
    contrast    (updates solved for, scores about linear in them) a client against the others of
                the same rounds; the larger of this and of its parts counts. Parts weigh all rounds
                alike; where late rounds say little, contrasts see more
    exclusion   (groups) a key was handed to one client. Whether it is this one is tested on the
                groups without another client, for every other client in turn, and the worst
                p-value counts: whoever else holds the key is not in what was looked at
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedaudit.arrays import Bools, Floats
from fedaudit.audits.attribution.leave_out import (
    Step,
    against_others,
    alone,
    grouped,
    most_needed,
    separated,
    without_each,
    worst,
)
from fedaudit.audits.attribution.ranks import PValues
from fedaudit.audits.attribution.scoring import blocks
from fedaudit.errors import UsageError
from fedaudit.stats.combine import holm
from fedaudit.stats.plan_design import regression

# -- parts of clients ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Parts:
    """What each client adds to the score of each key, in one round, by least squares.

    `value` (K, S + U); `deviation` (K, S + U) from the residuals of the key (0 where there are no
    degrees of freedom left); `freedom` of them; `identifiable` (K,).
    """

    value: Floats
    deviation: Floats
    freedom: int
    identifiable: Bools


def regress(design: npt.ArrayLike, scores: npt.ArrayLike) -> Parts:
    """Least squares of scores (R, keys) on the design (R, K), rows of all rounds stacked."""
    rows, y = np.asarray(design, dtype=np.float64), np.asarray(scores, dtype=np.float64)
    if rows.ndim != 2 or y.ndim != 2 or len(rows) != len(y) or not len(rows):
        raise UsageError(
            "scores do not fit the design",
            expected="one row of scores per candidate, at least one",
            got=f"design {rows.shape}, scores {y.shape}",
            remedy="stack candidates of all rounds in the same order",
        )
    fit = regression(rows)
    value = fit.coefficients @ y
    freedom = len(rows) - int(np.linalg.matrix_rank(rows))
    left = y - rows @ value
    spread = np.sqrt((left**2).sum(axis=0) / freedom) if freedom else np.zeros(y.shape[1])
    return Parts(value, fit.deviation[:, None] * spread, freedom, fit.identifiable)


def studentised(parts: Parts, keys: int) -> Floats:
    """(K, S + U): parts minus the mean of unused keys, over the deviation of one more key.

    For the owner's keys variances add: between unused keys (a client's own data happen to favour
    some keys, in every round alike), and the residual one of this key beyond that of unused keys:
    others who trained on it make its rounds differ. That only lowers their statistics, so ranks
    among unused keys err on the safe side.
    """
    null = parts.value[:, keys:]
    if null.shape[1] < 3:
        raise UsageError(
            "a null needs unused keys",
            expected="at least 3, better some hundreds",
            got=str(null.shape[1]),
            remedy="score more unused keys",
        )
    between = null.var(axis=1, ddof=1, keepdims=True) * (1 + 1 / null.shape[1])
    usual = (parts.deviation[:, keys:] ** 2).mean(axis=1, keepdims=True)
    beyond = np.maximum(parts.deviation**2 - usual, 0.0)
    beyond[:, keys:] = 0.0
    size = np.sqrt(between + beyond)
    centred = parts.value - null.mean(axis=1, keepdims=True)
    return np.divide(centred, size, out=np.zeros_like(centred), where=size > 0)


@dataclass(frozen=True)
class Named:
    """Clients that are flagged, `flagged` (K,), with the `key` (K,) that points at them most.

    `adjusted` (K,) Holm p-values over all clients and keys: the chance that any flag is wrong is at
    most the level, whatever the dependence.
    """

    flagged: Bools
    key: npt.NDArray[np.int64]
    adjusted: Floats


def name_clients(p: npt.ArrayLike, error: float, *, askable: npt.ArrayLike | None = None) -> Named:
    """Test all keys of the owner on all clients (K, S) and correct for all of them.

    `askable` (K,) clients of whom something can be said; the others are neither tested nor flagged.
    """
    values = np.atleast_2d(np.asarray(p, dtype=np.float64))
    clients, keys = values.shape
    fine = np.ones(clients, dtype=np.bool_) if askable is None else np.asarray(askable, np.bool_)
    adjusted = np.ones((clients, keys))
    if fine.any() and keys:
        adjusted[fine] = holm(values[fine].ravel()).reshape(-1, keys)
    best = values.argmin(axis=1) if keys else np.zeros(clients, dtype=np.int64)
    least = adjusted.min(axis=1, initial=1.0)
    return Named((least <= error) & fine, best.astype(np.int64), least)


@dataclass(frozen=True)
class Decision:
    """`p_values`, of whom anything can be said (`askable`, (K,)), who is `named`."""

    p_values: PValues
    askable: Bools
    named: Named


def decide(
    design: npt.ArrayLike,
    scores: npt.ArrayLike,
    keys: int,
    error: float,
    *,
    apart: bool = False,
    linear: bool = True,
    turn: npt.ArrayLike | None = None,
) -> Decision:
    """Test all clients and keys on candidates of all rounds (R, K), (R, S + U).

    By exclusion where candidates are means of groups (shared weights, none below 0), by parts
    otherwise; where updates were solved for, by contrast too.
    `apart`: every key has unused ones of its own, and is tested among these. `linear`: whether
    scores are about linear in updates. `turn` (R,): the round of each candidate; without it, and
    where scores are not linear, there is no contrast.
    """
    rows, y = np.asarray(design, dtype=np.float64), np.asarray(scores, dtype=np.float64)
    each = []
    for block in blocks(y.shape[1], keys, apart):
        many = len(block.own)
        each.append(worst(_steps(rows, y[:, block.columns], many, linear, turn), many))
    found = PValues(
        np.concatenate([f.p for f in each], axis=1),
        np.concatenate([f.tail for f in each], axis=1),
        np.concatenate([f.far for f in each], axis=1),
        each[0].unused,
    )
    askable = _askable(rows)
    return Decision(found, askable, name_clients(found.p, error, askable=askable))


def _askable(rows: Floats) -> Bools:
    return separated(rows) if grouped(rows) else regression(rows).identifiable


def _steps(
    rows: Floats, y: Floats, keys: int, linear: bool, turn: npt.ArrayLike | None
) -> Iterable[Step]:
    """What speaks for clients, with each of the others left out where that matters."""
    if grouped(rows):
        return without_each(rows, y, keys, linear)
    parts = regress(rows, y)
    by_parts = studentised(parts, keys)
    if linear and turn is not None and alone(rows):
        return against_others(rows, y, keys, np.asarray(turn), by_parts)
    return [(None, ~parts.identifiable, by_parts)]


def smallest_named(
    design: npt.ArrayLike,
    scores: npt.ArrayLike,
    keys: int,
    error: float,
    *,
    apart: bool = False,
    linear: bool = True,
    turn: npt.ArrayLike | None = None,
) -> Floats:
    """How far (K,) a client has to stand out for `decide` to name it whatever the others do.

    In deviations of unused keys, at the level of Holm's first step; the largest over keys with a
    null of their own and over whoever else is left out. Infinite where nothing would suffice.
    """
    rows, y = np.asarray(design, dtype=np.float64), np.asarray(scores, dtype=np.float64)
    askable = _askable(rows)
    out = np.full(rows.shape[1], -np.inf)
    level = first_step(error, int(askable.sum()), keys)
    for block in blocks(y.shape[1], keys, apart):
        many = len(block.own)
        steps = _steps(rows, y[:, block.columns], many, linear, turn)
        out = np.maximum(out, most_needed(steps, many, level))
    return np.where(askable, out, np.inf)


def turns(designs: Sequence[npt.ArrayLike]) -> npt.NDArray[np.int64]:
    """The round (R,) of each row, where designs (R_t, K) of all rounds are stacked."""
    return np.repeat(np.arange(len(designs)), [len(np.asarray(d)) for d in designs])


def first_step(error: float, clients: int, keys: int) -> float:
    """The level that the smallest p-value has to reach: Holm's first step."""
    return error / max(1, clients * keys)


# -- continuing until it suffices ------------------------------------------------------------------


def spent(error: float, look: int) -> float:
    """What look number 1, 2, ... may spend of an error rate: error / (look (look + 1)).

    These sum to `error` over all looks, so that one may stop at any of them ([FedAttr] H.4 proposes
    to stop when the margin suffices, without paying for the looks).
    """
    if look < 1 or not 0 < error < 1:
        raise UsageError(
            "looks are counted from 1, and an error rate lies between 0 and 1",
            expected="look >= 1, 0 < error < 1",
            got=f"look {look}, error {error}",
            remedy="count looks from 1",
        )
    return error / (look * (look + 1))


@dataclass(frozen=True)
class Sequential:
    """`first` (K,) after how many of the rounds a client was named for good, 0 if never; `looks`
    made. Which rounds these were the caller knows: some may have been left out."""

    first: npt.NDArray[np.int64]
    looks: int


def sequential(
    designs: Sequence[npt.ArrayLike],
    scores: Sequence[npt.ArrayLike],
    keys: int,
    error: float,
    *,
    apart: bool = False,
    linear: bool = True,
) -> Sequential:
    """Look after every round at all rounds so far; whoever is named stays named.

    `designs`, `scores`: one (R_t, K) and (R_t, S + U) per round. Valid at any stopping time, within
    `error` over all rounds, clients and keys together.
    """
    clients = np.asarray(designs[0]).shape[1]
    first = np.zeros(clients, dtype=np.int64)
    looks = 0
    for t in range(1, len(designs) + 1):
        rows = np.concatenate([np.asarray(d) for d in designs[:t]])
        if not _askable(rows).any():
            continue  # nothing can be said yet, and nothing is spent
        looks += 1
        so_far = np.concatenate([np.asarray(s) for s in scores[:t]])
        level, turn = spent(error, looks), turns(designs[:t])
        found = decide(rows, so_far, keys, level, apart=apart, linear=linear, turn=turn)
        first[(first == 0) & found.named.flagged] = t
    return Sequential(first, looks)
