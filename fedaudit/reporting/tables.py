"""Tables of clients, and the small plot of an estimate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from markupsafe import Markup

from fedaudit.reporting.findings import against, interval, number
from fedaudit.reporting.terms import Glossary
from fedaudit.results import Bound, Estimate

MAX_CLIENTS = 300
"""Largest number of clients in a table or figure; results.json has all."""


UNDRAWN = Markup()


@dataclass(frozen=True)
class ClientRow:
    """One client; `key` links its rows and dots across the page."""

    key: str
    cells: tuple[str, ...]
    drawing: Markup = UNDRAWN


@dataclass(frozen=True)
class ClientTable:
    """A table with one row per client; `head` is (name, whether the column is numeric).

    `drawn`: rows end with a plot. `left_out`: note on clients that are not shown.
    """

    title: str
    head: tuple[tuple[str, bool], ...]
    rows: tuple[ClientRow, ...]
    drawn: bool = False
    left_out: str = ""

    def linked_head(self, terms: Glossary) -> list[tuple[Markup, bool]]:
        """Headings for the page; their terms count as mentioned."""
        named = [(terms.plain(name), numeric) for name, numeric in self.head]
        return [*named, (UNDRAWN, False)] if self.drawn else named


def not_shown(total: int, most: int = MAX_CLIENTS) -> str:
    """Note below a shortened table; empty if all rows are shown."""
    return "" if total <= most else f"The first {most} of {total:,}; all are in results.json."


LEGEND = (
    (
        Markup(
            '<line class="bar" x1="1" x2="25" y1="6" y2="6"/>'
            '<circle class="dot" cx="13" cy="6" r="4"/>'
        ),
        "value and interval",
    ),
    (Markup('<line class="chance" x1="13" x2="13" y1="0" y2="12"/>'), "chance: no leak"),
    (Markup('<line class="bound" x1="13" x2="13" y1="0" y2="12"/>'), "bound from theory"),
    (
        Markup('<text class="shows" x="13" y="11">&#9650;</text>'),
        "smallest leak that would have shown",
    ),
)
"""Meaning of the marks of `dot` and of `scale`."""


def dot(
    e: Estimate,
    *,
    percent: bool = False,
    bounds: Sequence[Bound] = (),
    width: int = 180,
    labels: bool = True,
) -> Markup:
    """Plot of an estimate: value, interval, chance level and bounds on one axis."""
    left, right = _ends(e, bounds)
    inner = width - 20

    def x(value: float) -> str:
        inside = min(max(value, left), right)
        return f"{10 + inner * (inside - left) / (right - left):.1f}"

    def upright(kind: str, value: float) -> str:
        return f'<line class="{kind}" x1="{x(value)}" x2="{x(value)}" y1="2" y2="18"/>'

    words = f"{interval(e, percent)}, chance {against(e, percent)}"
    out = [f'<line class="axis" x1="10" x2="{width - 10}" y1="10" y2="10"/>']
    out += [] if e.baseline is None else [upright("chance", e.baseline)]
    out += [upright("bound", b.value) for b in bounds]
    out.append(f'<line class="bar" x1="{x(e.low)}" x2="{x(e.high)}" y1="10" y2="10"/>')
    out.append(f'<circle class="dot" cx="{x(e.value)}" cy="10" r="4"/>')
    if labels:
        out.append(f'<text x="10" y="30">{number(left, percent)}</text>')
        out.append(
            f'<text x="{width - 10}" y="30" text-anchor="end">{number(right, percent)}</text>'
        )
    height = 32 if labels else 20
    return Markup(
        f'<svg role="img" aria-label="{escape(words)}" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}">{"".join(out)}</svg>'
    )


def _ends(e: Estimate, bounds: Sequence[Bound]) -> tuple[float, float]:
    """Ends of the axis: 0 to 1 for shares, else from the smallest mark or 0 to the largest."""
    marks = [e.value, e.low, e.high, *([] if e.baseline is None else [e.baseline])]
    shares = all(0 <= m <= 1 for m in marks[1:])
    finite = [m for m in [*marks, *(b.value for b in bounds)] if math.isfinite(m)] or [0.0]
    if shares and all(0 <= m <= 1 for m in finite):
        return 0.0, 1.0
    left, right = min(0.0, *finite), max(finite)
    return left, right if right > left else left + 1.0
