"""Read a folder of tables, one or several per site, as one table that remembers its files."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path

from fedaudit.data.files.raw import plain_stem, plain_suffix
from fedaudit.data.files.table import TABLES, FileTable, read_table
from fedaudit.errors import DataError

FILE, FOLDER = "(file)", "(folder)"
"""Columns of a folder of tables: the name of a record's file, and of the folder around it."""
PLACES = (FILE, FOLDER)


def tables_in(folder: Path, only: str | None = None) -> list[Path]:
    """The tables of a folder and of the folders in it, in order; `only`: a pattern of names."""
    endings = {*TABLES} - {".txt"}  # a text file in a folder is usually a description
    found = [
        p
        for p in sorted([*folder.glob("*"), *folder.glob("*/*")])
        if plain_suffix(p) in endings and not p.name.startswith((".", "~$")) and p.is_file()
    ]
    return [p for p in found if only is None or fnmatch(p.name, only)]


def read_sites(
    folder: Path, only: str | None = None, *, header: bool | None = None, limit: int | None = None
) -> FileTable:
    """All tables of a folder as one, with the columns `FILE` and, if it matters, `FOLDER`.

    `limit`: at most this many records of each file.
    """
    paths = tables_in(folder, only)
    if not paths:
        raise DataError(
            f"{folder}: no table {'' if only is None else f'called {only} '}lies here",
            expected="a table per site, or a folder of tables per site",
            got="other files",
            remedy="check the folder" if only is None else 'change files = "*"',
        )
    tables = [read_table(p, header=header, limit=limit) for p in paths]
    _same_columns(folder, paths, tables)
    columns = {
        name: [cell for t in tables for cell in t.columns[name]] for name in tables[0].columns
    }
    places = _places(folder, paths)
    for name, of_file in places.items():
        columns[name] = [place for place, t in zip(of_file, tables, strict=True) for _ in t.lines]
    notes = [f"{len(paths)} tables read as one: {', '.join(_short(folder, paths))}"]
    notes += dict.fromkeys(note for t in tables for note in t.notes)
    return replace(
        tables[0],
        path=str(folder),
        columns=columns,
        lines=[
            f"{line} of {name}"
            for name, t in zip(_short(folder, paths), tables, strict=True)
            for line in t.lines
        ],
        notes=tuple(notes),
    )


def _short(folder: Path, paths: Sequence[Path]) -> list[str]:
    return [p.relative_to(folder).as_posix() for p in paths]


def _places(folder: Path, paths: Sequence[Path]) -> dict[str, list[str]]:
    """The name of each file without what all names share, and of its folder, if there are several.

    processed.cleveland.data and processed.hungarian.data are "cleveland" and "hungarian".
    """
    stems = [plain_stem(p) for p in paths]
    parts = [s.split(".") for s in stems]
    while len(parts) > 1 and min(map(len, parts)) > 1 and len({p[0] for p in parts}) == 1:
        parts = [p[1:] for p in parts]
    names = [".".join(p) for p in parts]
    folders = [p.parent.name if p.parent != folder else "" for p in paths]
    if len(set(folders)) == 1:
        if len(set(names)) == len(names):
            return {FILE: names}
        names = stems
    return {FILE: names, FOLDER: [f or folder.name for f in folders]}


def _same_columns(folder: Path, paths: Sequence[Path], tables: Sequence[FileTable]) -> None:
    """Refuse tables of one folder that do not have the same columns."""
    kinds = Counter(frozenset(t.columns) for t in tables)
    usual = set(kinds.most_common(1)[0][0])
    for path, table in zip(paths, tables, strict=True):
        lacks, more = usual - set(table.columns), set(table.columns) - usual
        if lacks or more:
            differs = [f"without {sorted(lacks)[:5]}"] if lacks else []
            differs += [f"with {sorted(more)[:5]} besides"] if more else []
            raise DataError(
                f"{os.path.relpath(path, folder)} in {folder} has other columns",
                expected=f"the {len(usual)} columns of most tables here",
                got=" and ".join(differs),
                remedy='rename or add columns, or read some of the files: files = "processed.*"',
            )


def client_place(table: FileTable) -> tuple[str, str | None, str, bool]:
    """(client, organisation, reason, doubtful): which of file and folder is a site.

    The same file names in every folder, or one file per folder: the folder is the site. Otherwise
    each file is one, and its folder the organisation; if the files of a folder could as well be
    parts of one site, the reading is doubtful.
    """
    if FOLDER not in table.columns:
        return FILE, None, "one table per site", False
    pairs = set(zip(table.columns[FOLDER], table.columns[FILE], strict=True))
    folders = {f for f, _ in pairs}
    files = Counter(name for _, name in pairs)
    if len(pairs) == len(folders):
        return FOLDER, None, "one folder per site", False
    if max(files.values()) > 1:
        return FOLDER, None, "one folder per site, with files of the same names", False
    if all(any(c.isdigit() for c in name) for name in files):
        return FOLDER, None, "one folder per site; the names of its files are numbered", True
    return FILE, FOLDER, "one table per site; folders are organisations", True
