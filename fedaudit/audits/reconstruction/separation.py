"""Separate the records of one update where several of them drive every unit.

The update of a linear layer behind the input is [dW, db] = A [X, 1]: n records X, and the error A
of each at each of h units, summed over all local steps. Its rank is n, whatever the number of
steps. A ReLU unit that a record never opens has an exact zero in A. With L R = [dW, db], the
columns q that single out one record make L q zero at about half of the units. They are found as
null vectors of n - 1 random rows of L (Dimitrov et al., *SPEAR*, 2024); their inverse gives the
records, scaled by the column of ones.

Shapes: h units, D inputs, n records, n below h and D.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fedaudit.arrays import Bools, Floats

MOST_RECORDS = 8
"""Records that are separated at most: every further one makes a lucky draw three times rarer."""
DRAWS, ENOUGH_FOR = 8192, 6
"""Draws of rows, and the number of records up to which so many are enough."""
ERROR, PART = 3e-4, 1e-3
"""Largest rounding of a unit's row, and what counts as zero, as parts of that row."""
MOST_CHECKED = 1000
EXTRA, EXTRA_PART = 2, 0.1
"""Zeros beyond those by construction that single out a record: so many, and this part of all
units. A few small entries are chance."""
APART = 0.01
"""Least singular value of vectors that single out different records."""


def rank(update: Floats, smallest: float) -> int:
    """Number of singular values of an update (h, D + 1) above rounding.

    `smallest`: rounding of one entry. A matrix of such entries has no singular value above
    `smallest` (sqrt(h) + sqrt(D + 1)), nearly.
    """
    values = np.linalg.svd(update, compute_uv=False)
    return int((values > 2.0 * smallest * sum(np.sqrt(update.shape))).sum())


def separate(
    weight: npt.NDArray[np.float32],
    bias: npt.NDArray[np.float32],
    smallest: float,
    rng: np.random.Generator,
) -> Floats | None:
    """The n records (n, D) behind updates (h, D) and (h,); None where zeros do not tell them apart.

    `smallest`: rounding of one entry.
    """
    update = np.concatenate([weight, bias[:, None]], axis=1).astype(np.float64)
    n = rank(update, smallest)
    if not 1 <= n <= min(MOST_RECORDS, *(s - 1 for s in update.shape)):
        return None
    u, s, vt = np.linalg.svd(update, full_matrices=False)
    left, right = u[:, :n] * s[:n], vt[:n]
    found = _singling_out(left, smallest, rng)
    if found is None or np.linalg.cond(found) > 1e6:
        return None
    rows = np.linalg.solve(found, right)  # (n, D + 1), each a multiple of (x, 1)
    scale = rows[:, -1:]
    if not (np.abs(scale) > 1e-9 * np.abs(rows).max(axis=1, keepdims=True)).all():
        return None
    return np.asarray(rows[:, :-1] / scale)


def _singling_out(left: Floats, smallest: float, rng: np.random.Generator) -> Floats | None:
    """Columns q (n, n), each of which makes L q (h,) zero at more units than n - 1; None if there
    are not n of them."""
    n = left.shape[1]
    if n == 1:
        return np.ones((1, 1))
    # units that no record opened are zero for every q
    size = np.linalg.norm(left, axis=1)
    clear = size > smallest / ERROR
    left = left[clear] / size[clear, None]
    wanted = n - 1 + EXTRA + int(EXTRA_PART * len(left))  # n - 1 are zero by construction
    if len(left) < wanted:
        return None
    found = []
    for _ in range(3 ** max(0, n - ENOUGH_FOR)):
        rows = left[np.argsort(rng.random((DRAWS, len(left))), axis=1)[:, : n - 1]]
        zero = _zeros_of(rows, left)
        found.append(zero[zero.sum(axis=1) >= wanted])
    zero = np.unique(np.concatenate(found), axis=0)
    best = np.argsort(-zero.sum(axis=1), kind="stable")[:MOST_CHECKED]
    kept = np.zeros((0, n))
    for i in best:
        _, values, vectors = np.linalg.svd(left[zero[i]])
        if values[n - 2] <= 3 * PART:
            continue  # units that two records leave closed: any mix of the two fits
        more = np.vstack([kept, vectors[-1]])
        if np.linalg.svd(more, compute_uv=False)[-1] > APART:
            kept = more
        if len(kept) == n:
            return kept.T
    return None


def _zeros_of(rows: Floats, left: Floats) -> Bools:
    """Which entries (m, h) of L q are zero, for the q that rows (m, n - 1, n) of L send to zero."""
    square, last = rows[:, :, :-1], rows[:, :, -1:]
    regular = np.abs(np.linalg.det(square)) > 0.0
    solved = np.linalg.solve(square[regular], -last[regular])[..., 0]
    size = np.abs(np.concatenate([solved, np.ones((len(solved), 1))], axis=1) @ left.T)
    return np.asarray(size < PART * size.max(axis=1, keepdims=True))
