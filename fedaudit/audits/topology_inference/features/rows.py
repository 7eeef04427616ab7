"""Rows of one round: their clients, and the models they started from, some tensors at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from fedaudit.audits.topology_inference.features.place import Place
from fedaudit.errors import NotObservable
from fedaudit.layout import TensorSpec
from fedaudit.trace import ANONYMOUS, View

Seen = Literal["single", "sums"]

MODEL = "model"
PIECE_BYTES = 128 << 20
"""Most bytes of updates in memory at once."""


class Piece:
    """Tensors that are read together: their names, and the columns of each."""

    def __init__(self, entries: Sequence[TensorSpec]) -> None:
        self.names = [e.name for e in entries]
        ends = np.cumsum([e.size for e in entries])
        spans = zip(entries, ends, strict=True)
        self.columns = {e.name: slice(int(end) - e.size, int(end)) for e, end in spans}
        self._marks = np.zeros((int(ends[-1]), len(entries)), dtype=np.float32)
        for k, columns in enumerate(self.columns.values()):
            self._marks[columns, k] = 1.0

    def squares(self, rows: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Squared length of every row's tensors, (n, tensors), in one product."""
        return np.asarray(np.square(rows) @ self._marks)

    def model_squares(
        self,
        u: npt.NDArray[np.float32],
        base: npt.NDArray[np.float32] | None,
        squares: npt.NDArray[np.float32],
    ) -> npt.NDArray[np.float32]:
        """The same for u + base; base is (d,) for all, (n, d) per row, or unknown (gives NaN)."""
        if base is None:
            return np.full_like(squares, np.nan)
        if base.ndim == 2:
            return self.squares(u + base)
        own = self._marks * base[:, None]
        found = squares + 2.0 * (u @ own) + base @ own
        return np.asarray(np.maximum(found, 0.0), dtype=np.float32)


def pieces(entries: Sequence[TensorSpec], rows: int) -> Iterator[list[TensorSpec]]:
    """Lists of consecutive tensors that fit in memory together."""
    most = max(1, PIECE_BYTES // (4 * max(rows, 1)))
    piece: list[TensorSpec] = []
    for e in entries:
        if piece and sum(x.size for x in piece) + e.size > most:
            yield piece
            piece = []
        piece.append(e)
    if piece:
        yield piece


@dataclass(frozen=True)
class RoundRows:
    """Rows of one round: `clients` (m,) that took part, `row_of` (m,) the row of each of them.

    `messages` (k,) of the rows; `bases` (k,): messages with the model that each sender had
    received, None if a message holds the model itself, -1 if unknown.
    """

    view: View
    number: int
    clients: npt.NDArray[np.int64]
    row_of: npt.NDArray[np.int64]
    messages: tuple[int, ...]
    kinds: tuple[str, ...]
    bases: tuple[int | None, ...]
    scale: npt.NDArray[np.float32]
    seen: Seen
    senders: tuple[str, ...]
    first: tuple[Piece, npt.NDArray[np.float32]] | None

    @property
    def count(self) -> int:
        return len(self.messages)

    def rows(self, piece: Piece) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32] | None]:
        """Updates (k, columns) of some tensors, and the models they started from: one (columns,), a
        row each, or None if unknown."""
        names = piece.names
        if self.first is not None and self.first[0] is piece:
            u = self.first[1]
        elif all(k == "sum" for k in self.kinds):
            u = np.stack([self.view.payload(self.number, i, names) for i in self.messages])
            u = u.astype(np.float32) * self.scale[:, None]
        else:
            found = self.view.updates(self.number, names, senders=set(self.senders))
            at = {int(i): row for row, i in enumerate(found.messages)}
            u = found.rows[[at[i] for i in self.messages]]
        if any(b == -1 for b in self.bases):
            return u, None
        known = {b for b in self.bases if b is not None}
        began = {
            b: self.view.payload(self.number, b, names).astype(np.float32, copy=False)
            for b in known
        }
        if len(began) == 1 and None not in self.bases:
            return u, next(iter(began.values()))
        each = [
            self.view.payload(self.number, i, names).astype(np.float32) - u[k]
            if b is None
            else began[b]
            for k, (i, b) in enumerate(zip(self.messages, self.bases, strict=True))
        ]
        return u, np.stack(each)


def round_rows(view: View, number: int, place: Place, piece: Piece) -> RoundRows:
    """Rows of a round: every client's, the sum of each organisation, or one sum of all."""
    client_of = {name: i for i, name in enumerate(place.clients)}
    table = dict(view.indexed(number))
    first = None
    try:
        updates = view.updates(number, piece.names)
        first = (piece, updates.rows)
        senders, messages = updates.senders, tuple(int(i) for i in updates.messages)
    except NotObservable:
        sums = [(i, m) for i, m in table.items() if m.kind == "sum" and MODEL in m.parts]
        if not sums:
            raise
        senders, messages = tuple(m.receiver for _, m in sums), tuple(i for i, _ in sums)
    if ANONYMOUS in senders:
        raise NotObservable(
            "the senders of these updates are unknown",
            expected="uploads with their senders' names, or sums of known groups",
            got="anonymous uploads",
            remedy="parameters reveal nothing about one client while uploads stay unlinked: "
            "measure that with the fingerprint audit",
        )
    if all(s in client_of for s in senders):
        clients = np.array([client_of[s] for s in senders], dtype=np.int64)
        row_of = np.arange(len(senders), dtype=np.int64)
        seen: Seen = "single"
    else:
        clients, row_of = _members(senders, place)
        seen = "sums"
    sizes = np.bincount(row_of, minlength=len(messages)).astype(np.float32)
    kinds = tuple(table[i].kind for i in messages)
    return RoundRows(
        view=view,
        number=number,
        clients=clients,
        row_of=row_of,
        messages=messages,
        kinds=kinds,
        bases=_bases(table, messages, senders, clients, row_of, place),
        scale=(1.0 / np.maximum(sizes, 1.0)).astype(np.float32),
        seen=seen,
        senders=senders,
        first=first,
    )


def _members(
    senders: Sequence[str], place: Place
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Clients in the sums, and the row of each: that of its region, or the sum of all."""
    row: dict[int, int] = {}
    for k, name in enumerate(senders):
        group = name.removeprefix("region-")
        for c in range(place.n):
            inside = (
                place.organisations is not None
                and group != name
                and str(place.organisations[c]) == group
            )
            if inside or (group == name and len(senders) == 1):
                row[c] = k
    if not row:
        raise NotObservable(
            "the clients behind a sum are unknown",
            expected="uploads of clients, of regions, or one sum of all",
            got=", ".join(sorted(set(senders))[:5]),
            remedy="name regions as region-NUMBER of the organisation, as in the manifest",
        )
    members = sorted(row)
    return np.array(members, dtype=np.int64), np.array([row[c] for c in members], dtype=np.int64)


def _bases(
    table: Mapping[int, Any],
    messages: Sequence[int],
    senders: Sequence[str],
    clients: npt.NDArray[np.int64],
    row_of: npt.NDArray[np.int64],
    place: Place,
) -> tuple[int | None, ...]:
    """For every row the message with the model it started from; None: it is a model; -1:
    unknown."""
    received: dict[str, list[tuple[int, int]]] = {}
    first_with: dict[int, int] = {}
    wanted = {*senders, *(place.clients[c] for c in clients)}
    for i, m in table.items():
        if m.kind == "model" and m.receiver in wanted and MODEL in m.parts:
            # equal payloads share a row: use the first message with it
            same = first_with.setdefault(m.parts[MODEL], i)
            received.setdefault(m.receiver, []).append((m.step, same))
    out: list[int | None] = []
    for k, (i, s) in enumerate(zip(messages, senders, strict=True)):
        if table[i].kind == "model":
            out.append(None)
            continue
        found = received.get(s, [])
        if not found:  # a sum: its members received the model
            behind = (place.clients[c] for c in clients[row_of == k])
            found = next((received[name] for name in behind if name in received), [])
        before = [(step, same) for step, same in found if step < table[i].step]
        out.append(max(before)[1] if before else -1)
    return tuple(out)
