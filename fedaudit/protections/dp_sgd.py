"""DP-SGD at every client: per-example (or per-person) clipping, Gaussian noise on the sum.

    clip:   g_i / max(1, |g_i| / C)                                    [Fingerprint] Eq. (13)
    noise:  sum_i clip(g_i) + N(0, z^2 C^2 I)                          [Fingerprint] Eq. (14)

Differs: the paper prints sigma C on the mean; its epsilons hold for z = sigma on the sum. We add
noise to the sum, as DP-SGD libraries do, and then divide by the expected batch.

Formal guarantees: (epsilon, delta) for one record (or one person) added to or removed from a
client's data, against everyone who sees the client's uploads, over all local steps of all rounds
the client takes part in. Batches are Poisson samples, so amplification by subsampling holds. Each
client and round has its own noise generator; the steps of a round draw from it in turn.

Trust: the client's own code and its random numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
from annotated_types import MinLen

from fedaudit.accounting import (
    Accountant,
    Exposure,
    Guarantee,
    calibrate,
    check_one_noise,
    epsilon,
)
from fedaudit.arrays import Indices
from fedaudit.errors import ConfigError
from fedaudit.hooks import AddedNoise, Hook, NoiseSearch
from fedaudit.randomness import Seed
from fedaudit.settings import Fraction, NonNegative, Positive, checked

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
@checked("protections.dp_sgd")
class DPSGD(Hook):
    """Clip every example's gradient and add Gaussian noise to every step's sum.

    `noise_multiplier`: one for all clients, or one per client. `clip`: bound C on the norm.
    `unit`: a record (for text, a whole document), a person (needs a person column), or one training
    example (for text, one window of a document: a weaker promise). A target `epsilon` replaces the
    noise multiplier, which is calibrated to the client that needs most noise.
    """

    name: ClassVar[str] = "dp_sgd"
    trust: ClassVar[str] = "the client's own code"
    outside_parties: ClassVar[tuple[str, ...]] = ()
    sampling: ClassVar[Literal["shuffle", "poisson"] | None] = "poisson"
    slowdown: ClassVar[float] = 2.5  # clipping per example, and noise
    search: ClassVar[NoiseSearch | None] = NoiseSearch(
        label="DP-SGD", low=0.25, high=8.0, rank=1, tried="always", per_client=True
    )

    noise_multiplier: NonNegative | Annotated[tuple[NonNegative, ...], MinLen(1)] = 1.0
    clip: Positive = 1.0
    delta: Fraction = 1e-5
    unit: Literal["record", "person", "example"] = "record"
    epsilon: float | None = None
    accountant: Accountant = "pld"

    def __post_init__(self) -> None:
        check_one_noise(self.name, self.noise_multiplier, self.epsilon)

    @property
    def covers(self) -> tuple[str, ...]:  # type: ignore[override]
        """Parameters, if every client adds noise: clipping alone hides nothing."""
        many = self.noise_multiplier
        values = many if isinstance(many, tuple) else (many,)
        return ("parameter",) if min(values) > 0 or self.epsilon is not None else ()

    @property
    def own_multipliers(self) -> tuple[float, ...]:
        many = self.noise_multiplier
        return many if isinstance(many, tuple) else ()

    @property
    def clip_norm(self) -> float:  # type: ignore[override]
        return self.clip

    @property
    def clip_unit(self) -> str:  # type: ignore[override]
        return self.unit

    def check_clients(self, count: int) -> None:
        many = self.noise_multiplier
        if isinstance(many, tuple) and len(many) != count:
            raise ConfigError(
                "protections.dp_sgd.noise_multiplier does not fit the federation",
                expected=f"one number for all, or {count}",
                got=f"{len(many)} numbers",
                remedy="give one number for every client",
            )

    def repeated(self, copies: int) -> DPSGD:
        many = self.noise_multiplier
        return replace(self, noise_multiplier=many * copies) if isinstance(many, tuple) else self

    def multiplier(self, client: int) -> float:
        """The noise multiplier of one client."""
        many = self.noise_multiplier
        return many[client] if isinstance(many, tuple) else many

    def declare(self) -> dict[str, object]:
        own = {"noise_multiplier": self.noise_multiplier, "clip": self.clip, "unit": self.unit}
        return {**super().declare(), **own, "delta": self.delta}

    @classmethod
    def noise(cls, declared: Mapping[str, Any], *, clients: int) -> AddedNoise:
        return AddedNoise.declared_at("step", declared)

    def step(
        self, sums: Tensor, *, clients: Indices, round_number: int, step: int, seed: Seed
    ) -> None:
        import torch

        rows = sums.numpy()
        streams = seed.streams("dp_sgd", clients, round_number, step, sums.shape[1])

        noise = torch.empty(sums.shape[1])
        values = noise.numpy()
        # one thread: a second one gains less than it costs (benchmarks/dp_sgd.py)
        for row, client, stream in zip(rows, clients, streams, strict=True):
            # draw even if the noise is zero, so that streams stay aligned
            torch.randn(noise.shape, generator=stream, out=noise)
            z = self.multiplier(int(client))
            if z:
                # numpy, because torch would start threads for each of these
                np.multiply(values, np.float32(z * self.clip), out=values)
                np.add(row, values, out=row)

    def guarantee(self, client: int, exposure: Exposure) -> Guarantee:
        """The guarantee of client number `client` after `exposure`."""
        z = self.multiplier(client)
        return Guarantee(
            epsilon=epsilon(exposure, z, self.delta, by=self.accountant),
            delta=self.delta,
            unit=self.unit,
            trust=self.trust,
            covers=f"{exposure.steps} steps x {exposure.rounds} rounds, "
            f"q = {exposure.sampling_rate:.4g}, z = {z:g}",
            by=self.accountant,
            noise_multiplier=z,
            exposure=exposure,
        )

    def resolved(self, exposures: Sequence[Exposure]) -> DPSGD:
        """This hook with the smallest multiplier that meets a target `epsilon` for every client."""
        if self.epsilon is None:
            return self
        met = DPSGD.calibrated(
            self.epsilon, tuple(exposures), delta=self.delta, accountant=self.accountant
        )
        return replace(self, noise_multiplier=met.noise_multiplier, epsilon=None)

    @classmethod
    def calibrated(
        cls,
        target: float,
        exposures: tuple[Exposure, ...],
        *,
        clip: float = 1.0,
        delta: float = 1e-5,
        accountant: Accountant = "pld",
        per_client: bool = False,
    ) -> DPSGD:
        """Calibrate the noise so that every client spends at most epsilon `target`.

        One multiplier for all, set by the client that needs most; with `per_client`, one each.
        """
        distinct = sorted(set(exposures), key=lambda e: -rough_cost(e))
        if per_client:
            own = {e: calibrate(target, e, delta, by=accountant) for e in distinct}
            z: float | tuple[float, ...] = tuple(own[e] for e in exposures)
        else:
            z = calibrate(target, distinct[0], delta, by=accountant)
            for e in distinct[1:]:
                # the order is a heuristic: a client that still exceeds the target sets the noise
                if epsilon(e, z, delta, by=accountant) > target:
                    z = calibrate(target, e, delta, by=accountant)
        return cls(noise_multiplier=z, clip=clip, delta=delta, accountant=accountant)


def rough_cost(exposure: Exposure) -> float:
    """q sqrt(steps): epsilon grows with it, to first order."""
    return float(exposure.sampling_rate * exposure.total**0.5)
