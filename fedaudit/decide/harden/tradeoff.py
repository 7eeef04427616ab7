"""Trade-off figures: one risk against the cost of protection, with both intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape

from fedaudit.decide.gate.outcome import LimitReading
from fedaudit.decide.harden.outcome import Hardened, Point
from fedaudit.reporting.findings import number
from fedaudit.reporting.plots import Frame, Guide, Layer, PlotAxis, draw
from fedaudit.results import Estimate


def in_points(metric: str, value: float) -> str:
    """A number in the unit of its limit: a loss of accuracy in percentage points."""
    return f"{round(100 * value, 1) + 0.0:g} points" if metric == "accuracy_loss" else number(value)


@dataclass(frozen=True)
class Crosses:
    """Points with an interval on both axes, joined in order."""

    name: str
    points: tuple[tuple[Estimate, Estimate, str], ...]

    def svg(self, frame: Frame, colour: str) -> str:
        path = frame.path([(x.value, y.value) for x, y, _ in self.points])
        out = [
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5" '
            'stroke-opacity=".5"/>'
        ]
        for x, y, label in self.points:
            at, up = frame.px(x.value), frame.py(y.value)
            words = escape(f"{label}: {y.value:.3g} [{y.low:.3g}, {y.high:.3g}]")
            out.append(
                f'<path d="M{at:.1f} {frame.py(y.low):.1f}V{frame.py(y.high):.1f}'
                f'M{frame.px(x.low):.1f} {up:.1f}H{frame.px(x.high):.1f}" fill="none" '
                f'stroke="{colour}" stroke-opacity=".6"/>'
                f'<circle cx="{at:.1f}" cy="{up:.1f}" r="3.5" fill="{colour}">'
                f"<title>{words}</title></circle>"
            )
        return "".join(out)


@dataclass(frozen=True)
class Ring:
    """A ring around the chosen point."""

    at: tuple[float, float]
    name: str
    ink: str = "#d97706"

    def svg(self, frame: Frame, colour: str) -> str:
        x, y = frame.px(self.at[0]), frame.py(self.at[1])
        return (
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="8" fill="none" stroke="{self.ink}" '
            'stroke-width="2.5"/>'
        )


@dataclass(frozen=True)
class VerticalLimit:
    """A limit on the cost: a dashed vertical line."""

    level: float
    words: str
    name: str = ""

    def svg(self, frame: Frame, colour: str) -> str:
        x, top, foot = frame.px(self.level), frame.top, frame.height - frame.bottom
        return (
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{foot}" stroke="currentColor" '
            f'stroke-dasharray="2 3"/><text x="{x + 4:.1f}" y="{foot - 6}">'
            f"{escape(self.words)}</text>"
        )


def figure_names(found: Hardened) -> dict[str, str]:
    """File name -> risk in the figure."""
    drawn = [
        m for m in found.metrics if any(p.cost is not None and m in p.risks for p in found.points)
    ]
    return {f"tradeoff{'' if n == 0 else f'-{n + 1}'}.svg": m for n, m in enumerate(drawn)}


def figure(found: Hardened, metric: str) -> str:
    """One risk against cost, a curve per series, limit and chance as lines."""
    shown = [p for p in found.points if p.cost is not None and metric in p.risks]
    if not shown:
        raise ValueError(f"no measured point has {metric}")
    series: dict[str, list[Point]] = {}
    for p in shown:
        series.setdefault(p.series, []).append(p)
    pairs = [(p.cost, p.risks[metric]) for p in shown]
    limits = sorted({(r.side, r.limit) for p in shown for r in _readings(p, metric)})
    levels = [level for _, level in limits if level is not None]
    chance = next((e.baseline for _, e in pairs if e.baseline is not None), None)
    scale = 100.0 if found.measure == "accuracy" else 1.0
    layers: list[Layer] = [
        Guide(f"{side} {number(level)}", level) for side, level in limits if level is not None
    ]
    if chance is not None:
        layers.append(Guide("chance", chance))
    for name, points in series.items():
        ordered = sorted(points, key=lambda p: p.level)
        layers.append(
            Crosses(
                name,
                tuple((_times(p.cost, scale), p.risks[metric], p.label) for p in ordered if p.cost),
            )
        )
    fresh = found.confirmed
    if fresh is not None and fresh.cost is not None and metric in fresh.risks:
        again = (_times(fresh.cost, scale), fresh.risks[metric], f"{fresh.label}, on fresh seeds")
        layers.append(Crosses("chosen, on fresh seeds", (again,)))
        pairs.append((fresh.cost, fresh.risks[metric]))
    lost = sorted({r.limit for p in shown for r in _readings(p, "accuracy_loss") if r.limit})
    if found.measure == "accuracy":
        layers += [
            VerticalLimit(scale * level, f"at most {in_points('accuracy_loss', level)}")
            for level in lost
        ]
    ring, words = found.chosen, "chosen" if fresh is not None else "best so far, not confirmed"
    if ring is None or (fresh is None and found.rejected):
        ring, words = found.nearest, "nearest, breaks limits"
    if ring is not None and ring.cost is not None and metric in ring.risks:
        layers.append(Ring((scale * ring.cost.value, ring.risks[metric].value), words))
    xs = [scale * v for x, _ in pairs if x is not None for v in (x.low, x.high)]
    xs += [max(xs) + 0.04 * (max(xs) - min(*xs, 0.0))]  # room beyond the last interval
    ys = [v for _, y in pairs for v in (y.low, y.high)] + levels
    ys += [chance] if chance is not None else []
    what = f"held-out {found.measure} gained"
    if found.measure == "accuracy":
        what = "points of held-out accuracy lost"
    risk = metric.replace(".", ": ", 1).replace("_", " ")
    return draw(PlotAxis.around(what, xs, zero=True), PlotAxis.around(risk, ys, zero=True), layers)


def _times(e: Estimate | None, scale: float) -> Estimate:
    assert e is not None
    return replace(e, value=scale * e.value, low=scale * e.low, high=scale * e.high)


def _readings(point: Point, metric: str) -> Sequence[LimitReading]:
    return [r for c in point.checks if c.metric == metric for r in c.readings if not r.who]
