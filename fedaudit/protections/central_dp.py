"""Client-level differential privacy at an honest server: clip updates, add noise to their sum.

Formal guarantees: (epsilon, delta) for one client's updates set to zero, against everyone who sees
the later models, composed over the rounds. The noise N(0, z^2 C^2 I) goes on the sum of clipped
updates of equal weight, so one client changes the sum by at most C. Rounds draw a fixed number of
clients, so no amplification is claimed.

Trust: the server (and the regions of a hierarchy), which see every clipped update before the noise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from fedaudit.errors import ConfigError
from fedaudit.hooks import AddedNoise, NoiseSearch, Uploads
from fedaudit.protections.client_noise import ClientNoise
from fedaudit.protections.clip import clip_rows, needs_deltas
from fedaudit.randomness import Seed
from fedaudit.settings import checked
from fedaudit.trace.schema import SERVER

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
@checked("protections.central_dp")
class CentralDP(ClientNoise):
    """Clip every client's update; the server adds Gaussian noise to the sum.

    A target `epsilon` replaces the noise multiplier.
    """

    name: ClassVar[str] = "central_dp"
    trust: ClassVar[str] = "the server"
    outside_parties: ClassVar[tuple[str, ...]] = (SERVER,)
    equal_weights: ClassVar[bool] = True
    search: ClassVar[NoiseSearch | None] = NoiseSearch(
        label="noise on the sum", low=0.01, high=4.0, rank=4, unit="client"
    )

    relation = "zero_out"
    clips_moved = 1
    released = "sums"

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
