"""Fast sampling from a known distribution: integer alias tables, one random word per draw.

Probabilities are exact to 2^-32, the joint resolution of a table's columns and coins.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedaudit.stats.alias import Alias

Uint32s = npt.NDArray[np.uint32]

BLOCK = 10
"""Bits drawn at once: a table of 1,024 entries stays in the first-level cache."""
_COIN = 32 - BLOCK


@dataclass(frozen=True)
class BitSampler:
    """Samples words of independent bits, most significant first.

    `tables` hold a coin's threshold in the upper 22 bits and the alias column in the lower 10;
    `widths` are the bits per table.
    """

    tables: tuple[Uint32s, ...]
    widths: tuple[int, ...]

    @classmethod
    def of(cls, ones: npt.ArrayLike) -> BitSampler:
        """From the probability of a one in each bit, (l,)."""
        p = np.asarray(ones, dtype=np.float64)
        tables, widths = [], []
        for part in np.array_split(p, -(-len(p) // BLOCK)):
            law = np.ones(1)
            for q in part:
                law = np.outer(law, (1.0 - q, q)).ravel()
            law = np.concatenate([law, np.zeros((1 << BLOCK) - len(law))])
            made = Alias.of(law)
            keep, other = made.keep, made.other
            coin = np.rint(keep * 2.0**_COIN).astype(np.int64)
            # a column that is always kept is its own alias: the coin does not matter
            whole = coin >= 1 << _COIN
            other = np.where(whole, np.arange(1 << BLOCK), other)
            coin = np.where(whole, 0, coin)
            tables.append(((coin << BLOCK) | other).astype(np.uint32))
            widths.append(len(part))
        return cls(tuple(tables), tuple(widths))

    def draw(self, count: int, rng: np.random.Generator) -> Uint32s:
        """`count` independent words, (count,)."""
        out = self.draw_part(0, count, rng)
        for i in range(1, len(self.tables)):
            out <<= np.uint32(self.widths[i])
            out |= self.draw_part(i, count, rng)
        return out

    def draw_part(self, part: int, count: int, rng: np.random.Generator) -> Uint32s:
        """One block of bits of `count` words, (count,). Blocks are independent."""
        table, low = self.tables[part], np.uint32((1 << BLOCK) - 1)
        row = random_words(count, rng)
        column = row >> np.uint32(_COIN)
        entry = table.take(column, mode="clip")
        row <<= np.uint32(BLOCK)
        row |= low
        kept = row < entry  # coin < threshold: the lower bits of `row` are all ones
        entry &= low
        column ^= entry
        column *= kept
        column ^= entry  # the column if it is kept, else its alias
        return column


@dataclass(frozen=True)
class TableSampler:
    """Samples an output from the table row of each code. `keep`, `other` (k m,) row by row."""

    keep: npt.NDArray[np.uint32]
    other: npt.NDArray[np.int32]
    columns: int

    @classmethod
    def of(cls, table: npt.ArrayLike) -> TableSampler:
        """From Pr[output | code] (k, m)."""
        p = np.asarray(table, dtype=np.float64)
        keeps, others = [], []
        for law in p:
            made = Alias.of(law)
            keep, other = made.keep, made.other
            coin = np.rint(keep * 2.0**32)
            whole = coin >= 2.0**32
            others.append(np.where(whole, np.arange(len(law)), other))
            keeps.append(np.where(whole, 0.0, coin))
        return cls(
            np.concatenate(keeps).astype(np.uint32),
            np.concatenate(others).astype(np.int32),
            p.shape[1],
        )

    def draw(self, codes: npt.NDArray[np.int32], rng: np.random.Generator) -> npt.NDArray[np.int32]:
        """Outputs (count,) of codes (count,)."""
        random = random_words(2 * len(codes), rng)
        coin = random[len(codes) :]
        wide = (random[: len(codes)].astype(np.uint64) * np.uint64(self.columns)) >> np.uint64(32)
        at = wide.astype(np.int64)
        column = wide.astype(np.int32)
        at += codes * np.int64(self.columns)
        kept = coin < self.keep.take(at, mode="clip")
        other = self.other.take(at, mode="clip")
        column -= other
        column *= kept
        column += other
        return column


@dataclass(frozen=True)
class SymmetricSampler:
    """Keeps a code with probability `hit`, else draws one of the other `columns` uniformly.

    It needs no table, however many codes there are.
    """

    columns: int
    hit: float

    def draw(self, codes: npt.NDArray[np.int32], rng: np.random.Generator) -> npt.NDArray[np.int32]:
        """Outputs (count,) of codes (count,)."""
        out = codes.copy()
        lost = np.flatnonzero(rng.random(len(codes)) >= self.hit)
        other = rng.integers(0, self.columns - 1, len(lost), dtype=np.int32)
        other += other >= out[lost]
        out[lost] = other
        return out


def fast_generator(rng: np.random.Generator) -> np.random.Generator:
    """A faster generator, seeded from an addressed one."""
    return np.random.Generator(np.random.SFC64(rng.integers(0, 2**63, 4)))


def random_words(count: int, rng: np.random.Generator) -> Uint32s:
    """Independent 32-bit words (count,)."""
    wide = rng.integers(0, 2**64 - 1, endpoint=True, dtype=np.uint64, size=-(-count // 2))
    return wide.view(np.uint32)[:count]
