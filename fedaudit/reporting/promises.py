"""Promises of the protections per client, for the page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedaudit.reporting.chapter import Chapter
from fedaudit.reporting.overview import FederationOverview
from fedaudit.reporting.tables import MAX_CLIENTS, ClientRow, ClientTable, not_shown
from fedaudit.reporting.text import cell

PROMISE = ("epsilon", "delta", "of one", "neighbours", "trusted", "covers", "by")

ALLOCATED = {
    "leverage": "leverage",
    "uniform_noise_multiplier": "multiplier now",
    "noise_multiplier": "multiplier allocated",
    "uniform_epsilon": "epsilon now",
    "epsilon": "epsilon allocated",
    "published_before": "published bound now",
    "published_after": "published bound allocated",
}


@dataclass(frozen=True)
class ProtectedChapter:
    """The protections of one chapter.

    `promises`: (heading, table) per protection. `allocated`, `statements`: effect of noise per
    client at the same budget.
    """

    heading: str
    protected_by: str
    promises: list[tuple[str, ClientTable]]
    allocated: ClientTable | None
    statements: Mapping[str, str]


def protected_chapters(overviews: Sequence[FederationOverview]) -> Iterator[ProtectedChapter]:
    """All chapters, by federation."""
    for number, part in enumerate(overviews):
        for chapter in part.chapters:
            named = len(overviews) > 1 or chapter.variant
            document = chapter.allocation
            yield ProtectedChapter(
                heading=chapter.title if named else "This federation",
                protected_by=chapter.summary.get("protected by") or "nothing that was declared",
                promises=[
                    (
                        f"{name}: epsilon per client ({len(given)})",
                        _promised(chapter, f"{number}", name, given),
                    )
                    for name, given in chapter.guarantees.items()
                ],
                allocated=None if document is None else _allocated(chapter, f"{number}", document),
                statements={s["about"]: s["text"] for s in (document or {}).get("statements", ())},
            )


def _promised(chapter: Chapter, group: str, name: str, given: Mapping[str, Any]) -> ClientTable:
    rows = {
        client: _promise(g if isinstance(g, Mapping) else {})
        for client, g in list(given.items())[:MAX_CLIENTS]
    }
    return ClientTable(
        title=f"Promises of {name} to each client over the whole run: {chapter.title}",
        head=(("client", False), *((column, column in ("epsilon", "delta")) for column in PROMISE)),
        rows=_rows(chapter, group, list(rows.items())),
        left_out=not_shown(len(given)),
    )


def _promise(g: Mapping[str, Any]) -> list[str]:
    numbers = [cell(float(g[k])) if k in g else "" for k in ("epsilon", "delta")]
    words = [str(g.get(k, "")).replace("_", " ") for k in ("unit", "relation", "trust", "covers")]
    return [*numbers, *words, str(g.get("by", ""))]


def _allocated(chapter: Chapter, group: str, document: Mapping[str, Any]) -> ClientTable:
    """Noise per client at the same budget, beside the present noise."""
    rows = document["clients"][:MAX_CLIENTS]
    kept = [k for k in ALLOCATED if rows and k in rows[0]]
    return ClientTable(
        title=f"Noise per client at the budget of the run: {chapter.title}",
        head=(("client", False), *((ALLOCATED[k], True) for k in kept)),
        rows=_rows(
            chapter,
            group,
            [(str(r["client"]), [cell(float(r[k])) for k in kept]) for r in rows],
        ),
    )


def _rows(
    chapter: Chapter, group: str, rows: Sequence[tuple[str, Sequence[str]]]
) -> tuple[ClientRow, ...]:
    place = {c: i for i, c in enumerate(chapter.clients, 1)}
    return tuple(
        ClientRow(key=f"{group}-{place.get(client, client)}", cells=(client, *cells))
        for client, cells in rows
    )
