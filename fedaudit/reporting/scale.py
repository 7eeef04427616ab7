"""One picture per question: value, interval, chance and bound of every protection on one scale."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from markupsafe import Markup

from fedaudit.reporting.findings import against, interval, number
from fedaudit.reporting.first_page import value_text, whole
from fedaudit.results import Estimate

WIDTH, ROW, FOOT = 520, 42, 22
LEFT, RIGHT = 10, 510


@dataclass(frozen=True)
class ScaleRow:
    """One protection: its name, the words of its verdict, and what was measured, if anything.

    `bound` is the tightest one, `shows` the smallest leak that would have been seen. `unit` stands
    before the number; `percent`: whether it is a percentage, by default as the scale.
    """

    name: str
    verdict: str
    words: str
    estimate: Estimate | None = None
    bound: float | None = None
    shows: float | None = None
    unit: str = ""
    percent: bool | None = None

    def number(self, value: float, percent: bool) -> str:
        """A number of this row; `percent`: whether the scale is in percent."""
        percent = percent if self.percent is None else self.percent
        shown = value_text(value, self.unit, percent)
        return f"{self.unit} {shown}".lstrip()


def scale(rows: Sequence[ScaleRow], *, percent: bool = False) -> Markup:
    """The picture as SVG; rows without a value say so in words. Empty without any value."""
    known = [row.estimate for row in rows if row.estimate is not None]
    if not known:
        return Markup()
    left, right = _ends(rows)

    def x(value: float) -> str:
        inside = min(max(value, left), right)
        return f"{LEFT + (RIGHT - LEFT) * (inside - left) / (right - left):.1f}"

    out = []
    for i, row in enumerate(rows):
        top = i * ROW
        out.append(
            f'<text class="row" x="{LEFT}" y="{top + 13}">{escape(row.name)}</text>'
            f'<text class="row {row.verdict}" x="{RIGHT}" y="{top + 13}" text-anchor="end">'
            f"{escape(_said(row, percent))}</text>"
        )
        out.append(f'<line class="axis" x1="{LEFT}" x2="{RIGHT}" y1="{top + 28}" y2="{top + 28}"/>')
        out += _marks(row, top + 28, x)
    foot = len(rows) * ROW + 12
    out.append(f'<text x="{LEFT}" y="{foot}">{whole(number(left, percent))}</text>')
    end = whole(number(right, percent))
    out.append(f'<text x="{RIGHT}" y="{foot}" text-anchor="end">{end}</text>')
    told = "; ".join(f"{row.name}: {_told(row, percent)}" for row in rows)
    height = len(rows) * ROW + FOOT
    return Markup(
        f'<svg class="scale" role="img" aria-label="{escape(told)}" width="{WIDTH}" '
        f'height="{height}" viewBox="0 0 {WIDTH} {height}">{"".join(out)}</svg>'
    )


def _marks(row: ScaleRow, y: int, x: Callable[[float], str]) -> list[str]:
    e = row.estimate
    if e is None:
        return []
    out = []
    if e.baseline is not None:
        at = x(e.baseline)
        out.append(f'<line class="chance" x1="{at}" x2="{at}" y1="{y - 9}" y2="{y + 9}"/>')
    if row.bound is not None:
        at = x(row.bound)
        out.append(f'<line class="bound" x1="{at}" x2="{at}" y1="{y - 9}" y2="{y + 9}"/>')
    if row.shows is not None:
        out.append(f'<text class="shows" x="{x(row.shows)}" y="{y + 11}">&#9650;</text>')
    out.append(f'<line class="bar" x1="{x(e.low)}" x2="{x(e.high)}" y1="{y}" y2="{y}"/>')
    out.append(f'<circle class="dot" cx="{x(e.value)}" cy="{y}" r="5"/>')
    return out


def _said(row: ScaleRow, percent: bool) -> str:
    if row.estimate is None:
        return row.words
    return f"{row.words} {row.number(row.estimate.value, percent)}"


def _told(row: ScaleRow, percent: bool) -> str:
    e, percent = row.estimate, percent if row.percent is None else row.percent
    if e is None:
        return row.words
    more = "" if row.bound is None else f", bound {number(row.bound, percent)}"
    more += "" if row.shows is None else f", a leak would show from {number(row.shows, percent)} on"
    words = f"{row.words} {row.unit}".rstrip()
    return f"{words} {interval(e, percent)}, chance {against(e, percent)}{more}"


def _ends(rows: Sequence[ScaleRow]) -> tuple[float, float]:
    """Ends of the axis: 0 to 1 for shares, else from the smallest mark or 0 to the largest."""
    marks: list[float] = []
    for row in rows:
        if row.estimate is not None:
            e = row.estimate
            marks += [e.value, e.low, e.high, *([] if e.baseline is None else [e.baseline])]
            marks += [m for m in (row.bound, row.shows) if m is not None]
    finite = [m for m in marks if math.isfinite(m)] or [0.0]
    if all(0 <= m <= 1 for m in finite):
        return 0.0, 1.0
    left, right = min(0.0, *finite), max(finite)
    return left, right if right > left else left + 1.0
