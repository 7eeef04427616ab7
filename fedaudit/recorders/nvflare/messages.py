"""Named arrays of a FLARE task or answer; uses no FLARE class, only the fields of a DXO."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fedaudit.errors import UsageError
from fedaudit.trace.numbers import as_numbers

Named = dict[str, npt.NDArray[Any]]
Scalars = dict[str, float | int | str | bool]

KINDS = {"WEIGHTS": "model", "WEIGHT_DIFF": "delta"}
"""Kind of a DXO -> kind of a recorded message. Others are named and not recorded."""
WHOLE = "FL_MODEL"
"""Kind of a DXO that holds a whole FLModel: parameters, their type, metrics."""
ENCRYPTED = ("HE_CKKS", "_HE")
"""How names of encryptions begin in a DXO's meta entry `PROCESSED_ALGORITHM`."""
CLEAR = "layers in the clear"
"""Metadata of a masked message: names of the layers that were not encrypted."""
LONGEST = 2000
"""Most characters of a text that are recorded."""
MOST = 50
"""Most entries of a dictionary in the metadata that are recorded one by one."""
_ABOUT = ("filter_history", "PROCESSED_KEYS")


@dataclass(frozen=True)
class Tensors:
    """A message's content: `kind` on the wire, arrays by name, `weight` in the mean, `scalars` sent
    beside them, `size` in bytes, `filters` that the sender says it applied, `beside` the names of
    arrays in the metadata, which are not kept. `lacks` says why there are no arrays; empty if
    there are."""

    kind: str = "model"
    arrays: Named = field(default_factory=dict)
    weight: float = 1.0
    scalars: Scalars = field(default_factory=dict)
    size: int = 0
    lacks: str = ""
    filters: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()


_NOTHING = Tensors()


def tensors_of(
    kind: Any, data: Mapping[str, Any], meta: Mapping[str, Any], weight_key: str
) -> Tensors:
    """The content of a DXO by its fields `data_kind`, `data` and `meta`."""
    kind = str(getattr(kind, "value", kind))
    if kind == WHOLE:
        kind, data, meta = _opened(data, meta)
    scalars, beside, extra = _told(meta)
    history = meta.get("filter_history")
    own = replace(
        _NOTHING,
        weight=_weight(meta.get(weight_key)),
        scalars=scalars,
        beside=beside,
        size=extra,
        filters=tuple(map(str, history)) if isinstance(history, list) else (),
    )
    if kind not in KINDS:
        return replace(own, lacks=f"data of kind {kind}")
    if str(meta.get("PROCESSED_ALGORITHM", "")).startswith(ENCRYPTED):
        # PROCESSED_KEYS: which layers are encrypted; the others travel as they are
        of = meta.get("PROCESSED_KEYS")
        clear = [str(n) for n in data if not of.get(n, True)] if isinstance(of, dict) else []
        told: Scalars = {CLEAR: ", ".join(sorted(clear))[:LONGEST]} if clear else {}
        return replace(
            own,
            kind="masked",
            scalars=scalars | told,
            size=extra + sum(map(_bytes_of, data.values())),
            lacks="homomorphically encrypted",
        )
    own = replace(own, kind=KINDS[kind])
    arrays: Named = {}
    for name, value in data.items():
        found = _as_array(value)
        if found is None:
            what = f"{name} of type {type(value).__name__}"
            return replace(own, lacks=f"not only numbers: {what}")
        arrays[str(name)] = found
    size = extra + sum(a.nbytes for a in arrays.values())
    return replace(own, arrays=arrays, size=size, lacks="" if arrays else "empty")


def _as_array(value: Any) -> npt.NDArray[Any] | None:
    """NumPy arrays and torch tensors (bfloat16 widened) as arrays; None if it is neither."""
    if not hasattr(value, "detach") and not isinstance(
        value, np.ndarray | np.generic | float | int
    ):
        return None
    try:
        return as_numbers("tensor", value)
    except UsageError:
        return None


def _opened(
    data: Mapping[str, Any], meta: Mapping[str, Any]
) -> tuple[str, Mapping[str, Any], Mapping[str, Any]]:
    """Kind, arrays and metadata of a whole FLModel that travels as one object."""
    of = str(getattr(data.get("params_type"), "value", data.get("params_type") or "FULL"))
    params, more = data.get("params"), data.get("meta")
    beside = {k: data[k] for k in ("metrics", "optimizer_params") if data.get(k)}
    meta = {**meta, **(more if isinstance(more, dict) else {}), **beside}
    if not isinstance(params, dict):
        return f"{WHOLE} without parameters", {}, meta
    return "WEIGHT_DIFF" if of == "DIFF" else "WEIGHTS", params, meta


def _weight(value: Any) -> float:
    """A number of steps or examples as a weight, as FLARE reads it; 1 by default."""
    try:
        found = float(value)
    except (TypeError, ValueError, OverflowError):
        return 1.0
    return found if math.isfinite(found) and found > 0 else 1.0


def _told(meta: Mapping[str, Any]) -> tuple[Scalars, tuple[str, ...], int]:
    """Metadata as single values; names of the arrays among it, which are not kept, and their bytes.

    A dictionary of single values (metrics) is taken apart; a list becomes its length.
    """
    scalars: Scalars = {}
    arrays: dict[str, int] = {}
    for key, raw in meta.items():
        if key in _ABOUT or raw is None:
            continue
        parts = raw if isinstance(raw, dict) and 0 < len(raw) <= MOST else {"": raw}
        for name, value in parts.items():
            inner = value.values() if isinstance(value, dict) else (value,)
            size = sum(_bytes_of(v) for v in inner if not isinstance(v, np.generic | bytes))
            if size:
                arrays[str(key)] = arrays.get(str(key), 0) + size
            else:
                scalars[f"{key}.{name}" if name != "" else str(key)] = _single(value)
    return scalars, tuple(f"{k} ({n} bytes)" for k, n in arrays.items()), sum(arrays.values())


def _single(value: Any) -> float | int | str | bool:
    """A value that JSON can hold; of anything with parts, what it is."""
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, str):
        return value[:LONGEST]
    kind = type(value).__name__
    return f"{kind} of {len(value)}" if hasattr(value, "__len__") else kind


def _bytes_of(value: Any) -> int:
    """Bytes of an array, of a ciphertext, or of a ciphertext that was read already."""
    if isinstance(value, bytes | bytearray):
        return len(value)
    if hasattr(value, "serialize"):  # TenSEAL's vectors
        return len(value.serialize())
    return int(getattr(value, "nbytes", 0))
