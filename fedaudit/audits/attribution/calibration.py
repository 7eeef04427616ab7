"""Tests that hold what they say: p-values from unused keys, corrected, valid at any time.

For a key that nobody trained on, its scores and those of unused keys are exchangeable: whatever
the statistic, its rank among theirs gives an exact p-value ("rank"). Where no unused key reaches
the statistic, the rank only says below 1 / (U + 1), and the tail is carried on by Student's
distribution of one more draw from a normal sample ("tail"). The error rate of both is measured, not
assumed (`tests/nightly`).

Others who did train on the key reach a client's candidate through the design, C A. Two ways out:

    parts       (published pairs, or updates solved for) least-squares parts of each client over
                all rounds, whose deviation adds what unused keys show to what this key's own
                residuals show
    exclusion   (groups) a key was handed to one client. Whether it is this one is tested on the
                groups without another client, for every other client in turn, and the worst
                p-value counts: whoever else holds the key is not in what was looked at
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedaudit.audits.attribution.scoring import blocks
from fedaudit.errors import UsageError
from fedaudit.results import Estimate, Underpowered
from fedaudit.stats import intervals
from fedaudit.stats.combine import holm
from fedaudit.stats.plan_design import regression

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]


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
    identifiable: Mask


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


# -- p-values --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PValues:
    """`p` (K, S) of every client and key; `tail` (K, S) where it rests on the carried-on tail."""

    p: Floats
    tail: Mask
    unused: int

    @property
    def floor(self) -> float:
        """The smallest p-value that ranks alone can give."""
        return 1 / (self.unused + 1)


def p_values(statistics: npt.ArrayLike, keys: int) -> PValues:
    """From statistics (K, S + U) of which the first S are the owner's keys.

    Rank: (1 + unused keys that score as high) / (U + 1), exact for exchangeable keys. If none
    does: Student's tail with U - 1 degrees of freedom, at most the rank's p-value.
    """
    from scipy.special import stdtr

    all_keys = np.asarray(statistics, dtype=np.float64)
    own, null = all_keys[:, :keys], np.sort(all_keys[:, keys:], axis=1)
    unused = null.shape[1]
    above = np.stack(
        [unused - np.searchsorted(row, x, side="left") for row, x in zip(null, own, strict=True)]
    ).reshape(own.shape)
    rank = (1 + above) / (unused + 1)
    centre, spread = null.mean(axis=1, keepdims=True), null.std(axis=1, ddof=1, keepdims=True)
    scale = spread * math.sqrt(1 + 1 / unused)
    z = np.divide(own - centre, scale, out=np.zeros_like(own), where=scale > 0)
    beyond = (above == 0) & (scale > 0)
    carried = np.maximum(stdtr(unused - 1, -z), np.finfo(np.float64).tiny)
    return PValues(np.where(beyond, np.minimum(carried, rank), rank), beyond, unused)


@dataclass(frozen=True)
class Named:
    """Clients that are flagged, `flagged` (K,), with the `key` (K,) that points at them most.

    `adjusted` (K,) Holm p-values over all clients and keys: the chance that any flag is wrong is at
    most the level, whatever the dependence.
    """

    flagged: Mask
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


# -- groups: with whom else it might be ------------------------------------------------------------


def separated(design: npt.ArrayLike) -> Mask:
    """Clients (K,) whom the groups (R, K) tell from every other: one with them and without it."""
    inside = (np.asarray(design, dtype=np.float64) != 0).astype(np.int64)
    apart = inside.T @ (1 - inside)  # (j, i): rows with j and without i
    np.fill_diagonal(apart, 1)
    return np.asarray((apart > 0).all(axis=1) & inside.any(axis=0))


def exclusion_p_values(
    design: npt.ArrayLike, scores: npt.ArrayLike, keys: int, *, linear: bool = True
) -> PValues:
    """p-values (K, S) from groups, whoever of the others holds the key (one client at most).

    For every other client i the groups without i are looked at alone: whatever is made of their
    scores, i's mark is in none of them. What speaks for the client there, `_best` where scores are
    `linear` in updates and `_apart` where not, is ranked among unused keys. The largest of these
    p-values, and of that on all groups, is valid whoever i is. Some of the unused keys tell the
    noise, the others give the ranks: those stay exact.
    """
    rows, y = np.asarray(design, dtype=np.float64), np.asarray(scores, dtype=np.float64)
    null = y[:, keys:]
    if null.shape[1] < 10:
        raise UsageError(
            "a null needs unused keys",
            expected="at least 10, better some hundreds",
            got=str(null.shape[1]),
            remedy="score more unused keys",
        )
    # a covariance takes many keys, the size of a score takes few
    aside = np.arange(null.shape[1]) % (2 if linear else 5) == 0
    shape, ranked = null[:, aside], np.concatenate([y[:, :keys], null[:, ~aside]], axis=1)
    clients = rows.shape[1]
    p, tail = np.zeros((clients, keys)), np.zeros((clients, keys), dtype=np.bool_)
    for left_out in (None, *range(clients)):
        at = np.ones(len(rows), np.bool_) if left_out is None else rows[:, left_out] == 0
        filtered = np.zeros((clients, ranked.shape[1]))
        if at.any():
            filtered = (_best if linear else _apart)(rows[at], ranked[at], shape[at])
        found = p_values(filtered, keys)
        never = ~rows[at].any(axis=0)
        each = np.where(never[:, None], 1.0, found.p)
        larger = each > p
        if left_out is not None:
            larger[left_out] = False  # nobody is tested against itself
        p, tail = np.where(larger, each, p), np.where(larger, found.tail, tail)
    return PValues(p, tail, ranked.shape[1] - keys)


def _best(design: Floats, scores: Floats, shape: Floats) -> Floats:
    """d_j' C^-1 (y - mean) of every client and key (K, keys), C the covariance of `shape`.

    The best filter if a mark adds its part to every group with the client, and nothing elsewhere.
    """
    centre = shape.mean(axis=1, keepdims=True)
    c = np.atleast_2d(np.cov(shape))
    # unused keys are finitely many, and scores of a round's groups nearly add up to its total
    c = c + np.eye(len(c)) * (len(c) / shape.shape[1]) * float(np.trace(c)) / len(c)
    return np.asarray(design.T @ np.linalg.solve(c, scores - centre))


def _apart(design: Floats, scores: Floats, shape: Floats) -> Floats:
    """Groups with each client against those without it: (K, keys) from (R, K) and (R, keys).

    For marks that are learnt, and forgotten: a group without the client scores below a reference
    that knows its mark. Scores are in units of unused keys, row by row. All rows share an offset,
    about as large as the noise of one: of R rows R / (R + 1) of their mean is taken off, so that a
    client who was in all of them can still be told from nobody.
    """
    centred = scores - shape.mean(axis=1, keepdims=True)
    spread = shape.std(axis=1, ddof=1, keepdims=True)
    y = np.divide(centred, spread, out=np.zeros_like(centred), where=spread > 0)
    weights = design - design.sum(axis=0) / (len(design) + 1)
    return np.asarray(weights.T @ y)


def _grouped(design: Floats) -> bool:
    """Whether candidates are means of groups: weights are shared, and none is below 0."""
    return bool((design >= 0).all() and ((design != 0).sum(axis=1) > 1).any())


@dataclass(frozen=True)
class Decision:
    """`p_values`, of whom anything can be said (`askable`, (K,)), who is `named`."""

    p_values: PValues
    askable: Mask
    named: Named


def decide(
    design: npt.ArrayLike,
    scores: npt.ArrayLike,
    keys: int,
    error: float,
    *,
    apart: bool = False,
    linear: bool = True,
) -> Decision:
    """Test all clients and keys on candidates of all rounds (R, K), (R, S + U).

    By exclusion where candidates are means of groups (shared weights, none below 0), by parts
    otherwise.
    `apart`: every key has unused ones of its own, and is tested among these. `linear`: whether
    scores are about linear in updates.
    """
    rows, y = np.asarray(design, dtype=np.float64), np.asarray(scores, dtype=np.float64)
    each = []
    for block in blocks(y.shape[1], keys, apart):
        mine, many = y[:, block.columns], len(block.own)
        if _grouped(rows):
            found = exclusion_p_values(rows, mine, many, linear=linear)
            askable = separated(rows)
        else:
            parts = regress(rows, mine)
            found, askable = p_values(studentised(parts, many), many), parts.identifiable
        each.append(found)
    found = PValues(
        np.concatenate([f.p for f in each], axis=1),
        np.concatenate([f.tail for f in each], axis=1),
        each[0].unused,
    )
    return Decision(found, askable, name_clients(found.p, error, askable=askable))


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
    """`first` (K,) the round after which a client was named for good, 0 if never; `looks` made."""

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
        known = separated(rows) if _grouped(rows) else regression(rows).identifiable
        if not known.any():
            continue  # nothing can be said yet, and nothing is spent
        looks += 1
        so_far = np.concatenate([np.asarray(s) for s in scores[:t]])
        found = decide(rows, so_far, keys, spent(error, looks), apart=apart, linear=linear)
        first[(first == 0) & found.named.flagged] = t
    return Sequential(first, looks)


# -- the constants of Assumption 1 -----------------------------------------------------------------


@dataclass(frozen=True)
class Constants:
    """m, eps and nu of [FedAttr] Assumption 1 as far as a run shows them (Figure 2).

    `signal` the mean score of marked clients, `drift` the largest absolute mean over benign
    clients, `noise` the deviation within clients. The assumption asks for bounds over all clients
    and rounds, and for sub-Gaussian tails: estimates of them are what such a run can give.
    """

    signal: Estimate | Underpowered
    drift: Estimate | Underpowered
    noise: Estimate | Underpowered


def assumption_constants(
    scores: npt.ArrayLike,
    marked: npt.ArrayLike,
    rng: np.random.Generator,
    *,
    confidence: float = 0.95,
) -> Constants:
    """From differential scores (T, K), NaN where a client was absent; clients are resampled."""
    z, is_marked = np.asarray(scores, dtype=np.float64), np.asarray(marked, dtype=np.bool_)
    means = np.nanmean(z, axis=0)
    left = z - means
    rounds = (~np.isnan(z)).sum(axis=0)
    squares = np.nansum(left**2, axis=0)
    freedom = rounds - 1
    signal = _resampled(means[is_marked], _mean, rng, confidence, "signal m")
    drift = _resampled(np.abs(means[~is_marked]), _largest, rng, confidence, "drift eps")
    if freedom.sum() < 2:
        noise: Estimate | Underpowered = Underpowered(
            what="noise nu", have=int(freedom.sum()), needed=2
        )
    else:
        from scipy.special import chdtri

        total, df = float(squares.sum()), int(freedom.sum())
        tail = (1 - confidence) / 2
        noise = Estimate(
            value=math.sqrt(total / df),
            low=math.sqrt(total / chdtri(df, tail)),
            high=math.sqrt(total / chdtri(df, 1 - tail)),
            n=df,
            confidence=confidence,
            method="pooled within clients, chi-squared",
        )
    return Constants(signal, drift, noise)


def _mean(stack: Floats) -> Floats:
    return np.asarray(stack.mean(axis=1))


def _largest(stack: Floats) -> Floats:
    return np.asarray(stack.max(axis=1))


def _resampled(
    values: Floats,
    statistic: Callable[[Floats], Floats],
    rng: np.random.Generator,
    confidence: float,
    what: str,
) -> Estimate | Underpowered:
    if len(values) < 2:
        return Underpowered(what=what, have=len(values), needed=2)
    return intervals.bootstrap(values, statistic, rng=rng, confidence=confidence)
