"""Read files that somebody else may have written; write files that survive a power cut.

Every small file (JSON, TOML, text, NPZ) is read here, by one rule: a regular file, not larger than
a stated limit, not nested deeper than a stated depth. Anything else is `Unreadable`, which says
what was expected and what was found. A caller that wants another class of error catches it.

Writing: the content is on the disk before it appears under its name, and so is the name before the
call returns. Private files are created for their owner alone, whatever the umask.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import math
import os
import stat
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from fedaudit.errors import FedauditError, IntegrityError

LARGEST = 256 << 20
"""Bytes of a file that is read whole."""

DEEPEST = 100
"""Levels of nesting in JSON and TOML."""

E = TypeVar("E", bound=FedauditError)


class Unreadable(IntegrityError):
    """A file that is absent, no regular file, too large, or not what its name says.

    `absent`: nothing is there. `empty`: zero bytes, as a power cut leaves a file that was being
    written.
    """

    absent = False
    empty = False

    def as_error(self, kind: type[E], what: str = "", remedy: str | None = None) -> E:
        """The same facts as an error of another kind."""
        return kind(
            what or self.what, expected=self.expected, got=self.got, remedy=remedy or self.remedy
        )


RESTORE = "restore the file from a copy, or write it again"


def unreadable(
    path: Path, expected: str, got: str, *, remedy: str = RESTORE, absent: bool = False
) -> Unreadable:
    error = Unreadable(f"{path} cannot be read", expected=expected, got=got, remedy=remedy)
    error.absent = absent
    return error


@contextmanager
def opened(path: str | os.PathLike[str]) -> Iterator[int]:
    """A descriptor of a regular file, read only. Never waits for a pipe, never reads a device."""
    file = Path(path)
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0))
    except FileNotFoundError:
        raise unreadable(file, "a file", "no such file", absent=True) from None
    except (OSError, ValueError) as error:  # a name with a NUL is a ValueError
        got = getattr(error, "strerror", None) or str(error)
        raise unreadable(file, "a readable file", got, remedy="check its permissions") from None
    try:
        if not stat.S_ISREG(mode := os.fstat(descriptor).st_mode):
            raise unreadable(file, "a regular file", _kind(mode), remedy="name the file itself")
        yield descriptor
    finally:
        os.close(descriptor)


def _kind(mode: int) -> str:
    kinds = {
        stat.S_IFDIR: "a folder",
        stat.S_IFIFO: "a pipe",
        stat.S_IFSOCK: "a socket",
        stat.S_IFCHR: "a device",
        stat.S_IFBLK: "a device",
    }
    return kinds.get(stat.S_IFMT(mode), "something else")


def read_bytes(path: str | os.PathLike[str], *, limit: int = LARGEST) -> bytes:
    """All bytes of a regular file of at most `limit` bytes."""
    file = Path(path)
    with opened(file) as descriptor, open(descriptor, "rb", closefd=False) as stream:
        try:
            raw = stream.read(limit + 1)
        except OSError as error:
            got = error.strerror or str(error)
            raise unreadable(file, "a readable file", got) from None
    if len(raw) > limit:
        raise unreadable(
            file, f"at most {limit:,} bytes", "more", remedy="see that this is the right file"
        )
    return raw


def read_text(
    path: str | os.PathLike[str],
    *,
    limit: int = LARGEST,
    encoding: str = "utf-8",
    empty: bool = True,
) -> str:
    """All text of a regular file; with `empty=False` there has to be some."""
    raw = read_bytes(path, limit=limit)
    if not raw and not empty:
        error = unreadable(Path(path), f"{encoding.upper()} text", "an empty file")
        error.empty = True
        raise error
    try:
        return raw.decode(encoding)
    except UnicodeDecodeError as error:
        got = f"byte 0x{raw[error.start]:02x} at position {error.start}"
        raise unreadable(Path(path), f"{encoding.upper()} text", got) from None


def is_lost(path: Path) -> bool:
    """Whether a file is gone or has no bytes, as a power cut leaves one that was being written."""
    try:
        return path.stat().st_size == 0
    except OSError:
        return True


def sha256_of(path: str | os.PathLike[str]) -> str:
    """The SHA-256 of a regular file of any size, in hex."""
    with opened(path) as descriptor, open(descriptor, "rb", closefd=False) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def read_json(path: str | os.PathLike[str], *, limit: int = LARGEST) -> Any:
    """The value of a JSON file: no NaN, no key twice, no number beyond a float."""
    return _parsed(Path(path), limit, parse_json, "JSON")


def read_object(path: str | os.PathLike[str], *, limit: int = LARGEST) -> dict[str, Any]:
    """The same where it has to be an object."""
    found = read_json(path, limit=limit)
    if not isinstance(found, dict):
        raise unreadable(Path(path), "a JSON object", type(found).__name__)
    return found


def read_toml(path: str | os.PathLike[str], *, limit: int = LARGEST) -> dict[str, Any]:
    """The values of a TOML file."""
    found: dict[str, Any] = _parsed(Path(path), limit, parse_toml, "TOML")
    return found


def _parsed(path: Path, limit: int, parse: Any, kind: str) -> Any:
    try:
        return parse(read_text(path, limit=limit, empty=False))
    except ValueError as error:
        raise unreadable(path, f"valid {kind}", str(error)) from None


def parse_json(text: str | bytes) -> Any:
    """JSON as the standard has it: no NaN, no repeated keys; ValueError for anything else."""
    try:
        found = json.loads(
            text,
            parse_constant=_refuse_constant,
            parse_float=_finite,
            object_pairs_hook=_refuse_repeats,
        )
    except RecursionError:
        raise ValueError("nested too deeply") from None
    _refuse_depth(found)
    return found


def parse_toml(text: str) -> dict[str, Any]:
    """TOML; ValueError for anything else, however it fails."""
    try:
        found = tomllib.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    _refuse_depth(found)
    return found


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not JSON")


def _finite(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise ValueError(f"the number {digits[:40]} is too large")
    return value


def _refuse_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands twice")
    return found


def _refuse_depth(value: Any) -> None:
    """Refuse what a later reader that recurses could not walk through."""
    level = [value]
    for _ in range(DEEPEST):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return
    raise ValueError(f"nested more than {DEEPEST} levels deep")


# -- writing --------------------------------------------------------------------------------------

PRIVATE_FILE, PRIVATE_FOLDER = 0o600, 0o700


def make_folder(path: Path, *, private: bool = False) -> None:
    """Make a folder and those above it; a private one is its owner's alone, also if it exists."""
    path.mkdir(parents=True, exist_ok=True)
    if private:
        path.chmod(PRIVATE_FOLDER)


@contextmanager
def replacing(path: Path, *, private: bool = False) -> Iterator[int]:
    """A descriptor to write; what was written appears as `path` when the block ends well.

    The content is flushed to the disk before the name changes, and the name after.
    """
    temporary = path.with_name(path.name + ".part")
    mode = PRIVATE_FILE if private else 0o666
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    try:
        descriptor = os.open(temporary, flags, mode)
        try:
            if private:
                os.fchmod(descriptor, PRIVATE_FILE)  # one that was left over may be open to others
            yield descriptor
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Flush a folder's names to the disk, where the system can."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):
            raise
    finally:
        os.close(descriptor)


def write_all(descriptor: int, content: bytes | memoryview) -> None:
    """Write every byte."""
    view = memoryview(content)
    done = 0
    while done < len(view):
        done += os.write(descriptor, view[done:])


def write_atomically(path: Path, content: str | bytes, *, private: bool = False) -> None:
    """Replace a small file in one step: a reader sees the old one or the new one."""
    raw = content.encode() if isinstance(content, str) else content
    with replacing(path, private=private) as descriptor:
        write_all(descriptor, raw)
