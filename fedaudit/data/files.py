"""The user's own data: tables, arrays, images and text, as a Dataset.

    .csv .tsv .tab .txt (.gz)   a table with a header line; the label column must be named
    .npz                        arrays `x` and `y`, optionally `client`, `organisation`, `person`,
                                `classes`, `columns`, `x_test`, `y_test`
    ...-images-idx3-ubyte(.gz)  IDX images; the labels file beside it is found by its name
    .jsonl (.gz)                one JSON object per line with `text`, optionally `label`, `client`,
                                `organisation`, `person`
    a folder                    one folder of images per class, or `train` and `test` of that form,
                                or a folder with IDX files

Every refusal names the file, the line or column, and what to do. Nothing is guessed silently:
what was decided for the user stands in the dataset's `notes`.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import re
import struct
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from fedaudit.data.dataset import Dataset, Owners
from fedaudit.errors import ConfigError, DataError, nearest

Missing = Literal["refuse", "drop", "mean", "category"]
Format = Literal["table", "npz", "idx", "images", "jsonl"]

MISSING_WORDS = frozenset({"", "na", "n/a", "nan", "null", "none", "?"})
MISSING_CATEGORY = "(missing)"

_TABLES = (".csv", ".tsv", ".tab", ".txt")
_IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".pgm", ".ppm")
_DELIMITERS = (",", ";", "\t", "|")
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+")
_MAX_CATEGORIES = 200


def read(
    path: str | Path,
    *,
    label: str | None = None,
    client: str | None = None,
    organisation: str | None = None,
    person: str | None = None,
    features: Sequence[str] | None = None,
    ignore: Sequence[str] = (),
    categorical: Sequence[str] = (),
    missing: Missing = "refuse",
    decimal: Literal[".", ","] = ".",
    text: str = "text",
    labels: str | Path | None = None,
    greyscale: bool | None = None,
    size: tuple[int, int] | None = None,
    name: str | None = None,
) -> Dataset:
    """The data at `path`, its kind told by the file type.

    Tables: `label`, `client`, `organisation`, `person` are column names; `features` are the
    columns to use (default: all others but `ignore`). Numbers are kept, text columns and those
    in `categorical` become one column per category, in sorted order. `decimal` is the mark
    inside numbers. `missing` says what an empty field, NA, NaN, null or ? means:
    "refuse" (with the count per column), "drop" the record, "mean" (of the column; a category of
    its own in text columns), or "category" (as "mean", and a column that says it was missing).

    NPZ and JSONL: the same names are those of arrays and of keys; `text` is the key of the text.
    IDX: `labels` is the labels file, when its name does not follow the custom.
    Images: `greyscale` and `size` (height, width) convert; by default grey images stay grey.
    """
    place = Path(path)
    kind = file_format(place)
    if missing not in ("refuse", "drop", "mean", "category"):
        raise ConfigError(
            f"missing cannot be {missing!r}",
            expected="refuse, drop, mean or category",
            got=repr(missing),
            remedy=nearest(str(missing), ("refuse", "drop", "mean", "category")),
        )
    title = name or _stem(place)
    owners = {"client": client, "organisation": organisation, "person": person}
    if kind == "table":
        table = read_table(place)
        return encode_table(
            table, name=title, label=label, owners=owners, features=features, ignore=ignore,
            categorical=categorical, missing=missing, decimal=decimal,
        )  # fmt: skip
    if kind == "npz":
        return _read_npz(place, title, label, owners)
    if kind == "jsonl":
        return _read_jsonl(place, title, text, label, owners)
    for argument, value in (("label", label), *owners.items()):
        if value is not None:
            raise ConfigError(
                f"{place}: {argument} = {value!r} makes no sense here",
                expected="a table, NPZ or JSONL file, whose records can name their owner",
                got="images",
                remedy=f"leave {argument} out (for owners of images, use an NPZ file)",
            )
    if kind == "idx":
        return _read_idx(place, title, None if labels is None else Path(labels))
    return _read_images(place, title, greyscale, size)


def file_format(path: Path) -> Format:
    """Which reader `path` needs."""
    if not path.exists():
        near = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
        raise DataError(
            f"there is no file {path}",
            expected="a file or folder that exists",
            got="nothing there",
            remedy=nearest(path.name, near[:200]) if near else "check the path",
        )
    if path.is_dir():
        return "idx" if _idx_images(path, "train") is not None else "images"
    suffix = _suffix(path)
    if suffix in _TABLES:
        return "table"
    if suffix == ".npz":
        return "npz"
    if suffix in (".jsonl", ".ndjson"):
        return "jsonl"
    if "idx" in path.name and "ubyte" in path.name:
        return "idx"
    remedy = "save it as CSV" if suffix in (".xlsx", ".xls", ".ods", ".parquet") else "convert it"
    if suffix in (".pkl", ".pickle", ".pt", ".joblib"):
        remedy = "save arrays with numpy.savez: a pickle can run code, fedaudit never opens one"
    raise DataError(
        f"{path}: this kind of file is not known",
        expected=".csv, .tsv, .npz, .jsonl, IDX (…-images-idx3-ubyte) or a folder of images",
        got=suffix or "no file ending",
        remedy=remedy,
    )


def _suffix(path: Path) -> str:
    plain = path.name[:-3] if path.name.lower().endswith(".gz") else path.name
    return Path(plain).suffix.lower()


def _stem(path: Path) -> str:
    plain = path.name[:-3] if path.name.lower().endswith(".gz") else path.name
    return Path(plain).stem or str(path)


def _raw(path: Path) -> bytes:
    """All bytes of a file, unpacked when it ends in .gz."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise DataError(
            f"{path} cannot be read",
            expected="a readable file",
            got=error.strerror or str(error),
            remedy="check the path and the permissions",
        ) from None
    if path.name.lower().endswith(".gz"):
        try:
            return gzip.decompress(raw)
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(
                f"{path} is not a whole gzip file",
                expected="a complete .gz file",
                got=str(error),
                remedy="copy or download it again",
            ) from None
    return raw


def _text(path: Path) -> str:
    raw = _raw(path)
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise DataError(
            f"{path}, line {line}: this is not UTF-8 text",
            expected="a UTF-8 file",
            got=f"byte 0x{raw[error.start]:02x} at position {error.start}",
            remedy="save the file as UTF-8 (in a spreadsheet: CSV UTF-8)",
        ) from None


# ---------------------------------------------------------------- tables


@dataclass(frozen=True)
class Table:
    """The cells of a table as text: `columns[name][row]`; `lines[row]` is the row's file line."""

    path: str
    delimiter: str
    columns: Mapping[str, list[str]]
    lines: list[int]
    notes: tuple[str, ...] = ()


def _delimiter(text: str, suffix: str) -> str:
    """The mark that cuts the first lines into the same number of fields, and most of them."""
    if suffix in (".tsv", ".tab"):
        return "\t"
    # whole lines only: a cut one would have too few fields
    sample = text[:65536].splitlines()[:30]
    if len(text) > 65536 and len(sample) < 30:
        sample = sample[:-1] or sample
    best, score = ",", (0.0, 0)
    for mark in _DELIMITERS:
        widths = [len(row) for row in csv.reader(sample, delimiter=mark) if row]
        if widths and widths[0] > 1:
            agree = sum(w == widths[0] for w in widths) / len(widths)
            if (agree, widths[0]) > score:
                best, score = mark, (agree, widths[0])
    return best


def read_table(path: Path, *, limit: int | None = None) -> Table:
    """The cells of a CSV or TSV file; `limit` stops after so many records."""
    text = _text(path)
    if "\0" in text[:4096]:
        raise DataError(
            f"{path} is not a text table",
            expected="a CSV or TSV file",
            got="binary data",
            remedy="save it as CSV",
        )
    delimiter = _delimiter(text, _suffix(path))
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    header: list[str] | None = None
    rows: list[list[str]] = []
    lines: list[int] = []
    begin = 1
    try:
        for row in reader:
            line, begin = begin, reader.line_num + 1
            if not row or (len(row) == 1 and not row[0].strip()):
                continue
            if header is None:
                header = _header(path, [cell.strip() for cell in row], line)
                continue
            if len(row) != len(header):
                raise DataError(
                    f"{path}, line {line}: wrong number of fields",
                    expected=f"{len(header)} fields, as in the header",
                    got=f"{len(row)} fields",
                    remedy=_ragged_remedy(delimiter, len(row), len(header)),
                )
            rows.append(row)
            lines.append(line)
            if limit is not None and len(rows) >= limit:
                break
    except csv.Error as error:
        raise DataError(
            f"{path}, line {reader.line_num}: this line cannot be read",
            expected="fields with balanced quotation marks",
            got=str(error),
            remedy="correct the line",
        ) from None
    if header is None or not rows:
        raise DataError(
            f"{path} holds no records",
            expected="a header line and at least one record",
            got="an empty file" if header is None else "a header line only",
            remedy="check that this is the right file",
        )
    cells = [[cell.strip() for cell in column] for column in zip(*rows, strict=True)]
    columns = dict(zip(header, cells, strict=True))
    notes: list[str] = []
    if header[0] == "":
        # what pandas writes for its index; anything else without a name is a mistake
        if cells[0] != [str(i) for i in range(len(rows))]:
            raise DataError(
                f"{path}, line 1: the first column has no name",
                expected="a name for every column",
                got="an empty name",
                remedy="name it in the header line",
            )
        del columns[""]
        notes.append("the first column, without a name, only counts the records: left out")
    return Table(str(path), delimiter, columns, lines, tuple(notes))


def _header(path: Path, names: list[str], line: int) -> list[str]:
    if all(_NUMBER.fullmatch(n) or n.lower() in MISSING_WORDS for n in names) and any(names):
        raise DataError(
            f"{path}, line {line}: the header line is missing",
            expected="the names of the columns",
            got="only numbers: " + ", ".join(names[:5]) + (", ..." if len(names) > 5 else ""),
            remedy="put one line with the column names at the top of the file",
        )
    for i, column in enumerate(names):
        if column == "" and i > 0:
            raise DataError(
                f"{path}, line {line}: column {i + 1} has no name",
                expected="a name for every column",
                got="an empty name",
                remedy="name it in the header line, or remove a trailing delimiter",
            )
    twice = [n for n, k in Counter(names).items() if k > 1]
    if twice:
        raise DataError(
            f"{path}, line {line}: two columns are called {twice[0]!r}",
            expected="different names",
            got=", ".join(repr(n) for n in twice),
            remedy="rename one of them",
        )
    return names


def _ragged_remedy(delimiter: str, got: int, expected: int) -> str:
    mark = {"\t": "a tab", ",": "a comma", ";": "a semicolon", "|": "a bar"}[delimiter]
    if got > expected:
        return f"put quotation marks around a value that contains {mark}, or remove the extra field"
    return "fill in the missing fields (an empty field between two delimiters is allowed)"


def _column(table: Table, role: str, name: str) -> list[str]:
    if name not in table.columns:
        raise DataError(
            f"{table.path} has no column {name!r} (given as {role})",
            expected="the name of a column",
            got=repr(name),
            remedy=nearest(name, table.columns),
        )
    return table.columns[name]


def _is_missing(cell: str) -> bool:
    return cell.lower() in MISSING_WORDS


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
) -> Dataset:
    """A table's cells as numbers: see `read`."""
    if label is None:
        guess, why = _guess_label(table)
        raise DataError(
            f"{table.path}: which column is the label?",
            expected="label = the name of the column to predict",
            got="no label",
            remedy=f'label = "{guess}" ({why})? Columns: {", ".join(table.columns)}',
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
    taken = set(roles.values()) | set(ignore)
    used = list(features) if features is not None else [c for c in table.columns if c not in taken]
    if not used:
        raise DataError(
            f"{table.path}: no feature columns are left",
            expected="at least one column beside label, owners and ignored ones",
            got=f"columns {', '.join(table.columns)}",
            remedy="shorten ignore, or list the features",
        )
    keep, gaps, notes = _rows_to_keep(table, roles, used, missing)
    rows = np.flatnonzero(keep)
    lines = [table.lines[i] for i in rows]
    all_kept = len(rows) == len(keep)

    def cells(column: str) -> list[str]:
        whole = table.columns[column]
        return whole if all_kept else [whole[i] for i in rows]

    y, classes = _labels(table.path, label, cells(label), lines)
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
    _check_organisations(table.path, owner_columns, lines)
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
    )


def _rows_to_keep(
    table: Table, roles: Mapping[str, str], used: Sequence[str], missing: Missing
) -> tuple[npt.NDArray[np.bool_], dict[str, int], list[str]]:
    """Which records stay, missing cells per column among those, and remarks."""
    n = len(table.lines)
    keep = np.ones(n, dtype=bool)
    holes = {
        column: np.fromiter((_is_missing(c) for c in table.columns[column]), dtype=bool, count=n)
        for column in dict.fromkeys([*roles.values(), *used])
    }
    counts = {column: int(h.sum()) for column, h in holes.items() if h.any()}
    if not counts:
        return keep, {}, []
    if missing == "drop":
        for column, hole in holes.items():
            if hole.all():
                raise DataError(
                    f"{table.path}: column {column!r} is empty",
                    expected="at least one value",
                    got=f"{n} missing values",
                    remedy=f'ignore = ["{column}"]',
                )
            keep &= ~hole
        if not keep.any():
            raise DataError(
                f"{table.path}: every record has a missing value",
                expected="at least one complete record",
                got=_counted(counts),
                remedy='ignore the emptiest columns, or fill with missing = "mean"',
            )
        return keep, {}, [f"{n - int(keep.sum())} of {n} records dropped: {_counted(counts)}"]
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
            got=_counted(counts),
            remedy='missing = "drop" (those records), "mean" (fill) or "category" (fill and mark)',
        )
    return keep, counts, [f"missing values filled over all records: {_counted(counts)}"]


def _counted(counts: Mapping[str, int]) -> str:
    most = sorted(counts.items(), key=lambda item: -item[1])
    shown = ", ".join(f"{column!r} {count}" for column, count in most[:8])
    return f"missing values per column: {shown}" + (", ..." if len(most) > 8 else "")


def _labels(
    path: str, column: str, cells: Sequence[str], lines: Sequence[int] | None = None
) -> tuple[npt.NDArray[np.int64], tuple[str, ...]]:
    """Class number of each cell (n,) and the names of the classes; numbers in their own order."""
    distinct = sorted(set(cells))
    numeric = all(_NUMBER.fullmatch(c) for c in distinct)
    if numeric:
        value = {c: float(c) for c in distinct}
        fractions = any(v != int(v) for v in value.values())
        if len(set(value.values())) > 20 and (fractions or len(distinct) > len(cells) / 2):
            raise DataError(
                f"{path}: column {column!r} looks like a measurement, not like classes",
                expected="a label with few different values",
                got=f"{len(distinct)} different numbers in {len(cells)} records",
                remedy="name another label column, or put the numbers into classes first",
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
    if len(classes) < 2:
        raise DataError(
            f"{path}: column {column!r} has one class only",
            expected="at least two classes",
            got=f"{classes[0]!r} in all {len(cells)} records",
            remedy="name another label column",
        )
    return np.array([index[c] for c in cells], dtype=np.int64), classes


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
        cells = [c.replace(",", ".") if _DECIMAL_COMMA.fullmatch(c) else c for c in cells]
    if not force and not gap:
        quick = _plain_numbers(cells)
        if quick is not None:
            return _numbers(path, column, quick, cells, lines)
    present = [not _is_missing(c) for c in cells] if gap else [True] * len(cells)
    if not any(present):
        raise DataError(
            f"{path}: column {column!r} is empty",
            expected="at least one value",
            got=f"{len(cells)} missing values",
            remedy=f'ignore = ["{column}"]',
        )
    numeric = [
        here and _NUMBER.fullmatch(c) is not None for c, here in zip(cells, present, strict=True)
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
    if not force and all(_DECIMAL_COMMA.fullmatch(cells[i]) for i in odd) and delimiter != ",":
        raise DataError(
            f"{path}, line {lines[odd[0]]}: column {column!r} has a comma inside its numbers",
            expected="numbers such as 1.5",
            got=repr(cells[odd[0]]),
            remedy='decimal = "," if 1,5 means one and a half',
        )
    if not force and sum(numeric) >= sum(present) / 2:
        raise DataError(
            f"{path}, line {lines[odd[0]]}: {cells[odd[0]]!r} in column {column!r} is not a number",
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


def _check_organisations(
    path: str, owners: Mapping[str, Owners], lines: Sequence[int] | None
) -> None:
    if "client" not in owners or "organisation" not in owners:
        return
    belongs: dict[str, str] = {}
    for i, (who, where) in enumerate(zip(owners["client"], owners["organisation"], strict=True)):
        if belongs.setdefault(who, where) != where:
            spot = f"line {lines[i]}" if lines is not None else f"record {i}"
            raise DataError(
                f"{path}, {spot}: client {who!r} belongs to two organisations",
                expected=f"organisation {belongs[who]!r}, as before",
                got=repr(where),
                remedy="correct the organisation, or give the two clients different names",
            )


# ---------------------------------------------------------------- arrays


def _read_npz(
    path: Path, name: str, label: str | None, owners: Mapping[str, str | None]
) -> Dataset:
    arrays = _npz_arrays(path)

    def array(key: str, role: str) -> npt.NDArray[Any]:
        if key not in arrays:
            raise DataError(
                f"{path} has no array {key!r} ({role})",
                expected=f"an array {key!r}",
                got=", ".join(sorted(arrays)),
                remedy=nearest(key, arrays),
            )
        return arrays[key]

    raw = array("x", "the records")
    if raw.ndim == 0:
        raise DataError(
            f"{path}: array 'x' is a single value",
            expected="records along the first axis",
            got="a number",
            remedy="save x as an array of shape (records, features)",
        )
    key = label or "y"
    classes: tuple[str, ...] = ()
    if key in arrays or raw.dtype.kind != "U" or label is not None:
        given = [str(c) for c in arrays["classes"].tolist()] if "classes" in arrays else None
        y, classes = _array_labels(str(path), key, array(key, "the labels"), given)
    else:
        y = np.zeros(len(raw), dtype=np.int64)
    columns: dict[str, Owners] = {}
    for role, named in owners.items():
        if named is not None or role in arrays:
            values = array(named or role, role)
            if values.ndim != 1:
                raise DataError(
                    f"{path}: array {named or role!r} is not a column",
                    expected=f"one {role} per record, shape ({len(raw)},)",
                    got=f"shape {values.shape}",
                    remedy="save it as a one-dimensional array",
                )
            columns[role] = tuple(str(v) for v in values.tolist())
    _check_organisations(str(path), columns, None)
    kind, x, notes = _array_records(str(path), "x", raw)
    test: Dataset | None = None
    if "x_test" in arrays:
        test_kind, test_x, _ = _array_records(str(path), "x_test", arrays["x_test"])
        test_y: npt.NDArray[np.int64] = np.zeros(len(test_x), dtype=np.int64)
        if classes:
            test_y, _ = _array_labels(
                str(path), "y_test", array("y_test", "labels of x_test"), list(classes)
            )
        test = Dataset(name=name, kind=test_kind, x=test_x, y=test_y, classes=classes)
    titles = tuple(str(c) for c in arrays["columns"].tolist()) if "columns" in arrays else ()
    if titles and isinstance(x, np.ndarray) and x.shape[1:] != (len(titles),):
        raise DataError(
            f"{path}: array 'columns' does not fit 'x'",
            expected=f"{x.shape[1]} names",
            got=f"{len(titles)} names",
            remedy="give one name per feature",
        )
    return Dataset(
        name=name,
        kind=kind,
        x=x,
        y=y,
        classes=classes,
        columns=titles,
        notes=notes,
        test=test,
        client=columns.get("client"),
        organisation=columns.get("organisation"),
        person=columns.get("person"),
    )


def _npz_arrays(path: Path) -> dict[str, npt.NDArray[Any]]:
    out: dict[str, npt.NDArray[Any]] = {}
    try:
        with np.load(path, allow_pickle=False) as archive:
            for key in archive.files:
                try:
                    out[key] = archive[key]
                except ValueError:
                    raise DataError(
                        f"{path}: array {key!r} holds Python objects",
                        expected="numbers, or text of a fixed length (dtype U)",
                        got="dtype object, which can run code when it is opened",
                        remedy=f"save it with {key}.astype(float) or {key}.astype(str)",
                    ) from None
    except (OSError, ValueError, zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise DataError(
            f"{path} cannot be read as NPZ",
            expected="a file written by numpy.savez",
            got=str(error) or type(error).__name__,
            remedy="write it again with numpy.savez(path, x=..., y=...)",
        ) from None
    return out


def _array_labels(
    path: str, key: str, raw: npt.NDArray[Any], classes: list[str] | None
) -> tuple[npt.NDArray[np.int64], tuple[str, ...]]:
    if raw.ndim == 2 and raw.shape[1] == 1:
        raw = raw[:, 0]
    if raw.ndim != 1 or raw.dtype.kind not in "biufU":
        raise DataError(
            f"{path}: array {key!r} does not hold labels",
            expected="one label per record, numbers or text",
            got=f"shape {raw.shape}, dtype {raw.dtype}",
            remedy="save class numbers, shape (records,) (for one-hot labels: y.argmax(1))",
        )
    if raw.dtype.kind == "f" and not np.isfinite(raw).all():
        raise DataError(
            f"{path}: array {key!r} has missing labels",
            expected="finite labels",
            got=f"{int((~np.isfinite(raw)).sum())} NaN or infinite",
            remedy="leave those records out before saving",
        )
    if classes is not None:
        if raw.dtype.kind == "U":
            number = {c: i for i, c in enumerate(classes)}
            unknown = sorted(set(raw.tolist()) - set(number))
            if unknown:
                raise DataError(
                    f"{path}: array {key!r} has a label that is not a class",
                    expected=", ".join(classes[:10]),
                    got=repr(unknown[0]),
                    remedy=nearest(unknown[0], classes),
                )
            return np.array([number[v] for v in raw.tolist()], dtype=np.int64), tuple(classes)
        as_text = {c: i for i, c in enumerate(classes)}
        named = [as_text.get(_class_name(v)) for v in raw.tolist()]
        if all(v is not None for v in named):
            return np.array(named, dtype=np.int64), tuple(classes)
        if (raw != raw.astype(np.int64)).any() or raw.min() < 0 or raw.max() >= len(classes):
            raise DataError(
                f"{path}: array {key!r} has a label that is not a class",
                expected=f"class numbers 0 to {len(classes) - 1}",
                got=f"{raw.min()} to {raw.max()}",
                remedy="correct the labels or the array 'classes'",
            )
        return raw.astype(np.int64), tuple(classes)
    if raw.dtype.kind == "U":
        return _labels(path, key, raw.tolist())
    return _labels(path, key, [_class_name(v) for v in raw.tolist()])


def _class_name(value: Any) -> str:
    if isinstance(value, str):
        return value
    return str(int(value)) if value == int(value) else repr(float(value))


def _array_records(
    path: str, key: str, raw: npt.NDArray[Any]
) -> tuple[
    Literal["features", "image", "text"], npt.NDArray[np.float32] | tuple[str, ...], tuple[str, ...]
]:
    """Kind, records and remarks: (n,) text, (n, d) features, (n, h, w[, c]) images."""
    if raw.dtype.kind == "U" and raw.ndim == 1:
        return "text", tuple(raw.tolist()), ()
    if raw.dtype.kind not in "biuf":
        raise DataError(
            f"{path}: array {key!r} does not hold numbers",
            expected="numbers",
            got=f"dtype {raw.dtype}",
            remedy="encode categories as numbers, or use a CSV table, where this is done for you",
        )
    if raw.ndim <= 2:
        return "features", raw.reshape(len(raw), -1).astype(np.float32), ()
    if raw.ndim > 4:
        raise DataError(
            f"{path}: array {key!r} has too many axes",
            expected="(records, features), (records, height, width) or with channels",
            got=f"shape {raw.shape}",
            remedy="reshape it",
        )
    notes: tuple[str, ...] = ()
    image = raw[:, None] if raw.ndim == 3 else raw
    if raw.ndim == 4 and raw.shape[3] in (1, 3, 4) and raw.shape[1] not in (1, 3):
        image = raw.transpose(0, 3, 1, 2)
        notes = ("channels were last and are now first",)
    scaled = image.astype(np.float32) / 255.0 if raw.dtype == np.uint8 else image.astype(np.float32)
    low, high = float(scaled.min()), float(scaled.max())
    if low < 0.0 or high > 1.0:
        raise DataError(
            f"{path}: the images in {key!r} are not scaled",
            expected="numbers in [0, 1], or bytes (dtype uint8)",
            got=f"dtype {raw.dtype}, numbers from {low:g} to {high:g}",
            remedy="save x.astype('uint8') for values up to 255, or divide by the largest value",
        )
    return "image", np.ascontiguousarray(scaled), notes


# ---------------------------------------------------------------- IDX


_IDX_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def idx_array(raw: bytes, source: str) -> npt.NDArray[Any]:
    """The array in an IDX file (the format of MNIST), any type and number of axes."""
    if len(raw) < 4 or raw[:2] != b"\0\0" or raw[2] not in _IDX_TYPES:
        raise DataError(
            f"{source} is not an IDX file",
            expected="two zero bytes, a type and the number of axes",
            got="0x" + raw[:4].hex() if raw else "an empty file",
            remedy="check that this is the right file, and unpacked",
        )
    axes = raw[3]
    head = 4 + 4 * axes
    shape = struct.unpack(f">{axes}I", raw[4:head]) if len(raw) >= head else ()
    kind = np.dtype(_IDX_TYPES[raw[2]])
    expected = head + math.prod(shape) * kind.itemsize
    if len(raw) < head or len(raw) != expected:
        raise DataError(
            f"{source} is torn",
            expected=f"{expected} bytes for shape {tuple(shape)}",
            got=f"{len(raw)} bytes",
            remedy="copy or download it again",
        )
    return np.frombuffer(raw, dtype=kind, offset=head).reshape(shape)


def _idx_images(folder: Path, part: str) -> Path | None:
    for ending in ("", ".gz"):
        for mark in ("-", "."):
            path = folder / f"{part}-images{mark}idx3-ubyte{ending}"
            if path.is_file():
                return path
    return None


def _read_idx(path: Path, name: str, labels: Path | None) -> Dataset:
    if path.is_dir():
        train = _idx_images(path, "train")
        assert train is not None
        own = _idx_images(path, "t10k") or _idx_images(path, "test")
        dataset = _read_idx(train, path.name, labels)
        if own is None:
            return dataset
        test = _read_idx(own, path.name, None)
        if len(test.classes) > len(dataset.classes):
            dataset = replace(dataset, classes=test.classes)
        return replace(dataset, test=replace(test, classes=dataset.classes))
    if labels is None:
        beside = path.name.replace("images", "labels").replace("idx3", "idx1")
        if "labels" in path.name and "images" not in path.name:
            raise DataError(
                f"{path} is the labels file",
                expected="the images file",
                got=path.name,
                remedy=f"give {path.name.replace('labels', 'images').replace('idx1', 'idx3')}",
            )
        labels = path.with_name(beside)
        if not labels.exists():
            other = labels.name[:-3] if labels.name.endswith(".gz") else labels.name + ".gz"
            labels = labels.with_name(other) if labels.with_name(other).exists() else labels
    if not labels.exists():
        raise DataError(
            f"{path}: there is no labels file",
            expected=str(labels),
            got="nothing there",
            remedy="put it beside the images, or name it with labels = ...",
        )
    images = idx_array(_raw(path), str(path))
    numbers = idx_array(_raw(labels), str(labels))
    if images.ndim not in (3, 4) or images.dtype != np.uint8 or numbers.ndim != 1:
        raise DataError(
            f"{path} and {labels} are not images and labels",
            expected="bytes of shape (records, height, width), and (records,)",
            got=f"shapes {images.shape} and {numbers.shape}",
            remedy="check that the two files were not exchanged",
        )
    if len(images) != len(numbers):
        raise DataError(
            f"{path}: images and labels do not fit",
            expected=f"{len(images)} labels",
            got=f"{len(numbers)} labels in {labels}",
            remedy="take images and labels of the same part",
        )
    _, x, notes = _array_records(str(path), "images", images)
    return Dataset(
        name=name,
        kind="image",
        x=x,
        y=numbers.astype(np.int64),
        classes=tuple(str(c) for c in range(int(numbers.max(initial=0)) + 1)),
        notes=notes,
    )


# ---------------------------------------------------------------- image folders


def _visible(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if not p.name.startswith("."))


def _read_images(
    path: Path, name: str, greyscale: bool | None, size: tuple[int, int] | None
) -> Dataset:
    if not path.is_dir():
        raise DataError(
            f"{path} is one file",
            expected="a folder with one folder of images per class",
            got="a file",
            remedy="give the folder",
        )
    folders = [p for p in _visible(path) if p.is_dir()]
    parts = {p.name.lower(): p for p in folders}
    if set(parts) in ({"train", "test"}, {"train", "val"}, {"train", "valid"}):
        train_path = parts.pop("train")
        (test_path,) = parts.values()
        dataset = _read_images(train_path, name, greyscale, size)
        assert isinstance(dataset.x, np.ndarray)
        grey = dataset.x.shape[1] == 1
        shape = (dataset.x.shape[2], dataset.x.shape[3]) if size is not None else None
        test = _read_images(test_path, name, grey, shape)
        assert isinstance(test.x, np.ndarray)
        if test.classes != dataset.classes or test.x.shape[1:] != dataset.x.shape[1:]:
            raise DataError(
                f"{path}: the two parts do not fit",
                expected=f"classes {', '.join(dataset.classes)}, images {dataset.x.shape[1:]}",
                got=f"classes {', '.join(test.classes)}, images {test.x.shape[1:]}",
                remedy="give both the same class folders, and a common size = [height, width]",
            )
        return replace(dataset, test=test)
    files = [
        (number, file)
        for number, folder in enumerate(folders)
        for file in sorted(folder.rglob("*"))
        if file.suffix.lower() in _IMAGES and not file.name.startswith(".")
    ]
    if len(folders) < 2 or not files:
        raise DataError(
            f"{path}: no classes of images",
            expected="at least two folders, one per class, with images in them",
            got=f"{len(folders)} folders, {len(files)} images ({', '.join(_IMAGES[:4])}, ...)",
            remedy="sort the images into one folder per class",
        )
    counts = Counter(number for number, _ in files)
    for number, folder in enumerate(folders):
        if not counts[number]:
            raise DataError(
                f"{folder} holds no images",
                expected=f"images ({', '.join(_IMAGES[:4])}, ...) of class {folder.name!r}",
                got="none",
                remedy="remove the folder or fill it",
            )
    x, notes = _load_images([file for _, file in files], greyscale, size)
    return Dataset(
        name=name,
        kind="image",
        x=x,
        y=np.array([number for number, _ in files], dtype=np.int64),
        classes=tuple(folder.name for folder in folders),
        notes=notes,
    )


def _load_images(
    files: Sequence[Path], greyscale: bool | None, size: tuple[int, int] | None
) -> tuple[npt.NDArray[np.float32], tuple[str, ...]]:
    """Images (n, 1 or 3, height, width) in [0, 1]."""
    from PIL import Image, UnidentifiedImageError

    def opened(file: Path) -> Any:
        try:
            with Image.open(file) as image:
                image.load()
                return image
        except (OSError, UnidentifiedImageError, ValueError, SyntaxError) as error:
            raise DataError(
                f"{file} cannot be read as an image",
                expected="an image file",
                got=str(error),
                remedy="replace or remove it",
            ) from None

    if size is not None and (len(size) != 2 or min(size) < 1):
        raise ConfigError(
            f"size cannot be {size!r}",
            expected="two whole numbers, height and width",
            got=repr(size),
            remedy="size = [32, 32]",
        )
    grey = greyscale
    if grey is None:
        grey = all(opened(f).mode in ("1", "L", "I", "I;16", "LA") for f in files)
    out: list[npt.NDArray[np.uint8]] = []
    first: tuple[int, int] | None = None
    for file in files:
        image = opened(file)
        if image.mode in ("I", "I;16"):
            # 16-bit grey: Pillow's own conversion clips at 255 instead of scaling
            deep = np.asarray(image, dtype=np.float64)
            image = Image.fromarray((deep / 257.0).clip(0, 255).astype(np.uint8))
        image = image.convert("L" if grey else "RGB")
        if size is not None:
            image = image.resize((size[1], size[0]), Image.Resampling.BILINEAR)
        shape = (image.height, image.width)
        if first is None:
            first = shape
        elif shape != first:
            raise DataError(
                f"{file} has another size than the images before it",
                expected=f"{first[0]} x {first[1]} (height x width), as {files[0]}",
                got=f"{shape[0]} x {shape[1]}",
                remedy=f"size = [{first[0]}, {first[1]}] brings all to one size",
            )
        pixels = np.asarray(image, dtype=np.uint8)
        out.append(pixels[None] if grey else pixels.transpose(2, 0, 1))
    notes = [] if size is None else [f"images brought to {size[0]} x {size[1]}"]
    if greyscale:
        notes.append("images turned to grey")
    return np.stack(out).astype(np.float32) / 255.0, tuple(notes)


# ---------------------------------------------------------------- JSONL


def json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Line number and object of every line that is not blank."""
    for number, line in enumerate(_text(path).split("\n"), start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise DataError(
                f"{path}, line {number}: this is not JSON",
                expected='one object per line, such as {"text": "..."}',
                got=f"{error.msg} at character {error.pos + 1}",
                remedy="correct the line (JSONL has no line breaks inside a record)",
            ) from None
        if not isinstance(record, dict):
            raise DataError(
                f"{path}, line {number}: this is not an object",
                expected='one object per line, such as {"text": "..."}',
                got=type(record).__name__,
                remedy="write one object per line",
            )
        yield number, record


def _read_jsonl(
    path: Path, name: str, text: str, label: str | None, owners: Mapping[str, str | None]
) -> Dataset:
    texts: list[str] = []
    lines: list[int] = []
    found: dict[str, list[str]] = {}
    wanted = {"label": label, **owners}
    roles: dict[str, str] = {}
    for number, record in json_lines(path):
        if not texts:
            # a column asked for by name must be there; the usual names are taken when there
            roles = {r: c or r for r, c in wanted.items() if c is not None or r in record}
        value = record.get(text)
        if not isinstance(value, str):
            raise DataError(
                f"{path}, line {number}: there is no text",
                expected=f"a key {text!r} with a text",
                got=f"keys {', '.join(record) or '(none)'}" if value is None else repr(value)[:60],
                remedy=nearest(text, record) if value is None and record else "correct the line",
            )
        texts.append(value)
        lines.append(number)
        for role, key in roles.items():
            cell = record.get(key)
            if cell is None or isinstance(cell, list | dict) or str(cell).strip() == "":
                raise DataError(
                    f"{path}, line {number}: the {role} is missing",
                    expected=f"a key {key!r} with a value, as every record must have one",
                    got=f"keys {', '.join(record)}" if cell is None else repr(cell)[:60],
                    remedy=nearest(key, record) if key not in record else "fill it in",
                )
            found.setdefault(role, []).append(_class_name(cell) if role == "label" else str(cell))
    if not texts:
        raise DataError(
            f"{path} holds no records",
            expected='one object per line, such as {"text": "..."}',
            got="an empty file",
            remedy="check that this is the right file",
        )
    y: npt.NDArray[np.int64] = np.zeros(len(texts), dtype=np.int64)
    classes: tuple[str, ...] = ()
    if "label" in found:
        y, classes = _labels(str(path), roles["label"], found.pop("label"), lines)
    columns = {role: tuple(values) for role, values in found.items()}
    _check_organisations(str(path), columns, lines)
    return Dataset(
        name=name,
        kind="text",
        x=tuple(texts),
        y=y,
        classes=classes,
        client=columns.get("client"),
        organisation=columns.get("organisation"),
        person=columns.get("person"),
    )


# ---------------------------------------------------------------- summaries


def describe(dataset: Dataset) -> dict[str, Any]:
    """A summary in plain JSON types: how many records, features, classes and owners."""
    out: dict[str, Any] = {
        "name": dataset.name,
        "kind": dataset.kind,
        "records": len(dataset),
        "classes": {},
    }
    if isinstance(dataset.x, np.ndarray):
        out["shape"] = list(dataset.x.shape[1:])
        out["features"] = math.prod(dataset.x.shape[1:])
        if dataset.columns:
            out["columns"] = list(dataset.columns)
    else:
        lengths = [len(text) for text in dataset.x]
        out["characters"] = sum(lengths)
        out["median_characters"] = float(np.median(lengths))
    if dataset.classes:
        counts = np.bincount(dataset.y, minlength=len(dataset.classes))
        out["classes"] = {c: int(k) for c, k in zip(dataset.classes, counts, strict=True)}
    for role in ("client", "organisation", "person"):
        owners = getattr(dataset, role)
        if owners is not None:
            sizes = Counter(owners)
            numbers = sorted(sizes.values())
            out[f"{role}s"] = {
                "count": len(sizes),
                "smallest": numbers[0],
                "median": float(np.median(numbers)),
                "largest": numbers[-1],
            }
            if role == "client":
                out["clients"]["sizes"] = dict(sorted(sizes.items()))
    if dataset.test is not None:
        out["test_records"] = len(dataset.test)
    if dataset.licence:
        out["licence"] = dataset.licence
    if dataset.notes:
        out["notes"] = list(dataset.notes)
    return out


@dataclass(frozen=True, kw_only=True)
class Suggestion:
    """What `sniff` would write into a config, and why; `reasons` maps a setting to a sentence."""

    path: str
    format: Format
    label: str | None = None
    client: str | None = None
    organisation: str | None = None
    person: str | None = None
    ignore: tuple[str, ...] = ()
    missing: Missing = "refuse"
    decimal: Literal[".", ","] = "."
    columns: tuple[str, ...] = ()
    records_seen: int = 0
    reasons: Mapping[str, str] | None = None


# Sought in this order, as a whole name first and as a word of a longer name second.
_NAMES: Mapping[str, tuple[str, ...]] = {
    "label": (
        "label", "target", "y", "outcome", "class", "diagnosis", "labels", "income", "default",
        "churn", "survived", "response", "result", "category", "disease", "readmitted",
    ),
    "client": (
        "client", "site", "hospital", "bank", "user", "owner", "institution", "centre", "center",
        "clinic", "branch", "device", "school", "store", "company", "party",
    ),
    "organisation": (
        "organisation", "organization", "org", "region", "network", "group", "consortium",
        "country", "state",
    ),
    "person": ("person", "patient", "subject", "individual", "customer", "participant", "pid"),
    "ignore": ("id", "index", "row", "uuid", "name", "date", "timestamp", "zip", "postcode"),
}  # fmt: skip


def _words(column: str) -> list[str]:
    """`patientId`, `patient_id` and `Patient ID` are all ["patient", "id"]."""
    spaced = re.sub(r"([a-z0-9])([A-Z])", r"\1 \2", column)
    return [w for w in re.split(r"[^a-z0-9]+", spaced.lower()) if w]


def _by_name(columns: Sequence[str], names: Sequence[str]) -> tuple[str, str] | None:
    for tail in ([], ["id"], ["name"], ["number"], ["code"]):
        for wanted in names:
            for column in columns:
                if _words(column) == [wanted, *tail]:
                    return column, f"the column is called {column!r}"
    for wanted in names:
        for column in columns:
            if len(wanted) > 2 and wanted in _words(column):
                return column, f"the name {column!r} contains {wanted!r}"
    return None


def _guess_label(table: Table) -> tuple[str, str]:
    """The likeliest label column, and why."""
    columns = [c for c in table.columns if len(set(table.columns[c])) > 1]
    found = _by_name(columns, _NAMES["label"])
    if found is not None:
        return found
    return list(table.columns)[-1], "the last column"


def sniff(path: str | Path) -> Suggestion:
    """How `read` should be called for `path`, guessed from names and the first 10,000 records."""
    place = Path(path)
    kind = file_format(place)
    reasons: dict[str, str] = {"format": _FORMAT_REASONS[kind](place)}
    if kind == "npz":
        arrays = tuple(sorted(_npz_arrays(place)))
        found: dict[str, str] = {r: r for r in ("client", "organisation", "person") if r in arrays}
        reasons |= {r: f"the file has an array {r!r}" for r in found}
        label = "y" if "y" in arrays else None
        return Suggestion(
            path=str(place), format=kind, columns=arrays, label=label, reasons=reasons,
            client=found.get("client"), organisation=found.get("organisation"),
            person=found.get("person"),
        )  # fmt: skip
    if kind == "jsonl":
        keys: list[str] = []
        count = 0
        for _, record in json_lines(place):
            keys += [k for k in record if k not in keys]
            count += 1
            if count >= 10_000:
                break
        found = {r: r for r in ("label", "client", "organisation", "person") if r in keys}
        for role in ("label", "client", "person"):
            guess = _by_name([k for k in keys if k != "text"], _NAMES[role])
            if role not in found and guess is not None and guess[0] not in found.values():
                found[role] = guess[0]
        reasons |= {r: f"records have a key {k!r}" for r, k in found.items()}
        return Suggestion(
            path=str(place), format=kind, columns=tuple(keys), records_seen=count,
            reasons=reasons, label=found.get("label"), client=found.get("client"),
            organisation=found.get("organisation"), person=found.get("person"),
        )  # fmt: skip
    if kind != "table":
        return Suggestion(path=str(place), format=kind, reasons=reasons)
    return _sniff_table(place, reasons)


def _sniff_table(place: Path, reasons: dict[str, str]) -> Suggestion:
    table = read_table(place, limit=10_000)
    n = len(table.lines)
    label, reasons["label"] = _guess_label(table)
    found: dict[str, str] = {}
    for role in ("person", "client", "organisation"):
        free = [c for c in table.columns if c != label and c not in found.values()]
        if role != "person":
            # an owner has several records, and there are at least two of them
            free = [c for c in free if 2 <= len(set(table.columns[c])) <= max(2, n // 2)]
        if role == "organisation":
            if "client" not in found:
                break
            free = [c for c in free if _constant_within(table, found["client"], c)]
        guess = _by_name(free, _NAMES[role])
        if guess is not None:
            found[role], why = guess
            distinct = len(set(table.columns[found[role]]))
            reasons[role] = f"{why}; {distinct} different values in {n} records"
    ignore: list[str] = []
    comma = False
    for column, cells in table.columns.items():
        if column == label or column in found.values():
            continue
        filled = [c for c in cells if not _is_missing(c)]
        distinct = len(set(filled))
        numeric = all(_NUMBER.fullmatch(c) for c in filled)
        commas = (
            bool(filled)
            and table.delimiter != ","
            and not numeric
            and all(_NUMBER.fullmatch(c) or _DECIMAL_COMMA.fullmatch(c) for c in filled)
        )
        comma |= commas
        if not filled:
            ignore.append(column)
            reasons[f"ignore {column}"] = "the column is empty"
        elif distinct == len(filled) > 20 and _by_name([column], _NAMES["ignore"]) is not None:
            ignore.append(column)
            reasons[f"ignore {column}"] = "looks like an identifier: different in every record"
        elif not numeric and not commas and distinct > 20 and distinct > len(filled) / 2:
            ignore.append(column)
            reasons[f"ignore {column}"] = f"free text: {distinct} different values in {n} records"
    if comma:
        reasons["decimal"] = "numbers are written with a comma"
    used = [c for c in table.columns if c not in ignore]
    holes = {c: sum(map(_is_missing, table.columns[c])) for c in used}
    holes = {c: k for c, k in holes.items() if k}
    missing: Missing = "refuse"
    if holes:
        owned = [label, *found.values()]
        missing = "drop" if any(c in holes for c in owned) else "mean"
        reasons["missing"] = _counted(holes)
    return Suggestion(
        path=str(place), format="table", label=label, ignore=tuple(ignore), missing=missing,
        decimal="," if comma else ".", columns=tuple(table.columns), records_seen=n,
        reasons=reasons, client=found.get("client"), organisation=found.get("organisation"),
        person=found.get("person"),
    )  # fmt: skip


def _constant_within(table: Table, client: str, column: str) -> bool:
    belongs: dict[str, str] = {}
    pairs = zip(table.columns[client], table.columns[column], strict=True)
    return all(belongs.setdefault(who, where) == where for who, where in pairs)


_FORMAT_REASONS: Mapping[Format, Callable[[Path], str]] = {
    "table": lambda path: f"a file ending in {_suffix(path)} is a table",
    "npz": lambda path: "a file ending in .npz holds numpy arrays",
    "idx": lambda path: "IDX files are named ...-images-idx3-ubyte",
    "images": lambda path: "a folder of folders holds images, one folder per class",
    "jsonl": lambda path: f"a file ending in {_suffix(path)} holds one JSON object per line",
}
