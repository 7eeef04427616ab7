"""Read CSV and TSV files: cells as text, with line numbers."""

from __future__ import annotations

import csv
import io
import itertools
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fedaudit.data.files.cells import MISSING_WORDS, NUMBER
from fedaudit.data.files.raw import plain_suffix, utf8_text
from fedaudit.errors import DataError

_END = "\0"
_DELIMITERS = (",", ";", "\t", "|")


@dataclass(frozen=True)
class FileTable:
    """A table's cells as text: `columns[name][row]`; `lines[row]` is the row's line in the file."""

    path: str
    delimiter: str
    columns: Mapping[str, list[str]]
    lines: list[int]
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


def read_table(path: Path, *, limit: int | None = None) -> FileTable:
    """Read a CSV or TSV file, at most `limit` records."""
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
    header: list[str] | None = None
    rows: list[list[str]] = []
    lines: list[int] = []
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
            f"{path}, line {begin}: this line cannot be read",
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
    return FileTable(str(path), delimiter, columns, lines, tuple(notes))


def _header(path: Path, names: list[str], line: int) -> list[str]:
    if all(NUMBER.fullmatch(n) or n.lower() in MISSING_WORDS for n in names) and any(names):
        raise DataError(
            f"{path}, line {line}: the header line is missing",
            expected="the names of the columns",
            got=f"{len(names)} fields, only numbers",
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
