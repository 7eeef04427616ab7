"""Show results as tables, in pandas and in notebooks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

Row = Mapping[str, Any]


class Tabular:
    """A result that reads as a table. Subclasses define `rows()`, one mapping per row."""

    def rows(self) -> Sequence[Row]:
        raise NotImplementedError

    def to_frame(self) -> pd.DataFrame:
        """The rows as a pandas frame, columns in the order of the first row."""
        import pandas as pd

        rows = self.rows()
        return pd.DataFrame.from_records(rows, columns=columns_of(rows))

    def _repr_html_(self) -> str:
        rows = self.rows()
        names = columns_of(rows)
        head = "".join(f"<th>{escape(name)}</th>" for name in names)
        body = "".join(
            "<tr>" + "".join(f"<td>{escape(cell(row.get(name)))}</td>" for name in names) + "</tr>"
            for row in rows
        )
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def columns_of(rows: Sequence[Row]) -> list[str]:
    """All keys of the rows, in order of first appearance."""
    return list(dict.fromkeys(key for row in rows for key in row))


def cell(value: Any) -> str:
    """A value as a table cell: floats with four digits, empty for None and NaN."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)
