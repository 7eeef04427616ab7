"""What a set of linear queries determines, whatever the answers are.

A query matrix has one row per query and one column per client: which clients' vectors are added up,
0/1 or with weights. Whoever holds the answers can form every combination of them, so what is given
away is the **row space** of the matrix:

    rank           how many independent combinations there are
    recoverable    clients whose own vector is one of them: their unit vector is in the row space
    support        how many clients a combination involves; the smallest is what hides nobody else
    share          each client's part of the row space, the diagonal of its projector: 1 means
                   recoverable, and where vectors are uncorrelated and of equal size it is the part
                   of a client's variance that the best linear guess explains
    condition      how much rounding (or noise) in the answers grows when they are solved

Whole numbers, and fractions with small denominators, are treated **exactly**: ranks and supports
over the rationals come from elimination modulo several primes of 31 bits, as many as the Hadamard
bound asks for, so that no minor that is not zero can vanish modulo all of them. Other real numbers
are treated in floating point: what is below `TOLERANCE` times the largest singular value is zero.

The smallest support is the minimum distance of a linear code, which is hard in general. It is
searched exhaustively as far as `work` allows, from the side that is cheaper, after clients that
always occur together are merged and independent parts are separated. What the search reports as
found is verified exactly. That it overlooks a smaller one needs a random projection modulo
2^31 - 1 to vanish twice by chance: below 1e-9 in a call.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedaudit.arrays import Floats
from fedaudit.stats.query_algebra.elimination import (
    TOLERANCE,
    ZERO,
    distinct,
    query_matrix,
    rational_echelon,
    spectrum,
    whole,
)
from fedaudit.stats.query_algebra.smallest import WORK, Support, smallest_support

__all__ = [
    "TOLERANCE",
    "WORK",
    "Addition",
    "Support",
    "added_by",
    "condition",
    "query_matrix",
    "rank",
    "recoverable",
    "share",
    "smallest_support",
]


@dataclass(frozen=True, kw_only=True)
class Addition:
    """What one more query would add to those that were answered.

    `rank` 1 if it tells anything new, else 0; `recoverable` clients that it would lay open;
    `support` of all answers together; `share` (K,) by how much each client's part would grow.
    """

    rank: int
    recoverable: tuple[int, ...]
    support: Support
    share: Floats


def rank(queries: npt.ArrayLike) -> int:
    """Independent combinations of the answers; over the rationals where entries are rational."""
    rows = distinct(query_matrix(queries))
    exact = whole(rows)
    if exact is not None:
        return rational_echelon(exact).rank
    return spectrum(rows)[0]


def recoverable(queries: npt.ArrayLike) -> tuple[int, ...]:
    """Clients whose own vector can be solved for: e_k lies in the row space."""
    rows = distinct(query_matrix(queries))
    exact = whole(rows)
    if exact is not None:
        return rational_echelon(exact).alone
    found, _, right = spectrum(rows)
    # what of e_k lies outside the row space; 1 - share would lose half of the digits
    outside = np.linalg.norm(right[found:], axis=0)
    return tuple(int(k) for k in np.flatnonzero(outside <= ZERO))


def share(queries: npt.ArrayLike) -> Floats:
    """Each client's part of the row space (K,), from 0 to 1; the parts sum to the rank."""
    matrix = query_matrix(queries)
    rows = distinct(matrix)
    exact = whole(rows)
    found, _, right = spectrum(rows)
    if exact is None:
        return np.clip((right[:found] ** 2).sum(axis=0), 0.0, 1.0)
    echelon = rational_echelon(exact)
    parts = np.clip((right[: echelon.rank] ** 2).sum(axis=0), 0.0, 1.0)
    parts[list(echelon.alone)] = 1.0
    parts[~rows.any(axis=0)] = 0.0
    return parts


def condition(queries: npt.ArrayLike) -> float:
    """Largest over smallest singular value that is not zero, of the distinct queries; 1 if none."""
    rows = distinct(query_matrix(queries))
    if not len(rows):
        return 1.0
    found, values, _ = spectrum(rows)
    exact = whole(rows)
    if exact is not None:
        found = rational_echelon(exact).rank
    return float(values[0] / values[found - 1])


def added_by(
    answered: npt.ArrayLike, query: npt.ArrayLike, *, below: int | None = None, work: int = WORK
) -> Addition:
    """What `query` (K,) would add to `answered` (Q, K), before it is asked.

    With `below`, the search for the smallest support ends as soon as it is clear whether some
    combination involves fewer clients than that.
    """
    row = query_matrix(np.atleast_2d(np.asarray(query, dtype=np.float64)))
    before = query_matrix(answered, clients=row.shape[1])
    after = np.concatenate([before, row])
    known = set(recoverable(before)) if len(before) else set()
    opened = tuple(k for k in recoverable(after) if k not in known)
    return Addition(
        rank=rank(after) - rank(before),
        recoverable=opened,
        support=smallest_support(after, below=below, work=work),
        share=share(after) - share(before),
    )
