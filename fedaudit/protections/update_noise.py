"""Client-level noise at the client: clip the update, add Gaussian noise before it leaves.

Formal guarantees: (epsilon, delta) for replacing a client's **whole** data set, against everyone
who sees its uploads, composed over the rounds it takes part in. Replacing moves a clipped update by
at most 2 C, so noise z C is a Gaussian mechanism of multiplier z / 2.

Trust: the client's own code.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from fedaudit.accounting import Accountant, Exposure, Guarantee, check_delta, epsilon
from fedaudit.errors import ConfigError
from fedaudit.hooks import Hook, Uploads
from fedaudit.protections.clip import clip_rows, needs_deltas
from fedaudit.randomness import Seed


@dataclass(frozen=True, kw_only=True)
class UpdateNoise(Hook):
    """Clip every client's update and add Gaussian noise before it leaves."""

    name: ClassVar[str] = "update_noise"
    trust: ClassVar[str] = "the client's own code"

    noise_multiplier: float = 1.0
    clip: float = 1.0
    delta: float = 1e-5
    accountant: Accountant = "pld"

    def __post_init__(self) -> None:
        if not self.noise_multiplier >= 0 or not self.clip > 0:
            raise ConfigError(
                "protections.update_noise is out of range",
                expected="noise_multiplier >= 0 and clip > 0",
                got=f"{self.noise_multiplier} and {self.clip}",
                remedy="noise_multiplier = 1.0, clip = 1.0",
            )
        check_delta(self.delta)

    @property
    def covers(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("parameter",) if self.noise_multiplier > 0 else ()

    def declare(self) -> dict[str, object]:
        own = {"noise_multiplier": self.noise_multiplier, "clip": self.clip, "delta": self.delta}
        return {**super().declare(), **own, "unit": "client"}

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
        """Every client's promise: one noisy update per round."""
        once = Exposure(sampling_rate=1.0, steps=1, rounds=exposure.rounds)
        return Guarantee(
            epsilon=epsilon(once, self.noise_multiplier / 2, self.delta, by=self.accountant),
            delta=self.delta,
            unit="client",
            relation="replace",
            trust=self.trust,
            covers=f"{once.rounds} noisy updates, z = {self.noise_multiplier:g}",
            by=self.accountant,
        )
