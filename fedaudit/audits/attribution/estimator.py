"""From sums to candidate updates: all estimates of a round as one matrix product.

The answers of a round are distinct sums S (Q, d) over subsets A (Q, K). A candidate is a
combination C S of them. Its weights on the clients' own updates are the design row C A (K,).

    published   one candidate per client, [FedAttr] Eq. (4): 1 at the client, alpha elsewhere
    groups      one candidate per group: the group's mean
    solved      one candidate per client whose update the sums determine: the update itself

Shapes: coefficients (R, Q), design (R, K), candidates (R, d).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedaudit.arrays import Floats
from fedaudit.errors import UsageError
from fedaudit.stats.plan_design import regression
from fedaudit.stats.query_plans import PairedQueries


@dataclass(frozen=True, eq=False)
class CandidateUpdates:
    """`coefficients` (R, Q) of the distinct sums, `design` (R, K) of the clients' updates.

    `target` (R,) is the client whose update a candidate estimates, -1 for a group.
    """

    coefficients: Floats
    design: Floats
    target: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.target)

    def of(self, sums: npt.ArrayLike) -> Floats:
        """The candidates (R, d) from the answers (Q, d)."""
        return combined(self.coefficients, np.asarray(sums))


def combined(
    coefficients: npt.ArrayLike, answers: Iterable[npt.NDArray[Any]], *, at_once: int | None = None
) -> Floats:
    """Combine answers (d,), read one after another, with coefficients (R, Q): (R, d).

    Multiplies `at_once` answers at a time, so that answers of large models need not fit in memory
    together.
    """
    weights = np.asarray(coefficients, dtype=np.float64)
    rest, low, out = iter(answers), 0, None
    while block := list(itertools.islice(rest, at_once)):
        part = weights[:, low : low + len(block)] @ np.asarray(block, dtype=np.float64)
        low += len(block)
        out = part if out is None else np.add(out, part, out=out)
    if out is None or low != weights.shape[1]:
        raise UsageError(
            "the answers do not fit the coefficients",
            expected=f"{weights.shape[1]} answers, at least one",
            got=str(low),
            remedy="pass the answers of the coefficients' own round",
        )
    return np.asarray(out)


def published(pairs: Sequence[PairedQueries], queries: npt.ArrayLike) -> CandidateUpdates:
    """[FedAttr] Eq. (4) for the targets of `pairs`, from distinct queries (Q, K):

        mean over the sums that include the target - mean over those that exclude it

    A subset that several targets drew is one query.
    """
    asked = np.asarray(queries, dtype=np.float64)
    where = {row.tobytes(): i for i, row in enumerate(asked.astype(np.uint8))}
    coefficients = np.zeros((len(pairs), len(asked)))
    for row, pair in zip(coefficients, pairs, strict=True):
        for side, sign in ((pair.include, 1.0), (pair.exclude, -1.0)):
            for subset in side:
                at = where.get(subset.tobytes())
                if at is None:
                    raise UsageError(
                        f"a subset of target {pair.target} has no answer",
                        expected="a sum for every subset of the plan",
                        got=f"none over clients {np.flatnonzero(subset).tolist()}",
                        remedy="see why it was refused: the published plan needs "
                        "refuse_isolating = false",
                    )
                row[at] += sign / len(side)
    targets = np.array([pair.target for pair in pairs], dtype=np.int64)
    return CandidateUpdates(coefficients, coefficients @ asked, targets)


def pooled(queries: npt.ArrayLike) -> CandidateUpdates:
    """Estimates from a ledger that does not say which pairs were drawn for which client.

    Of a client: the mean over all subsets of N + 1 with it, minus the mean over all of N without
    it. N is the size at which most clients have both. Adapts [FedAttr] Eq. (4) to use every answer;
    clients without both kinds get no candidate.
    """
    asked = np.asarray(queries, dtype=np.float64)
    sizes = (asked != 0).sum(axis=1)
    best: list[tuple[int, Floats]] = []
    for n in sorted(set(sizes.tolist())):
        found = []
        for i in range(asked.shape[1]):
            include = (sizes == n + 1) & (asked[:, i] != 0)
            exclude = (sizes == n) & (asked[:, i] == 0)
            if include.any() and exclude.any():
                found.append((i, include / include.sum() - exclude / exclude.sum()))
        if len(found) > len(best):
            best = found
    if not best:
        raise UsageError(
            "no client has subsets with it and without it",
            expected="sums over N + 1 clients with a client, and over N without it",
            got=f"sums over {sorted(set(sizes.tolist()))} clients",
            remedy='ask for the published pairs (plan = "paired"), or read groups instead',
        )
    coefficients = np.array([row for _, row in best])
    targets = np.array([i for i, _ in best], dtype=np.int64)
    return CandidateUpdates(coefficients, coefficients @ asked, targets)


def solved(queries: npt.ArrayLike) -> CandidateUpdates:
    """The updates that distinct sums over queries (Q, K) determine, one per such client.

    A round of the published pairs determines all of them. Design rows are unit vectors: other
    clients' marks do not reach a client's score, linear or not.
    """
    asked = np.asarray(queries, dtype=np.float64)
    fit = regression(asked)
    found = np.flatnonzero(fit.identifiable)
    return CandidateUpdates(fit.coefficients[found], np.eye(asked.shape[1])[found], found)


def decisive(candidates: CandidateUpdates, queries: npt.ArrayLike) -> CandidateUpdates:
    """The candidates that decide: solved updates where possible, otherwise `candidates`.

    Solved updates replace candidates of single clients, if the sums determine any.
    """
    if (candidates.target < 0).any():
        return candidates
    found = solved(queries)
    return found if len(found) else candidates


def groups(queries: npt.ArrayLike) -> CandidateUpdates:
    """The mean of every group (R, K), as a safe plan reveals it."""
    asked = np.asarray(queries, dtype=np.float64)
    sizes = asked.sum(axis=1)
    if not len(asked) or (sizes <= 0).any():
        raise UsageError(
            "a group has no clients",
            expected="subsets with at least one client",
            got=f"{int((sizes <= 0).sum())} empty ones of {len(asked)}",
            remedy="leave them out",
        )
    scale = np.diag(1.0 / sizes)
    return CandidateUpdates(scale, scale @ asked, np.full(len(asked), -1, dtype=np.int64))
