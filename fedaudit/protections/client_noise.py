"""Noise that protects whole clients: the part that hooks at the client and at the server share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from fedaudit.accounting import (
    Accountant,
    Exposure,
    Guarantee,
    Relation,
    calibrate,
    check_one_noise,
    epsilon,
)
from fedaudit.hooks import Hook
from fedaudit.settings import Fraction, NonNegative, Positive


@dataclass(frozen=True, kw_only=True)
class ClientNoise(Hook):
    """Clip every client's update, and release something with Gaussian noise once a round.

    `relation`: the neighbours of the guarantee. `clips_moved`: by how many clips a neighbour moves
    a release. `released`: what it is called.
    """

    relation: ClassVar[Relation]
    clips_moved: ClassVar[int]
    released: ClassVar[str]

    noise_multiplier: NonNegative = 1.0
    clip: Positive = 1.0
    delta: Fraction = 1e-5
    epsilon: float | None = None
    accountant: Accountant = "pld"

    def __post_init__(self) -> None:
        check_one_noise(self.name, self.noise_multiplier, self.epsilon)

    def declare(self) -> dict[str, object]:
        own = {"noise_multiplier": self.noise_multiplier, "clip": self.clip, "delta": self.delta}
        return {**super().declare(), **own, "unit": "client"}

    def guarantee(self, client: int, exposure: Exposure) -> Guarantee:
        """Guarantee of every client: one noisy release a round, without amplification."""
        once = exposure.one_release_per_round
        z = self.noise_multiplier / self.clips_moved
        return Guarantee(
            epsilon=epsilon(once, z, self.delta, by=self.accountant),
            delta=self.delta,
            unit="client",
            relation=self.relation,
            trust=self.trust,
            covers=f"{once.rounds} noisy {self.released}, z = {self.noise_multiplier:g}",
            by=self.accountant,
        )

    def resolved(self, exposures: Sequence[Exposure]) -> Self:
        """This hook with the smallest multiplier that meets a target `epsilon` for every client."""
        if self.epsilon is None:
            return self
        once = max(exposures, key=lambda e: e.rounds).one_release_per_round
        z = self.clips_moved * calibrate(self.epsilon, once, self.delta, by=self.accountant)
        return replace(self, noise_multiplier=z, epsilon=None)
