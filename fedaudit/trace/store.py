"""Round files: safetensors, written once, hashed on the way, read through memory maps.

The container is the public safetensors format: 8 bytes of header length, a JSON header, raw
little-endian data. This module writes it directly, to hash while writing and to copy nothing; the
safetensors library reads the same files. Each layout is one tensor of shape (rows, width); the
message table is the header's metadata entry "messages".
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import struct
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from queue import Queue
from typing import Any

import numpy as np

from fedaudit.arrays import AnyRows
from fedaudit.errors import IntegrityError, TraceError
from fedaudit.files import (
    FREE_SPACE,
    Unreadable,
    opened,
    parse_json,
    read_text,
    replacing,
    sha256_of,
    write_all,
    writing,
)
from fedaudit.trace.schema import (
    DTYPES,
    Manifest,
    Message,
    RoundFile,
    messages_from_json,
    messages_to_json,
)

_FROM_SAFETENSORS = {v: k for k, v in DTYPES.items()}
#: the safetensors library refuses a longer header
_LONGEST_HEADER = 100_000_000
_CHUNK = 4 << 20


def round_name(number: int) -> str:
    return f"round-{number:05d}.safetensors"


def sketch_seed_file(trace: Path) -> Path:
    """Where a recording that may be continued keeps the seed of its sketch: beside the trace, since
    whoever has the seed can undo part of the projection."""
    folder = trace.resolve()
    return folder.with_name(f"{folder.name}.sketch-seed")


def write_blocks(
    path: Path,
    blocks: Mapping[str, Sequence[AnyRows]],
    metadata: Mapping[str, str],
    *,
    private: bool = False,
) -> RoundFile:
    """Write blocks (each a list of (n, width) pieces of one dtype) to `path` in one pass.

    The file gets its name only when it is complete on disk; a failed write leaves nothing. Only the
    owner can read a private file.
    """
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    at = 0
    pieces: list[AnyRows] = []
    for name, rows in blocks.items():
        dtype, width = rows[0].dtype.name, rows[0].shape[1]
        count = sum(len(r) for r in rows)
        size = count * width * rows[0].dtype.itemsize
        header[name] = {
            "dtype": DTYPES[dtype],
            "shape": [count, width],
            "data_offsets": [at, at + size],
        }
        at += size
        pieces.extend(np.ascontiguousarray(r) for r in rows)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the data starts aligned
    if len(text) > _LONGEST_HEADER:
        raise TraceError(
            f"{path.name} has too many messages for one file",
            expected=f"a header of at most {_LONGEST_HEADER:,} bytes",
            got=f"{len(text):,} bytes",
            remedy="record more rounds with fewer messages each",
        )
    prefix = struct.pack("<Q", len(text)) + text

    digest = hashlib.sha256(prefix)
    chunks = [
        view[i : i + _CHUNK]
        for piece in pieces
        if piece.size
        for view in [piece.reshape(-1).view(np.uint8).data]
        for i in range(0, piece.nbytes, _CHUNK)
    ]
    room = f"a folder with room for {len(prefix) + at:,} bytes"
    with (
        writing(path, expected=room, remedy=FREE_SPACE),
        replacing(path, private=private) as descriptor,
    ):
        write_all(descriptor, prefix)
        if at <= _CHUNK:
            # for a small round, a thread costs more than it saves
            for chunk in chunks:
                write_all(descriptor, chunk)
                digest.update(chunk)
        else:
            _write_while_hashing(descriptor, chunks, digest)
    return RoundFile(path.name, digest.hexdigest(), len(prefix) + at)


def _write_while_hashing(descriptor: int, chunks: list[memoryview], digest: Any) -> None:
    """Hash and write in parallel: both release the interpreter lock."""
    queue: Queue[memoryview | None] = Queue()

    def consume() -> None:
        while (chunk := queue.get()) is not None:
            digest.update(chunk)

    worker = threading.Thread(target=consume, daemon=True)
    worker.start()
    try:
        for chunk in chunks:
            queue.put(chunk)
            write_all(descriptor, chunk)
    finally:
        queue.put(None)
        worker.join()


def write_round(
    path: Path, blocks: Mapping[str, Sequence[AnyRows]], messages: Sequence[Message]
) -> RoundFile:
    """Write one round: its payload blocks and its message table."""
    return write_blocks(path, blocks, {"messages": messages_to_json(list(messages))})


def read_manifest(file: Path) -> tuple[Manifest, str]:
    """The manifest and its seal, checked."""
    text = read_text(file, empty=False)
    return Manifest.from_json(text, str(file))


def _refuse(path: Path, expected: str, got: str) -> IntegrityError:
    return IntegrityError(
        f"{path.name} is torn or altered, and was not read",
        expected=expected,
        got=got,
        remedy="restore this file from a copy, or record again",
    )


#: state of a file without reading it: device, inode, size, modification time
Stamp = tuple[int, int, int, int]


def stamp(path: Path) -> Stamp:
    s = path.stat()
    return (s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns)


def verify(path: Path, expected: RoundFile, *, hashed: bool = True) -> Stamp:
    """Compare a file with its size and, if `hashed`, its hash in the manifest; returns its state
    before reading."""
    try:
        if not path.is_file():
            raise _refuse(path, f"a file of {expected.size} bytes", "no such file")
        before = stamp(path)
        if before[2] != expected.size:
            raise _refuse(path, f"{expected.size} bytes", f"{before[2]} bytes")
        found = sha256_of(path) if hashed else expected.sha256
    except Unreadable as error:
        raise _refuse(path, error.expected or "", error.got or "") from None
    except OSError as error:
        raise _refuse(path, "a readable file", error.strerror or str(error)) from None
    if found != expected.sha256:
        raise _refuse(path, f"sha256 {expected.sha256}", f"sha256 {found}")
    return before


def touched_since(
    folder: Path, entries: Iterable[RoundFile], before: Mapping[str, Stamp]
) -> tuple[RoundFile, ...]:
    """Files of a folder that are missing, new or changed since their state was taken."""
    return tuple(
        e
        for e in entries
        if not (folder / e.file).is_file() or stamp(folder / e.file) != before.get(e.file)
    )


class RoundReader:
    """One safetensors file, memory-mapped: rows are read when they are touched.

    `blocks` maps a name to (n, width), read-only; `metadata` maps a name to text. The file must
    match its header exactly: blocks end to end, without gap, overlap or extra bytes.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.blocks: dict[str, AnyRows] = {}
        try:
            with opened(path) as descriptor, open(descriptor, "rb", closefd=False) as file:
                size = os.fstat(file.fileno()).st_size
                (length,) = struct.unpack("<Q", file.read(8))
                if length > min(size - 8, _LONGEST_HEADER):
                    raise ValueError(f"a header of {length} bytes in a file of {size}")
                header = parse_json(file.read(length))
                if not isinstance(header, dict):
                    raise ValueError("the header is not an object")
                self.metadata: dict[str, str] = _texts(header.pop("__metadata__", {}))
                self._map(file.fileno(), header, 8 + length, size)
        except Unreadable as error:
            raise _refuse(path, error.expected or "", error.got or "") from None
        except (struct.error, ValueError, KeyError, TypeError, OSError) as error:
            raise _refuse(path, "a whole safetensors file", str(error)) from None

    def _map(self, descriptor: int, header: dict[str, Any], start: int, size: int) -> None:
        found = []
        for name, entry in header.items():
            dtype, shape = _FROM_SAFETENSORS.get(entry["dtype"]), entry["shape"]
            offsets = entry["data_offsets"]
            if dtype is None:
                raise ValueError(f"block {name!r} is of unknown dtype {entry['dtype']!r}")
            for what, pair in (("shape", shape), ("data_offsets", offsets)):
                whole = isinstance(pair, list) and all(type(n) is int and n >= 0 for n in pair)
                if not whole or len(pair) != 2:
                    raise ValueError(f"block {name!r} has {what} {pair!r}")
            low, high = offsets
            if high - low != shape[0] * shape[1] * np.dtype(dtype).itemsize:
                raise ValueError(f"block {name!r} of {dtype} {shape} has {high - low} bytes")
            found.append((low, high, name, dtype, shape))
        at = 0
        for low, high, name, _, _ in sorted(found):
            if low != at:
                raise ValueError(f"block {name!r} starts at byte {low}, not at {at}")
            at = high
        if start + at != size:
            raise ValueError(f"{start + at} bytes according to the header, {size} in the file")
        data = np.frombuffer(mmap.mmap(descriptor, size, access=mmap.ACCESS_READ), dtype=np.uint8)
        for low, high, name, dtype, shape in found:
            raw = data[start + low : start + high]
            self.blocks[name] = raw.view(dtype).reshape(shape)

    @property
    def messages(self) -> tuple[Message, ...]:
        try:
            return messages_from_json(self.metadata["messages"])
        except (KeyError, ValueError, TypeError) as error:
            raise _refuse(self.path, "a message table in the header", str(error)) from None


def _texts(metadata: Any) -> dict[str, str]:
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise ValueError("__metadata__ is not an object of texts")
    return metadata
