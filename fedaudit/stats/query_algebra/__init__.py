"""What a set of linear queries reveals, whatever the answers are.

A query matrix has one row per query and one column per client: the weights, often 0/1, with which
the clients' vectors are summed. Everyone with the answers can form all their combinations, so the
leakage is the **row space** of the matrix:

    rank           number of independent combinations
    recoverable    clients whose own vector is one of them: their unit vector is in the row space
    support        number of clients in a combination; the smallest is the weakest hiding place
    share          each client's part of the row space, the diagonal of its projector: 1 means
                   recoverable; for uncorrelated vectors of equal size it is the part of a client's
                   variance that the best linear guess explains
    condition      how much solving amplifies rounding (or noise) in the answers

Whole numbers, and fractions with small denominators, are treated **exactly**: ranks and supports
over the rationals come from elimination modulo several 31-bit primes, as many as the Hadamard bound
asks for, so that no non-zero minor vanishes modulo all of them. Other real numbers are treated in
floating point: values below `TOLERANCE` times the largest singular value count as zero.

The smallest support is the minimum distance of a linear code, which is hard in general. The search
merges clients that always occur together, separates independent parts, and is exhaustive as far as
`work` allows, from the cheaper side. It verifies what it finds exactly. It overlooks a smaller
support only if a random projection modulo 2^31 - 1 vanishes twice by chance: below 1e-9 per call.
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
    in_whole_numbers,
    query_matrix,
    rational_echelon,
    spectrum,
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
    """What one more query would reveal beyond the answered ones.

    `rank` is 1 if it reveals anything new, else 0; `recoverable` lists clients it would expose;
    `support` is that of all answers together; `share` (K,) is the growth of each client's part.
    """

    rank: int
    recoverable: tuple[int, ...]
    support: Support
    share: Floats


def rank(queries: npt.ArrayLike) -> int:
    """Number of independent combinations of the answers; exact for rational entries."""
    rows = distinct(query_matrix(queries))
    exact = in_whole_numbers(rows)
    if exact is not None:
        return rational_echelon(exact).rank
    return spectrum(rows)[0]


def recoverable(queries: npt.ArrayLike) -> tuple[int, ...]:
    """Clients whose own vector can be solved for: e_k lies in the row space."""
    rows = distinct(query_matrix(queries))
    exact = in_whole_numbers(rows)
    if exact is not None:
        return rational_echelon(exact).alone
    found, _, right = spectrum(rows)
    # part of e_k outside the row space; 1 - share would lose half of the digits
    outside = np.linalg.norm(right[found:], axis=0)
    return tuple(int(k) for k in np.flatnonzero(outside <= ZERO))


def share(queries: npt.ArrayLike) -> Floats:
    """Each client's part of the row space (K,), from 0 to 1; the parts sum to the rank."""
    matrix = query_matrix(queries)
    rows = distinct(matrix)
    exact = in_whole_numbers(rows)
    found, _, right = spectrum(rows)
    if exact is None:
        return np.clip((right[:found] ** 2).sum(axis=0), 0.0, 1.0)
    echelon = rational_echelon(exact)
    parts = np.clip((right[: echelon.rank] ** 2).sum(axis=0), 0.0, 1.0)
    parts[list(echelon.alone)] = 1.0
    parts[~rows.any(axis=0)] = 0.0
    return parts


def condition(queries: npt.ArrayLike) -> float:
    """Largest over smallest non-zero singular value of the distinct queries; 1 without any."""
    rows = distinct(query_matrix(queries))
    if not len(rows):
        return 1.0
    found, values, _ = spectrum(rows)
    exact = in_whole_numbers(rows)
    if exact is not None:
        found = rational_echelon(exact).rank
    return float(values[0] / values[found - 1])


def added_by(
    answered: npt.ArrayLike, query: npt.ArrayLike, *, below: int | None = None, work: int = WORK
) -> Addition:
    """What `query` (K,) would reveal beyond `answered` (Q, K), before it is asked.

    With `below`, the search for the smallest support stops once it knows whether some combination
    involves fewer clients than that.
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
