"""The terminal report: one line per finding with value, interval, baseline, source; then tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from fedaudit.report.findings import interval, number, words_for
from fedaudit.results import AuditResult, Finding

if TYPE_CHECKING:
    from rich.console import Console

MARKS = {
    "disagreement": ("!!", "bold magenta"),
    "leak": ("LEAK", "bold red"),
    "no_evidence": ("no evidence", "green"),
    "not_applicable": ("n/a", "dim"),
}


def show(
    console: Console,
    summary: Mapping[str, str],
    findings: Sequence[Finding],
    results: Sequence[AuditResult],
    *,
    most_clients: int = 20,
) -> None:
    """Print a report."""
    from rich.table import Table
    from rich.text import Text

    console.print()
    for label, value in summary.items():
        console.print(Text(f"{label:<14}", style="bold"), Text(value), sep="")
    console.print()
    for f in findings:
        mark, style = MARKS[f.verdict]
        console.print(Text(f"{mark:<12}", style=style), Text(f.question, style="bold"), sep="")
        console.print(Text(f"{'':<12}{f.statement}"))
        if f.estimate is not None and f.measure is not None:
            percent = words_for(f.audit).percent and f.verdict != "disagreement"
            baseline = f.estimate.baseline
            against = "" if baseline is None else f", baseline {number(baseline, percent)}"
            line = f"{f.measure} = {interval(f.estimate, percent)}{against}; n = {f.estimate.n}"
            console.print(Text(f"{'':<12}{line}", style="dim"))
            console.print(Text(f"{'':<12}{f.estimate.method}; {f.source}", style="dim"))
        console.print(Text(f"{'':<12}rule: {f.rule}; seen by {f.vantage}", style="dim"))
        if f.remedy:
            console.print(Text(f"{'':<12}what helps: {f.remedy}"))
        console.print()
    for result in results:
        if result.notes:
            console.print(Text(f"{result.audit}: noted", style="bold"))
            for note in result.notes:
                console.print(Text(f"  - {note}"))
            console.print()
        for missing in result.underpowered:
            console.print(Text(f"{result.audit}: {missing}", style="yellow"))
        if len(result.estimates) > 1:
            table = Table(title=f"{result.audit}: all scores", title_justify="left")
            table.add_column("score")
            for column in ("value", "low", "high", "baseline"):
                table.add_column(column, justify="right")
            table.add_column("interval by")
            for name, e in result.estimates.items():
                base = "" if e.baseline is None else f"{e.baseline:.3f}"
                table.add_row(
                    name, f"{e.value:.3f}", f"{e.low:.3f}", f"{e.high:.3f}", base, e.method
                )
            console.print(table)
        if result.per_client:
            _clients(console, result, most_clients)


def _clients(console: Console, result: AuditResult, most: int) -> None:
    from rich.table import Table
    from rich.text import Text

    columns = list(next(iter(result.per_client.values())))
    table = Table(title=f"{result.audit}: per client", title_justify="left")
    table.add_column("client")
    for column in columns:
        table.add_column(column, justify="right")
    for name, row in list(result.per_client.items())[:most]:
        table.add_row(name, *(cell(row.get(c)) for c in columns))
    console.print(table)
    left = len(result.per_client) - most
    if left > 0:
        console.print(Text(f"and {left} more: see report.html", style="dim"))


def cell(value: float | int | str | None) -> str:
    """One table cell."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.3f}"
    return str(value)
