"""The terminal report: one line per finding, then explanations and tables of clients.

All lines are wrapped to the width of the console.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from fedaudit.reporting.chapter import Chapter, notices_of
from fedaudit.reporting.findings import against, interval, number, words_for
from fedaudit.reporting.overview import VariantAnswer, bound_text, by_federation
from fedaudit.reporting.rules import label_of
from fedaudit.reporting.wording import said
from fedaudit.results import AuditResult, Estimate, Finding

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_MARGIN = 16


def show_study(
    console: Console, chapters: Sequence[Chapter], *, details: bool = True, most_clients: int = 20
) -> None:
    """Print one or several chapters; several start with a table of questions.

    Without `details`, one chapter has no tables, and several print the table of questions only.
    `names.renamed` sets the clients' names.
    """
    from rich.text import Text

    several = len(chapters) > 1
    if several:
        _overview(console, chapters)
        console.print()
    for notice in (*notices_of(chapters), *notices_of(chapters, "data_notes")):
        _print_wrapped(console, "NOTE", notice, "bold yellow")
    for chapter in chapters:
        if several and details:
            console.print()
            console.rule(Text(clean(chapter.title), style="bold"), align="left", characters="-")
        if details or not several:
            results = chapter.results if details else ()
            show(console, chapter.summary, chapter.findings, results, most_clients=most_clients)


def _overview(console: Console, chapters: Sequence[Chapter]) -> None:
    """Print each federation in a line, its variants, and each question with its answers."""
    from rich.text import Text

    for part in by_federation(chapters):
        console.print()
        console.print(Text(clean(part.federation), style="bold underline"))
        _print_wrapped(console, "", part.line, "", margin=0)
        for noted in part.noted:
            _print_wrapped(console, "", f"Noted: {noted}.", "", margin=0)
        wide = min(max(len("what helps"), *map(len, part.variants)) + 2, 26)
        for variant, chapter in zip(part.variants, part.chapters, strict=True):
            known = [
                k
                for k in ("arrived", "protected by", "promised", "held out")
                if k in chapter.summary
            ]
            about = "; ".join(f"{k}: {chapter.summary[k]}" for k in known)
            _print_wrapped(console, f"  {variant:<{wide}}", about, "dim", margin=wide + 2)
        for q in part.questions:
            console.print()
            _print_wrapped(console, "", q.text, "", margin=0)
            for variant, answers in zip(part.variants, q.answers, strict=True):
                for a in answers:
                    style = label_of(a.finding).style
                    _print_wrapped(
                        console, f"  {variant:<{wide}}", answer_text(a), style, margin=wide + 2
                    )
            for i, variant in enumerate(part.variants):
                also = [f"{name} {cells[i]}" for name, _, cells in q.beside if cells[i]]
                if also:
                    text = f"also measured: {'; '.join(also)}"
                    _print_wrapped(console, f"  {variant:<{wide}}", text, "dim", margin=wide + 2)
            for remedy in q.remedies(part.variants):
                _print_wrapped(console, f"  {'what helps':<{wide}}", remedy, "dim", margin=wide + 2)
            for source in q.sources:
                _print_wrapped(console, f"  {'source':<{wide}}", source, "dim", margin=wide + 2)


def answer_text(a: VariantAnswer) -> str:
    """One answer in a sentence: verdict, value, baseline, n, power, bound, trust, rule."""
    f = a.finding
    mark = label_of(f).mark
    if f.estimate is None:
        needed = [a.to_measure] if a.needed else []
        return " ".join([f"{mark}: {f.statement}", *needed, *a.grounds])
    facts = [f"{a.value}, {a.against} {a.chance}" + (f", {a.n}" if a.n else "")]
    facts += a.lines
    facts += [f"rests on {f.rests_on}"] if f.rests_on else []
    facts.append(f"rule {f.cited}")
    return f"{mark}: {'; '.join(facts)}."


def show(
    console: Console,
    summary: Mapping[str, str],
    findings: Sequence[Finding],
    results: Sequence[AuditResult],
    *,
    most_clients: int = 20,
) -> None:
    """Print the findings and the tables of `results`."""
    console.print()
    for label, value in summary.items():
        _print_wrapped(console, label, value, "bold")
    console.print()
    for f in findings:
        verdict = label_of(f)
        _print_wrapped(console, verdict.mark, headline(f), verdict.style)
    for f in findings:
        _explain(console, f)
    for result in results:
        _details(console, result, most_clients)


def headline(f: Finding) -> str:
    """One finding in one line: measure, interval, baseline, source."""
    if f.estimate is None or f.measure is None:
        source = f" source: {f.source}" if f.source else ""
        return f"{f.audit}: not measured: {f.statement}{source}"
    percent = words_for(f.audit).percent and f.verdict != "disagreement"
    of = f" of {f.client}" if f.client is not None else ""
    return (
        f"{f.audit}: {f.measure}{of} {interval(f.estimate, percent)}, "
        f"baseline {against(f.estimate, percent)}, n = {f.estimate.n}; source: {f.source}"
    )


def _print_wrapped(
    console: Console, label: str, text: str, style: str, margin: int = _MARGIN
) -> None:
    """Print `label` and beside it the wrapped `text`."""
    from rich.text import Text

    width = max(console.width, margin + 20)
    label, text = clean(label), clean(text)
    # NUL keeps a number on the line of its unit; `clean` left no other NUL
    tied = text.replace(" %", "\0%").replace(" n = ", " n\0=\0")
    wrapped = textwrap.wrap(tied, width - margin, break_on_hyphens=False) or [""]
    lines = [line.replace("\0", " ") for line in wrapped]
    console.print(Text.assemble((f"{label:<{margin}}", style), lines[0]), soft_wrap=True)
    for line in lines[1:]:
        console.print(Text(" " * margin + line), soft_wrap=True)


def _explain(console: Console, f: Finding) -> None:
    from rich.text import Text

    console.print()
    for line in textwrap.wrap(clean(f.question), max(console.width, 20)):
        console.print(Text(line, style="bold"), soft_wrap=True)
    _print_wrapped(console, "  answer", f.statement, "dim")
    if f.rests_on:
        _print_wrapped(console, "  rests on", f.rests_on, "dim")
    _print_wrapped(console, "  rule", f"{f.cited}; seen by {f.vantage}", "dim")
    if f.estimate is not None and f.estimate.method:
        _print_wrapped(console, "  interval", f.estimate.method, "dim")
    if f.remedy:
        label = "to measure" if f.estimate is None else "what helps"
        _print_wrapped(console, f"  {label}", f.remedy, "dim")


def _details(console: Console, result: AuditResult, most_clients: int) -> None:
    from rich.text import Text

    if result.notes or result.recording:
        console.print()
        console.print(Text(clean(f"{result.audit}: noted"), style="bold"))
        for note in (*result.notes, *result.recording):
            _print_wrapped(console, "  -", note, "", margin=4)
    if result.bounds:
        console.print()
        console.print(Text(clean(f"{result.audit}: bounds"), style="bold"))
        for name, b in result.bounds.items():
            percent = words_for(result.audit).percent and b.of == result.headline
            text = f"{name}, of {wrappable(b.of)}: {bound_text(b, percent)}"
            _print_wrapped(console, "  -", text, "", margin=4)
    for missing in result.underpowered:
        _print_wrapped(
            console, f"{result.audit}:", str(missing), "yellow", margin=len(result.audit) + 2
        )
    if len(result.estimates) > 1:
        table = _table("score", ["value", "low", "high", "baseline"])
        table.add_column("interval by", overflow="fold")
        for name, e in result.estimates.items():
            scored = (wrappable(name), *estimate_cells(e), e.method)
            table.add_row(*(Text(clean(c)) for c in scored))
        _titled(console, f"{result.audit}: all scores", table)
    if result.per_client:
        every = client_columns(result)
        columns = fitting_columns(every, max(map(len, result.per_client)), console.width)
        table = _table("client", columns)
        shown = list(result.per_client.items())[:most_clients]
        written = {c: align_column([row.get(c) for _, row in shown]) for c in columns}
        for i, (name, _) in enumerate(shown):
            cells = (name, *(written[c][i] for c in columns))
            table.add_row(*(Text(clean(c)) for c in cells))
        _titled(console, f"{result.audit}: per client", table)
        left = len(result.per_client) - most_clients
        hidden = every[len(columns) :]
        if left > 0 or hidden:
            more = [f"{left} more clients"] if left > 0 else []
            more += [", ".join(hidden)] if hidden else []
            _print_wrapped(
                console, "and", " and ".join(more) + ": see report.html", "dim", margin=4
            )


def client_columns(result: AuditResult) -> list[str]:
    """All columns of the table of clients, in their order."""
    return list(dict.fromkeys(c for row in result.per_client.values() for c in row))


def fitting_columns(columns: Sequence[str], name: int, width: int) -> list[str]:
    """The first columns that fit into a terminal without breaking numbers, at least one."""
    used = name
    for i, column in enumerate(columns):
        used += 3 + max(8, max(map(len, column.split()), default=0))
        if used > width and i:
            return list(columns[:i])
    return list(columns)


def _table(first: str, numeric: Sequence[str]) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column(first, overflow="fold", min_width=9)
    for column in numeric:
        table.add_column(Text(wrappable(clean(column))), justify="right", overflow="fold")
    return table


def wrappable(text: str, most: int = 12) -> str:
    """Text with underscores of long names as spaces, so that a narrow column can wrap it."""
    return " ".join(w.replace("_", " ") if len(w) > most else w for w in text.split(" "))


def longest_word(texts: Iterable[str], most: int = 32) -> int:
    """Length of the longest word in the texts, at most `most`."""
    return min(max((len(w) for text in texts for w in text.split()), default=0), most)


def _titled(console: Console, title: str, table: Table) -> None:
    from rich.text import Text

    console.print()
    console.print(Text(clean(title), style="bold"))
    console.print(table)


def clean(text: str) -> str:
    """Text for the reader, without control codes: a foreign trace must not control the terminal."""
    return "".join(c if c.isprintable() else " " if c.isspace() else "?" for c in said(text))


def estimate_cells(e: Estimate) -> tuple[str, str, str, str]:
    """Value, low, high and baseline as table cells; a count has no decimals."""
    if e.confidence >= 1 and all(float(v).is_integer() for v in (e.value, e.low, e.high)):
        base = "" if e.baseline is None else number(e.baseline)
        return number(e.value), number(e.low), number(e.high), base
    return cell(e.value), cell(e.low), cell(e.high), cell(e.baseline)


def cell(value: float | int | str | None) -> str:
    """One table cell."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.3f}" if value == 0 or 1e-3 <= abs(value) < 1e6 else f"{value:.3g}"
    return str(value)


def align_column(values: Sequence[float | int | str | None]) -> list[str]:
    """The cells of one column; small numbers get more decimals, the same for all cells."""
    small = [abs(v) for v in values if isinstance(v, float) and 0 < abs(v) < 1e-3]
    large = any(isinstance(v, float) and abs(v) >= 1e6 for v in values)
    if not small or large or min(small) < 1e-6:
        return [cell(v) for v in values]
    decimals = math.ceil(-math.log10(min(small))) + 1
    return [f"{v:.{decimals}f}" if isinstance(v, float) else cell(v) for v in values]
