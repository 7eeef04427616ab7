"""The only writer of traces. Other code needs three calls:

    recorder = Recorder(path, like={"w": w, "b": b})                       # once
    with recorder.round() as messages:                                     # once per round
        messages.send("model", SERVER, "client-0", {"w": w, "b": b})       # once per message
    recorder.close()

A round joins the trace when its `with` block ends without an error; until then it is invisible.
Equal payloads are stored once. Messages of one round may be sent from several threads.

By default an error reaches the caller. Beside training by other software it must not: with
`RecordingLimits(on_error="stop")` a payload that does not fit is left out, and its message says
why; any other error stops the recording, says so in the log and marks the trace.
"""

from __future__ import annotations

import hashlib
import os
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import isfinite
from operator import index
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from fedaudit.errors import IntegrityError, TraceError, UsageError
from fedaudit.files import Unreadable, is_lost, write_atomically
from fedaudit.layout import Layout, column_runs
from fedaudit.rows import empty_array
from fedaudit.trace.limits import FAULTS, RecordingLimits, Reserve, log, log_stop, reason_of
from fedaudit.trace.numbers import as_numbers
from fedaudit.trace.retention import check_retention
from fedaudit.trace.schema import (
    LATE,
    LEFT_OUT,
    PUBLIC,
    REFUSED,
    ROUNDED,
    STOPPED,
    UPLINKS,
    Manifest,
    Message,
    Scalar,
)
from fedaudit.trace.store import RoundReader, read_manifest, round_name, verify, write_round

Payload = Mapping[str, npt.ArrayLike] | npt.NDArray[Any]
Rows = npt.NDArray[Any]
MODEL = "model"
INTEGERS = "integers"

#: sampled columns that distinguish most rows; a full hash decides equality
_SAMPLE = 64
_FITTED = 1 << 22  # numbers converted at once
_COMPARED = 1 << 14  # numbers compared at once: small enough to stay in a cache


def layouts_like(tensors: Mapping[str, npt.ArrayLike], dtype: str = "float32") -> dict[str, Layout]:
    """Layouts for a state dict: float tensors in `model` as `dtype`, others in `integers` as int64.

    Running statistics of normalisation layers, recognised by name, get the role `buffer`.
    """
    arrays = {k: as_numbers(k, v) for k, v in tensors.items()}
    floats = {k: a for k, a in arrays.items() if a.dtype.kind == "f"}
    others = {k: a for k, a in arrays.items() if a.dtype.kind != "f"}
    statistics = [k for k in floats if k.endswith(("running_mean", "running_var"))]
    layouts = {}
    if floats:
        layouts[MODEL] = Layout.of(
            ((k, a.shape) for k, a in floats.items()), dtype=dtype, buffers=statistics
        )
    if others:
        layouts[INTEGERS] = Layout.of(
            ((k, a.shape) for k, a in others.items()), dtype="int64", buffers=list(others)
        )
    return layouts


def _stored_layouts(
    layouts: Mapping[str, Layout], tensors: str | Sequence[str], dtype: str | None
) -> dict[str, Layout]:
    """The layouts as stored: of `model`, only the matching tensors, in `dtype`."""
    stored = dict(layouts)
    if MODEL in stored and tensors != "*":
        stored[MODEL] = stored[MODEL].restrict(tensors)
    if MODEL in stored and dtype is not None:
        stored[MODEL] = replace(stored[MODEL], dtype=dtype)
    return stored


def recorded_layouts(
    like: Mapping[str, npt.ArrayLike], tensors: str | Sequence[str], dtype: str | None
) -> dict[str, Layout]:
    """The layouts of a trace of such a state dict."""
    return _stored_layouts(layouts_like(like), tensors, dtype)


def check_options(
    dtype: str | None, purpose: str, retention: str, limits: RecordingLimits | None
) -> None:
    """Refuse options of a recording that need no model to be seen as wrong."""
    if dtype not in (None, "float16", "float32", "float64"):
        raise UsageError(
            "a trace is not written in this dtype",
            expected="float16, float32 or float64",
            got=repr(dtype),
            remedy='dtype="float32"',
        )
    if not isinstance(limits, RecordingLimits | None):
        raise UsageError(
            "these are no limits of a recording",
            expected="RecordingLimits",
            got=repr(limits),
            remedy="limits=RecordingLimits(every=5), from fedaudit.trace.limits",
        )
    for name, text in (("purpose", purpose), ("retention", retention)):
        if not isinstance(text, str):
            raise UsageError(
                f"{name} is not a text",
                expected="a text",
                got=repr(text),
                remedy=f'{name}="..."',
            )
    check_retention(retention)


def check_declared(declared: Sequence[Mapping[str, Any]]) -> None:
    """Refuse announced protections without a name: no audit could say which one it looked at."""
    for given in declared:
        named = given.get("name") if isinstance(given, Mapping) else None
        if not isinstance(named, str) or not named:
            raise UsageError(
                "a declared protection has no name",
                expected='{"name": ..., "covers": [...]} as in docs/trace-format.md',
                got=repr(given),
                remedy='declared=[{"name": "local_dp", "covers": ["model"]}]',
            )


def prepare_folder(path: Path) -> None:
    """Make the folder of a new trace; TraceError if it holds one, or cannot be written."""
    if (path / "manifest.json").exists():
        raise TraceError(
            f"{path} already holds a trace",
            expected="an empty or new folder",
            got="manifest.json",
            remedy="choose another folder, or pass resume=True to continue it",
        )
    left = sorted(path.glob("round-*.safetensors"))
    if left:
        raise TraceError(
            f"{path} holds rounds of a trace without a manifest",
            expected="an empty or new folder",
            got=left[0].name,
            remedy="choose another folder, or remove these files",
        )
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TraceError(
            f"cannot write a trace to {path}",
            expected="a folder that can be written",
            got=error.strerror or str(error),
            remedy="choose another output folder",
        ) from None


def another_experiment(path: Path) -> TraceError:
    return TraceError(
        f"{path} holds the trace of another experiment",
        expected="the same tensors, federation and protections",
        got="a different manifest",
        remedy="choose another folder",
    )


class _Block:
    """The rows of one layout in one round, each stored once."""

    def __init__(self, full: Layout, kept: Layout) -> None:
        self.full, self.kept = full, kept
        chosen = set(kept.names)
        self.runs = column_runs([e for e in full.entries if e.name in chosen])
        self.pieces: list[Rows] = []
        self.count = 0
        # the caller's rows, each with a sample taken when it was sent
        self.borrowed: list[tuple[Rows, Rows]] = []
        self._by_sample: dict[bytes, tuple[int, Rows]] = {}
        self._by_hash: dict[bytes, int] = {}

    @property
    def stride(self) -> int:
        return max(1, self.kept.width // _SAMPLE)

    def fit(self, rows: Rows) -> Rows:
        """The kept columns of `rows` (n, width) in the stored type; UsageError if they overflow."""
        if rows.ndim != 2 or rows.shape[1] != self.full.width or rows.dtype.kind not in "fiub":
            raise UsageError(
                "a payload does not fit its layout",
                expected=f"rows of {self.full.width} numbers",
                got=f"{rows.dtype.name} {rows.shape}",
                remedy="send every tensor of the layout, flattened in its order",
            )
        narrow = np.dtype(self.kept.dtype)
        if self.kept.width == self.full.width and rows.dtype == narrow:
            return np.ascontiguousarray(rows)
        kept = empty_array(len(rows), self.kept.width, narrow)
        together = max(1, _FITTED // max(1, self.full.width))
        for low in range(0, len(rows), together):
            self._narrow(rows[low : low + together], kept[low : low + together])
        return kept

    def _narrow(self, rows: Rows, out: Rows) -> None:
        """Copy the kept columns into `out`, converted to the stored type."""
        with np.errstate(over="ignore"):
            at = 0
            for run in self.runs:
                part = rows[:, run]
                out[:, at : at + part.shape[1]] = part
                at += part.shape[1]
        if out.dtype.kind != "f" or out.dtype.itemsize >= rows.dtype.itemsize:
            return
        lost = np.isinf(out)
        if not lost.any():
            return
        before = np.concatenate([rows[:, run] for run in self.runs], axis=1)[lost]
        if np.isfinite(before).any():
            raise UsageError(
                f"a payload does not fit {out.dtype.name}",
                expected=f"numbers up to {np.finfo(out.dtype).max:g}",
                got=f"{float(np.abs(before[np.isfinite(before)]).max()):g}",
                remedy=f"record with a wider dtype than {out.dtype.name}",
            )

    def put(self, rows: Rows) -> list[int]:
        """Store new rows of `rows` (n, width); returns all row numbers."""
        kept = self.fit(rows)
        if np.may_share_memory(kept, rows):
            self.borrowed.append((kept, kept[:, :: self.stride].copy()))
        return self.keep(kept)

    def keep(self, kept: Rows) -> list[int]:
        """Store what is new among fitted rows; returns all row numbers."""
        samples = kept[:, :: self.stride].copy()
        numbers, fresh = [], 0
        for i, row in enumerate(kept):
            known = self._known(row, samples[i].tobytes())
            if known is None:
                numbers.append(self.count)
                self.count += 1
            else:
                # adjacent new rows stay one piece: no copy
                if i > fresh:
                    self.pieces.append(kept[fresh:i])
                fresh = i + 1
                numbers.append(known)
        if fresh < len(kept):
            self.pieces.append(kept[fresh:])
        return numbers

    def _known(self, row: Rows, sample: bytes) -> int | None:
        """Number of an equal row; None for a new one, registered as row number `count`."""
        first = self._by_sample.get(sample)
        if first is None:
            self._by_sample[sample] = (self.count, row)
            return None
        number, other = first
        if _equal(row, other):  # the model of a round, sent to the next client
            return number
        equal = self._by_hash.setdefault(_hash(row), self.count)
        return None if equal == self.count else equal

    def check_unchanged(self) -> None:
        for rows, before in self.borrowed:
            if rows[:, :: self.stride].tobytes() != before.tobytes():
                raise UsageError(
                    "rows changed between being sent and the end of the round",
                    expected="the numbers that crossed the wire",
                    got="other numbers in the same array",
                    remedy="hand a copy to send_rows, or use send, which copies",
                )


def _equal(row: Rows, other: Rows) -> bool:
    """Whether two rows hold the same bytes: a fifth of the cost of hashing one."""
    together = range(0, len(row), _COMPARED)
    return all(
        row[i : i + _COMPARED].tobytes() == other[i : i + _COMPARED].tobytes() for i in together
    )


def _hash(row: Rows) -> bytes:
    # hash bytes, not numbers: NaN equals itself, and -0.0 differs from 0.0
    return hashlib.sha256(row.view(np.uint8).data).digest()


class RoundWriter:
    """The messages of one round, in the order in which they crossed the wire."""

    def __init__(
        self,
        layouts: Mapping[str, Layout],
        stored: Mapping[str, Layout],
        *,
        left_out: str = "",
        late: bool = True,
        on_fault: Callable[[Exception], None] | None = None,
        off: bool = False,
    ) -> None:
        """`left_out`: why this round keeps no models and updates, if it does not; `late`: whether
        it keeps answers to models of earlier rounds. `on_fault` takes errors of `send` instead of
        its caller; from then on the writer is `off`: it ignores what it is given."""
        self._blocks = {name: _Block(full, stored[name]) for name, full in layouts.items()}
        self._layout_of = {n: name for name, full in layouts.items() for n in full.names}
        self._arrived: dict[str, int] = {}
        self._left_out, self._keeps_late, self._on_fault = left_out, late, on_fault
        self.off, self._over = off, False
        self._lock = threading.RLock()
        self.messages: list[Message] = []

    def _block(self, layout: str) -> _Block:
        if layout not in self._blocks:
            raise UsageError.unknown(f"the trace has no layout {layout!r}", layout, self._blocks)
        return self._blocks[layout]

    def put_once(self, layout: str, row: Rows) -> int:
        """Store one row unless an equal one exists; returns its number.

        Does not copy the row: leave it unchanged until the round ends.
        """
        number = -1
        with self._guarded() as on:
            if on:
                number = self._store(layout, np.asarray(row))
        return number

    put = put_once

    def _store(self, layout: str, row: Rows) -> int:
        (number,) = self._block(layout).put(row.reshape(1, -1))
        return number

    @contextmanager
    def _guarded(self) -> Iterator[bool]:
        """Lock the round; yields whether it is recorded. A fault goes where `on_fault` says."""
        with self._lock:
            try:
                yield not self.off and self._takes_more()
            except FAULTS as error:
                if self._on_fault is None:
                    raise
                self.off = True
                self._on_fault(error)

    def end(self) -> None:
        """Take no more messages."""
        with self._lock:
            self._over = True

    def _takes_more(self) -> bool:
        """Whether the round is open. A straggler's message is refused, or logged: one thread that
        is too late shall not end the recording of the others."""
        if not self._over:
            return True
        if self._on_fault is not None:
            log.warning("fedaudit did not record a message that came after the end of its round")
            return False
        raise UsageError(
            "a message came after the end of its round",
            expected="all messages inside the block of the round",
            got="a message after it",
            remedy="wait for all threads inside `with recorder.round()`",
        )

    def send(
        self,
        kind: str,
        sender: str,
        receiver: str,
        payload: Payload | None,
        *,
        step: int | None = None,
        weight: float = 1.0,
        size: int = 0,
        metadata: Mapping[str, Scalar] | None = None,
        notes: Mapping[str, Scalar] | None = None,
    ) -> int:
        """Record one message and copy its payload; returns its index in the round, or -1 if the
        recording has stopped.

        `payload`: named arrays, one flat row of the layout `model`, or None for a message encrypted
        on this leg (`size` then gives its bytes; `{}` with a size is the same). `step`: messages of
        one step crossed at the same time. By default a message follows everything its sender
        received in this round, and never precedes the last recorded message. `notes`: the
        recorder's remarks, which did not cross the wire (docs/trace-format.md). A payload without
        tensors and size, and with `on_error="stop"` one that does not fit, is noted as refused.
        """
        more, at = dict(notes or {}), -1
        with self._guarded() as on:
            if on:
                if payload is not None and (why := self._drops(kind, receiver, more)):
                    size, payload = size or self._size_of(payload), None
                    more[LEFT_OUT] = why
                if isinstance(payload, Mapping) and not payload and not size:
                    more.setdefault(REFUSED, "a payload without tensors")
                if self._on_fault is not None:
                    weight, metadata = _recordable(weight, metadata or {}, more)
                parts = self._put(payload, more, f"{kind} from {sender} to {receiver}")
                if step is None:
                    last = self.messages[-1].step if self.messages else 0
                    step = max(last, self._arrived.get(sender, -1) + 1)
                if REFUSED in more and payload:
                    size = size or self._size_of(payload)
                at = self._append(
                    step, kind, sender, receiver, weight, parts, size, metadata or {}, more
                )
        return at

    def _put(self, payload: Payload | None, notes: dict[str, Scalar], what: str) -> dict[str, int]:
        """Layout -> row of a payload that is kept, all of it or nothing. In a recording that must
        not disturb training, `notes` say why a payload that does not fit is not kept: one sender
        does not end the recording of the others."""
        if payload is None or REFUSED in notes:
            return {}
        try:
            fitted = self._fitted(payload, notes)
        except (UsageError, ValueError, TypeError) as error:
            if self._on_fault is None:
                raise
            notes[REFUSED] = why = reason_of(error)
            log.warning("fedaudit did not record a message, %s: %s", what, why)
            return {}
        return {name: self._blocks[name].keep(rows)[0] for name, rows in fitted.items()}

    def _fitted(self, payload: Payload, notes: dict[str, Scalar]) -> dict[str, Rows]:
        """Layout -> own copy of its row (1, kept width). Fractions for a layout of whole numbers (a
        mean of counters) are rounded, and `notes` say so."""
        if not isinstance(payload, Mapping):
            return {MODEL: self._block(MODEL).fit(np.array(payload).reshape(1, -1))}
        unknown = sorted(set(payload) - set(self._layout_of))
        if unknown:
            raise UsageError(
                "a payload holds tensors that the trace does not know",
                expected=", ".join(self._layout_of),
                got=", ".join(unknown),
                remedy="list every tensor in the recorder's `like`",
            )
        rows: dict[str, Rows] = {}
        rounded: list[str] = []
        for name in dict.fromkeys(self._layout_of[n] for n in payload):
            own = {k: as_numbers(k, v) for k, v in payload.items() if self._layout_of[k] == name}
            block = self._blocks[name]
            if block.full.dtype.startswith("int"):
                fractions = sorted(k for k, a in own.items() if a.dtype.kind == "f")
                own |= {k: _rounded(k, own[k], block.full.dtype) for k in fractions}
                rounded += fractions
            rows[name] = block.fit(block.full.flatten(own).reshape(1, -1))
        if rounded:
            notes[ROUNDED] = ", ".join(rounded)
        return rows

    def _drops(self, kind: str, receiver: str, notes: Mapping[str, Scalar]) -> str:
        """Why the payload of such a message is not kept; empty if it is. Released models are."""
        if kind not in UPLINKS or receiver == PUBLIC:
            return ""
        late = LATE in notes and not self._keeps_late
        return self._left_out or ("its model was not kept" if late else "")

    def _size_of(self, payload: Payload) -> int:
        """Bytes of a payload that is not kept, as its layouts would hold it."""
        if not isinstance(payload, Mapping):
            return int(np.asarray(payload).nbytes)
        names = {self._layout_of[n] for n in payload if n in self._layout_of}
        return sum(_bytes_of(self._blocks[n].full) for n in names)

    def send_rows(
        self,
        kind: str,
        senders: Sequence[str],
        receivers: Sequence[str],
        rows: Rows | int,
        *,
        step: int,
        weights: Sequence[float] | None = None,
        metadata: Sequence[Mapping[str, Scalar]] | None = None,
        layout: str = MODEL,
    ) -> int:
        """Record one message per sender with rows (n, width), or with one stored row for all.

        Returns the index of the first message. Does not copy the rows: leave them unchanged until
        the round ends (which refuses changes it sees in a sample of the columns).
        """
        first = -1
        with self._guarded() as on:
            if on:
                _refuse_lengths(
                    len(senders),
                    receivers=receivers,
                    rows=senders if isinstance(rows, int) else rows,
                    weights=senders if weights is None else weights,
                    metadata=senders if metadata is None else metadata,
                )
                everyone = PUBLIC if {*receivers} == {PUBLIC} else ""
                hidden = self._drops(kind, everyone, {})
                size = _bytes_of(self._block(layout).full) if hidden else 0
                more = {LEFT_OUT: hidden} if hidden else {}
                count = len(senders)
                numbers = [-1] * count if hidden else self._rows(layout, rows, count)
                first = len(self.messages)
                for i, (s, r, number) in enumerate(zip(senders, receivers, numbers, strict=True)):
                    self._append(
                        step,
                        kind,
                        s,
                        r,
                        1.0 if weights is None else weights[i],
                        {} if hidden else {layout: number},
                        size,
                        metadata[i] if metadata else {},
                        more,
                    )
        return first

    def _rows(self, layout: str, rows: Rows | int, count: int) -> list[int]:
        """Row numbers of `count` messages: of new rows, or of one that is stored."""
        block = self._block(layout)
        if not isinstance(rows, int):
            return block.put(rows) if len(rows) else []
        if not 0 <= rows < block.count:
            raise UsageError(
                f"layout {layout!r} has no row {rows} in this round",
                expected=f"a row number below {block.count}",
                got=str(rows),
                remedy="store it first: put_once returns its number",
            )
        return [rows] * count

    def _append(
        self,
        step: int,
        kind: str,
        sender: str,
        receiver: str,
        weight: float,
        parts: Mapping[str, int],
        size: int,
        metadata: Mapping[str, Scalar],
        notes: Mapping[str, Scalar] = MappingProxyType({}),
    ) -> int:
        if not size:
            full = [self._blocks[p].full for p in parts]
            size = sum(map(_bytes_of, full))
        try:
            plain_metadata, plain_notes = _plain(metadata), _plain(notes)
            m = Message(
                step=index(step),
                kind=kind,
                sender=sender,
                receiver=receiver,
                weight=float(weight),
                parts=parts,
                size=index(size),
                metadata=plain_metadata,
                notes=plain_notes,
            )
        except (ValueError, TypeError) as error:
            raise UsageError(
                "a message cannot be recorded",
                expected="a message as in docs/trace-format.md",
                got=str(error),
                remedy="correct the call",
            ) from None
        self.messages.append(m)
        self._arrived[receiver] = max(m.step, self._arrived.get(receiver, 0))
        return len(self.messages) - 1

    def _pieces(self) -> dict[str, list[Rows]]:
        """Pieces of the round's file, by layout."""
        for block in self._blocks.values():
            block.check_unchanged()
        return {name: b.pieces for name, b in self._blocks.items() if b.pieces}


def _refuse_lengths(count: int, **columns: Any) -> None:
    for name, column in columns.items():
        if len(column) != count:
            raise UsageError(
                f"{name} do not fit the senders",
                expected=f"{count} of them",
                got=str(len(column)),
                remedy="give one per message",
            )


def _rounded(name: str, values: Rows, dtype: str) -> Rows:
    """Fractions rounded to whole numbers that `dtype` holds."""
    most = np.iinfo(dtype).max
    with np.errstate(invalid="ignore"):
        outside = ~(np.abs(values) < most)  # NaN is outside
    if outside.any():
        raise UsageError(
            f"tensor {name!r} does not fit {dtype}",
            expected=f"finite numbers below {most:g}",
            got=f"{float(values[outside][0]):g}",
            remedy="give the recorder a `like` in which this tensor is of a floating type",
        )
    return np.rint(values)


def _bytes_of(layout: Layout) -> int:
    return layout.width * np.dtype(layout.dtype).itemsize


def _plain(values: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """The values with numpy scalars as Python numbers."""
    return {k: v.item() if isinstance(v, np.generic) else v for k, v in values.items()}


def _recordable(
    weight: float, metadata: Mapping[str, Scalar], notes: dict[str, Scalar]
) -> tuple[float, dict[str, Scalar]]:
    """The weight and the single values of a message; `notes` say what a table cannot hold. An
    update without a finite weight has no place in a mean: it is refused."""
    if not isinstance(weight, float | int | np.number) or not np.isfinite(weight):
        notes.setdefault(REFUSED, f"its weight {weight!r} is not a finite number")
        weight = 1.0
    plain = _plain(metadata)
    kept = {
        k: v
        for k, v in plain.items()
        if isinstance(v, str | bool) or (isinstance(v, int | float) and isfinite(v))
    }
    if odd := sorted(map(str, plain.keys() - kept.keys())):
        before = notes.get(LEFT_OUT)
        notes[LEFT_OUT] = ", ".join([*([str(before)] if before else []), *odd])
    return weight, kept


class Recorder:
    """Write a trace folder, round by round.

    Give `like` (a state dict or other named arrays) or `layouts`. `tensors` keeps only matching
    tensors of the layout `model`; `dtype="float16"` halves their space. `resume=True` continues an
    existing trace of the same layouts after its last complete round; "lengths" looks at the sizes
    of its rounds and not at their hashes, which `verify` does. `limits`: rounds whose payloads are
    kept, the size of the trace, and what an error does. `recovered` tells whether a
    power cut had emptied files: their rounds must be repeated. `stopped` says why the recording
    stopped; empty while it goes on.
    """

    recovered = False
    stopped = ""
    limits = RecordingLimits()

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        like: Mapping[str, npt.ArrayLike] | None = None,
        layouts: Mapping[str, Layout] | None = None,
        federation: Mapping[str, Any] | None = None,
        declared: Sequence[Mapping[str, Any]] = (),
        task: Mapping[str, Any] | None = None,
        tensors: str | Sequence[str] = "*",
        dtype: str | None = None,
        purpose: str = "",
        retention: str = "",
        resume: bool | Literal["lengths"] = False,
        limits: RecordingLimits | None = None,
    ) -> None:
        if (like is None) == (layouts is None):
            raise UsageError(
                "a recorder needs to know the tensors",
                expected="either `like` or `layouts`",
                got="both" if like is not None else "neither",
                remedy="pass like=model.state_dict()",
            )
        if like is not None and not (isinstance(like, Mapping) and like):
            raise UsageError(
                "a recorder needs to know the tensors",
                expected="named arrays",
                got="none" if isinstance(like, Mapping) else type(like).__name__,
                remedy="pass like=model.state_dict()",
            )
        check_options(dtype, purpose, retention, limits)
        check_declared(declared)
        self.path = Path(path)
        self.limits = limits or RecordingLimits()
        # float64 is kept only where it is asked for
        wide = "float64" if dtype == "float64" else "float32"
        self._layouts = dict(layouts_like(like, wide) if like is not None else layouts or {})
        self._stored = _stored_layouts(self._layouts, tensors, dtype)
        self.manifest = Manifest(
            layouts=self._stored,
            federation={**(federation or {}), **self.limits.facts},
            declared=tuple(declared),
            task=task or {},
            purpose=purpose,
            retention=retention,
        )
        self._manifest_file = self.path / "manifest.json"
        self._at = sys.maxsize  # rounds that need not be repeated
        self._redoes = self._orphaned = False
        self._reserve: Reserve | None = None
        self._turn = threading.Lock()
        self._refuse_unwritable()
        if self._manifest_file.exists():
            if not resume:
                prepare_folder(self.path)  # refuses
            self._continue(resume)
        else:
            self._begin()
        if self.limits.on_error == "stop":
            self._reserve = Reserve(self.path)

    def _refuse_unwritable(self) -> None:
        """Refuse a manifest that cannot be written and read again, before recording begins."""
        try:
            Manifest.from_json(self.manifest.to_json(), "the manifest")
        except (TypeError, ValueError, TraceError) as error:
            detail = error.got if isinstance(error, TraceError) else str(error)
            raise UsageError(
                "the description of the federation cannot be written",
                expected="a manifest as in docs/trace-format.md",
                got=detail,
                remedy="convert it to plain numbers, text, lists and dictionaries",
            ) from None

    def _begin(self) -> None:
        prepare_folder(self.path)
        self._replace_manifest(self.manifest)

    def _continue(self, resume: bool | Literal["lengths"]) -> None:
        try:
            old, _ = read_manifest(self._manifest_file)
        except Unreadable as error:
            if not error.empty:
                raise
            # a power cut emptied the manifest: nothing verifies the rounds beside it
            self._at, self.recovered, self._orphaned = 0, True, True
            return
        about = {k: v for k, v in old.federation.items() if k != STOPPED}
        same = replace(old, rounds=(), complete=False, federation=about)
        if same.to_json() != self.manifest.to_json():
            raise another_experiment(self.path)
        for number, entry in enumerate(old.rounds):
            file = self.path / entry.file
            if is_lost(file):
                self._at, self.recovered = min(self._at, number), True
            else:
                verify(file, entry, hashed=resume != "lengths")
        self._remove_strays({r.file for r in old.rounds})
        self.manifest = old

    def _remove_strays(self, known: Collection[str]) -> None:
        """Remove unlisted or partial rounds that a killed run left."""
        for pattern in ("round-*.safetensors", "*.part"):
            for stray in self.path.glob(pattern):
                if stray.name not in known:
                    stray.unlink()

    @property
    def rounds(self) -> int:
        """Number of whole rounds; recording continues after these."""
        return min(self._at, len(self.manifest.rounds))

    def _replace_manifest(self, manifest: Manifest) -> None:
        """Replace the manifest on disk, then in memory."""
        try:
            write_atomically(self._manifest_file, manifest.to_json())
        except OSError as error:
            raise TraceError(
                f"cannot write a trace to {self.path}",
                expected="a folder that can be written",
                got=error.strerror or str(error),
                remedy="free some space, or choose another output folder",
            ) from None
        self.manifest = manifest

    def redo_after(self, rounds: int) -> None:
        """Continue after the first `rounds`. Later recorded rounds stay: each must come out equal
        when it is recorded again."""
        self._at, self._redoes = min(rounds, self.rounds), True
        if self._orphaned:
            self._remove_strays(())
            self._replace_manifest(self.manifest)
            self._orphaned = False

    @contextmanager
    def round(self) -> Iterator[RoundWriter]:
        """Record one round: all messages sent inside the block, or none."""
        if self._orphaned:
            raise IntegrityError(
                f"the manifest of {self.path} is empty, as a power cut leaves it",
                expected="a manifest that lists the rounds beside it",
                got="no bytes",
                remedy="restore it from a copy, or record into another folder",
            )
        number = self.rounds + 1
        writer = self._writer(self.limits.left_out(number))
        with self._alone(writer):
            yield writer
            writer.end()
            with self._guarded() as on:
                if on:
                    self._write(number, writer)

    @contextmanager
    def _alone(self, writer: RoundWriter) -> Iterator[None]:
        """Refuse a second round while one is open: both would be written under one number."""
        held = self._turn.acquire(blocking=False)
        try:
            with self._guarded() as on:
                if on and not held:
                    raise UsageError(
                        "a round of this recording is open already",
                        expected="one round at a time",
                        got="a second one before the first has ended",
                        remedy="send the messages of all threads inside one `with "
                        "recorder.round()`, or give each federation a recorder of its own",
                    )
            writer.off = bool(self.stopped)
            yield
        finally:
            writer.end()
            if held:
                self._turn.release()

    def _writer(self, left_out: str = "") -> RoundWriter:
        """A writer of one round; one that ignores what it is given if the recording has stopped."""
        return RoundWriter(
            self._layouts,
            self._stored,
            left_out=left_out,
            late=self.limits.every == 1,
            on_fault=self.stop if self.limits.on_error == "stop" else None,
            off=bool(self.stopped),
        )

    @contextmanager
    def _guarded(self) -> Iterator[bool]:
        """Yields whether the recording goes on; a fault ends it, or reaches the caller."""
        try:
            yield not self.stopped
        except FAULTS as error:
            if self.limits.on_error != "stop":
                raise
            self.stop(error)

    def _write(self, number: int, writer: RoundWriter) -> None:
        """Write one round and list it in the manifest."""
        if number <= len(self.manifest.rounds) and not self._redoes:
            self._drop_lost(number)
        if number <= len(self.manifest.rounds):
            self._write_again(number, writer)
        else:
            file, pieces = self.path / round_name(number), writer._pieces()
            self.limits.refuse_larger(self.manifest.rounds, pieces, self.path)
            entry = write_round(file, pieces, writer.messages)
            self._replace_manifest(
                replace(self.manifest, rounds=(*self.manifest.rounds, entry), complete=False)
            )
        self._at = number

    def stop(self, error: Exception | str) -> None:
        """Stop recording: log the reason and mark the trace, if the disk still takes a mark.

        Later rounds are ignored. Training goes on.
        """
        if self.stopped:
            return
        self.stopped = log_stop(self.path, self.rounds, error)
        if self._reserve is not None:
            self._reserve.release()
        about = {**self.manifest.federation, STOPPED: self.stopped}
        try:
            self._replace_manifest(replace(self.manifest, federation=about))
        except TraceError:
            return  # not even the mark fits; the trace stays unfinished, as verify says

    def _drop_lost(self, number: int) -> None:
        """Drop rounds from `number` on that a power cut emptied and that cannot be repeated."""
        for entry in self.manifest.rounds[number - 1 :]:
            if not is_lost(self.path / entry.file):
                raise IntegrityError(
                    f"round {number} of {self.path} is lost, but later ones are not",
                    expected="whole rounds, one after another",
                    got=f"{entry.file} after an empty or missing file",
                    remedy="restore that file from a copy, or record into another folder",
                )
        kept = self.manifest.rounds[: number - 1]
        self._replace_manifest(replace(self.manifest, rounds=kept, complete=False))

    def _write_again(self, number: int, writer: RoundWriter) -> None:
        """Record an existing round again; IntegrityError if it comes out different."""
        before = self.manifest.rounds[number - 1]
        again = self.path / round_name(number).replace(".", "-again.", 1)
        try:
            entry = write_round(again, writer._pieces(), writer.messages)
            if entry.sha256 != before.sha256:
                raise IntegrityError(
                    f"round {number} came out different when it was repeated",
                    expected=f"the recorded round, sha256 {before.sha256}",
                    got=f"sha256 {entry.sha256}",
                    remedy="if the number of threads or a library changed, change it back; "
                    "otherwise the checkpoint or the recording was altered: run into another "
                    "folder, or start again with `fresh=True`",
                )
            os.replace(again, self.path / before.file)
        finally:
            again.unlink(missing_ok=True)

    @contextmanager
    def last_round(self) -> Iterator[RoundWriter]:
        """Reopen the last complete round to add messages: all of them, or none."""
        writer = self._writer()
        with self._alone(writer):
            with self._guarded() as on:
                if on:
                    self._reopen(writer)
            writer.off = bool(self.stopped)
            yield writer
            writer.end()
            with self._guarded() as on:
                if on:
                    self._amend(writer)

    def _reopen(self, writer: RoundWriter) -> None:
        """Fill `writer` with the last round."""
        if not self.rounds:
            raise UsageError(
                "there is no round to add to",
                expected="at least one complete round",
                got="none",
                remedy="record a round first",
            )
        reader = RoundReader(self.path / self.manifest.rounds[-1].file)
        for name, rows in reader.blocks.items():
            block = writer._blocks[name]
            block.pieces, block.count = [rows], len(rows)
        writer.messages = list(reader.messages)

    def _amend(self, writer: RoundWriter) -> None:
        """Write the last round again, with what was added."""
        old = self.manifest.rounds[-1]
        # under another name: until the manifest changes, the old file is the round
        name = round_name(self.rounds)
        file = name if old.file != name else name.replace(".", "-amended.", 1)
        entry = write_round(self.path / file, writer._pieces(), writer.messages)
        self._replace_manifest(replace(self.manifest, rounds=(*self.manifest.rounds[:-1], entry)))
        (self.path / old.file).unlink(missing_ok=True)

    def close(self) -> None:
        """Mark the trace complete. One that was stopped stays unfinished."""
        if self._reserve is not None:
            self._reserve.release()
        if self.manifest.complete or self.stopped:
            return
        with self._guarded():
            self._replace_manifest(replace(self.manifest, complete=True))
