"""Read a received model: named numbers from a state dict, a torch module or arrays.

Whole numbers are read too: a client's framework would silently cast them to floats.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedaudit.errors import DataError, UsageError
from fedaudit.protections.guard import no_model
from fedaudit.protections.guard.tensors import WeightArray

TABLE = re.compile(
    r"wte|wpe|pe|pos|shared|mask|tril|cls|(.*_)?"
    r"(tokens?|vocab\w*|emb|embeddings?|positions?|position_\w+|positional\w*|pos_\w+|relative_\w+"
    r"|rotary\w*|inv_freq|freqs?\w*|ids)"
)
"""Name parts of tensors whose rows are looked up by number or not trained."""


@dataclass(frozen=True)
class Numbers:
    """The readable part of a model: `tensors` by name, which of them are `tables`, their original
    dtypes, and `unread` names with reason and shape."""

    tensors: dict[str, WeightArray]
    tables: frozenset[str]
    dtypes: dict[str, str]
    unread: dict[str, tuple[str, tuple[int, ...]]]


def numbers(state: Any, what: str = "the model", module: Any = None) -> Numbers:
    """The numbers of a state dict, a torch module, or named arrays.

    Single precision stays, half becomes single, everything else double. Whole numbers with a
    `.scale` entry are multiplied by it. `module`, or a module as `state`, identifies buffers and
    embeddings; without one their names do. Input that is not a model is refused (`no_model`).
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
    no_model.refuse_names(state, what)
    raw = {str(name): _array(value) for name, value in state.items()}
    no_model.refuse_arrays({name: array for name, (array, _) in raw.items()}, what)
    tensors: dict[str, WeightArray] = {}
    dtypes, unread = {}, {}
    for name, (array, dtype) in raw.items():
        quantised = name.removesuffix(".scale")
        if quantised != name and quantised in raw and raw[quantised][0].dtype.kind in "iu":
            continue  # read with its tensor
        if array.dtype.kind not in "fiu":
            if array.ndim >= 2:
                unread[name] = dtype, array.shape
            continue
        values = _floats(array)
        scale = raw.get(f"{name}.scale")
        if array.dtype.kind in "iu" and scale is not None:
            try:
                values = np.asarray(values * np.broadcast_to(_floats(scale[0]), values.shape))
            except ValueError:
                unread[f"{name}.scale"] = "does not fit its tensor", scale[0].shape
        tensors[name], dtypes[name] = values, dtype
    tables = _tables(tensors, known)
    if not any(a.ndim >= 2 and a.size for n, a in tensors.items()):
        raise DataError(
            f"{what} has no tensor that can be checked",
            expected="at least one tensor of weights with two axes or more",
            got=", ".join(f"{k} {a.shape}" for k, a in list(tensors.items())[:3])
            or "no such tensors",
            remedy="pass the whole state dict of the received model",
        )
    return Numbers(tensors, tables, dtypes, unread)


def _array(value: Any) -> tuple[npt.NDArray[Any], str]:
    """An array and the name of its original dtype."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        dtype = str(value.dtype).removeprefix("torch.")
        # numpy has no bfloat16, and no float8
        plain = value.float() if value.is_floating_point() and value.itemsize < 4 else value
        return plain.numpy(), dtype
    array = np.asarray(value)
    return array, str(array.dtype)


def _floats(array: npt.NDArray[Any]) -> WeightArray:
    small = array.dtype.itemsize < 4 or array.dtype == np.float32
    return array.astype(np.float32 if small else np.float64, copy=False)


def _tables(tensors: Mapping[str, WeightArray], module: Any) -> frozenset[str]:
    """Tensors whose rows are looked up or not trained: buffers, embeddings, positions, and output
    layers tied to an embedding."""
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


def check_shapes(now: Mapping[str, WeightArray], before: Mapping[str, WeightArray]) -> None:
    """Raise if the previous model has other tensor names or shapes."""
    wrong = sorted(set(now) ^ set(before)) or [n for n in now if now[n].shape != before[n].shape]
    if wrong:
        name = wrong[0]
        shapes = [str(t[name].shape) if name in t else "nothing" for t in (now, before)]
        raise DataError(
            "the previous model does not fit the received one",
            expected="the same tensors of the same shapes",
            got=f"{name}: {shapes[0]} now, {shapes[1]} before",
            remedy="leave the previous model out, and ask the server why the model changed",
        )
