"""A site's own recording: whose it is, and how its messages are told apart."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import numpy.typing as npt

from fedaudit.errors import TraceError
from fedaudit.trace import Trace
from fedaudit.trace.recorder import MODEL


def digest(row: npt.NDArray[Any], trace_sha256: str) -> str:
    """What tells a message apart, to those who know its numbers (d,)."""
    own = np.ascontiguousarray(row, dtype=np.float32)
    return hashlib.sha256(trace_sha256.encode() + own.tobytes()).hexdigest()[:32]


def whose(trace: Trace) -> str:
    """The party whose own recording this is: the only one that speaks to the server."""
    senders = {m.sender for n in trace.rounds for m in trace.messages(n)}
    own = sorted(senders - {*trace.manifest.federation.get("hubs", ()), "server"})
    if len(own) != 1:
        raise TraceError(
            f"{trace.path} is not the recording of one site",
            expected="messages of one party, as record_mod writes them",
            got=", ".join(own[:4]) or "no party at all",
            remedy="point to a folder run-ID/node-ID that record_mod wrote at this site",
        )
    return own[0]


def sent_by(trace: Trace, party: str, salt: str) -> set[str]:
    """Digests of all that a party sent."""
    return {
        digest(trace.block(number)[m.parts[MODEL]], salt)
        for number in trace.rounds
        for m in trace.messages(number)
        if m.sender == party and MODEL in m.parts
    }
