"""The local DP mechanism of a client, as the server knows it.

The mechanism is public. A `Channel` holds it as a function of records. If every feature takes
finitely many values, the channel also has a `Codebook`: the distribution of one feature, with which
games run on whole numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from fedaudit.arrays import Floats
from fedaudit.audits.active_membership.draws import BitSampler, SymmetricSampler, TableSampler
from fedaudit.errors import UsageError

Codes = npt.NDArray[np.int32]

MOST_BITS = 30
LARGEST_ALPHABET = 1 << 10
"""Largest number of values for which a feature's transition table is built."""


@dataclass(frozen=True, kw_only=True)
class Codebook:
    """Discrete features: `origin` + `step` x level, with whole-number levels.

    `encode` turns features (n, r) into codes. Exactly one of three laws gives the reported code:
    `table` (k, k): Pr[reported code | code], level = code. `symmetric` (k, hit): a code is kept
    with probability `hit`, else any other is equally likely; level = code. `ones` (2, l): the
    probability that a reported bit is one if the bit was zero, and if it was one. Bits are
    independent, most significant first; the first is the sign, the rest the magnitude of the level.
    """

    step: float
    encode: Callable[[Floats], npt.NDArray[np.int64]]
    origin: float = 0.0
    table: Floats | None = None
    ones: Floats | None = None
    symmetric: tuple[int, float] | None = None

    def __post_init__(self) -> None:
        given = sum(law is not None for law in (self.table, self.ones, self.symmetric))
        if given != 1:
            raise UsageError(
                "a codebook has one law",
                expected="a table of transitions, a symmetric law, or probabilities of bits",
                got=f"{given} laws",
                remedy="give exactly one of the three",
            )
        if self.bits > MOST_BITS:
            raise UsageError(
                "a code has too many bits",
                expected=f"at most {MOST_BITS} bits per feature",
                got=str(self.bits),
                remedy="encode features with fewer bits",
            )

    @property
    def bits(self) -> int:
        """Bits of a code; 0 if codes are plain numbers."""
        return 0 if self.ones is None else self.ones.shape[1]

    @property
    def alphabet(self) -> int:
        if self.table is not None:
            return len(self.table)
        return self.symmetric[0] if self.symmetric is not None else int(1 << self.bits)

    @cached_property
    def transition(self) -> Floats | None:
        """Pr[reported code | code] (k, k); None for large alphabets."""
        if self.table is not None:
            return self.table if len(self.table) <= LARGEST_ALPHABET else None
        if self.alphabet > LARGEST_ALPHABET:
            return None
        if self.symmetric is not None:
            k, hit = self.symmetric
            even = np.full((k, k), (1.0 - hit) / (k - 1))
            np.fill_diagonal(even, hit)
            return even
        assert self.ones is not None
        out = np.ones((1, 1))
        for zero, one in self.ones.T:
            out = np.kron(out, np.array([[1.0 - zero, zero], [1.0 - one, one]]))
        return out

    def level(self, codes: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        """Levels of codes, same shape."""
        if self.ones is None:
            return codes
        sign = codes >> np.int32(self.bits - 1)
        magnitude = codes & np.int32((1 << (self.bits - 1)) - 1)
        magnitude ^= -sign
        magnitude += sign  # two's complement: negate if the sign is set
        return magnitude

    @cached_property
    def _sampler(
        self,
    ) -> TableSampler | SymmetricSampler | BitSampler | tuple[BitSampler, BitSampler]:
        if self.table is not None:
            return TableSampler.of(self.table)
        if self.symmetric is not None:
            return SymmetricSampler(*self.symmetric)
        assert self.ones is not None
        zero, one = self.ones
        if np.allclose(zero + one, 1.0, rtol=0.0, atol=1e-15):
            return BitSampler.of(zero)  # a flip does not depend on the bit
        return BitSampler.of(zero), BitSampler.of(one)

    @property
    def flips(self) -> BitSampler | None:
        """Sampler of bit flips that do not depend on the bits; None for other laws."""
        return self._sampler if isinstance(self._sampler, BitSampler) else None

    def draw(self, codes: npt.NDArray[np.int32], rng: np.random.Generator) -> Codes:
        """Reported codes (count,) of codes (count,), drawn independently."""
        sampler = self._sampler
        if isinstance(sampler, TableSampler | SymmetricSampler):
            return sampler.draw(codes, rng)
        if isinstance(sampler, BitSampler):
            flips = sampler.draw(len(codes), rng).view(np.int32)
            flips ^= codes
            return flips
        raised = sampler[0].draw(len(codes), rng).view(np.int32)
        kept = sampler[1].draw(len(codes), rng).view(np.int32)
        kept &= codes
        raised &= ~codes
        kept |= raised
        return kept


@dataclass(frozen=True, kw_only=True)
class Channel:
    """A public local DP mechanism, or none.

    `perturb(x, rng)` turns records (n, r) into the records (n, r) that a client trains on.
    `clean(x)` does the same without noise: it rounds and clips as the mechanism's encoder does.
    `codes`: the codebook of discrete features. `claimed_epsilon` and `exact_epsilon` are per record
    at `delta`, infinite without a mechanism.
    """

    name: str = "none"
    perturb: Callable[[Floats, np.random.Generator], Floats] = field(
        default=lambda x, rng: x, repr=False
    )
    clean: Callable[[Floats], Floats] = field(default=lambda x: x, repr=False)
    codes: Codebook | None = field(default=None, repr=False)
    claimed_epsilon: float = math.inf
    exact_epsilon: float = math.inf
    delta: float = 0.0

    @property
    def protects(self) -> bool:
        """Whether there is a mechanism."""
        return self.name != "none"


NO_MECHANISM = Channel()
"""No local DP: clients train on their records as they are. [ActiveMembership] Figure 11"""
