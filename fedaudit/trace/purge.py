"""Remove a recording at the end of its retention, and leave a note about it.

Removes the manifest, the files it names, and the seed of a sketch. Other files in the folder stay
and are reported.
"""

from __future__ import annotations

import datetime
import os
from dataclasses import dataclass
from pathlib import Path

from fedaudit.codec import to_json
from fedaudit.errors import TraceError
from fedaudit.files import write_atomically
from fedaudit.trace.store import read_manifest, sketch_seed_file

NOTE = "purged.json"


@dataclass(frozen=True)
class Purged:
    """The removed files, and the files left in the folder."""

    path: Path
    files: tuple[str, ...]
    size: int
    left: tuple[str, ...]


def manifest_file(folder: Path) -> Path:
    """Path of the manifest in a trace folder."""
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
    """Remove one trace; leaves a note with its hash, purpose and the date."""
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
    # the note first: an interrupted purge can be repeated
    write_atomically(folder / NOTE, to_json(note) + "\n")
    for name in names:
        (folder / name).unlink(missing_ok=True)
    seed = sketch_seed_file(folder)
    if seed.is_file():
        size += seed.stat().st_size
        seed.unlink()
        names.append(seed.name)
    file.unlink()
    left = sorted(p.name for p in folder.iterdir() if p.name != NOTE)
    return Purged(folder, (*names, file.name), size, tuple(left))
