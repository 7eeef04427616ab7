"""Small SVG figures without a library: a few kilobytes each, readable in light and dark.

`draw` stacks layers (curves, bands, points, cells, guides, outlines) on two axes, linear or
logarithmic; `lines` is the usual figure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Protocol

COLOURS = ("#2f6fdd", "#c2410c", "#15803d", "#7e22ce", "#0e7490", "#a16207", "#be185d", "#475569")

SHADES = ("#440154", "#3b528b", "#21918c", "#5ec962", "#fde725")
"""Colour scale of cells, dark to light (viridis)."""
LEVELS = 16


@dataclass(frozen=True)
class PlotAxis:
    """One axis from `low` to `high`, linear or logarithmic."""

    label: str
    low: float
    high: float
    log: bool = False

    def __post_init__(self) -> None:
        if not self.low < self.high or (self.log and self.low <= 0):
            raise ValueError(f"axis {self.label!r} from {self.low} to {self.high}")

    def place(self, value: float) -> float:
        """Place of a value, 0 to 1; values beyond the ends are at the ends."""
        inside = min(max(value, self.low), self.high)
        if self.log:
            return math.log(inside / self.low) / math.log(self.high / self.low)
        return (inside - self.low) / (self.high - self.low)

    def value(self, place: float) -> float:
        """The value at a place."""
        if self.log:
            return float(self.low * (self.high / self.low) ** place)
        return self.low + place * (self.high - self.low)

    def ticks(self) -> list[float]:
        """A few round numbers."""
        if self.log:
            first, last = math.ceil(math.log10(self.low) - 1e-9), math.log10(self.high) + 1e-9
            powers = [10.0**e for e in range(first, math.floor(last) + 1)]
            if len(powers) > 2:
                return powers[:: -(-len(powers) // 6)]
            fine = [m * 10.0**e for e in range(first - 1, math.floor(last) + 1) for m in (1, 2, 5)]
            return [t for t in fine if self.low <= t * (1 + 1e-9) and t <= self.high * (1 + 1e-9)]
        rough = (self.high - self.low) / 5
        size = 10.0 ** math.floor(math.log10(rough))
        step = next(m * size for m in (1, 2, 2.5, 5, 10) if m * size >= rough * (1 - 1e-9))
        first = math.ceil(self.low / step - 1e-9)
        return [round(n * step, 12) for n in range(first, math.floor(self.high / step + 1e-9) + 1)]

    @classmethod
    def around(
        cls, label: str, values: Sequence[float], *, log: bool = False, zero: bool = False
    ) -> PlotAxis:
        """An axis around all values; with `zero`, also around zero."""
        finite = [v for v in values if math.isfinite(v) and (v > 0 or not log)]
        if not finite:
            return cls(label, 0.1, 1.0, True) if log else cls(label, 0.0, 1.0)
        low, high = min(finite), max(finite)
        if log:
            return cls(label, low / 1.2, high * 1.2, True)
        low, high = (min(low, 0.0), max(high, 0.0)) if zero else (low, high)
        return cls(label, low, high if high > low else low + 1.0)


@dataclass(frozen=True)
class Frame:
    """Two axes and their margins."""

    x: PlotAxis
    y: PlotAxis
    width: int
    height: int
    left: int
    right: int
    top: int
    bottom: int
    values: bool = False  # add the numbers to the marks, for the script of the page

    def px(self, x: float) -> float:
        return self.left + self.x.place(x) * (self.width - self.left - self.right)

    def py(self, y: float) -> float:
        inner = self.height - self.top - self.bottom
        return self.height - self.bottom - self.y.place(y) * inner

    def path(self, points: Sequence[tuple[float, float]]) -> str:
        return " ".join(f"{self.px(x):.1f},{self.py(y):.1f}" for x, y in points)

    def data(self, name: str, points: Sequence[tuple[float, float]]) -> str:
        """Attributes with the values that the page reads out at the points."""
        if not self.values:
            return ""
        numbers = ";".join(f"{x:.4g},{y:.4g}" for x, y in points)
        return f' data-name="{escape(name)}" data-v="{numbers}"'


class Layer(Protocol):
    """Something drawn on a frame; a `name` appears in the legend."""

    @property
    def name(self) -> str: ...

    def svg(self, frame: Frame, colour: str) -> str: ...


@dataclass(frozen=True)
class Line:
    """One series of points (x, value, low, high) with intervals as bars."""

    name: str
    points: tuple[tuple[float, float, float, float], ...]

    def svg(self, frame: Frame, colour: str) -> str:
        out = [Polyline("", tuple((p[0], p[1]) for p in self.points)).svg(frame, colour)]
        for x, value, low, high in self.points:
            at, middle = f"{frame.px(x):.1f}", f"{frame.py(value):.1f}"
            ends = f'y1="{frame.py(low):.1f}" y2="{frame.py(high):.1f}"'
            out.append(
                f'<line x1="{at}" x2="{at}" {ends} stroke="{colour}" stroke-opacity=".6"/>'
                f'<circle cx="{at}" cy="{middle}" r="3.5" fill="{colour}">'
                f"<title>{escape(self.name)}: {value:.3g} [{low:.3g}, {high:.3g}]</title></circle>"
            )
        return "".join(out)


@dataclass(frozen=True)
class Band(Line):
    """One series with intervals as a shaded band, for many points."""

    def svg(self, frame: Frame, colour: str) -> str:
        low = [(p[0], p[2]) for p in self.points]
        high = [(p[0], p[3]) for p in reversed(self.points)]
        shade = f'<polygon points="{frame.path([*low, *high])}" fill="{colour}" opacity=".18"/>'
        return shade + Polyline("", tuple((p[0], p[1]) for p in self.points)).svg(frame, colour)


@dataclass(frozen=True)
class Polyline:
    """A line without intervals."""

    name: str
    points: tuple[tuple[float, float], ...]
    dashed: bool = False

    def svg(self, frame: Frame, colour: str) -> str:
        dash = ' stroke-dasharray="5 4"' if self.dashed else ""
        drawn = [p for p in self.points if all(map(math.isfinite, p))]
        return (
            f'<polyline points="{frame.path(drawn)}" fill="none" stroke="{colour}" '
            f'stroke-width="2" stroke-linejoin="round"{dash}{frame.data(self.name, drawn)}/>'
        )


@dataclass(frozen=True)
class Dots:
    """Many points as one path; at most `most`, evenly chosen."""

    name: str
    points: tuple[tuple[float, float], ...]
    most: int = 600
    size: float = 5.0
    ink: str | None = None

    def svg(self, frame: Frame, colour: str) -> str:
        step = -(-len(self.points) // self.most)
        chosen = [p for p in self.points[:: max(step, 1)] if all(map(math.isfinite, p))]
        path = "".join(f"M{frame.px(x):.1f} {frame.py(y):.1f}h0" for x, y in chosen)
        return (
            f'<path d="{path}" fill="none" stroke="{self.ink or colour}" stroke-width="{self.size}"'
            f' stroke-linecap="round" stroke-opacity=".65"{frame.data(self.name, chosen)}/>'
        )


@dataclass(frozen=True)
class ClientDots:
    """One value with its interval per client.

    `points`: (place, value, low, high), with their `names`. `keys` identify a client in all figures
    and tables of a page.
    """

    points: tuple[tuple[int, float, float, float], ...]
    names: tuple[str, ...]
    keys: tuple[str, ...]
    name: str = ""

    def svg(self, frame: Frame, colour: str) -> str:
        out = []
        whole = zip(self.points, self.names, self.keys, strict=True)
        for (place, value, low, high), name, key in whole:
            at, middle = f"{frame.px(place):.1f}", f"{frame.py(value):.1f}"
            ends = f'y1="{frame.py(low):.1f}" y2="{frame.py(high):.1f}"'
            words = escape(f"{name}: {value:.3g} [{low:.3g}, {high:.3g}]")
            data = f' data-v="{words}"' if frame.values else ""
            out.append(
                f'<g class="who" data-client="{escape(key)}">'
                f'<line x1="{at}" x2="{at}" {ends} stroke="{colour}" stroke-opacity=".6"/>'
                f'<circle cx="{at}" cy="{middle}" r="3.5" fill="{colour}"{data}/></g>'
            )
        return "".join(out)


@dataclass(frozen=True)
class Guide:
    """A dashed line with a label: a level of y, or the diagonal y = x."""

    words: str
    level: float | None = None
    name: str = ""

    def svg(self, frame: Frame, colour: str) -> str:
        low, high = max(frame.x.low, frame.y.low), min(frame.x.high, frame.y.high)
        if self.level is not None:
            ends = [(frame.x.low, self.level), (frame.x.high, self.level)]
        elif low < high:
            ends = [(low, low), (high, high)]
        else:
            return ""
        (x1, y1), (x2, y2) = ((frame.px(x), frame.py(y)) for x, y in ends)
        if self.level is not None:
            words = f'x="{x2:.1f}" y="{y2 - 5:.1f}" text-anchor="end"'
        else:  # below the line, away from curves above it
            words = f'x="{0.4 * x1 + 0.6 * x2 + 8:.1f}" y="{0.4 * y1 + 0.6 * y2 + 14:.1f}"'
        return (
            f'<line x1="{x1:.1f}" x2="{x2:.1f}" y1="{y1:.1f}" y2="{y2:.1f}" stroke="currentColor" '
            f'stroke-dasharray="5 4"/><text {words}>{escape(self.words)}</text>'
        )


@dataclass(frozen=True)
class Outline:
    """A region, given by its corners in order."""

    name: str
    corners: tuple[tuple[float, float], ...]
    ink: str = "#ef4444"

    def svg(self, frame: Frame, colour: str) -> str:
        return (
            f'<polygon points="{frame.path(self.corners)}" fill="{self.ink}" fill-opacity=".35" '
            f'stroke="{self.ink}" stroke-width="1.5"/>'
        )


@dataclass(frozen=True)
class Cells:
    """Values on an even grid as colours, rows from the bottom up; the key is at the right.

    `key` is the scale of colours; values beyond it get the colours of its ends.
    """

    values: tuple[tuple[float, ...], ...]
    key: PlotAxis
    name: str = ""

    def svg(self, frame: Frame, colour: str) -> str:
        """One path per colour level with runs of equal cells joined, for a small file."""
        rows, columns = len(self.values), len(self.values[0])
        wide = (frame.width - frame.left - frame.right) / columns
        high = (frame.height - frame.top - frame.bottom) / rows
        # neighbours share edges to the last digit, so that no gap shows
        xs = [round(frame.left + j * wide, 1) for j in range(columns + 1)]
        ys = [round(frame.height - frame.bottom - i * high, 1) for i in range(rows + 1)]
        runs: dict[int, list[str]] = {}
        for i, row in enumerate(self.values):
            levels = [self._level(v) for v in row]
            start = 0
            for j in range(1, columns + 1):
                if j == columns or levels[j] != levels[start]:
                    runs.setdefault(levels[start], []).append(
                        f"M{xs[start]:g} {ys[i + 1]:g}H{xs[j]:g}V{ys[i]:g}H{xs[start]:g}z"
                    )
                    start = j
        paths = [f'<path fill="{shade(n)}" d="{"".join(d)}"/>' for n, d in sorted(runs.items())]
        drawn = f'<g shape-rendering="crispEdges">{"".join(paths)}</g>'
        return drawn + self._scale(frame)

    def _level(self, value: float) -> int:
        return min(int(self.key.place(value) * LEVELS), LEVELS - 1)

    def _scale(self, frame: Frame) -> str:
        """The key: a column of colours with ticks."""
        x, foot = frame.width - frame.right + 12, frame.height - frame.bottom
        tall = (foot - frame.top) / LEVELS
        out = [
            f'<rect x="{x}" y="{foot - (n + 1) * tall:.1f}" width="10" height="{tall + 0.5:.1f}" '
            f'fill="{shade(n)}"/>'
            for n in range(LEVELS)
        ]
        for t in self.key.ticks():
            y = foot - self.key.place(t) * (foot - frame.top)
            out.append(f'<text x="{x + 14}" y="{y + 4:.1f}">{t:g}</text>')
        out.append(f'<text x="{x}" y="{frame.top - 6}">{escape(self.key.label)}</text>')
        return "".join(out)


def shade(level: int) -> str:
    """The colour of a level, 0 to LEVELS - 1."""
    at = level / (LEVELS - 1) * (len(SHADES) - 1)
    i = min(int(at), len(SHADES) - 2)
    parts = [
        round(a + (at - i) * (b - a))
        for a, b in zip(bytes.fromhex(SHADES[i][1:]), bytes.fromhex(SHADES[i + 1][1:]), strict=True)
    ]
    return "#" + bytes(parts).hex()


def draw(
    x: PlotAxis,
    y: PlotAxis,
    layers: Sequence[Layer],
    *,
    width: int = 640,
    height: int = 360,
    inline: bool = False,
    marks: Sequence[float] | None = None,
) -> str:
    """Draw layers over one another; named layers get a colour and an entry in the legend.

    `inline`: for use inside an HTML page, without XML namespace. `marks`: ticks of x.
    """
    named = [layer for layer in layers if layer.name]
    what = y.label or ", ".join(layer.name for layer in named)
    columns = 3 if width >= 560 else 2
    keyed = any(isinstance(layer, Cells) for layer in layers)
    top = 16 + 18 * (-(-len(named) // columns)) + (14 if keyed else 0)
    frame = Frame(x, y, width, height, 70, 64 if keyed else 16, top, 48, inline)
    left, right, bottom = frame.left, frame.right, frame.bottom
    space = 'class="plot" ' if inline else 'xmlns="http://www.w3.org/2000/svg" '
    if inline:
        space += f'data-x="{escape(x.label)}" data-y="{escape(y.label)}" '
    out = [
        f'<svg {space}viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{escape(what)} over {escape(x.label)}" font-family="system-ui,sans-serif" '
        'font-size="12" fill="currentColor">'
    ]
    for t in y.ticks():
        at = frame.py(t)
        out.append(
            f'<line x1="{left}" x2="{width - right}" y1="{at:.1f}" y2="{at:.1f}" '
            'stroke="currentColor" stroke-opacity=".15"/>'
            f'<text x="{left - 8}" y="{at + 4:.1f}" text-anchor="end">{t:.3g}</text>'
        )
    for t in x.ticks() if marks is None else marks:
        out.append(
            f'<text x="{frame.px(t):.1f}" y="{height - bottom + 18}" text-anchor="middle">'
            f"{t:.3g}</text>"
        )
    out.append(
        f'<text x="{(left + width - right) / 2:.0f}" y="{height - 10}" text-anchor="middle">'
        f"{escape(x.label)}</text>"
        f'<text transform="translate(12 {(frame.top + height - bottom) / 2:.0f}) rotate(-90)" '
        f'text-anchor="middle">{escape(y.label)}</text>'
    )
    legend: list[str] = []
    for layer in layers:
        number = len(legend)
        colour = getattr(layer, "ink", None) or COLOURS[number % len(COLOURS)]
        out.append(layer.svg(frame, colour))
        if layer.name:
            column, row = number % columns, number // columns
            at = left + column * (width - left - right) / columns
            legend.append(
                f'<rect x="{at:.0f}" y="{8 + 18 * row}" width="10" height="10" fill="{colour}" '
                'stroke="currentColor" stroke-opacity=".4"/>'
                f'<text x="{at + 15:.0f}" y="{17 + 18 * row}">{escape(layer.name)}</text>'
            )
    return "".join([*out, *legend]) + "</svg>\n"


def lines(
    series: Sequence[Line],
    *,
    x_label: str,
    y_label: str,
    baseline: float | None = None,
    beside: Sequence[Polyline] = (),
    width: int = 640,
    height: int = 360,
) -> str:
    """Values with intervals over x, one line per series, chance as a dashed line.

    `beside`: curves without intervals, such as a chance level that depends on x.
    """
    points = [p for s in series for p in s.points]
    if not points:
        raise ValueError("a figure needs at least one point")
    xs = sorted({p[0] for p in points})
    ys = [v for p in points for v in p[1:]] + ([baseline] if baseline is not None else [])
    ys += [y for curve in beside for _, y in curve.points]
    layers: list[Layer] = [Guide("chance", baseline)] if baseline is not None else []
    return draw(
        PlotAxis.around(x_label, xs),
        PlotAxis.around(y_label, ys, zero=True),
        [*layers, *series, *beside],
        width=width,
        height=height,
        marks=xs if len(xs) <= 12 else None,
    )
