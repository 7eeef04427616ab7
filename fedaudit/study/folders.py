"""Where things lie in the folder of a run, of an audited trace, or of a study; read in one place.

RUN/trace, RUN/truth     or, for a trace that lies elsewhere, where RUN/audit.json says
RUN/audit.json           also: the commands that asked for what RUN/results holds
RUN/config.toml          the public settings
STUDY/study.json         federation, variant and path of every run
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedaudit import shapes
from fedaudit.errors import FormatError
from fedaudit.files import Unreadable, read_object, read_text, read_toml, unreadable

STUDY = "study.json"
AUDITED = "audit.json"
NOT_RERUN = "training was not rerun"
"""How a protection is declared that was applied to a stored trace and would have changed it."""


@dataclass(frozen=True)
class Entry:
    """One run of a study."""

    federation: str
    variant: str
    path: Path


def is_study(folder: str | os.PathLike[str]) -> bool:
    return (Path(folder) / STUDY).is_file()


def entries(folder: Path) -> list[Entry]:
    """The runs of a study, in order: each once, and all of them inside its folder."""
    file = folder / STUDY
    try:
        listed = read_object(file, shapes.STUDY)["runs"]
    except Unreadable as error:
        raise _bad_study(file, f"{error.got}, expected {error.expected}") from None
    out = [Entry(e["federation"], e.get("variant", ""), folder / e["path"]) for e in listed]
    if not out:
        raise _bad_study(file, "no runs")
    named = [(e.federation, e.variant) for e in out]
    for e in out:
        if named.count((e.federation, e.variant)) > 1:
            raise _bad_study(file, f"{(e.federation, e.variant)} twice")
        short = "\0" not in str(e.path) and max(map(len, e.path.parts)) < 200
        if not short or not e.path.resolve().is_relative_to(folder.resolve()):
            raise _bad_study(file, f"the path {str(e.path)[:200]!r}, which leads outside")
    return out


def _bad_study(file: Path, got: str) -> FormatError:
    return FormatError(
        f"{file} does not list the runs of a study",
        expected='{"runs": [{"federation": ..., "variant": ..., "path": ...}, ...]}, each once',
        got=got,
        remedy="run the study again: what is complete is kept",
    )


OWN_FOLDERS = ("trace", "truth", "checkpoint", "results")
OWN_FILES = (
    "run.json", "config.toml", "seal.json", "signature.json", "findings.json", "results.json",
    "report.html", "report.md", "allocation.json", "promised.json", "cell.json",
    "purged.json",
)  # fmt: skip


FRESH_MARK = "fresh.part"
"""Stands in a folder that is being cleared, until a run or study has claimed it again."""


def not_ours(folder: Path) -> list[Path]:
    """What lies in a folder that no run or study has claimed; nothing where one had."""
    marks = (FRESH_MARK, "seal.json", STUDY)
    if not folder.exists() or any((folder / mark).exists() for mark in marks):
        return []
    return [f for f in folder.iterdir() if f.suffix != ".part"]


def clear(folder: Path) -> None:
    """Remove what fedaudit wrote into the folder of a run, an audited trace or a study; what else
    lies there stays. Any other folder is left alone. A clear that was stopped can be done again."""
    marks = (FRESH_MARK, STUDY, AUDITED, "run.json", "seal.json")
    if not any((folder / mark).exists() for mark in marks):
        return
    (folder / FRESH_MARK).touch()
    if (folder / STUDY).exists():
        for inner in sorted(f for f in folder.iterdir() if f.is_dir() and not f.is_symlink()):
            clear(inner)
            with contextlib.suppress(OSError):
                (inner / FRESH_MARK).unlink(missing_ok=True)
                inner.rmdir()  # refused where something of the user's lies in it
    for name in OWN_FOLDERS:
        if (folder / name).is_dir() and not (folder / name).is_symlink():
            shutil.rmtree(folder / name)
    for name in (*OWN_FILES, AUDITED, STUDY):
        (folder / name).unlink(missing_ok=True)


def claimed(folder: Path) -> None:
    """A folder that was cleared belongs to a run or study again."""
    (folder / FRESH_MARK).unlink(missing_ok=True)


def places(folder: Path) -> tuple[Path, Path]:
    """Trace and truth of a run: inside, or where audit.json says."""
    told = _audited(folder)
    return folder / told.get("trace", "trace"), folder / told.get("truth", "truth")


def _audited(folder: Path) -> dict[str, Any]:
    try:
        return read_object(folder / AUDITED, shapes.AUDITED)
    except Unreadable as error:
        if error.absent:
            return {}
        raise


@dataclass(frozen=True)
class Command:
    """An audit of a stored trace as one would type it, and the audits that it asked for."""

    command: str
    audits: tuple[str, ...]


def commands(folder: Path) -> list[Command]:
    """The commands that asked for the results of a folder, oldest first; none if nobody knows."""
    told = _audited(folder).get("done_by", [])
    return [Command(c["command"], tuple(c["audits"])) for c in told]


def commands_but(folder: Path, audits: Collection[str]) -> list[Command]:
    """Those commands without `audits`, which something else asked for since."""
    left = [
        Command(c.command, tuple(a for a in c.audits if a not in audits)) for c in commands(folder)
    ]
    return [c for c in left if c.audits]


def config_text(folder: Path) -> str:
    """The public settings of a run as written; none beside a foreign trace."""
    return read_text(folder / "config.toml") if config_of(folder) else ""


def config_of(folder: Path) -> dict[str, Any]:
    """The same as plain values. A file that is there and cannot be read is an error."""
    try:
        found = read_toml(folder / "config.toml")
    except Unreadable as error:
        if error.absent:
            return {}
        raise
    wrong = shapes.misfit(found, shapes.CONFIG)
    if wrong is not None:
        raise unreadable(folder / "config.toml", wrong.expected, wrong.got)
    return found
