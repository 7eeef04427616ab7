"""A comparison of two runs as terminal text and JSON."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fedaudit.codec import fields_of, json_number
from fedaudit.decide.diff.outcome import Comparison, Difference
from fedaudit.reporting.findings import interval, number
from fedaudit.reporting.text import wrappable
from fedaudit.reporting.wording import said
from fedaudit.results import Estimate

if TYPE_CHECKING:
    from rich.console import Console

RULE = (
    "Worse or better: the interval of the difference excludes 0. It follows from both intervals by "
    "the MOVER (square-and-add) rule, with Holm's correction within headlines, within other "
    "estimates and within clients. Overlapping intervals can still differ. Runs count as "
    "independent; shared records usually make the interval too wide, not too narrow. A verdict is "
    "worse if it is more severe (disagreement, then leak, then no evidence), or if the audit can "
    "no longer conclude."
)
STYLES = {"worse": "bold red", "better": "green", "changed": "yellow", "same": "dim"}


def show_diff(console: Console, comparisons: Sequence[Comparison], everything: bool) -> None:
    """Print every comparison: headlines first, then other changes beyond the intervals."""
    from rich.text import Text

    for c in comparisons:
        console.print(Text(f"{c.run}: " if c.run else "", style="bold").append(summary(c)))
        for text in c.different:
            console.print(Text(f"different federations: {text}", style="bold magenta"))
        console.print()
        _settings(console, c)
        _estimates(console, c, everything)
        _clients(console, c)
        _epsilon(console, c)
        for v in c.verdicts:
            text = f"{v.audit}: {_words(v.first)} before, {_words(v.second)} now ({v.change}"
            text += f": {v.why})" if v.why else ")"
            console.print(Text(text, style=STYLES[v.change]))
        for text in c.lost:
            console.print(Text(f"evidence lost: {said(text)}", style=STYLES["worse"]))
        for text in (*c.unpaired, *c.notes):
            console.print(Text(said(text), style="dim"))
        console.print()
    console.print(Text(RULE, style="dim"))


def summary(c: Comparison) -> str:
    count = Counter(d.change for d in c.differences)
    parts = [f"{count[w]} {w}" for w in ("worse", "better", "changed") if count[w]]
    parts.append(f"{count['same']} unchanged within the intervals")
    moved = sum(x.worse for x in c.clients), sum(x.better for x in c.clients)
    if any(moved):
        parts.append(f"single clients {moved[0]} worse, {moved[1]} better")
    verdicts = sum(v.change == "worse" for v in c.verdicts)
    if verdicts:
        parts.append(f"{verdicts} verdict{'s' * (verdicts > 1)} worse")
    if c.lost:
        parts.append(f"evidence lost: {len(c.lost)}")
    return ", ".join(parts)


def _words(verdict: str) -> str:
    return verdict.replace("_", " ")


def _settings(console: Console, c: Comparison) -> None:
    from rich.table import Table
    from rich.text import Text

    if not c.settings:
        console.print(Text("no settings differ", style="dim"))
        console.print()
        return
    table = Table(
        show_edge=False, pad_edge=False, title="settings that differ", title_justify="left"
    )
    for title in ("setting", "first", "second"):
        table.add_column(title, overflow="fold")
    for key, before, after in c.settings:
        table.add_row(Text(key), Text(before), Text(after))
    console.print(table)
    console.print()


def _estimates(console: Console, c: Comparison, everything: bool) -> None:
    from rich.table import Table
    from rich.text import Text

    order = {"worse": 0, "better": 1, "changed": 2, "same": 3}
    chosen = [d for d in c.differences if everything or d.headline or d.change != "same"]
    if not chosen:
        return
    table = Table(show_edge=False, pad_edge=False)
    table.add_column("", no_wrap=True)
    for title in ("measure", "first", "second", "difference"):
        table.add_column(title, overflow="fold")
    for d in sorted(chosen, key=lambda d: (not d.headline, order[d.change])):
        table.add_row(
            Text(d.change, style=STYLES[d.change]),
            Text(_measure(d)),
            Text(interval(d.first)),
            Text(interval(d.second)),
            Text(_difference(d)),
        )
    console.print(table)
    hidden = len(c.differences) - len(chosen)
    if hidden:
        text = f"{hidden} other estimates unchanged within the intervals (`everything` shows them)"
        console.print(Text(said(text), style="dim"))
    console.print()


def _measure(d: Difference) -> str:
    """The name of a measure with its chance level below: another column would exceed 80 columns."""
    name = wrappable(f"{d.audit}: {d.measure}" if d.audit else d.measure)
    known = [None if e.baseline is None else number(e.baseline) for e in (d.first, d.second)]
    if known == [None, None]:
        return name
    chance = known[0] if known[0] == known[1] else " / ".join(x or "unknown" for x in known)
    return f"{name}\n(chance {chance})"


def _difference(d: Difference) -> str:
    if math.isinf(d.value):
        return number(d.value)
    sign = "+" if d.value > 0 else ""
    return f"{sign}{number(d.value)} [{number(d.low)}, {number(d.high)}]"


def _clients(console: Console, c: Comparison) -> None:
    from rich.text import Text

    for x in c.clients:
        line = (
            f"{x.audit}, {x.column} per client: {x.worse} of {x.clients} worse, {x.better} better "
            "(Holm over clients)"
        )
        if x.changed:
            line += f", {x.changed} changed"
        console.print(Text(line, style=STYLES["worse"] if x.worse else ""))
        for d in x.most:
            console.print(
                Text(f"  {d.who}: {interval(d.first)} to {interval(d.second)}, {_difference(d)}")
            )


def _epsilon(console: Console, c: Comparison) -> None:
    from rich.text import Text

    for s in c.epsilon:
        text = (
            f"{s.protection}, epsilon per {s.unit}: {_range(s.first)} before, "
            f"{_range(s.second)} now; {s.worse} clients worse, {s.better} better"
        )
        console.print(Text(text, style=STYLES["worse"] if s.worse else ""))


def _range(ends: tuple[float, float] | None) -> str:
    if ends is None:
        return "nothing promised"
    low, high = number(ends[0]), number(ends[1])
    return low if low == high else f"{low} to {high}"


def plain_diff(comparisons: Sequence[Comparison]) -> dict[str, Any]:
    """The comparisons as JSON types; an infinity is "inf" or "-inf"."""
    return {
        "rule": RULE,
        "worse": any(c.worse for c in comparisons),
        "comparisons": [
            {
                **fields_of(c, "run", "first", "second", "different"),
                "settings": [{"key": k, "first": a, "second": b} for k, a, b in c.settings],
                "estimates": [_plain(d) for d in c.differences],
                "clients": [
                    {
                        **fields_of(x, "audit", "column", "clients", "worse", "better", "changed"),
                        "most": [_plain(d) for d in x.most],
                    }
                    for x in c.clients
                ],
                "epsilon": [
                    fields_of(s, "protection", "unit", "first", "second", "worse", "better")
                    for s in c.epsilon
                ],
                "verdicts": [
                    fields_of(v, "audit", "first", "second", "change", "why") for v in c.verdicts
                ],
                **fields_of(c, "lost", "unpaired", "notes"),
            }
            for c in comparisons
        ],
    }


def _plain(d: Difference) -> dict[str, Any]:
    def side(e: Estimate) -> dict[str, Any]:
        ends = fields_of(e, "value", "low", "high", "confidence", "baseline")
        return {"chance" if k == "baseline" else k: v for k, v in ends.items()}

    return {
        **fields_of(d, "audit", "measure", "who", "headline"),
        "first": side(d.first),
        "second": side(d.second),
        "difference": json_number(d.value),
        **fields_of(d, "low", "high", "p"),
        "p_holm": d.adjusted,
        "change": d.change,
    }
