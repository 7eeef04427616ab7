"""Convert Flower's records to named arrays."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from fedaudit.errors import UsageError

Named = dict[str, npt.NDArray[Any]]
Scalars = dict[str, float | int | str | bool]

#: NumPy dtype kinds that a trace can hold: floats, integers, booleans
KINDS = "fiub"
LONGEST = 2000
"""Most characters of a text that are recorded: an error may contain a whole traceback."""


@dataclass(frozen=True)
class Content:
    """Content of one message: `model` the tensors by name, `beside` further records of arrays
    (control variates, statistics), `scalars` metrics and settings as single values."""

    model: Named
    beside: Mapping[str, Named] = field(default_factory=dict)
    scalars: Scalars = field(default_factory=dict)

    @property
    def size(self) -> int:
        return sum(a.nbytes for part in (self.model, *self.beside.values()) for a in part.values())


def content_of(records: Any, key: str, like: Mapping[str, Any] | None = None) -> Content:
    """A message's content. The model is the record `key`, else the one with the names of `like`,
    else the first."""
    all_of_them = dict(records.array_records.items())
    chosen = key if key in all_of_them else None
    if chosen is None and like:
        chosen = next((k for k, r in all_of_them.items() if set(r) == set(like)), None)
    if chosen is None:
        chosen = next(iter(all_of_them), None)
    return Content(
        model={} if chosen is None else named(all_of_them[chosen]),
        beside={k: named(r) for k, r in all_of_them.items() if k != chosen},
        scalars=scalars_of(records),
    )


def named(record: Any) -> Named:
    """The arrays of one record by name.

    A dtype that a trace cannot hold is refused: leaving it out would hide a part of the message.
    """
    out: Named = {}
    for name, array in record.items():
        try:
            values = array.numpy()
        except (TypeError, ValueError) as error:
            raise _cannot(name, f"{array.dtype} as {array.stype}: {error}") from None
        if values.dtype.kind not in KINDS or values.dtype.name == "uint64":
            raise _cannot(name, str(values.dtype))
        out[name] = values
    return out


def _cannot(name: str, got: str) -> UsageError:
    return UsageError(
        "an array cannot be recorded",
        expected="floating-point or whole numbers",
        got=f"{name} of {got}",
        remedy="send it as another dtype, or take the recording out of this app",
    )


def scalars_of(records: Any) -> Scalars:
    """Metrics and settings of a message's content, as single values that JSON can hold."""
    out: Scalars = {}
    for kind in (records.metric_records, records.config_records):
        for key, record in kind.items():
            for name, value in record.items():
                out[name if name not in out else f"{key}/{name}"] = single(value)
    return out


def single(value: Any) -> float | int | str | bool:
    """A value for the trace: infinities and NaN become text, a list becomes its length."""
    if isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, str):
        return value[:LONGEST]
    return f"{type(value).__name__} of {len(value)}"


def weight_of(values: Mapping[str, Any], key: str) -> float:
    """Weight of a reply in the mean: its number under the strategy's key, or 1."""
    found = values.get(key)
    usable = isinstance(found, int | float) and not isinstance(found, bool)
    return float(found) if usable and found is not None and found > 0 else 1.0


def misfit(got: Named, want: Mapping[str, tuple[int, ...]]) -> str:
    """How `got` differs from the names and shapes in `want`; empty if it does not."""
    unknown, missing = sorted(set(got) - set(want)), sorted(set(want) - set(got))
    if unknown:
        return f"tensors that the model does not have: {', '.join(unknown[:3])}"
    if missing:
        return f"without tensors of the model: {', '.join(missing[:3])}"
    for name, values in got.items():
        if values.shape != want[name]:
            return f"{name} of shape {values.shape}, the model has {want[name]}"
    return ""


def whole(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Values for an integer tensor: a mean of counters is rounded."""
    return np.rint(values).astype(np.int64) if values.dtype.kind == "f" else values
