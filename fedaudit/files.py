"""Read untrusted files; write files that survive a power cut.

All reading of JSON, TOML, text, NPZ and gzip happens here and follows one rule: a regular file,
below a size limit, below a nesting depth, with the types of its kind (`shapes`). Anything else
raises `Unreadable`, which states what was expected and what was found; callers may catch it and
raise another class.

Writing flushes the content to disk before it gives the file its name, and flushes the name before
it returns. Only the owner can read a private file, whatever the umask.
"""

from __future__ import annotations

import contextlib
import errno
import gzip
import hashlib
import io
import json
import math
import os
import stat
import struct
import sys
import tomllib
import zipfile
import zlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from fedaudit.errors import ConfigError, FedauditError, IntegrityError, TraceError
from fedaudit.rows import memory
from fedaudit.shapes import Shape, misfit

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

if TYPE_CHECKING:
    import numpy.typing as npt

LARGEST = 256 << 20
"""Largest file that is read whole, in bytes."""

DEEPEST = 100
"""Deepest nesting allowed in JSON and TOML."""

MOST_BYTES = "FEDAUDIT_MOST_BYTES"
"""Environment variable: size limit of data files in bytes, packed and unpacked."""
RATIO = 100
"""An archive may unpack to this multiple of its size, and always to one gigabyte."""
MEMBERS = 10_000
"""Most arrays in one NPZ file."""
_GIGABYTE = 1 << 30
_CHUNK = 1 << 20

E = TypeVar("E", bound=FedauditError)


class Unreadable(IntegrityError):
    """A file that is absent, not regular, too large, or of the wrong content.

    `absent`: no such file. `empty`: zero bytes, as a power cut during writing leaves it.
    """

    absent = False
    empty = False

    def as_error(self, kind: type[E], what: str = "", remedy: str | None = None) -> E:
        """The same facts as an error of class `kind`."""
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
    """Read-only descriptor of a regular file; refuses pipes and devices without blocking."""
    file = Path(path)
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0))
    except (FileNotFoundError, NotADirectoryError):
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
        size = os.fstat(descriptor).st_size
        try:
            # read by size, not by limit: that would reserve a buffer as large as the limit
            raw = b"" if size > limit else _read_up_to(stream, limit, size)
        except OSError as error:
            got = error.strerror or str(error)
            raise unreadable(file, "a readable file", got) from None
    if max(size, len(raw)) > limit:
        raise _too_large(file, limit, "more" if len(raw) > limit else f"{size:,} bytes")
    return raw


def _read_up_to(stream: Any, limit: int, size: int = 0) -> bytes:
    """Read a stream whole, but stop just past `limit` bytes."""
    raw: bytes = stream.read(min(size, limit) + 1)
    pieces = [raw]
    while raw and (done := sum(map(len, pieces))) <= limit:
        raw = stream.read(min(_CHUNK, limit + 1 - done))
        pieces.append(raw)
    return b"".join(pieces)


def _too_large(path: Path, limit: int, got: str, *, packed: bool = False) -> Unreadable:
    what = f"at most {limit:,} bytes" + (" when unpacked" if packed else "")
    remedy = "check that this is the right file"
    if packed or limit != LARGEST:
        remedy += f"; if it is, raise the limit with {MOST_BYTES}=BYTES"
    return unreadable(path, what, got, remedy=remedy)


def most_bytes() -> int:
    """Size limit of a data file in bytes: `FEDAUDIT_MOST_BYTES`, or half of the memory.

    Never below `LARGEST` unless the environment variable says so.
    """
    said = os.environ.get(MOST_BYTES)
    if said is None:
        return max(memory() // 2, LARGEST)
    if not (said.isascii() and said.isdigit() and 0 < len(said) < 19):
        raise ConfigError(
            f"{MOST_BYTES} cannot be {said!r}",
            expected="a whole number of bytes",
            got=repr(said),
            remedy=f"{MOST_BYTES}=8000000000",
        )
    return int(said)


def _most_unpacked(packed: int) -> int:
    """Unpacked size limit of an archive of `packed` bytes."""
    if MOST_BYTES in os.environ:
        return most_bytes()
    return min(most_bytes(), max(_GIGABYTE, RATIO * packed))


def read_data(path: str | os.PathLike[str]) -> bytes:
    """All bytes of a data file, unpacked if its name ends in `.gz`."""
    file = Path(path)
    raw = read_bytes(file, limit=most_bytes())
    return gunzip(raw, file) if file.name.lower().endswith(".gz") else raw


def gunzip(raw: bytes, path: Path) -> bytes:
    """Content of a gzip file; refuses one that unpacks to far more than its size."""
    limit = _most_unpacked(len(raw))
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(raw)) as stream:
            out = _read_up_to(stream, limit)
    except (OSError, EOFError, zlib.error) as error:
        raise unreadable(
            path, "a complete gzip file", str(error), remedy="copy or download it again"
        ) from None
    if len(out) > limit:
        raise _too_large(path, limit, f"more, from {len(raw):,} bytes", packed=True)
    return out


def read_text(
    path: str | os.PathLike[str],
    *,
    limit: int = LARGEST,
    encoding: str = "utf-8",
    empty: bool = True,
) -> str:
    """All text of a regular file; `empty=False` refuses an empty file."""
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
    """Whether a file is missing or empty, as a power cut during writing leaves it."""
    try:
        return path.stat().st_size == 0
    except (OSError, ValueError):  # a name with a NUL is a ValueError
        return True


def sha256_of(path: str | os.PathLike[str]) -> str:
    """The SHA-256 of a regular file of any size, in hex."""
    with opened(path) as descriptor, open(descriptor, "rb", closefd=False) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def read_json(path: str | os.PathLike[str], *, limit: int = LARGEST) -> Any:
    """The value of a JSON file; refuses NaN, repeated keys and numbers beyond a float."""
    return _parsed(Path(path), limit, parse_json, "JSON")


def read_object(
    path: str | os.PathLike[str], shape: Shape = None, *, limit: int = LARGEST
) -> dict[str, Any]:
    """The object of a JSON file, checked against `shape` (see `shapes`)."""
    found = read_json(path, limit=limit)
    wrong = misfit(found, {} if shape is None else shape)
    if wrong is not None:
        raise unreadable(Path(path), wrong.expected, wrong.got)
    assert isinstance(found, dict)
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


def parse_json(text: str | bytes, *, nan: bool = False) -> Any:
    """Parse strict JSON: no repeated keys, no whole number beyond 64 bits, NaN only with `nan`.

    Raises ValueError for anything else.
    """
    try:
        found = json.loads(
            text,
            parse_constant=float if nan else _refuse_constant,
            parse_float=_finite,
            parse_int=_whole,
            object_pairs_hook=_refuse_repeats,
        )
    except RecursionError:
        raise ValueError("nested too deeply") from None
    _refuse_depth(found)
    if (b"\\ud" if isinstance(text, bytes) else "\\ud") in text.lower():  # type: ignore[operator]
        _refuse_halves(found)
    return found


def parse_toml(text: str) -> dict[str, Any]:
    """Parse TOML; raises ValueError for anything else."""
    try:
        found = tomllib.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    _refuse_depth(found)
    _refuse_large(found)
    return found


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not JSON")


def _finite(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise ValueError(f"the number {digits[:40]} is too large")
    return value


def _whole(digits: str) -> int:
    value = int(digits)
    if not -(1 << 63) <= value < 1 << 64:
        raise ValueError(f"the whole number {digits[:40]} is too large")
    return value


def _refuse_large(value: Any) -> None:
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            _refuse_large(inner)
    elif type(value) is int:
        _whole(str(value))


def is_text(text: str) -> bool:
    """Whether a text can be written as UTF-8; a lone surrogate cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _refuse_halves(value: Any) -> None:
    """Refuse a lone surrogate: it cannot be written to a file."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"a lone surrogate, {error.object[error.start]!a}") from None


def _refuse_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key appears twice")
    return found


def _refuse_depth(value: Any) -> None:
    """Refuse nesting too deep for recursive readers."""
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


# -- arrays ---------------------------------------------------------------------------------------

TORN: tuple[type[Exception], ...] = (
    zipfile.BadZipFile, zlib.error, struct.error, EOFError, KeyError, NotImplementedError, OSError,
    OverflowError, RuntimeError, SyntaxError, TypeError, ValueError,
)  # fmt: skip
"""Errors that reading a damaged archive can raise."""


def read_npz(
    path: str | os.PathLike[str], names: Collection[str] | None = None
) -> dict[str, npt.NDArray[Any]]:
    """The arrays of an NPZ file, or those among `names`; never opens a pickle.

    Checks the archive's own description before unpacking: number of arrays, total size, and for
    each array whether dtype and shape fit its bytes.
    """
    file = Path(path)
    with opened(file) as descriptor, open(descriptor, "rb", closefd=False) as stream:
        packed = os.fstat(descriptor).st_size
        if packed > (most := most_bytes()):
            raise _too_large(file, most, f"{packed:,} bytes")
        try:
            with zipfile.ZipFile(stream) as archive:
                members = _members(file, archive, packed)
                wanted = {k: m for k, m in members.items() if names is None or k in names}
                return {k: _array(file, archive, k, m) for k, m in wanted.items()}
        except TORN as error:
            if isinstance(error, MemoryError | RecursionError):
                raise
            got = str(error) or type(error).__name__
            raise unreadable(file, "a file written by numpy.savez", got, remedy=SAVE) from None


SAVE = "write it again with numpy.savez(path, x=..., y=...)"


def _members(file: Path, archive: zipfile.ZipFile, packed: int) -> dict[str, zipfile.ZipInfo]:
    listed = archive.infolist()
    if len(listed) > MEMBERS:
        raise unreadable(file, f"at most {MEMBERS:,} arrays", f"{len(listed):,}", remedy=SAVE)
    limit, whole = _most_unpacked(packed), sum(m.file_size for m in listed)
    if whole > limit:
        raise _too_large(file, limit, f"{whole:,} bytes, from {packed:,}", packed=True)
    out: dict[str, zipfile.ZipInfo] = {}
    for member in listed:
        key = member.filename.removesuffix(".npy")
        if key in out or key == member.filename:
            got = f"{member.filename!r}" + (" twice" if key in out else "")
            raise unreadable(file, "arrays with distinct names", got, remedy=SAVE)
        out[key] = member
    return out


WIDEST = 1 << 24
"""Largest entry of an array in bytes: a text of four million characters."""


def _array(file: Path, archive: zipfile.ZipFile, key: str, member: Any) -> npt.NDArray[Any]:
    """Read one array; refuses one whose header and bytes disagree."""
    import numpy as np
    from numpy.lib import format as npy

    with archive.open(member) as stream:
        version = npy.read_magic(stream)
        if version not in ((1, 0), (2, 0)):
            raise ValueError(f"array {key!r} has version {version}")
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, fortran, dtype = read(stream)
        if dtype.hasobject:
            raise unreadable(
                file,
                "numbers, or text of a fixed length (dtype U)",
                f"Python objects in array {key!r}, which can run code when they are opened",
                remedy=f"save it with {key}.astype(float) or {key}.astype(str)",
            )
        size = math.prod(shape) * dtype.itemsize
        held = member.file_size - stream.tell()
        if dtype.itemsize > WIDEST or min(shape, default=0) < 0 or size != held:
            raise unreadable(
                file,
                f"bytes that fit dtype and shape, at most {WIDEST:,} per entry",
                f"array {key!r} of dtype {dtype.str} and shape {shape}, {held:,} bytes",
                remedy=SAVE,
            )
        content = bytearray(size)
        view, done = memoryview(content), 0
        while done < size and (piece := stream.read(min(_CHUNK, size - done))):
            view[done : done + len(piece)] = piece
            done += len(piece)
        if done < size or stream.read(1):
            raise EOFError(f"array {key!r} is cut short or too long")
    flat = np.frombuffer(content, dtype=dtype, count=math.prod(shape))
    return flat.reshape(shape[::-1]).T if fortran else flat.reshape(shape)


# -- writing --------------------------------------------------------------------------------------

PRIVATE_FILE, PRIVATE_FOLDER = 0o600, 0o700


def make_folder(path: Path, *, private: bool = False) -> None:
    """Make a folder and its parents; `private` restricts it to its owner, even if it exists."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(mode=PRIVATE_FOLDER if private else 0o777, exist_ok=True)
    if private:
        path.chmod(PRIVATE_FOLDER)  # an existing one may be open to others


@contextmanager
def replacing(path: Path, *, private: bool = False) -> Iterator[int]:
    """Descriptor of a temporary file that replaces `path` when the block ends without error.

    Flushes the content to disk before the rename, and the rename before it returns.
    """
    temporary = path.with_name(path.name + ".part")
    mode = PRIVATE_FILE if private else 0o666
    # always a new file: an existing one may be a link to a user's file, or a pipe
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)
    temporary.unlink(missing_ok=True)
    try:
        descriptor = os.open(temporary, flags, mode)
        try:
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


def lock_file(descriptor: int) -> None:
    """Wait until no other process holds this file's lock; closing the file ends the lock."""
    if sys.platform == "win32":
        msvcrt.locking(descriptor, msvcrt.LK_LOCK, 1)
    else:
        fcntl.flock(descriptor, fcntl.LOCK_EX)


def sync_folder(path: Path) -> None:
    """Flush a folder's entries to disk, if the system supports it."""
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
    """Replace a small file in one step: readers see the old content or the new."""
    raw = content.encode() if isinstance(content, str) else content
    with replacing(path, private=private) as descriptor:
        write_all(descriptor, raw)


FREE_SPACE = "free some space, or choose another output folder"


@contextmanager
def writing(
    path: object,
    error: type[FedauditError] = TraceError,
    *,
    expected: str = "a folder that can be written",
    remedy: str = "choose another folder with `out`",
) -> Iterator[None]:
    """Raise `error` if the operating system refuses to write `path`."""
    try:
        yield
    except OSError as refused:
        got = refused.strerror or str(refused)
        raise error(f"cannot write {path}", expected=expected, got=got, remedy=remedy) from None
