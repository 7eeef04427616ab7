"""RAPPOR: a Bloom filter, a permanent response to it, an instantaneous report of the response.

    permanent      B'_i = B_i with 1 - f, else a fair coin         [ActiveMembership] Appendix G.4
    instantaneous  Pr[S_i = 1] = q if B'_i = 1 else p

The published runs set both from one epsilon: f = 2 / (e^eps + 1), so that a bit is kept with
probability p1 = e^eps / (1 + e^eps), and q = 1 - p = p2 such that a whole report keeps a bit with
probability e^(eps/2) / (1 + e^(eps/2)).

Formal guarantees, per feature: one report spends h epsilon (two values differ in at most 2h bits of
the filter). Any number of reports on one permanent response spend at most 2 h epsilon together.
The exact values come from the two filters that differ most; they are smaller if hashes collide.

Differs: the published decoder returns the first set bit. Ours returns the likeliest value.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from fedaudit.arrays import Floats
from fedaudit.errors import ConfigError, UsageError
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
from fedaudit.randomness import Seed
from fedaudit.settings import AtLeastTwo, Count, PositiveFinite, SeedNumber, checked

_BLOCK = 1 << 22  # numbers in memory when filters are compared with all values


@dataclass(frozen=True, kw_only=True)
@checked("rappor")
class RAPPOR:
    """RAPPOR on every feature.

    `epsilon`: of one report of one feature and hash. `filter_bits`: size of the Bloom filter;
    without it values are one-hot, one bit for each of `alphabet`. `hashes`: per value. Instead of
    epsilon: `permanent_noise` (f), `one_from_zero` (p), `one_from_one` (q). Reports are bits
    (n, r, m).
    """

    name: ClassVar[str] = "rappor"

    epsilon: PositiveFinite | None = None
    alphabet: Alphabet = 2
    features: Count = 1
    hashes: Count = 1
    filter_bits: AtLeastTwo | None = None
    hash_seed: SeedNumber = 0
    permanent_noise: float | None = None
    one_from_zero: float | None = None
    one_from_one: float | None = None

    def __post_init__(self) -> None:
        if self.filter_bits is None and self.hashes > 1:
            raise ConfigError(
                "a one-hot value has one hash",
                expected="hashes = 1, or filter_bits for a Bloom filter",
                got=f"hashes = {self.hashes}",
                remedy="filter_bits = 128",
            )
        given = (self.permanent_noise, self.one_from_zero, self.one_from_one)
        if self.epsilon is not None and all(v is None for v in given):
            return
        if self.epsilon is not None or any(v is None for v in given):
            raise ConfigError(
                "RAPPOR's noise can be set in two ways: choose one",
                expected="epsilon, or all of permanent_noise, one_from_zero and one_from_one",
                got=f"epsilon = {self.epsilon} and {', '.join(map(str, given))}",
                remedy="epsilon = 4.0",
            )
        f, p, q = (float(v) for v in given if v is not None)
        if not (0 <= f < 1 and 0 <= p < q <= 1 and 0.5 * f * (p + q) + (1 - f) * p > 0):
            raise ConfigError(
                "RAPPOR's probabilities are out of range",
                expected="0 <= permanent_noise < 1 and 0 <= one_from_zero < one_from_one <= 1, "
                "with some noise in total",
                got=f"{f:g}, {p:g} and {q:g}",
                remedy="permanent_noise = 0.5, one_from_zero = 0.5, one_from_one = 0.75",
            )
        if not 0.5 * f * (p + q) + (1 - f) * q < 1:
            raise ConfigError(
                "RAPPOR without noise on ones hides nothing",
                expected="permanent_noise above 0 or one_from_one below 1",
                got=f"{f:g} and {q:g}",
                remedy="one_from_one = 0.75",
            )

    # -- probabilities -----------------------------------------------------------------------

    @property
    def delta(self) -> float:
        return 0.0

    @property
    def f(self) -> float:
        """Share of bits that the permanent response replaces by a fair coin."""
        if self.permanent_noise is not None:
            return self.permanent_noise
        return float(2.0 * sigmoid(-self._epsilon))

    @property
    def p1(self) -> float:
        """Pr[B' = B]: 1 - f/2."""
        return 1.0 - self.f / 2.0

    @property
    def p2(self) -> float:
        """Pr[S = 1 | B' = 1]: (p_s - q1) / (p1 - q1), p_s = e^(eps/2) / (1 + e^(eps/2))."""
        if self.one_from_one is not None:
            return self.one_from_one
        e = self._epsilon  # tanh keeps its digits for small and large epsilons
        return 0.5 * (1.0 + math.tanh(e / 4.0) / math.tanh(e / 2.0))

    @property
    def q2(self) -> float:
        """Pr[S = 1 | B' = 0]."""
        return 1.0 - self.p2 if self.one_from_zero is None else self.one_from_zero

    @property
    def report_one(self) -> float:
        """Pr[S = 1 | B = 1] of a whole report."""
        if self.epsilon is not None:
            return float(sigmoid(self.epsilon / 2.0))
        return 0.5 * self.f * (self.q2 + self.p2) + (1.0 - self.f) * self.p2

    @property
    def report_zero(self) -> float:
        """Pr[S = 1 | B = 0] of a whole report."""
        if self.epsilon is not None:
            return float(sigmoid(-self.epsilon / 2.0))
        return 0.5 * self.f * (self.q2 + self.p2) + (1.0 - self.f) * self.q2

    @property
    def _epsilon(self) -> float:
        assert self.epsilon is not None
        return self.epsilon

    @property
    def _gains(self) -> tuple[float, float]:
        """ln Pr[S|B=1]/Pr[S|B=0] at S = 1, and ln Pr[S|B=0]/Pr[S|B=1] at S = 0: both positive."""
        if self.epsilon is not None:
            return self.epsilon / 2.0, self.epsilon / 2.0
        one, zero = self.report_one, self.report_zero
        return math.log(one / zero), math.log((1.0 - zero) / (1.0 - one))

    # -- budgets -----------------------------------------------------------------------------

    @property
    def claimed_epsilon(self) -> float:
        """h (ln q*/p* + ln (1-p*)/(1-q*)) per feature, as RAPPOR's authors state for one report:
        h epsilon if epsilon sets the noise."""
        return float(self.features * self.hashes * sum(self._gains))

    def permanent_epsilon(self) -> float:
        """The most that any number of reports on one permanent response spend together.

        This is the epsilon of the permanent response: infinite if f = 0.
        """
        gain = math.inf if self.f == 0 else math.log(self.p1 / (self.f / 2.0))
        if self.epsilon is not None:
            gain = self.epsilon
        only, other = self._farthest[2:]
        return self.features * gain * (only + other)

    def worst_case_epsilon(self) -> float:
        """Of one report: the most over pairs of values of the differing bits times their gains."""
        only, other = self._farthest[2:]
        one, zero = self._gains
        return self.features * (only * one + other * zero)

    def worst_pair(self) -> tuple[Codes, Codes]:
        first, second = self._farthest[:2]
        r = self.features
        return np.full(r, first, np.int64), np.full(r, second, np.int64)

    def worst_pair_only(self) -> RAPPOR:
        """The same mechanism on the two bits of `worst_pair`, if values are one-hot: the others
        are independent of them and have the same law for both records."""
        return replace(self, alphabet=2) if self.filter_bits is None else self

    @cached_property
    def _farthest(self) -> tuple[int, int, int, int]:
        """The pair of values whose filters differ most, and the number of bits set in one only."""
        if self.filter_bits is None:
            return 0, 1, 1, 1
        one, zero = self._gains
        filters = self.filters.astype(np.float32)
        size = filters.sum(axis=1)
        ceiling = self.hashes * (one + zero)
        best, found = -1.0, (0, 0, 0, 0)
        step = max(1, _BLOCK // self.alphabet)
        for start in range(0, self.alphabet, step):
            shared = filters[start : start + step] @ filters.T
            only = size[start : start + step, None] - shared
            other = size[None, :] - shared
            cost = only * one + other * zero
            i, j = (int(a) for a in np.unravel_index(cost.argmax(), cost.shape))
            if cost[i, j] > best:
                best = float(cost[i, j])
                found = (start + i, j, round(float(only[i, j])), round(float(other[i, j])))
            if best >= ceiling * (1 - 1e-6):
                break  # two filters of `hashes` hashes cannot differ more
        return found

    # -- filters -----------------------------------------------------------------------------

    @property
    def width(self) -> int:
        """Bits of a report."""
        return self.alphabet if self.filter_bits is None else self.filter_bits

    @cached_property
    def filters(self) -> Bits:
        """The filter of every value (k, m). The hashes are public and fixed by `hash_seed`."""
        if self.filter_bits is None:
            return np.eye(self.alphabet, dtype=np.int8)
        value, number = np.arange(self.alphabet)[:, None], np.arange(self.hashes)[None, :]
        words = Seed(self.hash_seed).bits("bloom", value, number)
        places = (words % np.uint64(self.filter_bits)).astype(np.int64)
        out = np.zeros((self.alphabet, self.filter_bits), dtype=np.int8)
        out[value, places] = 1
        return out

    # -- reports -----------------------------------------------------------------------------

    def perturb(self, x: npt.ArrayLike, rng: np.random.Generator) -> Bits:
        """One report: draws the permanent response and the instantaneous one."""
        return self.report(self.permanent_response(x, rng), rng)

    def permanent_response(self, x: npt.ArrayLike, rng: np.random.Generator) -> Bits:
        """The permanent response (n, r, m): draw it once per value and keep it."""
        codes = check_codes(x, self.alphabet, self.features)
        return _flip(self.filters[codes], self.p1, self.f / 2.0, rng)

    def report(self, permanent: Bits, rng: np.random.Generator) -> Bits:
        """An instantaneous report (n, r, m) on a permanent response."""
        return _flip(permanent, self.p2, self.q2, rng)

    def draw(self, codes: Codes, rng: np.random.Generator) -> Bits:
        """Both responses in one draw, with the probabilities of a whole report."""
        return _flip(self.filters[codes], self.report_one, self.report_zero, rng)

    def draw_decoded(self, codes: Codes, rng: np.random.Generator) -> Codes:
        if self.filter_bits is not None:
            return self.decode(self.draw(codes, rng), rng)
        return draw_symmetric(codes, self.alphabet, self.hit_probability, rng)

    @cached_property
    def hit_probability(self) -> float:
        """Probability that the default decoder finds a one-hot value; its errors are uniform."""
        self._need_one_hot()
        k = self.alphabet
        return unary.hit_probability(k, k, self.report_one, self.report_zero)

    def _need_one_hot(self) -> None:
        if self.filter_bits is not None:
            raise UsageError(
                "decoding a Bloom filter has no closed form",
                expected="RAPPOR without filter_bits",
                got=f"a filter of {self.filter_bits} bits",
                remedy="measure it with decode",
            )

    def log_likelihood(self, report: Report, x: npt.ArrayLike) -> Floats:
        bits = np.asarray(report) == 1
        had = self.filters[np.asarray(x, dtype=np.int64)] == 1
        law = self._log_law
        both = (had & bits).sum(axis=(-2, -1))
        of_value, of_report = had.sum(axis=(-2, -1)), bits.sum(axis=(-2, -1))
        neither = self.features * self.width - of_value - of_report + both
        out = law[1, 1] * both + law[1, 0] * (of_value - both)
        return np.asarray(out + law[0, 1] * (of_report - both) + law[0, 0] * neither)

    @property
    def _log_law(self) -> Floats:
        """ln Pr[S | B] (2, 2) by B and S."""
        if self.epsilon is not None:
            right, wrong = log_sigmoid(self.epsilon / 2.0), log_sigmoid(-self.epsilon / 2.0)
            return np.array([[right, wrong], [wrong, right]])
        one, zero = self.report_one, self.report_zero
        return np.log([[1.0 - zero, zero], [1.0 - one, one]])

    def decode(
        self, report: Report, rng: np.random.Generator, *, decoder: Decoder = "likelihood"
    ) -> Codes:
        """The likeliest value, ties at random; "published": first set bit of a one-hot report."""
        check_decoder(decoder)
        bits = np.asarray(report, dtype=np.int8)
        if self.filter_bits is None:
            return unary.decode(bits, rng, decoder)
        if decoder == "published":
            raise UsageError(
                "the published decoder reads one-hot reports only",
                expected="RAPPOR without filter_bits",
                got=f"a Bloom filter of {self.filter_bits} bits",
                remedy='decoder = "likelihood"',
            )
        flat = bits.reshape(-1, self.width)
        out = np.empty(len(flat), dtype=np.int64)
        own = self.filters.astype(np.float32)
        size = own.sum(axis=1).astype(np.float64)
        one, zero = self._gains
        step = max(1, _BLOCK // self.alphabet)
        for start in range(0, len(flat), step):
            # counts are whole numbers: equal likelihoods are equal floats
            shared = (flat[start : start + step].astype(np.float32) @ own.T).astype(np.float64)
            likelihood = shared * one - (size - shared) * zero
            draw = rng.random(likelihood.shape)
            draw[likelihood < likelihood.max(axis=1, keepdims=True)] = -1.0
            out[start : start + step] = draw.argmax(axis=1)
        return out.reshape(bits.shape[:-1])

    def unbiased(self, report: Report) -> Floats:
        """(S - p*) / (q* - p*): (n, r, m), expectation the filter (one-hot: the value)."""
        return np.asarray(
            (np.asarray(report) - self.report_zero) / (self.report_one - self.report_zero)
        )

    def outputs(self) -> Bits:
        refuse_large_table(self.alphabet, 1 << min(self.width, 62))
        return all_bits(self.width)[:, None, :].astype(np.int8)

    def transition(self) -> Floats:
        outputs = self.outputs()
        one = replace(self, features=1)
        rows = [one.log_likelihood(outputs, np.array([v])) for v in range(self.alphabet)]
        return np.exp(np.array(rows))

    def decoded_transition(self, *, decoder: Decoder = "likelihood") -> Floats:
        check_decoder(decoder)
        self._need_one_hot()
        k = self.alphabet
        refuse_large_table(k, k)
        if decoder == "published":
            return unary.first_bit_transition(k, k, self.report_one, self.report_zero)
        return symmetric_channel(k, self.hit_probability, (1.0 - self.hit_probability) / (k - 1))


def _flip(bits: Bits, one: float, zero: float, rng: np.random.Generator) -> Bits:
    """Redraw bits: one with probability `one` if a bit is set, `zero` if not."""
    u = rng.random(bits.shape)
    return np.where(bits == 1, u < one, u < zero).astype(np.int8)
