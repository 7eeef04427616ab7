"""Read the clients of an allocation from a table and an edge list."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedaudit.data.files.cells import NUMBER, is_missing
from fedaudit.data.files.table import FileTable, read_table
from fedaudit.errors import DataError, UsageError
from fedaudit.federation.topology import edge_list
from fedaudit.randomness import Seed


@dataclass(frozen=True)
class Clients:
    """The clients of an allocation; `numbered`: the table has no names, rows are counted."""

    names: tuple[str, ...]
    numbered: bool
    sizes: npt.NDArray[np.int64] | None
    groups: tuple[str, ...] | None
    edges: tuple[tuple[int, int], ...] | None
    table: FileTable | None = None

    @property
    def n(self) -> int:
        return len(self.names)


def read_clients(
    path: Path,
    size_column: str | None,
    group_column: str | None,
    client_column: str | None,
    edges: str | Path | None,
) -> Clients:
    """The clients of a table, one row each, and the edges between them."""
    table = read_table(path)
    sizes = groups = None
    if size_column is not None:
        sizes = np.array(numbers(table, size_column, whole=True)).astype(np.int64)
    if group_column is not None:
        groups = tuple(_texts(table, group_column))
    names, numbered = _names(table, client_column, {size_column, group_column})
    pairs = None
    if edges is not None:
        # edges use the table's names; if it has none, they count rows from 0
        known = None if numbered else names
        pairs = edge_list(len(names), Seed(0), path=edges, clients=known).edges
    return Clients(names, numbered, sizes, groups, pairs, table)


def _names(
    table: FileTable, client_column: str | None, used: set[str | None]
) -> tuple[tuple[str, ...], bool]:
    """Names of the clients, and whether these are only row numbers."""
    rows = len(table.lines)
    if client_column is None:
        # a column with a usual name, else the first column of distinct words
        usual = [c for c in table.columns if c.lower() in ("client", "site", "name", "id")]
        words = [
            c
            for c, cells in table.columns.items()
            if c not in used
            and len(set(cells)) == rows
            and not any(is_missing(v) or NUMBER.fullmatch(v) for v in cells)
        ]
        found = [c for c in usual if c not in used] or words
        if not found:
            width = len(str(rows - 1))
            return tuple(f"client-{i:0{width}d}" for i in range(rows)), True
        client_column = found[0]
    names = tuple(_texts(table, client_column))
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        at = [line for line, name in zip(table.lines, names, strict=True) if name == twice[0]]
        raise DataError(
            f"{table.path}: client {twice[0]!r} has several rows",
            expected=f"one row per client in column {client_column!r}",
            got="lines " + ", ".join(map(str, at[:5])),
            remedy="merge the rows, or name another column with `client_column`",
        )
    return names, False


def _cells(table: FileTable, column: str) -> list[str]:
    if column not in table.columns:
        raise DataError.unknown(f"{table.path} has no column {column!r}", column, table.columns)
    return list(table.columns[column])


def _texts(table: FileTable, column: str) -> list[str]:
    cells = _cells(table, column)
    for line, cell in zip(table.lines, cells, strict=True):
        if is_missing(cell):
            raise DataError(
                f"{table.path}, line {line}: column {column!r} is empty",
                expected="a name for every client",
                got=repr(cell),
                remedy="fill it in",
            )
    return cells


def numbers(table: FileTable, column: str, *, whole: bool = False) -> list[float]:
    """A column of finite numbers of at least 0; `whole`: numbers of records, at least 1."""
    out = []
    for line, cell in zip(table.lines, _cells(table, column), strict=True):
        value = float(cell) if NUMBER.fullmatch(cell) else math.nan
        least = 1 if whole else 0
        if not least <= value < math.inf or (whole and value != int(value)):
            raise DataError(
                f"{table.path}, line {line}: column {column!r} cannot be used",
                expected="a whole number of records, at least 1"
                if whole
                else "a finite number of 0 or more",
                got=repr(cell),
                remedy="correct the value (digits and a decimal point only), or name another "
                "column",
            )
        out.append(value)
    return out


def no_sizes(what: str) -> UsageError:
    """The error if `what` needs sizes and no column gives them."""
    return UsageError(
        f"{what} needs the sizes of the clients",
        expected="a column with the number of training records",
        got="no `size_column`",
        remedy="`size_column=NAME`",
    )
