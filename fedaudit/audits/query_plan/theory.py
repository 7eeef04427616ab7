"""What queries determine whatever the answers are, and how to solve for it.

[FedAttr] Section 4.1
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedaudit.arrays import Floats
from fedaudit.stats import query_algebra
from fedaudit.trace.ledger import Asked

# -- theory: what any answers determine -------------------------------------------


@dataclass(frozen=True, kw_only=True)
class PlanAudit:
    """What (Q, K) queries determine, whatever the answers are.

    `rank` independent combinations; `recoverable` clients that can be solved for; `min_support` the
    fewest clients in any combination that is not zero (`smallest` are those of one such), proven to
    be the fewest if `min_support_exact`, otherwise an upper bound with the proven
    `min_support_floor` below it; `condition` of the distinct queries; `share` (K,) of every client
    in the row space, 1 for those that can be solved for.
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

    Rational entries are treated exactly, others up to a tolerance: see `stats.query_algebra`.
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
    """What updates that arrive one by one determine: all of these clients, each by itself."""
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


# -- attack: solving for what can be solved --------------------------------------------------------


def solution(queries: npt.ArrayLike) -> Floats:
    """Coefficients (K, Q) of the answers in the least-squares estimate of every client's vector.

    Exact for recoverable clients; for the others the guess of smallest norm.
    """
    matrix = query_algebra.query_matrix(queries)
    inverse: Floats = np.linalg.pinv(matrix, rcond=query_algebra.TOLERANCE).astype(np.float64)
    return inverse


def align_clients(rounds: Sequence[Asked]) -> tuple[tuple[str, ...], list[Floats]]:
    """All clients' names, and the answered queries of every round in these columns."""
    names = tuple(dict.fromkeys(name for a in rounds for name in a.clients))
    out = []
    for a in rounds:
        matrix = np.zeros((len(a.answered), len(names)))
        matrix[:, [names.index(name) for name in a.clients]] = a.answered
        out.append(matrix)
    return names, out
