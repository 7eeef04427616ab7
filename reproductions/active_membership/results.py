"""Stored measurements, and how they are written in a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Measured = Mapping[str, Any]

MECHANISMS = ("bitrand", "grr", "rappor", "dbitflip", "ome")
NAMES = {
    "bitrand": "BitRand",
    "grr": "GRR",
    "rappor": "RAPPOR",
    "dbitflip": "dBitFlipPM",
    "ome": "OME",
    "none": "none",
}


class Results:
    """Stored measurements by experiment, set and variant."""

    def __init__(self, raw: Measured) -> None:
        self.raw, self.scale = raw, raw["scale"]

    def of(self, experiment: str, data: str, variant: str) -> dict[str, Any] | None:
        found: dict[str, Any] | None = self.raw["measured"].get(f"{experiment}/{data}/{variant}")
        return found

    def variants(self, experiment: str, data: str) -> list[str]:
        head = f"{experiment}/{data}/"
        found = [k[len(head) :] for k in self.raw["measured"] if k.startswith(head)]
        return sorted(found, key=lambda v: [_sortable(w) for w in v.split()])

    def sets(self, experiment: str) -> list[str]:
        found = {k.split("/")[1] for k in self.raw["measured"] if k.startswith(f"{experiment}/")}
        return sorted(found)

    def over(self, experiment: str, data: str, *words: str) -> list[tuple[float, dict[str, Any]]]:
        """(epsilon, result) of the variants that begin with these words, by epsilon."""
        out = []
        for variant in self.variants(experiment, data):
            *first, epsilon = variant.split()
            if tuple(first) == words:
                out.append((float(epsilon), self.of(experiment, data, variant) or {}))
        return sorted(out, key=lambda pair: pair[0])


def _sortable(word: str) -> tuple[int, float, str]:
    try:
        return 0, float(word), ""
    except ValueError:
        return 1, 0.0, word


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    body = [f"| {' | '.join(r)} |" for r in rows]
    return "\n".join([f"| {' | '.join(head)} |", "|" + "---|" * len(head), *body]) + "\n"


def cell(triple: Sequence[float] | None) -> str:
    """A value with its interval."""
    if triple is None:
        return "–"
    value, low, high = triple
    return f"{value:.3f} [{low:.3f}, {high:.3f}]"


def number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def named(mechanism: str) -> str:
    return NAMES[mechanism]
