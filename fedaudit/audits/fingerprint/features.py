"""What is compared: selected tensors of every update, as unit rows held in bounded memory.

Exact rows are kept while they fit; beyond that every row is folded into a count sketch on its way
into memory: coordinate j is multiplied by a random sign and added to cell j mod m. Inner products
are unbiased with standard deviation about 1/sqrt(m) for unit rows, so cosines below about
4/sqrt(m) do not show: the audit states that figure, and never rests a negative on a sketch alone.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from fedaudit.arrays import Rows
from fedaudit.audits.fingerprint.products import (
    COLUMNS,
    by_rows,
    inverse_lengths,
    product,
    square_lengths,
)
from fedaudit.audits.outright import RoundUpdates, single_updates
from fedaudit.errors import NothingToSay, TraceError, UsageError
from fedaudit.layout import Layout
from fedaudit.trace import View

EXACT_BYTES = 1 << 29
"""Feature rows of a whole trace are kept exactly up to this size."""
SKETCH_WIDTH = 8191  # a prime: cells do not line up with the rows of a weight matrix
FOLD_COLUMNS = 1 << 19  # folded at a time: their signs as floats stay in the cache for all rows
MAPPED = 1 << 25  # numbers of a round that are read before their pages are given back
TINY = 1e-30  # below this a sum of squares in single precision has lost terms


# -- theory ---------------------------------------------------------------------------------------


def detectable_cosine(width: int) -> float:
    """The cosine that stands four standard deviations above the noise of a sketch."""
    return 4.0 / math.sqrt(width)


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


def standardise_columns(rounds: Sequence[Rows]) -> list[Rows]:
    """Every column with mean 0 and standard deviation 1 over all rounds; constant columns zero."""
    total = sum(len(r) for r in rounds)
    mean = np.sum([r.sum(axis=0, dtype=np.float64) for r in rounds], axis=0) / total
    square = np.sum([np.square(r - mean).sum(axis=0, dtype=np.float64) for r in rounds], axis=0)
    deviation = np.sqrt(square / total)
    scale = np.divide(1.0, deviation, out=np.zeros_like(deviation), where=deviation > 0)
    return [((r - mean) * scale).astype(np.float32) for r in rounds]


class CountSketch:
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

        by_rows(fold, rows)


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


def linkable(carried: Sequence[RoundUpdates]) -> list[RoundUpdates]:
    """Rounds whose anonymous updates can be linked; raises where there is nothing to link."""
    hidden = [c for c in carried if c.hidden]
    for c in hidden:
        if len(c.hidden) < 2:
            raise NothingToSay(
                "there is nothing to link",
                code="too_few_clients",
                expected="at least 2 clients in a round",
                got=f"{len(c.hidden)} in round {c.number}",
                remedy="audit a federation with more clients",
            )
    if len(hidden) < 2:
        raise NothingToSay(
            "linking needs two rounds",
            code="too_few_rounds",
            expected="at least 2 rounds with anonymous uploads",
            got=str(len(hidden)),
            remedy="run or record more rounds",
        )
    return hidden


def anonymous_rows(view: View, number: int, tensor: str, messages: Sequence[int]) -> Rows:
    """Rows of some messages of a round, for one tensor; without a copy where these are all."""
    updates = view.updates(number, tensor)
    if len(updates.messages) == len(messages):
        return updates.rows
    return updates.rows[np.isin(updates.messages, messages)]


def refuse_bad_rows(rows: Rows, number: int) -> None:
    """NaN and infinity are named by round and row."""
    bad = ~np.isfinite(rows).all(axis=1)
    if bad.any():
        raise TraceError(
            f"round {number} holds updates that are not finite",
            expected="finite numbers",
            got=f"NaN or infinity in row {int(np.flatnonzero(bad)[0])}",
            remedy="lower training.learning_rate, or name layers that are finite in "
            "audits.fingerprint.features",
        )


def collect(
    view: View,
    tensors: Sequence[str],
    rng: np.random.Generator,
    *,
    normalise: Literal["unit", "column"] = "unit",
    sketch: int | None = None,
    exact_bytes: int = EXACT_BYTES,
    carried: Sequence[RoundUpdates] | None = None,
) -> Features:
    """Feature rows of every round of a view, tensor by tensor, exactly or folded.

    `sketch`: 0 keeps exact rows whatever their size, a width folds, None decides by size.
    `carried`: the rounds with their anonymous updates, where they are known already.
    """
    chosen = view.layout.select(tensors)
    names = tuple(e.name for e in chosen)
    columns = sum(e.size for e in chosen)
    carried = carried or linkable(single_updates(view, names[0]))
    messages = [c.hidden for c in carried]
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
    fold = CountSketch(columns, width, rng) if width else None
    rounds: list[Rows] = []
    for c in carried:
        rounds.append(_round_rows(view, c, chosen, columns, fold))
    if normalise == "column":
        rounds = [unit_norm(r) for r in standardise_columns(rounds)]
    return Features(
        rounds=tuple(c.number for c in carried),
        rows=rounds,
        messages=messages,
        tensors=names,
        columns=columns,
        sketch_width=width or None,
    )


def _round_rows(
    view: View, c: RoundUpdates, chosen: Sequence[object], columns: int, fold: CountSketch | None
) -> Rows:
    """Unit rows of one round: exact (K, d), or folded (K, m) with exact norms."""
    number, count = c.number, len(c.hidden)
    out = np.zeros((count, fold.width if fold else columns), dtype=np.float32)
    squares = np.zeros(count, dtype=np.float64)
    first = 0
    step = max(1 << 16, MAPPED // count)
    for entry in chosen:
        rows = anonymous_rows(view, number, entry.name, c.hidden)  # type: ignore[attr-defined]
        for low in range(0, rows.shape[1], step):
            part = rows[:, low : low + step]
            own = fold.add(out, part, first) if fold else copy_rows(out, part, first)
            doubtful = ~((own > TINY) & (own < np.inf))
            if doubtful.any():
                refuse_bad_rows(part, number)
                # numbers whose squares are too large or too small for single precision
                few = part[doubtful]
                own[doubtful] = np.einsum("ij,ij->i", few, few, dtype=np.float64)
            squares += own
            first += part.shape[1]
            release_pages(rows)
    out *= inverse_lengths(squares)[:, None]
    return out


def copy_rows(out: Rows, rows: Rows, first: int) -> npt.NDArray[np.float64]:
    """Copy rows (K, c) to the columns of out (K, d) from `first` on; their squared lengths."""
    squares = np.zeros(len(rows))

    def copy(some: slice) -> None:
        out[some, first : first + rows.shape[1]] = rows[some]
        squares[some] = square_lengths(rows[some])

    by_rows(copy, rows)
    return squares


def release_pages(rows: Rows) -> None:
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
    return _scaled(product(before, after), squared_lengths(before), squared_lengths(after))


def _scaled(dots: Rows, before: npt.NDArray[Any], after: npt.NDArray[Any]) -> Rows:
    """Cosines from inner products (K, L) and squared lengths (K,) and (L,), in place."""
    dots *= inverse_lengths(before)[:, None]
    dots *= inverse_lengths(after)
    return dots


def squared_lengths(rows: Rows) -> npt.NDArray[np.float64]:
    """Squared lengths of rows (K, d): (K,), a few rows at a time."""
    out = np.zeros(len(rows))

    def measure(some: slice) -> None:
        out[some] = square_lengths(rows[some])

    by_rows(measure, rows)
    return out


def exact_cosines(
    view: View, before: RoundUpdates, after: RoundUpdates, tensors: Sequence[str]
) -> npt.NDArray[np.float32]:
    """Exact cosines between the anonymous rows of two rounds, streamed by columns.

    Memory does not grow with the number of columns.
    """
    total: list[npt.NDArray[Any]] = []
    for name in tensors:
        a, b = (anonymous_rows(view, c.number, name, c.hidden) for c in (before, after))
        own: list[npt.NDArray[Any]] = [product(a, b), squared_lengths(a), squared_lengths(b)]
        total = [x + y for x, y in zip(total, own, strict=True)] if total else own
        release_pages(a)
        release_pages(b)
    return _scaled(*total)


def exact_gram(
    view: View, carried: Sequence[RoundUpdates], tensors: Sequence[str]
) -> npt.NDArray[np.float64]:
    """Exact cosines of all anonymous rows with each other, (N, N), streamed by columns."""
    dots: npt.NDArray[np.float64] | None = None
    for name in tensors:
        rounds = [anonymous_rows(view, c.number, name, c.hidden) for c in carried]
        if dots is None:
            total = sum(len(r) for r in rounds)
            dots = np.zeros((total, total))
        for low in range(0, rounds[0].shape[1], COLUMNS):
            part = np.concatenate([r[:, low : low + COLUMNS] for r in rounds])
            dots += part @ part.T
        for rows in rounds:
            release_pages(rows)
    assert dots is not None
    norms = np.sqrt(np.diagonal(dots))
    scale = np.outer(norms, norms)
    return np.divide(dots, scale, out=np.zeros_like(dots), where=scale > 0)
