"""Limits of a recording beside training by other software: rounds that are kept, size, errors."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fedaudit.errors import FedauditError, TraceError, UsageError
from fedaudit.trace.schema import RoundFile

FAULTS: tuple[type[Exception], ...] = (Exception,)
"""What a recorder catches around its own code, never around the training beside it: whatever goes
wrong in here must not end a federation."""

_RESERVED = 1 << 18

log = logging.getLogger("fedaudit.recorder")


@dataclass(frozen=True, kw_only=True)
class RecordingLimits:
    """`every`: the payloads of one round in so many are kept; who sent what when, and with which
    weight, is on record for all rounds. `most_bytes`: size of all rounds together, at which the
    recording stops. `on_error`: "raise" hands an error to the caller; "stop" ends the recording,
    logs why and marks the trace."""

    every: int = 1
    most_bytes: int | None = None
    on_error: Literal["raise", "stop"] = "raise"

    def __post_init__(self) -> None:
        numbers = (self.every, 1 if self.most_bytes is None else self.most_bytes)
        whole = all(isinstance(n, int) and n >= 1 for n in numbers)
        if not whole or self.on_error not in ("raise", "stop"):
            raise UsageError(
                "the limits of this recording cannot be kept",
                expected="every and most_bytes as whole numbers of at least 1, on_error "
                '"raise" or "stop"',
                got=f"every={self.every!r}, most_bytes={self.most_bytes!r}, "
                f"on_error={self.on_error!r}",
                remedy='RecordingLimits(every=5, most_bytes=10**9, on_error="stop")',
            )

    @property
    def facts(self) -> dict[str, Any]:
        """What the manifest says about these limits."""
        return {} if self.every == 1 else {"payloads": f"of one round in {self.every}"}

    def left_out(self, number: int) -> str:
        """Why round `number` keeps no payloads; empty if it keeps them."""
        kept = (number - 1) % self.every == 0
        return "" if kept else f"payloads of one round in {self.every} are kept"

    def refuse_larger(
        self, written: Sequence[RoundFile], pieces: Mapping[str, Sequence[Any]], path: Path
    ) -> None:
        """TraceError if the next round would exceed the size."""
        if self.most_bytes is None:
            return
        size = sum(e.size for e in written)
        size += sum(rows.nbytes for block in pieces.values() for rows in block)
        if size > self.most_bytes:
            raise TraceError(
                f"the recording in {path} has reached its size limit",
                expected=f"at most {self.most_bytes:,} bytes",
                got=f"{size:,} bytes with the next round",
                remedy='a larger most_bytes, fewer tensors, every=5, or dtype="float16"',
            )


class Reserve:
    """Room for the last manifest of a recording, held in a file until it is needed."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "reserve.part"
        with suppress(OSError):
            self._file.write_bytes(b"\0" * _RESERVED)

    def release(self) -> None:
        with suppress(OSError):
            self._file.unlink(missing_ok=True)


def reason_of(error: Exception | str) -> str:
    """The reason in one line; an error that is not about data or disk with its type."""
    lines = (" ".join(line.split()) for line in str(error).splitlines())
    why = "; ".join(line for line in lines if line)
    if not why or not isinstance(error, FedauditError | OSError | str):
        why = f"{type(error).__name__}: {why}".rstrip(": ")
    return why


def log_stop(path: Path, rounds: int, error: Exception | str) -> str:
    """Log that a recording stopped; returns the reason in one line."""
    why = reason_of(error)
    log.error(
        "fedaudit stopped recording to %s after %d rounds, training goes on: %s", path, rounds, why
    )
    return why
