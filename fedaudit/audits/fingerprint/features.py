"""What is compared: selected tensors of every update, as unit rows held in bounded memory.

Exact rows are kept while they fit; beyond that every row is folded into a count sketch on its way
into memory: coordinate j is multiplied by a random sign and added to cell j mod m. Inner products
are unbiased with standard deviation about 1/sqrt(m) for unit rows, so cosines below about
4/sqrt(m) do not show: the audit states that figure, and never rests a negative on a sketch alone.
"""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from fedaudit.errors import NotApplicable, TraceError, UsageError
from fedaudit.layout import Layout
from fedaudit.trace import ANONYMOUS, View

Rows = npt.NDArray[np.float32]

EXACT_BYTES = 1 << 29
"""Feature rows of a whole trace are kept exactly up to this size."""
SKETCH_WIDTH = 8191  # a prime: cells do not line up with the rows of a weight matrix
FOLD_COLUMNS = 1 << 19  # folded at a time: their signs as floats stay in the cache for all rows
CACHED = 1 << 19  # numbers of a few rows that are folded at a time
PRODUCT_COLUMNS = 1 << 14  # multiplied at a time
TINY = 1e-30  # below this a sum of squares in single precision has lost terms


# -- theory ---------------------------------------------------------------------------------------


def detectable_cosine(width: int) -> float:
    """The cosine that stands four standard deviations above the noise of a sketch."""
    return 4.0 / math.sqrt(width)


def width_for(cosine: float) -> int:
    """The sketch width at which `cosine` is detectable: (4 / cos)^2."""
    return math.ceil((4.0 / cosine) ** 2)


# -- selection ------------------------------------------------------------------------------------

FEED_FORWARD = ("blocks.0.mlp.", "h.0.mlp.", "transformer.h.0.mlp.")


def default_features(layout: Layout) -> tuple[str, ...]:
    """Feed-forward weights of the first block of a transformer; otherwise all weight matrices."""
    for prefix in FEED_FORWARD:
        names = [n for n in layout.names if n.startswith(prefix) and n.endswith("weight")]
        if names:
            return tuple(names)
    matrices = [e.name for e in layout.entries if len(e.shape) >= 2 and e.role == "parameter"]
    return tuple(matrices or layout.names)


# -- rows -----------------------------------------------------------------------------------------


def unit_norm(rows: Rows) -> Rows:
    """Rows scaled to length 1, (K, d); a zero row stays zero and resembles nothing."""
    return rows * inverse_lengths(square_lengths(rows))[:, None]


def inverse_lengths(squares: npt.NDArray[Any]) -> Rows:
    """1 / |x| from squared lengths (K,), and 0 for a row of zeros."""
    lengths = np.sqrt(squares, dtype=np.float64)
    return np.divide(1.0, lengths, out=np.zeros_like(lengths), where=lengths > 0).astype(np.float32)


def standardise_columns(rounds: Sequence[Rows]) -> list[Rows]:
    """Every column with mean 0 and standard deviation 1 over all rounds; constant columns zero."""
    total = sum(len(r) for r in rounds)
    mean = np.sum([r.sum(axis=0, dtype=np.float64) for r in rounds], axis=0) / total
    square = np.sum([np.square(r - mean).sum(axis=0, dtype=np.float64) for r in rounds], axis=0)
    deviation = np.sqrt(square / total)
    scale = np.divide(1.0, deviation, out=np.zeros_like(deviation), where=deviation > 0)
    return [((r - mean) * scale).astype(np.float32) for r in rounds]


class Fold:
    """A count sketch of width m for vectors of any length: signs are drawn once per column."""

    def __init__(self, columns: int, width: int, rng: np.random.Generator) -> None:
        self.columns, self.width = columns, width
        self._signs = rng.choice(np.array([-1, 1], dtype=np.int8), size=columns)

    def add(self, out: Rows, rows: Rows, first: int) -> npt.NDArray[np.float64]:
        """out (K, m) += sketch of rows (K, c), which are the columns from `first` on.

        Gives the squared lengths of `rows` (K,), read while they are in the cache.
        """
        squares = np.zeros(len(rows))
        for low in range(0, rows.shape[1], FOLD_COLUMNS):
            part = rows[:, low : low + FOLD_COLUMNS]
            self._add(out, part, first + low, squares)
        return squares

    def _add(self, out: Rows, rows: Rows, first: int, squares: npt.NDArray[np.float64]) -> None:
        # [head | whole cells | tail]: a row is read once, and no product of its size is made
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

        by_threads(fold, rows)


def square_lengths(rows: Rows) -> Rows:
    """Squared length of every row: (K,)."""
    out: Rows = np.einsum("ij,ij->i", rows, rows)
    return out


def by_threads(work: Callable[[slice], None], rows: Rows) -> None:
    """Share out rows (K, d) to two threads, a few at a time that stay in the cache."""
    count, size = rows.shape
    step = max(1, CACHED // max(1, size))
    threads = min(2, os.cpu_count() or 1, -(-count // step))
    some = [slice(low, min(count, low + step)) for low in range(0, count, step)]
    if threads < 2:
        for few in some:
            work(few)
        return
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, some))


@dataclass(frozen=True, kw_only=True)
class Features:
    """Unit rows of every round [(K_t, m)], the message behind each, and what was done to them."""

    rounds: tuple[int, ...]
    rows: list[Rows]
    messages: list[tuple[int, ...]]
    tensors: tuple[str, ...]
    columns: int
    sketch_width: int | None

    @property
    def detectable(self) -> float:
        return 0.0 if self.sketch_width is None else detectable_cosine(self.sketch_width)


def check_round(view: View, number: int, tensors: Sequence[str]) -> tuple[int, ...]:
    """Message numbers of a round whose senders are hidden; raises if there is nothing to link."""
    updates = view.updates(number, tensors[0])
    if any(s != ANONYMOUS for s in updates.senders):
        regions = all(s.startswith("region-") for s in updates.senders)
        raise NotApplicable(
            "senders are already known from this vantage",
            expected="anonymous uploads",
            got=f"{'regions' if regions else 'named senders'} in round {number}",
            remedy=f'audit as a region sees it: vantage = "{updates.senders[0]}"'
            if regions
            else "ask what a shuffler would have changed: fedaudit audit TRACE --as shuffle",
        )
    if len(updates.rows) < 2:
        raise NotApplicable(
            "there is nothing to link",
            expected="at least 2 clients in a round",
            got=f"{len(updates.rows)} in round {number}",
            remedy="audit a federation with more clients",
        )
    return tuple(int(i) for i in updates.messages)


def refuse_bad_rows(rows: Rows, number: int) -> None:
    """NaN and infinity are named by round and row."""
    bad = ~np.isfinite(rows).all(axis=1)
    if bad.any():
        raise TraceError(
            f"round {number} holds updates that are not finite",
            expected="finite numbers",
            got=f"NaN or infinity in row {int(np.flatnonzero(bad)[0])}",
            remedy="lower the learning rate, or leave the round out",
        )


def collect(
    view: View,
    tensors: Sequence[str],
    rng: np.random.Generator,
    *,
    normalise: Literal["unit", "column"] = "unit",
    sketch: int | None = None,
    exact_bytes: int = EXACT_BYTES,
) -> Features:
    """Feature rows of every round of a view, tensor by tensor, exactly or folded.

    `sketch`: 0 keeps exact rows whatever their size, a width folds, None decides by size.
    """
    chosen = view.layout.select(tensors)
    names = tuple(e.name for e in chosen)
    columns = sum(e.size for e in chosen)
    messages = [check_round(view, number, names) for number in view.rounds]
    total = sum(len(m) for m in messages)
    width = sketch if sketch is not None else 0
    if sketch is None and total * columns * 4 > exact_bytes:
        width = SKETCH_WIDTH
    if width >= columns:
        width = 0  # a sketch that is not smaller than the thing itself
    if width and normalise == "column":
        raise UsageError(
            "per-column standardisation needs exact rows",
            expected=f"at most {exact_bytes >> 20} MiB of features",
            got=f"{total * columns * 4 >> 20} MiB",
            remedy="select fewer tensors with features, or normalise by unit norm",
        )
    fold = Fold(columns, width, rng) if width else None
    rounds: list[Rows] = []
    for number, own in zip(view.rounds, messages, strict=True):
        rounds.append(_one_round(view, number, chosen, len(own), columns, fold))
    if normalise == "column":
        rounds = [unit_norm(r) for r in standardise_columns(rounds)]
    return Features(
        rounds=tuple(view.rounds),
        rows=rounds,
        messages=messages,
        tensors=names,
        columns=columns,
        sketch_width=width or None,
    )


def _one_round(
    view: View, number: int, chosen: Sequence[object], count: int, columns: int, fold: Fold | None
) -> Rows:
    """Unit rows of one round: exact (K, d), or folded (K, m) with exact norms."""
    out = np.zeros((count, fold.width if fold else columns), dtype=np.float32)
    squares = np.zeros(count, dtype=np.float64)
    first = 0
    for entry in chosen:
        rows = view.updates(number, entry.name).rows  # type: ignore[attr-defined]
        if fold:
            own = fold.add(out, rows, first)
        else:
            own = keep(out, rows, first)
        doubtful = ~((own > TINY) & (own < np.inf))
        if doubtful.any():
            refuse_bad_rows(rows, number)
            # numbers whose squares are too large or too small for single precision
            few = rows[doubtful]
            own[doubtful] = np.einsum("ij,ij->i", few, few, dtype=np.float64)
        squares += own
        first += rows.shape[1]
        give_back(rows)
    out *= inverse_lengths(squares)[:, None]
    return out


def keep(out: Rows, rows: Rows, first: int) -> npt.NDArray[np.float64]:
    """Copy rows (K, c) to the columns of out (K, d) from `first` on; their squared lengths."""
    squares = np.zeros(len(rows))

    def copy(some: slice) -> None:
        out[some, first : first + rows.shape[1]] = rows[some]
        squares[some] = square_lengths(rows[some])

    by_threads(copy, rows)
    return squares


def give_back(rows: Rows) -> None:
    """Tell the system that mapped pages of `rows` were read and may go.

    They would count as memory of this process for as long as the trace is open, though they are
    copies of what is on disk.
    """
    base: Any = rows
    while isinstance(base, np.ndarray) and base.base is not None:
        base = base.base
    if isinstance(base, memoryview):
        base = base.obj
    if isinstance(base, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        base.madvise(mmap.MADV_DONTNEED)


def cosines(before: Rows, after: Rows) -> npt.NDArray[np.float32]:
    """Cosines of raw rows (K, d) and (L, d): (K, L), by one product and without a copy of either.

    A row of zeros resembles nothing.
    """
    dots, squares = _products(before, after)
    return _scaled(dots, squares)


_Squares = tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]


def _products(before: Rows, after: Rows) -> tuple[npt.NDArray[np.float32], _Squares]:
    """Inner products (K, L) and squared lengths (K,), (L,), block by block of columns."""
    dots = np.zeros((len(before), len(after)), dtype=np.float32)
    squares = np.zeros(len(before)), np.zeros(len(after))
    for low in range(0, before.shape[1], PRODUCT_COLUMNS):
        x, y = (r[:, low : low + PRODUCT_COLUMNS] for r in (before, after))
        dots += x @ y.T
        for own, part in zip(squares, (x, y), strict=True):
            own += square_lengths(part)
    return dots, squares


def _scaled(dots: npt.NDArray[np.float32], squares: _Squares) -> npt.NDArray[np.float32]:
    dots *= inverse_lengths(squares[0])[:, None]
    dots *= inverse_lengths(squares[1])
    return dots


def exact_cosines(view: View, number: int, tensors: Sequence[str]) -> npt.NDArray[np.float32]:
    """Exact cosines between the rows of round `number` and the next, streamed by columns.

    Memory does not grow with the number of columns.
    """
    dots, squares = None, None
    for name in tensors:
        a, b = (view.updates(t, name).rows for t in (number, number + 1))
        own, lengths = _products(a, b)
        if dots is None or squares is None:
            dots, squares = own, lengths
        else:
            dots += own
            squares = squares[0] + lengths[0], squares[1] + lengths[1]
        give_back(a)
        give_back(b)
    assert dots is not None
    assert squares is not None
    return _scaled(dots, squares)


def exact_gram(view: View, tensors: Sequence[str]) -> npt.NDArray[np.float64]:
    """Exact cosines of all rows of all rounds with each other, (N, N), streamed by columns."""
    dots: npt.NDArray[np.float64] | None = None
    for name in tensors:
        rounds = [view.updates(t, name).rows for t in view.rounds]
        if dots is None:
            total = sum(len(r) for r in rounds)
            dots = np.zeros((total, total))
        for low in range(0, rounds[0].shape[1], PRODUCT_COLUMNS):
            part = np.concatenate([r[:, low : low + PRODUCT_COLUMNS] for r in rounds])
            dots += part @ part.T
        for rows in rounds:
            give_back(rows)
    assert dots is not None
    norms = np.sqrt(np.diagonal(dots))
    scale = np.outer(norms, norms)
    return np.divide(dots, scale, out=np.zeros_like(dots), where=scale > 0)
