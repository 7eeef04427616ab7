"""Client-level differential privacy at an honest server: clip updates, add noise to their sum.

Formal guarantees: (epsilon, delta) for one client's updates set to zero, against everyone who sees
the later models, composed over the rounds. The noise N(0, z^2 C^2 I) goes on the sum of clipped
updates of equal weight, so one client changes the sum by at most C. Rounds draw a fixed number of
clients, so no amplification is claimed.

Trust: the server (and the regions of a hierarchy), which see every clipped update before the noise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from fedaudit.accounting import (
    Accountant,
    Exposure,
    Guarantee,
    calibrate,
    check_one_noise,
    epsilon,
)
from fedaudit.errors import ConfigError
from fedaudit.hooks import AddedNoise, Hook, Uploads
from fedaudit.protections.clip import clip_rows, needs_deltas
from fedaudit.randomness import Seed
from fedaudit.settings import Fraction, NonNegative, Positive, checked

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
@checked("protections.central_dp")
class CentralDP(Hook):
    """Clip every client's update; the server adds Gaussian noise to the sum.

    A target `epsilon` replaces the noise multiplier.
    """

    name: ClassVar[str] = "central_dp"
    trust: ClassVar[str] = "the server"

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

    @classmethod
    def noise(cls, declared: Mapping[str, Any], *, clients: int) -> AddedNoise:
        # the multiplier of the mean alone, if more is released
        z = declared.get("mean_multiplier", declared.get("noise_multiplier"))
        return AddedNoise.declared_at("aggregate", {**declared, "noise_multiplier": z})

    def upload(self, uploads: Uploads, *, round_number: int, seed: Seed) -> Uploads:
        needs_deltas(self.name, uploads)
        if (uploads.weights != 1.0).any():
            raise ConfigError(
                "protections.central_dp needs equal client weights",
                expected='federation.weighting = "equal"',
                got="unequal weights: one client could change the sum by more than clip",
                remedy='set federation.weighting = "equal"',
            )
        return replace(uploads, rows=clip_rows(uploads.rows, self.clip))

    def aggregate(self, total: Tensor, *, round_number: int, seed: Seed) -> Tensor:
        import torch

        if not self.noise_multiplier:
            return total
        noise = torch.randn(total.shape, generator=seed.torch_generator("central_dp", round_number))
        return total + self.noise_multiplier * self.clip * noise

    def guarantee(self, client: int, exposure: Exposure) -> Guarantee:
        """Guarantee of every client: one noisy sum per round, without amplification."""
        once = exposure.one_release_per_round
        return Guarantee(
            epsilon=epsilon(once, self.noise_multiplier, self.delta, by=self.accountant),
            delta=self.delta,
            unit="client",
            relation="zero_out",
            trust=self.trust,
            covers=f"{once.rounds} noisy sums, z = {self.noise_multiplier:g}",
            by=self.accountant,
        )

    def resolved(self, exposures: Sequence[Exposure]) -> CentralDP:
        """This hook with the smallest multiplier that meets a target `epsilon` over all rounds."""
        if self.epsilon is None:
            return self
        once = max(exposures, key=lambda e: e.rounds).one_release_per_round
        z = calibrate(self.epsilon, once, self.delta, by=self.accountant)
        return replace(self, noise_multiplier=z, epsilon=None)
