"""Missing cells, labels and owners, for tables, arrays and text records."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fedaudit.data.dataset import Owners
from fedaudit.errors import DataError

MISSING_WORDS = frozenset({"", "na", "n/a", "nan", "null", "none", "?"})
NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
WHOLE = re.compile(r"[+-]?\d+")
DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+")


def quote_cell(cell: str) -> str:
    """Quote a cell in an error, shortened: it may be a person's record."""
    return repr(cell) if len(cell) <= 40 else f"{cell[:30]!r}... ({len(cell):,} characters)"


def is_missing(cell: str) -> bool:
    """Whether a cell is empty or a usual word for a missing value."""
    return cell.lower() in MISSING_WORDS


def describe_missing(counts: Mapping[str, int]) -> str:
    """Missing values per column in words, most first."""
    most = sorted(counts.items(), key=lambda item: -item[1])
    shown = ", ".join(f"{column!r} {count}" for column, count in most[:8])
    return f"missing values per column: {shown}" + (", ..." if len(most) > 8 else "")


def encode_labels(
    path: str, column: str, cells: Sequence[str], *, one_class: bool = False
) -> tuple[npt.NDArray[np.int64], tuple[str, ...]]:
    """Class number of each cell (n,) and class names, numbers in numeric order.

    `one_class` allows a single class.
    """
    distinct = sorted(set(cells))
    numeric = all(NUMBER.fullmatch(c) and math.isfinite(float(c)) for c in distinct)
    if numeric:
        # keep whole numbers exact: as floats, 2**53 and 2**53 + 1 are one class
        value = {c: int(c) if WHOLE.fullmatch(c) else float(c) for c in distinct}
        fractions = any(v != int(v) for v in value.values())
        if len(set(value.values())) > 20 and (fractions or len(distinct) > len(cells) / 2):
            raise DataError(
                f"{path}: column {column!r} looks like a measurement, not like classes",
                expected="a label with few different values",
                got=f"{len(distinct)} different numbers in {len(cells)} records",
                remedy="name another label column, or group the numbers into classes first",
            )
        ordered = sorted(set(value.values()))
        number = {v: i for i, v in enumerate(ordered)}
        index = {c: number[value[c]] for c in distinct}
        classes = tuple(str(int(v)) if v == int(v) else repr(v) for v in ordered)
    else:
        if len(distinct) > 20 and len(distinct) > len(cells) / 2:
            raise DataError(
                f"{path}: column {column!r} looks like an identifier, not like classes",
                expected="a label with few different values",
                got=f"{len(distinct)} different values in {len(cells)} records",
                remedy="name another label column",
            )
        index = {c: i for i, c in enumerate(distinct)}
        classes = tuple(distinct)
    if len(classes) < 2 and not one_class:
        raise DataError(
            f"{path}: column {column!r} has only one class",
            expected="at least two classes",
            got=f"{quote_cell(classes[0])} in all {len(cells)} records",
            remedy="name another label column",
        )
    return np.array([index[c] for c in cells], dtype=np.int64), classes


def class_name(value: Any) -> str:
    """The name of a class given as text or number: 1.0 is "1"."""
    if isinstance(value, str):
        return value
    return str(int(value)) if value == int(value) else repr(float(value))


def check_organisations(
    path: str, owners: Mapping[str, Owners], lines: Sequence[int | str] | None
) -> None:
    """Refuse a client that belongs to two organisations."""
    if "client" not in owners or "organisation" not in owners:
        return
    moved = first_change(owners["client"], owners["organisation"])
    if moved is not None:
        i, before = moved
        spot = f"line {lines[i]}" if lines is not None else f"record {i}"
        raise DataError(
            f"{path}, {spot}: client {quote_cell(owners['client'][i])} is in two organisations",
            expected=f"organisation {quote_cell(before)}, as before",
            got=quote_cell(owners["organisation"][i]),
            remedy="correct the organisation, or give the two clients different names",
        )


def first_change(members: Sequence[str], groups: Sequence[str]) -> tuple[int, str] | None:
    """The first record whose member changed its group, and its earlier group."""
    belongs: dict[str, str] = {}
    for i, (who, where) in enumerate(zip(members, groups, strict=True)):
        if belongs.setdefault(who, where) != where:
            return i, belongs[who]
    return None
