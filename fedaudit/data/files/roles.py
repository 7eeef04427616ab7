"""Guess the roles of columns (label, client, ...) from their names."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from fedaudit.data.files.table import FileTable

# Searched in this order: first as a whole name, then as a word of a longer name.
ROLE_NAMES: Mapping[str, tuple[str, ...]] = {
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


def by_name(columns: Sequence[str], names: Sequence[str]) -> tuple[str, str] | None:
    """A column whose name matches one of `names`, and the reason; None if none does."""
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


def guess_label(table: FileTable) -> tuple[str, str]:
    """The likeliest label column, and the reason."""
    columns = [c for c in table.columns if len(set(table.columns[c])) > 1]
    found = by_name(columns, ROLE_NAMES["label"])
    if found is not None:
        return found
    return list(table.columns)[-1], "the last column"
