"""Random numbers addressed by purpose, never by the order of drawing.

Every draw of a run is a function of (seed, purpose, coordinates), for example
(seed, "batches", client, round, epoch, record). The engine relies on two consequences: results
depend neither on how clients are batched nor on the number of workers, and the seed's holder can
redraw every noise, flip and shuffle (so the seed is stored in `truth/`).

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
from functools import lru_cache
from operator import index
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fedaudit.errors import UsageError
from fedaudit.settings import SeedNumber, require

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


@lru_cache(maxsize=256)
def _word(root: int, purpose: str) -> int:
    """First word of a purpose's numbers: a keyed hash of the purpose.

    Numbers of one purpose (the initial weights are public) reveal neither the root nor another
    purpose.
    """
    key = root.to_bytes(8, "little")
    digest = hashlib.blake2b(purpose.encode(), key=key, digest_size=8).digest()
    return int.from_bytes(digest, "little")


_WORDS = 624  # words in a Mersenne twister's state
_STATE_BYTES = 5056  # size of an exported state of torch's CPU generator


@lru_cache(maxsize=1)
def _blank_state() -> npt.NDArray[np.uint8]:
    """An exported state of torch's CPU generator, set to draw a fresh block first."""
    import torch

    raw = torch.Generator().manual_seed(0).get_state().numpy().copy()
    if raw.shape != (_STATE_BYTES,):
        raise RuntimeError(
            f"torch exports a generator state of {raw.shape[0]} bytes, not {_STATE_BYTES}: "
            "fedaudit does not know this layout"
        )
    raw[8:12].view(np.int32)[:] = 1  # numbers left in the block: the next draw makes a new one
    return raw


@lru_cache(maxsize=8)
def _running(
    root: int, purpose: str, number: int, width: int
) -> dict[int, tuple[torch.Generator, int]]:
    """Client -> its stream and its next step, for the rounds in progress."""
    return {}


@dataclass(frozen=True)
class Seed:
    """The root of every random number of a run."""

    root: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "root", index(self.root))
        # a larger one would silently equal a smaller one
        require(SeedNumber, seed=self.root, remedy="choose another seed")

    def bits(self, purpose: str, *coordinates: npt.ArrayLike) -> npt.NDArray[np.uint64]:
        """Independent 64-bit words, one per broadcast tuple of whole-number coordinates."""
        h = _mix(np.array([_word(self.root, purpose)], dtype=np.uint64) + _GOLDEN)
        for c in coordinates:
            # at least one dimension: numpy warns when a scalar wraps, and wrapping is intended
            at = np.atleast_1d(np.asarray(c))
            if at.dtype.kind not in "iub" and at.size:
                raise UsageError(
                    "coordinates of a random number must be whole numbers",
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
        """One 63-bit integer for one address, to seed any other generator."""
        return int(self.bits(purpose, *coordinates)) >> 1

    def generator(self, purpose: str, *coordinates: int) -> np.random.Generator:
        """The numpy generator of one address."""
        low, high = self.key(purpose, *coordinates), self.key(purpose + "/high", *coordinates)
        return np.random.Generator(np.random.Philox(key=np.array([low, high], dtype=np.uint64)))

    def torch_generator(self, purpose: str, *coordinates: int) -> torch.Generator:
        """The torch generator of one address."""
        return self.torch_generators(purpose, *([c] for c in coordinates))[0]

    def streams(
        self, purpose: str, clients: npt.NDArray[np.int64], number: int, step: int, width: int
    ) -> list[torch.Generator]:
        """Generators of clients at one step of a round; each step draws `width` numbers.

        One stream per (client, round), cut into steps: making a stream per step would cost more
        than its numbers. The caller draws `width` normal numbers from each. A later step that is
        asked for first draws and discards the earlier ones.
        """
        import torch

        running = _running(self.root, purpose, number, width)
        late = [int(c) for c in clients if running.get(int(c), (None, -1))[1] != step]
        if late:
            made = self.torch_generators(purpose, np.array(late), number)
            for client, generator in zip(late, made, strict=True):
                for _ in range(step):
                    torch.randn(width, generator=generator)
                running[client] = (generator, step)
        out = []
        for c in clients:
            generator = running[int(c)][0]
            running[int(c)] = (generator, step + 1)
            out.append(generator)
        return out

    def torch_generators(self, purpose: str, *coordinates: npt.ArrayLike) -> list[torch.Generator]:
        """One torch generator per coordinate tuple (broadcast to one dimension).

        Fills the whole state from the address. `manual_seed` keeps only 32 bits: among some ten
        thousand clients, rounds and steps, two would draw the same noise.
        """
        import torch

        parts = [np.atleast_1d(np.asarray(c))[:, None] for c in coordinates]
        words = self.bits(purpose, *parts, np.arange(_WORDS)[None, :]) & np.uint64(0xFFFFFFFF)
        states = np.tile(_blank_state(), (len(words), 1))
        states[:, 24 : 24 + 8 * _WORDS] = np.ascontiguousarray(words).view(np.uint8)
        out = []
        for state in states:
            generator = torch.Generator()
            generator.set_state(torch.from_numpy(state))
            out.append(generator)
        return out
