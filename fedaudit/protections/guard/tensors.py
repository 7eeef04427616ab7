"""The tensors of a received model by role: matrices of rows, and their biases.

Rows are divided by their largest entry before squaring, so that factors like 1e-25, which the next
layer may undo, hide nothing.
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

WeightArray = npt.NDArray[np.floating[Any]]

FEW = 4
"""Least number of rows that must look planted: two classes alone mirror each other."""
SHARE = 50
"""At least one row in `SHARE` must look planted."""
MOST = 4096
"""Rows of one matrix compared in pairs; larger matrices are subsampled."""
WIDE, CLOSE = 64, 0.01
NEARLY_ZERO = "all rows are zero, or all but a few"

RECURRENT = re.compile(r"(^|[._/])(weight|bias)_(ih|hh)")


@dataclass(frozen=True)
class CheckScore:
    """The score of one check on one tensor: its value and a description; the `kind` of layer and
    the `shape` (rows, width) examined, for checks whose honest values depend on them.

    `reach` is the largest value that any content of this shape can have, -inf if the check is
    undefined; `value` is -inf if nothing was measured. `layers`: the tensors it covers. `zero`:
    only zeros were there to measure. `aside`: read across the units, where adversaries plant
    nothing: an alarm counts, but a possible alarm does not make the layer examined.
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
    """Rows (R, n) of one tensor: a unit's input weights, or (`turned`) an input's weights to all
    units, so that layouts (out, in) and (in, out) are both examined. `aside`: a bias shows that
    units are the other axis."""

    name: str
    rows: WeightArray
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
    def units(self) -> WeightArray:
        """Rows scaled to length 1 (r, n), without zero rows."""
        return unit_rows(self.rows)

    def score(self, reach: float, value: float = -math.inf, words: str = "") -> CheckScore:
        return CheckScore(
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
    """A client's input: the received tensors by name (`tables` are looked up or not trained), those
    of the previous model if it kept them, and a module with own records if it can run it."""

    tensors: Mapping[str, WeightArray]
    previous: Mapping[str, WeightArray] | None = None
    module: nn.Module | None = None
    records: tuple[Any, Any] | None = field(default=None, repr=False)
    tables: frozenset[str] = frozenset()

    def matrices(self) -> Iterator[Matrix]:
        """Yield matrices one by one, so that memory never holds scaled copies of a whole model."""
        for name, t in self.tensors.items():
            if name not in self.tables:
                yield from _matrices(name, t, self._units(name))

    def biases(self) -> Iterator[tuple[str, WeightArray, WeightArray, CheckScore]]:
        """(name, bias (R,), lengths (R,) of the rows it is added to, an empty score of the layer).

        Lengths and biases are in float64."""
        for name, weight in self.tensors.items():
            axes = self._units(name)
            if axes is not None:
                called = _bias_of(name)
                rows = weight if 0 in axes else weight.T
                shape = (len(rows), rows.shape[1])
                kind = kind_of(name, weight.shape)
                empty = CheckScore(-math.inf, called, "", kind, shape, layers=(name,))
                yield called, self.tensors[called].astype(np.float64), lengths(rows), empty

    def _units(self, name: str) -> tuple[int, ...] | None:
        """The axes of a matrix with the length of its bias; None without a fitting bias."""
        weight, bias = self.tensors[name], self.tensors.get(_bias_of(name))
        if _bias_of(name) == name or weight.ndim != 2 or bias is None or bias.ndim != 1:
            return None
        return tuple(axis for axis in (0, 1) if weight.shape[axis] == len(bias)) or None


def _bias_of(name: str) -> str:
    """The name of a weight's bias; the name itself if it is not a weight."""
    *parent, last = name.split(".")
    return ".".join([*parent, last.replace("weight", "bias")])


def unit_rows(rows: WeightArray) -> WeightArray:
    """Non-zero rows of (R, n), scaled to length 1 (r, n), in single precision."""
    top = np.abs(rows).max(axis=1, initial=0.0)
    kept = top > 0
    # divide by the largest entry first: squares of very small or large numbers overflow float32
    scaled = np.asarray(rows[kept] / top[kept, None], dtype=np.float32)
    scaled /= np.sqrt(np.einsum("ij,ij->i", scaled, scaled))[:, None]
    return scaled


def lengths(rows: WeightArray) -> WeightArray:
    """Norms (R,) of rows (R, n), at any scale."""
    top = np.abs(rows).max(axis=1, initial=0.0).astype(np.float64)
    scaled = rows / np.where(top > 0, top, 1.0)[:, None]
    return np.asarray(top * np.sqrt(np.einsum("ij,ij->i", scaled, scaled)))


def kind_of(name: str, shape: tuple[int, ...]) -> str:
    """The kind of layer of a weight tensor: calibration is per kind and size."""
    if RECURRENT.search(name):
        return "recurrent"
    if "lora_" in name:
        return "adapter"
    if len(shape) >= 3 and shape[1] == 1 and shape[0] > 1:
        return "one-channel convolution"
    if len(shape) <= 3:
        return "linear"
    return "pointwise convolution" if np.prod(shape[2:]) == 1 else "convolution"


def extents(
    tensors: Mapping[str, WeightArray], tables: frozenset[str]
) -> dict[str, tuple[int, int]]:
    """The most rows and the widest row of a model per kind of layer, in either reading."""
    out: dict[str, tuple[int, int]] = {}
    for m in Received(tensors, tables=tables).matrices():
        before = out.get(m.kind, (0, 0))
        out[m.kind] = (max(before[0], m.shape[0]), max(before[1], m.shape[1]))
    return out


def _matrices(name: str, tensor: WeightArray, units: tuple[int, ...] | None) -> Iterator[Matrix]:
    """Readings of a tensor with units along the axes `units`; None: along either."""
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
    """Number of rows of a matrix that must look planted."""
    return max(FEW, rows // SHARE)


def surprise(
    squared: WeightArray | float, dimension: WeightArray | float, tries: npt.NDArray[Any] | int = 1
) -> WeightArray:
    """How unlikely squared cosines (r,) are between unrelated directions, in nats.

    -ln of the bound P(c^2 >= s) <= (1 - s)^((n - 1) / 2) for a random direction in n dimensions,
    times `tries`. Makes matrices of any size comparable; never below 0. Rows wider than `WIDE`
    count as `WIDE`: otherwise the slight common tilt that training gives all rows would be a
    surprise. A cosine closer to 1 than `CLOSE` adds no surprise: pruned rows can have a single
    entry.
    """
    left = np.maximum(1.0 - np.asarray(squared, dtype=np.float64), CLOSE)
    exponent = 0.5 * (np.clip(dimension, 1.0, WIDE) - 1)
    return np.asarray(np.maximum(0.0, -exponent * np.log(left) - np.log(np.maximum(tries, 1))))
