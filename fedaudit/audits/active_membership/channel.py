"""What a client does to its records before it computes anything, as the server knows it.

A mechanism of local DP is public. A `Channel` holds it as a function of records, and, where every
feature becomes one of finitely many values, as a `Codebook`: the law of one feature, from which
games are played in whole numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from fedaudit.arrays import Floats
from fedaudit.audits.active_membership.draws import Flips, Rows, Symmetric
from fedaudit.errors import UsageError

Codes = npt.NDArray[np.int32]

MOST_BITS = 30
LARGEST_ALPHABET = 1 << 10
"""Beyond this many values the law of a feature is not written out as a table."""


@dataclass(frozen=True, kw_only=True)
class Codebook:
    """Features that are `origin` + `step` x level, a level being a whole number.

    `encode` turns features (n, r) into codes. The law is one of: `table` (k, k), Pr[code that is
    trained on | code], with level = code; `symmetric` (k, hit), a code that is kept with `hit` and
    becomes any other alike, with level = code; or `ones` (2, l), the probability that a bit of the
    code that is trained on is one if the bit was zero, and if it was one: bits are independent,
    most significant first, the first one the sign and the rest the magnitude of the level.
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
                got="none" if not given else f"{given} of them",
                remedy="give one of them",
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
        """Bits of a code, 0 where codes are plain numbers."""
        return 0 if self.ones is None else self.ones.shape[1]

    @property
    def alphabet(self) -> int:
        if self.table is not None:
            return len(self.table)
        return self.symmetric[0] if self.symmetric is not None else int(1 << self.bits)

    @cached_property
    def transition(self) -> Floats | None:
        """Pr[code that is trained on | code] (k, k), None for large alphabets."""
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
        """Whole numbers that codes stand for, same shape."""
        if self.ones is None:
            return codes
        sign = codes >> np.int32(self.bits - 1)
        magnitude = codes & np.int32((1 << (self.bits - 1)) - 1)
        magnitude ^= -sign
        magnitude += sign  # two's complement: negated where the sign is set
        return magnitude

    @cached_property
    def _sampler(self) -> Rows | Symmetric | Flips | tuple[Flips, Flips]:
        if self.table is not None:
            return Rows.of(self.table)
        if self.symmetric is not None:
            return Symmetric(*self.symmetric)
        assert self.ones is not None
        zero, one = self.ones
        if np.allclose(zero + one, 1.0, rtol=0.0, atol=1e-15):
            return Flips.of(zero)  # a flip does not depend on the bit that was there
        return Flips.of(zero), Flips.of(one)

    @property
    def flips(self) -> Flips | None:
        """The law of flips that do not depend on the bits, where there is one."""
        return self._sampler if isinstance(self._sampler, Flips) else None

    def draw(self, codes: npt.NDArray[np.int32], rng: np.random.Generator) -> Codes:
        """What is trained on for codes (count,), drawn independently, (count,)."""
        sampler = self._sampler
        if isinstance(sampler, Rows | Symmetric):
            return sampler.draw(codes, rng)
        if isinstance(sampler, Flips):
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
    """A public mechanism of local DP, or none.

    `perturb(x, rng)` turns records (n, r) into what is trained on, (n, r); `clean(x)` is what would
    be trained on without noise (rounded and clipped as the mechanism's encoder does). `codes`: the
    law of one feature, where it is discrete. `claimed_epsilon` and `exact_epsilon` of a record at
    `delta`; infinite without a mechanism.
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
        """Whether anything is done to the records at all."""
        return self.name != "none"


OPEN = Channel()
"""No local DP: clients train on their records as they are. [ActiveMembership] Figure 11"""
