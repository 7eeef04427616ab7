"""Random numbers addressed by what they are for, never by when they are drawn.

Every draw of a run is a function of (seed, purpose, coordinates), for example
(seed, "batches", client, round, epoch, record). Two consequences carry the whole engine:
results do not depend on how clients are batched or on how many workers there are, and
whoever holds the seed can redraw every noise, flip and shuffle (so the seed lives in `truth/`).

Two forms, one address space:

- `Seed.bits`: a counter-based hash, vectorised over coordinates. Used for shuffles and Poisson
  batches, where millions of small independent streams are needed.
- `Seed.generator`, `Seed.torch_generator`: an ordinary generator for one address. Used for
  Gaussian noise, initial weights, and anything drawn in bulk.

This is for simulation and for tests. In deployment noise comes from the operating system.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from operator import index
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fedaudit.errors import UsageError

if TYPE_CHECKING:
    import torch

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_M1 = np.uint64(0xBF58476D1CE4E5B9)
_M2 = np.uint64(0x94D049BB133111EB)


def _mix(z: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The splitmix64 finaliser: a bijection of 64-bit words with full avalanche."""
    z = (z ^ (z >> np.uint64(30))) * _M1
    z = (z ^ (z >> np.uint64(27))) * _M2
    return z ^ (z >> np.uint64(31))


def _word(purpose: str) -> int:
    return int.from_bytes(hashlib.blake2b(purpose.encode(), digest_size=8).digest(), "little")


@dataclass(frozen=True)
class Seed:
    """The root of every random number of a run."""

    root: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "root", index(self.root))
        if not 0 <= self.root < 2**64:
            # a larger one would silently equal a smaller one
            raise UsageError(
                "a seed is out of range",
                expected="a whole number from 0 to below 2**64",
                got=str(self.root),
                remedy="choose another seed",
            )

    def bits(self, purpose: str, *coordinates: npt.ArrayLike) -> npt.NDArray[np.uint64]:
        """Independent 64-bit words, one per broadcast tuple of whole-number coordinates."""
        h = _mix(np.array([self.root ^ _word(purpose)], dtype=np.uint64) + _GOLDEN)
        for c in coordinates:
            # at least one dimension: numpy warns on scalar overflow, and wrapping is the point
            at = np.atleast_1d(np.asarray(c))
            if at.dtype.kind not in "iub" and at.size:
                raise UsageError(
                    "a random number is addressed by whole numbers",
                    expected="integer coordinates",
                    got=f"{at.dtype.name} {c!r}",
                    remedy="round them first: 1.2 and 1.7 would share one address",
                )
            h = _mix(h + (at.astype(np.uint64, copy=False) + np.uint64(1)) * _GOLDEN)
        if all(np.ndim(c) == 0 for c in coordinates):
            return h.reshape(())
        return h

    def uniform(self, purpose: str, *coordinates: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Uniform numbers in [0, 1), one per broadcast coordinate tuple (53 bits)."""
        words = self.bits(purpose, *coordinates) >> np.uint64(11)
        return np.multiply(words, 2.0**-53, dtype=np.float64)

    def key(self, purpose: str, *coordinates: int) -> int:
        """One 63-bit integer for one address: seeds any foreign generator."""
        return int(self.bits(purpose, *coordinates)) >> 1

    def generator(self, purpose: str, *coordinates: int) -> np.random.Generator:
        """A numpy generator of its own for one address."""
        low, high = self.key(purpose, *coordinates), self.key(purpose + "/high", *coordinates)
        return np.random.Generator(np.random.Philox(key=np.array([low, high], dtype=np.uint64)))

    def torch_generator(self, purpose: str, *coordinates: int) -> torch.Generator:
        """A torch generator of its own for one address."""
        import torch

        return torch.Generator().manual_seed(self.key(purpose, *coordinates))
