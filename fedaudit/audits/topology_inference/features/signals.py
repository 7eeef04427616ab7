"""Signals of every client and round: numbers computed from updates and models."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedaudit.arrays import Floats
from fedaudit.audits.topology_inference.features.names import head_of, signal_names, tracked_classes
from fedaudit.audits.topology_inference.features.place import Place
from fedaudit.audits.topology_inference.features.rows import (
    Piece,
    RoundRows,
    Seen,
    pieces,
    round_rows,
)
from fedaudit.trace import View

Signals32 = npt.NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class Observed:
    """Signals of one federation.

    `values` (T, n, S) float32, NaN for absent clients; `names` (S,); `seen`: every client's own
    update, or only sums over groups.
    """

    values: Signals32
    names: tuple[str, ...]
    seen: Seen


def observe(
    view: View, place: Place, *, classes: int, sensitive: Sequence[int], sums: bool = False
) -> Observed:
    """Signals of every client and round that this view shows.

    With `sums`, from means over `place.summing_groups()` only.
    """
    layout = view.layout
    entries = [e for e in layout.entries if e.role == "parameter"]
    weight, bias = head_of(layout, classes)
    rows_of = tracked_classes(classes, sensitive)
    names = signal_names(layout, classes, sensitive)
    values = np.full((len(view.rounds), place.n, len(names)), np.nan, dtype=np.float32)
    seen: Seen = "sums" if sums else "single"
    mix = place.summing_groups() if sums else None
    cut = [Piece(some) for some in pieces(entries, place.n)]
    for t, number in enumerate(view.rounds):
        source = round_rows(view, number, place, cut[0])
        groups = None
        if source.seen == "sums":
            seen = "sums"
        elif mix is not None:
            groups = _restricted(mix, source.clients)
        gram = np.zeros((source.count, source.count))
        layers_u, layers_theta = [], []
        head: dict[str, npt.NDArray[np.float32]] = {}
        for piece in cut:
            u, base = source.rows(piece)
            if groups is not None:
                u = groups @ u
                base = base if base is None or base.ndim == 1 else groups @ base
            gram += u @ u.T
            layers_u.append(piece.squares(u))
            layers_theta.append(piece.model_squares(u, base, layers_u[-1]))
            for e in (weight, bias):
                if e is not None and e.name in piece.columns:
                    head[e.name] = u[:, piece.columns[e.name]]
        squared_u = np.concatenate(layers_u, axis=1)
        squared_theta = np.concatenate(layers_theta, axis=1)
        norm = np.sqrt(squared_u.sum(axis=1))
        parts = [
            np.sqrt(squared_theta.sum(axis=1))[:, None],
            np.sqrt(squared_theta),
            _to_neighbours(gram, norm, place, source, seen)[:, None],
            norm[:, None],
            np.sqrt(squared_u),
            _to_mean(gram, norm)[:, None],
        ]
        if weight is not None:
            rows = head[weight.name].reshape(source.count, classes, -1)[:, list(rows_of)]
            parts += [rows.mean(axis=2), np.sqrt(np.square(rows).sum(axis=2))]
        if bias is not None:
            parts.append(head[bias.name][:, list(rows_of)])
        round_values = np.concatenate(parts, axis=1)
        assert round_values.shape[1] == len(names)
        values[t, source.clients] = round_values[source.row_of]
    return Observed(values=values, names=names, seen=seen)


def _restricted(mix: Floats, present: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
    """Means over the present members of each group."""
    own = mix[np.ix_(present, present)]
    return np.asarray(own / own.sum(axis=1, keepdims=True), dtype=np.float32)


def _cosines(products: Floats, a: Floats, b: Floats) -> Floats:
    lengths = a * b
    return np.divide(products, lengths, out=np.zeros_like(products), where=lengths > 0)


def _to_mean(gram: Floats, norm: Floats) -> Floats:
    """Cosine of every row to the mean of all, (n,)."""
    length = math.sqrt(max(float(gram.mean()), 0.0))
    return _cosines(gram.mean(axis=1), norm, np.full(len(norm), length))


def _to_neighbours(
    gram: Floats, norm: Floats, place: Place, source: RoundRows, seen: Seen
) -> Floats:
    """Mean cosine to the rows of the present neighbours, (n,); NaN without any.

    NaN too if rows are sums of groups: they do not show the neighbours' own updates.
    """
    out = np.full(len(norm), np.nan)
    if seen == "sums":
        return out
    near = place.adjacency[np.ix_(source.clients, source.clients)]
    cosines = _cosines(gram, norm[:, None], np.broadcast_to(norm[None, :], gram.shape))
    some = near.any(axis=1)
    out[some] = (cosines * near).sum(axis=1)[some] / near.sum(axis=1)[some]
    return out
