"""Walker's alias method: a draw from a fixed table of probabilities in constant time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedaudit.arrays import Floats

Codes = npt.NDArray[np.int64]

BLOCK_BITS = 10
"""Bits drawn at once: a table of 1,024 rows stays in the first-level cache."""


@dataclass(frozen=True)
class Alias:
    """Alias table: draw column i with probability `keep[i]`, else `other[i]`; both (m,)."""

    keep: Floats
    other: Codes

    @classmethod
    def of(cls, probabilities: npt.ArrayLike) -> Alias:
        """The table of a distribution (m,), by Vose's construction."""
        p = np.asarray(probabilities, dtype=np.float64)
        m = len(p)
        scaled = (p / p.sum() * m).tolist()
        keep, other = [1.0] * m, list(range(m))
        small = [i for i, s in enumerate(scaled) if s < 1.0]
        large = [i for i, s in enumerate(scaled) if s >= 1.0]
        while small and large:
            low, high = small.pop(), large[-1]
            keep[low], other[low] = scaled[low], high
            scaled[high] -= 1.0 - scaled[low]
            if scaled[high] < 1.0:
                small.append(large.pop())
        return cls(np.array(keep), np.array(other, dtype=np.int64))

    def draw(self, shape: tuple[int, ...], rng: np.random.Generator) -> Codes:
        """Independent draws of this shape, from one uniform number each."""
        u = rng.random(shape)
        u *= len(self.keep)
        column = u.astype(np.int64)
        u -= column
        return np.where(u < self.keep[column], column, self.other[column])


@dataclass(frozen=True)
class BitWords:
    """Words of independent bits, most significant first, drawn in blocks of about ten bits.

    `tables` holds one alias table per block, `widths` the bits of each.
    """

    tables: tuple[Alias, ...]
    widths: tuple[int, ...]

    @classmethod
    def of(cls, law: npt.ArrayLike) -> BitWords:
        """From the probabilities (l, 2) that each bit is zero and one."""
        p = np.asarray(law, dtype=np.float64)
        parts = np.array_split(p, -(-len(p) // BLOCK_BITS))
        return cls(tuple(Alias.of(word_probabilities(q)) for q in parts), tuple(map(len, parts)))

    def draw(self, shape: tuple[int, ...], rng: np.random.Generator) -> Codes:
        word = self.tables[0].draw(shape, rng)
        for table, width in zip(self.tables[1:], self.widths[1:], strict=True):
            word <<= width
            word |= table.draw(shape, rng)
        return word


def word_probabilities(law: Floats) -> Floats:
    """Pr[word] (2^l,) of independent bits with probabilities (l, 2), most significant first."""
    p = np.ones(1)
    for bit in law:
        p = np.outer(p, bit).ravel()
    return p
