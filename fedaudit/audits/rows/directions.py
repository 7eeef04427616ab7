"""Directions: the rows of a round without their mean; inner products shared by several linkers.

A unit row is x_i = m + l_i u_i: the mean of its round plus a unit direction u_i of length l_i.
Linkers beyond the paper compare directions. Plain cosines follow from the same products:

    <x_i, y_j> = <m, m'> + l_i <u_i, m'> + l'_j <m, u'_j> + l_i l'_j <u_i, u'_j>

So one product per pair of neighbouring rounds serves all linkers, and rows are stored once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import overload

import numpy as np
import numpy.typing as npt

from fedaudit.arrays import Rows
from fedaudit.stats.products import product, square_lengths


def split(rows: Rows, *, overwrite: bool = False) -> tuple[Rows, Rows, Rows]:
    """Mean (m,), lengths (K,) and unit directions (K, m) of rows (K, m).

    A row equal to the mean has length 0 and direction 0. `overwrite` reuses the memory of `rows`.
    """
    mean = rows.mean(axis=0)
    moved = np.subtract(rows, mean, out=rows if overwrite else None)
    lengths = np.sqrt(square_lengths(moved))
    lengths[lengths <= 1e-7] = 0.0  # rounding, not a direction
    moved *= np.divide(1.0, lengths, out=np.zeros_like(lengths), where=lengths > 0)[:, None]
    return mean, lengths, moved


class Directions(Sequence[Rows]):
    """The rounds of a view, split into means and directions. Item t is the original rows (K_t, m).

    `units` [(K_t, m)], `lengths` [(K_t,)], `means` [(m,)]. Products are cached.
    """

    def __init__(self, rounds: Sequence[Rows], *, overwrite: bool = False) -> None:
        parts = [split(rows, overwrite=overwrite) for rows in rounds]
        self.means = [mean for mean, _, _ in parts]
        self.lengths = [lengths for _, lengths, _ in parts]
        self.units = [units for _, _, units in parts]
        self._cosines: dict[int, npt.NDArray[np.float32]] = {}
        self._distances: dict[int, npt.NDArray[np.float32]] = {}

    @classmethod
    def of(cls, rounds: Sequence[Rows]) -> Directions:
        """Split the rounds, unless they are split already."""
        return rounds if isinstance(rounds, Directions) else cls(rounds)

    def __len__(self) -> int:
        return len(self.units)

    @overload
    def __getitem__(self, at: int) -> Rows: ...
    @overload
    def __getitem__(self, at: slice) -> list[Rows]: ...
    def __getitem__(self, at: int | slice) -> Rows | list[Rows]:
        if isinstance(at, slice):
            return [self[t] for t in range(len(self))[at]]
        rows = self.units[at] * self.lengths[at][:, None]
        rows += self.means[at]
        return rows

    def __iter__(self) -> Iterator[Rows]:
        return (self[t] for t in range(len(self)))

    @property
    def sizes(self) -> list[int]:
        """Rows per round."""
        return [len(u) for u in self.units]

    def cosines(self, t: int) -> npt.NDArray[np.float32]:
        """<u_i, u'_j> of the directions of round t and the next: (K_t, K_{t+1})."""
        if t not in self._cosines:
            self._cosines[t] = product(self.units[t], self.units[t + 1])
        return self._cosines[t]

    def distances(self, t: int) -> npt.NDArray[np.float32]:
        """1 - <x_i, y_j> of the whole rows, [Fingerprint] Eq. (11): (K_t, K_{t+1})."""
        if t not in self._distances:
            u, v = self.units[t], self.units[t + 1]
            k, n = self.lengths[t], self.lengths[t + 1]
            m, o = self.means[t], self.means[t + 1]
            whole = self.cosines(t) * k[:, None]
            whole *= n
            whole += (k * np.einsum("ij,j->i", u, o))[:, None]
            whole += n * np.einsum("ij,j->i", v, m) + m @ o
            self._distances[t] = np.subtract(1.0, whole, out=whole)
        return self._distances[t]
