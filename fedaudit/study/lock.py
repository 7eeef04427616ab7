"""One process at work in a folder: the second one is told, and told which the first is.

The lock is a small file with a process number. It is in nobody's way once that process is gone,
however it ended: a run that was killed resumes as ever. Where a folder cannot be written there is
nothing to guard, and whoever writes next says what is wrong.
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
"""Its ending is that of files under way: a folder that holds nothing else counts as empty."""


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Hold `folder` for this process; raises a UsageError while another one does."""
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
                    folder.rmdir()  # nothing was begun; refused where anything lies in it


@contextmanager
def alone_in_run(folder: Path) -> Iterator[None]:
    """Hold a run; one of a study together with the study, whose lock its command holds."""
    above = folder.resolve().parent
    with alone_in(above) if is_study(above) else nullcontext(), alone_in(folder):
        yield


def _take(folder: Path, file: Path) -> bool:
    """Whether the lock was written; False where it cannot be."""
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
                os.link(own, file)  # complete from its first moment, and only if none is there
                return True
            except FileExistsError:
                if _is_alive(found := _read(file)):
                    raise UsageError(
                        f"another process is at work in {folder}",
                        expected="one run at a time in a folder",
                        got=f"process {found['pid']} on {found.get('host') or 'this machine'}",
                        remedy="wait for it, or choose another folder with --out; if no such "
                        f"process is left there, remove {file}",
                    ) from None
                try:
                    file.unlink(missing_ok=True)
                except OSError as error:
                    raise UsageError(
                        f"{file} is in the way",
                        expected="a lock that can be removed, or none",
                        got=error.strerror or str(error),
                        remedy="remove it, or choose another folder with --out",
                    ) from None
            except OSError:
                return False  # a file system without links: no lock, as before
        return False
    finally:
        with contextlib.suppress(OSError):
            own.unlink()


def _read(file: Path) -> dict[str, Any]:
    """What a lock says; nothing where it is torn: whoever wrote it links whole ones only."""
    try:
        return read_object(file, shapes.LOCK, limit=4096)
    except Unreadable:
        return {}


def _is_alive(found: dict[str, Any]) -> bool:
    """Whether the process that wrote a lock is still there; of another machine, it may be."""
    pid = found.get("pid")
    if pid is None or os.name != "posix":
        return False
    if found.get("host") not in (None, platform.node()):
        return True
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False  # no process has a number that large
    except OSError:
        pass  # somebody else's: it is there
    # numbers are given again, times of birth are not
    return found.get("began") is None or found["began"] == _began(pid)


def _began(pid: int) -> int | None:
    """When a process began, in ticks since the machine did; None where that cannot be known."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as stream:
            return int(stream.read().rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None
