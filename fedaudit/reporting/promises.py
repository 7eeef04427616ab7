"""What the protections of a chapter promise, client by client, for the page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedaudit.reporting.chapter import Chapter
from fedaudit.reporting.overview import FederationOverview
from fedaudit.reporting.tables import MOST, ClientRow, ClientTable, left_out
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
    """One chapter: what protects it, who is trusted for that, and the promises as tables.

    `promises` are (heading, table) per protection; `allocated` and `statements` say what noise per
    client would change at the same budget.
    """

    heading: str
    protected_by: str
    trusted: str
    promises: list[tuple[str, ClientTable]]
    allocated: ClientTable | None
    statements: Mapping[str, str]


def protected(divided: Sequence[FederationOverview]) -> Iterator[ProtectedChapter]:
    """Every chapter, federation by federation."""
    for number, part in enumerate(divided):
        for chapter in part.chapters:
            named = len(divided) > 1 or chapter.variant
            document = chapter.allocation
            yield ProtectedChapter(
                heading=chapter.title if named else "This federation",
                protected_by=chapter.summary.get("protected by", ""),
                trusted="; ".join(f"{k}: {v}" for k, v in chapter.trust.items() if v),
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
        for client, g in list(given.items())[:MOST]
    }
    return ClientTable(
        title=f"What {name} promises every client over the whole run: {chapter.title}",
        head=(("client", False), *((name, name in ("epsilon", "delta")) for name in PROMISE)),
        rows=_rows(chapter, group, list(rows.items())),
        left_out=left_out(len(given)),
    )


def _promise(g: Mapping[str, Any]) -> list[str]:
    numbers = [cell(float(g[k])) if k in g else "" for k in ("epsilon", "delta")]
    words = [str(g.get(k, "")).replace("_", " ") for k in ("unit", "relation", "trust", "covers")]
    return [*numbers, *words, str(g.get("by", ""))]


def _allocated(chapter: Chapter, group: str, document: Mapping[str, Any]) -> ClientTable:
    """What noise per client would change at the same budget."""
    rows = document["clients"][:MOST]
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
