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
        "clinic", "branch", "device", "school", "store", "company", "party", "hosp", "facility",
        "institute", "provider", "laboratory", "lab", "university", "pharmacy", "agency",
        "factory", "warehouse", "shop", "silo", "tenant", "insurer", "krankenhaus", "klinik",
        "standort", "filiale", "zentrum", "ziekenhuis", "clinique", "hopital", "hôpital",
        "ospedale", "sede", "sitio", "centro", "banco", "sucursal",
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
    return [w for w in re.split(r"[\W_]+", spaced.lower()) if w]


_OWNERS = tuple(ROLE_NAMES[r] for r in ("client", "organisation", "person"))
_TAILS = frozenset({"id", "ids", "name", "number", "no", "nr", "num", "code", "key"})
_LINKS = frozenset({"of", "at", "in", "for", "from", "where"})


def names_an_owner(column: str) -> bool:
    """Whether a column names the holder of a record (hospital, site, branch, ...).

    The head of the name decides, which is its last word, but for "id", "name" and the like and for
    what follows "of" or "at": treating_hospital_id names an owner, hospital_beds does not.
    """
    return _head(column) in ROLE_NAMES["client"]


def _head(column: str) -> str:
    words = _words(column)
    link = next((i for i, w in enumerate(words) if i and w in _LINKS), len(words))
    words = words[:link]
    while len(words) > 1 and (words[-1] in _TAILS or words[-1].isdigit()):
        words.pop()
    return words[-1] if words else ""


def by_name(columns: Sequence[str], names: Sequence[str]) -> tuple[str, str] | None:
    """A column whose name matches one of `names`, and the reason; None if none does."""
    for tail in ([], ["id"], ["name"], ["number"], ["code"]):
        for wanted in names:
            for column in columns:
                if _words(column) == [wanted, *tail]:
                    return column, f"the column is called {column!r}"
    for wanted in names:
        for column in columns:
            # the owner of a thing is not the thing: hospital_beds, bank_balance
            words = [_head(column)] if names in _OWNERS else _words(column)
            if len(wanted) > 2 and wanted in words:
                return column, f"the name {column!r} contains {wanted!r}"
    return None


LAST_COLUMN = "the last column"


def guess_label(table: FileTable) -> tuple[str, str]:
    """The likeliest label column, and the reason; never a column that names an owner."""
    own = [c for c in table.columns if not names_an_owner(c) and not c.startswith("(")]
    columns = [c for c in own if len(set(table.columns[c])) > 1]
    found = by_name(columns, ROLE_NAMES["label"])
    if found is not None:
        return found
    return [*table.columns, *own, *columns][-1], LAST_COLUMN


def other_labels(table: FileTable, label: str) -> list[str]:
    """Other columns that could be the label, by their name and their few different values."""
    return [
        c
        for c in table.columns
        if c != label
        and not names_an_owner(c)
        and by_name([c], ROLE_NAMES["label"]) is not None
        and 1 < len(set(table.columns[c])) <= 20
    ]
