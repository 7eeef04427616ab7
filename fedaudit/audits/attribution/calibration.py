"""Tests that hold what they say: p-values from unused keys, corrected, valid at any time.

For a key that nobody trained on, its scores and those of unused keys are exchangeable: whatever
the statistic, its rank among theirs gives an exact p-value ("rank"). Where no unused key reaches
the statistic, the rank only says below 1 / (U + 1), and the tail is carried on ("tail"): as one
more draw from a normal sample, and as one more exceedance over the top tenth of unused keys, which
may be heavier; the larger p-value counts. The error rate of both is measured, not assumed
(`tests/nightly`).

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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedaudit.audits.attribution.scoring import blocks
from fedaudit.errors import UsageError
from fedaudit.stats.combine import holm
from fedaudit.stats.plan_design import regression

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

CARRIED = 50
"""Unused keys from which a tail is carried on beyond all of them."""


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
    does, the tail is carried on, at most the rank's p-value: the larger of Student's with U - 1
    degrees of freedom and that of `_Exceedances`. Below `CARRIED` unused keys the rank is all there
    is.
    """
    from scipy.special import stdtr

    all_keys = np.asarray(statistics, dtype=np.float64)
    own, null = all_keys[:, :keys], np.sort(all_keys[:, keys:], axis=1)
    unused = null.shape[1]
    above = np.stack(
        [unused - np.searchsorted(row, x, side="left") for row, x in zip(null, own, strict=True)]
    ).reshape(own.shape)
    rank = (1 + above) / (unused + 1)
    if unused < CARRIED:
        return PValues(rank, np.zeros(own.shape, dtype=np.bool_), unused)
    centre, spread = null.mean(axis=1, keepdims=True), null.std(axis=1, ddof=1, keepdims=True)
    scale = spread * math.sqrt(1 + 1 / unused)
    z = np.divide(own - centre, scale, out=np.zeros_like(own), where=scale > 0)
    beyond = (above == 0) & (scale > 0)
    carried = np.maximum(stdtr(unused - 1, -z), _Exceedances.of(null).tail(own))
    carried = np.maximum(carried, np.finfo(np.float64).tiny)
    return PValues(np.where(beyond, np.minimum(carried, rank), rank), beyond, unused)


@dataclass(frozen=True)
class _Exceedances:
    """The n largest, a tenth, of sorted unused keys (K, U): what lies beyond the largest of the
    others, at `edge` (K, 1), by y has the probability

        n / U (1 + shape y / mean)^(-1 / shape),    shape = max(1 / n, fitted).

    With 1 / n this is one more draw from an exponential sample of n, as Student's is from a normal
    one. Scores that are means of few terms have heavier tails: there the generalised Pareto shape
    by L-moments (Hosking and Wallis, 1987) is larger, while its scale is kept at the mean.
    """

    share: float
    edge: Floats
    mean: Floats
    shape: Floats

    @classmethod
    def of(cls, null: Floats) -> _Exceedances:
        unused = null.shape[1]
        many = unused // 10
        edge = null[:, unused - many - 1, None]
        over = null[:, unused - many :] - edge
        mean = over.mean(axis=1, keepdims=True)
        weighted = (over * (np.arange(many) / (many - 1))).mean(axis=1, keepdims=True)
        second = 2 * weighted - mean  # the second L-moment
        fitted = 2 - np.divide(mean, second, out=np.full_like(mean, 2.0), where=second > 0)
        return cls(many / unused, edge, mean, np.maximum(fitted, 1 / many))

    def tail(self, own: Floats) -> Floats:
        """(K, S) -> p-values (K, S)."""
        # unused keys that all score alike carry no tail: the rank counts
        far = np.divide(own - self.edge, self.mean, out=np.zeros_like(own), where=self.mean > 0)
        grown = np.log1p(self.shape * np.maximum(far, 0.0)) / self.shape
        return np.asarray(self.share * np.exp(-grown))

    def reached(self, level: float) -> Floats:
        """The score (K, 1) at which the p-value falls to `level`."""
        grown = np.expm1(self.shape * np.log(max(self.share / level, 1.0))) / self.shape
        return np.where(self.mean > 0, self.edge + self.mean * grown, np.inf)


def needed(statistics: npt.ArrayLike, keys: int, level: float) -> Floats:
    """The smallest score (K,) that `p_values` puts at `level` or below, in deviations of unused
    keys from their mean; infinite where none would be."""
    from scipy.special import stdtrit

    null = np.sort(np.asarray(statistics, dtype=np.float64)[:, keys:], axis=1)
    unused = null.shape[1]
    centre, spread = null.mean(axis=1), null.std(axis=1, ddof=1)
    may_reach = math.floor(level * (unused + 1) + 1e-9) - 1  # unused keys that may score as high
    if may_reach >= 0:
        score = null[:, unused - may_reach - 1]
    elif unused >= CARRIED:
        normal = centre - spread * math.sqrt(1 + 1 / unused) * stdtrit(unused - 1, level)
        score = np.maximum(normal, _Exceedances.of(null).reached(level)[:, 0])
        score = np.maximum(score, null[:, -1])
    else:
        score = np.full(len(null), np.inf)
    return np.divide(score - centre, spread, out=np.full(len(null), np.inf), where=spread > 0)


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
    clients = rows.shape[1]
    p, tail = np.zeros((clients, keys)), np.zeros((clients, keys), dtype=np.bool_)
    unused = 0
    for left_out, never, filtered in _without_each(rows, y, keys, linear):
        found = p_values(filtered, keys)
        unused = found.unused
        each = np.where(never[:, None], 1.0, found.p)
        larger = each > p
        if left_out is not None:
            larger[left_out] = False  # nobody is tested against itself
        p, tail = np.where(larger, each, p), np.where(larger, found.tail, tail)
    return PValues(p, tail, unused)


def _without_each(
    rows: Floats, y: Floats, keys: int, linear: bool
) -> Iterator[tuple[int | None, Mask, Floats]]:
    """(who is left out, clients in none of the other groups (K,), what speaks for each (K, keys)).

    Nobody is left out first.
    """
    null = y[:, keys:]
    if null.shape[1] < 10:
        raise UsageError(
            "a null needs unused keys",
            expected="at least 10, better some hundreds",
            got=str(null.shape[1]),
            remedy="score more unused keys",
        )
    # a covariance takes more keys than the size of a score; ranks take all that is left
    aside = np.arange(null.shape[1]) % (3 if linear else 5) == 0
    shape, ranked = null[:, aside], np.concatenate([y[:, :keys], null[:, ~aside]], axis=1)
    clients = rows.shape[1]
    for left_out in (None, *range(clients)):
        at = np.ones(len(rows), np.bool_) if left_out is None else rows[:, left_out] == 0
        filtered = np.zeros((clients, ranked.shape[1]))
        if at.any():
            filtered = (_best if linear else _apart)(rows[at], ranked[at], shape[at])
        yield left_out, ~rows[at].any(axis=0), filtered


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


def smallest_named(
    design: npt.ArrayLike,
    scores: npt.ArrayLike,
    keys: int,
    error: float,
    *,
    apart: bool = False,
    linear: bool = True,
) -> Floats:
    """How far (K,) a client has to stand out for `decide` to name it whatever the others do.

    In deviations of unused keys, at the level of Holm's first step; the largest over keys with a
    null of their own and over whoever else is left out. Infinite where nothing would suffice.
    """
    rows, y = np.asarray(design, dtype=np.float64), np.asarray(scores, dtype=np.float64)
    askable = separated(rows) if _grouped(rows) else regression(rows).identifiable
    out = np.full(rows.shape[1], -np.inf)
    level = first_step(error, int(askable.sum()), keys)
    for block in blocks(y.shape[1], keys, apart):
        mine, many = y[:, block.columns], len(block.own)
        if _grouped(rows):
            for left_out, _, filtered in _without_each(rows, mine, many, linear):
                each = needed(filtered, many, level)
                if left_out is not None:
                    each[left_out] = -np.inf
                out = np.maximum(out, each)
        else:
            out = np.maximum(out, needed(studentised(regress(rows, mine), many), many, level))
    return np.where(askable, out, np.inf)


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
        known = separated(rows) if _grouped(rows) else regression(rows).identifiable
        if not known.any():
            continue  # nothing can be said yet, and nothing is spent
        looks += 1
        so_far = np.concatenate([np.asarray(s) for s in scores[:t]])
        found = decide(rows, so_far, keys, spent(error, looks), apart=apart, linear=linear)
        first[(first == 0) & found.named.flagged] = t
    return Sequential(first, looks)
