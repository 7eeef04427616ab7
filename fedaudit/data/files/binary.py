"""Rows of Parquet and Excel files as text cells. Reading them needs the extra `tables`."""

from __future__ import annotations

import importlib
import io
import math
from collections.abc import Iterator
from datetime import datetime, time
from pathlib import Path
from typing import Any

from fedaudit.data.files.raw import raw_bytes
from fedaudit.errors import DataError

BINARY = (".parquet", ".pq", ".xlsx", ".xlsm")

NumberedCells = Iterator[tuple[int, list[str]]]


def binary_rows(path: Path, suffix: str, limit: int | None = None) -> NumberedCells:
    """(row number, cells) of a Parquet or Excel file, the names of the columns first."""
    read = _parquet if suffix in (".parquet", ".pq") else _excel
    try:
        for number, cells in read(path):
            if limit is not None and number > limit + 1:
                return
            yield number, [_text(cell) for cell in cells]
    except (FileNotFoundError, DataError):
        raise
    except Exception as error:  # each library raises errors of its own on a damaged file
        raise DataError(
            f"{path} cannot be read",
            expected=f"a whole {suffix} file",
            got=f"{type(error).__name__}: {str(error)[:80]}",
            remedy="save it again, or save it as CSV",
        ) from None


def _parquet(path: Path) -> Iterator[tuple[int, list[Any]]]:
    parquet = _library("pyarrow.parquet", path)
    table = parquet.read_table(io.BytesIO(raw_bytes(path)))
    yield 1, list(table.column_names)
    number = 1
    for batch in table.to_batches():
        for row in zip(*(c.to_pylist() for c in batch.columns), strict=True):
            number += 1
            yield number, list(row)


def _excel(path: Path) -> Iterator[tuple[int, list[Any]]]:
    """The only sheet of a workbook that holds something."""
    openpyxl = _library("openpyxl", path)
    book = openpyxl.load_workbook(io.BytesIO(raw_bytes(path)), read_only=True, data_only=True)
    full = [s for s in book.worksheets if any(any(c is not None for c in r) for r in s.values)]
    if len(full) > 1:
        raise DataError(
            f"{path} has {len(full)} sheets",
            expected="one sheet with a table",
            got=", ".join(repr(s.title) for s in full[:8]),
            remedy="save each sheet as a file of its own; a folder of tables is one site per file",
        )
    for sheet in full:
        rows = [list(row) for row in sheet.values]
        width = max((i + 1 for row in rows for i, c in enumerate(row) if c is not None), default=0)
        for number, row in enumerate(rows, 1):
            yield number, (row + [None] * width)[:width]


def _library(name: str, path: Path) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise DataError(
            f"reading {path} needs {name.partition('.')[0]}, which is not installed",
            expected="the libraries that read Parquet and Excel files",
            got="fedaudit without its extra for tables",
            remedy='pip install "fedaudit[tables]", or save it as CSV',
        ) from None


def _text(cell: Any) -> str:
    if cell is None or (isinstance(cell, float) and math.isnan(cell)):
        return ""
    if isinstance(cell, float) and cell.is_integer() and abs(cell) < 2**53:
        return str(int(cell))
    if isinstance(cell, datetime) and cell.time() == time():
        return cell.date().isoformat()
    return str(cell)
