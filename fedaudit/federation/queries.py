"""Record sealed hops, queries to a secure aggregator and their answers."""

from __future__ import annotations

import numpy as np

from fedaudit.hooks import Uploads
from fedaudit.trace.ledger import QUERY
from fedaudit.trace.recorder import RoundWriter
from fedaudit.trace.schema import AGGREGATOR


def record_legs(wire: RoundWriter, uploads: Uploads, kind: str, *, step: int) -> None:
    """Record one message per sealed hop, of `kind` unless the hop names another."""
    for leg in uploads.legs:
        metadata = {**leg.metadata, **({} if leg.query is None else {QUERY: leg.query})}
        wire.send(
            leg.kind or kind,
            leg.sender,
            leg.receiver,
            None,
            step=step,
            weight=leg.weight,
            size=leg.size,
            metadata=metadata,
        )


def record_queries(
    wire: RoundWriter, uploads: Uploads, asker: str, clients: int, *, step: int
) -> None:
    """Record one message per query: a 0/1 row with one column per client, in client order."""
    count = len(uploads.queries)
    if not count:
        return
    rows = np.zeros((count, clients), dtype=np.uint8)
    for row, query in zip(rows, uploads.queries, strict=True):
        row[query.clients] = 1
    wire.send_rows(
        "query",
        [asker] * count,
        [AGGREGATOR] * count,
        rows,
        step=step,
        metadata=[{QUERY: i, **query.metadata} for i, query in enumerate(uploads.queries)],
        layout=QUERY,
    )


def record_answers(wire: RoundWriter, uploads: Uploads, asker: str, *, step: int) -> None:
    """Record the sums other than the training aggregate, each with its query number."""
    answered = [(i, q) for i, q in enumerate(uploads.queries) if i and q.row is not None]
    for i, query in answered:
        assert query.row is not None
        wire.send_rows(
            "sum",
            [AGGREGATOR],
            [asker],
            query.row.unsqueeze(0).numpy(),
            step=step,
            metadata=[{QUERY: i, **query.answer_metadata}],
            layout=query.layout,
        )
