"""Small SVG figures: no library, no script, a few kilobytes each, readable in light and dark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

COLOURS = ("#2f6fdd", "#c2410c", "#15803d", "#7e22ce", "#0e7490", "#a16207", "#be185d", "#475569")


@dataclass(frozen=True)
class Line:
    """One series: points (x, value, low, high)."""

    name: str
    points: tuple[tuple[float, float, float, float], ...]


def lines(
    series: Sequence[Line],
    *,
    x_label: str,
    y_label: str,
    baseline: float | None = None,
    width: int = 640,
    height: int = 360,
) -> str:
    """Values with intervals over x, one line per series, chance as a dashed line."""
    left, right, top, bottom = 64, 16, 16 + 18 * ((len(series) + 2) // 3), 48
    points = [p for s in series for p in s.points]
    if not points:
        raise ValueError("a figure needs points")
    xs = [p[0] for p in points]
    ys = [v for p in points for v in p[1:]] + ([baseline] if baseline is not None else [])
    x0, x1 = min(xs), max(xs)
    y0, y1 = min(0.0, *ys), max(ys)
    x1, y1 = (x1 if x1 > x0 else x0 + 1.0), (y1 if y1 > y0 else y0 + 1.0)

    def px(x: float) -> float:
        return left + (x - x0) / (x1 - x0) * (width - left - right)

    def py(y: float) -> float:
        return height - bottom - (y - y0) / (y1 - y0) * (height - top - bottom)

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{escape(y_label)} over {escape(x_label)}" font-family="system-ui,sans-serif" '
        'font-size="12" fill="currentColor">'
    ]
    for i in range(5):
        y = y0 + (y1 - y0) * i / 4
        out.append(
            f'<line x1="{left}" x2="{width - right}" y1="{py(y):.1f}" y2="{py(y):.1f}" '
            'stroke="currentColor" stroke-opacity=".15"/>'
            f'<text x="{left - 8}" y="{py(y) + 4:.1f}" text-anchor="end">{y:.3g}</text>'
        )
    for x in sorted(set(xs)):
        out.append(
            f'<text x="{px(x):.1f}" y="{height - bottom + 18}" text-anchor="middle">{x:g}</text>'
        )
    out.append(
        f'<text x="{(left + width - right) / 2:.0f}" y="{height - 10}" text-anchor="middle">'
        f"{escape(x_label)}</text>"
        f'<text transform="translate(14 {(top + height - bottom) / 2:.0f}) rotate(-90)" '
        f'text-anchor="middle">{escape(y_label)}</text>'
    )
    if baseline is not None:
        out.append(
            f'<line x1="{left}" x2="{width - right}" y1="{py(baseline):.1f}" '
            f'y2="{py(baseline):.1f}" stroke="currentColor" stroke-dasharray="5 4"/>'
            f'<text x="{width - right}" y="{py(baseline) - 5:.1f}" text-anchor="end">chance</text>'
        )
    for i, s in enumerate(series):
        colour = COLOURS[i % len(COLOURS)]
        path = " ".join(f"{px(p[0]):.1f},{py(p[1]):.1f}" for p in s.points)
        out.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for x, value, low, high in s.points:
            out.append(
                f'<line x1="{px(x):.1f}" x2="{px(x):.1f}" y1="{py(low):.1f}" y2="{py(high):.1f}" '
                f'stroke="{colour}" stroke-opacity=".6"/>'
                f'<circle cx="{px(x):.1f}" cy="{py(value):.1f}" r="3.5" fill="{colour}">'
                f"<title>{escape(s.name)}: {value:.3g} [{low:.3g}, {high:.3g}]</title></circle>"
            )
        column, row = i % 3, i // 3
        at = left + column * (width - left - right) / 3
        out.append(
            f'<rect x="{at:.0f}" y="{8 + 18 * row}" width="10" height="10" fill="{colour}"/>'
            f'<text x="{at + 15:.0f}" y="{17 + 18 * row}">{escape(s.name)}</text>'
        )
    return "".join(out) + "</svg>\n"
