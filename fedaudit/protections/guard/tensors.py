"""The tensors of a received model by role: matrices of rows, and biases beside them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fedaudit.errors import DataError, UsageError

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


@dataclass(frozen=True)
class Score:
    """What one check measured: its value, the tensor where it is largest, and words for it."""

    value: float
    where: str
    words: str


@dataclass(frozen=True, eq=False)
class Matrix:
    """Rows (R, n) of one tensor: of each unit what it reads, or (`turned`) of each input what
    reads it, so that layouts (out, in) and (in, out) are looked at alike."""

    name: str
    rows: Floats
    turned: bool = False

    @property
    def where(self) -> str:
        return f"{self.name} (columns)" if self.turned else self.name

    @cached_property
    def lengths(self) -> Floats:
        """Norms (R,)."""
        return np.asarray(np.sqrt(np.einsum("ij,ij->i", self.rows, self.rows)))

    @cached_property
    def units(self) -> Floats:
        """Rows of length 1 (r, n), without those that are zero."""
        kept = self.lengths > 0
        return np.asarray(self.rows[kept] / self.lengths[kept, None])


@dataclass(frozen=True, eq=False)
class Received:
    """What a client has: the tensors it was sent by name, those of the last model if it kept them,
    and the module with records of its own if it can run it."""

    tensors: Mapping[str, Floats]
    previous: Mapping[str, Floats] | None = None
    module: nn.Module | None = None
    records: tuple[Any, Any] | None = field(default=None, repr=False)

    @cached_property
    def matrices(self) -> tuple[Matrix, ...]:
        return tuple(m for name, t in self.tensors.items() for m in _matrices(name, t))

    def biases(self) -> Iterator[tuple[str, Floats, Floats]]:
        """(name, bias (R,), lengths (R,) of the rows it is added to)."""
        for name, weight in self.tensors.items():
            *parent, last = name.split(".")
            bias = self.tensors.get(".".join([*parent, last.replace("weight", "bias")]))
            if "weight" in last and weight.ndim == 2 and bias is not None and bias.ndim == 1:
                axis = 1 if len(bias) == len(weight) else 0
                if len(bias) == weight.shape[1 - axis]:
                    yield (
                        name.replace("weight", "bias"),
                        bias,
                        np.asarray(np.linalg.norm(weight, axis=axis)),
                    )


def _matrices(name: str, tensor: Floats) -> Iterator[Matrix]:
    if tensor.ndim < 2 or not tensor.size:
        return
    if tensor.ndim == 2:
        yield Matrix(name, tensor)
        yield Matrix(name, tensor.T, turned=True)
        return
    yield Matrix(name, tensor.reshape(len(tensor), -1))
    if tensor.ndim == 3:  # heads, each a matrix
        yield Matrix(name, tensor.reshape(-1, tensor.shape[-1]))


def needed(rows: int) -> int:
    """Rows of a matrix that must look planted."""
    return max(FEW, rows // SHARE)


def surprise(squared: Floats | float, dimension: int, tries: int = 1) -> Floats:
    """How unlikely squared cosines (r,) are between directions without any relation, in nats.

    -ln of the bound P(c^2 >= s) <= (1 - s)^((n - 1) / 2) for a random direction in n dimensions,
    times `tries`. A scale on which matrices of any size can be compared; never below 0. Wide rows
    count as `WIDE`, where a slight tilt that training gives to all rows would be a surprise; a
    cosine closer to 1 than `CLOSE` is no more surprising: one entry that is left of a pruned row.
    """
    left = np.maximum(1.0 - np.asarray(squared, dtype=np.float64), CLOSE)
    exponent = 0.5 * (min(dimension, WIDE) - 1)
    return np.maximum(0.0, -exponent * np.log(left) - np.log(max(tries, 1)))


def floating(state: Any, what: str = "the model") -> dict[str, Floats]:
    """The floating-point tensors of a state dict, a torch module, or named arrays, as float32."""
    if hasattr(state, "state_dict"):
        state = state.state_dict()
    if not isinstance(state, Mapping):
        raise UsageError(
            f"{what} cannot be read",
            expected="a state dict (name -> tensor) or a torch module",
            got=type(state).__name__,
            remedy="guard(model.state_dict())",
        )
    out = {}
    for name, value in state.items():
        if hasattr(value, "detach"):
            value = value.detach().cpu()
            value = value.float().numpy() if value.is_floating_point() else value.numpy()
        array = np.asarray(value)
        if array.dtype.kind == "f":
            out[str(name)] = array.astype(np.float32, copy=False)
    if not any(a.ndim >= 2 and a.size for a in out.values()):
        raise DataError(
            f"{what} has nothing that could be checked",
            expected="at least one tensor of weights with two axes or more",
            got=", ".join(f"{k} {a.shape}" for k, a in list(out.items())[:3]) or "no such tensor",
            remedy="hand over the whole state dict of the model that was received",
        )
    return out


def check_shapes(now: Mapping[str, Floats], before: Mapping[str, Floats]) -> None:
    """The last model is the same model: names and shapes agree."""
    wrong = sorted(set(now) ^ set(before)) or [n for n in now if now[n].shape != before[n].shape]
    if wrong:
        name = wrong[0]
        shapes = [str(t[name].shape) if name in t else "nothing" for t in (now, before)]
        raise DataError(
            "the previous model does not fit the one that was received",
            expected="the same tensors of the same shapes",
            got=f"{name}: {shapes[0]} now, {shapes[1]} before",
            remedy="leave the previous model out, and ask the server why the model changed",
        )
