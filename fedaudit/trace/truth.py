"""What did not cross the wire: who sent which row, raw updates, class mix, members, every seed.

It has its own folder, so that a trace can be published without it as a blind challenge. Audits
score against it; attacks never see it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedaudit import shapes
from fedaudit.codec import to_json
from fedaudit.errors import IntegrityError, TraceError
from fedaudit.files import (
    Unreadable,
    is_lost,
    make_folder,
    parse_json,
    read_object,
    sha256_of,
    write_atomically,
    writing,
)
from fedaudit.trace.schema import RoundFile
from fedaudit.trace.store import (
    RoundReader,
    Stamp,
    round_name,
    touched_since,
    verify,
    write_blocks,
)

INDEX = "index.json"
"""Index of a truth's files with their hashes; files it does not list are not read."""

FACTS = "truth.json"


class TruthRecorder:
    """Write `truth/`: facts once, then one small file per round, and an index of their hashes.

    Only the owner can read the folder and its files. An existing index is continued; `rounds` is
    its number of whole rounds.
    """

    def __init__(self, path: str | os.PathLike[str], facts: Mapping[str, Any]) -> None:
        self.path = Path(path)
        self._files: dict[str, RoundFile] = {}
        with writing(self.path):
            make_folder(self.path, private=True)
            self._rounds = self._whole_rounds()
            text = to_json(facts, sort_keys=True) + "\n"
            raw = text.encode()
            write_atomically(self.path / FACTS, raw, private=True)
            self._list(RoundFile(FACTS, hashlib.sha256(raw).hexdigest(), len(raw)))

    @property
    def rounds(self) -> int:
        """Number of whole rounds."""
        return self._rounds

    def _whole_rounds(self) -> int:
        """Read an existing index; returns the number of its whole rounds."""
        if is_lost(self.path / INDEX):
            return 0
        self._files = read_index(self.path)
        number = 0
        while (entry := self._files.get(round_name(number + 1))) is not None:
            if is_lost(self.path / entry.file):
                break
            verify(self.path / entry.file, entry)
            number += 1
        return number

    def _list(self, entry: RoundFile) -> None:
        self._files[entry.file] = entry
        listed = {name: {"sha256": e.sha256, "size": e.size} for name, e in self._files.items()}
        text = to_json({"format": FORMAT, "version": 1, "files": listed})
        write_atomically(self.path / INDEX, text + "\n", private=True)

    def round(
        self,
        number: int,
        senders: Mapping[int, str],
        raw: npt.NDArray[np.float32] | None = None,
        clients: Sequence[str] = (),
        metrics: Mapping[str, float] | None = None,
    ) -> None:
        """`senders` maps a message index to its true sender; `raw` (n, d) has a row per client."""
        blocks: dict[str, list[npt.NDArray[Any]]] = {} if raw is None else {"raw": [raw]}
        note = {
            "senders": {str(k): v for k, v in senders.items()},
            "clients": list(clients),
            "metrics": dict(metrics or {}),
        }
        entry = write_blocks(
            self.path / round_name(number),
            blocks,
            {"truth": json.dumps(note, sort_keys=True)},
            private=True,
        )
        self._list(entry)
        self._rounds = number


FORMAT = "fedaudit-truth"


def read_index(folder: Path) -> dict[str, RoundFile]:
    """File name -> hash and size, from the index of a truth."""
    file = folder / INDEX
    try:
        raw = read_object(file)
        if raw.get("format") != FORMAT or raw.get("version") != 1:
            raise ValueError(f"format {raw.get('format')!r}, version {raw.get('version')!r}")
        listed = raw["files"]
        found = {name: RoundFile(name, e["sha256"], e["size"]) for name, e in listed.items()}
        if FACTS not in found:
            raise ValueError(f"no {FACTS}")
    except Unreadable as error:
        raise _damaged(file, error.got or "") from None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _damaged(file, f"{type(error).__name__}: {error}") from None
    return found


class Truth:
    """Read `truth/`: facts that no party of the trace observes.

    `members` maps a party to (n,) bool: which of the candidate records it trained on. It is set
    together with the candidates, when an audit begins. `records`: party -> the candidates
    themselves, x (n, ...) and y (n,), for audits whose adversary does not hold them.
    """

    def __init__(
        self,
        path: Path,
        facts: dict[str, Any],
        members: Mapping[str, npt.NDArray[np.bool_]] | None = None,
        records: Mapping[str, tuple[npt.NDArray[Any], npt.NDArray[Any]]] | None = None,
    ) -> None:
        self.path, self.facts, self.members = path, facts, dict(members or {})
        self.records = dict(records or {})
        self._files: dict[str, RoundFile] = {}
        self._verified: dict[str, Stamp] = {}

    def with_members(
        self,
        members: Mapping[str, npt.NDArray[np.bool_]],
        records: Mapping[str, tuple[npt.NDArray[Any], npt.NDArray[Any]]] | None = None,
    ) -> Truth:
        """The same truth with the membership of a set of candidates, and perhaps with them."""
        return Truth(self.path, self.facts, members, records)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Truth:
        folder = Path(path)
        if (folder / "truth" / "truth.json").is_file():
            folder = folder / "truth"
        if not (folder / FACTS).is_file():
            raise TraceError(
                f"{folder} holds no truth",
                expected=FACTS,
                got="no such file",
                remedy="without truth an attack runs blind: it guesses, and nothing is scored",
            )
        verified = {e.file: verify(folder / e.file, e) for e in read_index(folder).values()}
        try:
            facts = read_object(folder / FACTS, shapes.TRUTH)
        except Unreadable as error:
            raise _damaged(folder / FACTS, error.got or "", error.expected) from None
        truth = cls(folder, facts)
        truth._verified = verified
        return truth

    def verify_touched(self) -> None:
        """Compare the files that were touched since they were last compared with their hashes."""
        entries = touched_since(self.path, read_index(self.path).values(), self._verified)
        self._verified |= {e.file: verify(self.path / e.file, e) for e in entries}

    @property
    def sha256(self) -> str:
        """Hash of the whole truth: that of its index, which lists every file's hash."""
        return sha256_of(self.path / INDEX)

    def _note(self, number: int) -> tuple[RoundReader, dict[str, Any]]:
        name = round_name(number)
        if name not in self._files:
            self._files = read_index(self.path)  # a running federation adds rounds
        if name not in self._files:
            raise _damaged(self.path / name, f"a round that {INDEX} does not list")
        reader = RoundReader(self.path / name)
        try:
            # the loss of a diverged model is NaN
            note: dict[str, Any] = parse_json(reader.metadata["truth"], nan=True)
            if (wrong := shapes.misfit(note, shapes.TRUTH_ROUND)) is not None:
                raise ValueError(f"{wrong.got}, expected {wrong.expected}")
            {int(k): v for k, v in note["senders"].items()}
        except (KeyError, ValueError) as error:
            raise _damaged(reader.path, f"{type(error).__name__}: {error}") from None
        return reader, note

    def senders(self, number: int) -> dict[int, str]:
        """Message index -> true sender, for the uplinks of one round."""
        return {int(k): v for k, v in self._note(number)[1]["senders"].items()}

    def raw_updates(self, number: int) -> tuple[tuple[str, ...], npt.NDArray[np.float32]]:
        """Clients and their updates (n, d) before any upload protection, if kept."""
        reader, note = self._note(number)
        if "raw" not in reader.blocks:
            raise TraceError(
                "raw updates were not kept",
                expected="trace.raw_updates = true in the config of the run",
                got="a run without them",
                remedy="run again with trace.raw_updates = true",
            )
        return tuple(note["clients"]), reader.blocks["raw"]

    def metrics(self, number: int) -> dict[str, float]:
        """Held-out metrics of the model after one round."""
        found: dict[str, float] = self._note(number)[1]["metrics"]
        return found

    @property
    def clients(self) -> dict[str, dict[str, Any]]:
        """Party -> what is known of each client, as far as it was written down.

        `name`: as its owner calls it. `records`: indices of its records in the data. `examples`:
        their number. `classes`: its class histogram. `organisation`: number of its group.
        `inverted`: whether its images are negatives (partition "inverted").
        """
        found: dict[str, dict[str, Any]] = self.facts.get("clients", {})
        return found


class MembersOnly(Truth):
    """Truth from a file of records, for a trace without truth: who trained on what."""

    def __init__(
        self,
        members: Mapping[str, npt.NDArray[np.bool_]],
        records: Mapping[str, tuple[npt.NDArray[Any], npt.NDArray[Any]]] | None = None,
    ) -> None:
        super().__init__(Path(), {}, members, records)

    def senders(self, number: int) -> dict[int, str]:
        """Empty: the true senders are unknown."""
        return {}


def _damaged(file: Path, got: str, expected: str | None = None) -> IntegrityError:
    return IntegrityError(
        f"{file} is torn or altered, and was not read",
        expected=expected or "a file written by TruthRecorder",
        got=got,
        remedy="restore the file from a copy, or run again",
    )
