"""dBitFlipPM: a client reports one noisy bit for each of d of k buckets.

    Pr[b_j = 1] = e^(eps/2) / (e^(eps/2) + 1) if v = j, else 1 / (e^(eps/2) + 1)
                                                                   [ActiveMembership] Appendix G.4

Formal guarantees, per feature: epsilon for d >= 2 (both buckets of a pair may be sampled), and
epsilon / 2 for d = 1. The sampled buckets do not depend on the value and are public. With d = k it
is symmetric unary encoding. Reports are drawn once and kept, as its authors require.

Differs: the published decoder returns the first set bit. Ours returns the likeliest value.
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
from fedaudit.errors import ConfigError
from fedaudit.protections.local_dp import unary
from fedaudit.protections.local_dp.mechanism import (
    Alphabet,
    Codes,
    Decoder,
    Report,
    all_bits,
    check_codes,
    check_decoder,
    draw_symmetric,
    log_sigmoid,
    refuse_large_table,
    sigmoid,
    symmetric_channel,
)
from fedaudit.protections.local_dp.unary import Bits
from fedaudit.settings import Count, PositiveFinite, checked


@dataclass(frozen=True, kw_only=True)
@checked("dbitflip")
class DBitFlip:
    """dBitFlipPM on every feature.

    `epsilon`: of one feature. `alphabet`: all buckets (k). `buckets`: sampled buckets (d, default:
    all). Reports are bits (n, r, k), -1 where a bucket was not sampled.
    """

    name: ClassVar[str] = "dbitflip"

    epsilon: PositiveFinite
    alphabet: Alphabet
    features: Count = 1
    buckets: Count | None = None

    def __post_init__(self) -> None:
        if self.buckets is not None and self.buckets > self.alphabet:
            raise ConfigError(
                "dbitflip.buckets is out of range",
                expected=f"at most alphabet = {self.alphabet}",
                got=str(self.buckets),
                remedy="leave buckets out to sample all of them",
            )

    @property
    def delta(self) -> float:
        return 0.0

    @property
    def sampled(self) -> int:
        """d: number of sampled buckets."""
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
        """r epsilon; half of it if a single bucket is sampled."""
        return self.features * self.epsilon * (1.0 if self.sampled >= 2 else 0.5)

    def worst_pair(self) -> tuple[Codes, Codes]:
        return np.zeros(self.features, np.int64), np.ones(self.features, np.int64)

    def perturb(self, x: npt.ArrayLike, rng: np.random.Generator) -> Bits:
        return self.draw(check_codes(x, self.alphabet, self.features), rng)

    def draw(self, codes: Codes, rng: np.random.Generator) -> Bits:
        k, d = self.alphabet, self.sampled
        shape = (*codes.shape, k)
        own = codes[..., None] == np.arange(k)
        u = rng.random(shape)
        bits = np.where(own, u < self.one_from_one, u < self.one_from_zero).astype(np.int8)
        if d < k:
            draws = rng.random(shape)
            left_out = np.argpartition(draws, d - 1, axis=-1)[..., d:]
            np.put_along_axis(bits, left_out, np.int8(-1), axis=-1)
        return bits

    def draw_decoded(self, codes: Codes, rng: np.random.Generator) -> Codes:
        return draw_symmetric(codes, self.alphabet, self.hit_probability, rng)

    @cached_property
    def hit_probability(self) -> float:
        """Probability that the default decoder finds the value; its errors are uniform."""
        return unary.hit_probability(
            self.alphabet, self.sampled, self.one_from_one, self.one_from_zero
        )

    def worst_pair_only(self) -> DBitFlip:
        """The same mechanism on the two buckets of `worst_pair`, if all buckets are sampled: the
        others are independent of them and have the same law for both records."""
        return replace(self, alphabet=2, buckets=None) if self.sampled == self.alphabet else self

    def log_likelihood(self, report: Report, x: npt.ArrayLike) -> Floats:
        bits = np.asarray(report)
        own = np.asarray(x)[..., None] == np.arange(self.alphabet)
        right = (bits == own) & (bits >= 0)
        wrong = (bits != own) & (bits >= 0)
        half = self.epsilon / 2.0
        many = self.features * math.log(math.comb(self.alphabet, self.sampled))
        law = log_sigmoid(half) * right.sum(axis=(-2, -1))
        return np.asarray(law + log_sigmoid(-half) * wrong.sum(axis=(-2, -1)) - many)

    def decode(
        self, report: Report, rng: np.random.Generator, *, decoder: Decoder = "likelihood"
    ) -> Codes:
        """The likeliest value, ties at random; "published": the first set bit."""
        check_decoder(decoder)
        return unary.decode(np.asarray(report, dtype=np.int8), rng, decoder)

    def unbiased(self, report: Report) -> Floats:
        """(k/d) (b (e^(eps/2) + 1) - 1) / (e^(eps/2) - 1) for sampled buckets, else 0: (n, r, k).
        Its mean over clients is the published histogram.

        The expectation is one-hot, over the noise and, for d < k, over the sampled buckets. Given
        the buckets it is k/d times the value in them, and 0 elsewhere."""
        bits = np.asarray(report)
        scale = self.alphabet / self.sampled / (self.one_from_one - self.one_from_zero)
        return np.asarray(np.where(bits < 0, 0.0, (bits - self.one_from_zero) * scale))

    def outputs(self) -> Bits:
        k, d = self.alphabet, self.sampled
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
            return unary.first_bit_transition(
                k, self.sampled, self.one_from_one, self.one_from_zero
            )
        return symmetric_channel(k, self.hit_probability, (1.0 - self.hit_probability) / (k - 1))
