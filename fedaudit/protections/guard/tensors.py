"""The tensors of a received model by role: matrices of rows, and biases beside them.

Rows are scaled by their largest entry before anything is squared, so that factors like 1e-25, which
the next layer takes back, hide nothing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from torch import nn

Floats = npt.NDArray[np.floating[Any]]

FEW = 4
"""Rows that must look planted before a layer counts: two classes alone mirror each other."""
SHARE = 50
"""And one row in so many."""
MOST = 4096
"""Rows of one matrix that are compared with each other: more are thinned out."""
WIDE, CLOSE = 64, 0.01
NEARLY_ZERO = "all rows are zero, or all but a few"

RECURRENT = re.compile(r"(^|[._/])(weight|bias)_(ih|hh)")


@dataclass(frozen=True)
class Score:
    """What one check measured in one tensor: its value and words for it; the `kind` of layer and
    the `shape` (rows, width) that was looked at, for checks whose honest values depend on them.

    `reach` is the largest value that any content of this shape can have, -inf where the check is
    not defined; `value` is -inf where nothing was measured. `layers`: the tensors it speaks of.
    `zero`: there was nothing but zeros to measure. `aside`: read across the units, where nobody
    who writes units plants anything: an alarm counts, and that there could be one says nothing.
    """

    value: float
    where: str
    words: str
    kind: str = ""
    shape: tuple[int, int] = (0, 0)
    reach: float = math.inf
    layers: tuple[str, ...] = ()
    zero: bool = False
    aside: bool = False


@dataclass(frozen=True, eq=False)
class Matrix:
    """Rows (R, n) of one tensor: of each unit what it reads, or (`turned`) of each input what
    reads it, so that layouts (out, in) and (in, out) are looked at alike. `aside`: a bias says that
    units are the other axis."""

    name: str
    rows: Floats
    kind: str = "linear"
    turned: bool = False
    aside: bool = False

    @property
    def where(self) -> str:
        return f"{self.name} (columns)" if self.turned else self.name

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.rows), self.rows.shape[1]

    @cached_property
    def units(self) -> Floats:
        """Rows of length 1 (r, n), without those that are zero."""
        return unit_rows(self.rows)

    def score(self, reach: float, value: float = -math.inf, words: str = "") -> Score:
        return Score(
            value,
            self.where,
            words,
            self.kind,
            self.shape,
            reach,
            (self.name,),
            zero=words == NEARLY_ZERO,
            aside=self.aside,
        )


@dataclass(frozen=True, eq=False)
class Received:
    """What a client has: the tensors it was sent by name (`tables` of them are looked up, or not
    trained), those of the last model if it kept them, and the module with records of its own if it
    can run it."""

    tensors: Mapping[str, Floats]
    previous: Mapping[str, Floats] | None = None
    module: nn.Module | None = None
    records: tuple[Any, Any] | None = field(default=None, repr=False)
    tables: frozenset[str] = frozenset()

    def matrices(self) -> Iterator[Matrix]:
        """One after another: the scaled copies of a whole model are never held at once."""
        for name, t in self.tensors.items():
            if name not in self.tables:
                yield from _matrices(name, t, self._units(name))

    def biases(self) -> Iterator[tuple[str, Floats, Floats, Score]]:
        """(name, bias (R,), lengths (R,) of the rows it is added to, an empty score of the layer).

        Lengths and biases are in float64."""
        for name, weight in self.tensors.items():
            axes = self._units(name)
            if axes is not None:
                called = _bias_of(name)
                rows = weight if 0 in axes else weight.T
                shape = (len(rows), rows.shape[1])
                kind = kind_of(name, weight.shape)
                empty = Score(-math.inf, called, "", kind, shape, layers=(name,))
                yield called, self.tensors[called].astype(np.float64), lengths(rows), empty

    def _units(self, name: str) -> tuple[int, ...] | None:
        """The axes of a matrix that its bias is as long as; None without a bias that fits."""
        weight, bias = self.tensors[name], self.tensors.get(_bias_of(name))
        if _bias_of(name) == name or weight.ndim != 2 or bias is None or bias.ndim != 1:
            return None
        return tuple(axis for axis in (0, 1) if weight.shape[axis] == len(bias)) or None


def _bias_of(name: str) -> str:
    """What the bias beside a weight is called; the name itself if it is no weight."""
    *parent, last = name.split(".")
    return ".".join([*parent, last.replace("weight", "bias")])


def unit_rows(rows: Floats) -> Floats:
    """Rows (R, n) that are not zero, of length 1 (r, n), in single precision."""
    top = np.abs(rows).max(axis=1, initial=0.0)
    kept = top > 0
    # by the largest entry first: squares of very small or large numbers have no place in float32
    scaled = np.asarray(rows[kept] / top[kept, None], dtype=np.float32)
    scaled /= np.sqrt(np.einsum("ij,ij->i", scaled, scaled))[:, None]
    return scaled


def lengths(rows: Floats) -> Floats:
    """Norms (R,) of rows (R, n), at any scale."""
    top = np.abs(rows).max(axis=1, initial=0.0).astype(np.float64)
    scaled = rows / np.where(top > 0, top, 1.0)[:, None]
    return np.asarray(top * np.sqrt(np.einsum("ij,ij->i", scaled, scaled)))


def kind_of(name: str, shape: tuple[int, ...]) -> str:
    """What kind of layer a tensor of weights is: honest values are known per kind and size."""
    if RECURRENT.search(name):
        return "recurrent"
    if "lora_" in name:
        return "adapter"
    if len(shape) >= 3 and shape[1] == 1 and shape[0] > 1:
        return "one-channel convolution"
    if len(shape) <= 3:
        return "linear"
    return "pointwise convolution" if np.prod(shape[2:]) == 1 else "convolution"


def extents(tensors: Mapping[str, Floats], tables: frozenset[str]) -> dict[str, tuple[int, int]]:
    """Per kind of layer the most rows and the widest row of a model, in either reading."""
    out: dict[str, tuple[int, int]] = {}
    for m in Received(tensors, tables=tables).matrices():
        before = out.get(m.kind, (0, 0))
        out[m.kind] = (max(before[0], m.shape[0]), max(before[1], m.shape[1]))
    return out


def _matrices(name: str, tensor: Floats, units: tuple[int, ...] | None) -> Iterator[Matrix]:
    """Readings of a tensor whose `units` are these axes; without knowing, either may be."""
    if tensor.ndim < 2 or not tensor.size:
        return
    kind = kind_of(name, tensor.shape)
    if tensor.ndim == 2:
        known = units or (0, 1)
        yield Matrix(name, tensor, kind, aside=0 not in known)
        yield Matrix(name, tensor.T, kind, turned=True, aside=1 not in known)
        return
    yield Matrix(name, tensor.reshape(len(tensor), -1), kind)
    if tensor.ndim == 3:  # heads, each a matrix
        yield Matrix(name, tensor.reshape(-1, tensor.shape[-1]), kind)


def needed(rows: int) -> int:
    """Rows of a matrix that must look planted."""
    return max(FEW, rows // SHARE)


def surprise(
    squared: Floats | float, dimension: Floats | float, tries: npt.NDArray[Any] | int = 1
) -> Floats:
    """How unlikely squared cosines (r,) are between directions without any relation, in nats.

    -ln of the bound P(c^2 >= s) <= (1 - s)^((n - 1) / 2) for a random direction in n dimensions,
    times `tries`. A scale on which matrices of any size can be compared; never below 0. Wide rows
    count as `WIDE`, where a slight tilt that training gives to all rows would be a surprise; a
    cosine closer to 1 than `CLOSE` is no more surprising: one entry that is left of a pruned row.
    """
    left = np.maximum(1.0 - np.asarray(squared, dtype=np.float64), CLOSE)
    exponent = 0.5 * (np.clip(dimension, 1.0, WIDE) - 1)
    return np.asarray(np.maximum(0.0, -exponent * np.log(left) - np.log(np.maximum(tries, 1))))
