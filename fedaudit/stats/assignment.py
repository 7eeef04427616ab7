"""Assign rows to columns at least total cost."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Labels = npt.NDArray[np.int64]
Costs = npt.NDArray[np.floating]


def match(cost: Costs) -> tuple[Labels, Labels]:
    """The assignment of least total cost, [Fingerprint] Eq. (10), by the Hungarian method."""
    best = cost.argmin(axis=1)
    if len(np.unique(best)) == len(cost):
        # every row gets its cheapest column: no assignment is cheaper
        return np.arange(len(cost)), best.astype(np.int64)
    if max(cost.shape) <= SMALL:
        return shortest_augmenting_paths(cost)
    from scipy.optimize import linear_sum_assignment

    rows, columns = linear_sum_assignment(cost)
    return rows.astype(np.int64), columns.astype(np.int64)


SMALL = 64  # importing scipy.optimize takes longer than assigning this many


def shortest_augmenting_paths(cost: Costs) -> tuple[Labels, Labels]:
    """The assignment of least total cost, row by row along shortest augmenting paths.

    Column 0 is a dummy start; `u` and `v` are the dual prices of rows and columns.
    """
    if cost.shape[0] > cost.shape[1]:
        columns, rows = shortest_augmenting_paths(cost.T)
        order = np.argsort(rows)
        return rows[order], columns[order]
    n, m = cost.shape
    u, v = np.zeros(n + 1), np.zeros(m + 1)
    owner, came_from = np.zeros(m + 1, dtype=np.int64), np.zeros(m + 1, dtype=np.int64)
    for i in range(1, n + 1):
        owner[0], j = i, 0
        slack, done = np.full(m + 1, np.inf), np.zeros(m + 1, dtype=bool)
        while True:
            done[j] = True
            reduced = cost[owner[j] - 1] - u[owner[j]] - v[1:]
            better = ~done[1:] & (reduced < slack[1:])
            slack[1:][better], came_from[1:][better] = reduced[better], j
            j = 1 + int(np.where(done[1:], np.inf, slack[1:]).argmin())
            step = slack[j]
            u[owner[done]] += step
            v[done] -= step
            slack[~done] -= step
            if owner[j] == 0:
                break
        while j:
            owner[j], j = owner[came_from[j]], int(came_from[j])
    matched = np.flatnonzero(owner[1:])
    rows = owner[1:][matched] - 1
    order = np.argsort(rows)
    return rows[order], matched[order]
