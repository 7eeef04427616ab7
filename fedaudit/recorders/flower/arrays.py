"""Convert Flower's records to named arrays."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib import format as npy

from fedaudit.errors import FedauditError, UsageError
from fedaudit.trace.limits import FAULTS, reason_of
from fedaudit.trace.numbers import as_numbers, unheld, widened

Named = dict[str, npt.NDArray[Any]]
Scalars = dict[str, float | int | str | bool]

_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
#: the record in which a node tells its name, beside its metrics
NAMES = "fedaudit"
SITE = "site"
LONGEST = 2000
"""Most characters of a text that are recorded: an error may contain a whole traceback."""


@dataclass(frozen=True)
class Content:
    """Content of one message: `model` the tensors by name, `beside` further records of arrays
    (control variates, statistics), `scalars` metrics and settings as single values. `lacks`: why
    the arrays are not recorded, and `bytes` how many there were."""

    model: Named
    beside: Mapping[str, Named] = field(default_factory=dict)
    scalars: Scalars = field(default_factory=dict)
    lacks: str = ""
    bytes: int = 0

    @property
    def size(self) -> int:
        return self.bytes or sum(
            a.nbytes for part in (self.model, *self.beside.values()) for a in part.values()
        )


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


def answer_of(records: Any, key: str, like: Mapping[str, Any] | None = None) -> Content:
    """As `content_of`, for a reply: reports what cannot be recorded, and does not raise."""
    try:
        return content_of(records, key, like)
    except FAULTS as error:  # whatever a client sends, the server goes on
        size = sum(len(a.data) for r in records.array_records.values() for a in r.values())
        if isinstance(error, FedauditError):
            got = f"{error.what}: {error.got}"
        else:
            got = reason_of(error)
        return Content({}, scalars=scalars_of(records), lacks=got, bytes=size)


def named(record: Any) -> Named:
    """The arrays of one record by name.

    A dtype that a trace cannot hold is refused: leaving it out would hide a part of the message.
    """
    out: Named = {}
    for name, array in record.items():
        try:
            values = _values(array)
        except (TypeError, ValueError) as error:
            raise UsageError(
                "an array cannot be recorded",
                expected="floating-point or whole numbers",
                got=f"{name} of {array.dtype} as {array.stype}: {error}",
                remedy="send it as another dtype, or take the recording out of this app",
            ) from None
        if str(array.dtype) == "bfloat16" and values.dtype.itemsize == 2:
            values = widened(values)  # NumPy reads such a file as two bytes without a meaning
        if values.dtype.kind == "V":
            raise unheld(name, str(array.dtype))
        out[name] = as_numbers(name, values)
    return out


def _values(array: Any) -> npt.NDArray[Any]:
    """The values of one of Flower's arrays, read where they lie: nothing is copied."""
    data = array.data
    if array.stype != "numpy.ndarray" or not isinstance(data, bytes):
        return np.asarray(array.numpy())
    file = io.BytesIO(data)
    header = _HEADERS.get(npy.read_magic(file))
    if header is None:
        return np.asarray(array.numpy())
    shape, fortran, dtype = header(file)
    if dtype.hasobject or not math.prod(shape):
        return np.asarray(array.numpy())
    flat = np.frombuffer(data, dtype, math.prod(shape), file.tell())
    return flat.reshape(shape, order="F" if fortran else "C")


def scalars_of(records: Any) -> Scalars:
    """Metrics and settings of a message's content, as single values that JSON can hold."""
    out: Scalars = {}
    for kind in (records.metric_records, records.config_records):
        for key, record in kind.items():
            for name, value in record.items() if key != NAMES else ():
                out[name if name not in out else f"{key}/{name}"] = single(value)
    return out


def take_site(records: Any, name_by: str | None, weight_key: str) -> Any:
    """The name that a node reports, taken out of its reply: no strategy averages it."""
    own = records.config_records.get(NAMES)
    site = None if own is None else own.get(SITE)
    if own is not None:
        del records[NAMES]
    for record in (*records.metric_records.values(), *records.config_records.values()):
        if name_by is not None and name_by != weight_key and name_by in record:
            site = record[name_by] if site is None else site
            del record[name_by]
    return site if isinstance(site, str | int | float) else None


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
    if isinstance(found, bool) or not isinstance(found, int | float):
        return 1.0
    # an infinite weight is no message of a trace: one client would end the recording of all
    return float(found) if 0 < found < math.inf else 1.0


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
