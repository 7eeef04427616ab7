"""OME: bits at even positions are mostly kept, ones at odd positions are nearly always erased.

    Pr[one | one]  = a / (1 + a) at even positions, 1 / (1 + a^3) at odd ones
    Pr[one | zero] = 1 / (1 + a e^(eps/(r l)))                       [ActiveMembership] Eq. (87)

Formal guarantees: **not** epsilon, which hardly enters (it is divided by r l): at a = 100, claimed
5, l = 10, r = 512 the exact budget is 35,342.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedaudit.arrays import Floats
from fedaudit.errors import ConfigError
from fedaudit.protections.local_dp.bits import IndependentBits


@dataclass(frozen=True, kw_only=True)
class OME(IndependentBits):
    """OME on the bits of every feature. `epsilon` is claimed for a whole record.

    `bits` (l, even) per feature, `features` (r) per record, `alpha` (a). Codes and reports are
    whole numbers (n, r).
    """

    name: ClassVar[str] = "ome"

    epsilon: float
    bits: int = 10
    features: int = 1
    alpha: float = 100.0

    def __post_init__(self) -> None:
        self._check()
        if self.bits % 2:
            raise ConfigError(
                "OME treats even and odd positions of a record's bits differently",
                expected="an even number of bits per feature, so that all features are alike",
                got=f"bits = {self.bits}",
                remedy=f"bits = {self.bits + 1}",
            )
        if not (self.alpha > 0 and math.isfinite(self.alpha)):
            raise ConfigError(
                "alpha is out of range",
                expected="a finite number above 0",
                got=repr(self.alpha),
                remedy="alpha = 100.0",
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
