"""Figures of the curves of a result: as its audit declares (`AuditFacts.drawings`), else lines.

A curve is a table of equally long columns. The first column is the x axis of the lines.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from fedaudit.audits import facts_of
from fedaudit.audits.facts import CurveDrawing, FigureKind
from fedaudit.reporting import plots
from fedaudit.stats.intervals import wilson

Columns = Mapping[str, Sequence[float]]

NORMAL, WIDE = (416, 280), (608, 300)
"""Sizes of a figure, for rows of three and of two."""
Size = tuple[int, int]
CANCELLED = 0.3
"""An update counts as cancelled if the sum is shorter than this share of it."""


REFERENCES = ("chance", "possible")
"""Columns that are always dashed: others are compared with them."""


def lines(columns: Columns, drawing: CurveDrawing, size: Size) -> str:
    """Plot all columns over the first, those in `drawing.dashed` and REFERENCES dashed.

    Columns "a", "a low" and "a high" are one line with a band.
    """
    first, *others = columns
    xs = columns[first]
    if len(xs) < 2 or not all(map(math.isfinite, xs)):
        return ""
    values = [v for name in others for v in columns[name]]
    banded = {n for n in others if {f"{n} low", f"{n} high"} <= {*others}}
    ends = {f"{n} {end}" for n in banded for end in ("low", "high")}
    others = [name for name in others if name not in ends]
    drawn: list[plots.Layer] = []
    for name in others:
        title = name.replace("_", " ") if len(others) > 1 else ""
        if name in banded:
            of = (columns[n] for n in (first, name, f"{name} low", f"{name} high"))
            points = tuple(r for r in zip(*of, strict=True) if all(map(math.isfinite, r)))
            drawn.append(plots.Band(title, points))
            continue
        points_of = tuple(zip(xs, columns[name], strict=True))
        dash = name in drawing.dashed or name in REFERENCES
        drawn.append(plots.Polyline(title, points_of, dashed=dash))
    if others[1:] == ["low", "high"]:
        rows = zip(*(columns[name] for name in (first, *others)), strict=True)
        drawn = [plots.Band("", tuple(r for r in rows if all(map(math.isfinite, r))))]
        others = others[:1]
    return plots.draw(
        plots.PlotAxis.around(first, xs),
        plots.PlotAxis.around(others[0] if len(others) == 1 else "", values, zero=True),
        drawn,
        width=size[0],
        height=size[1],
        inline=True,
        # ticks at whole rounds only
        marks=xs if len(xs) <= 12 and all(float(x).is_integer() for x in xs) else None,
    )


def roc(columns: Columns, drawing: CurveDrawing, size: Size) -> str:
    """True over false positives, both logarithmic: few false alarms matter most.

    Further columns are ceilings, dashed.
    """
    x, y = drawing.axes
    xs, ys = columns[x], columns[y]
    low = min((v for v in (*xs, *ys) if v > 0), default=0.1) / 1.2
    return plots.draw(
        plots.PlotAxis(x, low, 1.0, log=True),
        plots.PlotAxis(y, low, 1.0, log=True),
        [
            plots.Guide("chance"),
            plots.Polyline("", tuple(zip(xs, ys, strict=True))),
            *(
                plots.Polyline(name, tuple(zip(xs, columns[name], strict=True)), dashed=True)
                for name in columns
                if name not in drawing.axes
            ),
        ],
        width=size[0],
        height=size[1],
        inline=True,
    )


def against_bound(columns: Columns, drawing: CurveDrawing, size: Size) -> str:
    """Remainders against their bounds, both logarithmic; a dot above the line breaks its bound."""
    bound, remainder = drawing.axes
    xs, ys = columns[bound], columns[remainder]
    both = [*xs, *ys]
    return plots.draw(
        plots.PlotAxis.around(bound, both, log=True),
        plots.PlotAxis.around(remainder, both, log=True),
        [plots.Guide("equal"), plots.Dots("", tuple(zip(xs, ys, strict=True)))],
        width=size[0],
        height=size[1],
        inline=True,
    )


def violations(columns: Columns, drawing: CurveDrawing) -> str:
    """Number of remainders above their bound by more than their numerical error."""
    bound, remainder = drawing.axes
    error = columns.get(drawing.error, [0.0] * len(columns[remainder]))
    rows = list(zip(columns[remainder], columns[bound], error, strict=True))
    over = sum(m > b + e for m, b, e in rows)
    rate = wilson(over, len(rows))
    return (
        f"{over} of {len(rows)} remainders lie above their bound: {100 * rate.value:.1f} % "
        f"[{100 * rate.low:.1f}, {100 * rate.high:.1f}] (Wilson, 95 %)."
    )


def survival_map(
    x: plots.PlotAxis, y: plots.PlotAxis, grid: tuple[int, int] = (72, 48)
) -> plots.Cells:
    """SUR = 1 / sqrt(1 + r^2 + 2 r lambda) over alignment x and magnitude ratio y.

    [TwoStage] Eq. (9)
    """
    across, up = grid

    def ratio(lam: float, r: float) -> float:
        return 1.0 / math.sqrt(max((1.0 - r) ** 2 + 2.0 * r * (1.0 + lam), 1e-12))

    values = tuple(
        tuple(ratio(x.value((j + 0.5) / across), y.value((i + 0.5) / up)) for j in range(across))
        for i in range(up)
    )
    return plots.Cells(values, plots.PlotAxis("SUR", 0.03, 10.0, log=True))


def cancellation(within: float = CANCELLED) -> plots.Outline:
    """Where |dW| < within |u|: a lens at lambda = -1, r = 1. [TwoStage] Section 6.1.1"""
    rs = [1.0 - within + 2.0 * within * i / 40 for i in range(41)]
    edge = [(max(-1.0, (within**2 - 1.0 - r * r) / (2.0 * r)), r) for r in rs]
    return plots.Outline(f"|dW| < {within:g} |u|", (*edge, (-1.0, rs[-1]), (-1.0, rs[0])))


def over_survival(columns: Columns, drawing: CurveDrawing, size: Size) -> str:
    """Updates on the map of SUR."""
    lam, r = (columns[name] for name in drawing.axes[:2])
    x = plots.PlotAxis("alignment lambda", -1.0, 1.0)
    y = plots.PlotAxis("r = |B| / |u|", min(0.2, *r), max(10.0, *r) * 1.05, log=True)
    dots = plots.Dots("updates", tuple(zip(lam, r, strict=True)), ink="#ffffff")
    layers: list[plots.Layer] = [survival_map(x, y), cancellation(), dots]
    return plots.draw(x, y, layers, width=size[0], height=size[1], inline=True)


def cancelled(columns: Columns, drawing: CurveDrawing) -> str:
    ratios = columns[drawing.axes[2]]
    lost = sum(v > 1.0 / CANCELLED for v in ratios)
    more = " SUR rises for them, but they are not easier to find." if lost else ""
    return f"The other updates cancel {lost} of {len(ratios)} updates.{more}"


def against_equal(columns: Columns, drawing: CurveDrawing, size: Size) -> str:
    """Dots of y over x on one scale, as J against its linear proxy. [TwoStage] Eq. (23)"""
    x, y = drawing.axes
    xs, ys = columns[x], columns[y]
    both = [*xs, *ys]
    return plots.draw(
        plots.PlotAxis.around(x, both, zero=True),
        plots.PlotAxis.around(y, both, zero=True),
        [plots.Guide("equal"), plots.Dots("", tuple(zip(xs, ys, strict=True)))],
        width=size[0],
        height=size[1],
        inline=True,
    )


def not_drawn(columns: Columns, drawing: CurveDrawing, size: Size) -> str:
    """No figure: the table is for computations."""
    return ""


def declared_words(columns: Columns, drawing: CurveDrawing) -> str:
    return drawing.words


@dataclass(frozen=True)
class Figure:
    """The functions that draw a kind of figure and write the text below."""

    draw: Callable[[Columns, CurveDrawing, Size], str]
    words: Callable[[Columns, CurveDrawing], str] = declared_words


FIGURES: dict[FigureKind, Figure] = {
    "lines": Figure(lines),
    "roc": Figure(roc),
    "equality": Figure(against_equal),
    "bound": Figure(against_bound, violations),
    "survival": Figure(over_survival, cancelled),
    "none": Figure(not_drawn),
}


@dataclass(frozen=True)
class ReportFigure:
    """A figure with its title and the text below; where it would show nothing, the text alone."""

    title: str
    svg: Markup
    words: str = ""


def figure(
    audit: str,
    curve: str,
    columns: Columns,
    *,
    title: str = "",
    size: Size = NORMAL,
    always: bool = False,
) -> ReportFigure | None:
    """Draw one curve of an audit's result; None if there is nothing to draw.

    The title is the curve's name unless given. A figure that would show nothing is a sentence,
    unless it is asked for (`always`).
    """
    drawing = facts_of(audit).drawing(curve)
    if drawing is None or not {*drawing.columns} <= {*columns}:
        drawing = CurveDrawing(curve=curve, kind="lines")
    whole = _complete_rows(columns, drawing.columns)
    if not whole or not len(next(iter(whole.values()))):
        return None
    kind = FIGURES[drawing.kind]
    title = title or curve
    title = (title[:1].upper() + title[1:]).replace("_", " ")
    if (plain := shows_nothing(whole, drawing)) and not always:
        return ReportFigure(title, Markup(), plain)
    drawn = kind.draw(whole, drawing, size)
    return ReportFigure(title, Markup(drawn), kind.words(whole, drawing)) if drawn else None


def shows_nothing(columns: Columns, drawing: CurveDrawing) -> str:
    """What a figure without any shape would show, in a sentence: a ROC that is one corner, lines
    that are all level. Empty for any other figure."""
    if drawing.kind == "roc":
        x, y = (columns[name] for name in drawing.axes)
        perfect = any(a <= 0 and b >= 1 for a, b in zip(x, y, strict=True))
        return "Every true case is found without a false alarm." if perfect else ""
    first, *others = columns
    level = all(len(set(columns[name])) == 1 for name in others)
    if drawing.kind != "lines" or not others or not level or len(columns[first]) < 2:
        return ""
    values = [f"{name.replace('_', ' ')} {columns[name][0]:.3g}" for name in others]
    return f"The same at every {first}: {', '.join(values)}."


def client_dots(
    rows: Sequence[tuple[int, str, float, float, float]],
    *,
    group: str,
    label: str,
    chance: float | None,
    total: int,
    beside: Sequence[float] = (),
    size: Size = NORMAL,
) -> str:
    """Values per client: (place, name, value, low, high) of `total` places.

    `group`: the federation; a place in it is one client. `beside`: values of the figures in the
    same row, which share the scale.
    """
    values = [v for row in rows for v in row[2:] if math.isfinite(v)]
    if not values:
        return ""
    finite = [row for row in rows if all(map(math.isfinite, row[2:]))]
    layers: list[plots.Layer] = [] if chance is None else [plots.Guide("chance", chance)]
    layers.append(
        plots.ClientDots(
            tuple((place, v, low, high) for place, _, v, low, high in finite),
            tuple(row[1] for row in finite),
            tuple(f"{group}-{row[0]}" for row in finite),
        )
    )
    around = [*values, *(v for v in beside if math.isfinite(v))]
    around += [] if chance is None else [chance]
    every = max(1, -(-total // 10))
    return plots.draw(
        plots.PlotAxis("client", 0.5, max(total, 1) + 0.5),
        plots.PlotAxis.around(label, around, zero=True),
        layers,
        width=size[0],
        height=size[1],
        inline=True,
        marks=list(range(1, total + 1, every)),
    )


def _complete_rows(columns: Columns, needed: Sequence[str]) -> dict[str, list[float]]:
    """The rows with finite values in all needed columns."""
    rows = [
        row
        for row in zip(*columns.values(), strict=True)
        if all(math.isfinite(v) for name, v in zip(columns, row, strict=True) if name in needed)
    ]
    return {name: [row[i] for row in rows] for i, name in enumerate(columns)}
