"""What a hardening says: the measured protections, the choice, what cannot be had together.

`Point` is one protection as it was measured, `Hardened` the whole search; from them a terminal
table, Markdown, CSV, JSON and one figure per risk with both intervals.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from typing import TYPE_CHECKING, Any

from fedaudit.report.findings import interval, number
from fedaudit.report.gate import Check, Reading, statement
from fedaudit.report.plots import Axis, Frame, Guide, Layer, draw
from fedaudit.results import Estimate

if TYPE_CHECKING:
    from rich.console import Console

KEPT = ("passed", "allowed")


@dataclass(frozen=True, kw_only=True)
class Point:
    """One protection: what it is, whom it trusts, what it costs, how the limits fared.

    `cost` is what it takes away from the held-out `measure`; `risks` maps a metric to what was
    estimated; `epsilon` is the largest that was promised to a client, `promise` the unit and delta
    that it holds for. `failed` says why it could not be run, or is empty.
    """

    label: str
    series: str
    level: float = 0.0
    noise: str = ""
    trusted: tuple[str, ...] = ()
    checks: tuple[Check, ...] = ()
    cost: Estimate | None = None
    utility: Estimate | None = None
    risks: Mapping[str, Estimate] = field(default_factory=dict)
    epsilon: float | None = None
    promise: str = ""
    runs: int = 0
    failed: str = ""
    folders: tuple[str, ...] = ()

    @property
    def met(self) -> bool:
        return not self.failed and bool(self.checks) and not self.broken

    @property
    def broken(self) -> tuple[Check, ...]:
        return tuple(c for c in self.checks if c.status not in KEPT)

    @property
    def who(self) -> str:
        return ", ".join(self.trusted) or "nobody but the clients"

    @property
    def excess(self) -> float:
        """How far beyond its limits, in parts of each; infinite where a number is missing."""
        return sum(
            max((_part(r) for r in check.readings if not r.kept), default=math.inf)
            for check in self.broken
        )


def _part(r: Reading) -> float:
    if r.bound is None or r.limit is None:
        return math.inf
    return abs(r.bound - r.limit) / max(abs(r.limit), 0.01)


@dataclass(frozen=True, kw_only=True)
class Hardened:
    """A search and its end.

    `chosen` as it was found, `confirmed` the same on seeds that the search had not seen;
    `rejected` were found and did not hold there. `nearest` breaks least where nothing was
    confirmed. `conflicts` are the smallest sets of limits that nothing measured keeps together;
    `instead` maps each of their limits to what keeps all others and breaks this one least.
    `left_out` says what was not tried, and why; `stopped` why the search ended early. `searched`
    counts what it chose from: points for the curve alone come on top.
    """

    path: str
    limits: tuple[tuple[str, str], ...]
    points: tuple[Point, ...]
    measure: str = "accuracy"
    chosen: Point | None = None
    confirmed: Point | None = None
    rejected: tuple[Point, ...] = ()
    nearest: Point | None = None
    conflicts: tuple[tuple[str, ...], ...] = ()
    instead: Mapping[str, Point] = field(default_factory=dict)
    left_out: tuple[tuple[str, str], ...] = ()
    stopped: str = ""
    seeds: int = 1
    searched: int = 0
    reused: int = 0
    config: str = ""
    policy: str = ""

    @property
    def succeeded(self) -> bool:
        return self.confirmed is not None


# -- words ---------------------------------------------------------------------------------------


def summary(found: Hardened) -> list[str]:
    """The outcome in a few sentences."""
    out = []
    if found.confirmed is not None:
        point = found.confirmed
        out.append(
            f"{point.label} keeps every limit at the least cost that was found: "
            f"{cost_text(point, found.measure)}. It trusts {point.who}."
        )
        out.append(_honesty(found))
        out += [f"{c.title}: {statement(c)}" for c in point.checks]
        if found.config:
            out.append(f"written: {found.config}; as limits for the gate: {found.policy}")
    elif found.chosen is not None and not found.rejected:
        out.append(
            f"{found.chosen.label} kept every limit in the search, and the time was up before it "
            "could be measured on fresh seeds: its figures are those of the best of "
            f"{found.searched} and flatter it." + (f" Written: {found.config}" * bool(found.config))
        )
    else:
        out += _cannot(found)
    out += [
        f"{p.label} kept every limit in the search, but not on fresh seeds: "
        + "; ".join(f"{c.title}: {statement(c)}" for c in p.broken)
        for p in found.rejected
    ]
    if found.stopped:
        out.append(found.stopped)
    if found.seeds == 2 and not found.succeeded:
        out.append(
            "An interval over two seeds is very wide (Student's t with one degree of freedom): "
            "use one seed, whose runs have intervals of their own, or at least three."
        )
    return out


def _honesty(found: Hardened) -> str:
    tries = len(found.rejected) + 1
    return (
        f"The best of {found.searched} measured protections looks better than it is. These "
        f"figures are from {_seeds(found.seeds)} that the search had not seen"
        + (f" (try {tries})." if tries > 1 else ".")
    )


def _seeds(count: int) -> str:
    return "one fresh seed" if count == 1 else f"{count} fresh seeds"


def _cannot(found: Hardened) -> list[str]:
    rules = dict(found.limits)
    out = []
    for names in found.conflicts:
        listed = " and ".join(f"{n} ({rules[n]})" if n in rules else n for n in names)
        out.append(
            f"nothing that was measured keeps {listed}" + (" together." if len(names) > 1 else ".")
        )
    if not found.points:
        return ["nothing could be measured in the time that was given."]
    if not found.conflicts and not found.rejected:
        out.append("nothing that was measured keeps all limits.")
    if found.nearest is not None:
        near = found.nearest
        out.append(
            f"nearest: {near.label}, {cost_text(near, found.measure)}. It trusts {near.who}. It "
            "would take: " + "; ".join(_relaxed(c) for c in near.broken)
        )
        if found.config:
            out.append(f"written: {found.config}")
    for name, point in found.instead.items():
        if found.nearest is None or point.label != found.nearest.label:
            out.append(
                f"if {name} may give way: {point.label}, {cost_text(point, found.measure)}: "
                + "; ".join(_relaxed(c) for c in point.broken)
            )
    return out


def _relaxed(check: Check) -> str:
    """The limit that this measurement would have kept."""
    known = [r for r in check.readings if r.bound is not None and not r.kept]
    if not known:
        lacking = {r.missing for r in check.readings}
        same = len(lacking) == 1 and check.readings[0].who
        why = f"every client: {lacking.pop()}" if same else statement(check)
        return f"{check.title} to be dropped ({why})"
    worst = max(known, key=lambda r: r.distance)
    assert worst.bound is not None
    assert worst.limit is not None
    bound, most = (_in_points(check.metric, v) for v in (worst.bound, worst.limit))
    text = f"{check.title} {worst.side} {bound} instead of {most}"
    value = None if worst.estimate is None else worst.estimate.value
    if value is None or replace(worst, bound=value).kept is False:
        return text
    shown = _in_points(check.metric, value)
    return f"{text} (its value {shown} keeps the limit, its interval does not)"


def _in_points(metric: str, value: float) -> str:
    """A number as its limit was written: a loss of accuracy in points of a hundred."""
    return f"{round(100 * value, 1) + 0.0:g} points" if metric == "accuracy_loss" else number(value)


def cost_text(point: Point, measure: str) -> str:
    if point.cost is None:
        return f"cost in {measure} unknown"
    if measure == "accuracy":
        e = point.cost
        ends = "exact" if e.confidence >= 1 else f"at {100 * e.confidence:g} %"
        value, _, within = _points(e).partition(" ")
        return f"{value} points of accuracy lost {within}, {ends}"
    return f"{measure} higher by {interval(point.cost)}"


def _points(e: Estimate) -> str:
    """A difference of shares in points of a hundred: value [low, high]."""
    value, low, high = (f"{round(100 * x, 1) + 0.0:.1f}" for x in (e.value, e.low, e.high))
    return f"{value} [{low}, {high}]"


def _mark(point: Point, found: Hardened) -> str:
    if point.failed:
        return "failed"
    if found.chosen is not None and point.label == found.chosen.label:
        return "chosen" if found.confirmed is not None else "best so far"
    if found.nearest is not None and point.label == found.nearest.label:
        return "nearest"
    return "kept" if point.met else "broken"


def _row(point: Point, found: Hardened) -> list[str]:
    cost = ""
    if point.failed:
        cost = point.failed.splitlines()[0]
    elif point.cost is not None:
        cost = _points(point.cost) if found.measure == "accuracy" else _short(point.cost)
    return [
        _mark(point, found),
        point.label,
        cost,
        *(_short(point.risks[m]) if m in point.risks else "" for m in metrics(found)),
        "" if point.epsilon is None else f"{number(point.epsilon)} {point.promise}".rstrip(),
        "" if point.failed else point.who,
        ", ".join(c.title for c in point.broken),
    ]


def _short(e: Estimate) -> str:
    return f"{number(e.value)} [{number(e.low)}, {number(e.high)}]"


def _head(found: Hardened) -> list[str]:
    cost = "points of accuracy lost" if found.measure == "accuracy" else f"{found.measure} gained"
    risks = [f"{m.replace('.', ' ').replace('_', ' ')}{_chance(found, m)}" for m in metrics(found)]
    return ["", "protection", cost, *risks, "largest epsilon", "trusts", "breaks"]


def _chance(found: Hardened, metric: str) -> str:
    known = {number(p.risks[metric].baseline or 0.0) for p in found.points if metric in p.risks}
    none = any(p.risks[metric].baseline is None for p in found.points if metric in p.risks)
    return "" if none or len(known) != 1 else f" (chance {known.pop()})"


def metrics(found: Hardened) -> list[str]:
    """The risks that were estimated."""
    return list(dict.fromkeys(m for p in found.points for m in p.risks))


def show(console: Console, found: Hardened) -> None:
    """Table and outcome in a terminal."""
    from rich.table import Table
    from rich.text import Text

    table = Table(show_edge=False, pad_edge=False)
    for name in _head(found):
        table.add_column(name, overflow="fold")
    for point in found.points:
        style = {"chosen": "bold green", "broken": "dim"}.get(_mark(point, found), "")
        table.add_row(*(Text(cell, style=style) for cell in _row(point, found)))
    console.print(table)
    console.print(Text("value [low, high]: intervals at 95 % unless said otherwise", style="dim"))
    console.print()
    for label, why in found.left_out:
        console.print(Text(f"not tried: {label}: {why}", style="dim"))
    for n, line in enumerate(summary(found)):
        console.print(
            Text(line, style="" if n else "bold green" if found.succeeded else "bold red")
        )


def markdown(found: Hardened) -> str:
    """The same as a page."""
    head = _head(found)
    out = ["# Hardening", ""]
    out += [f"- {line}" for line in summary(found)]
    out += ["", "Limits:", ""]
    out += [f"- {name}: {rule}" for name, rule in found.limits]
    out += ["", "| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    for point in found.points:
        cells = [c.replace("|", "\\|").replace("\n", " ") for c in _row(point, found)]
        out.append("| " + " | ".join(cells) + " |")
    out += ["", *(f"Not tried: {label}: {why}.  " for label, why in found.left_out)]
    names = figure_names(found)
    out += [f"![{metric} against cost]({name})" for name, metric in names.items()]
    return "\n".join(out).rstrip() + "\n"


def csv_text(found: Hardened) -> str:
    """One row per protection and number, with all digits."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=COLUMNS, lineterminator="\n")
    writer.writeheader()
    for p in _all(found):
        about = {
            "protection": p.label,
            "series": p.series,
            "level": p.level,
            "noise": p.noise,
            "met": p.met,
            "trusts": p.who,
            "promise": p.promise,
            "runs": p.runs,
            "folders": " ".join(p.folders),
        }
        for name, e in _numbers(p, found.measure).items():
            own = {"value": e.value, "low": e.low, "high": e.high, "confidence": e.confidence}
            chance = "" if e.baseline is None else e.baseline
            writer.writerow({**about, "number": name, **own, "chance": chance})
    return text.getvalue()


COLUMNS = (
    "protection",
    "series",
    "level",
    "noise",
    "met",
    "trusts",
    "promise",
    "number",
    "value",
    "low",
    "high",
    "confidence",
    "chance",
    "runs",
    "folders",
)


def _numbers(p: Point, measure: str) -> dict[str, Estimate]:
    """Everything that was measured of one protection."""
    out = dict(p.risks)
    if p.cost is not None:
        out[f"{measure} {'lost' if measure == 'accuracy' else 'gained'}"] = p.cost
    if p.utility is not None:
        out[measure] = p.utility
    if p.epsilon is not None:
        spent = p.epsilon
        out["epsilon"] = Estimate(value=spent, low=spent, high=spent, n=0, confidence=1.0)
    return out


def _all(found: Hardened) -> list[Point]:
    fresh = [found.confirmed] if found.confirmed is not None else []
    return [*found.points, *found.rejected, *fresh]


def plain(found: Hardened) -> dict[str, Any]:
    """Everything as JSON types."""
    return {
        "succeeded": found.succeeded,
        "outcome": summary(found),
        "limits": [{"name": name, "rule": rule} for name, rule in found.limits],
        "measure": found.measure,
        "chosen": None if found.chosen is None else found.chosen.label,
        "confirmed": None if found.confirmed is None else _plain_point(found.confirmed),
        "rejected": [_plain_point(p) for p in found.rejected],
        "nearest": None if found.nearest is None else found.nearest.label,
        "conflicts": [list(names) for names in found.conflicts],
        "instead": {name: p.label for name, p in found.instead.items()},
        "points": [_plain_point(p) for p in found.points],
        "left_out": [{"what": what, "why": why} for what, why in found.left_out],
        "stopped": found.stopped,
        "seeds": found.seeds,
        "searched": found.searched,
        "reused": found.reused,
        "config": found.config,
        "policy": found.policy,
    }


def _plain_point(p: Point) -> dict[str, Any]:
    return {
        "label": p.label,
        "series": p.series,
        "level": p.level,
        "noise": p.noise,
        "trusts": list(p.trusted),
        "met": p.met,
        "failed": p.failed,
        "cost": _plain_estimate(p.cost),
        "utility": _plain_estimate(p.utility),
        "risks": {name: _plain_estimate(e) for name, e in p.risks.items()},
        "epsilon": _number(p.epsilon),
        "promise": p.promise,
        "checks": [
            {"limit": c.limit, "rule": c.rule, "status": c.status, "found": statement(c)}
            for c in p.checks
        ],
        "runs": p.runs,
        "folders": list(p.folders),
    }


def _number(value: float | None) -> float | str | None:
    """JSON has no infinity."""
    return "inf" if value is not None and math.isinf(value) else value


def _plain_estimate(e: Estimate | None) -> dict[str, Any] | None:
    if e is None:
        return None
    ends = {name: _number(getattr(e, name)) for name in ("value", "low", "high", "baseline")}
    return {**ends, "confidence": e.confidence, "n": e.n, "method": e.method}


# -- the trade-off -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Crosses:
    """Points with an interval each way, joined in their order."""

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
    """A ring around the point that was chosen."""

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
class Upright:
    """A limit on what protection may cost: a dashed line upwards."""

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
    """File name -> the risk that it draws."""
    drawn = [
        m for m in metrics(found) if any(p.cost is not None and m in p.risks for p in found.points)
    ]
    return {f"tradeoff{'' if n == 0 else f'-{n + 1}'}.svg": m for n, m in enumerate(drawn)}


def figure(found: Hardened, metric: str) -> str:
    """One risk against what protection costs, a curve per kind of it, limit and chance as lines."""
    shown = [p for p in found.points if p.cost is not None and metric in p.risks]
    if not shown:
        raise ValueError(f"nothing was measured of {metric}")
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
            Upright(scale * level, f"at most {_in_points('accuracy_loss', level)}")
            for level in lost
        ]
    ring, words = found.chosen, "chosen" if fresh is not None else "best so far, not confirmed"
    if ring is None or (fresh is None and found.rejected):
        ring, words = found.nearest, "nearest, breaks limits"
    if ring is not None and ring.cost is not None and metric in ring.risks:
        layers.append(Ring((scale * ring.cost.value, ring.risks[metric].value), words))
    xs = [scale * v for x, _ in pairs if x is not None for v in (x.low, x.high)]
    xs += [max(xs) + 0.04 * (max(xs) - min(*xs, 0.0))]  # an end at the edge would look cut off
    ys = [v for _, y in pairs for v in (y.low, y.high)] + levels
    ys += [chance] if chance is not None else []
    what = f"held-out {found.measure} gained"
    if found.measure == "accuracy":
        what = "points of held-out accuracy lost"
    risk = metric.replace(".", ": ", 1).replace("_", " ")
    return draw(Axis.around(what, xs, zero=True), Axis.around(risk, ys, zero=True), layers)


def _times(e: Estimate | None, scale: float) -> Estimate:
    assert e is not None
    return replace(e, value=scale * e.value, low=scale * e.low, high=scale * e.high)


def _readings(point: Point, metric: str) -> Sequence[Reading]:
    return [r for c in point.checks if c.metric == metric for r in c.readings if not r.who]
