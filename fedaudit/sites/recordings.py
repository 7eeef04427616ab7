"""A site's own recording: its party, and the digests of its messages."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import numpy.typing as npt

from fedaudit.errors import TraceError
from fedaudit.trace import Trace
from fedaudit.trace.recorder import MODEL


def digest(row: npt.NDArray[Any], trace_sha256: str) -> str:
    """Identifies a message to those who know its numbers (d,)."""
    own = np.ascontiguousarray(row, dtype=np.float32)
    return hashlib.sha256(trace_sha256.encode() + own.tobytes()).hexdigest()[:32]


def owner_of(trace: Trace) -> str:
    """The party that made this recording: the only one that sends to the server."""
    senders = {m.sender for n in trace.rounds for m in trace.messages(n)}
    own = sorted(senders - {*trace.manifest.federation.get("hubs", ()), "server"})
    if len(own) != 1:
        raise TraceError(
            f"{trace.path} is not the recording of one site",
            expected="messages of one party, as record_mod writes them",
            got=", ".join(own[:4]) or "no party",
            remedy="give a folder run-ID/node-ID that record_mod wrote at this site",
        )
    return own[0]


def sent_by(trace: Trace, party: str, salt: str) -> set[str]:
    """Digests of all messages that a party sent."""
    return {
        digest(trace.block(number)[m.parts[MODEL]], salt)
        for number in trace.rounds
        for m in trace.messages(number)
        if m.sender == party and MODEL in m.parts
    }
