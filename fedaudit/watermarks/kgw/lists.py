"""Green lists: the green tokens after each context, for many keys at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from fedaudit.arrays import Bools
from fedaudit.errors import UsageError
from fedaudit.randomness import Seed
from fedaudit.watermarks.score import Tokens

HashWords = npt.NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_M1, _M2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_AT_ONCE = 1 << 22  # entries of green lists in memory


class GreenLists(Protocol):
    """The green tokens after each context, for many keys at once."""

    @property
    def gamma(self) -> float: ...
    @property
    def width(self) -> int: ...
    @property
    def vocabulary(self) -> int: ...

    def green(self, keys: Sequence[int], contexts: Tokens, tokens: Tokens) -> Bools:
        """(J,), (n, width), (n,) -> (J, n)."""
        ...

    def tables(self, keys: Sequence[int], contexts: Tokens) -> Bools:
        """(J,), (n, width) -> (J, n, V)."""
        ...


def _check_lists(vocabulary: int, gamma: float, width: int) -> None:
    if vocabulary < 2 or not 0 < gamma < 1 or width < 1:
        raise UsageError(
            "green lists cannot be drawn",
            expected="a vocabulary of at least 2, 0 < gamma < 1, a context of at least 1 token",
            got=f"vocabulary {vocabulary}, gamma {gamma:g}, context {width}",
            remedy="the published values are gamma = 0.25 and a context of 1",
        )


@dataclass(frozen=True, kw_only=True)
class HashedLists:
    """Green by a hash of (key, context, token): each token independently with probability gamma.

    Under a random key, distinct pairs are independent coin flips, as the z-test assumes. The hash
    is statistical, not cryptographic: an observer of many green lists may recover the key.
    """

    vocabulary: int
    gamma: float = 0.25
    width: int = 1

    def __post_init__(self) -> None:
        _check_lists(self.vocabulary, self.gamma, self.width)

    def _words(self, keys: Sequence[int], contexts: Tokens) -> HashWords:
        """A word (J, n) per key and context; the token is added later."""
        words = np.array([int(k) % 2**64 for k in keys], dtype=np.uint64)[:, None]
        columns = [contexts[None, :, i] for i in range(self.width)]
        return Seed(0).bits("kgw", words, *columns)

    def _below(self, z: HashWords) -> Bools:
        """Finish the hash of z in place, and compare with gamma.

        The finaliser of `randomness` without its last line, which does not affect leading bits.
        """
        spare = z >> np.uint64(30)
        z ^= spare
        z *= _M1
        np.right_shift(z, np.uint64(27), out=spare)
        z ^= spare
        z *= _M2
        below: Bools = z < np.uint64(int(self.gamma * 2**64))
        return below

    def green(self, keys: Sequence[int], contexts: Tokens, tokens: Tokens) -> Bools:
        # many tokens share a context: its word, most of the hash, is computed once
        flat = contexts[:, 0] if self.width == 1 else contexts  # numbers sort faster than rows
        different, which = np.unique(flat, axis=0, return_inverse=True)
        z = self._words(keys, different.reshape(-1, self.width))[:, which.reshape(-1)]
        return self._below(z + (tokens.astype(np.uint64) + np.uint64(1)) * _GOLDEN)

    def tables(self, keys: Sequence[int], contexts: Tokens) -> Bools:
        every = (np.arange(self.vocabulary, dtype=np.uint64) + np.uint64(1)) * _GOLDEN
        return self._below(self._words(keys, contexts)[:, :, None] + every)


@dataclass(frozen=True, kw_only=True)
class PermutedLists:
    """The `lefthash` lists of transformers' `WatermarkingConfig`, for text marked with it.

    The first gamma V numbers of a permutation seeded by key * last token. One permutation per key
    and context: slow for many keys.
    """

    vocabulary: int
    gamma: float = 0.25
    width: int = field(default=1, init=False)

    def __post_init__(self) -> None:
        _check_lists(self.vocabulary, self.gamma, self.width)

    def tables(self, keys: Sequence[int], contexts: Tokens) -> Bools:
        import torch

        size = int(self.vocabulary * self.gamma)
        out = np.zeros((len(keys), len(contexts), self.vocabulary), dtype=np.bool_)
        different, which = np.unique(contexts[:, -1], return_inverse=True)
        for j, key in enumerate(keys):
            lists = np.zeros((len(different), self.vocabulary), dtype=np.bool_)
            for i, token in enumerate(different):
                rng = torch.Generator().manual_seed((int(key) * int(token)) % (2**64 - 1))
                lists[i, torch.randperm(self.vocabulary, generator=rng)[:size].numpy()] = True
            out[j] = lists[which]
        return out

    def green(self, keys: Sequence[int], contexts: Tokens, tokens: Tokens) -> Bools:
        different, which = np.unique(contexts[:, -1:], axis=0, return_inverse=True)
        lists = self.tables(keys, different)
        return lists[:, which.reshape(-1), tokens]


def blocks(keys: Sequence[int], entries: int) -> Iterator[Sequence[int]]:
    """The keys in blocks that fit memory, with `entries` green-list entries per key."""
    block = max(1, _AT_ONCE // max(1, entries))
    for low in range(0, len(keys), block):
        yield keys[low : low + block]
