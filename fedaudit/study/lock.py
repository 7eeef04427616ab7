"""Folder lock: a second process is refused with the first one's pid.

The lock is a small file with a process id. It stops counting once that process is gone, so a killed
run can resume. A folder that cannot be written gets no lock; the next write reports the error.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from fedaudit import shapes
from fedaudit.errors import UsageError
from fedaudit.files import Unreadable, read_object
from fedaudit.study.folders import is_study

LOCK = "running.part"
"""Ends in .part like unfinished files: a folder with nothing else counts as empty."""


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Lock `folder` for this process; raise a UsageError while another process holds it."""
    made = not folder.exists()
    file = folder / LOCK
    held = _take(folder, file)
    try:
        yield
    finally:
        if held:
            with contextlib.suppress(OSError):
                file.unlink()
            if made:
                with contextlib.suppress(OSError):
                    folder.rmdir()  # nothing was begun; fails if the folder holds files


@contextmanager
def alone_in_run(folder: Path) -> Iterator[None]:
    """Lock a run; for a run of a study, lock the study too."""
    above = folder.resolve().parent
    with alone_in(above) if is_study(above) else nullcontext(), alone_in(folder):
        yield


def _take(folder: Path, file: Path) -> bool:
    """Write the lock; False if the folder does not allow it."""
    mine = {"pid": os.getpid(), "began": _began(os.getpid()), "host": platform.node()}
    own = folder / f"running-{os.getpid()}.part"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        own.write_text(json.dumps(mine) + "\n", encoding="utf-8")
    except OSError:
        return False
    try:
        for _ in range(2):
            try:
                os.link(own, file)  # atomic: complete at once, and fails if a lock exists
                return True
            except FileExistsError:
                if _is_alive(found := _read(file)):
                    raise UsageError(
                        f"another process is at work in {folder}",
                        expected="one run at a time in a folder",
                        got=f"process {found['pid']} on {found.get('host') or 'this machine'}",
                        remedy="wait for it, or choose another folder with `out`; if that process "
                        f"is gone, remove {file}",
                    ) from None
                try:
                    file.unlink(missing_ok=True)
                except OSError as error:
                    raise UsageError(
                        f"{file} is in the way",
                        expected="a lock that can be removed, or none",
                        got=error.strerror or str(error),
                        remedy="remove it, or choose another folder with `out`",
                    ) from None
            except OSError:
                return False  # a file system without links: no lock
        return False
    finally:
        with contextlib.suppress(OSError):
            own.unlink()


def _read(file: Path) -> dict[str, Any]:
    """The contents of a lock; empty if it is torn, since fedaudit links only complete locks."""
    try:
        return read_object(file, shapes.LOCK, limit=4096)
    except Unreadable:
        return {}


def _is_alive(found: dict[str, Any]) -> bool:
    """Whether the process that wrote a lock may still run; on another machine, it may."""
    pid = found.get("pid")
    if pid is None or os.name != "posix":
        return False
    if found.get("host") not in (None, platform.node()):
        return True
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False  # overflow: no process has an id that large
    except OSError:
        pass  # another user's process: it exists
    # process ids are reused, start times are not
    return found.get("began") is None or found["began"] == _began(pid)


def _began(pid: int) -> int | None:
    """Start time of a process in ticks since boot; None if it cannot be known."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as stream:
            return int(stream.read().rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None
