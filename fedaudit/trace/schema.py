"""The words of a trace: parties, messages, manifest. Start reading here.

A trace is what crossed the wire, and nothing cleverer: one table of messages per round, downlinks
included. Star, hierarchy, gossip and per-client planted models are the same table with other rows;
a shuffler writes ANONYMOUS as sender and permutes the rows; a secure sum is one message from the
aggregator. `docs/trace-format.md` says how it looks on disk.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from fedaudit.errors import FormatError
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

Kind = Literal["model", "delta", "gradient", "masked", "sum", "query"]
KINDS: tuple[str, ...] = get_args(Kind)

Scalar = float | int | str | bool


@dataclass(frozen=True, slots=True)
class Message:
    """One row of a round's table.

    `step` orders messages within a round. `weight` is what the aggregate multiplies the payload
    by, as far as it crossed the wire. `parts` maps a layout to the row of that layout's block in
    the round's file; a message without parts was sealed on this leg, and only its `size` in bytes
    is known. `metadata` is whatever else travelled in the clear (example counts, metrics).
    """

    step: int
    kind: str
    sender: str
    receiver: str
    weight: float = 1.0
    parts: Mapping[str, int] = field(default_factory=dict)
    size: int = 0
    metadata: Mapping[str, Scalar] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind {self.kind!r} is not one of {', '.join(KINDS)}")


_COLUMNS = ("step", "kind", "sender", "receiver", "weight", "parts", "size", "metadata")


def messages_to_json(messages: tuple[Message, ...] | list[Message]) -> str:
    """The table by columns: compact, and the same for the same messages."""
    columns = {c: [getattr(m, c) for m in messages] for c in _COLUMNS}
    columns["parts"] = [dict(m.parts) for m in messages]
    columns["metadata"] = [dict(m.metadata) for m in messages]
    return json.dumps(columns, separators=(",", ":"), sort_keys=True, allow_nan=False)


def messages_from_json(text: str) -> tuple[Message, ...]:
    raw = json.loads(text)
    return tuple(Message(*row) for row in zip(*(raw[c] for c in _COLUMNS), strict=True))


@dataclass(frozen=True)
class RoundFile:
    """One complete round as the manifest knows it."""

    file: str
    sha256: str
    size: int


@dataclass(frozen=True)
class Manifest:
    """What a reader needs before it opens a round.

    `federation` describes who took part and how they were joined (parties, edges, organisations);
    `declared` lists the protections that were said to be in force, each with what it covers;
    `purpose` and `retention` say why the recording exists and until when.
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
        }
        return json.dumps(raw, indent=1, sort_keys=True, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str, where: str) -> Manifest:
        try:
            raw = json.loads(text)
        except json.JSONDecodeError as error:
            raise FormatError(
                f"{where} is not a trace manifest",
                expected="JSON",
                got=f"a syntax error at line {error.lineno}, column {error.colno}",
                remedy="restore the file, or record again",
            ) from None
        if not isinstance(raw, dict) or raw.get("format") != FORMAT:
            raise FormatError(
                f"{where} is not a trace manifest",
                expected=f'"format": "{FORMAT}"',
                got=repr(raw.get("format") if isinstance(raw, dict) else type(raw).__name__),
                remedy="point to the trace folder of a run",
            )
        if raw.get("version") != VERSION:
            newer = isinstance(raw.get("version"), int) and raw["version"] > VERSION
            raise FormatError(
                f"{where} is of another format version",
                expected=f"version {VERSION}",
                got=f"version {raw.get('version')}",
                remedy="upgrade fedaudit" if newer else "record again",
            )
        try:
            return cls(
                layouts={k: Layout.from_dict(v) for k, v in raw["layouts"].items()},
                federation=raw["federation"],
                declared=tuple(raw["declared"]),
                task=raw.get("task", {}),
                rounds=tuple(RoundFile(r["file"], r["sha256"], r["size"]) for r in raw["rounds"]),
                complete=bool(raw["complete"]),
                purpose=raw.get("purpose", ""),
                retention=raw.get("retention", ""),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise FormatError(
                f"{where} is damaged",
                expected="the keys described in docs/trace-format.md",
                got=f"{type(error).__name__}: {error}",
                remedy="restore the file, or record again",
            ) from None

    @property
    def sha256(self) -> str:
        """One hash for the whole trace: the manifest holds the hash of every round."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()
