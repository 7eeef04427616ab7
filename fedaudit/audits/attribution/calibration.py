"""Calibrated tests: p-values from unused keys, corrected for multiple tests, valid at any time.

Other clients that trained on the key reach a client's candidate through the design, C A. Three
tests allow for that:

    parts       (published pairs, or solved updates) least-squares part of each client over all
                rounds. Its deviation combines the spread of unused keys with this key's own
                residuals
    contrast    (solved updates, scores about linear in them) a client against the others of the
                same rounds. The larger of this and the client's part counts. Parts weigh all
                rounds equally; contrasts see more where late rounds say little
    exclusion   (groups) one client holds the key. The test of a client uses only the groups
                without another client, for every other client in turn, and the worst p-value
                counts: any other holder of the key is then outside the tested groups
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedaudit.arrays import Bools, Floats
from fedaudit.audits.attribution.leave_out import (
    Exclusion,
    against_others,
    distinguishable,
    grouped,
    most_needed,
    of_single_clients,
    without_each,
    worst,
)
from fedaudit.audits.attribution.ranks import PValues
from fedaudit.audits.attribution.scoring import blocks, need_unused
from fedaudit.errors import UsageError
from fedaudit.settings import Count, Fraction, require
from fedaudit.stats.combine import holm
from fedaudit.stats.plan_design import regression

# -- parts of clients ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Parts:
    """What each client adds to the score of each key, in one round, by least squares.

    `value` (K, S + U); `deviation` (K, S + U) from the residuals of the key, 0 without degrees of
    freedom; `freedom`: degrees of freedom; `identifiable` (K,).
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

    For the owner's keys two variances add. The first is the variance between unused keys: a
    client's own data favour some keys by chance, in every round. The second is this key's residual
    variance beyond that of unused keys: other clients that trained on it make its rounds differ.
    This only lowers the owner's statistics, so ranks among unused keys are conservative.
    """
    null = parts.value[:, keys:]
    need_unused(null, 3)
    between = null.var(axis=1, ddof=1, keepdims=True) * (1 + 1 / null.shape[1])
    usual = (parts.deviation[:, keys:] ** 2).mean(axis=1, keepdims=True)
    beyond = np.maximum(parts.deviation**2 - usual, 0.0)
    beyond[:, keys:] = 0.0
    size = np.sqrt(between + beyond)
    centred = parts.value - null.mean(axis=1, keepdims=True)
    return np.divide(centred, size, out=np.zeros_like(centred), where=size > 0)


@dataclass(frozen=True)
class NamedClients:
    """`flagged` (K,) clients, and the `key` (K,) with the smallest p-value of each.

    `adjusted` (K,): Holm p-values over all clients and keys. The chance of any wrong flag is at
    most the level, under any dependence.
    """

    flagged: Bools
    key: npt.NDArray[np.int64]
    adjusted: Floats


def name_clients(
    p: npt.ArrayLike, error: float, *, testable: npt.ArrayLike | None = None
) -> NamedClients:
    """Flag clients from p-values (K, S) of all clients and owner's keys, corrected by Holm.

    `testable` (K,): clients that the sums tell apart. The others are neither tested nor flagged.
    """
    values = np.atleast_2d(np.asarray(p, dtype=np.float64))
    clients, keys = values.shape
    fine = np.ones(clients, dtype=np.bool_) if testable is None else np.asarray(testable, np.bool_)
    adjusted = np.ones((clients, keys))
    if fine.any() and keys:
        adjusted[fine] = holm(values[fine].ravel()).reshape(-1, keys)
    best = values.argmin(axis=1) if keys else np.zeros(clients, dtype=np.int64)
    least = adjusted.min(axis=1, initial=1.0)
    return NamedClients((least <= error) & fine, best.astype(np.int64), least)


@dataclass(frozen=True)
class NamingDecision:
    """`p_values` of clients and keys, `testable` (K,) clients, and the clients that are `named`."""

    p_values: PValues
    testable: Bools
    named: NamedClients


def decide(
    design: npt.ArrayLike,
    scores: npt.ArrayLike,
    keys: int,
    error: float,
    *,
    apart: bool = False,
    linear: bool = True,
    row_rounds: npt.ArrayLike | None = None,
) -> NamingDecision:
    """Test all clients and keys on candidates of all rounds (R, K), (R, S + U).

    Means of groups (shared weights, none below 0) are tested by exclusion, all others by parts, and
    solved updates by contrast too. `apart`: every key is tested among unused keys of its own.
    `linear`: scores are about linear in updates. `row_rounds` (R,): the round of each candidate.
    The contrast needs both `linear` and `row_rounds`.
    """
    rows, y = np.asarray(design, dtype=np.float64), np.asarray(scores, dtype=np.float64)
    each = []
    for block in blocks(y.shape[1], keys, apart):
        many = len(block.own)
        each.append(worst(_steps(rows, y[:, block.columns], many, linear, row_rounds), many))
    found = PValues(
        np.concatenate([f.p for f in each], axis=1),
        np.concatenate([f.tail for f in each], axis=1),
        np.concatenate([f.distance for f in each], axis=1),
        each[0].unused,
    )
    testable = _testable(rows)
    return NamingDecision(found, testable, name_clients(found.p, error, testable=testable))


def _testable(rows: Floats) -> Bools:
    return distinguishable(rows) if grouped(rows) else regression(rows).identifiable


def _steps(
    rows: Floats, y: Floats, keys: int, linear: bool, row_rounds: npt.ArrayLike | None
) -> Iterable[Exclusion]:
    """Statistics of all clients, with each other client left out where that matters."""
    if grouped(rows):
        return without_each(rows, y, keys, linear)
    parts = regress(rows, y)
    by_parts = studentised(parts, keys)
    if linear and row_rounds is not None and of_single_clients(rows):
        return against_others(rows, y, keys, np.asarray(row_rounds), by_parts)
    return [(None, ~parts.identifiable, by_parts)]


def smallest_named(
    design: npt.ArrayLike,
    scores: npt.ArrayLike,
    keys: int,
    error: float,
    *,
    apart: bool = False,
    linear: bool = True,
    row_rounds: npt.ArrayLike | None = None,
) -> Floats:
    """How far (K,) a client has to stand out for `decide` to name it, whatever the others do.

    In deviations of unused keys, at the level of Holm's first step: the largest over keys with
    separate nulls and over left-out clients. Infinite if no score suffices.
    """
    rows, y = np.asarray(design, dtype=np.float64), np.asarray(scores, dtype=np.float64)
    testable = _testable(rows)
    out = np.full(rows.shape[1], -np.inf)
    level = first_step(error, int(testable.sum()), keys)
    for block in blocks(y.shape[1], keys, apart):
        many = len(block.own)
        steps = _steps(rows, y[:, block.columns], many, linear, row_rounds)
        out = np.maximum(out, most_needed(steps, many, level))
    return np.where(testable, out, np.inf)


def rounds_of_rows(designs: Sequence[npt.ArrayLike]) -> npt.NDArray[np.int64]:
    """The round (R,) of each row of the stacked designs (R_t, K)."""
    return np.repeat(np.arange(len(designs)), [len(np.asarray(d)) for d in designs])


def first_step(error: float, clients: int, keys: int) -> float:
    """The level of Holm's first step, which the smallest p-value has to reach."""
    return error / max(1, clients * keys)


# -- stopping at any round -------------------------------------------------------------------------


def error_at_look(error: float, look: int) -> float:
    """The share of an error rate that look number 1, 2, ... may spend: error / (look (look + 1)).

    The shares sum to `error` over all looks, so stopping at any look is valid. [FedAttr] H.4 stops
    when the margin suffices, without paying for the looks.
    """
    require(Count, look=look, remedy="count looks from 1")
    require(Fraction, error=error)
    return error / (look * (look + 1))


@dataclass(frozen=True)
class Sequential:
    """`first` (K,): number of rounds after which a client is named, 0 if never. `looks`: looks
    made.

    Rounds are counted among those read: the caller knows which were left out.
    """

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
    """Test all rounds so far after every round; a named client stays named.

    `designs`, `scores`: one (R_t, K) and (R_t, S + U) per round. Valid at any stopping time:
    `error` covers all rounds, clients and keys together.
    """
    clients = np.asarray(designs[0]).shape[1]
    first = np.zeros(clients, dtype=np.int64)
    looks = 0
    for t in range(1, len(designs) + 1):
        rows = np.concatenate([np.asarray(d) for d in designs[:t]])
        if not _testable(rows).any():
            continue  # no client can be tested yet, so no error is spent
        looks += 1
        so_far = np.concatenate([np.asarray(s) for s in scores[:t]])
        level, row_rounds = error_at_look(error, looks), rounds_of_rows(designs[:t])
        found = decide(rows, so_far, keys, level, apart=apart, linear=linear, row_rounds=row_rounds)
        first[(first == 0) & found.named.flagged] = t
    return Sequential(first, looks)
