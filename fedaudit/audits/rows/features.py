"""Feature rows: selected tensors of every update, as unit rows in bounded memory.

Rows that fit stay exact. Larger ones are folded into a count sketch while they are read: coordinate
j is multiplied by a random sign and added to cell j mod m. Inner products of unit rows are unbiased
with standard deviation about 1/sqrt(m), so cosines below about 4/sqrt(m) are invisible. The audit
states that limit and never bases a negative result on a sketch alone.
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
from fedaudit.audits.outright import RoundUpdates, single_updates
from fedaudit.errors import NothingToSay, TraceError, UsageError
from fedaudit.layout import Layout
from fedaudit.stats.count_sketch import CountSketch
from fedaudit.stats.products import COLUMNS, by_rows, inverse_lengths, product, square_lengths
from fedaudit.trace import View

EXACT_BYTES = 1 << 29
"""Largest size of the feature rows of a trace that are kept exactly."""
SKETCH_WIDTH = 8191  # a prime, so that cells do not align with the rows of a weight matrix
MAPPED = 1 << 25  # numbers of a round to read before their pages are released
TINY = 1e-30  # below this a single-precision sum of squares has lost terms


# -- theory ---------------------------------------------------------------------------------------


def detectable_cosine(width: int) -> float:
    """The cosine four standard deviations above the noise of a sketch."""
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
    """Rows scaled to length 1, (K, d); a zero row stays zero."""
    return rows * inverse_lengths(square_lengths(rows))[:, None]


def standardise_columns(rounds: Sequence[Rows]) -> list[Rows]:
    """Columns scaled to mean 0 and deviation 1 over all rounds; constant columns become 0."""
    total = sum(len(r) for r in rounds)
    mean = np.sum([r.sum(axis=0, dtype=np.float64) for r in rounds], axis=0) / total
    square = np.sum([np.square(r - mean).sum(axis=0, dtype=np.float64) for r in rounds], axis=0)
    deviation = np.sqrt(square / total)
    scale = np.divide(1.0, deviation, out=np.zeros_like(deviation), where=deviation > 0)
    return [((r - mean) * scale).astype(np.float32) for r in rounds]


def equal_scale(rounds: Sequence[Rows]) -> list[Rows]:
    """Rows divided by one number, so that their mean squared length is 1."""
    total = sum(float(squared_lengths(r).sum()) for r in rounds)
    scale = math.sqrt(sum(len(r) for r in rounds) / total) if total > 0 else 1.0
    return [r * np.float32(scale) for r in rounds]


@dataclass(frozen=True, kw_only=True)
class Features:
    """Normalised rows of every round [(K_t, m)], the message of each row, and their origin.

    `normalised`: each row has length 1 ("unit"), or each column has deviation 1 over all rounds
    and rows keep their lengths, as published ("column").
    """

    rounds: tuple[int, ...]
    rows: list[Rows]
    messages: list[tuple[int, ...]]
    tensors: tuple[str, ...]
    columns: int
    sketch_width: int | None
    normalised: Literal["unit", "column"] = "unit"

    def units(self) -> list[Rows]:
        """The rows with length 1, for comparison by cosine."""
        return self.rows if self.normalised == "unit" else [unit_norm(r) for r in self.rows]

    @property
    def detectable(self) -> float:
        return 0.0 if self.sketch_width is None else detectable_cosine(self.sketch_width)


def linkable(carried: Sequence[RoundUpdates]) -> list[RoundUpdates]:
    """Rounds with anonymous updates to link; raises if there are too few."""
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
    """Rows of some messages of a round, for one tensor; no copy if these are all."""
    updates = view.updates(number, tensor)
    if len(updates.messages) == len(messages):
        return updates.rows
    return updates.rows[np.isin(updates.messages, messages)]


def refuse_bad_rows(rows: Rows, number: int) -> None:
    """Raise TraceError, with round and row, if a row has NaN or infinity."""
    bad = ~np.isfinite(rows).all(axis=1)
    if bad.any():
        raise TraceError(
            f"round {number} has updates that are not finite",
            expected="finite numbers",
            got=f"NaN or infinity in row {int(np.flatnonzero(bad)[0])}",
            remedy="lower training.learning_rate, or select finite layers in "
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

    `sketch`: 0 keeps exact rows of any size, a width folds them, None decides by size.
    `carried`: the rounds with their anonymous updates, if already known.
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
        width = 0  # the sketch would not be smaller
    if width and normalise == "column":
        raise UsageError(
            "per-column standardisation needs exact rows",
            expected=f"at most {exact_bytes >> 20} MiB of features",
            got=f"{total * columns * 4 >> 20} MiB",
            remedy='select fewer tensors with features, or set normalise = "unit"',
        )
    fold = CountSketch(columns, width, rng) if width else None
    unit = normalise == "unit"
    rounds = [_round_rows(view, c, chosen, columns, fold, unit=unit) for c in carried]
    if not unit:
        rounds = equal_scale(standardise_columns(rounds))
    return Features(
        rounds=tuple(c.number for c in carried),
        rows=rounds,
        messages=messages,
        tensors=names,
        columns=columns,
        sketch_width=width or None,
        normalised=normalise,
    )


def _round_rows(
    view: View,
    c: RoundUpdates,
    chosen: Sequence[object],
    columns: int,
    fold: CountSketch | None,
    *,
    unit: bool,
) -> Rows:
    """Rows of one round: exact (K, d), or folded (K, m); `unit`: divided by their exact norms."""
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
                # squares too large or too small for single precision
                few = part[doubtful]
                own[doubtful] = np.einsum("ij,ij->i", few, few, dtype=np.float64)
            squares += own
            first += part.shape[1]
            release_pages(rows)
    if unit:
        out *= inverse_lengths(squares)[:, None]
    return out


def copy_rows(out: Rows, rows: Rows, first: int) -> npt.NDArray[np.float64]:
    """Copy rows (K, c) into out (K, d) from column `first` on; returns their squared lengths."""
    squares = np.zeros(len(rows))

    def copy(some: slice) -> None:
        out[some, first : first + rows.shape[1]] = rows[some]
        squares[some] = square_lengths(rows[some])

    by_rows(copy, rows)
    return squares


def release_pages(rows: Rows) -> None:
    """Let the system drop the mapped pages of `rows`.

    Otherwise they count as memory of this process as long as the trace is open.
    """
    base: Any = rows
    while isinstance(base, np.ndarray) and base.base is not None:
        base = base.base
    if isinstance(base, memoryview):
        base = base.obj
    if isinstance(base, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        base.madvise(mmap.MADV_DONTNEED)


def cosines(before: Rows, after: Rows) -> npt.NDArray[np.float32]:
    """Cosines (K, L) of raw rows (K, d) and (L, d), by one product without copies.

    A row of zeros has cosine 0 with every row.
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
    """Exact cosines between the anonymous rows of two rounds, streamed tensor by tensor.

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
    """Exact cosines (N, N) between all anonymous rows, streamed by columns."""
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
