"""Which sums were asked for in a round, as one party saw it: the ledger of secure aggregation.

A question is a message of kind `query` from who asks to the aggregator; its payload is a row of the
layout `query`, one column per client, 1 (or a weight) where the client is in the sum. The answer is
a message of kind `sum` in the other direction. Both bear the number of the question in their
metadata, under `query`. A question without an answer was refused, or its run failed.

A sum without a question (an ideal secure sum) is over everybody to whom its receiver had sent a
model in the same round.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedaudit.layout import Layout
from fedaudit.trace.health import question_number
from fedaudit.trace.recorder import MODEL
from fedaudit.trace.schema import QUERY as QUERY
from fedaudit.trace.schema import Message
from fedaudit.trace.view import View


def query_layout(clients: Sequence[str]) -> Layout:
    """One column per client."""
    return Layout.of(((name, ()) for name in clients), dtype="uint8")


@dataclass(frozen=True)
class RoundQueries:
    """The questions of one round.

    `clients` (K,) names of the columns; `queries` (Q, K) the questions; `sums` (Q,) the index of
    the answer in the round's table, -1 without one.
    """

    round: int
    clients: tuple[str, ...]
    queries: npt.NDArray[np.float64]
    sums: npt.NDArray[np.int64]

    @property
    def answered(self) -> npt.NDArray[np.float64]:
        """The questions that were answered (A, K)."""
        return self.queries[self.sums >= 0]


def round_queries(view: View, number: int) -> RoundQueries:
    """The ledger of one round as far as `view` contains it; no rows if there were no sums."""
    table = view.indexed(number)
    questions = [(i, m) for i, m in table if m.kind == "query" and QUERY in m.parts]
    sums = [(i, m) for i, m in table if m.kind == "sum" and MODEL in m.parts]
    names = view.layouts[QUERY].names if questions else ()
    if any(m.kind in ("query", "sum") for _, m in table):
        asking = any(m.kind == "query" for _, m in table)
        view.refuse_torn("ledger" if asking else "members", number)
    by_number = {question_number(m, at): i for at, (i, m) in enumerate(sums)} if questions else {}
    rows, answers = [], []
    for at, (i, m) in enumerate(questions):
        rows.append(view.payload(number, i, layout=QUERY).astype(np.float64))
        answers.append(by_number.pop(question_number(m, at), -1))
    left = set(by_number.values()) if questions else {i for i, _ in sums}
    loose = [(i, m) for i, m in sums if i in left]
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


def model_receivers(messages: Iterable[Message], by: str, step: int) -> list[str]:
    """Those to whom `by`, the receiver of a sum, had sent a model before `step` of a round."""
    return list(
        dict.fromkeys(
            m.receiver for m in messages if m.kind == "model" and m.sender == by and m.step < step
        )
    )
