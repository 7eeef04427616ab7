"""Generalised randomised response: the true value with probability p, else another one.

    p = e^eps / (e^eps + k - 1),   q = 1 / (e^eps + k - 1)       [ActiveMembership] Eqs. (67, 86)

Formal guarantees: pure epsilon per feature, so r epsilon per record of r features. The bound is
tight: two records that differ in every feature attain it.

Differs: the published runs use the client's own batch as the alphabet, which reveals the batch.
Here the alphabet is fixed beforehand.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from fedaudit.arrays import Floats
from fedaudit.protections.local_dp.mechanism import (
    Alphabet,
    Codes,
    Decoder,
    Report,
    check_codes,
    check_decoder,
    draw_symmetric,
    refuse_large_table,
    symmetric_channel,
)
from fedaudit.settings import Count, PositiveFinite, checked


@dataclass(frozen=True, kw_only=True)
@checked("grr")
class GRR:
    """Generalised randomised response on every feature.

    `epsilon`: of one feature. `alphabet`: values per feature. `features`: per record. Reports are
    codes (n, r).
    """

    name: ClassVar[str] = "grr"

    epsilon: PositiveFinite
    alphabet: Alphabet
    features: Count = 1

    @property
    def delta(self) -> float:
        return 0.0

    @property
    def log_truth(self) -> float:
        """ln p."""
        return -math.log1p((self.alphabet - 1) * math.exp(-self.epsilon))

    @property
    def truth(self) -> float:
        """p: probability of the true value."""
        return math.exp(self.log_truth)

    @property
    def lie(self) -> float:
        """q: probability of each other value."""
        return math.exp(self.log_truth - self.epsilon)

    @property
    def claimed_epsilon(self) -> float:
        return float(self.features * self.epsilon)

    def worst_case_epsilon(self) -> float:
        """r ln(p/q) = r epsilon."""
        return float(self.features * self.epsilon)

    def worst_pair(self) -> tuple[Codes, Codes]:
        return np.zeros(self.features, np.int64), np.ones(self.features, np.int64)

    def perturb(self, x: npt.ArrayLike, rng: np.random.Generator) -> Codes:
        return self.draw(check_codes(x, self.alphabet, self.features), rng)

    def draw(self, codes: Codes, rng: np.random.Generator) -> Codes:
        return draw_symmetric(codes, self.alphabet, self.truth, rng)

    draw_decoded = draw

    def log_likelihood(self, report: Report, x: npt.ArrayLike) -> Floats:
        lies = (np.asarray(report) != np.asarray(x)).sum(axis=-1)
        return np.asarray(self.features * self.log_truth - self.epsilon * lies)

    def decode(
        self, report: Report, rng: np.random.Generator, *, decoder: Decoder = "likelihood"
    ) -> Codes:
        """The report itself, for either decoder: no other value is likelier."""
        check_decoder(decoder)
        return np.asarray(report, dtype=np.int64)

    def unbiased(self, report: Report) -> Floats:
        """(1[report = v] - q) / (p - q) for every value v: (n, r, k), expectation one-hot."""
        hit = np.asarray(report)[..., None] == np.arange(self.alphabet)
        return np.asarray((hit - self.lie) / (self.truth - self.lie))

    def outputs(self) -> Codes:
        return np.arange(self.alphabet)[:, None]

    def transition(self) -> Floats:
        refuse_large_table(self.alphabet, self.alphabet)
        return symmetric_channel(self.alphabet, self.truth, self.lie)

    def decoded_transition(self, *, decoder: Decoder = "likelihood") -> Floats:
        check_decoder(decoder)
        return self.transition()
