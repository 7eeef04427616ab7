"""A trace in memory: the same messages, views and truth, without files and hashes.

For the thousands of small federations that an adversary or a test simulates and discards. Use
`Recorder` and `TruthRecorder` for a recording that others must trust.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedaudit.errors import UsageError
from fedaudit.layout import Layout
from fedaudit.trace.health import Health
from fedaudit.trace.recorder import Recorder, RoundWriter
from fedaudit.trace.schema import Manifest, Message
from fedaudit.trace.truth import Truth, TruthRecorder
from fedaudit.trace.view import RoundTable, Trace

NOWHERE = Path("in-memory")


@dataclass(frozen=True)
class _Held:
    """Content of one round."""

    blocks: dict[str, npt.NDArray[Any]]
    messages: tuple[Message, ...]


class MemoryRecorder(Recorder):
    """A `Recorder` that writes no files; `trace()` returns the recording so far."""

    def __init__(
        self,
        *,
        layouts: Mapping[str, Layout],
        federation: Mapping[str, Any] | None = None,
        declared: Sequence[Mapping[str, Any]] = (),
        task: Mapping[str, Any] | None = None,
    ) -> None:
        self.path = NOWHERE
        self._layouts = self._stored = dict(layouts)
        self.manifest = Manifest(
            layouts=self._stored,
            federation=federation or {},
            declared=tuple(declared),
            task=task or {},
        )
        self._held: list[_Held] = []

    @property
    def rounds(self) -> int:
        return len(self._held)

    def redo_after(self, rounds: int) -> None:
        del self._held[rounds:]

    @contextmanager
    def round(self) -> Iterator[RoundWriter]:
        writer = RoundWriter(self._layouts, self._stored)
        yield writer
        blocks = {}
        for name, pieces in writer._pieces().items():
            # a copy: the engine reuses its rows
            blocks[name] = np.concatenate(pieces)
            blocks[name].flags.writeable = False
        self._held.append(_Held(blocks, tuple(writer.messages)))

    def close(self) -> None:
        """Does nothing: no file is open."""

    def trace(self) -> MemoryTrace:
        return MemoryTrace(self.manifest, tuple(self._held))


class MemoryTrace(Trace):
    """A recording of `MemoryRecorder`; views work as on any trace."""

    def __init__(self, manifest: Manifest, held: tuple[_Held, ...]) -> None:
        super().__init__(NOWHERE, manifest, "")
        self._held = held

    @property
    def rounds(self) -> range:
        return range(1, len(self._held) + 1)

    def verify(self, *, touched: bool = False) -> None:
        """Does nothing: there are no files to verify."""

    def examined(self) -> Health | None:
        """The health, if it was examined; examining thousands of games would cost too much."""
        return self.health

    def read_round(self, number: int, *, rehash: bool = False) -> RoundTable:
        self.check_round(number)
        held = self._held[number - 1]
        return RoundTable(held.blocks, held.messages)


class MemoryTruth(Truth, TruthRecorder):
    """Truth without files."""

    def __init__(self, facts: Mapping[str, Any]) -> None:
        Truth.__init__(self, NOWHERE, dict(facts))
        self._senders: dict[int, dict[int, str]] = {}
        self._raw: dict[int, tuple[tuple[str, ...], npt.NDArray[np.float32] | None]] = {}
        self._metrics: dict[int, dict[str, float]] = {}

    @property
    def rounds(self) -> int:
        return len(self._senders)

    def round(
        self,
        number: int,
        senders: Mapping[int, str],
        raw: npt.NDArray[np.float32] | None = None,
        clients: Sequence[str] = (),
        metrics: Mapping[str, float] | None = None,
    ) -> None:
        self._senders[number] = dict(senders)
        self._raw[number] = (tuple(clients), None if raw is None else raw.copy())
        self._metrics[number] = dict(metrics or {})

    def senders(self, number: int) -> dict[int, str]:
        return dict(self._senders[number])

    def raw_updates(self, number: int) -> tuple[tuple[str, ...], npt.NDArray[np.float32]]:
        clients, raw = self._raw[number]
        if raw is None:
            raise UsageError(
                "raw updates were not kept",
                expected="keep_raw=True when the federation ran",
                got="a run without them",
                remedy="run again with keep_raw=True",
            )
        return clients, raw

    def metrics(self, number: int) -> dict[str, float]:
        return dict(self._metrics[number])

    def with_members(
        self,
        members: Mapping[str, npt.NDArray[np.bool_]],
        records: Mapping[str, tuple[npt.NDArray[Any], npt.NDArray[Any]]] | None = None,
    ) -> Truth:
        # a copy: another audit has other candidates
        known = copy.copy(self)
        known.members, known.records = dict(members), dict(records or {})
        return known
