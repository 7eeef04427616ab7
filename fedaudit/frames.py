"""Results as tables and figures: pandas frames, and objects that a notebook shows inline."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

Row = Mapping[str, Any]


SHOWN_ROWS = 5
SHOWN_WIDTH = 100


class Tabular:
    """An outcome that reads as a table. Subclasses define `rows()`: one mapping per row.

    Printed, it shows a few rows; a notebook and `to_frame()` show all of them.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        # a dataclass would write every field of everything inside
        cls.__repr__ = Tabular.__repr__  # type: ignore[method-assign]

    def __repr__(self) -> str:
        rows = self.rows()
        count = f"{len(rows)} row" if len(rows) == 1 else f"{len(rows)} rows"
        where = f" in {os.fspath(self)}" if isinstance(self, os.PathLike) else ""
        lines = [f"{type(self).__name__}{where}: {count}, see .to_frame()"]
        for row in rows[:SHOWN_ROWS]:
            line = "  " + ", ".join(filter(None, map(cell, row.values())))
            lines.append(line if len(line) <= SHOWN_WIDTH else line[: SHOWN_WIDTH - 3] + "...")
        if len(rows) > SHOWN_ROWS:
            lines.append(f"  ... and {len(rows) - SHOWN_ROWS} more")
        return "\n".join(" ".join(line.splitlines()) for line in lines)

    def rows(self) -> Sequence[Row]:
        raise NotImplementedError

    def to_frame(self) -> pd.DataFrame:
        """The rows as a pandas frame. Columns keep the order in which rows first use them."""
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


@dataclass(frozen=True)
class Table(Tabular):
    """Rows without an outcome of their own, such as the estimates of several audits."""

    content: tuple[Row, ...]

    def rows(self) -> Sequence[Row]:
        return self.content

    def __len__(self) -> int:
        return len(self.content)


def columns_of(rows: Sequence[Row]) -> list[str]:
    """Every key of the rows, in the order of first use."""
    return list(dict.fromkeys(key for row in rows for key in row))


def cell(value: Any) -> str:
    """A value as a table shows it: numbers with four digits, missing values empty."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)


NAMESPACE = 'xmlns="http://www.w3.org/2000/svg"'


@dataclass(frozen=True, kw_only=True)
class SvgFigure:
    """One figure. A notebook shows it; `save` writes it to a file.

    `audit` is the audit that the figure is about, or empty.
    """

    svg: str
    title: str = ""
    caption: str = ""
    audit: str = ""

    def _repr_html_(self) -> str:
        words = ": ".join(filter(None, (self.title, self.caption)))
        return (
            f'<figure style="max-width:640px">{self.svg}'
            f"<figcaption>{escape(words)}</figcaption></figure>"
        )

    def _repr_svg_(self) -> str:
        """The figure as a document of its own: SVG inside HTML has no name space."""
        if NAMESPACE in self.svg:
            return self.svg
        return self.svg.replace("<svg ", f"<svg {NAMESPACE} ", 1)

    def save(self, path: str | Path) -> Path:
        """Write the figure to a file and return its path."""
        file = Path(path)
        file.write_text(self._repr_svg_(), encoding="utf-8")
        return file
