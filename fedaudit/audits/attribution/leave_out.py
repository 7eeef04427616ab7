"""Whoever else holds the key: tests of one client that hold for every other one.

A key was handed to one client. Others' marks reach what is made of sums, so every other client is
left out in turn, of the groups that are looked at or of the mean that a client is compared with,
and the worst p-value counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from fedaudit.arrays import Bools, Floats
from fedaudit.audits.attribution.ranks import PValues, needed, p_values
from fedaudit.errors import UsageError


def separated(design: npt.ArrayLike) -> Bools:
    """Clients (K,) whom the groups (R, K) tell from every other: one with them and without it."""
    inside = (np.asarray(design, dtype=np.float64) != 0).astype(np.int64)
    apart = inside.T @ (1 - inside)  # (j, i): rows with j and without i
    np.fill_diagonal(apart, 1)
    return np.asarray((apart > 0).all(axis=1) & inside.any(axis=0))


Step = tuple[int | None, Bools, Floats]
"""Who is left out, of whom nothing can be said then (K,), what speaks for a client (K, S + U)."""


def worst(steps: Iterable[Step], keys: int) -> PValues:
    """The largest p-value (K, S) over whoever is left out; nobody is tested against itself."""
    out: PValues | None = None
    for left_out, never, statistics in steps:
        found = p_values(statistics, keys)
        found = replace(found, p=np.where(never[:, None], 1.0, found.p))
        out = found if out is None else out.worse(found, but=left_out)
    assert out is not None
    return out


def most_needed(steps: Iterable[Step], keys: int, level: float) -> Floats:
    """As `needed` (K,), the largest over whoever is left out."""
    out: Floats | None = None
    for left_out, _, statistics in steps:
        each = needed(statistics, keys, level)
        if left_out is not None:
            each[left_out] = -np.inf
        out = each if out is None else np.maximum(out, each)
    assert out is not None
    return out


def without_each(rows: Floats, y: Floats, keys: int, linear: bool) -> Iterator[Step]:
    """Means of groups, design (R, K), scores (R, S + U): for every other client i the groups
    without i are looked at alone, and first all of them.

    Whatever is made of their scores, i's mark is in none of them. What speaks for a client there:
    `_best` where scores are `linear` in updates, `_apart` where not. Some of the unused keys tell
    the noise, the others give the ranks: those stay exact.
    """
    # a covariance takes more keys than the size of a score
    shape, ranked = _set_aside(y, keys, 3 if linear else 5)
    clients = rows.shape[1]
    for left_out in (None, *range(clients)):
        at = np.ones(len(rows), np.bool_) if left_out is None else rows[:, left_out] == 0
        filtered = np.zeros((clients, ranked.shape[1]))
        if at.any():
            filtered = (_best if linear else _apart)(rows[at], ranked[at], shape[at])
        yield left_out, ~rows[at].any(axis=0), filtered


def _set_aside(y: Floats, keys: int, every: int) -> tuple[Floats, Floats]:
    """Scores of every third (or so) unused key, that tell the noise; those that are ranked."""
    null = y[:, keys:]
    if null.shape[1] < 10:
        raise UsageError(
            "a null needs unused keys",
            expected="at least 10, better some hundreds",
            got=str(null.shape[1]),
            remedy="score more unused keys",
        )
    aside = np.arange(null.shape[1]) % every == 0
    return null[:, aside], np.concatenate([y[:, :keys], null[:, ~aside]], axis=1)


def _best(design: Floats, scores: Floats, shape: Floats) -> Floats:
    """d_j' C^-1 (y - mean) of every client and key (K, keys), C the covariance of `shape`.

    The best filter if a mark adds its part to every group with the client, and nothing elsewhere.
    """
    centre = shape.mean(axis=1, keepdims=True)
    c = np.atleast_2d(np.cov(shape))
    # unused keys are finitely many, and scores of a round's groups nearly add up to its total
    c = c + np.eye(len(c)) * (len(c) / shape.shape[1]) * float(np.trace(c)) / len(c)
    if not np.trace(c) > 0:
        return np.zeros((design.shape[1], scores.shape[1]))  # scores that never differ
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


def grouped(design: Floats) -> bool:
    """Whether candidates are means of groups: weights are shared, and none is below 0."""
    return bool((design >= 0).all() and ((design != 0).sum(axis=1) > 1).any())


def alone(design: Floats) -> bool:
    """Whether every candidate is of one client: updates that were solved for."""
    return bool(((design != 0).sum(axis=1) == 1).all())


def against_others(
    rows: Floats, y: Floats, keys: int, turn: npt.NDArray[np.int64], beside: Floats
) -> Iterator[Step]:
    """Updates that were solved for, each row of one client: it against the others.

    A client's scores over rounds, minus the mean of others' in the same round: what all of them do
    alike to a key, because the model they start from knows a mark, says nothing of one of them.
    `_best` of these over rounds. The key's holder may be one of the others: every other client is
    left out of the mean in turn, and first nobody. `turn` (R,) says which rows are of one round.

    Clients forget a mark that the model has learnt by different amounts, so on the owner's keys
    the others' statistics tell how far one may lie from the mean without holding it: their root
    mean square, if above that of unused keys, divides. That only lowers what speaks for a client.
    Of fewer than `OTHERS` nothing can be told, and there is no contrast.

    `beside` (K, S + U) is another statistic of the same: the larger of the two counts, each in
    deviations of unused keys that are not ranked. Of those that are it is the larger too, so that
    ranks stay exact.
    """
    # twenty unused keys a round tell a covariance well enough; ranks take all that is left
    enough = 20 * (int(turn.max(initial=0)) + 1)
    every = max(3, (y.shape[1] - keys) // enough)
    shape, ranked = _set_aside(y, keys, every)
    both, aside = np.concatenate([shape, ranked], axis=1), shape.shape[1]
    other = _in_deviations(np.concatenate(_set_aside(beside, keys, every), axis=1), aside)
    clients, owner = rows.shape[1], (rows != 0).argmax(axis=1)
    there = np.asarray(rows.any(axis=0), dtype=np.bool_)
    totals = np.zeros((int(turn.max(initial=0)) + 1, both.shape[1]))
    np.add.at(totals, turn, both)
    many = np.bincount(turn, minlength=len(totals))
    for left_out in (None, *range(clients)):
        # the sum over the others of a round: all of it but one's own, and who is left out
        sums, count = totals[turn] - both, many[turn] - 1
        for r in np.flatnonzero(owner == left_out):
            sums[turn == turn[r]] -= both[r]
            count = count - (turn == turn[r])
        mean = np.divide(sums, count[:, None], out=np.zeros_like(sums), where=count[:, None] > 0)
        apart = both - mean
        out = np.zeros((clients, both.shape[1]))
        for k in np.flatnonzero(there):
            at = (owner == k) & (count > 0)
            if k != left_out and at.any():
                one = np.ones((int(at.sum()), 1))
                out[k] = _best(one, apart[at], apart[at, :aside])[0]
        out = _in_deviations(out, aside)
        own = out[:, aside : aside + keys]
        own /= _spread_of_others(own, there & (np.arange(clients) != left_out))
        yield left_out, ~there, np.maximum(out, other)[:, aside:]


OTHERS = 3
"""Other clients who tell how far one may lie from the mean of all without holding a key."""


def _spread_of_others(own: Floats, told: Bools) -> Floats:
    """Of statistics (K, S) the root mean square of every client's others, at least 1; infinite
    where they are too few. `told` (K,): who counts."""
    squares = np.where(told[:, None], own**2, 0.0)
    count = told.sum() - told[:, None]
    mean = (squares.sum(axis=0) - squares) / np.maximum(count, 1)
    return np.where(count < OTHERS, np.inf, np.sqrt(np.maximum(mean, 1.0)))


def _in_deviations(statistics: Floats, aside: int) -> Floats:
    """Minus the mean of the first `aside` columns, over their deviation."""
    null = statistics[:, :aside]
    centred = statistics - null.mean(axis=1, keepdims=True)
    size = null.std(axis=1, ddof=1, keepdims=True)
    return np.divide(centred, size, out=np.zeros_like(centred), where=size > 0)
