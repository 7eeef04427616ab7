"""What is compared: selected tensors of every update, as unit rows held in bounded memory.

Exact rows are kept while they fit; beyond that every row is folded into a count sketch on its way
into memory: coordinate j is multiplied by a random sign and added to cell j mod m. Inner products
are unbiased with standard deviation about 1/sqrt(m) for unit rows, so cosines below about
4/sqrt(m) do not show: the audit states that figure, and never rests a negative on a sketch alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from fedaudit.errors import NotApplicable, TraceError, UsageError
from fedaudit.layout import Layout
from fedaudit.trace import ANONYMOUS, View

Rows = npt.NDArray[np.float32]

EXACT_BYTES = 1 << 29
"""Feature rows of a whole trace are kept exactly up to this size."""
SKETCH_WIDTH = 8191  # a prime: cells do not line up with the rows of a weight matrix


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
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.divide(rows, norms, out=np.zeros_like(rows), where=norms > 0)


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

    def add(self, out: Rows, rows: Rows, first: int) -> None:
        """out (K, m) += sketch of rows (K, c), which are the columns from `first` on."""
        for low in range(0, rows.shape[1], self.width):
            at = (first + low) % self.width
            high = min(low + self.width - at, rows.shape[1])
            self._cell(out, rows, first, low, high, at)
            if high < min(low + self.width, rows.shape[1]):
                self._cell(out, rows, first, high, min(low + self.width, rows.shape[1]), 0)

    def _cell(self, out: Rows, rows: Rows, first: int, low: int, high: int, at: int) -> None:
        out[:, at : at + high - low] += rows[:, low:high] * self._signs[first + low : first + high]


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
    square = np.zeros(count, dtype=np.float64)
    first = 0
    for entry in chosen:
        rows = view.updates(number, entry.name).rows  # type: ignore[attr-defined]
        for low in range(0, rows.shape[1], 1 << 16):
            part = np.ascontiguousarray(rows[:, low : low + (1 << 16)])
            refuse_bad_rows(part, number)
            square += np.einsum("ij,ij->i", part, part, dtype=np.float64)
            if fold:
                fold.add(out, part, first)
            else:
                out[:, first : first + part.shape[1]] = part
            first += part.shape[1]
    norms = np.sqrt(square)[:, None].astype(np.float32)
    return np.divide(out, norms, out=np.zeros_like(out), where=norms > 0)


def exact_cosines(view: View, number: int, tensors: Sequence[str]) -> npt.NDArray[np.float32]:
    """Exact cosines between the rows of round `number` and the next, streamed by columns.

    Memory does not grow with the number of columns.
    """
    dots: npt.NDArray[np.float32] | None = None
    squares: list[npt.NDArray[np.float64]] = []
    for name in tensors:
        a, b = (view.updates(t, name).rows for t in (number, number + 1))
        if dots is None:
            dots = np.zeros((len(a), len(b)), dtype=np.float32)
            squares = [np.zeros(len(a)), np.zeros(len(b))]
        for low in range(0, a.shape[1], 1 << 14):
            x, y = a[:, low : low + (1 << 14)], b[:, low : low + (1 << 14)]
            dots += x @ y.T
            squares[0] += np.einsum("ij,ij->i", x, x, dtype=np.float64)
            squares[1] += np.einsum("ij,ij->i", y, y, dtype=np.float64)
    assert dots is not None
    scale = np.sqrt(np.outer(squares[0], squares[1])).astype(np.float32)
    return np.divide(dots, scale, out=np.zeros_like(dots), where=scale > 0)


def exact_gram(view: View, tensors: Sequence[str]) -> npt.NDArray[np.float64]:
    """Exact cosines of all rows of all rounds with each other, (N, N), streamed by columns."""
    dots: npt.NDArray[np.float64] | None = None
    for name in tensors:
        rounds = [view.updates(t, name).rows for t in view.rounds]
        if dots is None:
            total = sum(len(r) for r in rounds)
            dots = np.zeros((total, total))
        for low in range(0, rounds[0].shape[1], 1 << 14):
            part = np.concatenate([r[:, low : low + (1 << 14)] for r in rounds])
            dots += part @ part.T
    assert dots is not None
    norms = np.sqrt(np.diagonal(dots))
    scale = np.outer(norms, norms)
    return np.divide(dots, scale, out=np.zeros_like(dots), where=scale > 0)
