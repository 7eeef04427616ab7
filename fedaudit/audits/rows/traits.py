"""Everything of an anonymous update that can tell its sender, as traits of `stats.evidence`.

Direction of the update, its norm, norms by tensor, share and pattern of zeros, precision of its
numbers; the weight, every field in the clear, the size of the message and the layouts it carries.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from fedaudit.arrays import Floats, Indices, Rows
from fedaudit.audits.outright import RoundUpdates
from fedaudit.audits.rows.directions import split
from fedaudit.audits.rows.features import anonymous_rows, release_pages
from fedaudit.stats.evidence import Category, Direction, Quantity, Trait
from fedaudit.stats.products import by_rows, square_lengths
from fedaudit.trace import View
from fedaudit.trace.schema import Message

TENSORS = 16
"""Tensors whose norms are read one by one; of more, evenly spaced ones."""
PATTERN = 1 << 25
"""Largest number of entries whose pattern of zeros is compared."""
FIELDS = 24
READ = 4096
"""Numbers of an update whose precision is read."""


def traits_of(
    view: View, carried: Sequence[RoundUpdates], units: Sequence[Rows], rows: Sequence[Rows] | None
) -> tuple[dict[str, Trait], Indices]:
    """Traits by name, and the round of every row (N,).

    `units` [(K_t, m)] are directions; `rows` [(K_t, d)] exact updates up to a scale per row, None
    if there are only sketches.
    """
    rounds = np.repeat(np.arange(len(carried)), [len(c.hidden) for c in carried])
    traits: dict[str, Trait] = {"direction": Direction(np.concatenate(units), rounds)}
    traits |= _of_messages(view, carried, rounds)
    traits |= _of_norms(view, carried, rounds)
    traits |= _of_precision(view, carried, rounds)
    if rows is not None and len(rounds) * rows[0].shape[1] <= PATTERN:
        traits |= _of_pattern(rows, rounds)
    return traits, rounds


# -- messages -------------------------------------------------------------------------------------


def _of_messages(view: View, carried: Sequence[RoundUpdates], rounds: Indices) -> dict[str, Trait]:
    """Weight, size, layouts and fields in the clear, where they differ between messages."""
    messages: list[Message] = []
    for c in carried:
        table = dict(view.indexed(c.number))
        messages += [table[i] for i in c.hidden]
    readers: dict[str, Callable[[Message], object]] = {
        "weight": lambda m: m.weight,
        "message size": lambda m: m.size,
        "layouts": lambda m: " ".join(sorted(m.parts)),
    }
    for field in list(dict.fromkeys(k for m in messages for k in m.metadata))[:FIELDS]:
        readers[f"field {field}"] = lambda m, field=field: m.metadata.get(field)  # type: ignore[misc]
    out: dict[str, Trait] = {}
    for name, read in readers.items():
        values = [read(m) for m in messages]
        codes = np.unique([repr(v) for v in values], return_inverse=True)[1]
        if not int(codes.max()) + 1 > 1:
            continue
        out[f"{name}, equal"] = Category(codes, rounds)
        if all(isinstance(v, int | float) and not isinstance(v, bool) for v in values):
            numbers = np.array(values, dtype=np.float64)
            out[name] = Quantity(numbers, rounds)
            out[f"{name}, in its round"] = Quantity(numbers, rounds, drifts=True)
    return out


# -- updates --------------------------------------------------------------------------------------


def _of_norms(view: View, carried: Sequence[RoundUpdates], rounds: Indices) -> dict[str, Trait]:
    """Norm, norms by tensor and share of zeros of every update."""
    names = [e.name for e in view.layout.entries if e.size]
    squares, zeros = np.zeros((len(rounds), len(names))), np.zeros(len(rounds))
    ends = np.cumsum([0, *(len(c.hidden) for c in carried)])
    for k, c in enumerate(carried):
        here = slice(ends[k], ends[k + 1])
        for i, name in enumerate(names):
            rows = anonymous_rows(view, c.number, name, c.hidden)
            squares[here, i], empty = _squares_and_zeros(rows)
            zeros[here] += empty
            release_pages(rows)
    out: dict[str, Trait] = {"norm": Quantity(_log(squares.sum(axis=1)), rounds, drifts=True)}
    if len(names) > 1:
        for i in np.unique(np.linspace(0, len(names) - 1, TENSORS).round().astype(int)):
            out[f"norm of {names[i]}"] = Quantity(_log(squares[:, i]), rounds, drifts=True)
    if zeros.any():
        out["zeros"] = Quantity(zeros, rounds)
        out["zeros, equal"] = Category(np.unique(zeros, return_inverse=True)[1], rounds)
    return out


def _squares_and_zeros(rows: Rows) -> tuple[Floats, Floats]:
    """Squared length and number of zeros of every row (K, d): both (K,)."""
    squares, zeros = np.zeros(len(rows)), np.zeros(len(rows))

    def measure(some: slice) -> None:
        squares[some] = square_lengths(rows[some])
        zeros[some] = rows.shape[1] - np.count_nonzero(rows[some], axis=1)

    by_rows(measure, rows)
    return squares, zeros


def _log(squares: Floats) -> Floats:
    """Logarithm of a length from its square; that of a row of zeros is very small."""
    return np.asarray(0.5 * np.log(np.maximum(squares, math.ulp(0.0))))


def _of_precision(view: View, carried: Sequence[RoundUpdates], rounds: Indices) -> dict[str, Trait]:
    """How many bits the sent numbers use, if that differs: a client that computes in half precision
    leaves the low bits empty."""
    name = max(view.layout.entries, key=lambda e: e.size).name
    used = []
    for c in carried:
        for message in c.hidden:
            sent = view.payload(c.number, message, name)[:READ]
            bits = np.ascontiguousarray(sent, dtype=np.float32).view(np.uint32)
            used.append(int(np.bitwise_or.reduce(bits)))
    # the lowest bit in use; of a row of zeros none
    codes = np.unique([u & -u for u in used], return_inverse=True)[1]
    return {"precision": Category(codes, rounds)} if codes.max() > 0 else {}


def _of_pattern(rows: Sequence[Rows], rounds: Indices) -> dict[str, Trait]:
    """Which entries are zero, if that differs between updates."""
    masks = [(r == 0).astype(np.float32) for r in rows]
    if not any(0 < m.mean() < 1 and np.ptp(m, axis=0).any() for m in masks):
        return {}
    units = [split(m)[2] for m in masks]
    return {"pattern of zeros": Direction(np.concatenate(units), rounds)}
