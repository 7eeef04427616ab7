"""Encode the cells of a table as numbers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from fedaudit.data.dataset import FILLED_OVER_ALL, Dataset, Owners
from fedaudit.data.files.cells import (
    DECIMAL_COMMA,
    NUMBER,
    check_organisations,
    describe_missing,
    encode_labels,
    is_missing,
    quote_cell,
)
from fedaudit.data.files.roles import guess_label
from fedaudit.data.files.sites import PLACES
from fedaudit.data.files.table import FileTable
from fedaudit.errors import ConfigError, DataError

Missing = Literal["refuse", "drop", "mean", "category"]

MISSING_CATEGORY = "(missing)"
_MAX_CATEGORIES = 200
TEXTS = (
    "column {column!r} holds texts: save them as a .jsonl file, one object per line with "
    '"text", and "client" or "label" if there are any'
)


@dataclass(frozen=True, kw_only=True)
class Encoding:
    """How a table's columns become numbers; the settings are those of `read`."""

    features: Sequence[str] | None = None
    ignore: Sequence[str] = ()
    categorical: Sequence[str] = ()
    missing: Missing = "refuse"
    decimal: Literal[".", ","] = "."
    one_class: bool = False


def encode_table(
    table: FileTable,
    encoding: Encoding,
    *,
    name: str,
    label: str | None,
    owners: Mapping[str, str | None] | None = None,
) -> Dataset:
    """Encode a table's cells as numbers: see `read`."""
    owned = {role: column for role, column in (owners or {}).items() if column is not None}
    if label is None:
        raise _no_label(table, {*owned.values()})
    roles = {"label": label, **owned}
    _check_columns(table, roles, encoding)
    used = _feature_columns(table, roles, encoding)
    keep, gaps, notes = _rows_to_keep(table, roles, used, encoding.missing)
    rows = np.flatnonzero(keep)
    lines = [table.lines[int(i)] for i in rows]
    all_kept = len(rows) == len(keep)

    def cells(column: str) -> list[str]:
        whole = table.columns[column]
        return whole if all_kept else [whole[i] for i in rows]

    y, classes = encode_labels(table.path, label, cells(label), one_class=encoding.one_class)
    blocks: list[npt.NDArray[np.float32]] = []
    names: list[str] = []
    for column in used:
        one = _Column(table.path, column, cells(column), lines, table.delimiter)
        values, titles, remarks = _encode_column(one, encoding, gap=bool(gaps.get(column)))
        blocks.append(values)
        names.extend(titles)
        notes += remarks
    owner_columns: dict[str, Owners] = {
        role: tuple(cells(column)) for role, column in owned.items()
    }
    check_organisations(table.path, owner_columns, lines)
    return Dataset(
        name=name,
        kind="features",
        x=np.concatenate(blocks, axis=1),
        y=y,
        classes=classes,
        columns=tuple(names),
        notes=(*table.notes, *notes),
        client=owner_columns.get("client"),
        organisation=owner_columns.get("organisation"),
        person=owner_columns.get("person"),
        dropped=_dropped(table.columns[roles["client"]], keep) if "client" in roles else {},
    )


def _no_label(table: FileTable, taken: Collection[str]) -> DataError:
    guess, why = guess_label(table)
    texts = _only_texts(table, taken)
    return DataError(
        f"{table.path}: which column is the label?",
        expected="label = the name of the column to predict",
        got="no label",
        remedy=TEXTS.format(column=texts)
        if texts
        else f'label = "{guess}" ({why})? Columns: {", ".join(table.columns)}',
    )


def _check_columns(table: FileTable, roles: Mapping[str, str], encoding: Encoding) -> None:
    """Refuse unknown columns, an organisation without a client, and the label as a feature."""
    for role, column in roles.items():
        _check_column(table, role, column)
    if "organisation" in roles and "client" not in roles:
        raise DataError(
            f"{table.path}: an organisation without a client",
            expected="client = the column of the owners that belong to organisations",
            got=f"organisation = {roles['organisation']!r} only",
            remedy=f'client = "{roles["organisation"]}" if the organisation itself takes part',
        )
    for argument in ("ignore", "features", "categorical"):
        given = getattr(encoding, argument)
        if isinstance(given, str):
            raise ConfigError(
                f"{argument} = {given!r} is one text, not a list",
                expected="a list of column names",
                got=repr(given),
                remedy=f'{argument} = ["{given}"]',
            )
        for column in given or ():
            _check_column(table, argument, column)
    label = roles["label"]
    if label in (encoding.features or ()):
        raise DataError(
            f"{table.path}: the label {label!r} is also listed as a feature",
            expected="features without the label",
            got=f"features with {label!r}",
            remedy="remove it from features: a model would only copy it",
        )


def _feature_columns(table: FileTable, roles: Mapping[str, str], encoding: Encoding) -> list[str]:
    """The feature columns: those listed, or all without a role and not ignored."""
    if encoding.features is not None:
        used = list(encoding.features)
    else:
        taken = {*roles.values(), *encoding.ignore, *PLACES}
        used = [c for c in table.columns if c not in taken]
    if not used:
        texts = _only_texts(table, {*roles.values()})
        raise DataError(
            f"{table.path}: no feature columns are left",
            expected="at least one column beside label, owners and ignored ones",
            got=f"columns {', '.join(table.columns)}",
            remedy=TEXTS.format(column=texts) if texts else "shorten ignore, or list the features",
        )
    return used


def _dropped(client: Sequence[str], keep: npt.NDArray[np.bool_]) -> dict[str, tuple[int, int]]:
    """Clients that lost records, by name: (records read, records lost)."""
    read = Counter(client)
    lost = Counter(c for c, kept in zip(client, keep, strict=True) if not kept)
    return {c: (read[c], lost[c]) for c in sorted(lost) if not is_missing(c)}


def _only_texts(table: FileTable, taken: Collection[str | None]) -> str | None:
    """The only column beside those `taken`, if its cells look like documents."""
    left = [c for c in table.columns if c not in taken and c not in PLACES]
    if len(left) != 1 or not table.columns[left[0]]:
        return None
    words = np.mean([cell.count(" ") for cell in table.columns[left[0]]])
    return left[0] if words >= 8 else None


def _check_column(table: FileTable, role: str, name: str) -> None:
    if name not in table.columns:
        raise DataError.unknown(
            f"{table.path} has no column {name!r} (given as {role})", name, table.columns
        )


def _rows_to_keep(
    table: FileTable, roles: Mapping[str, str], used: Sequence[str], missing: Missing
) -> tuple[npt.NDArray[np.bool_], dict[str, int], list[str]]:
    """Records to keep, missing cells per column among them, and notes."""
    n = len(table.lines)
    keep = np.ones(n, dtype=bool)
    holes = {
        column: np.fromiter((is_missing(c) for c in table.columns[column]), dtype=bool, count=n)
        for column in dict.fromkeys([*roles.values(), *used])
    }
    counts = {column: int(h.sum()) for column, h in holes.items() if h.any()}
    if not counts:
        return keep, {}, []
    if missing == "drop":
        for column, hole in holes.items():
            if hole.all():
                raise _empty(table.path, column, n)
            keep &= ~hole
        if not keep.any():
            raise DataError(
                f"{table.path}: every record has a missing value",
                expected="at least one complete record",
                got=describe_missing(counts),
                remedy='ignore the emptiest columns, or fill with missing = "mean"',
            )
        return (
            keep,
            {},
            [f"{n - int(keep.sum())} of {n} records dropped: {describe_missing(counts)}"],
        )
    for role, column in roles.items():
        if column in counts:
            line = table.lines[int(np.flatnonzero(holes[column])[0])]
            raise DataError(
                f"{table.path}, line {line}: the {role} ({column!r}) is missing",
                expected=f"a {role} in every record: it cannot be filled in",
                got=f"{counts[column]} records without one",
                remedy='complete them, or leave those records out with missing = "drop"',
            )
    if missing == "refuse":
        first = min(int(np.flatnonzero(holes[c])[0]) for c in counts)
        raise DataError(
            f"{table.path}: values are missing, the first in line {table.lines[first]}",
            expected="a value in every field",
            got=describe_missing(counts),
            remedy='missing = "drop" (those records), "mean" (fill) or "category" (fill and mark)',
        )
    return keep, counts, [f"{FILLED_OVER_ALL}: {describe_missing(counts)}"]


def _empty(path: str, column: str, records: int) -> DataError:
    return DataError(
        f"{path}: column {column!r} is empty",
        expected="at least one value",
        got=f"{records} missing values",
        remedy=f'ignore = ["{column}"]',
    )


@dataclass(frozen=True)
class _Column:
    """One column's cells with their lines in the file."""

    path: str
    name: str
    cells: Sequence[str]
    lines: Sequence[int | str]
    delimiter: str


Encoded = tuple[npt.NDArray[np.float32], list[str], list[str]]
"""One column as (n, k) numbers, the k names, and notes."""


def _encode_column(column: _Column, encoding: Encoding, *, gap: bool) -> Encoded:
    """Encode one column as numbers or categories; `gap`: some cells are missing."""
    categorical = column.name in encoding.categorical
    if encoding.decimal == "," and not categorical:
        cells = [c.replace(",", ".") if DECIMAL_COMMA.fullmatch(c) else c for c in column.cells]
        column = replace(column, cells=cells)
    if not categorical and not gap:
        quick = _plain_numbers(column.cells)
        if quick is not None:
            return _numbers(column, quick)
    present = [not is_missing(c) if gap else True for c in column.cells]
    if not any(present):
        raise _empty(column.path, column.name, len(column.cells))
    if not categorical:
        numeric = [
            here and NUMBER.fullmatch(c) is not None
            for c, here in zip(column.cells, present, strict=True)
        ]
        if numeric == present:
            return _numbers_with_gaps(column, present, mark=encoding.missing == "category")
        _refuse_mixed(column, numeric, present)
    return _categories(column, present)


def _numbers_with_gaps(column: _Column, present: Sequence[bool], *, mark: bool) -> Encoded:
    """Numbers with missing cells filled by the mean; `mark` adds a column of missing cells."""
    value = np.array(
        [float(c) if here else math.nan for c, here in zip(column.cells, present, strict=True)]
    )
    hole = np.isnan(value)
    mean = float(value[~hole].mean())
    out, names, notes = _numbers(column, np.where(hole, mean, value))
    if mark:
        out = np.concatenate([out, hole[:, None].astype(np.float32)], axis=1)
        names.append(f"{column.name}={MISSING_CATEGORY}")
    return out, names, notes


def _refuse_mixed(column: _Column, numeric: Sequence[bool], present: Sequence[bool]) -> None:
    """Refuse a column of numbers with a few cells that are not numbers."""
    odd = [i for i, (a, b) in enumerate(zip(numeric, present, strict=True)) if b and not a]
    first, line = column.cells[odd[0]], column.lines[odd[0]]
    if all(DECIMAL_COMMA.fullmatch(column.cells[i]) for i in odd) and column.delimiter != ",":
        raise DataError(
            f"{column.path}, line {line}: column {column.name!r} has a comma inside its numbers",
            expected="numbers such as 1.5",
            got=quote_cell(first),
            remedy='decimal = "," if 1,5 means one and a half',
        )
    if sum(numeric) >= sum(present) / 2:
        raise DataError(
            f"{column.path}, line {line}: {quote_cell(first)} in column {column.name!r} is not a "
            "number",
            expected="numbers throughout, as in most of this column",
            got=f"{len(odd)} of {sum(present)} values that are not finite numbers",
            remedy=f"correct them, leave the field empty if the value is missing, or "
            f'categorical = ["{column.name}"]',
        )


def _categories(column: _Column, present: Sequence[bool]) -> Encoded:
    """One 0/1 column per category, in sorted order; missing cells are a category of their own."""
    cells = column.cells
    categories = sorted({c for c, here in zip(cells, present, strict=True) if here})
    if len(categories) > _MAX_CATEGORIES or (
        len(categories) > 20 and len(categories) > len(cells) / 2
    ):
        raise DataError(
            f"{column.path}: column {column.name!r} has too many categories",
            expected=f"at most {_MAX_CATEGORIES} different texts, each in several records",
            got=f"{len(categories)} different texts in {len(cells)} records",
            remedy=f'ignore = ["{column.name}"] if it is a name, an identifier or free text',
        )
    if not all(present):
        categories.append(MISSING_CATEGORY)
    index = {c: i for i, c in enumerate(categories)}
    out = np.zeros((len(cells), len(categories)), dtype=np.float32)
    chosen = [
        index[c] if here else len(categories) - 1 for c, here in zip(cells, present, strict=True)
    ]
    out[np.arange(len(cells)), chosen] = 1.0
    return out, [f"{column.name}={c}" for c in categories], []


def _plain_numbers(cells: Sequence[str]) -> npt.NDArray[np.float64] | None:
    """All cells as finite numbers, or None: the fast path for a clean column."""
    try:
        value = np.array(list(map(float, cells)), dtype=np.float64)
    except ValueError:
        return None
    # float() also accepts "inf", "1_000" and non-ASCII digits; those take the careful path
    if not np.isfinite(value).all() or any("_" in c for c in cells):
        return None
    return value


def _numbers(column: _Column, value: npt.NDArray[np.float64]) -> Encoded:
    too_large = np.abs(value) > np.finfo(np.float32).max
    if too_large.any():
        i = int(np.flatnonzero(too_large)[0])
        raise DataError(
            f"{column.path}, line {column.lines[i]}: the number in column {column.name!r} "
            "is too large",
            expected="numbers below 3.4e38",
            got=column.cells[i],
            remedy="correct it or change the unit of the column",
        )
    notes = []
    if len(value) > 20 and (value == np.floor(value)).all() and len(np.unique(value)) == len(value):
        notes.append(
            f"column {column.name!r} has a different whole number in every record; "
            f'if it is an identifier: ignore = ["{column.name}"]'
        )
    return value.astype(np.float32)[:, None], [column.name], notes
