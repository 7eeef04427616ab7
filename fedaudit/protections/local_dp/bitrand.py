"""BitRand flips every bit of a feature at random, important bits less often.

    Pr[bit k flips] = alpha e^(k eps/l) / (1 + alpha e^(k eps/l)), k = 0 the sign
                                                                     [ActiveMembership] Eq. (88)
    alpha = sqrt((eps + r l) / (2 r sum_{k<l} e^(2 eps k/l)))

Formal guarantees: **not** epsilon. Two records may differ in all r l bits, and the exact epsilon is
r sum_k |ln alpha + k eps/l|: 9,239 at a claim of 5 (l = 10, r = 512). Low-order bits flip with
probability above 1/2, which hides nothing either: the reader flips them back.

Differs: the paper omits alpha; it is taken from BitRand's own definition.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from fedaudit.arrays import Floats
from fedaudit.protections.local_dp.bits import BitCount, IndependentBits
from fedaudit.protections.local_dp.mechanism import Codes, sigmoid
from fedaudit.settings import Count, PositiveFinite, checked
from fedaudit.stats.alias import BitWords


@dataclass(frozen=True, kw_only=True)
@checked("bitrand")
class BitRand(IndependentBits):
    """BitRand on the bits of every feature. `epsilon` is the claim for a whole record.

    `bits` (l) per feature, `features` (r) per record. Codes and reports are whole numbers (n, r).
    """

    name: ClassVar[str] = "bitrand"

    epsilon: PositiveFinite
    bits: BitCount = 10
    features: Count = 1

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
        """Alias tables of flip words (a one flips the bit), which do not depend on the code."""
        return BitWords.of(np.stack([sigmoid(-self.flip_logit), self.flip_probability], axis=-1))

    def draw(self, codes: Codes, rng: np.random.Generator) -> Codes:
        return codes ^ self.flips.draw(codes.shape, rng)
