"""Remove the recording of a run and keep its findings: results and report stay readable.

    fedaudit purge RUN --yes                remove trace, truth and checkpoint; the seal notes it
    fedaudit purge RUN --keep truth --yes   remove trace and checkpoint
    fedaudit purge DIR --expired --yes      every run or trace below DIR whose retention has ended

RUN/purged.json keeps the report's facts about the recording (clients, declared protections), so
that the report can be written again.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from fedaudit.codec import to_json
from fedaudit.errors import FedauditError, IntegrityError, TraceError, count_of
from fedaudit.files import write_atomically
from fedaudit.study.chapters import remains_of
from fedaudit.study.folders import is_study, places
from fedaudit.study.lock import alone_in_run
from fedaudit.study.seal import PARTS, REMAINS, SEAL, Part, gone, remove_parts, seal_written
from fedaudit.trace import purge as traces
from fedaudit.trace.retention import ends
from fedaudit.trace.store import read_manifest

RECORDED: tuple[Part, ...] = ("trace", "truth", "checkpoint")


@dataclass(frozen=True)
class Purgeable:
    """A run or a trace that can be purged, and its present parts.

    `until`: the last day of its retention, None without an end; `unknown`: why that is not known.
    """

    path: Path
    parts: tuple[Part, ...]
    until: datetime.date | None
    unknown: str = ""

    @property
    def is_trace(self) -> bool:
        """Whether this is a recording without a run."""
        return not self.parts


def find(folder: Path, *, below: bool, keep: Collection[str] = ()) -> list[Purgeable]:
    """Everything that can be purged at `folder` (a trace, a run, a study), or `below` it."""
    if not folder.is_dir():
        raise TraceError(
            f"{folder} is not a folder",
            expected="a trace, a run or a study" if not below else "a folder with runs below it",
            got="a file" if folder.exists() else "no such folder",
            remedy="check the path: nothing was removed",
        )
    found = list(_below(folder, keep)) if below else list(_at(folder, keep))
    if not found and not below:
        raise TraceError(
            f"there is nothing to purge in {folder}",
            expected="a trace, or a run with trace, truth or checkpoint",
            got="none of these",
            remedy="name the run itself; `expired=True` searches below a folder",
        )
    return found


def _at(folder: Path, keep: Collection[str]) -> Iterator[Purgeable]:
    if is_study(folder) or (folder / "cells").is_dir():
        inside = folder / "cells" if (folder / "cells").is_dir() else folder
        for inner in sorted(f for f in inside.iterdir() if f.is_dir() and not f.is_symlink()):
            yield from _at(inner, keep)  # including replays of `audit --as` beside the runs
        if "truth" not in keep and (folder / "truth").is_dir():  # digests of the data
            yield Purgeable(folder, ("truth",), None)
    elif (folder / "run.json").is_file() or (folder / SEAL).is_file():
        parts = tuple(p for p in RECORDED if p not in keep and (folder / p).is_dir())
        if parts:
            yield Purgeable(folder, parts, *_retention(folder / "trace"))
        if not is_study(folder.resolve().parent):
            for replay in sorted(folder.resolve().parent.glob(f"{folder.resolve().name}-as-*")):
                yield from _at(replay, keep)
    elif (folder / "manifest.json").is_file():
        yield Purgeable(folder, (), *_retention(folder))


def _below(folder: Path, keep: Collection[str]) -> Iterator[Purgeable]:
    for root, folders, _ in os.walk(folder):
        folders.sort()
        found = [] if is_study(Path(root)) else list(_at(Path(root), keep))
        yield from found
        if found:
            folders.clear()  # everything inside is purged with it


def _retention(trace: Path) -> tuple[datetime.date | None, str]:
    """The last day of a recording's retention, and why it is not known."""
    file = trace / "manifest.json"
    if not file.is_file():
        return None, ""
    try:
        manifest, _ = read_manifest(file)
        changed = datetime.datetime.fromtimestamp(file.stat().st_mtime, datetime.UTC).date()
        return ends(manifest.retention, changed), ""
    except FedauditError as error:
        return None, f"{error.what}; {error.got}"


def purge(one: Purgeable, today: datetime.date) -> str:
    """Remove a run's recorded parts, or a trace; return what was removed, in words."""
    with alone_in_run(one.path):
        return _purge(one, today)


def _purge(one: Purgeable, today: datetime.date) -> str:
    if one.is_trace:
        for folder in _audits_of(one.path):
            _keep_remains(folder)
        done = traces.purge(one.path, today)
        more = f"; kept: {', '.join(done.left)}" if done.left else ""
        return f"{count_of(len(done.files), 'file')}, {count_of(done.size, 'byte')}{more}"
    begun = "trace" in gone(one.path)  # an interrupted purge has stored the remains already
    if "trace" in one.parts and not begun and any((one.path / "results").glob("*.json")):
        _keep_remains(one.path)
    remove_parts(one.path, one.parts, "purged", today)
    left = [p for p in PARTS if (one.path / p).is_dir()]
    more = f"; kept: {', '.join(left)}" if left else ""
    return f"{', '.join(one.parts)}{more}"


def _audits_of(trace: Path) -> list[Path]:
    """Folders beside a trace with results about it."""
    own = trace.resolve()
    beside = [f for f in sorted(own.parent.glob(f"{own.name}-*")) if (f / SEAL).is_file()]
    return [f for f in beside if places(f)[0].resolve() == own]


def _keep_remains(folder: Path) -> None:
    """Store the facts about the recording that a report needs.

    A run with altered files is purged too; its report then shows only the results.
    """
    (folder / REMAINS).unlink(missing_ok=True)  # of an interrupted purge
    try:
        kept = remains_of(folder)
    except IntegrityError:
        return
    text = to_json(kept) + "\n"
    write_atomically(folder / REMAINS, text)
    seal_written(folder, "results", folder / REMAINS)
