"""How sealed hops, questions to a secure aggregator and their answers are written down."""

from __future__ import annotations

import numpy as np

from fedaudit.hooks import Uploads
from fedaudit.trace.ledger import QUERY
from fedaudit.trace.recorder import RoundWriter
from fedaudit.trace.schema import AGGREGATOR


def record_legs(wire: RoundWriter, uploads: Uploads, kind: str, *, step: int) -> None:
    """One message per sealed hop, of `kind` unless it says otherwise."""
    for leg in uploads.legs:
        note = {} if leg.query is None else {QUERY: leg.query}
        sort = leg.kind or kind
        wire.send(sort, leg.sender, leg.receiver, None, step=step, size=leg.size, metadata=note)


def record_questions(
    wire: RoundWriter, uploads: Uploads, asker: str, clients: int, *, step: int
) -> None:
    """One message per question: a column for each of `clients`, in the order of their numbers."""
    asked = uploads.questions
    if not asked:
        return
    rows = np.zeros((len(asked), clients), dtype=np.uint8)
    for row, question in zip(rows, asked, strict=True):
        row[question.clients] = 1
    many = len(asked)
    notes = [{QUERY: i, **question.metadata} for i, question in enumerate(asked)]
    wire.send_rows(
        "query", [asker] * many, [AGGREGATOR] * many, rows, step=step, metadata=notes, layout=QUERY
    )


def record_answers(wire: RoundWriter, uploads: Uploads, asker: str, *, step: int) -> None:
    """The sums beside the training aggregate, each with the number of its question."""
    told = [(i, q) for i, q in enumerate(uploads.questions) if i and q.row is not None]
    for i, question in told:
        assert question.row is not None
        wire.send_rows(
            "sum",
            [AGGREGATOR],
            [asker],
            question.row.unsqueeze(0).numpy(),
            step=step,
            metadata=[{QUERY: i, **question.told}],
        )
