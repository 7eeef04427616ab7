"""A trace as one party sees it. The threat model is a filter on the data, not a page of flags.

    trace = Trace.open("run/trace")
    view = trace.seen_by(SERVER)          # or a client, a coalition, NETWORK, WIRETAP, PUBLIC
    view.updates(3, "blocks.0.mlp.*")     # each sender's payload minus the model it had received

Who sees what:

    SERVER, SHUFFLER, a client, a region   messages it sent or received
    a coalition                            the union of its members
    PUBLIC                                 the released model only
    NETWORK                                who, when, how large: no payload, no metadata
    WIRETAP                                the plaintext of all messages, and the topology

Asking for more raises NotObservable. A view returns read-only arrays or copies.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedaudit.arrays import AnyRows
from fedaudit.errors import IntegrityError, NotObservable, TraceError, UsageError
from fedaudit.layout import Layout, column_runs
from fedaudit.trace.examination import examine
from fedaudit.trace.health import Breaks, Health
from fedaudit.trace.recorder import MODEL
from fedaudit.trace.schema import (
    ANONYMOUS,
    NETWORK,
    PUBLIC,
    SHUFFLER,
    UPLINKS,
    WIRETAP,
    Manifest,
    Message,
    RoundFile,
    hub_depths,
    is_downlink,
)
from fedaudit.trace.store import RoundReader, Stamp, read_manifest, stamp, touched_since, verify

#: tolerance for weights of a mean that were stored as decimal text
_ROUNDING = 1e-6


@dataclass(frozen=True)
class Updates:
    """Contributions of n senders in one round.

    `rows` (n, d) float32, read-only; `senders` (n,) party names or ANONYMOUS; `weights` (n,) if
    they crossed the wire; `messages` (n,) indices into the round's table (the key to the truth).
    """

    round: int
    rows: npt.NDArray[np.float32]
    senders: tuple[str, ...]
    weights: npt.NDArray[np.float64]
    messages: npt.NDArray[np.int64]


class RoundTable:
    """One opened round: its messages, and its models by receiver and by sender."""

    def __init__(self, blocks: Mapping[str, AnyRows], messages: tuple[Message, ...]) -> None:
        self.blocks, self.messages = blocks, messages
        self.models_to: dict[str, list[Message]] = {}
        self.models_from: dict[str, list[Message]] = {}
        self.first_sent: dict[str, int] = {}
        for m in self.messages:
            self.first_sent[m.sender] = min(m.step, self.first_sent.get(m.sender, m.step))
            if m.kind == "model":
                self.models_to.setdefault(m.receiver, []).append(m)
                self.models_from.setdefault(m.sender, []).append(m)


class Trace:
    """A recording on disk. Rounds are numbered from 1."""

    def __init__(self, path: Path, manifest: Manifest, sha256: str) -> None:
        self.path, self.manifest = path, manifest
        #: hash of the whole trace: the manifest's seal, which covers every round's hash
        self.sha256 = sha256
        #: result of `health.examine`; views refuse what its problems break
        self.health: Health | None = None
        self._verified: dict[str, Stamp] = {}
        self._round = lru_cache(maxsize=64)(self._open_round)

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, verify_hashes: bool = True) -> Trace:
        """Open a trace folder, or a run folder that holds one, and check every hash."""
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
        trace = cls(folder, *read_manifest(manifest_file))
        if verify_hashes:
            trace.verify()
        return trace

    def __fspath__(self) -> str:
        return str(self.path)

    def verify(self, *, touched: bool = False) -> None:
        """Compare every round file with its hash; IntegrityError names the first mismatch.

        `touched`: only files whose size or time of change differ since they were last compared.
        """
        entries = self.manifest.rounds
        if touched:
            entries = touched_since(self.path, entries, self._verified)
        with ThreadPoolExecutor(max_workers=min(2, os.cpu_count() or 1)) as pool:
            stamps = list(pool.map(lambda e: verify(self.path / e.file, e), entries))
        self._verified |= {e.file: s for e, s in zip(entries, stamps, strict=True)}

    def examined(self) -> Health | None:
        """The trace's health, examined once and from message tables alone.

        Anything computed from several messages depends on it. Reading a payload that is not finite
        is refused when it happens.
        """
        return examine(self, payloads=False)

    @property
    def rounds(self) -> range:
        return range(1, len(self.manifest.rounds) + 1)

    @property
    def layout(self) -> Layout:
        return self.layout_of(MODEL)

    def layout_of(self, name: str) -> Layout:
        """The tensors of one layout."""
        if name not in self.manifest.layouts:
            raise UsageError.unknown(
                f"the trace has no layout {name!r}", name, self.manifest.layouts
            )
        return self.manifest.layouts[name]

    def check_round(self, number: int) -> None:
        """Raise for the number of a round that was not recorded."""
        if number not in self.rounds:
            raise UsageError(
                f"the trace has no round {number}",
                expected=f"1 to {len(self.rounds)}",
                got=str(number),
                remedy="ask for a recorded round",
            )

    def read_round(self, number: int, *, rehash: bool = False) -> RoundTable:
        """One round as stored; `rehash` first compares the file with its hash.

        Does not check that every row a message names exists.
        """
        self.check_round(number)
        entry = self.manifest.rounds[number - 1]
        file = self.path / entry.file
        # hash a file again if it changed since the trace was opened
        seen = self._verified.get(entry.file)
        if rehash or (seen is not None and not (file.is_file() and stamp(file) == seen)):
            self._verified[entry.file] = verify(file, entry)
        reader = RoundReader(file)
        found = RoundTable(reader.blocks, reader.messages)
        problem = self._misfit(found, entry, file)
        if problem is not None:
            raise _unfit(entry.file, *problem)
        return found

    def _open_round(self, number: int) -> RoundTable:
        found = self.read_round(number)
        for i, m in enumerate(found.messages):
            for name, row in m.parts.items():
                have = len(found.blocks[name]) if name in found.blocks else 0
                if row >= have:
                    file = self.manifest.rounds[number - 1].file
                    got = f"message {i} in row {row} of {name!r}"
                    raise _unfit(file, f"{have} rows of {name!r}", got)
        return found

    def _misfit(self, found: RoundTable, entry: RoundFile, file: Path) -> tuple[str, str] | None:
        """What was expected of a round file and what was found, or None if it fits."""
        size = file.stat().st_size
        if size != entry.size:
            return f"{entry.size} bytes", f"{size} bytes"
        layouts = self.manifest.layouts
        for name, rows in found.blocks.items():
            layout = layouts.get(name)
            if layout is None or rows.shape[1] != layout.width or rows.dtype.name != layout.dtype:
                known = (f"{k} of {la.dtype} (rows, {la.width})" for k, la in layouts.items())
                return f"blocks {', '.join(known)}", f"{name} of {rows.dtype.name} {rows.shape}"
        return None

    def messages(self, number: int) -> tuple[Message, ...]:
        return self._round(number).messages

    def block(self, number: int, layout: str = MODEL) -> AnyRows:
        """All stored rows of one round, (n, width), memory-mapped and read-only."""
        own, blocks = self.layout_of(layout), self._round(number).blocks
        if layout not in blocks:
            return np.empty((0, own.width), dtype=own.dtype)
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
            # a trace of another recorder may not list its parties: collect the senders
            known |= {*self.parties()}
        known -= {ANONYMOUS}
        for party in parties:
            if party not in known:
                raise UsageError.unknown(f"there is no party {party!r} in this trace", party, known)
        if len(parties) > 1 and NETWORK in parties and WIRETAP not in parties:
            raise UsageError(
                "a coalition with the network is not defined",
                expected="parties that hold messages",
                got=", ".join(parties),
                remedy="ask for the wiretap, or for each view alone",
            )
        return View(self, tuple(dict.fromkeys(parties)))


class View:
    """What `parties` together observe of a trace, and nothing more."""

    def __init__(self, trace: Trace, parties: tuple[str, ...]) -> None:
        self._trace, self.parties = trace, parties
        self._all = WIRETAP in parties
        self._metadata_only = parties == (NETWORK,)
        self._hubs = hub_depths(trace.manifest.federation)

    @property
    def vantage(self) -> str:
        return "+".join(self.parties)

    @property
    def hubs(self) -> tuple[str, ...]:
        """Parties that never train: hubs from the root down, then aggregator and shuffler."""
        return tuple(self._hubs)

    @property
    def rounds(self) -> range:
        return self._trace.rounds

    @property
    def layout(self) -> Layout:
        return self._trace.layout

    @property
    def layouts(self) -> dict[str, Layout]:
        """Names and shapes of all tensors that can cross the wire: public."""
        return dict(self._trace.manifest.layouts)

    @property
    def trace_sha256(self) -> str:
        return self._trace.sha256

    @property
    def task(self) -> dict[str, Any]:
        """Description of the trained model: known to every party that receives a model."""
        self._needs_payload("the task")
        return copy.deepcopy(dict(self._trace.manifest.task))

    @property
    def declared(self) -> tuple[dict[str, Any], ...]:
        """The announced protections: public."""
        return tuple(copy.deepcopy(dict(d)) for d in self._trace.manifest.declared)

    @property
    def federation(self) -> dict[str, Any]:
        """Topology and organisations: only for views of the whole wire."""
        if not (self._all or self._metadata_only):
            raise NotObservable(
                f"{self.vantage} does not see the topology",
                expected="the view of wiretap or network",
                got=self.vantage,
                remedy="ask for trace.seen_by(WIRETAP)",
            )
        return copy.deepcopy(dict(self._trace.manifest.federation))

    def _visible(self, m: Message) -> bool:
        if self._all or self._metadata_only:
            return True
        return m.receiver in self.parties or (m.sender in self.parties and m.sender != ANONYMOUS)

    def indexed(self, number: int) -> tuple[tuple[int, Message], ...]:
        """(index in the round's table, message) of every message in this view."""
        pairs = ((i, m) for i, m in enumerate(self._trace.messages(number)) if self._visible(m))
        # no party observes the recorder's notes
        pairs = ((i, replace(m, notes={}) if m.notes else m) for i, m in pairs)
        if self._metadata_only:
            # the size is visible, the content is not: neither kind, weight nor metadata
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
    ) -> AnyRows:
        """The tensors of one message as one row (d,)."""
        self._needs_payload("payloads")
        table = self._trace.messages(number)
        if not 0 <= message < len(table) or not self._visible(table[message]):
            raise NotObservable(
                f"{self.vantage} does not see message {message} of round {number}",
                expected="one of the view's own messages",
                got=f"message {message}",
                remedy="list them with view.indexed(round)",
            )
        m = table[message]
        if layout not in m.parts:
            raise NotObservable(
                f"message {message} of round {number} has no payload of {layout!r} for this view",
                expected=f"a payload of layout {layout!r}",
                got=", ".join(m.parts) or f"an encrypted message of {m.size} bytes",
                remedy="ask for another layout or another party's view",
            )
        return self._rows(number, [m.parts[layout]], names, layout)[0]

    def _rows(
        self, number: int, rows: list[int], names: str | Sequence[str], layout: str = MODEL
    ) -> AnyRows:
        """Stored rows (n, d), read-only: a view of the memory map if adjacent, else a copy."""
        found = self._read(number, rows, names, layout)
        if self._trace.health is not None:
            self._trace.health.refuse_rows(number, layout, rows, found)
        return found

    def _read(
        self, number: int, rows: list[int], names: str | Sequence[str], layout: str
    ) -> AnyRows:
        own, block = self._trace.layout_of(layout), self._trace.block(number, layout)
        runs = column_runs(own.select(names))
        first, adjacent = rows[0], rows == list(range(rows[0], rows[0] + len(rows)))
        if adjacent and len(runs) == 1:
            return block[first : first + len(rows), runs[0]]
        # read only the selected columns: a model may be large
        parts = [block[first : first + len(rows), r] if adjacent else block[rows, r] for r in runs]
        out = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
        out.flags.writeable = False
        return out

    def received(
        self,
        number: int,
        party: str,
        names: str | Sequence[str] = "*",
        *,
        before: int | None = None,
    ) -> npt.NDArray[np.float32] | None:
        """The model (d,) that `party` held when it sent in round `number`, or None if unknown.

        `before` is the step at which it sent (default: its first in the round). A party adopts a
        model from a hub, or a single one of weight 1, on arrival. Gossip mixes at the end of a
        round: a node then holds the weighted mean of its neighbours' models, W_ij the message's
        weight, and of its own model with the remaining weight. None if this view misses any of
        these messages.
        """
        self._needs_payload("models")
        for earlier in range(number, 0, -1):
            found = self._trace._round(earlier)
            until = None
            if earlier == number:
                until = found.first_sent.get(party) if before is None else before
            terms = self._terms(found, party, until, now=earlier == number)
            if terms is None:
                return None
            if not terms:
                continue
            if len(terms) == 1:
                return self._rows(earlier, [terms[0][1]], names)[0].astype(np.float32, copy=False)
            mixed = np.zeros(sum(e.size for e in self.layout.select(names)), dtype=np.float64)
            for weight, row in terms:
                mixed += weight * self._rows(earlier, [row], names)[0].astype(np.float64)
            held = mixed.astype(np.float32)
            held.flags.writeable = False
            return held
        return None

    def _terms(
        self, found: RoundTable, party: str, until: int | None, *, now: bool
    ) -> list[tuple[float, int]] | None:
        """(weight, row) terms of a party's model after this round; None if unknown.

        Empty if the round did not change its model. `until` keeps only messages before this step;
        `now`: the round is not over for the party, so nothing is mixed yet.
        """
        hubs = {*self._hubs, PUBLIC}
        came = [m for m in found.models_to.get(party, ()) if until is None or m.step < until]
        came.sort(key=lambda m: m.step)
        given = [m for m in came if self._is_downlink(m)]
        shared, own = [], []
        if party not in hubs:
            shared = [m for m in came if m.sender not in hubs]
            if given:
                shared = [m for m in shared if m.step >= given[-1].step]
            if not now:
                own = [m for m in found.models_from.get(party, ()) if m.receiver not in hubs][-1:]
        if now:
            shared = [m for m in shared if m.weight == 1.0]
        if not shared and not own:
            parts = given[-1:]
            weights = [1.0] * len(parts)
        elif len(shared) == 1 and shared[0].weight == 1.0:
            parts, weights = shared, [1.0]
        else:
            rest = 1.0 - sum(m.weight for m in shared)
            if rest < -_ROUNDING or (rest > _ROUNDING and not own):
                return None  # the weights do not sum to 1: the mixture is unknown
            parts, weights = shared, [m.weight for m in shared]
            if rest > _ROUNDING:
                parts, weights = [*shared, *own], [*weights, rest]
        if any(MODEL not in m.parts or not self._visible(m) for m in parts):
            return None
        return [(w, m.parts[MODEL]) for w, m in zip(weights, parts, strict=True)]

    def updates(
        self,
        number: int,
        names: str | Sequence[str] = "*",
        *,
        senders: Collection[str] | None = None,
    ) -> Updates:
        """Each client's payload in a round minus the model it had received.

        A delta stays as it is; a gradient changes sign (a step goes against it); a model loses the
        model its sender had received. Rows keep the table's order. `senders` restricts the result:
        a gossip node knows its own update, not its neighbours'.
        """
        self._needs_payload("updates")
        uplinks = [
            (i, m)
            for i, m in self.indexed(number)
            if m.kind in UPLINKS and MODEL in m.parts and not self._is_downlink(m)
        ]
        if SHUFFLER in self.parties and any(m.sender == ANONYMOUS for _, m in uplinks):
            raise NotObservable(
                "a coalition with the shuffler knows more than this trace holds",
                expected="the permutation, which only the truth holds",
                got="anonymous rows",
                remedy="audit the trace before it was shuffled, or each party alone",
            )
        # a view of a region's clients does not need its mean; the root sees only the means
        observed = {m.receiver for _, m in uplinks if self._all or m.receiver in self.parties}
        observed &= {*self._hubs}
        if SHUFFLER in observed:
            observed.add(ANONYMOUS)  # the shuffler's rows were observed on their way in
        uplinks = [(i, m) for i, m in uplinks if m.sender not in observed]
        if senders is not None:
            uplinks = [(i, m) for i, m in uplinks if m.sender in senders]
        # a gossip node's payload to several neighbours counts once; two anonymous messages with
        # equal content count twice, since they may have different senders
        unique: dict[tuple[Any, ...], tuple[int, Message]] = {}
        for i, m in uplinks:
            same = (i,) if m.sender == ANONYMOUS else (m.sender, m.kind, m.step, m.parts[MODEL])
            unique.setdefault(same, (i, m))
        chosen = list(unique.values())
        if not chosen:
            raise NotObservable(
                f"{self.vantage} sees no single client's update in round {number}",
                code="no_single_updates",
                expected="messages of kind delta, gradient or model sent by clients",
                got=_kinds(m for _, m in self.indexed(number)),
                remedy="none: a secure sum or a narrow view hides single updates",
            )
        health = self._trace.examined()
        if health is not None:
            health.refuse_updates(number, chosen)
        rows = self._rows(number, [m.parts[MODEL] for _, m in chosen], names)
        if rows.dtype != np.float32:
            rows = rows.astype(np.float32)
        if any(m.kind != "delta" for _, m in chosen):
            rows = self._relative(number, [m for _, m in chosen], rows, names)
        rows.flags.writeable = False
        return Updates(
            round=number,
            rows=rows,
            senders=tuple(m.sender for _, m in chosen),
            weights=np.array([m.weight for _, m in chosen], dtype=np.float64),
            messages=np.array([i for i, _ in chosen], dtype=np.int64),
        )

    def _is_downlink(self, m: Message) -> bool:
        return is_downlink(m, self._hubs)

    def _relative(
        self,
        number: int,
        chosen: list[Message],
        rows: npt.NDArray[np.float32],
        names: str | Sequence[str],
    ) -> npt.NDArray[np.float32]:
        rows = rows.copy()
        held: dict[tuple[str, str, int], AnyRows] = {}
        for at, m in enumerate(chosen):
            if m.kind == "gradient":
                rows[at] *= -1
            elif m.kind == "model":
                key = (m.sender, m.receiver, m.step)
                if key not in held:
                    held[key] = self._model_of(number, m, names)
                rows[at] -= held[key]
        return rows

    def _model_of(self, number: int, m: Message, names: str | Sequence[str]) -> AnyRows:
        if m.sender != ANONYMOUS:
            model = self.received(number, m.sender, names, before=m.step)
            if model is not None:
                return model
        else:
            # the sender is unknown; the update is defined if this receiver sent everybody the
            # same model
            sent = {
                d.parts.get(MODEL) if self._visible(d) else None
                for d in self._trace._round(number).models_from.get(m.receiver, ())
                if self._is_downlink(d) and d.receiver != PUBLIC and d.step < m.step
            }
            if len(sent) == 1 and None not in sent:
                return self._rows(number, [row for row in sent if row is not None], names)[0]
        raise NotObservable(
            f"{self.vantage} does not know which model {m.sender} had received in round {number}",
            expected="the model that was sent to it, or one model for all",
            got="no such message in this view, or weights that do not make a mean",
            remedy="record downlinks, or ask for a wider view",
        )

    def refuse_torn(self, effect: Breaks, number: int) -> None:
        """TraceError if a problem of the recording breaks `effect`."""
        health = self._trace.examined()
        if health is not None:
            health.refuse(effect, number, "the sums of a round cannot be read")

    def released(self, names: str | Sequence[str] = "*") -> AnyRows:
        """The released model (d,): the last one sent to the public."""
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


def _unfit(file: str, expected: str, got: str) -> IntegrityError:
    return IntegrityError(
        f"{file} does not fit the manifest and was not read",
        expected=expected,
        got=got,
        remedy="keep the files of a trace together, or record again",
    )


def _kinds(messages: Iterable[Message]) -> str:
    counts: dict[str, int] = {}
    for m in messages:
        counts[m.kind] = counts.get(m.kind, 0) + 1
    return ", ".join(f"{n} x {k}" for k, n in counts.items()) or "no messages"
