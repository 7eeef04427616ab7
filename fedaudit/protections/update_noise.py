"""Client-level noise at the client: clip the update and add Gaussian noise before upload.

Formal guarantees: (epsilon, delta) for replacing a client's **whole** data set, against everyone
who sees its uploads, composed over the rounds it takes part in. Replacing moves a clipped update by
at most 2 C, so noise z C is a Gaussian mechanism of multiplier z / 2.

Trust: the client's own code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from fedaudit.hooks import AddedNoise, NoiseSearch, Uploads
from fedaudit.protections.client_noise import ClientNoise
from fedaudit.protections.clip import clip_rows, needs_deltas
from fedaudit.randomness import Seed
from fedaudit.settings import checked


@dataclass(frozen=True, kw_only=True)
@checked("protections.update_noise")
class UpdateNoise(ClientNoise):
    """Clip every client's update and add Gaussian noise before upload.

    A target `epsilon` replaces the noise multiplier, which is calibrated to the client that takes
    part in most rounds.
    """

    name: ClassVar[str] = "update_noise"
    trust: ClassVar[str] = "the client's own code"
    outside_parties: ClassVar[tuple[str, ...]] = ()
    search: ClassVar[NoiseSearch | None] = NoiseSearch(
        label="noise on updates", low=0.01, high=4.0, rank=2, unit="client"
    )

    relation = "replace"
    clips_moved = 2  # replacing a data set moves a clipped update by up to 2 C
    released = "updates"

    @property
    def covers(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("parameter",) if self.noise_multiplier > 0 or self.epsilon is not None else ()

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
