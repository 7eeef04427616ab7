"""Sample sizes as a terminal table and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fedaudit.audits.planning import SampleSize
from fedaudit.codec import fields_of, json_number
from fedaudit.reporting.findings import number
from fedaudit.reporting.text import wrappable
from fedaudit.reporting.wording import said

if TYPE_CHECKING:
    from rich.console import Console


def show_power(
    console: Console, rows: Sequence[SampleSize], power: float, confidence: float
) -> None:
    from rich.table import Table
    from rich.text import Text

    with_run = any(n.have is not None for n in rows)
    table = Table(show_edge=False, pad_edge=False)
    table.add_column("measure", overflow="fold", ratio=1)
    table.add_column("chance", justify="right")
    if with_run:
        table.add_column("has", justify="right")
        table.add_column("saw from", justify="right")
    table.add_column("to show", justify="right")
    table.add_column("needs", justify="right")
    for n in rows:
        cells = [Text(wrappable(_title(n)))]
        cells.append(Text("" if n.chance is None else number(n.chance)))
        if with_run:
            cells.append(Text("" if n.have is None else f"{n.have:,}"))
            cells.append(Text("anything" if n.exact else _seen(n)))
        cells.append(Text("anything" if n.exact else _value(n.wanted)))
        style = {True: "green", False: "bold red", None: ""}[n.enough]
        cells.append(Text(_needed(n), style=style))
        table.add_row(*cells)
    console.print(table)
    console.print()
    for n in rows:
        rule = f" ({n.rule})" if n.rule else ""
        console.print(Text.assemble((f"{_title(n)}: ", "bold"), said(n.how), (rule, "dim")))
    console.print()
    console.print(
        Text(
            f"A leak of the size in `to show` is detected with probability {100 * power:g} %: its "
            f"{100 * confidence:g} % interval lies beyond chance. A smaller leak may be missed.",
            style="dim",
        )
    )


def _title(n: SampleSize) -> str:
    return f"{n.audit}: {n.measure}" + (f" ({n.run})" if n.run else "")


def _value(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def _seen(n: SampleSize) -> str:
    if n.have is None:
        return ""
    return "nothing" if n.seen is None else f"{n.seen:.3g}"


def _needed(n: SampleSize) -> str:
    if n.exact:
        return "nothing more"
    if n.needed is None:
        return "no number will do" if n.wanted is not None else "not known"
    return f"{n.needed:,} {n.unit}"


def plain_power(rows: Sequence[SampleSize], power: float, confidence: float) -> dict[str, Any]:
    return {
        "power": power,
        "confidence": confidence,
        "needs": [
            {
                **fields_of(n, "audit", "measure", "run", "unit", "chance", "have"),
                "smallest_seen": json_number(n.seen),
                **fields_of(n, "wanted", "needed", "exact", "enough", "how", "rule"),
            }
            for n in rows
        ],
    }
