"""dBitFlipPM: d of k buckets are asked for, each answers with one noisy bit.

    Pr[b_j = 1] = e^(eps/2) / (e^(eps/2) + 1) if v = j, else 1 / (e^(eps/2) + 1)
                                                                   [ActiveMembership] Appendix G.4

Formal guarantees, per feature: epsilon for d >= 2 (both buckets of a pair may be asked for), and
epsilon / 2 for d = 1. Which buckets are asked for is drawn regardless of the value and is public.
With d = k it is symmetric unary encoding. Drawn once and kept, as its authors ask for.

Differs: the published decoder takes the first set bit. Ours takes the likeliest value.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from fedaudit.arrays import Floats
from fedaudit.protections.local_dp import unary
from fedaudit.protections.local_dp.mechanism import (
    Codes,
    Decoder,
    Report,
    all_bits,
    check_alphabet,
    check_codes,
    check_count,
    check_decoder,
    check_epsilon,
    draw_symmetric,
    log_sigmoid,
    refuse_large_table,
    sigmoid,
    symmetric_channel,
)

Bits = npt.NDArray[np.int8]


@dataclass(frozen=True, kw_only=True)
class DBitFlip:
    """dBitFlipPM on every feature.

    `epsilon` of one feature; `alphabet` buckets, of which `buckets` (d) are asked for (by default
    all). Reports are bits (n, r, k), -1 where a bucket was not asked for.
    """

    name: ClassVar[str] = "dbitflip"

    epsilon: float
    alphabet: int
    features: int = 1
    buckets: int | None = None

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        check_alphabet(self.alphabet)
        check_count("features", self.features, 1)
        if self.buckets is not None:
            check_count("buckets", self.buckets, 1, self.alphabet)

    @property
    def delta(self) -> float:
        return 0.0

    @property
    def asked(self) -> int:
        """d: buckets that are asked for."""
        return self.alphabet if self.buckets is None else self.buckets

    @property
    def one_from_one(self) -> float:
        """Pr[b_j = 1 | v = j]."""
        return float(sigmoid(self.epsilon / 2.0))

    @property
    def one_from_zero(self) -> float:
        """Pr[b_j = 1 | v != j]."""
        return float(sigmoid(-self.epsilon / 2.0))

    @property
    def claimed_epsilon(self) -> float:
        return float(self.features * self.epsilon)

    def worst_case_epsilon(self) -> float:
        """r epsilon; half of it if a single bucket is asked for."""
        return self.features * self.epsilon * (1.0 if self.asked >= 2 else 0.5)

    def worst_pair(self) -> tuple[Codes, Codes]:
        return np.zeros(self.features, np.int64), np.ones(self.features, np.int64)

    def perturb(self, x: npt.ArrayLike, rng: np.random.Generator) -> Bits:
        return self.draw(check_codes(x, self.alphabet, self.features), rng)

    def draw(self, codes: Codes, rng: np.random.Generator) -> Bits:
        k, d = self.alphabet, self.asked
        shape = (*codes.shape, k)
        own = codes[..., None] == np.arange(k)
        u = rng.random(shape)
        bits = np.where(own, u < self.one_from_one, u < self.one_from_zero).astype(np.int8)
        if d < k:
            lots = rng.random(shape)
            left_out = np.argpartition(lots, d - 1, axis=-1)[..., d:]
            np.put_along_axis(bits, left_out, np.int8(-1), axis=-1)
        return bits

    def draw_decoded(self, codes: Codes, rng: np.random.Generator) -> Codes:
        return draw_symmetric(codes, self.alphabet, self.hit_probability, rng)

    @cached_property
    def hit_probability(self) -> float:
        """How often the default decoder finds the value; its errors are uniform."""
        return unary.hit_probability(
            self.alphabet, self.asked, self.one_from_one, self.one_from_zero
        )

    def telling(self) -> DBitFlip:
        """The buckets of `worst_pair` alone, where all are asked for: the others are independent of
        them, and have the same law whichever of the two it is."""
        return replace(self, alphabet=2, buckets=None) if self.asked == self.alphabet else self

    def log_likelihood(self, report: Report, x: npt.ArrayLike) -> Floats:
        bits = np.asarray(report)
        own = np.asarray(x)[..., None] == np.arange(self.alphabet)
        right = (bits == own) & (bits >= 0)
        wrong = (bits != own) & (bits >= 0)
        half = self.epsilon / 2.0
        many = self.features * math.log(math.comb(self.alphabet, self.asked))
        law = log_sigmoid(half) * right.sum(axis=(-2, -1))
        return np.asarray(law + log_sigmoid(-half) * wrong.sum(axis=(-2, -1)) - many)

    def decode(
        self, report: Report, rng: np.random.Generator, *, decoder: Decoder = "likelihood"
    ) -> Codes:
        """The likeliest value, ties by lot; "published": the first set bit."""
        check_decoder(decoder)
        return unary.decode(np.asarray(report, dtype=np.int8), rng, decoder)

    def unbiased(self, report: Report) -> Floats:
        """(k/d) (b (e^(eps/2) + 1) - 1) / (e^(eps/2) - 1) where asked for, else 0: (n, r, k), whose
        mean over clients is the published histogram.

        Its expectation is one-hot over the noise and, for d < k, over which buckets are asked for:
        given the buckets it is k/d times the value in them, and 0 elsewhere."""
        bits = np.asarray(report)
        scale = self.alphabet / self.asked / (self.one_from_one - self.one_from_zero)
        return np.asarray(np.where(bits < 0, 0.0, (bits - self.one_from_zero) * scale))

    def outputs(self) -> Bits:
        k, d = self.alphabet, self.asked
        many = math.comb(k, d) << min(d, 62)
        refuse_large_table(k, many)
        every = all_bits(d).astype(np.int8)
        out = np.full((math.comb(k, d), len(every), k), -1, dtype=np.int8)
        for block, chosen in zip(out, combinations(range(k), d), strict=True):
            block[:, chosen] = every
        return out.reshape(many, 1, k)

    def transition(self) -> Floats:
        outputs = self.outputs()
        one = replace(self, features=1)
        rows = [one.log_likelihood(outputs, np.array([v])) for v in range(self.alphabet)]
        return np.exp(np.array(rows))

    def decoded_transition(self, *, decoder: Decoder = "likelihood") -> Floats:
        check_decoder(decoder)
        k = self.alphabet
        refuse_large_table(k, k)
        if decoder == "published":
            return unary.first_bit_transition(k, self.asked, self.one_from_one, self.one_from_zero)
        return symmetric_channel(k, self.hit_probability, (1.0 - self.hit_probability) / (k - 1))
