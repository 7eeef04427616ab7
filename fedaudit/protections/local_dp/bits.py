"""Mechanisms that randomise every bit of a code independently: the base of BitRand and OME.

A code of l bits encodes one feature, most significant bit first (bit 0 is the sign of an encoded
float). Bit k of a report is one with a probability that depends on k and on bit k of the code.

Formal guarantees: those of the single bits. Two records may differ in all r l bits; every bit then
adds its log-ratio. The exact worst case is their sum, whatever epsilon the mechanism claims.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property
from typing import Annotated

import numpy as np
import numpy.typing as npt
from annotated_types import Ge, Le

from fedaudit.arrays import Floats
from fedaudit.errors import UsageError
from fedaudit.protections.local_dp.mechanism import (
    Codes,
    Decoder,
    Report,
    check_codes,
    check_decoder,
    log_sigmoid,
    refuse_large_table,
    sigmoid,
)
from fedaudit.stats.alias import BitWords, word_probabilities

MOST_BITS = 52
"""Most bits of one feature: a double holds no more."""
BitCount = Annotated[int, Ge(1), Le(MOST_BITS)]


class IndependentBits(ABC):
    """The law of independent bits. A mechanism defines `logit_one` and `logit_zero`.

    Codes and reports are whole numbers (n, r) below 2^l.
    """

    epsilon: float
    bits: int
    features: int

    @property
    @abstractmethod
    def logit_one(self) -> Floats:
        """Logit of Pr[bit is one in the report | it was one], (l,)."""

    @property
    @abstractmethod
    def logit_zero(self) -> Floats:
        """Logit of Pr[bit is one in the report | it was zero], (l,)."""

    # -- tables ------------------------------------------------------------------------------

    @property
    def alphabet(self) -> int:
        return 1 << self.bits

    @property
    def delta(self) -> float:
        return 0.0

    @cached_property
    def one_from_one(self) -> Floats:
        """Pr[one | one] (l,)."""
        return sigmoid(self.logit_one)

    @cached_property
    def one_from_zero(self) -> Floats:
        """Pr[one | zero] (l,)."""
        return sigmoid(self.logit_zero)

    @cached_property
    def kept(self) -> BitWords:
        """Alias tables of words: the bits that report ones."""
        return BitWords.of(np.exp(self._log_law[:, 1]))

    @cached_property
    def raised(self) -> BitWords:
        """Alias tables of words: the bits that report zeros."""
        return BitWords.of(np.exp(self._log_law[:, 0]))

    @cached_property
    def reversed_bits(self) -> int:
        """The word of bits that are more likely reported wrong than right."""
        turned = self.logit_one < self.logit_zero
        return sum(1 << (self.bits - 1 - k) for k in np.flatnonzero(turned).tolist())

    @cached_property
    def _log_law(self) -> Floats:
        """ln Pr[reported | was] (l, 2, 2) by bit, was, reported."""
        rows = (self.logit_zero, self.logit_one)
        return np.stack(
            [np.stack([log_sigmoid(-a), log_sigmoid(a)], axis=-1) for a in rows], axis=1
        )

    # -- budgets -----------------------------------------------------------------------------

    @cached_property
    def _ratios(self) -> Floats:
        """ln Pr[reported | was one] / Pr[reported | was zero] (l, 2) by bit and reported bit."""
        return self._log_law[:, 1] - self._log_law[:, 0]

    def bit_epsilons(self) -> Floats:
        """The exact epsilon of every bit (l,): the larger log-ratio of its two reports."""
        return np.asarray(np.abs(self._ratios).max(axis=1))

    def worst_case_epsilon(self) -> float:
        """r times the sum over bits, for two records that differ in all of them."""
        return float(self.features * self.bit_epsilons().sum())

    def worst_pair(self) -> tuple[Codes, Codes]:
        rows = np.arange(self.bits)
        best = self._ratios[rows, np.abs(self._ratios).argmax(axis=1)]
        word = sum(1 << (self.bits - 1 - k) for k in np.flatnonzero(best > 0).tolist())
        opposite = word ^ (self.alphabet - 1)
        r = self.features
        return np.full(r, word, np.int64), np.full(r, opposite, np.int64)

    # -- reports -----------------------------------------------------------------------------

    def perturb(self, x: npt.ArrayLike, rng: np.random.Generator) -> Codes:
        return self.draw(check_codes(x, self.alphabet, self.features), rng)

    def draw(self, codes: Codes, rng: np.random.Generator) -> Codes:
        ones = self.kept.draw(codes.shape, rng)
        zeros = self.raised.draw(codes.shape, rng)
        return (codes & ones) | (~codes & zeros)

    def draw_decoded(self, codes: Codes, rng: np.random.Generator) -> Codes:
        return self.draw(codes, rng) ^ self.reversed_bits

    def log_likelihood(self, report: Report, x: npt.ArrayLike) -> Floats:
        reported, was = np.asarray(report), np.asarray(x, dtype=np.int64)
        out = np.zeros(reported.shape[:-1])
        for k, law in enumerate(self._log_law):
            shift = self.bits - 1 - k
            now, then = (reported >> shift) & 1, (was >> shift) & 1
            both = (now & then).sum(axis=-1)
            one, had = now.sum(axis=-1), then.sum(axis=-1)
            out += law[1, 1] * both + law[1, 0] * (had - both)
            out += law[0, 1] * (one - both) + law[0, 0] * (self.features - had - one + both)
        return out

    def decode(
        self, report: Report, rng: np.random.Generator, *, decoder: Decoder = "likelihood"
    ) -> Codes:
        """The likeliest code: bits that flip more often than not are flipped back. "published": the
        report unchanged."""
        check_decoder(decoder)
        codes = np.asarray(report, dtype=np.int64)
        return codes ^ self.reversed_bits if decoder == "likelihood" else codes

    def unbiased(self, report: Report) -> Floats:
        """(b - Pr[one|zero]) / (Pr[one|one] - Pr[one|zero]): (n, r, l), expectation the bits."""
        gap = self.one_from_one - self.one_from_zero
        blank = np.flatnonzero(np.abs(gap) < 1e-12)
        if len(blank):
            raise UsageError(
                "a bit reported by a fair coin has no unbiased estimate",
                expected="bits whose report depends on the bit",
                got=f"bit {blank[0]} of {self.bits}, one with probability "
                f"{self.one_from_one[blank[0]]:g} either way",
                remedy="use another epsilon or more bits, or decode",
            )
        return np.asarray((split_bits(report, self.bits) - self.one_from_zero) / gap)

    def outputs(self) -> Codes:
        refuse_large_table(self.alphabet, self.alphabet)
        return np.arange(self.alphabet)[:, None]

    def transition(self) -> Floats:
        law = np.exp(self._log_law)  # (l, was, reported)
        was = split_bits(self.outputs()[:, 0], self.bits)
        return np.array([word_probabilities(law[np.arange(self.bits), row]) for row in was])

    def decoded_transition(self, *, decoder: Decoder = "likelihood") -> Floats:
        check_decoder(decoder)
        table = self.transition()
        if decoder == "published":
            return table
        return table[:, self.outputs()[:, 0] ^ self.reversed_bits]


def split_bits(codes: npt.ArrayLike, count: int) -> npt.NDArray[np.uint8]:
    """Codes (...) as bits (..., count), most significant first."""
    shifts = np.arange(count - 1, -1, -1)
    return ((np.asarray(codes, dtype=np.int64)[..., None] >> shifts) & 1).astype(np.uint8)
