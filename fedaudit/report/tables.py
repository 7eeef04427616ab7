"""HTML parts of the page: tables, lists, and the small drawing that goes with every number."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from html import escape

from fedaudit.report.findings import against, interval, number
from fedaudit.results import Bound, Estimate

Text = Callable[[str], str]
"""Text to HTML: `html.escape`, or a glossary's."""


def definitions(pairs: Mapping[str, str], text: Text = escape) -> str:
    rows = "".join(f"<dt>{text(k)}</dt><dd>{text(v)}</dd>" for k, v in pairs.items())
    return f'<dl class="facts-list">{rows}</dl>' if rows else ""


def listed(items: Sequence[str], text: Text = escape) -> str:
    """Paragraphs as a list; nothing if there is none."""
    return "<ul>" + "".join(f"<li>{text(i)}</li>" for i in items) + "</ul>" if items else ""


def folded(title: str, inside: str, opened: bool = False) -> str:
    """A part that can be closed; `title` and `inside` are HTML."""
    mark = " open" if opened else ""
    return f"<details{mark}><summary>{title}</summary>{inside}</details>" if inside else ""


def table(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    numeric: Sequence[bool],
    *,
    title: str,
    kind: str = "",
    keys: Sequence[str] = (),
    text: Text = escape,
    head_text: Text | None = None,
) -> str:
    """`head` and `title` are text, the cells of `rows` are HTML; `keys`: the client of each row.

    `head_text`: for headings that become buttons, inside which no link may stand.
    """
    heading = head_text or text

    def line(cells: Sequence[str]) -> str:
        marks = [' class="n"' if n else "" for n in numeric]
        return "".join(f"<td{m}>{c}</td>" for c, m in zip(cells, marks, strict=True))

    body = "".join(
        f"<tr{f' data-client={chr(34)}{escape(keys[i])}{chr(34)}' if keys else ''}>{line(r)}</tr>"
        for i, r in enumerate(rows)
    )
    top = "".join(
        f'<th scope="col"{" class=n" if n else ""}>{heading(h)}</th>' if h else "<td></td>"
        for h, n in zip(head, numeric, strict=True)
    )
    marked = f' class="{kind}"' if kind else ""
    return (
        f'<div class="wide" tabindex="0" role="group" aria-label="{escape(title)}">'
        f"<table{marked}><caption>{text(title)}</caption><thead><tr>{top}</tr></thead>"
        f"<tbody>{body}</tbody></table></div>"
    )


def joined(html: str) -> str:
    """A number stays on the line of its unit."""
    return html.replace(" %", "&nbsp;%").replace("n = ", "n&nbsp;=&nbsp;")


def word(value: object) -> str:
    """A setting as text."""
    return " ".join(map(str, value)) or "none" if isinstance(value, list | tuple) else str(value)


def legend() -> str:
    """What the marks of `dot` mean."""

    def key(shape: str, words: str) -> str:
        return f'<span><svg width="26" height="12" aria-hidden="true">{shape}</svg>{words}</span>'

    both = (
        '<line class="bar" x1="1" x2="25" y1="6" y2="6"/><circle class="dot" cx="13" cy="6" r="4"/>'
    )
    return (
        '<p class="legend small">'
        + key(both, "value and interval")
        + key('<line class="chance" x1="13" x2="13" y1="0" y2="12"/>', "chance: no leak at all")
        + key('<line class="bound" x1="13" x2="13" y1="0" y2="12"/>', "bound from theory")
        + "</p>"
    )


def dot(
    e: Estimate,
    *,
    percent: bool = False,
    bounds: Sequence[Bound] = (),
    width: int = 180,
    labels: bool = True,
) -> str:
    """A dot with its interval on an axis, the chance level, and bounds where there are any."""
    shares = e.low >= 0 and e.high <= 1 and (e.baseline is None or 0 <= e.baseline <= 1)
    marks = [e.value, e.low, e.high, *([] if e.baseline is None else [e.baseline])]
    marks += [b.value for b in bounds]
    finite = [m for m in marks if math.isfinite(m)] or [0.0]
    if shares and all(0 <= m <= 1 for m in finite):
        left, right = 0.0, 1.0
    else:
        left, right = min(0.0, *finite), max(finite)
        if right <= left:
            right = left + 1.0
    inner = width - 20

    def x(value: float) -> str:
        inside = min(max(value, left), right)
        return f"{10 + inner * (inside - left) / (right - left):.1f}"

    words = f"{interval(e, percent)}, chance {against(e, percent)}"
    out = [f'<line class="axis" x1="10" x2="{width - 10}" y1="10" y2="10"/>']
    if e.baseline is not None:
        at = x(e.baseline)
        out.append(f'<line class="chance" x1="{at}" x2="{at}" y1="2" y2="18"/>')
    for b in bounds:
        at = x(b.value)
        out.append(f'<line class="bound" x1="{at}" x2="{at}" y1="2" y2="18"/>')
    out.append(f'<line class="bar" x1="{x(e.low)}" x2="{x(e.high)}" y1="10" y2="10"/>')
    out.append(f'<circle class="dot" cx="{x(e.value)}" cy="10" r="4"/>')
    height = 20
    if labels:
        height = 32
        out.append(f'<text x="10" y="30">{number(left, percent)}</text>')
        out.append(
            f'<text x="{width - 10}" y="30" text-anchor="end">{number(right, percent)}</text>'
        )
    return (
        f'<svg role="img" aria-label="{escape(words)}" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}">{"".join(out)}</svg>'
    )
