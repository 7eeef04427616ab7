"""From the cells of a table to numbers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from fedaudit.data.dataset import Dataset, Owners
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
from fedaudit.data.files.table import Table
from fedaudit.errors import ConfigError, DataError, nearest

Missing = Literal["refuse", "drop", "mean", "category"]

MISSING_CATEGORY = "(missing)"
_MAX_CATEGORIES = 200
TEXTS = (
    "column {column!r} holds texts: these are read from a .jsonl file, one object per line with "
    '"text", and "client" or "label" if there are any'
)


def encode_table(
    table: Table,
    *,
    name: str,
    label: str | None,
    owners: Mapping[str, str | None] | None = None,
    features: Sequence[str] | None = None,
    ignore: Sequence[str] = (),
    categorical: Sequence[str] = (),
    missing: Missing = "refuse",
    decimal: Literal[".", ","] = ".",
    one_class: bool = False,
) -> Dataset:
    """A table's cells as numbers: see `read`."""
    taken = {c for c in (owners or {}).values() if c is not None}
    if label is None:
        guess, why = guess_label(table)
        texts = _only_texts(table, taken)
        raise DataError(
            f"{table.path}: which column is the label?",
            expected="label = the name of the column to predict",
            got="no label",
            remedy=TEXTS.format(column=texts)
            if texts
            else f'label = "{guess}" ({why})? Columns: {", ".join(table.columns)}',
        )
    roles = {"label": label, **{r: c for r, c in (owners or {}).items() if c is not None}}
    for role, column in roles.items():
        _column(table, role, column)
    if "organisation" in roles and "client" not in roles:
        raise DataError(
            f"{table.path}: an organisation without a client",
            expected="client = the column of the owners that belong to organisations",
            got=f"organisation = {roles['organisation']!r} only",
            remedy=f'client = "{roles["organisation"]}" if the organisation itself takes part',
        )
    for argument, given in (
        ("ignore", ignore),
        ("features", features),
        ("categorical", categorical),
    ):
        if isinstance(given, str):
            raise ConfigError(
                f"{argument} = {given!r} is one text, not a list",
                expected="a list of column names",
                got=repr(given),
                remedy=f'{argument} = ["{given}"]',
            )
        for column in given or ():
            _column(table, argument, column)
    for column in features or ():
        if column == label:
            raise DataError(
                f"{table.path}: the label {label!r} is also listed as a feature",
                expected="features without the label",
                got=f"features with {column!r}",
                remedy="take it out of features: a model would only copy it",
            )
    taken |= {*roles.values(), *ignore}
    used = list(features) if features is not None else [c for c in table.columns if c not in taken]
    if not used:
        raise DataError(
            f"{table.path}: no feature columns are left",
            expected="at least one column beside label, owners and ignored ones",
            got=f"columns {', '.join(table.columns)}",
            remedy=TEXTS.format(column=texts)
            if (texts := _only_texts(table, {*(owners or {}).values(), label}))
            else "shorten ignore, or list the features",
        )
    keep, gaps, notes = _rows_to_keep(table, roles, used, missing)
    rows = np.flatnonzero(keep)
    lines = [table.lines[i] for i in rows]
    all_kept = len(rows) == len(keep)

    def cells(column: str) -> list[str]:
        whole = table.columns[column]
        return whole if all_kept else [whole[i] for i in rows]

    y, classes = encode_labels(table.path, label, cells(label), one_class=one_class)
    blocks: list[npt.NDArray[np.float32]] = []
    names: list[str] = []
    for column in used:
        values, titles, remark = _encode_column(
            table.path, column, cells(column), lines,
            force=column in categorical, missing=missing, decimal=decimal,
            delimiter=table.delimiter, gap=bool(gaps.get(column)),
        )  # fmt: skip
        blocks.append(values)
        names.extend(titles)
        notes += remark
    owner_columns: dict[str, Owners] = {
        role: tuple(cells(column)) for role, column in roles.items() if role != "label"
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


def _dropped(client: Sequence[str], keep: npt.NDArray[np.bool_]) -> dict[str, tuple[int, int]]:
    """Clients that lost records: how many were read, how many lost; sorted by name."""
    read = Counter(client)
    lost = Counter(c for c, kept in zip(client, keep, strict=True) if not kept)
    return {c: (read[c], lost[c]) for c in sorted(lost) if not is_missing(c)}


def _only_texts(table: Table, taken: Collection[str | None]) -> str | None:
    """The one column beside those `taken`, if its cells look like documents, not like values."""
    left = [c for c in table.columns if c not in taken]
    if len(left) != 1 or not table.columns[left[0]]:
        return None
    words = np.mean([cell.count(" ") for cell in table.columns[left[0]]])
    return left[0] if words >= 8 else None


def _column(table: Table, role: str, name: str) -> list[str]:
    if name not in table.columns:
        raise DataError(
            f"{table.path} has no column {name!r} (given as {role})",
            expected="the name of a column",
            got=repr(name),
            remedy=nearest(name, table.columns),
        )
    return table.columns[name]


def _rows_to_keep(
    table: Table, roles: Mapping[str, str], used: Sequence[str], missing: Missing
) -> tuple[npt.NDArray[np.bool_], dict[str, int], list[str]]:
    """Which records stay, missing cells per column among those, and remarks."""
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
    return keep, counts, [f"missing values filled over all records: {describe_missing(counts)}"]


def _empty(path: str, column: str, records: int) -> DataError:
    return DataError(
        f"{path}: column {column!r} is empty",
        expected="at least one value",
        got=f"{records} missing values",
        remedy=f'ignore = ["{column}"]',
    )


def _encode_column(
    path: str,
    column: str,
    cells: Sequence[str],
    lines: Sequence[int],
    *,
    force: bool,
    missing: Missing,
    decimal: str,
    delimiter: str,
    gap: bool,
) -> tuple[npt.NDArray[np.float32], list[str], list[str]]:
    """One column as (n, k) numbers, the k names, and remarks."""
    if decimal == "," and not force:
        cells = [c.replace(",", ".") if DECIMAL_COMMA.fullmatch(c) else c for c in cells]
    if not force and not gap:
        quick = _plain_numbers(cells)
        if quick is not None:
            return _numbers(path, column, quick, cells, lines)
    present = [not is_missing(c) for c in cells] if gap else [True] * len(cells)
    if not any(present):
        raise _empty(path, column, len(cells))
    numeric = [
        here and NUMBER.fullmatch(c) is not None for c, here in zip(cells, present, strict=True)
    ]
    if not force and numeric == present:
        value = np.array(
            [float(c) if here else math.nan for c, here in zip(cells, present, strict=True)]
        )
        hole = np.isnan(value)
        mean = float(value[~hole].mean())
        filled = np.where(hole, mean, value)
        out, names, notes = _numbers(path, column, filled, cells, lines)
        if missing == "category":
            out = np.concatenate([out, hole[:, None].astype(np.float32)], axis=1)
            names.append(f"{column}={MISSING_CATEGORY}")
        return out, names, notes
    odd = [i for i, (a, b) in enumerate(zip(numeric, present, strict=True)) if b and not a]
    if not force and all(DECIMAL_COMMA.fullmatch(cells[i]) for i in odd) and delimiter != ",":
        raise DataError(
            f"{path}, line {lines[odd[0]]}: column {column!r} has a comma inside its numbers",
            expected="numbers such as 1.5",
            got=quote_cell(cells[odd[0]]),
            remedy='decimal = "," if 1,5 means one and a half',
        )
    if not force and sum(numeric) >= sum(present) / 2:
        raise DataError(
            f"{path}, line {lines[odd[0]]}: {quote_cell(cells[odd[0]])} in column {column!r} "
            "is not a number",
            expected="numbers throughout, as in most of this column",
            got=f"{len(odd)} of {sum(present)} values that are not finite numbers",
            remedy=f"correct them, leave the field empty if the value is missing, or "
            f'categorical = ["{column}"]',
        )
    categories = sorted({c for c, here in zip(cells, present, strict=True) if here})
    if len(categories) > _MAX_CATEGORIES or (
        len(categories) > 20 and len(categories) > len(cells) / 2
    ):
        raise DataError(
            f"{path}: column {column!r} has too many categories",
            expected=f"at most {_MAX_CATEGORIES} different texts, each in several records",
            got=f"{len(categories)} different texts in {len(cells)} records",
            remedy=f'ignore = ["{column}"] if it is a name, an identifier or free text',
        )
    if not all(present):
        categories.append(MISSING_CATEGORY)
    index = {c: i for i, c in enumerate(categories)}
    out = np.zeros((len(cells), len(categories)), dtype=np.float32)
    chosen = [
        index[c] if here else len(categories) - 1 for c, here in zip(cells, present, strict=True)
    ]
    out[np.arange(len(cells)), chosen] = 1.0
    return out, [f"{column}={c}" for c in categories], []


def _plain_numbers(cells: Sequence[str]) -> npt.NDArray[np.float64] | None:
    """All cells as finite numbers, or None: the fast path of a clean column."""
    try:
        value = np.array(list(map(float, cells)), dtype=np.float64)
    except ValueError:
        return None
    # float() also takes "inf", "1_000" and foreign digits; those go the careful way
    if not np.isfinite(value).all() or any("_" in c for c in cells):
        return None
    return value


def _numbers(
    path: str,
    column: str,
    value: npt.NDArray[np.float64],
    cells: Sequence[str],
    lines: Sequence[int],
) -> tuple[npt.NDArray[np.float32], list[str], list[str]]:
    too_large = np.abs(value) > np.finfo(np.float32).max
    if too_large.any():
        i = int(np.flatnonzero(too_large)[0])
        raise DataError(
            f"{path}, line {lines[i]}: the number in column {column!r} is too large",
            expected="numbers below 3.4e38",
            got=cells[i],
            remedy="correct it or change the unit of the column",
        )
    notes = []
    if len(value) > 20 and (value == np.floor(value)).all() and len(np.unique(value)) == len(value):
        notes.append(
            f"column {column!r} has a different whole number in every record; "
            f'if it is an identifier: ignore = ["{column}"]'
        )
    return value.astype(np.float32)[:, None], [column], notes
