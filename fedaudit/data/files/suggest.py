"""Suggest how to read a file, from its names and first records."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
from fedaudit.data.files.reading import Format, file_format
from fedaudit.data.files.roles import ROLE_NAMES, by_name, guess_label
from fedaudit.data.files.table import read_table


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


_FORMAT_REASONS: Mapping[Format, Callable[[Path], str]] = {
    "table": lambda path: f"a file ending in {plain_suffix(path)} is a table",
    "npz": lambda path: "a file ending in .npz holds numpy arrays",
    "idx": lambda path: "IDX files are named ...-images-idx3-ubyte",
    "images": lambda path: "a folder of folders holds images, one folder per class",
    "jsonl": lambda path: f"a file ending in {plain_suffix(path)} holds one JSON object per line",
}


def sniff(path: str | Path) -> Suggestion:
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
    return _sniff_table(place, reasons)


def _sniff_table(place: Path, reasons: dict[str, str]) -> Suggestion:
    table = read_table(place, limit=10_000)
    n = len(table.lines)
    label, reasons["label"] = guess_label(table)
    found: dict[str, str] = {}
    for role in ("person", "client", "organisation"):
        free = [c for c in table.columns if c != label and c not in found.values()]
        if role != "person":
            # at least two owners, with several records each
            free = [c for c in free if 2 <= len(set(table.columns[c])) <= max(2, n // 2)]
        if role == "organisation":
            if "client" not in found:
                break
            clients = table.columns[found["client"]]
            free = [c for c in free if first_change(clients, table.columns[c]) is None]
        guess = by_name(free, ROLE_NAMES[role])
        if guess is not None:
            found[role], why = guess
            distinct = len(set(table.columns[found[role]]))
            reasons[role] = f"{why}; {distinct} different values in {n} records"
    ignore: list[str] = []
    comma = False
    for column, cells in table.columns.items():
        if column == label or column in found.values():
            continue
        filled = [c for c in cells if not is_missing(c)]
        distinct = len(set(filled))
        numeric = all(NUMBER.fullmatch(c) for c in filled)
        commas = (
            bool(filled)
            and table.delimiter != ","
            and not numeric
            and all(NUMBER.fullmatch(c) or DECIMAL_COMMA.fullmatch(c) for c in filled)
        )
        comma |= commas
        if not filled:
            ignore.append(column)
            reasons[f"ignore {column}"] = "the column is empty"
        elif distinct == len(filled) > 20 and by_name([column], ROLE_NAMES["ignore"]) is not None:
            ignore.append(column)
            reasons[f"ignore {column}"] = "looks like an identifier: different in every record"
        elif not numeric and not commas and distinct > 20 and distinct > len(filled) / 2:
            ignore.append(column)
            reasons[f"ignore {column}"] = f"free text: {distinct} different values in {n} records"
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
        person=found.get("person"),
    )  # fmt: skip
