"""Read CSV and TSV files: cells as text, with line numbers."""

from __future__ import annotations

import csv
import io
import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedaudit.data.files.binary import BINARY, binary_rows
from fedaudit.data.files.cells import MISSING_WORDS, NUMBER
from fedaudit.data.files.raw import plain_suffix, utf8_text
from fedaudit.errors import DataError

TABLES = (".csv", ".tsv", ".tab", ".txt", ".data", ".parquet", ".pq", ".xlsx", ".xlsm")
"""Endings of files that hold a table."""
HEADLESS = ".data"
"""Ending of tables that often have no header line, such as those of the UCI repository."""

_END = "\0"
_DELIMITERS = (",", ";", "\t", "|")


@dataclass(frozen=True)
class FileTable:
    """A table's cells as text: `columns[name][row]`; `lines[row]` is the row's line in the file.

    In a table of several files, a line is "7 of va.csv".
    """

    path: str
    delimiter: str
    columns: Mapping[str, list[str]]
    lines: Sequence[int | str]
    notes: tuple[str, ...] = ()


def _delimiter(text: str, suffix: str) -> str:
    """The delimiter that divides the first lines most evenly, then into most fields."""
    if suffix in (".tsv", ".tab"):
        return "\t"
    # whole lines only: a partial line has too few fields
    sample = text[:65536].splitlines()[:30]
    if len(text) > 65536 and len(sample) < 30:
        sample = sample[:-1] or sample
    best, score = ",", (0.0, 0)
    for mark in _DELIMITERS:
        try:
            widths = [len(row) for row in csv.reader(sample, delimiter=mark) if row]
        except csv.Error:
            continue
        if widths and widths[0] > 1:
            agree = sum(w == widths[0] for w in widths) / len(widths)
            if (agree, widths[0]) > score:
                best, score = mark, (agree, widths[0])
    return best


def read_table(path: Path, *, header: bool | None = None, limit: int | None = None) -> FileTable:
    """Read a table, at most `limit` records.

    `header`: whether the first line names the columns; None: it does, except that a `.data` file
    is looked at. Columns without names are called "column 1", "column 2", ...
    """
    suffix = plain_suffix(path)
    if suffix in BINARY:
        grid = [(i, cells) for i, cells in binary_rows(path, suffix, limit) if any(cells)]
        return _of_grid(path, ",", grid, header)
    return _of_grid(path, *_text_rows(path, limit), header)


def _text_rows(path: Path, limit: int | None) -> tuple[str, list[tuple[int, list[str]]]]:
    """The delimiter of a text table, and (line, cells) of its rows, header included."""
    text = utf8_text(path)
    if "\0" in text:
        raise DataError(
            f"{path} is not a text table",
            expected="a CSV or TSV file",
            got="binary data",
            remedy="save it as CSV",
        )
    delimiter = _delimiter(text, plain_suffix(path))
    # an end marker: an open quotation mark swallows it
    source = itertools.chain(io.StringIO(text, newline=""), [_END])
    reader = csv.reader(source, delimiter=delimiter)
    rows: list[tuple[int, list[str]]] = []
    begin = 1
    try:
        for row in reader:
            line, begin = begin, reader.line_num + 1
            if row == [_END]:
                break
            if row and row[-1].endswith(_END):
                raise DataError(
                    f"{path}, line {line}: a quotation mark is never closed",
                    expected="fields with balanced quotation marks",
                    got="the end of the file inside a field",
                    remedy="close it, or double it where it is part of the text",
                )
            if not row or (len(row) == 1 and not row[0].strip()):
                continue
            rows.append((line, row))
            if limit is not None and len(rows) > limit:
                break
    except csv.Error as error:
        raise DataError(
            f"{path}, line {begin}: this line cannot be read",
            expected="fields with balanced quotation marks",
            got=str(error),
            remedy="correct the line",
        ) from None
    return delimiter, rows


def _of_grid(
    path: Path, delimiter: str, grid: list[tuple[int, list[str]]], header: bool | None
) -> FileTable:
    """A table from (line, cells) of its rows."""
    notes: list[str] = []
    named = _has_header(path, grid) if header is None else header
    if grid and not named:
        grid = [(0, [f"column {i + 1}" for i in range(len(grid[0][1]))]), *grid]
        notes.append("without a header line: columns are called by their numbers")
    if len(grid) < 2:
        raise DataError(
            f"{path} holds no records",
            expected="a header line and at least one record",
            got="a header line only" if grid else "an empty file",
            remedy="check that this is the right file",
        )
    (at, first), *rows = grid
    names = _header(path, [cell.strip() for cell in first], at)
    for line, row in rows:
        if len(row) != len(names):
            raise DataError(
                f"{path}, line {line}: wrong number of fields",
                expected=f"{len(names)} fields, as in the {'header' if named else 'first line'}",
                got=f"{len(row)} fields",
                remedy=_ragged_remedy(delimiter, len(row), len(names)),
            )
    cells = [[c.strip() for c in column] for column in zip(*(r for _, r in rows), strict=True)]
    columns = dict(zip(names, cells, strict=True))
    if names[0] == "":
        # pandas writes its index like this; any other unnamed column is a mistake
        if cells[0] != [str(i) for i in range(len(rows))]:
            raise DataError(
                f"{path}, line 1: the first column has no name",
                expected="a name for every column",
                got="an empty name",
                remedy="name it in the header line",
            )
        del columns[""]
        notes.append("the first column, without a name, only counts the records: left out")
    return FileTable(str(path), delimiter, columns, [line for line, _ in rows], tuple(notes))


def _has_header(path: Path, grid: list[tuple[int, list[str]]]) -> bool:
    """Whether the first row names the columns: always, but for files that often do without.

    There, names are neither numbers nor missing, differ, and do not come again as values.
    """
    if plain_suffix(path) != HEADLESS or not grid:
        return True
    first = [c.strip() for c in grid[0][1]]
    if any(NUMBER.fullmatch(c) or c.lower() in MISSING_WORDS for c in first):
        return False
    if len(set(first)) < len(first):
        return False
    below = [{c.strip() for c in col} for col in zip(*(r for _, r in grid[1:]), strict=False)]
    return not any(c in column for c, column in zip(first, below, strict=False))


def _header(path: Path, names: list[str], line: int) -> list[str]:
    if all(NUMBER.fullmatch(n) or n.lower() in MISSING_WORDS for n in names) and any(names):
        raise DataError(
            f"{path}, line {line}: the header line is missing",
            expected="the names of the columns",
            got=f"{len(names)} fields, only numbers",
            remedy="put one line with the column names at the top of the file, or header = false",
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
