"""Products and lengths of many rows, in threads that synchronise once.

The threads of a matrix library synchronise many times in one product. On a busy machine they mostly
wait. Here every thread takes a share of the rows and waits once.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from fedaudit.arrays import Rows


def _threads() -> int:
    """One per core, at most eight; OMP_NUM_THREADS lowers it."""
    limit = os.environ.get("OMP_NUM_THREADS", "")
    return min(8, os.cpu_count() or 1, int(limit) if limit.isdigit() and int(limit) else 8)


THREADS = _threads()
CACHED = 1 << 19  # numbers read at a time
COLUMNS = 1 << 14  # columns multiplied at a time
WORTH_IT = 1 << 26  # multiplications; for fewer, starting threads takes longer


def in_parts(work: Callable[[slice], None], count: int, step: int) -> None:
    """Call work(slice) on every `step` rows of `count`, in threads if there are several parts."""
    parts = [slice(low, min(count, low + step)) for low in range(0, count, step)]
    if THREADS < 2 or len(parts) < 2:
        for part in parts:
            work(part)
        return
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(work, parts))


def by_rows(work: Callable[[slice], None], rows: Rows) -> None:
    """Call work(slice) on a few rows of (K, d) at a time, so that they fit the cache."""
    in_parts(work, len(rows), max(1, CACHED // max(1, rows.shape[1])))


@lru_cache(maxsize=1)
def _libraries() -> Any:
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


def product(before: Rows, after: Rows) -> Rows:
    """Inner products of rows (K, m) and (L, m): (K, L). Memory does not grow with m."""
    out = np.zeros((len(before), len(after)), dtype=np.float32)
    columns = before.shape[1]

    def multiply(some: slice) -> None:
        for low in range(0, columns, COLUMNS):
            part = slice(low, low + COLUMNS)
            out[some] += before[some, part] @ after[:, part].T

    if out.size * columns < WORTH_IT or THREADS < 2 or len(before) < 2:
        multiply(slice(None))
    else:
        with _libraries().limit(limits=1, user_api="blas"):
            in_parts(multiply, len(before), -(-len(before) // THREADS))
    return out


def square_lengths(rows: Rows) -> Rows:
    """Squared length of every row: (K,)."""
    out: Rows = np.einsum("ij,ij->i", rows, rows)
    return out


def inverse_lengths(squares: npt.NDArray[Any]) -> Rows:
    """1 / |x| from squared lengths (K,); 0 for a row of zeros."""
    lengths = np.sqrt(squares, dtype=np.float64)
    return np.divide(1.0, lengths, out=np.zeros_like(lengths), where=lengths > 0).astype(np.float32)
