"""Guarantees that bound what audits of records can find: those with noise at the clients."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from fedaudit.accounting import Guarantee, PrivacyCurve
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


@dataclass(frozen=True)
class RateCeiling:
    """What a protection allows any test for one record: `curve`, largest true-positive rate at each
    false-positive rate, above the curve of every client, and the guarantee with the largest
    epsilon, `weakest`."""

    name: str
    curve: PrivacyCurve
    weakest: Guarantee

    @property
    def source(self) -> str:
        whole = self.weakest.exposure is not None
        return "composed privacy loss" if whole else "(epsilon, delta)"


def rate_ceilings(truth: Truth, noisy: Collection[str]) -> Iterator[RateCeiling]:
    """The ceiling of each protection among `noisy` that promises something about one record."""
    for name, given in truth.facts.get("guarantees", {}).items():
        own = [Guarantee.from_dict(g) for g in given.values()]
        if name not in noisy or not own or own[0].relation != "add_or_remove":
            continue
        curve = PrivacyCurve.weakest([g.curve() for g in own])
        yield RateCeiling(name, curve, max(own, key=lambda g: g.epsilon))


def ceiling_by(ceiling: RateCeiling, value: float, *, of: str, source: str, assumes: str) -> Bound:
    """An upper bound that a ceiling gives."""
    weakest = ceiling.weakest
    return Bound(
        value=value,
        kind="upper",
        of=of,
        source=f"{source}, {ceiling.source}",
        assumes=assumes,
        unit=weakest.unit,
        relation=weakest.relation,
        covers=weakest.covers,
    )
