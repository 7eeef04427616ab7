"""The ledger of secure aggregation: the sums requested in a round, as one party saw them.

A query is a message of kind `query` to the aggregator. Its payload is a row of the layout `query`:
one column per client, 1 (or a weight) if the client is in the sum. The answer is a message of kind
`sum` in the other direction. Both carry the query's number in their metadata, under `query`. A
query without an answer was refused, or its protocol run failed.

A query whose metadata say `release: scalars` asks for sums of inner products with templates; its
answer has the layout `scalars`. Those are read by `scalar_queries`, sums of updates by
`round_queries`.

A sum without a query (an ideal secure sum) covers all clients to whom its receiver sent a model in
the same round.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedaudit.layout import Layout
from fedaudit.trace.examination import query_number
from fedaudit.trace.recorder import MODEL
from fedaudit.trace.schema import QUERY as QUERY
from fedaudit.trace.schema import RELEASE, SCALARS, Message
from fedaudit.trace.view import View


def query_layout(clients: Sequence[str]) -> Layout:
    """One column per client."""
    return Layout.of(((name, ()) for name in clients), dtype="uint8")


@dataclass(frozen=True)
class RoundQueries:
    """The queries of one round.

    `clients` (K,) names the columns of `queries` (Q, K); `sums` (Q,) is the index of each answer
    in the round's table, -1 without one.
    """

    round: int
    clients: tuple[str, ...]
    queries: npt.NDArray[np.float64]
    sums: npt.NDArray[np.int64]

    @property
    def answered(self) -> npt.NDArray[np.float64]:
        """The answered queries (A, K)."""
        return self.queries[self.sums >= 0]


def round_queries(view: View, number: int) -> RoundQueries:
    """The queries of one round that `view` contains; no rows without sums."""
    table = view.indexed(number)
    queries = [(i, m) for i, m in _queries(table) if m.metadata.get(RELEASE) != SCALARS]
    sums = [(i, m) for i, m in table if m.kind == "sum" and MODEL in m.parts]
    names = view.layouts[QUERY].names if queries else ()
    if any(m.kind in ("query", "sum") for _, m in table):
        has_query = any(m.kind == "query" for _, m in table)
        view.refuse_torn("ledger" if has_query else "members", number)
    by_number = {query_number(m, at): i for at, (i, m) in enumerate(sums)} if queries else {}
    rows, answers = [], []
    for at, (i, m) in enumerate(queries):
        rows.append(view.payload(number, i, layout=QUERY).astype(np.float64))
        answers.append(by_number.pop(query_number(m, at), -1))
    unmatched = set(by_number.values()) if queries else {i for i, _ in sums}
    loose = [(i, m) for i, m in sums if i in unmatched]
    groups = [model_receivers((d for _, d in table), m.receiver, m.step) for _, m in loose]
    columns = tuple(dict.fromkeys([*names, *(name for group in groups for name in group)]))
    matrix = np.zeros((len(rows) + len(loose), len(columns)))
    for row, given in zip(matrix, rows, strict=False):
        row[: len(names)] = given
    for row, group in zip(matrix[len(rows) :], groups, strict=True):
        row[[columns.index(name) for name in group]] = 1.0
    return RoundQueries(
        round=number,
        clients=columns,
        queries=matrix,
        sums=np.array([*answers, *(i for i, _ in loose)], dtype=np.int64),
    )


def scalar_queries(view: View, number: int) -> RoundQueries:
    """The queries for scalars of one round; `sums` index messages of the layout `scalars`."""
    table = view.indexed(number)
    queries = [(i, m) for i, m in _queries(table) if m.metadata.get(RELEASE) == SCALARS]
    if not queries:
        return RoundQueries(number, (), np.zeros((0, 0)), np.zeros(0, dtype=np.int64))
    sums = [(i, m) for i, m in table if m.kind == "sum" and SCALARS in m.parts]
    answers = {query_number(m, -1): i for i, m in sums}
    return RoundQueries(
        round=number,
        clients=view.layouts[QUERY].names,
        queries=np.array(
            [view.payload(number, i, layout=QUERY) for i, _ in queries], dtype=np.float64
        ),
        sums=np.array([answers.get(query_number(m, -2), -1) for _, m in queries], dtype=np.int64),
    )


def _queries(table: Sequence[tuple[int, Message]]) -> list[tuple[int, Message]]:
    return [(i, m) for i, m in table if m.kind == "query" and QUERY in m.parts]


def model_receivers(messages: Iterable[Message], by: str, step: int) -> list[str]:
    """Parties to whom `by`, the receiver of a sum, sent a model before `step` of a round."""
    return list(
        dict.fromkeys(
            m.receiver for m in messages if m.kind == "model" and m.sender == by and m.step < step
        )
    )
