"""A recording has a purpose and an end: remove it, and leave a note that it was there.

Only files that the manifest names are removed, and the manifest itself. What else lies in the
folder stays, and is reported.
"""

from __future__ import annotations

import datetime
import json
import os
from dataclasses import dataclass
from pathlib import Path

from fedaudit.errors import TraceError
from fedaudit.files import write_atomically
from fedaudit.trace.store import read_manifest

NOTE = "purged.json"


@dataclass(frozen=True)
class Purged:
    """What was removed from a folder, and what else lies there."""

    path: Path
    files: tuple[str, ...]
    size: int
    left: tuple[str, ...]


def manifest_file(folder: Path) -> Path:
    """The manifest of the trace that a folder itself holds."""
    file = folder / "manifest.json"
    if not file.is_file():
        raise TraceError(
            f"{folder} holds no trace",
            expected="a folder with manifest.json",
            got="no such file" if folder.is_dir() else "no such folder",
            remedy="point to the folder of the trace itself",
        )
    return file


def purge(path: str | os.PathLike[str], today: datetime.date) -> Purged:
    """Remove one trace; a note with its hash, its purpose and the day stays."""
    folder = Path(path)
    file = manifest_file(folder)
    manifest, seal = read_manifest(file)
    names = [r.file for r in manifest.rounds]
    size = sum((folder / n).stat().st_size for n in names if (folder / n).is_file())
    note = {
        "purged": today.isoformat(),
        "trace_sha256": seal,
        "rounds": len(names),
        "purpose": manifest.purpose,
        "retention": manifest.retention,
    }
    # the note first: whoever is stopped in between finds both and can do it again
    write_atomically(folder / NOTE, json.dumps(note, indent=1) + "\n")
    for name in names:
        (folder / name).unlink(missing_ok=True)
    file.unlink()
    left = sorted(p.name for p in folder.iterdir() if p.name != NOTE)
    return Purged(folder, (*names, file.name), size, tuple(left))
