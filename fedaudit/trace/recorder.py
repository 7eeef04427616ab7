"""The only writer of traces. Three calls are enough for foreign code:

    recorder = Recorder(path, like={"w": w, "b": b})                       # once
    with recorder.round() as messages:                                     # once per round
        messages.send("model", SERVER, "client-0", {"w": w, "b": b})       # once per message
    recorder.close()

A round becomes part of the trace when its `with` block ends without an error; until then nothing
of it is visible. Equal payloads are stored once.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedaudit.errors import TraceError, UsageError
from fedaudit.layout import Layout
from fedaudit.trace.schema import Manifest, Message, RoundFile, Scalar
from fedaudit.trace.store import DTYPES, round_name, verify, write_atomically, write_round

Payload = Mapping[str, npt.ArrayLike] | npt.NDArray[Any]
MODEL = "model"
INTEGERS = "integers"


def layouts_like(tensors: Mapping[str, npt.ArrayLike]) -> dict[str, Layout]:
    """Layouts for a state dict: float tensors in `model`, others in `integers`.

    Float tensors whose name says that they are normalisation statistics get the role `buffer`.
    """
    arrays = {k: np.asarray(v) for k, v in tensors.items()}
    floats = {k: a for k, a in arrays.items() if a.dtype.kind == "f"}
    others = {k: a for k, a in arrays.items() if a.dtype.kind != "f"}
    for name, a in arrays.items():
        if a.dtype.name not in DTYPES:
            raise UsageError(
                f"tensor {name!r} has a dtype that a trace cannot hold",
                expected=", ".join(DTYPES),
                got=a.dtype.name,
                remedy="convert it, or leave it out of the recording",
            )
    statistics = [k for k in floats if k.endswith(("running_mean", "running_var"))]
    layouts = {}
    if floats:
        layouts[MODEL] = Layout.of(((k, a.shape) for k, a in floats.items()), buffers=statistics)
    if others:
        layouts[INTEGERS] = Layout.of(
            ((k, a.shape) for k, a in others.items()), dtype="int64", buffers=list(others)
        )
    return layouts


class RoundWriter:
    """The messages of one round, in the order in which they crossed the wire."""

    def __init__(self, layouts: Mapping[str, Layout], stored: Mapping[str, Layout]) -> None:
        self._layouts, self._stored = layouts, stored
        self._pieces: dict[str, list[npt.NDArray[Any]]] = {}
        self._count: dict[str, int] = {}
        self._seen: dict[tuple[str, bytes], list[tuple[int, npt.NDArray[Any]]]] = {}
        self.messages: list[Message] = []

    def _select(self, layout: str, rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
        full, kept = self._layouts[layout], self._stored[layout]
        if rows.ndim != 2 or rows.shape[1] != full.width:
            raise UsageError(
                "a payload does not fit its layout",
                expected=f"rows of width {full.width}",
                got=f"shape {rows.shape}",
                remedy="send every tensor of the layout, flattened in its order",
            )
        if kept.width != full.width:
            rows = full.gather(rows, kept.names)
        return np.ascontiguousarray(rows, dtype=kept.dtype)

    def put(self, layout: str, rows: npt.NDArray[Any]) -> int:
        """Store rows (n, width) as they are; returns the number of the first."""
        kept = self._select(layout, np.atleast_2d(rows))
        first = self._count.get(layout, 0)
        self._pieces.setdefault(layout, []).append(kept)
        self._count[layout] = first + len(kept)
        return first

    def put_once(self, layout: str, row: npt.NDArray[Any]) -> int:
        """Store one row unless an equal one is stored already; returns its number."""
        kept = self._select(layout, np.atleast_2d(row))
        # a thin sample finds candidates, a full comparison decides
        sample = kept[0, :: max(1, kept.shape[1] // 64)].tobytes()
        candidates = self._seen.setdefault((layout, sample), [])
        for number, other in candidates:
            if np.array_equal(other, kept[0]):
                return number
        number = self.put(layout, row)
        candidates.append((number, kept[0]))
        return number

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
    ) -> int:
        """Record one message; returns its index in the round.

        `payload`: named arrays, one flat row of the layout `model`, or None for a message that was
        sealed on this leg (then `size` says how many bytes crossed).
        """
        parts: dict[str, int] = {}
        if isinstance(payload, Mapping):
            for layout_name, layout in self._layouts.items():
                own = {k: v for k, v in payload.items() if k in set(layout.names)}
                if own:
                    parts[layout_name] = self.put_once(layout_name, layout.flatten(own))
            unknown = set(payload) - {n for la in self._layouts.values() for n in la.names}
            if unknown:
                raise UsageError(
                    "a payload holds tensors that the trace does not know",
                    expected=", ".join(n for la in self._layouts.values() for n in la.names),
                    got=", ".join(sorted(unknown)),
                    remedy="give every tensor in `like` when the recorder is made",
                )
        elif payload is not None:
            parts[MODEL] = self.put_once(MODEL, np.asarray(payload).reshape(1, -1))
        if step is None:
            step = self.messages[-1].step if self.messages else 0
        return self._append(step, kind, sender, receiver, weight, parts, size, metadata or {})

    def send_rows(
        self,
        kind: str,
        senders: Sequence[str],
        receivers: Sequence[str],
        rows: npt.NDArray[Any] | int,
        *,
        step: int,
        weights: Sequence[float] | None = None,
        metadata: Sequence[Mapping[str, Scalar]] | None = None,
        layout: str = MODEL,
    ) -> int:
        """Record one message per sender with rows (n, width), or with one stored row for all.

        Returns the index of the first message.
        """
        first = len(self.messages)
        if isinstance(rows, int):
            numbers = [rows] * len(senders)
        else:
            start = self.put(layout, rows)
            numbers = list(range(start, start + len(rows)))
        for i, (s, r, number) in enumerate(zip(senders, receivers, numbers, strict=True)):
            weight = 1.0 if weights is None else float(weights[i])
            self._append(
                step, kind, s, r, weight, {layout: number}, 0, metadata[i] if metadata else {}
            )
        return first

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
    ) -> int:
        if not size:
            size = sum(
                self._layouts[p].width * np.dtype(self._layouts[p].dtype).itemsize for p in parts
            )
        self.messages.append(
            Message(step, kind, sender, receiver, weight, dict(parts), size, dict(metadata))
        )
        return len(self.messages) - 1


class Recorder:
    """Writes a trace folder, round by round.

    Give `like` (a state dict or other named arrays) or `layouts`. `tensors` keeps only the tensors
    that match; `dtype="float16"` halves the space. With `resume=True` an existing trace of the same
    layouts is continued after its last complete round.
    """

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
        resume: bool = False,
    ) -> None:
        if (like is None) == (layouts is None):
            raise UsageError(
                "a recorder needs to know the tensors",
                expected="either `like` or `layouts`",
                got="both" if like is not None else "neither",
                remedy="pass like=model.state_dict() converted to arrays",
            )
        self.path = Path(path)
        self._layouts = dict(layouts_like(like) if like is not None else layouts or {})
        self._stored = {}
        for name, layout in self._layouts.items():
            kept = layout
            if name == MODEL and tensors != "*":
                kept = kept.restrict(tensors)
            if name == MODEL and dtype is not None:
                kept = replace(kept, dtype=dtype)
            self._stored[name] = kept
        self.manifest = Manifest(
            layouts=self._stored,
            federation=federation or {},
            declared=tuple(declared),
            task=task or {},
            purpose=purpose,
            retention=retention,
        )
        self._manifest_file = self.path / "manifest.json"
        if self._manifest_file.exists():
            if not resume:
                raise TraceError(
                    f"{self.path} already holds a trace",
                    expected="an empty or new folder",
                    got=self._manifest_file.name,
                    remedy="choose another folder, or pass resume=True to continue it",
                )
            self._continue()
        else:
            try:
                self.path.mkdir(parents=True, exist_ok=True)
                self._write_manifest()
            except OSError as error:
                raise TraceError(
                    f"cannot write a trace to {self.path}",
                    expected="a folder that can be written",
                    got=error.strerror or str(error),
                    remedy="choose another output folder",
                ) from None

    def _continue(self) -> None:
        old = Manifest.from_json(
            self._manifest_file.read_text(encoding="utf-8"), str(self._manifest_file)
        )
        if replace(old, rounds=(), complete=False).to_json() != self.manifest.to_json():
            raise TraceError(
                f"{self.path} holds the trace of another experiment",
                expected="the same tensors, federation and protections",
                got="a different manifest",
                remedy="choose another folder",
            )
        for entry in old.rounds:
            verify(self.path / entry.file, entry)
        known = {r.file for r in old.rounds}
        for stray in self.path.glob("round-*"):
            if stray.name not in known:
                stray.unlink()
        self.manifest = old

    @property
    def rounds(self) -> int:
        """Complete rounds so far."""
        return len(self.manifest.rounds)

    def _write_manifest(self) -> None:
        write_atomically(self._manifest_file, self.manifest.to_json())

    def forget_after(self, rounds: int) -> None:
        """Drop rounds past the first `rounds`: a resumed run replays them."""
        if rounds < self.rounds:
            gone = self.manifest.rounds[rounds:]
            self.manifest = replace(
                self.manifest, rounds=self.manifest.rounds[:rounds], complete=False
            )
            self._write_manifest()
            for entry in gone:
                (self.path / entry.file).unlink(missing_ok=True)

    @contextmanager
    def round(self) -> Iterator[RoundWriter]:
        """One round: everything sent inside the block, all of it or nothing."""
        writer = RoundWriter(self._layouts, self._stored)
        yield writer
        name = round_name(self.rounds + 1)
        entry: RoundFile = write_round(self.path / name, writer._pieces, writer.messages)
        self.manifest = replace(
            self.manifest, rounds=(*self.manifest.rounds, entry), complete=False
        )
        self._write_manifest()

    def close(self) -> None:
        """Mark the trace complete."""
        if not self.manifest.complete:
            self.manifest = replace(self.manifest, complete=True)
            self._write_manifest()
