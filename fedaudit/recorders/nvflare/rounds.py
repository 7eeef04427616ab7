"""Tasks and answers of a FLARE job, gathered into rounds of a trace.

Answers may arrive from several threads; every public method takes the lock. A fault of the recorder
never reaches the job: recording stops, the trace is marked, and the log says why.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedaudit.errors import UsageError
from fedaudit.recorders.nvflare.messages import Named, Tensors
from fedaudit.trace import PUBLIC, SERVER, Recorder
from fedaudit.trace.limits import FAULTS, reason_of
from fedaudit.trace.recorder import prepare_folder, recorded_layouts
from fedaudit.trace.schema import FAILED, JOINED, LATE, LEFT_OUT, REFUSED

Log = Callable[[str], None]


class JobRounds:
    """Writes the rounds of one job into the folder `path`."""

    def __init__(
        self, path: Path, about: Mapping[str, Any], keep: Mapping[str, Any], log: Log
    ) -> None:
        self.path, self._about, self._keep, self._log = path, dict(about), dict(keep), log
        self._lock = threading.RLock()
        self._recorder: Recorder | None = None
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._first: Named = {}
        self._moved = False  # whether another model than the first one was sent
        self._number: int | None = None
        self._sent: dict[str, Tensors] = {}
        self._answers: list[tuple[str, Tensors | None, str, bool]] = []
        self._listed: set[str] = set()
        self.declared: Sequence[Mapping[str, Any]] = ()
        self.after_round: Callable[[Path], None] = _nothing
        self.stopped = ""

    def begin(self) -> None:
        """Take the folder; if it is occupied, say so before any task is sent."""
        with self._lock:
            self.guarded(prepare_folder, self.path)

    # -- what happened ---------------------------------------------------------------------------

    def sent(self, number: int | None, client: str, content: Tensors) -> None:
        """Record a task with a model for a client. A new round number ends the round before."""
        with self._lock:
            self.guarded(self._begin, number, client, content)

    def answered(
        self, number: int | None, client: str, content: Tensors | None, failed: str = ""
    ) -> None:
        """An answer arrived, or a failure (`failed`). Answers to earlier rounds are late."""
        with self._lock:
            self.guarded(self._take, number, client, content, failed)

    def close(self, released: Named | None = None) -> None:
        """Write the last round, add the released model, and mark the trace complete."""
        with self._lock:
            written = self._recorder.rounds if self._recorder else 0
            self.guarded(self._flush, released)
            again = None if self._recorder and self._recorder.rounds > written else released
            self.guarded(self._end, again)

    # -- a round ---------------------------------------------------------------------------------

    def guarded(self, act: Callable[..., None], *args: Any) -> None:
        """Call `act`; stop recording if it fails."""
        if self.stopped:
            return
        try:
            act(*args)
        except FAULTS as error:
            self._stop(reason_of(error))
        if self._recorder is not None and self._recorder.stopped:
            self._stop(self._recorder.stopped)

    def _stop(self, why: str) -> None:
        with self._lock:
            if self.stopped:
                return
            self.stopped, rounds = why, 0
            if self._recorder is not None:
                self._recorder.stop(why)
                rounds = self._recorder.rounds
            self._log(
                f"fedaudit stopped recording to {self.path} after {rounds} rounds, the job goes "
                f"on: {why}"
            )

    def _kept(self, content: Tensors) -> Tensors:
        """The content as it is now: servers go on computing in the same memory (FedOpt).

        The model of a round, sent to many clients, is kept once.
        """
        for other in self._sent.values():
            if _same(other.arrays, content.arrays):
                return replace(content, arrays=other.arrays)
        return replace(content, arrays={n: a.copy() for n, a in content.arrays.items()})

    def _begin(self, number: int | None, client: str, content: Tensors) -> None:
        again = number is None and client in self._sent
        if self._sent and (again or number != self._number):
            self._flush()
        self._number = number
        self._sent[client] = kept = self._kept(content)
        if kept.arrays and not self._first:
            # before the first answer: patterns that fit no tensor are refused
            recorded_layouts(kept.arrays, self._keep["tensors"], self._keep["dtype"])
            self._first = kept.arrays
        new = kept.arrays is not self._first and not _same(kept.arrays, self._first)
        self._moved = self._moved or (bool(kept.arrays) and new)

    def _take(self, number: int | None, client: str, content: Tensors | None, failed: str) -> None:
        late = number is not None and self._number is not None and number < self._number
        if not any(a[0] == client and a[3] == late for a in self._answers):
            kept = None if content is None else self._kept(content)
            self._answers.append((client, kept, failed, late))

    def _flush(self, released: Named | None = None) -> None:
        if not self._sent:
            self._answers = []
            return
        first = next((c for c in self._sent.values() if c.arrays), None)
        if not self._shapes and first is not None:
            self._shapes = {name: a.shape for name, a in first.arrays.items()}
        if self._shapes:
            self._write(released)
        elif self._recorder is None:
            # nothing is dropped in silence
            lacks = {c.lacks for c in self._sent.values() if c.lacks}
            raise UsageError(
                "the models of this job cannot be recorded",
                expected="weights as arrays in the first task",
                got=", ".join(sorted(lacks)) or "no arrays",
                remedy="name the tasks that carry weights: FedauditRecorder(path, tasks=[...])",
            )
        self._sent, self._answers = {}, []
        if self._recorder is not None and not self._recorder.stopped:
            self.after_round(self.path)

    def _write(self, released: Named | None) -> None:
        recorder = self._writer()
        late = [a for a in self._answers if a[3]]
        with recorder.round() as wire:
            for client, content, failed, _ in late:
                self._answer(wire, client, content, failed, 0, {LATE: True})
            at = 1 if late else 0
            for client, content in self._sent.items():
                self._message(wire, "model", SERVER, client, content, at, self._newcomer(client))
            there = set()
            for client, content, failed, _ in (a for a in self._answers if not a[3]):
                there.add(client)
                self._answer(wire, client, content, failed, at + 1, {})
            for client in self._sent.keys() - there:
                self._answer(wire, client, None, "no answer in time", at + 1, {})
            if released is not None:
                self._release(wire, released)

    def _answer(
        self,
        wire: Any,
        client: str,
        content: Tensors | None,
        failed: str,
        step: int,
        notes: Mapping[str, Any],
    ) -> None:
        notes = {**notes, **self._newcomer(client)}
        if content is None or failed:
            wire.send("model", client, SERVER, None, step=step, notes={FAILED: failed, **notes})
            return
        self._message(wire, content.kind, client, SERVER, content, step, notes)

    def _message(
        self,
        wire: Any,
        kind: str,
        sender: str,
        receiver: str,
        content: Tensors,
        step: int,
        notes: Mapping[str, Any],
    ) -> None:
        wrong = content.lacks or _misfit(content.arrays, self._shapes)
        if wrong and content.kind != "masked":
            notes = {**notes, REFUSED: wrong}
        if content.beside:
            notes = {**notes, LEFT_OUT: ", ".join(content.beside)}
        wire.send(
            kind,
            sender,
            receiver,
            None if wrong else content.arrays,
            step=step,
            weight=content.weight,
            size=content.size,
            metadata=content.scalars,
            notes=notes,
        )

    def _newcomer(self, client: str) -> dict[str, Any]:
        return {} if client in self._listed else {JOINED: True}

    # -- the file --------------------------------------------------------------------------------

    def _writer(self) -> Recorder:
        if self._recorder is None:
            clients = sorted(self._sent)
            self._listed = set(clients)
            first = next(c for c in self._sent.values() if c.arrays)
            like = {n: np.zeros(a.shape, _stored(a)) for n, a in first.arrays.items()}
            if not any(a.dtype.kind == "f" for a in like.values()):
                # a first model of zeros, written as whole numbers: what comes back says what it is
                back = [a[1].arrays for a in self._answers if a[1] is not None]
                like |= {
                    n: np.zeros(a.shape, np.float32)
                    for n, a in like.items()
                    if any(n in b and b[n].dtype.kind == "f" for b in back)
                }
            parties = {"hubs": [SERVER], "clients": clients, "parties": [SERVER, *clients]}
            self._recorder = Recorder(
                self.path,
                like=like,
                federation={**self._about, **parties},
                declared=(*self.declared, *self._filters()),
                **self._keep,
            )
        return self._recorder

    def _filters(self) -> list[dict[str, Any]]:
        """Filters that sites say they applied, as declared protections without a guarantee."""
        by: dict[str, list[str]] = {}
        for client, content, _, _ in self._answers:
            for name in () if content is None else content.filters:
                by.setdefault(name, []).append(client)
        return [
            {
                "name": name,
                "covers": [],
                "trust": "each site, whose own code filters",
                "sites": sorted(clients),
                "note": "named in the sites' answers; no epsilon can be told from its name",
            }
            for name, clients in by.items()
        ]

    def _end(self, released: Named | None) -> None:
        recorder = self._recorder
        if recorder is None or recorder.manifest.complete:
            return
        if released is not None:
            with recorder.last_round() as wire:
                self._release(wire, released)
        recorder.close()

    def _release(self, wire: Any, released: Named) -> None:
        """Send the model that ends a job."""
        step = max((m.step for m in wire.messages), default=-1) + 1
        found = Tensors(arrays=released, size=sum(a.nbytes for a in released.values()))
        if self._moved and _same(released, self._first):
            # Cyclic, and controllers of one's own: FLARE keeps what it loaded, not what they made
            found = Tensors(lacks="FLARE holds the first model: the workflow names no other")
        self._message(wire, "model", SERVER, PUBLIC, found, step, {})


def _nothing(_path: Path) -> None: ...


def _same(a: Named, b: Named) -> bool:
    """Whether two sets of arrays are equal, by names and numbers."""
    return bool(a) and a.keys() == b.keys() and all(np.array_equal(a[n], b[n]) for n in a)


def _stored(values: Any) -> Any:
    return np.float32 if values.dtype.kind == "f" else np.int64


def _misfit(got: Mapping[str, Any], want: Mapping[str, Sequence[int]]) -> str:
    """How names and shapes differ from those of the first model; empty if they do not."""
    if set(got) != set(want):
        odd = sorted(set(got) ^ set(want))
        return f"other tensors than the first model: {', '.join(odd[:3])}"
    for name, values in got.items():
        if tuple(values.shape) != tuple(want[name]):
            return f"{name} of shape {tuple(values.shape)}, the first model has {tuple(want[name])}"
    return ""
