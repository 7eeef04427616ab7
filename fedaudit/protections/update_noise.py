"""Client-level noise at the client: clip the update and add Gaussian noise before upload.

Formal guarantees: (epsilon, delta) for replacing a client's **whole** data set, against everyone
who sees its uploads, composed over the rounds it takes part in. Replacing moves a clipped update by
at most 2 C, so noise z C is a Gaussian mechanism of multiplier z / 2.

Trust: the client's own code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from fedaudit.accounting import (
    Accountant,
    Exposure,
    Guarantee,
    calibrate,
    check_one_noise,
    epsilon,
)
from fedaudit.hooks import AddedNoise, Hook, Uploads
from fedaudit.protections.clip import clip_rows, needs_deltas
from fedaudit.randomness import Seed
from fedaudit.settings import Fraction, NonNegative, Positive, checked


@dataclass(frozen=True, kw_only=True)
@checked("protections.update_noise")
class UpdateNoise(Hook):
    """Clip every client's update and add Gaussian noise before upload.

    A target `epsilon` replaces the noise multiplier, which is calibrated to the client that takes
    part in most rounds.
    """

    name: ClassVar[str] = "update_noise"
    trust: ClassVar[str] = "the client's own code"

    noise_multiplier: NonNegative = 1.0
    clip: Positive = 1.0
    delta: Fraction = 1e-5
    epsilon: float | None = None
    accountant: Accountant = "pld"

    def __post_init__(self) -> None:
        check_one_noise(self.name, self.noise_multiplier, self.epsilon)

    @property
    def covers(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("parameter",) if self.noise_multiplier > 0 or self.epsilon is not None else ()

    def declare(self) -> dict[str, object]:
        own = {"noise_multiplier": self.noise_multiplier, "clip": self.clip, "delta": self.delta}
        return {**super().declare(), **own, "unit": "client"}

    @classmethod
    def noise(cls, declared: Mapping[str, Any], *, clients: int) -> AddedNoise:
        return AddedNoise.declared_at("upload", declared)

    def upload(self, uploads: Uploads, *, round_number: int, seed: Seed) -> Uploads:
        import torch

        needs_deltas(self.name, uploads)
        rows = clip_rows(uploads.rows, self.clip)
        own = seed.torch_generators("update_noise", uploads.origin, round_number)
        for row, generator in zip(rows, own, strict=True):
            noise = torch.randn(row.shape, generator=generator)
            row.add_(noise, alpha=self.noise_multiplier * self.clip)
        return replace(uploads, rows=rows)

    def guarantee(self, client: int, exposure: Exposure) -> Guarantee:
        """Guarantee of every client: one noisy update per round."""
        once = exposure.one_release_per_round
        return Guarantee(
            epsilon=epsilon(once, self.noise_multiplier / 2, self.delta, by=self.accountant),
            delta=self.delta,
            unit="client",
            relation="replace",
            trust=self.trust,
            covers=f"{once.rounds} noisy updates, z = {self.noise_multiplier:g}",
            by=self.accountant,
        )

    def resolved(self, exposures: Sequence[Exposure]) -> UpdateNoise:
        """This hook with the smallest multiplier that meets a target `epsilon` for every client."""
        if self.epsilon is None:
            return self
        once = max(exposures, key=lambda e: e.rounds).one_release_per_round
        # replacing a data set moves an update by up to 2 C, so calibrate z / 2
        z = 2 * calibrate(self.epsilon, once, self.delta, by=self.accountant)
        return replace(self, noise_multiplier=z, epsilon=None)
