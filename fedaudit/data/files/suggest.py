"""Suggest how to read a file, from its names and first records."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fedaudit.data.files.arrays import npz_arrays
from fedaudit.data.files.cells import (
    DECIMAL_COMMA,
    NUMBER,
    describe_missing,
    first_change,
    is_missing,
)
from fedaudit.data.files.encode import Missing
from fedaudit.data.files.jsonl import json_lines
from fedaudit.data.files.raw import plain_suffix
from fedaudit.data.files.reading import Format, file_format, whole_table
from fedaudit.data.files.roles import (
    LAST_COLUMN,
    ROLE_NAMES,
    by_name,
    guess_label,
    names_an_owner,
    other_labels,
)
from fedaudit.data.files.sites import FILE, FOLDER, PLACES, client_place
from fedaudit.data.files.table import FileTable


@dataclass(frozen=True)
class OpenQuestion:
    """A setting with readings that are about equally likely; the first one is suggested."""

    setting: str
    options: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Suggestion:
    """Suggested settings of a data file; `reasons` maps a setting to a sentence."""

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
    questions: tuple[OpenQuestion, ...] = ()
    files: str | None = None


_FORMAT_REASONS: Mapping[Format, Callable[[Path], str]] = {
    "table": lambda path: (
        "a folder of tables"
        if path.is_dir()
        else f"a file ending in {plain_suffix(path)} is a table"
    ),
    "npz": lambda path: "a file ending in .npz holds numpy arrays",
    "idx": lambda path: "IDX files are named ...-images-idx3-ubyte",
    "images": lambda path: "a folder of folders holds images, one folder per class",
    "jsonl": lambda path: f"a file ending in {plain_suffix(path)} holds one JSON object per line",
}


def sniff(path: str | Path, files: str | None = None) -> Suggestion:
    """Suggest arguments of `read` for `path`, from names and the first 10,000 records."""
    place = Path(path)
    kind = file_format(place)
    reasons: dict[str, str] = {"format": _FORMAT_REASONS[kind](place)}
    if kind == "npz":
        arrays = tuple(sorted(npz_arrays(place)))
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
            guess = by_name([k for k in keys if k != "text"], ROLE_NAMES[role])
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
    return _sniff_table(place, reasons, files)


def _sniff_table(place: Path, reasons: dict[str, str], only: str | None) -> Suggestion:
    table = whole_table(place, only=only, limit=10_000)
    n = len(table.lines)
    label, reasons["label"] = guess_label(table)
    questions = []
    others = other_labels(table, label)
    if reasons["label"] == LAST_COLUMN:
        others = [c for c in _few_values(table) if c not in (label, *others)] + others
    if others:
        questions.append(OpenQuestion("label", (label, *others[:4])))
    found = _owner_columns(table, label, reasons)
    if place.is_dir():
        questions += _place_clients(table, found, reasons)
    rivals = [
        c
        for c in table.columns
        if names_an_owner(c) and c not in found.values() and _several_owners(table, c)
    ]
    if "client" in found and rivals and not any(q.setting == "client" for q in questions):
        same = [c for c in rivals if _same_grouping(table, c, found["client"])]
        rivals = [c for c in rivals if c not in same]
        if rivals:
            questions.append(OpenQuestion("client", (found["client"], *rivals[:4])))
    ignore: list[str] = []
    comma = False
    for column, cells in table.columns.items():
        if column == label or column in found.values() or column in PLACES:
            continue
        filled = [c for c in cells if not is_missing(c)]
        commas = table.delimiter != "," and _has_decimal_commas(filled)
        comma |= commas
        why = _why_ignored(column, filled, texts=not commas)
        if not why and "client" in found and _same_grouping(table, column, found["client"]):
            why = "it says who the client is, as the client column does"
        if why:
            ignore.append(column)
            reasons[f"ignore {column}"] = why
    if comma:
        reasons["decimal"] = "numbers are written with a comma"
    used = [c for c in table.columns if c not in ignore]
    holes = {c: sum(map(is_missing, table.columns[c])) for c in used}
    holes = {c: k for c, k in holes.items() if k}
    missing: Missing = "refuse"
    if holes:
        owned = [label, *found.values()]
        missing = "drop" if any(c in holes for c in owned) else "mean"
        reasons["missing"] = describe_missing(holes)
    return Suggestion(
        path=str(place), format="table", label=label, ignore=tuple(ignore), missing=missing,
        decimal="," if comma else ".", columns=tuple(table.columns), records_seen=n,
        reasons=reasons, client=found.get("client"), organisation=found.get("organisation"),
        person=found.get("person"), questions=tuple(questions), files=only,
    )  # fmt: skip


def _has_decimal_commas(filled: Sequence[str]) -> bool:
    """Whether all cells are numbers, and some are written as 1,5."""
    plain = [NUMBER.fullmatch(c) is not None for c in filled]
    return not all(plain) and all(
        p or DECIMAL_COMMA.fullmatch(c) for p, c in zip(plain, filled, strict=True)
    )


def _why_ignored(column: str, filled: Sequence[str], *, texts: bool) -> str:
    """Why a column of these cells is no feature; empty if it is one."""
    if not filled:
        return "the column is empty"
    distinct = len(set(filled))
    if distinct == len(filled) > 20 and by_name([column], ROLE_NAMES["ignore"]) is not None:
        return "looks like an identifier: different in every record"
    # a few texts among numbers are mistakes, which the reader names
    numbers = sum(NUMBER.fullmatch(c) is not None for c in filled)
    if texts and 2 * numbers < len(filled) and distinct > max(20, len(filled) / 2):
        return f"free text: {distinct} different values in {len(filled)} records"
    return ""


def _owner_columns(table: FileTable, label: str, reasons: dict[str, str]) -> dict[str, str]:
    """The columns called after a person, a client and an organisation, by role."""
    found: dict[str, str] = {}
    n = len(table.lines)
    for role in ("person", "client", "organisation"):
        free = [c for c in table.columns if c != label and c not in (*found.values(), *PLACES)]
        if role != "person":
            free = [c for c in free if _several_owners(table, c)]
        if role == "organisation":
            if "client" not in found:
                break
            clients = table.columns[found["client"]]
            free = [c for c in free if first_change(clients, table.columns[c]) is None]
            free = [c for c in free if not _same_grouping(table, c, found["client"])]
        guess = by_name(free, ROLE_NAMES[role])
        if guess is not None:
            found[role], why = guess
            distinct = len(set(table.columns[found[role]]))
            reasons[role] = f"{why}; {distinct} different values in {n} records"
    return found


def _place_clients(
    table: FileTable, found: dict[str, str], reasons: dict[str, str]
) -> list[OpenQuestion]:
    """Make files or folders the clients unless a column says the same; returns open questions."""
    column = found.get("client")
    client, organisation, why, doubtful = client_place(table)
    if len(set(table.columns[client])) < 2:
        return []  # a single file: its columns alone say who holds a record
    if column is not None and _same_grouping(table, column, client):
        return []
    questions = []
    if column is not None:
        questions.append(OpenQuestion("client", (client, column)))
        del found["client"]
        found.pop("organisation", None)
    elif doubtful:
        questions.append(OpenQuestion("client", (client, FILE if client == FOLDER else FOLDER)))
    found["client"] = client
    distinct = len(set(table.columns[client]))
    reasons["client"] = f"{why}; {distinct} in {len(table.lines)} records"
    if organisation is not None and "organisation" not in found:
        found["organisation"] = organisation
        reasons["organisation"] = "the folder around the table"
    return questions


def _several_owners(table: FileTable, column: str) -> bool:
    """At least two owners, with several records each."""
    return 2 <= len(set(table.columns[column])) <= max(2, len(table.lines) // 2)


def _same_grouping(table: FileTable, one: str, other: str) -> bool:
    """Whether two columns with at least three values each split the records in the same way."""
    a, b = table.columns[one], table.columns[other]
    pairs = set(zip(a, b, strict=True))
    return 3 <= len(pairs) == len(set(a)) == len(set(b))


def _few_values(table: FileTable) -> list[str]:
    """The columns with so few different values that they could be classes."""
    few = max(2, min(10, len(table.lines) // 5))
    return [
        c
        for c, cells in table.columns.items()
        if c not in PLACES and not names_an_owner(c) and 2 <= len(set(cells)) <= few
    ]
