"""What a set of queries determines, whatever the answers, and how to solve for it.

[FedAttr] Section 4.1
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedaudit.arrays import Floats
from fedaudit.stats import query_algebra
from fedaudit.trace.ledger import RoundQueries

# -- theory: what queries determine ---------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class PlanAudit:
    """What (Q, K) queries determine, whatever the answers.

    `rank`: number of independent combinations. `recoverable`: clients that can be solved for.
    `min_support`: fewest clients in any non-zero combination; `smallest`: the clients of one such
    combination. `min_support` is proven minimal if `min_support_exact`; otherwise it is an upper
    bound, and `min_support_floor` is a proven lower bound. `condition`: condition number of the
    distinct queries. `share` (K,): part of every client in the row space, 1 if recoverable.
    """

    rank: int
    recoverable: tuple[int, ...]
    min_support: int
    min_support_exact: bool
    condition: float
    share: tuple[float, ...]
    queries: int
    clients: int
    min_support_floor: int
    smallest: tuple[int, ...]


def audit_plan(queries: npt.ArrayLike, *, work: int = query_algebra.WORK) -> PlanAudit:
    """Audit a (Q, K) matrix of 0/1 or real queries; `work` bounds the search for `min_support`.

    Rational entries are exact, others up to a tolerance: see `stats.query_algebra`.
    """
    matrix = query_algebra.query_matrix(queries)
    support = query_algebra.smallest_support(matrix, work=work)
    return PlanAudit(
        rank=query_algebra.rank(matrix),
        recoverable=query_algebra.recoverable(matrix),
        min_support=support.value,
        min_support_exact=support.exact,
        condition=query_algebra.condition(matrix),
        share=tuple(float(s) for s in query_algebra.share(matrix)),
        queries=len(matrix),
        clients=matrix.shape[1],
        min_support_floor=support.floor,
        smallest=support.clients,
    )


def in_the_clear(alone: Sequence[int], clients: int) -> PlanAudit:
    """The plan of updates that arrive one by one: every client in `alone` is recoverable."""
    inside = set(alone)
    return PlanAudit(
        rank=len(inside),
        recoverable=tuple(sorted(inside)),
        min_support=1,
        min_support_exact=True,
        condition=1.0,
        share=tuple(float(k in inside) for k in range(clients)),
        queries=len(inside),
        clients=clients,
        min_support_floor=1,
        smallest=(min(inside),),
    )


# -- attack: solve for the clients ----------------------------------------------------------------


def solution(queries: npt.ArrayLike) -> Floats:
    """Coefficients (K, Q) of the answers in the least-squares estimate of every client's update.

    Exact for recoverable clients; a minimum-norm guess for the others.
    """
    matrix = query_algebra.query_matrix(queries)
    inverse: Floats = np.linalg.pinv(matrix, rcond=query_algebra.TOLERANCE).astype(np.float64)
    return inverse


def align_clients(rounds: Sequence[RoundQueries]) -> tuple[tuple[str, ...], list[Floats]]:
    """Names of all clients, and the answered queries of every round with one column per name."""
    names = tuple(dict.fromkeys(name for a in rounds for name in a.clients))
    out = []
    for a in rounds:
        matrix = np.zeros((len(a.answered), len(names)))
        matrix[:, [names.index(name) for name in a.clients]] = a.answered
        out.append(matrix)
    return names, out
