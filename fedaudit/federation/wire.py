"""Record models and uploads, message by message.

`federation.queries` records sealed hops, queries to a secure aggregator and their answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fedaudit.arrays import Indices
from fedaudit.errors import ConfigError
from fedaudit.federation.queries import record_answers, record_legs, record_queries
from fedaudit.hooks import Uploads
from fedaudit.rows import empty_rows, take_rows
from fedaudit.trace.recorder import MODEL, RoundWriter
from fedaudit.trace.schema import ANONYMOUS


def record_models(
    wire: RoundWriter, sent: Tensor, senders: Sequence[str], receivers: Sequence[str], *, step: int
) -> None:
    """Record the models sent: one model (d,) for all receivers, or one row each (n, d)."""
    rows: Any = wire.put_once(MODEL, sent.numpy()) if sent.dim() == 1 else np.asarray(sent.numpy())
    wire.send_rows("model", senders, receivers, rows, step=step)


def as_carried(
    uploads: Uploads, sent: Tensor, clients: Indices, carries: Literal["delta", "model"]
) -> Uploads:
    """The uploads as the wire carries them: a whole model is the delta + the received model.

    A secure sum stays a sum of deltas.
    """
    if carries != "model" or uploads.kind != "delta":
        return uploads
    if sent.dim() == 1:
        whole = torch.add(uploads.rows, sent, out=empty_rows(*uploads.rows.shape))
        return replace(uploads, rows=whole, kind="model")
    if ANONYMOUS in uploads.senders or (uploads.origin < 0).any():
        raise ConfigError(
            "anonymous whole models cannot be combined with one planted model per client",
            expected='federation.wire = "delta" when every client receives its own model',
            got='"model" with hidden senders',
            remedy='set federation.wire = "delta"',
        )
    at = {int(c): i for i, c in enumerate(clients)}
    planted = take_rows(sent, [at[int(c)] for c in uploads.origin])
    return replace(uploads, rows=planted.add_(uploads.rows), kind="model")


def send_uploads(
    wire: RoundWriter,
    uploads: Uploads,
    receiver: str,
    clients: int,
    *,
    legs: str,
    step: int,
    after: int,
) -> int:
    """Record queries, sealed hops of kind `legs`, rows, answers; returns the first row's index.

    Rows and answers arrive at step `after`.
    """
    record_queries(wire, uploads, receiver, clients, step=step)
    record_legs(wire, uploads, legs, step=step)
    first = wire.send_rows(
        uploads.kind,
        uploads.senders,
        [receiver] * len(uploads.senders),
        uploads.rows.numpy(),
        step=after,
        weights=list(uploads.weights),
        metadata=list(uploads.metadata) or None,
    )
    record_answers(wire, uploads, receiver, step=after)
    return first


def record_uploads(
    wire: RoundWriter, uploads: Uploads, receiver: str, party: Sequence[str], *, step: int
) -> dict[int, str]:
    """Record the sealed hops and the rows; returns message index -> true sender from `party`."""
    after = step + 1 if uploads.legs else step
    kind = uploads.kind
    first = send_uploads(wire, uploads, receiver, len(party), legs=kind, step=step, after=after)
    return {first + i: party[c] for i, c in enumerate(uploads.origin) if c >= 0}


def next_step(wire: RoundWriter) -> int:
    """The step after all messages of this round so far."""
    return wire.messages[-1].step + 1 if wire.messages else 0
