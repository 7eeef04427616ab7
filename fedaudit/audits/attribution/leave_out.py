"""Tests of one client that stay valid whichever other client holds the key.

One client holds a key. Its mark reaches every candidate that is made from sums with it. So every
other client is left out in turn, of the tested groups or of the mean that a client is compared
with, and the worst p-value counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from fedaudit.arrays import Bools, Floats
from fedaudit.audits.attribution.ranks import PValues, needed, p_values
from fedaudit.audits.attribution.scoring import need_unused


def distinguishable(design: npt.ArrayLike) -> Bools:
    """Clients (K,) that some group (R, K) separates from each other client."""
    inside = (np.asarray(design, dtype=np.float64) != 0).astype(np.int64)
    apart = inside.T @ (1 - inside)  # (j, i): rows with j and without i
    np.fill_diagonal(apart, 1)
    return np.asarray((apart > 0).all(axis=1) & inside.any(axis=0))


Exclusion = tuple[int | None, Bools, Floats]
"""Left-out client (None: nobody), clients that cannot be tested then (K,), statistics (K, S +
U)."""


def worst(steps: Iterable[Exclusion], keys: int) -> PValues:
    """The largest p-value (K, S) over left-out clients; no client is tested with itself left
    out."""
    out: PValues | None = None
    for left_out, never, statistics in steps:
        found = p_values(statistics, keys)
        found = replace(found, p=np.where(never[:, None], 1.0, found.p))
        out = found if out is None else out.worse(found, but=left_out)
    assert out is not None
    return out


def most_needed(steps: Iterable[Exclusion], keys: int, level: float) -> Floats:
    """As `needed` (K,), the largest over left-out clients."""
    out: Floats | None = None
    for left_out, _, statistics in steps:
        each = needed(statistics, keys, level)
        if left_out is not None:
            each[left_out] = -np.inf
        out = each if out is None else np.maximum(out, each)
    assert out is not None
    return out


def without_each(rows: Floats, y: Floats, keys: int, linear: bool) -> Iterator[Exclusion]:
    """Means of groups, design (R, K), scores (R, S + U): all groups first, then those without i.

    For every other client i the groups without i do not hold i's mark. The statistic of a client is
    `_matched_filter` if scores are `linear` in updates, otherwise `_with_against_without`. Some
    unused keys measure the noise, the others give the ranks, which therefore stay exact.
    """
    # a covariance needs more keys than a variance
    shape, ranked = _split_unused(y, keys, 3 if linear else 5)
    clients = rows.shape[1]
    for left_out in (None, *range(clients)):
        at = np.ones(len(rows), np.bool_) if left_out is None else rows[:, left_out] == 0
        filtered = np.zeros((clients, ranked.shape[1]))
        if at.any():
            filtered = (_matched_filter if linear else _with_against_without)(
                rows[at], ranked[at], shape[at]
            )
        yield left_out, ~rows[at].any(axis=0), filtered


def _split_unused(y: Floats, keys: int, every: int) -> tuple[Floats, Floats]:
    """Scores of one unused key in `every`, which measure the noise, and scores that are ranked."""
    null = y[:, keys:]
    need_unused(null, 10)
    aside = np.arange(null.shape[1]) % every == 0
    return null[:, aside], np.concatenate([y[:, :keys], null[:, ~aside]], axis=1)


def _matched_filter(design: Floats, scores: Floats, shape: Floats) -> Floats:
    """d_j' C^-1 (y - mean) of every client and key (K, keys), C the covariance of `shape`.

    The optimal filter if a mark adds its part to every group with the client, and nothing
    elsewhere.
    """
    centre = shape.mean(axis=1, keepdims=True)
    c = np.atleast_2d(np.cov(shape))
    # shrink: unused keys are few, and scores of a round's groups nearly add up to its total
    c = c + np.eye(len(c)) * (len(c) / shape.shape[1]) * float(np.trace(c)) / len(c)
    if not np.trace(c) > 0:
        return np.zeros((design.shape[1], scores.shape[1]))  # scores that never differ
    return np.asarray(design.T @ np.linalg.solve(c, scores - centre))


def _with_against_without(design: Floats, scores: Floats, shape: Floats) -> Floats:
    """Groups with each client against those without it: (K, keys) from (R, K) and (R, keys).

    For marks that clients learn and forget: a group without the client scores below a reference
    that knows its mark. Scores are in units of unused keys, row by row. All rows share an offset
    about as large as the noise of one row. Of R rows, R / (R + 1) of their mean is subtracted, so
    that a client in all of them can still stand out.
    """
    centred = scores - shape.mean(axis=1, keepdims=True)
    spread = shape.std(axis=1, ddof=1, keepdims=True)
    y = np.divide(centred, spread, out=np.zeros_like(centred), where=spread > 0)
    weights = design - design.sum(axis=0) / (len(design) + 1)
    return np.asarray(weights.T @ y)


def grouped(design: Floats) -> bool:
    """Whether candidates are means of groups: weights are shared, and none is below 0."""
    return bool((design >= 0).all() and ((design != 0).sum(axis=1) > 1).any())


def of_single_clients(design: Floats) -> bool:
    """Whether every candidate is the update of one client, as solved updates are."""
    return bool(((design != 0).sum(axis=1) == 1).all())


def against_others(
    rows: Floats, y: Floats, keys: int, row_rounds: npt.NDArray[np.int64], beside: Floats
) -> Iterator[Exclusion]:
    """Compare each client's solved updates, one per row, with those of the other clients.

    Subtracts the mean of the others in the same round from a client's scores: an effect that all
    share, because their starting model knows a mark, does not point at one client. The statistic is
    `_matched_filter` of these differences over rounds. One of the others may hold the key: the mean
    is taken over all others first, then without each other client in turn. `row_rounds` (R,) is the
    round of each row.

    Clients forget a learnt mark by different amounts. On the owner's keys, the root mean square of
    the others' statistics shows how far a client may lie from the mean without holding the key. It
    divides the statistic if it is above that of unused keys, which only lowers the statistic. With
    fewer than `OTHERS` others it is unknown, and there is no contrast.

    `beside` (K, S + U) is a second statistic. The larger of the two counts, each in deviations of
    the unused keys that are not ranked. The same holds for ranked unused keys, so ranks stay exact.
    """
    # twenty unused keys per round give a good covariance; ranks use all others
    enough = 20 * (int(row_rounds.max(initial=0)) + 1)
    every = max(3, (y.shape[1] - keys) // enough)
    shape, ranked = _split_unused(y, keys, every)
    both, aside = np.concatenate([shape, ranked], axis=1), shape.shape[1]
    other = _standardise(np.concatenate(_split_unused(beside, keys, every), axis=1), aside)
    clients, owner = rows.shape[1], (rows != 0).argmax(axis=1)
    there = np.asarray(rows.any(axis=0), dtype=np.bool_)
    totals = np.zeros((int(row_rounds.max(initial=0)) + 1, both.shape[1]))
    np.add.at(totals, row_rounds, both)
    many = np.bincount(row_rounds, minlength=len(totals))
    for left_out in (None, *range(clients)):
        # the sum over the others of a round: all but the row itself and the left-out client
        sums, count = totals[row_rounds] - both, many[row_rounds] - 1
        for r in np.flatnonzero(owner == left_out):
            sums[row_rounds == row_rounds[r]] -= both[r]
            count = count - (row_rounds == row_rounds[r])
        mean = np.divide(sums, count[:, None], out=np.zeros_like(sums), where=count[:, None] > 0)
        apart = both - mean
        out = np.zeros((clients, both.shape[1]))
        for k in np.flatnonzero(there):
            at = (owner == k) & (count > 0)
            if k != left_out and at.any():
                one = np.ones((int(at.sum()), 1))
                out[k] = _matched_filter(one, apart[at], apart[at, :aside])[0]
        out = _standardise(out, aside)
        own = out[:, aside : aside + keys]
        own /= _spread_of_others(own, there & (np.arange(clients) != left_out))
        yield left_out, ~there, np.maximum(out, other)[:, aside:]


OTHERS = 3
"""Fewest other clients from which the spread of clients without the key is estimated."""


def _spread_of_others(own: Floats, counted: Bools) -> Floats:
    """Root mean square of the other clients' statistics (K, S), at least 1.

    Infinite with too few others. `counted` (K,): clients that count.
    """
    squares = np.where(counted[:, None], own**2, 0.0)
    count = counted.sum() - counted[:, None]
    mean = (squares.sum(axis=0) - squares) / np.maximum(count, 1)
    return np.where(count < OTHERS, np.inf, np.sqrt(np.maximum(mean, 1.0)))


def _standardise(statistics: Floats, aside: int) -> Floats:
    """Subtract the mean of the first `aside` columns, divide by their deviation."""
    null = statistics[:, :aside]
    centred = statistics - null.mean(axis=1, keepdims=True)
    size = null.std(axis=1, ddof=1, keepdims=True)
    return np.divide(centred, size, out=np.zeros_like(centred), where=size > 0)
