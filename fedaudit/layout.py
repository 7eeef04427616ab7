"""Named tensors laid end to end in one flat vector.

Models and updates are rows of numbers. The layout maps tensor names to columns, so that an audit
can ask for `blocks.0.mlp.*`. Tensors keep their given order.
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from fedaudit.errors import UsageError, nearest

Role = Literal["parameter", "buffer"]


@dataclass(frozen=True)
class TensorSpec:
    """One tensor of a layout: its name, shape, first column, and whether it is trained."""

    name: str
    shape: tuple[int, ...]
    offset: int
    role: Role = "parameter"

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def columns(self) -> slice:
        return slice(self.offset, self.offset + self.size)


@dataclass(frozen=True)
class Layout:
    """The columns of a row: `entries` in order, all of one `dtype` (a numpy name)."""

    entries: tuple[TensorSpec, ...]
    dtype: str = "float32"

    @classmethod
    def of(
        cls,
        shapes: Iterable[tuple[str, tuple[int, ...]]],
        *,
        dtype: str = "float32",
        buffers: Iterable[str] = (),
    ) -> Layout:
        """Lay tensors with these names and shapes end to end."""
        aside, entries, offset = set(buffers), [], 0
        for name, shape in shapes:
            role: Role = "buffer" if name in aside else "parameter"
            entries.append(TensorSpec(name, tuple(int(s) for s in shape), offset, role))
            offset += entries[-1].size
        layout = cls(tuple(entries), dtype)
        problem = layout._problem()
        if problem is not None:
            raise UsageError(
                "the tensors cannot be laid end to end",
                expected="distinct names and shapes from 0",
                got=problem,
                remedy="name every tensor once",
            )
        return layout

    def _problem(self) -> str | None:
        """The first fault in the entries, or None."""
        at, seen = 0, set()
        for e in self.entries:
            if e.name in seen:
                return f"tensor {e.name!r} appears twice"
            if any(s < 0 for s in e.shape):
                return f"tensor {e.name!r} has shape {e.shape}"
            if e.offset != at:
                return f"tensor {e.name!r} starts at column {e.offset}, not at {at}"
            seen.add(e.name)
            at += e.size
        return None

    @cached_property
    def width(self) -> int:
        return sum(e.size for e in self.entries)

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(e.name for e in self.entries)

    def select(self, patterns: str | Sequence[str]) -> tuple[TensorSpec, ...]:
        """Tensors whose name equals or matches a shell pattern, in layout order; never empty."""
        wanted = (patterns,) if isinstance(patterns, str) else tuple(patterns)
        if "*" in wanted and self.entries:
            return self.entries
        exact = set(wanted)  # a name may itself hold brackets: heads[0].weight
        chosen = tuple(
            e
            for e in self.entries
            if e.name in exact or any(fnmatch.fnmatchcase(e.name, p) for p in wanted)
        )
        if not chosen:
            raise UsageError(
                "no tensor matches the pattern",
                expected="a shell pattern over tensor names",
                got=", ".join(repr(p) for p in wanted),
                remedy=nearest(wanted[0] if wanted else "", self.names),
            )
        return chosen

    def restrict(self, patterns: str | Sequence[str]) -> Layout:
        """A layout of the selected tensors alone."""
        chosen = self.select(patterns)
        return Layout.of(
            ((e.name, e.shape) for e in chosen),
            dtype=self.dtype,
            buffers=[e.name for e in chosen if e.role == "buffer"],
        )

    def gather(
        self, rows: npt.NDArray[Any], patterns: str | Sequence[str] = "*"
    ) -> npt.NDArray[Any]:
        """Columns of the selected tensors from `rows` (n, width); a view if they are adjacent."""
        runs = column_runs(self.select(patterns))
        if len(runs) == 1:
            return rows[:, runs[0]]
        return np.concatenate([rows[:, run] for run in runs], axis=1)

    def flatten(self, tensors: Mapping[str, npt.ArrayLike]) -> npt.NDArray[Any]:
        """One row (width,) from named arrays; names and shapes must fit exactly."""
        missing, extra = set(self.names) - set(tensors), set(tensors) - set(self.names)
        if missing or extra:
            raise UsageError(
                "the tensors do not fit the layout",
                expected=", ".join(self.names),
                got=f"missing: {sorted(missing) or 'none'}; unknown: {sorted(extra) or 'none'}",
                remedy="send the same tensors in every message of a layout",
            )
        row = np.empty(self.width, dtype=self.dtype)
        for e in self.entries:
            value = np.asarray(tensors[e.name])
            if value.shape != e.shape:
                raise UsageError(
                    f"tensor {e.name!r} has the wrong shape",
                    expected=str(e.shape),
                    got=str(value.shape),
                    remedy="send the same shapes in every message of a layout",
                )
            row[e.columns] = value.reshape(-1)
        return row

    def unflatten(self, row: npt.NDArray[Any]) -> dict[str, npt.NDArray[Any]]:
        """Named views of one row (width,)."""
        return {e.name: row[e.columns].reshape(e.shape) for e in self.entries}

    def to_dict(self) -> dict[str, Any]:
        return {
            "dtype": self.dtype,
            "width": self.width,
            "tensors": [
                {"name": e.name, "shape": list(e.shape), "offset": e.offset, "role": e.role}
                for e in self.entries
            ],
        }

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Layout:
        """The inverse of `to_dict`; raises ValueError for an invalid layout."""
        entries = []
        for t in raw["tensors"]:
            name, shape, offset = t["name"], t["shape"], t["offset"]
            role = t.get("role", "parameter")
            whole = [offset, *shape]
            if not isinstance(name, str) or not all(type(n) is int for n in whole):
                raise ValueError(f"tensor {name!r} needs a name and whole numbers, got {whole}")
            if role not in get_args(Role):
                raise ValueError(f"tensor {name!r} has the role {role!r}")
            entries.append(TensorSpec(name, tuple(shape), offset, role))
        if not isinstance(raw["dtype"], str):
            raise ValueError(f"dtype {raw['dtype']!r} is not a name")
        layout = cls(tuple(entries), raw["dtype"])
        problem = layout._problem()
        if problem is not None:
            raise ValueError(problem)
        if layout.width != raw["width"]:
            raise ValueError(f"width {raw['width']} is not the sum of the tensors, {layout.width}")
        return layout


def column_runs(entries: Sequence[TensorSpec]) -> tuple[slice, ...]:
    """The columns of `entries` in their order, adjacent ones joined."""
    runs: list[slice] = []
    for e in entries:
        if runs and runs[-1].stop == e.offset:
            runs[-1] = slice(runs[-1].start, e.offset + e.size)
        else:
            runs.append(e.columns)
    return tuple(runs)
