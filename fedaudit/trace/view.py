"""A trace as one party sees it. The threat model is a filter on the data, not a page of flags.

    trace = Trace.open("run/trace")
    view = trace.seen_by(SERVER)          # or a client, a coalition, NETWORK, WIRETAP, PUBLIC
    view.updates(3, "blocks.0.mlp.*")     # what each sender sent minus the model it had received

Who sees what:

    SERVER, SHUFFLER, a client, a region   messages this party sent or received
    a coalition                            the union of its members
    PUBLIC                                 the released model only
    NETWORK                                who, when, how large: no payload, no metadata
    WIRETAP                                the plaintext of all messages, and the topology

Asking for more raises NotObservable.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedaudit.errors import FormatError, NotObservable, TraceError, UsageError, nearest
from fedaudit.layout import Layout
from fedaudit.trace.recorder import MODEL
from fedaudit.trace.schema import ANONYMOUS, NETWORK, PUBLIC, SERVER, WIRETAP, Manifest, Message
from fedaudit.trace.store import RoundReader, verify

Rows = npt.NDArray[Any]
UPLINKS = ("model", "delta", "gradient")


@dataclass(frozen=True)
class Updates:
    """What n senders contributed in one round.

    `rows` (n, d) float32, `senders` (n,) party names or ANONYMOUS, `weights` (n,) as far as they
    crossed the wire, `messages` (n,) indices into the round's table (the key to the truth).
    """

    round: int
    rows: npt.NDArray[np.float32]
    senders: tuple[str, ...]
    weights: npt.NDArray[np.float64]
    messages: npt.NDArray[np.int64]


class Trace:
    """A recording on disk. Rounds are numbered from 1."""

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self.path, self.manifest = path, manifest
        self._reader = lru_cache(maxsize=4)(self._open_round)

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, verify_hashes: bool = True) -> Trace:
        """Open a trace folder (or a run folder that holds one), checking every hash once."""
        folder = Path(path)
        if (folder / "trace" / "manifest.json").is_file():
            folder = folder / "trace"
        manifest_file = folder / "manifest.json"
        if not manifest_file.is_file():
            raise TraceError(
                f"{folder} holds no trace",
                expected="a folder with manifest.json",
                got="no such file" if folder.is_dir() else "no such folder",
                remedy="point to the trace folder of a run",
            )
        try:
            text = manifest_file.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise FormatError(
                f"{manifest_file} is not a trace manifest",
                expected="UTF-8 text",
                got="other bytes",
                remedy="restore the file, or record again",
            ) from None
        trace = cls(folder, Manifest.from_json(text, str(manifest_file)))
        if verify_hashes:
            trace.verify()
        return trace

    def verify(self) -> None:
        """Compare every round file with its hash; IntegrityError names the first that differs."""
        entries = self.manifest.rounds
        with ThreadPoolExecutor(max_workers=min(2, os.cpu_count() or 1)) as pool:
            list(pool.map(lambda e: verify(self.path / e.file, e), entries))

    @property
    def sha256(self) -> str:
        return self.manifest.sha256

    @property
    def rounds(self) -> range:
        return range(1, len(self.manifest.rounds) + 1)

    @property
    def layout(self) -> Layout:
        return self.manifest.layouts[MODEL]

    def _open_round(self, number: int) -> tuple[RoundReader, tuple[Message, ...]]:
        if number not in self.rounds:
            raise UsageError(
                f"the trace has no round {number}",
                expected=f"1 to {len(self.rounds)}",
                got=str(number),
                remedy="ask for a recorded round",
            )
        entry = self.manifest.rounds[number - 1]
        reader = RoundReader(self.path / entry.file)
        for name, rows in reader.blocks.items():
            layout = self.manifest.layouts.get(name)
            if layout is None or rows.shape[1] != layout.width or rows.dtype.name != layout.dtype:
                raise FormatError(
                    f"{entry.file} does not fit the manifest",
                    expected=f"blocks {', '.join(self.manifest.layouts)}",
                    got=f"block {name!r} of {rows.dtype.name} {rows.shape}",
                    remedy="keep a trace's files together",
                )
        return reader, reader.messages

    def messages(self, number: int) -> tuple[Message, ...]:
        return self._reader(number)[1]

    def block(self, number: int, layout: str = MODEL) -> Rows:
        """All stored rows of one round, (n, width), memory-mapped."""
        blocks = self._reader(number)[0].blocks
        if layout not in blocks:
            return np.empty((0, self.manifest.layouts[layout].width), dtype=np.float32)
        return blocks[layout]

    def parties(self) -> tuple[str, ...]:
        """Everyone who sent or received a message, in order of appearance."""
        seen: dict[str, None] = {}
        for number in self.rounds:
            for m in self.messages(number):
                seen.setdefault(m.sender)
                seen.setdefault(m.receiver)
        return tuple(seen)

    def seen_by(self, *parties: str) -> View:
        """The view of one party or of a coalition."""
        if not parties:
            raise UsageError(
                "a view needs a party",
                expected="server, a client, network, wiretap or public",
                got="nothing",
                remedy='trace.seen_by("server")',
            )
        known = {*self.manifest.federation.get("parties", ()), PUBLIC, NETWORK, WIRETAP}
        if not known.issuperset(parties):
            # a foreign trace may not list its parties: look at who spoke
            known = {*known, *self.parties()} - {ANONYMOUS}
        for party in parties:
            if party not in known:
                raise UsageError(
                    f"nobody called {party!r} is in this trace",
                    expected="a party of the trace",
                    got=repr(party),
                    remedy=nearest(party, known),
                )
        if len(parties) > 1 and NETWORK in parties and WIRETAP not in parties:
            raise UsageError(
                "a coalition with the network is not defined",
                expected="parties that hold messages",
                got=", ".join(parties),
                remedy="ask for the wiretap, or for each view alone",
            )
        return View(self, tuple(dict.fromkeys(parties)))


class View:
    """What `parties` together observe of a trace. Never shows more."""

    def __init__(self, trace: Trace, parties: tuple[str, ...]) -> None:
        self._trace, self.parties = trace, parties
        self._all = WIRETAP in parties
        self._metadata_only = parties == (NETWORK,)

    @property
    def vantage(self) -> str:
        return "+".join(self.parties)

    @property
    def rounds(self) -> range:
        return self._trace.rounds

    @property
    def layout(self) -> Layout:
        return self._trace.layout

    @property
    def layouts(self) -> dict[str, Layout]:
        """Names and shapes of everything that can cross the wire: public by nature."""
        return dict(self._trace.manifest.layouts)

    @property
    def trace_sha256(self) -> str:
        return self._trace.sha256

    @property
    def task(self) -> dict[str, Any]:
        """What the trained model is: every party that receives a model knows it."""
        self._needs_payload("the task")
        return dict(self._trace.manifest.task)

    @property
    def declared(self) -> tuple[dict[str, Any], ...]:
        """Protections that were announced to be in force: public by nature."""
        return tuple(dict(d) for d in self._trace.manifest.declared)

    @property
    def federation(self) -> dict[str, Any]:
        """Topology and organisations: for those who see the whole wire."""
        if not (self._all or self._metadata_only):
            raise NotObservable(
                f"{self.vantage} does not see the topology",
                expected="the view of wiretap or network",
                got=self.vantage,
                remedy="ask for trace.seen_by(WIRETAP)",
            )
        return dict(self._trace.manifest.federation)

    def _visible(self, m: Message) -> bool:
        if self._all or self._metadata_only:
            return True
        return m.receiver in self.parties or (m.sender in self.parties and m.sender != ANONYMOUS)

    def indexed(self, number: int) -> tuple[tuple[int, Message], ...]:
        """(index in the round's table, message) of every message this view contains."""
        pairs = ((i, m) for i, m in enumerate(self._trace.messages(number)) if self._visible(m))
        if self._metadata_only:
            # the size is seen, the content is not: neither kind, weight nor metadata
            return tuple(
                (i, Message(m.step, "masked", m.sender, m.receiver, 1.0, {}, m.size))
                for i, m in pairs
            )
        return tuple(pairs)

    def messages(self, number: int) -> tuple[Message, ...]:
        return tuple(m for _, m in self.indexed(number))

    def _needs_payload(self, what: str) -> None:
        if self._metadata_only:
            raise NotObservable(
                f"the network does not see {what}",
                expected="a view that holds payloads",
                got="metadata only: who, when, how large",
                remedy="ask for the server's view, or the wiretap's",
            )

    def payload(
        self, number: int, message: int, names: str | Sequence[str] = "*", *, layout: str = MODEL
    ) -> Rows:
        """The tensors that one message carried, as one row (d,)."""
        self._needs_payload("payloads")
        table = dict(self.indexed(number))
        if message not in table:
            raise NotObservable(
                f"{self.vantage} does not see message {message} of round {number}",
                expected="one of the view's own messages",
                got=f"message {message}",
                remedy="list them with view.indexed(round)",
            )
        m = table[message]
        if layout not in m.parts:
            raise NotObservable(
                f"message {message} of round {number} holds nothing of {layout!r} for this view",
                expected=f"a payload of layout {layout!r}",
                got=", ".join(m.parts) or f"a sealed message of {m.size} bytes",
                remedy="ask for another layout or another party's view",
            )
        rows = self._trace.block(number, layout)[m.parts[layout] : m.parts[layout] + 1]
        return self._trace.manifest.layouts[layout].gather(rows, names)[0]

    def received(self, number: int, party: str, names: str | Sequence[str] = "*") -> Rows | None:
        """The model `party` held when it began to compute in round `number`, or None.

        A party that was sent one model holds that one. A gossip node holds the weighted mean of
        what its neighbours sent last, and of its own: W_ij is the message's weight.
        """
        for earlier in range(number, 0, -1):
            got = [
                m
                for _, m in self.indexed(earlier)
                if m.receiver == party and m.kind == "model" and MODEL in m.parts
            ]
            if earlier == number:
                # a node sends before it hears from its neighbours in the same round
                sent = [m.step for _, m in self.indexed(earlier) if m.sender == party]
                got = [m for m in got if not sent or m.step < min(sent)]
            if not got:
                continue
            block = self._trace.block(earlier)
            if len(got) == 1 and got[0].weight == 1.0:
                row = got[0].parts[MODEL]
                return self.layout.gather(block[row : row + 1], names)[0]
            own = [
                m.parts[MODEL]
                for _, m in self.indexed(earlier)
                if m.sender == party and m.kind == "model" and MODEL in m.parts
            ]
            mixed = np.zeros(self.layout.gather(block[:1], names).shape[1], dtype=np.float64)
            for m in got:
                row = m.parts[MODEL]
                mixed += m.weight * self.layout.gather(block[row : row + 1], names)[0]
            rest = 1.0 - sum(m.weight for m in got)
            if own:
                mixed += rest * self.layout.gather(block[own[0] : own[0] + 1], names)[0]
            return mixed.astype(np.float32)
        return None

    def updates(self, number: int, names: str | Sequence[str] = "*") -> Updates:
        """What each client sent in a round minus the model it had received.

        A delta is taken as it crossed the wire, a gradient with its sign turned (a step goes
        against it), a model minus what its sender had received. Rows keep the table's order.
        """
        self._needs_payload("updates")
        uplinks = [
            (i, m)
            for i, m in self.indexed(number)
            if m.kind in UPLINKS and MODEL in m.parts and not self._is_downlink(m)
        ]
        # who sees a region's clients does not need the region's mean; the root sees the means only
        hubs = self._hubs()
        if any(m.sender not in hubs for _, m in uplinks):
            uplinks = [(i, m) for i, m in uplinks if m.sender not in hubs]
        # a gossip node sends one payload to several neighbours: it counts once
        unique: dict[tuple[str, int], tuple[int, Message]] = {}
        for i, m in uplinks:
            unique.setdefault((m.sender, m.parts[MODEL]), (i, m))
        chosen = list(unique.values())
        if not chosen:
            raise NotObservable(
                f"{self.vantage} sees no single client's update in round {number}",
                expected="messages of kind delta, gradient or model sent by clients",
                got=_kinds(m for _, m in self.indexed(number)),
                remedy="this is what a secure sum or a narrower view withholds",
            )
        numbers = [m.parts[MODEL] for _, m in chosen]
        block = self._trace.block(number)
        rows = self.layout.gather(_take(block, numbers), names)
        if rows.dtype != np.float32:
            rows = rows.astype(np.float32)
        kinds = {m.kind for _, m in chosen}
        if kinds != {"delta"}:
            rows = self._relative(number, chosen, rows, names)
        return Updates(
            round=number,
            rows=rows,
            senders=tuple(m.sender for _, m in chosen),
            weights=np.array([m.weight for _, m in chosen]),
            messages=np.array([i for i, _ in chosen], dtype=np.int64),
        )

    def _hubs(self) -> tuple[str, ...]:
        return tuple(self._trace.manifest.federation.get("hubs", (SERVER,)))

    def _is_downlink(self, m: Message) -> bool:
        return m.kind == "model" and m.sender in self._hubs()

    def _relative(
        self,
        number: int,
        chosen: list[tuple[int, Message]],
        rows: npt.NDArray[np.float32],
        names: str | Sequence[str],
    ) -> npt.NDArray[np.float32]:
        rows = rows.copy()
        held: dict[str, Rows] = {}
        for at, (_, m) in enumerate(chosen):
            if m.kind == "gradient":
                rows[at] *= -1
            elif m.kind == "model":
                if m.sender not in held:
                    held[m.sender] = self._model_of(number, m.sender, names)
                rows[at] -= held[m.sender]
        return rows

    def _model_of(self, number: int, sender: str, names: str | Sequence[str]) -> Rows:
        if sender != ANONYMOUS:
            model = self.received(number, sender, names)
            if model is not None:
                return model
        else:
            # nobody knows who this is; the update is defined if everybody received the same model
            sent = {
                m.parts[MODEL]
                for _, m in self.indexed(number)
                if m.kind == "model" and self._is_downlink(m) and MODEL in m.parts
            }
            if len(sent) == 1:
                row = sent.pop()
                return self.layout.gather(self._trace.block(number)[row : row + 1], names)[0]
        raise NotObservable(
            f"{self.vantage} does not know which model {sender} had received in round {number}",
            expected="the model that was sent to it, or one model for all",
            got="no such message in this view",
            remedy="record downlinks, or ask for a wider view",
        )

    def released(self, names: str | Sequence[str] = "*") -> Rows:
        """The released model: the last one sent to the public, (d,)."""
        self._needs_payload("the released model")
        for number in reversed(self.rounds):
            for i, m in reversed(self.indexed(number)):
                if m.receiver == PUBLIC and MODEL in m.parts:
                    return self.payload(number, i, names)
        raise NotObservable(
            f"{self.vantage} does not see a released model",
            expected="a message to the public",
            got="none in this view",
            remedy="let the run finish: the model is released after the last round",
        )


def _kinds(messages: Iterable[Message]) -> str:
    counts: dict[str, int] = {}
    for m in messages:
        counts[m.kind] = counts.get(m.kind, 0) + 1
    return ", ".join(f"{n} x {k}" for k, n in counts.items()) or "no messages"


def _take(block: Rows, numbers: list[int]) -> Rows:
    """Rows of a block; a view, not a copy, where they stand next to each other."""
    first = numbers[0]
    if numbers == list(range(first, first + len(numbers))):
        return block[first : first + len(numbers)]
    return block[numbers]
