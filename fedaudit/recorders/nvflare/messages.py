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

KINDS = {"WEIGHTS": "model", "WEIGHT_DIFF": "delta", "FL_MODEL": "model"}
"""Kind of a DXO -> kind of a recorded message. Others are named and not recorded."""
ENCRYPTED = ("HE_CKKS", "_HE")
"""How names of encryptions begin in a DXO's meta entry `PROCESSED_ALGORITHM`."""
CLEAR = "layers in the clear"
"""Metadata of a masked message: names of the layers that were not encrypted."""
LONGEST = 2000
"""Most characters of a text that are recorded."""


@dataclass(frozen=True)
class Tensors:
    """A message's content: `kind` on the wire, arrays by name, `weight` in the mean, `scalars` sent
    beside them, `size` in bytes, `filters` that the sender says it applied. `lacks` says why there
    are no arrays; empty if there are."""

    kind: str = "model"
    arrays: Named = field(default_factory=dict)
    weight: float = 1.0
    scalars: Scalars = field(default_factory=dict)
    size: int = 0
    lacks: str = ""
    filters: tuple[str, ...] = ()


_NOTHING = Tensors()


def tensors_of(
    kind: Any, data: Mapping[str, Any], meta: Mapping[str, Any], weight_key: str
) -> Tensors:
    """The content of a DXO by its fields `data_kind`, `data` and `meta`."""
    scalars: Scalars = {str(k): v for k, raw in meta.items() if (v := _single(raw)) is not None}
    history = meta.get("filter_history")
    own = replace(
        _NOTHING,
        weight=_weight(meta.get(weight_key)),
        scalars=scalars,
        filters=tuple(map(str, history)) if isinstance(history, list) else (),
    )
    kind = str(getattr(kind, "value", kind))
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
            size=sum(map(_bytes_of, data.values())),
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
    size = sum(a.nbytes for a in arrays.values())
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


def _weight(value: Any) -> float:
    """A number of steps or examples as a weight; 1 by default."""
    counts = isinstance(value, int | float) and not isinstance(value, bool) and value > 0
    return float(value) if counts else 1.0


def _single(value: Any) -> float | int | str | bool | None:
    """A value that JSON can hold; None for anything with parts."""
    if isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, str):
        return value[:LONGEST]
    return None


def _bytes_of(value: Any) -> int:
    """Bytes of an array, of a ciphertext, or of a ciphertext that was read already."""
    if isinstance(value, bytes | bytearray):
        return len(value)
    if hasattr(value, "serialize"):  # TenSEAL's vectors
        return len(value.serialize())
    return int(getattr(value, "nbytes", 0))
