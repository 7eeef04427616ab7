"""The terms of a trace: parties, messages, manifest. Start reading here.

A trace records what crossed the wire, nothing else: one table of messages per round, downlinks
included. Star, hierarchy, gossip and per-client planted models are the same table with other rows;
a shuffler writes ANONYMOUS as sender and permutes the rows; a secure sum is one message from the
aggregator. `docs/trace-format.md` describes the files.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, get_args

from fedaudit.codec import to_json
from fedaudit.errors import FormatError, IntegrityError
from fedaudit.files import parse_json
from fedaudit.layout import Layout

FORMAT = "fedaudit-trace"
VERSION = 1

SERVER = "server"
SHUFFLER = "shuffler"
AGGREGATOR = "aggregator"
ANONYMOUS = "anonymous"
PUBLIC = "public"
NETWORK = "network"
WIRETAP = "wiretap"

QUERY = "query"
"""Layout of queries to a secure aggregator, and metadata key of a query's number."""

SCALARS = "scalars"
"""Layout of sums of inner products, and their mark in the metadata of a query, under `RELEASE`."""
RELEASE = "release"

UPLINKS = ("model", "delta", "gradient")
"""Message kinds with one party's contribution."""

Kind = Literal["model", "delta", "gradient", "masked", "sum", "query"]
KINDS: tuple[str, ...] = get_args(Kind)

Scalar = float | int | str | bool

#: keys of `Message.notes`: what a recorder notes about a message
LATE = "late"  # answers a model of an earlier round
AGAIN = "again"  # a second answer to the same model
FAILED = "failed"  # no answer arrived, or an error did: why
REFUSED = "refused"  # it arrived, but its tensors do not fit the trace: why
ROUNDED = "rounded"  # whole-number tensors that arrived as fractions: which
LEFT_OUT = "left out"  # content of the message that the trace does not keep
STAGE = "stage"  # stage of a multi-stage protocol
JOINED = "joined"  # the party joined later: it is not in the manifest
#: key of the manifest's `federation`: why the recording stopped before training did
STOPPED = "recording_stopped"
#: metadata key of a query without an answer: why
UNANSWERED = "unanswered"

#: numpy's name of a dtype -> its name in a safetensors header
DTYPES: Mapping[str, str] = MappingProxyType(
    {
        "float64": "F64",
        "float32": "F32",
        "float16": "F16",
        "int64": "I64",
        "int32": "I32",
        "int16": "I16",
        "int8": "I8",
        "uint64": "U64",
        "uint32": "U32",
        "uint16": "U16",
        "uint8": "U8",
        "bool": "BOOL",
    }
)

#: a file name in the trace's folder: no separators, no drive, not hidden
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*\Z")
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")
_UNSEALED = "0" * 64


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


@dataclass(frozen=True, slots=True)
class Message:
    """One row of a round's table.

    `step` orders messages within a round. `weight` is the payload's weight in the aggregate, if it
    crossed the wire. `parts` maps a layout to a row of that layout's block in the round's file; a
    message without parts was encrypted on this leg, and only its `size` in bytes is known.
    `metadata` is other plaintext content (example counts, metrics). `notes` are the recorder's
    remarks ("late", "failed"): they did not cross the wire, and no view shows them. A message is
    checked when it is made (ValueError) and cannot be changed.
    """

    step: int
    kind: str
    sender: str
    receiver: str
    weight: float = 1.0
    parts: Mapping[str, int] = field(default_factory=dict)
    size: int = 0
    metadata: Mapping[str, Scalar] = field(default_factory=dict)
    notes: Mapping[str, Scalar] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind {self.kind!r} is not one of {', '.join(KINDS)}")
        for name, party in (("sender", self.sender), ("receiver", self.receiver)):
            if not isinstance(party, str) or not party:
                raise ValueError(f"{name} {party!r} is not a name")
            # these names select a view: a client of that name would see the whole wire
            if party in (NETWORK, WIRETAP):
                raise ValueError(f"{name} {party!r} is a reserved word")
        if self.sender == PUBLIC:
            raise ValueError(f"sender {PUBLIC!r}: the public can only receive")
        if self.receiver == ANONYMOUS:
            raise ValueError(f"receiver {ANONYMOUS!r}: only a sender can be anonymous")
        for name, number in (("step", self.step), ("size", self.size)):
            if not _whole(number):
                raise ValueError(f"{name} {number!r} is not a whole number from 0")
        if not _finite(self.weight):
            raise ValueError(f"weight {self.weight!r} is not a finite number")
        for layout, row in self.parts.items():
            if not isinstance(layout, str) or not _whole(row):
                raise ValueError(f"part {layout!r}: {row!r} is not a row of a layout")
        for name, pairs in (("metadata", self.metadata), ("notes", self.notes)):
            for key, value in pairs.items():
                fits = isinstance(value, str | bool) or _finite(value)
                if not isinstance(key, str) or not fits:
                    raise ValueError(f"{name} {key!r}: {value!r} is not a finite number or text")
        for name in _OBJECTS:
            given = getattr(self, name)
            object.__setattr__(self, name, MappingProxyType(dict(given)) if given else _NOTHING)

    def noted(self, key: str) -> bool:
        """Whether the recorder noted `key`.

        Older recorders had no notes and used the metadata instead; for a message without a
        payload, this reads them there.
        """
        return key in self.notes or (not self.parts and key in self.metadata)

    @property
    def lost(self) -> bool:
        """Whether this is an answer without recorded content: it never arrived, or was refused."""
        return self.noted(FAILED) or self.noted(REFUSED)


def hub_depths(federation: Mapping[str, Any]) -> dict[str, int]:
    """Parties that never train: hubs from the root down, then aggregator and shuffler."""
    order = dict.fromkeys((*federation.get("hubs", ()), SERVER, AGGREGATOR, SHUFFLER))
    return {hub: depth for depth, hub in enumerate(order)}


def is_downlink(m: Message, hubs: Mapping[str, int]) -> bool:
    """Whether a hub sends a model down (or to the public), not up to the next hub."""
    depth = hubs.get(m.sender)
    if m.kind != "model" or depth is None:
        return False
    return hubs.get(m.receiver, len(hubs)) > depth


def _finite(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return math.isfinite(value)


_COLUMNS = ("step", "kind", "sender", "receiver", "weight", "parts", "size", "metadata")
_OBJECTS = ("parts", "metadata", "notes")
_NOTHING: Mapping[str, Any] = MappingProxyType({})


def messages_to_json(messages: Sequence[Message]) -> str:
    """The table by columns: compact, and equal for equal messages.

    A table without notes has no notes column, as in files written before notes existed.
    """
    names = (*_COLUMNS, "notes") if any(m.notes for m in messages) else _COLUMNS
    columns = {c: [getattr(m, c) for m in messages] for c in names}
    for name in _OBJECTS:
        if name in columns:
            columns[name] = [dict(given) for given in columns[name]]
    return json.dumps(columns, separators=(",", ":"), sort_keys=True, allow_nan=False)


def messages_from_json(text: str) -> tuple[Message, ...]:
    """The inverse of `messages_to_json`; raises ValueError for anything else."""
    raw = parse_json(text)
    if not isinstance(raw, dict) or not all(isinstance(raw.get(c), list) for c in _COLUMNS):
        raise ValueError(f"a table needs the columns {', '.join(_COLUMNS)}")
    raw.setdefault("notes", [{}] * len(raw["step"]))
    if not isinstance(raw["notes"], list):
        raise ValueError("notes must be a list")
    if not all(isinstance(d, dict) for c in _OBJECTS for d in raw[c]):
        raise ValueError("parts, metadata and notes must be objects")
    columns = (raw[c] for c in (*_COLUMNS, "notes"))
    return tuple(Message(*row) for row in zip(*columns, strict=True))


@dataclass(frozen=True)
class RoundFile:
    """Manifest entry of one complete round: a plain file name in the trace's folder."""

    file: str
    sha256: str
    size: int

    def __post_init__(self) -> None:
        if not isinstance(self.file, str) or not _PLAIN_NAME.match(self.file):
            raise ValueError(f"round file {self.file!r} is not a plain name in the trace's folder")
        if not isinstance(self.sha256, str) or not _SHA256.match(self.sha256):
            raise ValueError(f"{self.file}: {self.sha256!r} is not a sha256 in 64 hex digits")
        if not _whole(self.size):
            raise ValueError(f"{self.file}: size {self.size!r} is not a whole number from 0")


@dataclass(frozen=True)
class Manifest:
    """Description of a trace, read before any round.

    `federation` describes parties, edges and organisations; `declared` lists the announced
    protections with what each covers; `purpose` and `retention` say why the recording exists and
    how long it may be kept.
    """

    layouts: Mapping[str, Layout]
    federation: Mapping[str, Any] = field(default_factory=dict)
    declared: tuple[Mapping[str, Any], ...] = ()
    task: Mapping[str, Any] = field(default_factory=dict)
    rounds: tuple[RoundFile, ...] = ()
    complete: bool = False
    purpose: str = ""
    retention: str = ""

    def to_json(self) -> str:
        """Content of the manifest's file: equal bytes for equal traces, sealed by its own hash."""
        raw = {
            "format": FORMAT,
            "version": VERSION,
            "federation": dict(self.federation),
            "task": dict(self.task),
            "declared": [dict(d) for d in self.declared],
            "purpose": self.purpose,
            "retention": self.retention,
            "layouts": {k: v.to_dict() for k, v in self.layouts.items()},
            "rounds": [{"file": r.file, "sha256": r.sha256, "size": r.size} for r in self.rounds],
            "complete": self.complete,
            "sha256": _UNSEALED,
        }
        text = to_json(raw, sort_keys=True) + "\n"
        key = f'\n "sha256": "{_UNSEALED}"'  # one space deep: the manifest's own key alone
        return text.replace(key, key.replace(_UNSEALED, _digest(text)))

    @classmethod
    def from_json(cls, text: str, where: str) -> tuple[Manifest, str]:
        """The manifest and its seal; IntegrityError if the text is torn or altered."""
        try:
            raw = parse_json(text)
        except ValueError as error:
            raise _damaged(where, "JSON", str(error)) from None
        if not isinstance(raw, dict) or raw.get("format") != FORMAT:
            raise FormatError(
                f"{where} is not a trace manifest",
                expected=f'"format": "{FORMAT}"',
                got=repr(raw.get("format") if isinstance(raw, dict) else type(raw).__name__),
                remedy="point to the trace folder of a run",
            )
        version = raw.get("version")
        if not _whole(version) or version != VERSION:
            newer = isinstance(version, int) and version > VERSION
            raise FormatError(
                f"{where} has another format version",
                expected=f"version {VERSION}",
                got=f"version {version}",
                remedy="upgrade fedaudit" if newer else "record again",
            )
        seal = raw.get("sha256")
        if not isinstance(seal, str) or not _SHA256.match(seal):
            raise _damaged(where, '"sha256" with 64 hex digits', repr(seal))
        found = _digest(text.replace(seal, _UNSEALED))
        if found != seal:
            raise _damaged(where, f"sha256 {seal}", f"sha256 {found}")
        try:
            manifest = cls(
                layouts={k: _layout(k, v) for k, v in raw["layouts"].items()},
                federation=_checked(raw["federation"], dict, "federation"),
                declared=tuple(_checked(d, dict, "declared") for d in raw["declared"]),
                task=_checked(raw.get("task", {}), dict, "task"),
                rounds=tuple(RoundFile(r["file"], r["sha256"], r["size"]) for r in raw["rounds"]),
                complete=_checked(raw["complete"], bool, "complete"),
                purpose=_checked(raw.get("purpose", ""), str, "purpose"),
                retention=_checked(raw.get("retention", ""), str, "retention"),
            )
            for key in ("hubs", "parties", "clients"):
                names = manifest.federation.get(key, [])
                if not isinstance(names, list) or not all(isinstance(n, str) for n in names):
                    raise ValueError(f"federation.{key} is not a list of names")
            files = [r.file for r in manifest.rounds]
            if len(set(files)) != len(files):
                raise ValueError("two rounds name the same file")
        except KeyError as error:
            got = f"no key {error}"
            raise _damaged(where, "the keys of docs/trace-format.md", got) from None
        except (TypeError, ValueError, AttributeError) as error:
            raise _damaged(where, "a manifest as in docs/trace-format.md", str(error)) from None
        return manifest, seal

    @property
    def sha256(self) -> str:
        """Hash of the whole trace: the manifest's seal, which covers every round's hash."""
        seal: str = json.loads(self.to_json())["sha256"]
        return seal


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _damaged(where: str, expected: str, got: str) -> IntegrityError:
    return IntegrityError(
        f"{where} is torn or altered, and was not read",
        expected=expected,
        got=got,
        remedy="restore the file from a copy, or record again",
    )


def _checked(value: Any, kind: type, name: str) -> Any:
    if not isinstance(value, kind):
        raise ValueError(f"{name} holds {type(value).__name__}, not {kind.__name__}")
    return value


def _layout(name: str, raw: Mapping[str, Any]) -> Layout:
    layout = Layout.from_dict(raw)
    if layout.dtype not in DTYPES:
        raise ValueError(f"layout {name!r}: dtype {layout.dtype!r} is none of {', '.join(DTYPES)}")
    return layout
