"""OME keeps most bits at even positions and erases nearly all ones at odd positions.

    Pr[one | one]  = a / (1 + a) at even positions, 1 / (1 + a^3) at odd ones
    Pr[one | zero] = 1 / (1 + a e^(eps/(r l)))                       [ActiveMembership] Eq. (87)

Formal guarantees: **not** epsilon, which hardly matters (it is divided by r l). At a = 100, a claim
of 5, l = 10 and r = 512, the exact epsilon is 35,342.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedaudit.arrays import Floats
from fedaudit.errors import ConfigError
from fedaudit.protections.local_dp.bits import BitCount, IndependentBits
from fedaudit.settings import Count, PositiveFinite, checked


@dataclass(frozen=True, kw_only=True)
@checked("ome")
class OME(IndependentBits):
    """OME on the bits of every feature. `epsilon` is the claim for a whole record.

    `bits` (l, even) per feature, `features` (r) per record, `alpha` (a). Codes and reports are
    whole numbers (n, r).
    """

    name: ClassVar[str] = "ome"

    epsilon: PositiveFinite
    bits: BitCount = 10
    features: Count = 1
    alpha: PositiveFinite = 100.0

    def __post_init__(self) -> None:
        if self.bits % 2:
            raise ConfigError(
                "OME needs an even number of bits per feature",
                expected="even: odd and even positions differ, and all features must be alike",
                got=f"bits = {self.bits}",
                remedy=f"bits = {self.bits + 1}",
            )

    @property
    def claimed_epsilon(self) -> float:
        return float(self.epsilon)

    @property
    def logit_one(self) -> Floats:
        log_alpha = math.log(self.alpha)
        return np.where(np.arange(self.bits) % 2 == 0, log_alpha, -3.0 * log_alpha)

    @property
    def logit_zero(self) -> Floats:
        share = self.epsilon / (self.features * self.bits)
        return np.full(self.bits, -(math.log(self.alpha) + share))
