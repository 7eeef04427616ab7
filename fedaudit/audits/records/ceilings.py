"""Guarantees that bound what audits of records can find: those with noise at the clients."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from fedaudit.protections.declared import noise_of
from fedaudit.results import Bound
from fedaudit.trace import Truth, View


def noisy_at_clients(view: View, clients: int) -> tuple[str, ...]:
    """Protections whose noise clients add themselves, so that no vantage sees through it."""
    found = []
    for declared in view.declared:
        noise = noise_of(declared, clients=clients)
        if noise is not None and noise.place in ("step", "upload"):
            found.append(str(declared.get("name")))
    return tuple(found)


def weakest_guarantees(
    truth: Truth, noisy: Collection[str]
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Name of a protection and its guarantee with the largest epsilon, if it is for one record."""
    for name, given in truth.facts.get("guarantees", {}).items():
        weakest = max(given.values(), key=lambda g: float(g["epsilon"]), default=None)
        if name in noisy and weakest is not None and weakest.get("relation") == "add_or_remove":
            yield name, weakest


def ceiling_by(
    weakest: Mapping[str, Any], value: float, *, of: str, source: str, assumes: str
) -> Bound:
    """An upper bound that a guarantee gives."""
    return Bound(
        value=value,
        kind="upper",
        of=of,
        source=source,
        assumes=assumes,
        unit=str(weakest["unit"]),
        relation=str(weakest["relation"]),
        covers=str(weakest.get("covers", "")),
    )
