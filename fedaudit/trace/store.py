"""Round files: safetensors, written once, hashed on the way, read through memory maps.

The container is the public safetensors format (8 bytes of header length, a JSON header, raw
little-endian data), written here by hand so that hashing runs beside writing and nothing is copied;
the safetensors library reads the same files. Each layout is one tensor of shape (rows, width); the
message table is the header's metadata entry "messages".
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from queue import Queue
from typing import Any

import numpy as np
import numpy.typing as npt

from fedaudit.errors import IntegrityError
from fedaudit.trace.schema import Message, RoundFile, messages_from_json, messages_to_json

Rows = npt.NDArray[Any]

_TO_SAFETENSORS = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint64": "U64",
    "uint32": "U32",
    "uint16": "U16",
    "uint8": "U8",
    "bool": "BOOL",
}
_FROM_SAFETENSORS = {v: k for k, v in _TO_SAFETENSORS.items()}
DTYPES = tuple(_TO_SAFETENSORS)
_CHUNK = 4 << 20


def round_name(number: int) -> str:
    return f"round-{number:05d}.safetensors"


def write_atomically(path: Path, text: str) -> None:
    """Replace a small file in one step: a reader sees the old one or the new one."""
    temporary = path.with_name(path.name + ".part")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)


def write_blocks(
    path: Path,
    blocks: Mapping[str, Sequence[Rows]],
    metadata: Mapping[str, str],
) -> RoundFile:
    """Write blocks (each a list of (n, width) pieces of one dtype) to `path` in one pass.

    The file appears under its name only when it is whole.
    """
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    at = 0
    pieces: list[Rows] = []
    for name, rows in blocks.items():
        dtype, width = rows[0].dtype.name, rows[0].shape[1]
        count = sum(len(r) for r in rows)
        size = count * width * rows[0].dtype.itemsize
        header[name] = {
            "dtype": _TO_SAFETENSORS[dtype],
            "shape": [count, width],
            "data_offsets": [at, at + size],
        }
        at += size
        pieces.extend(np.ascontiguousarray(r) for r in rows)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the data starts aligned
    prefix = struct.pack("<Q", len(text)) + text

    digest = hashlib.sha256(prefix)
    chunks = [
        view[i : i + _CHUNK]
        for piece in pieces
        if piece.size
        for view in [piece.reshape(-1).view(np.uint8).data]
        for i in range(0, piece.nbytes, _CHUNK)
    ]
    temporary = path.with_name(path.name + ".part")
    if at <= _CHUNK:
        # a thread costs more than it saves on a small round
        with open(temporary, "wb") as file:
            file.write(prefix)
            for chunk in chunks:
                file.write(chunk)
                digest.update(chunk)
    else:
        _write_while_hashing(temporary, prefix, chunks, digest)
    os.replace(temporary, path)
    return RoundFile(path.name, digest.hexdigest(), len(prefix) + at)


def _write_while_hashing(path: Path, prefix: bytes, chunks: list[memoryview], digest: Any) -> None:
    """Hashing and writing both release the interpreter lock: run them side by side."""
    queue: Queue[memoryview | None] = Queue()

    def consume() -> None:
        while (chunk := queue.get()) is not None:
            digest.update(chunk)

    worker = threading.Thread(target=consume, daemon=True)
    worker.start()
    try:
        with open(path, "wb", buffering=0) as file:
            file.write(prefix)
            for chunk in chunks:
                queue.put(chunk)
                done = 0
                while done < len(chunk):
                    done += file.write(chunk[done:])
    finally:
        queue.put(None)
        worker.join()


def write_round(
    path: Path, blocks: Mapping[str, Sequence[Rows]], messages: Sequence[Message]
) -> RoundFile:
    """Write one round: its payload blocks and its message table."""
    return write_blocks(path, blocks, {"messages": messages_to_json(list(messages))})


def _refuse(path: Path, expected: str, got: str) -> IntegrityError:
    return IntegrityError(
        f"{path.name} is torn or altered, and was not read",
        expected=expected,
        got=got,
        remedy="restore this file from a copy, or resume the run that wrote it",
    )


def verify(path: Path, expected: RoundFile) -> None:
    """Compare a file with the size and hash the manifest states."""
    if not path.is_file():
        raise _refuse(path, f"a file of {expected.size} bytes", "no such file")
    size = path.stat().st_size
    if size != expected.size:
        raise _refuse(path, f"{expected.size} bytes", f"{size} bytes")
    digest = hashlib.sha256()
    with open(path, "rb", buffering=0) as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    if digest.hexdigest() != expected.sha256:
        raise _refuse(path, f"sha256 {expected.sha256}", f"sha256 {digest.hexdigest()}")


class RoundReader:
    """One round file, memory-mapped: rows are read when they are touched."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            size = path.stat().st_size
            with open(path, "rb") as file:
                (length,) = struct.unpack("<Q", file.read(8))
                if length > size - 8:
                    raise ValueError("the header is longer than the file")
                header = json.loads(file.read(length))
            start = 8 + length
            metadata = header.pop("__metadata__", {})
            self.blocks: dict[str, Rows] = {}
            data = np.memmap(path, mode="r", dtype=np.uint8)
            for name, entry in header.items():
                low, high = entry["data_offsets"]
                if start + high > size:
                    raise ValueError(f"block {name!r} ends past the file")
                dtype = _FROM_SAFETENSORS[entry["dtype"]]
                raw = data[start + low : start + high].view(dtype)
                self.blocks[name] = raw.reshape(entry["shape"]).view(np.ndarray)
            self.metadata: dict[str, str] = metadata
        except FileNotFoundError:
            raise _refuse(path, "a round file", "no such file") from None
        except (struct.error, ValueError, KeyError, TypeError, OSError) as error:
            raise _refuse(path, "a whole safetensors file", str(error)) from None

    @property
    def messages(self) -> tuple[Message, ...]:
        try:
            return messages_from_json(self.metadata["messages"])
        except (KeyError, ValueError, TypeError) as error:
            raise _refuse(self.path, "a message table in the header", str(error)) from None
