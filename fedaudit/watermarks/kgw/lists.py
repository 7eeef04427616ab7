"""Green lists: the green tokens after each context, for many keys at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from fedaudit.arrays import Bools
from fedaudit.errors import UsageError
from fedaudit.randomness import Seed
from fedaudit.watermarks.score import Tokens

if TYPE_CHECKING:
    from torch import Tensor

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


@dataclass(frozen=True, kw_only=True)
class SelfHashedLists:
    """The `selfhash` lists of lm-watermarking and of transformers: the token chooses its own list.

    A token is green if the permutation seeded by min over a window of key x hash(token of the
    window) x hash(token) has it among the first gamma V numbers. `window`: tokens that are hashed,
    the scored one last. `table_seed`: of the table of hashes; None takes the key, as transformers
    does. One permutation per key, context and token: for writing text, not for whole tables.
    """

    vocabulary: int
    gamma: float = 0.25
    window: int = 4
    table_seed: int | None = 2971215073

    def __post_init__(self) -> None:
        _check_lists(self.vocabulary, self.gamma, self.window)

    @property
    def width(self) -> int:
        return max(1, self.window - 1)

    def green(self, keys: Sequence[int], contexts: Tokens, tokens: Tokens) -> Bools:
        import torch

        size = int(self.vocabulary * self.gamma)
        before = contexts[:, contexts.shape[1] - (self.window - 1) :] if self.window > 1 else None
        own = np.asarray(tokens, dtype=np.int64)[:, None]
        seen = own if before is None else np.concatenate([before, own], axis=1)
        hashed = torch.from_numpy(np.ascontiguousarray(seen, dtype=np.int64)) % _TABLE
        out = np.zeros((len(keys), len(own)), dtype=np.bool_)
        rng = torch.Generator()
        for row, key in zip(out, keys, strict=True):
            signed = int(key) % 2**63  # products wrap, as in the originals
            table = _hash_table(signed if self.table_seed is None else self.table_seed)
            each = table[hashed] + 1
            seeds = (signed * each * each[:, -1:]).min(dim=1).values.tolist()
            for i, seed in enumerate(seeds):
                rng.manual_seed(seed % (2**64 - 1))
                first = torch.randperm(self.vocabulary, generator=rng)[:size]
                row[i] = bool((first == int(own[i, 0])).any())
        return out

    def tables(self, keys: Sequence[int], contexts: Tokens) -> Bools:
        every = np.tile(np.arange(self.vocabulary), len(contexts))
        found = self.green(keys, np.repeat(contexts, self.vocabulary, axis=0), every)
        return found.reshape(len(keys), len(contexts), self.vocabulary)


_TABLE = 1_000_003


@lru_cache(maxsize=2)
def _hash_table(seed: int) -> Tensor:
    import torch

    return torch.randperm(_TABLE, generator=torch.Generator().manual_seed(seed))


def lists_of(
    scheme: str, vocabulary: int, gamma: float, context: int
) -> HashedLists | PermutedLists | SelfHashedLists:
    """The green lists of a scheme by name; `context` is for fedaudit's own ("hashed")."""
    if scheme == "hashed":
        return HashedLists(vocabulary=vocabulary, gamma=gamma, width=context)
    if scheme in ("lm-watermarking simple_1", "transformers lefthash"):
        return PermutedLists(vocabulary=vocabulary, gamma=gamma)  # both: key x last token
    if scheme == "lm-watermarking selfhash":
        return SelfHashedLists(vocabulary=vocabulary, gamma=gamma)
    return SelfHashedLists(vocabulary=vocabulary, gamma=gamma, window=context, table_seed=None)


def blocks(keys: Sequence[int], entries: int) -> Iterator[Sequence[int]]:
    """The keys in blocks that fit memory, with `entries` green-list entries per key."""
    block = max(1, _AT_ONCE // max(1, entries))
    for low in range(0, len(keys), block):
        yield keys[low : low + block]
