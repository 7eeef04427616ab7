"""Change a trace or a truth, and then recompute every hash: only deeper checks can notice."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path
from random import Random
from typing import Any

from fuzz.mutate import BYTES, altered

UNSEALED = "0" * 64


def split(raw: bytes) -> tuple[dict[str, Any], bytes]:
    """Header and data of a safetensors file."""
    (length,) = struct.unpack("<Q", raw[:8])
    return json.loads(raw[8 : 8 + length]), raw[8 + length :]


def joined(header: Any, data: bytes) -> bytes:
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def _inner(raw: bytes, key: str, rng: Random) -> tuple[bytes, str]:
    """A round's file with another table, header or payload."""
    header, data = split(raw)
    how = rng.choice(("table", "table", "header", "payload"))
    if how == "table":
        header["__metadata__"][key] = json.dumps(
            altered(json.loads(header["__metadata__"][key]), rng)
        )
    elif how == "header":
        header = altered(header, rng)
    else:
        data = rng.choice(BYTES)(data, rng, raw)
        if rng.randrange(2):  # numbers that are none
            data = b"\x00\x00\xc0\x7f" * (len(data) // 4)
    return joined(header, data), how


def seal(manifest: Any) -> str:
    if isinstance(manifest, dict):
        manifest["sha256"] = UNSEALED
    text = json.dumps(manifest, indent=1, sort_keys=True) + "\n"
    return text.replace(UNSEALED, hashlib.sha256(text.encode()).hexdigest())


def trace(folder: Path, rng: Random) -> str:
    """Change the manifest or a round of a trace, then seal it again."""
    file = folder / "manifest.json"
    manifest = json.loads(file.read_text())
    if rng.randrange(2):
        entry = rng.choice(manifest["rounds"])
        raw, how = _inner((folder / entry["file"]).read_bytes(), "messages", rng)
        (folder / entry["file"]).write_bytes(raw)
        entry |= {"sha256": hashlib.sha256(raw).hexdigest(), "size": len(raw)}
    else:
        manifest, how = altered(manifest, rng), "manifest"
    file.write_text(seal(manifest))
    return how


def truth(folder: Path, rng: Random) -> str:
    """Change a file of a truth, then list it with its new hash."""
    index = json.loads((folder / "index.json").read_text())
    name = rng.choice(sorted(index["files"]))
    raw = (folder / name).read_bytes()
    if name.endswith(".json"):
        how = "facts"
        raw = json.dumps(altered(json.loads(raw), rng)).encode()
    else:
        raw, how = _inner(raw, "truth", rng)
    (folder / name).write_bytes(raw)
    index["files"][name] = {"sha256": hashlib.sha256(raw).hexdigest(), "size": len(raw)}
    if rng.randrange(8) == 0:
        index, how = altered(index, rng), "index"
    (folder / "index.json").write_text(json.dumps(index))
    return how
