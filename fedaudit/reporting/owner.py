"""What a corpus owner is given of an attribution: p-values, and who is named by them.

The rest of a result stays with those who read the sums: strengths of marks are functions of inner
products, and together they tell of clients what the owner has no part in.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedaudit.audits import facts_of
from fedaudit.codec import to_json
from fedaudit.reporting.chapter import Chapter
from fedaudit.results import AuditResult

FORMAT, VERSION = "fedaudit-owner", 1


def owner_extract(chapters: Sequence[Chapter]) -> str | None:
    """The columns for owners of every attribution, as JSON; None without any."""
    found = [
        {"federation": c.federation, "variant": c.variant, **_extract(r)}
        for c in chapters
        for r in c.results
        if r.per_client and facts_of(r.audit).for_owner
    ]
    if not found:
        return None
    return to_json({"format": FORMAT, "version": VERSION, "attributions": found}) + "\n"


def _extract(result: AuditResult) -> dict[str, Any]:
    columns = facts_of(result.audit).for_owner
    return {
        "audit": result.audit,
        "error": result.settings.get("error"),
        "trace_sha256": result.trace_sha256,
        "clients": {
            name: {column: row.get(column) for column in columns}
            for name, row in result.per_client.items()
        },
    }
