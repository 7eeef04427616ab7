"""Ways to damage a file: its bytes, its values, or what kind of thing lies under its name."""

from __future__ import annotations

import copy
import json
import math
import os
import shutil
import tomllib
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from fedaudit.errors import ConfigError
from fedaudit.setup.toml import toml_value

# -- bytes ----------------------------------------------------------------------------------------


def flip(raw: bytes, rng: Random, _: bytes) -> bytes:
    out = bytearray(raw)
    for _ in range(rng.choice((1, 1, 1, 3, 16))):
        if out:
            out[rng.randrange(len(out))] ^= 1 << rng.randrange(8)
    return bytes(out)


def truncate(raw: bytes, rng: Random, _: bytes) -> bytes:
    return raw[: rng.randrange(len(raw))] if raw else raw


def zero(raw: bytes, rng: Random, _: bytes) -> bytes:
    low, high = _span(raw, rng)
    return raw[:low] + bytes(high - low) + raw[high:]


def duplicate(raw: bytes, rng: Random, _: bytes) -> bytes:
    low, high = _span(raw, rng)
    return raw[:high] + raw[low:high] * rng.choice((1, 1, 7)) + raw[high:]


def cut(raw: bytes, rng: Random, _: bytes) -> bytes:
    low, high = _span(raw, rng)
    return raw[:low] + raw[high:]


def splice(raw: bytes, rng: Random, other: bytes) -> bytes:
    at = rng.randrange(len(raw) + 1)
    low, high = _span(other, rng)
    return raw[:at] + other[low:high] + raw[at + (high - low) * rng.randrange(2) :]


def swap(_: bytes, __: Random, other: bytes) -> bytes:
    return other


def insert(raw: bytes, rng: Random, _: bytes) -> bytes:
    at = rng.randrange(len(raw) + 1)
    what = rng.choice(
        (
            b"\0", b"\xff\xfe", b"\xed\xa0\x80", b"[" * 100_000, b'{"a":' * 50_000, b"9" * 5_000,
            b'"', b"\n", b"\r", b",", b"1e999", b"NaN", b"-", b"\xef\xbb\xbf", rng.randbytes(9),
        )
    )  # fmt: skip
    return raw[:at] + what + raw[at:]


def replace_all(_: bytes, rng: Random, __: bytes) -> bytes:
    return rng.choice(
        (
            b"", b"\0", b"\n", b"[]", b"{}", b"null", b'"', b"0", b"[" * 100_000,
            b"a = " + b"[" * 99_999, b"PK\x05\x06" + bytes(18), b"\x1f\x8b", b"\x93NUMPY",
            rng.randbytes(64),
        )
    )  # fmt: skip


BYTES: tuple[Callable[[bytes, Random, bytes], bytes], ...] = (
    flip, flip, truncate, zero, duplicate, cut, splice, swap, insert, replace_all,
)  # fmt: skip


def _span(raw: bytes, rng: Random) -> tuple[int, int]:
    if not raw:
        return 0, 0
    low = rng.randrange(len(raw))
    return low, min(len(raw), low + rng.choice((1, 2, 8, 64, 1024, len(raw))))


# -- values ---------------------------------------------------------------------------------------

ODD: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 3.5, -0.0, 1e-308, 1e308, -1e308, 2**31, 2**63, 2**64, 10**30,
    10**400, math.nan, math.inf, "", "x", "0", "-1", "inf", "nan", "\0", "\ud800", "\u202e",
    "../..", "/dev/zero", "a" * 5_000, "<script>", [], {}, [[]], [None], [1, "a"], ["a", "a"],
    {"": 0}, {"a": {"a": {}}}, [1e308] * 3, [-1], [2**62] * 2,
)  # fmt: skip


def odd(rng: Random) -> Any:
    """One of them, for its own."""
    return copy.deepcopy(rng.choice(ODD))


def deep(levels: int) -> Any:
    value: Any = []
    for _ in range(levels):
        value = [value]
    return value


def altered(value: Any, rng: Random) -> Any:
    """A copy with one to three places changed: another type, another place's value, gone, more."""
    out = json.loads(json.dumps(value, default=str))
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        places = list(_places(out))
        if not places:
            return odd(rng)
        holder, key = rng.choice(places)
        how = rng.randrange(8)
        if how == 0:
            del holder[key]
        elif how == 1:
            other, at = rng.choice(places)
            try:
                holder[key] = json.loads(json.dumps(other[at]))
            except (KeyError, IndexError):
                continue
        elif how == 2 and isinstance(holder, list):
            holder.append(odd(rng))
        elif how == 2:
            holder[str(rng.choice(("", "x", key + "?", "\0", "__class__")))] = odd(rng)
        elif how == 3:
            holder[key] = deep(rng.choice((5, 99, 150, 400)))
        elif how == 4 and type(holder[key]) in (int, float):
            holder[key] = rng.choice((-holder[key], holder[key] + 1, holder[key] * 1_000_000, 0))
        else:
            holder[key] = odd(rng)
    return out


def _places(value: Any, most: int = 4_000) -> list[tuple[Any, Any]]:
    found: list[tuple[Any, Any]] = []
    todo = [value]
    while todo and len(found) < most:
        here = todo.pop()
        pairs = here.items() if isinstance(here, dict) else enumerate(here)
        if not isinstance(here, dict | list):
            continue
        for key, inner in pairs:
            found.append((here, key))
            if isinstance(inner, dict | list):
                todo.append(inner)
    return found


def as_json(value: Any, rng: Random) -> bytes:
    text = json.dumps(value, indent=rng.choice((None, 1)))
    if rng.randrange(12) == 0 and text.startswith("{") and len(text) > 2:
        text = text[:-1].rstrip() + ', "x": 1, "x": 2}'
    return text.encode("utf-8", "surrogatepass")


def as_toml(value: Any) -> bytes:
    return "\n".join(_toml(value, ())).encode("utf-8", "surrogatepass") + b"\n"


def _toml(values: Any, path: tuple[str, ...]) -> list[str]:
    if not isinstance(values, dict):
        return [f"value = {_inline(values)}"]
    plain = {k: v for k, v in values.items() if not _is_section(v)}
    lines = [f"[{'.'.join(map(json.dumps, path))}]"] if path and plain else []
    lines += [f"{json.dumps(k)} = {_inline(v)}" for k, v in plain.items()]
    for key, inner in values.items():
        if isinstance(inner, dict) and inner:
            lines += _toml(inner, (*path, key))
        elif _is_section(inner):
            for each in inner:
                lines += [f"[[{json.dumps(key)}]]"]
                lines += [f"{json.dumps(k)} = {_inline(v)}" for k, v in each.items()]
    return lines


def _is_section(value: Any) -> bool:
    if isinstance(value, list):
        return bool(value) and all(isinstance(v, dict) for v in value)
    return isinstance(value, dict) and bool(value)


def _inline(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)} = {_inline(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_inline, value)) + "]"
    if value is None:
        return '"none"'
    if isinstance(value, float) and math.isnan(value):
        return "nan"
    try:
        return toml_value(value)
    except ConfigError:
        return json.dumps(value)  # what the writer refuses is still put before the reader


def by_value(raw: bytes, name: str, rng: Random) -> bytes | None:
    """The file with other values in it, or None where it has none that can be read."""
    try:
        if name.endswith(".toml"):
            return as_toml(altered(tomllib.loads(raw.decode()), rng))
        if name.endswith((".json", ".part")):
            return as_json(altered(json.loads(raw), rng), rng)
        if name.endswith(".jsonl"):
            lines = raw.decode().splitlines()
            at = rng.randrange(len(lines))
            lines[at] = as_json(altered(json.loads(lines[at]), rng), rng).decode("utf-8", "replace")
            return "\n".join(line.replace("\n", " ") for line in lines).encode()
        if name.endswith((".csv", ".tsv", ".txt")):
            return by_cell(raw, rng)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
        return None
    return None


CELLS = (
    "", "1e308", "-1e308", "1e-320", "nan", "inf", "0", "-1", "x", "\0", '"', "9" * 400, "1_0",
    "\u0661", "1e400", "0x10", " ", "a" * 140_000, "NA", "true",
)  # fmt: skip


def by_cell(raw: bytes, rng: Random) -> bytes:
    rows = [line.split(",") for line in raw.decode().splitlines()]
    for _ in range(rng.choice((1, 1, 3))):
        row = rng.choice(rows)
        at = rng.randrange(len(row))
        how = rng.randrange(6)
        if how == 0:
            del row[at]
        elif how == 1:
            row.insert(at, rng.choice(CELLS))
        elif how == 2:
            rows.insert(rng.randrange(len(rows)), list(rng.choice(rows)))
        else:
            row[at] = rng.choice(CELLS)
        if how == 2 or not row:
            break
    return "\n".join(",".join(r) for r in rows).encode()


# -- what lies under a name -----------------------------------------------------------------------


def special(file: Path, rng: Random) -> str:
    """Put something else than a regular file there."""
    file.unlink(missing_ok=True)
    how = rng.choice(("device", "fifo", "folder", "dangling", "loop", "gone", "parent"))
    if how == "device":
        file.symlink_to("/dev/zero")
    elif how == "fifo":
        os.mkfifo(file)
    elif how == "folder":
        file.mkdir()
    elif how == "dangling":
        file.symlink_to(file.with_name("nowhere"))
    elif how == "loop":
        file.symlink_to(file.name)
    elif how == "parent":
        file.symlink_to("..")
    return how


def mutate(file: Path, others: list[Path], rng: Random) -> str:
    """Damage one file in place; returns how."""
    raw = file.read_bytes()
    if rng.randrange(12) == 0:
        return special(file, rng)
    if rng.randrange(2):
        made = by_value(raw, file.name, rng)
        if made is not None:
            file.write_bytes(made)
            return "values"
    how = rng.choice(BYTES)
    other = rng.choice(others).read_bytes() if others else b""
    file.write_bytes(how(raw, rng, other))
    return how.__name__


def copied(source: Path, target: Path) -> Path:
    shutil.copytree(source, target, symlinks=True)
    return target
