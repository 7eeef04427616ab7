"""Arrays and tensors of any framework as NumPy arrays that a trace can hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from fedaudit.errors import UsageError
from fedaudit.trace.schema import DTYPES

#: dtypes with a wider one that holds all of their values
_WIDENED = {
    "bfloat16": "float32",
    "float8_e4m3fn": "float32",
    "float8_e4m3fnuz": "float32",
    "float8_e5m2": "float32",
    "float8_e5m2fnuz": "float32",
    "float8_e4m3": "float32",
    "float8_e8m0fnu": "float32",
    "int4": "int8",
    "uint4": "uint8",
}
HELD = tuple(d for d in DTYPES if d != "uint64")  # uint64 does not fit int64


def as_numbers(name: str, value: Any) -> npt.NDArray[Any]:
    """The values of a NumPy array, a torch tensor or a number, widened where NumPy has no such
    type (bfloat16, float8); UsageError for a type that no trace holds (complex, text, objects)."""
    dtype = str(getattr(value, "dtype", "")).removeprefix("torch.")
    if hasattr(value, "detach"):  # a torch tensor; torch itself is not needed
        if not dtype.startswith(("float", "bfloat", "int", "uint", "bool")):
            raise unheld(name, dtype)
        try:
            value = value.detach().cpu().to_dense().resolve_neg()
            value = (value.float() if dtype in _WIDENED else value).numpy()
        except (TypeError, RuntimeError):  # dtypes of less than a byte; tensors without values
            raise unheld(name, f"{dtype} on {value.device}") from None
    found = np.asarray(value)
    if found.dtype.name in _WIDENED:  # ml_dtypes
        found = found.astype(_WIDENED[found.dtype.name])
    if found.dtype.name not in HELD:
        raise unheld(name, found.dtype.name)
    return found


def unheld(name: str, dtype: str) -> UsageError:
    return UsageError(
        f"tensor {name!r} has a dtype that a trace cannot hold",
        expected=f"{', '.join(HELD)}, or bfloat16",
        got=dtype,
        remedy="send it as one of these, or leave it out of the recording",
    )


def widened(raw: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """bfloat16 values, given as 16-bit words, as float32: exact."""
    return (raw.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)
