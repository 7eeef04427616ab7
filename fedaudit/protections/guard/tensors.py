"""The tensors of a received model by role: matrices of rows, biases beside them, and tables.

Whatever can be read as numbers is read: whole numbers too, which a client's framework casts back
without a word. Rows are scaled by their largest entry before anything is squared, so that factors
like 1e-25, which the next layer takes back, hide nothing.
"""

from __future__ import annotations

import re
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

TABLE = re.compile(
    r"wte|wpe|pe|pos|shared|mask|tril|cls|(.*_)?"
    r"(tokens?|vocab\w*|emb|embeddings?|positions?|position_\w+|positional\w*|pos_\w+|relative_\w+"
    r"|rotary\w*|inv_freq|freqs?\w*|ids)"
)
"""How tensors are called whose rows are looked up by number, or not trained at all."""
RECURRENT = re.compile(r"(^|[._/])(weight|bias)_(ih|hh)")


@dataclass(frozen=True)
class Score:
    """What one check measured in one tensor: its value and words for it; the `kind` of layer and
    the `shape` (rows, width) that was looked at, for checks whose honest values depend on them."""

    value: float
    where: str
    words: str
    kind: str = ""
    shape: tuple[int, int] = (0, 0)


@dataclass(frozen=True, eq=False)
class Matrix:
    """Rows (R, n) of one tensor: of each unit what it reads, or (`turned`) of each input what
    reads it, so that layouts (out, in) and (in, out) are looked at alike."""

    name: str
    rows: Floats
    kind: str = "linear"
    turned: bool = False

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

    def score(self, value: float, words: str) -> Score:
        return Score(value, self.where, words, self.kind, self.shape)


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
                yield from _matrices(name, t)

    def biases(self) -> Iterator[tuple[str, Floats, Floats, Score]]:
        """(name, bias (R,), lengths (R,) of the rows it is added to, an empty score of the layer).

        Lengths and biases are in float64."""
        for name, weight in self.tensors.items():
            *parent, last = name.split(".")
            bias = self.tensors.get(".".join([*parent, last.replace("weight", "bias")]))
            if "weight" in last and weight.ndim == 2 and bias is not None and bias.ndim == 1:
                axis = 1 if len(bias) == len(weight) else 0
                if len(bias) == weight.shape[1 - axis]:
                    rows = weight if axis == 1 else weight.T
                    called = ".".join([*parent, last.replace("weight", "bias")])
                    shape = (len(rows), rows.shape[1])
                    empty = Score(0.0, called, "", kind_of(name, weight.shape), shape)
                    yield called, bias.astype(np.float64), lengths(rows), empty


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


def _matrices(name: str, tensor: Floats) -> Iterator[Matrix]:
    if tensor.ndim < 2 or not tensor.size:
        return
    kind = kind_of(name, tensor.shape)
    if tensor.ndim == 2:
        yield Matrix(name, tensor, kind)
        yield Matrix(name, tensor.T, kind, turned=True)
        return
    yield Matrix(name, tensor.reshape(len(tensor), -1), kind)
    if tensor.ndim == 3:  # heads, each a matrix
        yield Matrix(name, tensor.reshape(-1, tensor.shape[-1]), kind)


def needed(rows: int) -> int:
    """Rows of a matrix that must look planted."""
    return max(FEW, rows // SHARE)


def surprise(squared: Floats | float, dimension: float, tries: int = 1) -> Floats:
    """How unlikely squared cosines (r,) are between directions without any relation, in nats.

    -ln of the bound P(c^2 >= s) <= (1 - s)^((n - 1) / 2) for a random direction in n dimensions,
    times `tries`. A scale on which matrices of any size can be compared; never below 0. Wide rows
    count as `WIDE`, where a slight tilt that training gives to all rows would be a surprise; a
    cosine closer to 1 than `CLOSE` is no more surprising: one entry that is left of a pruned row.
    """
    left = np.maximum(1.0 - np.asarray(squared, dtype=np.float64), CLOSE)
    exponent = 0.5 * (min(max(dimension, 1.0), WIDE) - 1)
    return np.maximum(0.0, -exponent * np.log(left) - np.log(max(tries, 1)))


# -- reading --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Numbers:
    """What can be read of a model: `tensors` by name, which of them are `tables`, the dtype that
    each came in, and `unread` names with the reason."""

    tensors: dict[str, Floats]
    tables: frozenset[str]
    dtypes: dict[str, str]
    unread: dict[str, str]


def numbers(state: Any, what: str = "the model", module: Any = None) -> Numbers:
    """The numbers of a state dict, a torch module, or named arrays.

    Single precision stays as it is, everything else becomes double (half: single). Whole numbers
    that come with a `.scale` beside them are multiplied by it. `module`, or a module as `state`,
    says which tensors are buffers or embeddings; names say it otherwise.
    """
    known = state if hasattr(state, "named_modules") else module
    if hasattr(state, "state_dict"):
        state = state.state_dict()
    if not isinstance(state, Mapping):
        raise UsageError(
            f"{what} cannot be read",
            expected="a state dict (name -> tensor) or a torch module",
            got=type(state).__name__,
            remedy="guard(model.state_dict())",
        )
    raw = {str(name): _array(value) for name, value in state.items()}
    tensors: dict[str, Floats] = {}
    dtypes, unread = {}, {}
    for name, (array, dtype) in raw.items():
        quantised = name.removesuffix(".scale")
        if quantised != name and quantised in raw and raw[quantised][0].dtype.kind in "iu":
            continue  # of the tensor that it belongs to
        if array.dtype.kind not in "fiu":
            if array.ndim >= 2:
                unread[name] = dtype
            continue
        values = _floats(array)
        scale = raw.get(f"{name}.scale")
        if array.dtype.kind in "iu" and scale is not None:
            try:
                values = np.asarray(values * np.broadcast_to(_floats(scale[0]), values.shape))
            except ValueError:
                unread[f"{name}.scale"] = "does not fit its tensor"
        tensors[name], dtypes[name] = values, dtype
    tables = _tables(tensors, known)
    if not any(a.ndim >= 2 and a.size for n, a in tensors.items()):
        raise DataError(
            f"{what} has nothing that could be checked",
            expected="at least one tensor of weights with two axes or more",
            got=", ".join(f"{k} {a.shape}" for k, a in list(tensors.items())[:3])
            or "no such tensor",
            remedy="hand over the whole state dict of the model that was received",
        )
    return Numbers(tensors, tables, dtypes, unread)


def _array(value: Any) -> tuple[npt.NDArray[Any], str]:
    """An array, and the name of the dtype it came in."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        dtype = str(value.dtype).removeprefix("torch.")
        # numpy has no bfloat16, and no float8
        plain = value.float() if value.is_floating_point() and value.itemsize < 4 else value
        return plain.numpy(), dtype
    array = np.asarray(value)
    return array, str(array.dtype)


def _floats(array: npt.NDArray[Any]) -> Floats:
    small = array.dtype.itemsize < 4 or array.dtype == np.float32
    return array.astype(np.float32 if small else np.float64, copy=False)


def _tables(tensors: Mapping[str, Floats], module: Any) -> frozenset[str]:
    """Tensors whose rows are looked up or not trained: buffers, embeddings, positions, and an
    output layer that is an embedding once more."""
    found = set()
    if module is not None:
        from torch import nn

        found |= {n for n, _ in module.named_buffers()}
        found |= {f"{n}.weight" for n, m in module.named_modules() if isinstance(m, nn.Embedding)}
    for name, t in tensors.items():
        parts = [p for p in re.split(r"[./]", name.lower()) if p not in ("weight", "embedding")]
        last = parts[-1] if parts else ""
        mask = t.ndim == 4 and t.shape[:2] == (1, 1)
        if mask or ("patch" not in name.lower() and TABLE.fullmatch(last)):
            found.add(name)
    large = [tensors[n] for n in found if n in tensors and tensors[n].ndim == 2]
    found |= {
        n
        for n, t in tensors.items()
        if t.ndim == 2 and any(t.shape == a.shape and np.array_equal(t, a) for a in large)
    }
    return frozenset(n for n in found if n in tensors and tensors[n].ndim >= 2)


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
