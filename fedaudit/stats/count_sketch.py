"""Fold long vectors into a few cells by random signs: inner products stay right on average."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fedaudit.arrays import Rows
from fedaudit.stats.products import by_rows, square_lengths

FOLD_COLUMNS = 1 << 19  # folded at a time, so that their signs fit the cache


class CountSketch:
    """A count sketch of width m for vectors of any length, with one random sign per column."""

    def __init__(self, columns: int, width: int, rng: np.random.Generator) -> None:
        self.columns, self.width = columns, width
        self._signs = rng.choice(np.array([-1, 1], dtype=np.int8), size=columns)

    def add(self, out: Rows, rows: Rows, first: int) -> npt.NDArray[np.float64]:
        """Add the sketch of rows (K, c), columns from `first` on, to out (K, m).

        Returns the squared lengths of `rows` (K,), computed while they are in the cache.
        """
        squares = np.zeros(len(rows))
        for low in range(0, rows.shape[1], FOLD_COLUMNS):
            part = rows[:, low : low + FOLD_COLUMNS]
            self._add(out, part, first + low, squares)
        return squares

    def _add(self, out: Rows, rows: Rows, first: int, squares: npt.NDArray[np.float64]) -> None:
        # [head | whole cells | tail]: reads a row once, without a temporary of its size
        count, width = rows.shape[1], self.width
        at = first % width
        head = min((width - at) % width, count)
        whole = (count - head) // width
        tail = head + whole * width
        signs = self._signs[first : first + count].astype(np.float32)
        cells = signs[head:tail].reshape(whole, width)

        def fold(some: slice) -> None:
            x, y = rows[some], out[some]
            if whole:
                middle = x[:, head:tail].reshape(len(x), whole, width)
                y += np.einsum("kbm,bm->km", middle, cells)
            y[:, at : at + head] += x[:, :head] * signs[:head]
            y[:, : count - tail] += x[:, tail:] * signs[tail:]
            squares[some] += square_lengths(x)

        by_rows(fold, rows)
