"""Folder layout of a run, of an audited trace, and of a study.

RUN/trace, RUN/truth     for a trace stored elsewhere, RUN/audit.json holds their paths
RUN/audit.json           also: the commands that produced RUN/results
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
from fedaudit.errors import FormatError, UsageError
from fedaudit.files import Unreadable, read_object, read_text, read_toml, unreadable

STUDY = "study.json"
AUDITED = "audit.json"
NOT_RERUN = "training was not rerun"
"""Declared for a protection that was applied to a stored trace and would have changed training."""


@dataclass(frozen=True)
class ListedRun:
    """One run that a study lists."""

    federation: str
    variant: str
    path: Path


def is_study(folder: str | os.PathLike[str]) -> bool:
    return (Path(folder) / STUDY).is_file()


def entries(folder: Path) -> list[ListedRun]:
    """The runs of a study in order, checked: each once, and all inside its folder."""
    file = folder / STUDY
    try:
        listed = read_object(file, shapes.STUDY)["runs"]
    except Unreadable as error:
        raise _bad_study(file, f"{error.got}, expected {error.expected}") from None
    out = [ListedRun(e["federation"], e.get("variant", ""), folder / e["path"]) for e in listed]
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
        remedy="run the study again: complete runs are kept",
    )


# -- which runs a path means -----------------------------------------------------------------------


def is_run(folder: Path) -> bool:
    """Whether a folder is a run, an audited trace or a study."""
    marks = (STUDY, "run.json", AUDITED, "seal.json")
    return any((folder / mark).is_file() for mark in marks)


def runs_below(folder: Path) -> list[Path]:
    """The runs and studies right below a folder that is neither, oldest first."""
    if not folder.is_dir() or is_run(folder) or is_trace(folder):
        return []
    found = [f for f in folder.iterdir() if f.is_dir() and is_run(f)]
    return sorted(found, key=lambda f: (_recorded(f), f.name))


def is_trace(folder: Path) -> bool:
    return (folder / "manifest.json").is_file()


def _recorded(folder: Path) -> float:
    """When a run began, by the times of its files; by name for copies that kept no times."""
    marks = (STUDY, "run.json", AUDITED)
    return min((f.stat().st_mtime for m in marks if (f := folder / m).is_file()), default=0.0)


def runs_at(place: str | os.PathLike[str]) -> list[Path]:
    """The runs and studies that a path means.

    A run or a study means itself. Its trace, truth, results or report means the run. Any other
    folder means the runs and studies right below it. A path that is none of these is returned as
    it is, for its reader to refuse.
    """
    given = Path(place)
    if is_run(given):
        return [given]
    inside = given.name in (*OWN_FOLDERS, *OWN_FILES)
    if inside and given.exists() and is_run(given.resolve().parent):
        return [given.parent]
    return runs_below(given) or [given]


def run_at(place: str | os.PathLike[str], verb: str) -> Path:
    """The one run or study that a path means; several are refused, with `verb` for each."""
    return _only(place, runs_at(place), verb, "one run or study")


def recordings_at(place: str | os.PathLike[str]) -> list[Path]:
    """The folders with a recording that a path means: a trace, a run, those of a study, or of every
    run below a folder. The folder of an audited trace means the trace."""
    given = Path(place)
    if is_trace(given):
        return [given]
    found = []
    for run in runs_at(given):
        if is_study(run) and not (run / "trace").is_dir():
            found += [e.path for e in entries(run)]
        elif (run / AUDITED).is_file() and not (run / "trace").is_dir():
            found.append(places(run)[0])
        else:
            found.append(run)
    return found


def recording_at(place: str | os.PathLike[str], verb: str) -> Path:
    """The one recording that a path means; several are refused, with `verb` for each."""
    return _only(place, recordings_at(place), verb, "one recording, or the run that holds it")


def _only(place: str | os.PathLike[str], found: list[Path], verb: str, expected: str) -> Path:
    if len(found) == 1:
        return found[0]
    raise UsageError(
        f"{place} holds several runs",
        expected=expected,
        got=", ".join(map(str, found[:MOST_NAMED]))
        + (f" and {len(found) - MOST_NAMED} more" if found[MOST_NAMED:] else ""),
        remedy=f"name one of them: fedaudit {verb} {found[0]}",
    )


MOST_NAMED = 8
OWNER_FILE = "owner.json"
"""What the owner of marks is given: p-values alone."""

OWN_FOLDERS = ("trace", "truth", "checkpoint", "results")
OWN_FILES = (
    "run.json", "config.toml", "seal.json", "signature.json", "findings.json", "results.json",
    "report.html", "report.md", "allocation.json", "promised.json", "cell.json",
    "purged.json", OWNER_FILE,
)  # fmt: skip


FRESH_MARK = "fresh.part"
"""Marks a folder that is being cleared, until a run or study claims it again."""


def not_ours(folder: Path) -> list[Path]:
    """Files in a folder that no run or study has claimed; empty for a claimed folder."""
    marks = (FRESH_MARK, "seal.json", STUDY)
    if not folder.exists() or any((folder / mark).exists() for mark in marks):
        return []
    return [f for f in folder.iterdir() if f.suffix != ".part"]


def clear(folder: Path) -> None:
    """Remove fedaudit's files from the folder of a run, an audited trace or a study.

    The user's own files stay, and other folders are left alone. An interrupted clear can be
    repeated.
    """
    marks = (FRESH_MARK, STUDY, AUDITED, "run.json", "seal.json")
    if not any((folder / mark).exists() for mark in marks):
        return
    (folder / FRESH_MARK).touch()
    if (folder / STUDY).exists():
        for inner in sorted(f for f in folder.iterdir() if f.is_dir() and not f.is_symlink()):
            clear(inner)
            with contextlib.suppress(OSError):
                (inner / FRESH_MARK).unlink(missing_ok=True)
                inner.rmdir()  # fails if the user's own files are in it
    for name in OWN_FOLDERS:
        if (folder / name).is_dir() and not (folder / name).is_symlink():
            shutil.rmtree(folder / name)
    for name in (*OWN_FILES, AUDITED, STUDY):
        (folder / name).unlink(missing_ok=True)


def claimed(folder: Path) -> None:
    """Mark a cleared folder as belonging to a run or study again."""
    (folder / FRESH_MARK).unlink(missing_ok=True)


def places(folder: Path) -> tuple[Path, Path]:
    """Paths of a run's trace and truth: inside the folder, or as audit.json says."""
    about = _audited(folder)
    return folder / about.get("trace", "trace"), folder / about.get("truth", "truth")


def _audited(folder: Path) -> dict[str, Any]:
    try:
        return read_object(folder / AUDITED, shapes.AUDITED)
    except Unreadable as error:
        if error.absent:
            return {}
        raise


@dataclass(frozen=True)
class AuditCommand:
    """A command that audits a stored trace, and the audits that it ran."""

    command: str
    audits: tuple[str, ...]


def commands(folder: Path) -> list[AuditCommand]:
    """The commands that produced the results of a folder, oldest first; empty if not stored."""
    stored = _audited(folder).get("done_by", [])
    return [AuditCommand(c["command"], tuple(c["audits"])) for c in stored]


def commands_but(folder: Path, audits: Collection[str]) -> list[AuditCommand]:
    """The stored commands without `audits`, which a later command ran again."""
    out = []
    for c in commands(folder):
        left = tuple(a for a in c.audits if a not in audits)
        if left:
            out.append(AuditCommand(c.command, left))
    return out


def config_text(folder: Path) -> str:
    """The public settings of a run as TOML; empty for a foreign trace."""
    return read_text(folder / "config.toml") if config_of(folder) else ""


def config_of(folder: Path) -> dict[str, Any]:
    """The public settings of a run as plain values. An unreadable file is an error."""
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
