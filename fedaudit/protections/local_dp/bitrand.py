"""BitRand: every bit of a feature is flipped, important ones less often.

    Pr[bit k flips] = alpha e^(k eps/l) / (1 + alpha e^(k eps/l)), k = 0 the sign
                                                                     [ActiveMembership] Eq. (88)
    alpha = sqrt((eps + r l) / (2 r sum_{k<l} e^(2 eps k/l)))

Formal guarantees: **not** epsilon. Two records may differ in all r l bits, and the exact budget is
r sum_k |ln alpha + k eps/l|: at claimed 5 (l = 10, r = 512) it is 9,239. Bits of low order flip
with probability above 1/2, which hides nothing either: the reader turns them back.

Differs: the paper leaves alpha out; it is taken from BitRand's own definition.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from fedaudit.arrays import Floats
from fedaudit.protections.local_dp.bits import IndependentBits
from fedaudit.protections.local_dp.mechanism import Codes, sigmoid
from fedaudit.stats.alias import BitWords


@dataclass(frozen=True, kw_only=True)
class BitRand(IndependentBits):
    """BitRand on the bits of every feature. `epsilon` is claimed for a whole record.

    `bits` (l) per feature, `features` (r) per record. Codes and reports are whole numbers (n, r).
    """

    name: ClassVar[str] = "bitrand"

    epsilon: float
    bits: int = 10
    features: int = 1

    def __post_init__(self) -> None:
        self._check()

    @property
    def claimed_epsilon(self) -> float:
        return float(self.epsilon)

    @cached_property
    def log_alpha(self) -> float:
        """ln alpha."""
        r, eps = self.features, self.epsilon
        exponents = 2.0 * eps * np.arange(self.bits) / self.bits
        total = float(np.logaddexp.reduce(exponents))  # the sum overflows for large epsilons
        return 0.5 * (math.log((eps + r * self.bits) / (2.0 * r)) - total)

    @property
    def alpha(self) -> float:
        return math.exp(self.log_alpha)

    @cached_property
    def flip_logit(self) -> Floats:
        """ln alpha + k eps/l (l,)."""
        return self.log_alpha + np.arange(self.bits) * self.epsilon / self.bits

    @cached_property
    def flip_probability(self) -> Floats:
        """Pr[bit k flips] (l,), the sign first."""
        return sigmoid(self.flip_logit)

    @property
    def logit_one(self) -> Floats:
        return -self.flip_logit

    @property
    def logit_zero(self) -> Floats:
        return self.flip_logit

    @cached_property
    def flips(self) -> BitWords:
        """Alias tables of words whose ones are flips: they do not depend on the code."""
        return BitWords.of(np.stack([sigmoid(-self.flip_logit), self.flip_probability], axis=-1))

    def draw(self, codes: Codes, rng: np.random.Generator) -> Codes:
        return codes ^ self.flips.draw(codes.shape, rng)
