"""A hardening as terminal text, Markdown, CSV and JSON."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fedaudit.audits import facts_of
from fedaudit.codec import fields_of
from fedaudit.decide.gate.outcome import LimitCheck
from fedaudit.decide.gate.page import ESTIMATE, statement
from fedaudit.decide.harden.outcome import Hardened, Point
from fedaudit.decide.harden.tradeoff import figure_names, in_points
from fedaudit.reporting import environment
from fedaudit.reporting.findings import interval, number
from fedaudit.reporting.text import longest_word
from fedaudit.results import Estimate

if TYPE_CHECKING:
    from rich.console import Console

# -- words ---------------------------------------------------------------------------------------


def summary(found: Hardened) -> list[str]:
    """The outcome in sentences."""
    out = []
    if found.confirmed is not None:
        point = found.confirmed
        out.append(
            f"{point.label} keeps every limit at the least cost found: "
            f"{cost_text(point, found.measure)}. It trusts {point.who}."
        )
        out.append(_selection_note(found))
        out += [f"{c.title}: {statement(c)}" for c in point.checks]
        out += epsilon_lines(point)
        if found.config:
            out.append(f"written: {found.config}; as limits for the gate: {found.policy}")
    elif found.chosen is not None and not found.rejected:
        out.append(
            f"{found.chosen.label} kept every limit in the search, but the time budget ended "
            "before its test on fresh seeds. Its figures are the best of "
            f"{found.searched} and therefore optimistic."
            + (f" Written: {found.config}" * bool(found.config))
        )
    else:
        out += _failure_lines(found)
    out += [
        f"{p.label} kept every limit in the search, but not on fresh seeds: "
        + "; ".join(f"{c.title}: {statement(c)}" for c in p.broken)
        for p in found.rejected
    ]
    if found.stopped:
        out.append(found.stopped)
    out += _excluded_lines(found)
    if found.seeds == 2 and not found.succeeded:
        out.append(
            "Two seeds give a very wide interval (Student's t with one degree of freedom): use one "
            "seed, whose run has its own interval, or at least three."
        )
    return out


def _excluded_lines(found: Hardened) -> list[str]:
    """What client-level noise rules out among the questions that were asked, as measured."""
    noisy = [
        p for p in found.points if p.promise.startswith("per client") and p.epsilon is not None
    ]
    asked = {metric.partition(".")[0] for metric in found.metrics if "." in metric}
    return [
        facts_of(audit).under_client_noise
        for audit in sorted(asked)
        if noisy and facts_of(audit).under_client_noise
    ]


def _selection_note(found: Hardened) -> str:
    tries = len(found.rejected) + 1
    return (
        f"The best of {found.searched} measured protections looks better than it is: these "
        f"figures come from {_seeds(found.seeds)} that the search did not use"
        + (f" (attempt {tries})." if tries > 1 else ".")
    )


def _seeds(count: int) -> str:
    return "one fresh seed" if count == 1 else f"{count} fresh seeds"


def _failure_lines(found: Hardened) -> list[str]:
    rules = dict(found.limits)
    out = []
    for names in found.conflicts:
        listed = " and ".join(f"{n} ({rules[n]})" if n in rules else n for n in names)
        out.append(
            f"no measured protection keeps {listed}" + (" together." if len(names) > 1 else ".")
        )
    if not found.points:
        return ["the time budget ended before the first measurement."]
    if not found.conflicts and not found.rejected:
        out.append("no measured protection keeps all limits.")
    if found.nearest is not None:
        near = found.nearest
        out.append(
            f"nearest: {near.label}, {cost_text(near, found.measure)}. It trusts {near.who}. To "
            "accept it, change: " + "; ".join(_relaxed(c) for c in near.broken)
        )
        if found.config:
            out.append(f"written: {found.config}")
    for name, point in found.instead.items():
        if found.nearest is None or point.label != found.nearest.label:
            out.append(
                f"without {name}: {point.label}, {cost_text(point, found.measure)}: "
                + "; ".join(_relaxed(c) for c in point.broken)
            )
    return out


def _relaxed(check: LimitCheck) -> str:
    """The relaxed limit that this measurement keeps."""
    known = [r for r in check.readings if r.bound is not None and not r.kept]
    if not known and check.code == "underpowered":
        return f"settle {check.title} with more evidence ({statement(check)})"
    if not known:
        lacking = {r.missing for r in check.readings}
        same = len(lacking) == 1 and check.readings[0].who
        why = f"every client: {lacking.pop()}" if same else statement(check)
        return f"drop {check.title} ({why})"
    worst = max(known, key=lambda r: r.distance)
    assert worst.bound is not None
    assert worst.limit is not None
    bound, most = (in_points(check.metric, v) for v in (worst.bound, worst.limit))
    text = f"{check.title} {worst.side} {bound} instead of {most}"
    value = None if worst.estimate is None else worst.estimate.value
    if value is None or replace(worst, bound=value).kept is False:
        return text
    shown = in_points(check.metric, value)
    return f"{text} (its value {shown} keeps the limit, its interval does not)"


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
    """A difference of shares in percentage points: value [low, high]."""
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


def epsilon_lines(point: Point) -> list[str]:
    """What is declared of a point beside what a rehearsal measured."""
    if point.epsilon is None or point.epsilon_measured is None:
        return []
    return [
        f"Declared epsilon {number(point.epsilon)} {point.promise}; at least "
        f"{number(point.epsilon_measured)} was measured, by canaries in a rehearsal."
    ]


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
        *(_short(point.risks[m]) if m in point.risks else "" for m in found.metrics),
        "" if point.epsilon is None else f"{number(point.epsilon)} {point.promise}".rstrip(),
        "" if point.failed else point.who,
        ", ".join(c.title for c in point.broken),
    ]


def _short(e: Estimate) -> str:
    return f"{number(e.value)} [{number(e.low)}, {number(e.high)}]"


def _head(found: Hardened) -> list[str]:
    cost = "points of accuracy lost" if found.measure == "accuracy" else f"{found.measure} gained"
    risks = [f"{m.replace('.', ' ').replace('_', ' ')}{_chance(found, m)}" for m in found.metrics]
    return ["", "protection", cost, *risks, "largest epsilon", "trusts", "breaks"]


def _chance(found: Hardened, metric: str) -> str:
    known = {number(p.risks[metric].baseline or 0.0) for p in found.points if metric in p.risks}
    none = any(p.risks[metric].baseline is None for p in found.points if metric in p.risks)
    return "" if none or len(known) != 1 else f" (chance {known.pop()})"


MARKS = ("chosen", "best so far", "nearest", "kept", "broken", "failed")
"""What a row is marked with, in the order of the terminal's table."""
MOST_ROWS = 8


def show(console: Console, found: Hardened) -> None:
    """Print the points nearest to the limits, and the outcome."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    ranked = sorted(found.points, key=lambda p: (MARKS.index(_mark(p, found)), p.nearness))
    rows = [(p, _brief_row(p, found)) for p in ranked[:MOST_ROWS]]
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for i, name in enumerate(_brief_head(found)):
        words = longest_word([name, *(row[i] for _, row in rows)])
        table.add_column(name, min_width=words, no_wrap=i == 0)
    for point, row in rows:
        style = {"chosen": "bold", "broken": "dim"}.get(_mark(point, found), "")
        table.add_row(*(Text(cell, style=style) for cell in row))
    console.print(table)
    more = len(ranked) - len(rows)
    rest = f"; and {more} more: see harden.md" if more else ""
    console.print(Text(f"[low, high]: 95 % intervals unless stated otherwise{rest}", style="dim"))
    console.print()
    for point in ranked:
        if point.failed:
            first = point.failed.splitlines()[0]
            console.print(Text(f"failed: {point.label}: {first}", style="dim"))
    for label, why in found.left_out:
        console.print(Text(f"not tried: {label}: {why}", style="dim"))
    for n, line in enumerate(summary(found)):
        console.print(Text(line, style="" if n else "bold" if found.succeeded else "bold red"))


def _brief_head(found: Hardened) -> list[str]:
    cost = "points lost" if found.measure == "accuracy" else f"{found.measure} gained"
    return ["", "protection", cost, *map(_risk_name, found.metrics), "epsilon", "limits broken"]


def _risk_name(metric: str) -> str:
    return metric.partition(".")[2].replace("_", " ") or metric


def _brief_row(point: Point, found: Hardened) -> list[str]:
    """A row without trust, promise and names of limits, which the outcome and harden.md state."""
    mark, label, cost, *others = _row(point, found)
    return [
        mark,
        label,
        "" if point.failed else cost,
        *others[: len(found.metrics)],
        "" if point.epsilon is None else number(point.epsilon),
        f"{len(point.broken)} of {len(point.checks)}" if point.checks else "",
    ]


def markdown(found: Hardened) -> str:
    """Table, outcome and figures as a Markdown page."""
    made = (
        environment.markdown()
        .get_template("harden.md")
        .render(
            outcome=summary(found),
            limits=found.limits,
            head=_head(found),
            rows=[_row(point, found) for point in found.points],
            left_out=found.left_out,
            figures=figure_names(found),
        )
    )
    return made.rstrip() + "\n"


def csv_text(found: Hardened) -> str:
    """CSV with one row per protection and number, at full precision."""
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
    """All estimates of one protection."""
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
    """The search as JSON types."""
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
        **fields_of(found, "stopped", "seeds", "searched", "reused", "config", "policy"),
    }


def _plain_point(p: Point) -> dict[str, Any]:
    return {
        **fields_of(p, "label", "series", "level", "noise"),
        "trusts": list(p.trusted),
        **fields_of(p, "met", "failed"),
        "cost": _plain_estimate(p.cost),
        "utility": _plain_estimate(p.utility),
        "risks": {name: _plain_estimate(e) for name, e in p.risks.items()},
        **fields_of(p, "epsilon", "promise", "epsilon_measured"),
        "checks": [
            {**fields_of(c, "limit", "rule", "status"), "found": statement(c)} for c in p.checks
        ],
        **fields_of(p, "runs", "folders"),
    }


def _plain_estimate(e: Estimate | None) -> dict[str, Any] | None:
    return None if e is None else fields_of(e, *ESTIMATE)
