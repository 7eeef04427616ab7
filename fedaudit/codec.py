"""The one way to JSON: strict, with infinities as text.

JSON has no infinity and no NaN. An infinity becomes the text "inf" or "-inf"; a text that reads so
gets a backslash before it. A NaN is refused, or becomes null where the caller says so.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

#: texts that look like an infinity, or like one already escaped
_LIKE_INFINITY = re.compile(r"\\*-?inf\Z")


def json_number(value: float | None) -> float | str | None:
    """A number for strict JSON: an infinity as "inf" or "-inf", a NaN as None."""
    if value is None or math.isfinite(value):
        return value
    return None if math.isnan(value) else "inf" if value > 0 else "-inf"


def encode(value: Any, *, nan_as_null: bool = False) -> Any:
    """Convert to JSON types: dataclasses become objects, tuples lists, infinities text."""
    if is_dataclass(value) and not isinstance(value, type):
        named = {f.name: getattr(value, f.name) for f in fields(value)}
        return {k: encode(v, nan_as_null=nan_as_null) for k, v in named.items()}
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise TypeError(f"a result has the key {key!r}: JSON keys are text")
        return {k: encode(v, nan_as_null=nan_as_null) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [encode(v, nan_as_null=nan_as_null) for v in value]
    if isinstance(value, str):
        return "\\" + value if _LIKE_INFINITY.match(value) else value
    if isinstance(value, float):
        if math.isnan(value) and not nan_as_null:
            raise ValueError("a result holds NaN: leave the number out")
        return json_number(float(value))
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        if not -(1 << 63) <= value < 1 << 64:
            raise ValueError("a result holds a whole number beyond 64 bits: JSON readers refuse it")
        return value
    raise TypeError(f"a result holds {type(value).__name__}: convert it to plain numbers or text")


def decode(value: Any) -> Any:
    """The inverse of `encode`, up to the types that JSON has."""
    if isinstance(value, dict):
        return {k: decode(v) for k, v in value.items()}
    if isinstance(value, list):
        return [decode(v) for v in value]
    if value == "inf":
        return math.inf
    if value == "-inf":
        return -math.inf
    if isinstance(value, str) and _LIKE_INFINITY.match(value):
        return value[1:]
    return value


def fields_of(one: Any, *names: str) -> dict[str, Any]:
    """Fields of an object as JSON types: tuples as lists, an infinity as "inf" or "-inf"."""

    def plain(value: Any) -> Any:
        if isinstance(value, tuple):
            return [plain(v) for v in value]
        return json_number(value) if isinstance(value, float) else value

    return {name: plain(getattr(one, name)) for name in names}


def to_json(value: Any, *, sort_keys: bool = False, ensure_ascii: bool = True) -> str:
    """Encoded values as indented JSON text; NaN and infinities are refused."""
    return json.dumps(
        value, indent=1, sort_keys=sort_keys, ensure_ascii=ensure_ascii, allow_nan=False
    )
