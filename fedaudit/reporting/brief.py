"""The end of a command in a terminal: at most 15 lines of 80 columns.

The matrix of questions and protections (the worst questions, where not all fit), the two worst
findings as sentences, the cost, the next command and the path of the report. Several federations
share one table of how often each verdict was given. Commands stand on a line of their own,
unbroken, to be pasted.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedaudit.reporting.chapter import Chapter, notices_of
from fedaudit.reporting.first_page import (
    EPSILON,
    LEAKING,
    CostRow,
    FederationSummary,
    MatrixCell,
    WorstFinding,
    summarise,
)
from fedaudit.reporting.overview import by_federation
from fedaudit.reporting.rules import KNOWN, VERDICTS, Label
from fedaudit.reporting.text import clean

if TYPE_CHECKING:
    from rich.console import Console

WIDTH, LINES = 80, 15
FEWEST = 3
"""Fewest questions of a matrix; with less space, verdicts are counted."""
MOST = 5
"""Most further lines of one finding."""
UNANSWERED = ("failed", "nothing_to_say", "not_applicable", "unscored")


@dataclass(frozen=True)
class StyledText:
    """A piece of a line and its style."""

    text: str
    style: str = ""


Line = tuple[StyledText, ...]


def show_brief(console: Console, chapters: Sequence[Chapter], *, place: str, report: str) -> None:
    """Print the findings in at most 15 lines; notices of what is missing come before them."""
    from rich.text import Text

    for line in brief(chapters, place=place, report=report, width=min(console.width, WIDTH)):
        text = Text.assemble(*((p.text, p.style) for p in line))
        text.rstrip()
        console.print(text, soft_wrap=True)


def brief(
    chapters: Sequence[Chapter], *, place: str, report: str = "", width: int = WIDTH
) -> list[Line]:
    """The lines; `place` is the folder of the runs in commands, `report` the page's path. Without
    `report` they end with the findings."""
    parts = [summarise(p, place) for p in by_federation(chapters)]
    notices = notices_of(chapters)
    more = f" (more notes in the report: {len(notices) - 1})" if len(notices) > 1 else ""
    said = _wrapped(notices[0], width - len(more))[:2] if notices else []
    head = [(StyledText(line, "bold yellow"),) for line in said]
    head += [(StyledText(more.strip(), "yellow"),)] if more else []
    tail = _findings(parts, width)
    tail += [*_steps(parts), (StyledText(f"report: {clean(report)}"),)] if report else []
    left = LINES - len(head) - sum(-(-sum(len(p.text) for p in line) // width) for line in tail)
    return [*head, *_table(parts, width, left), *tail]


def _wrapped(text: str, width: int, indent: str = "") -> list[str]:
    # NUL keeps a number on the line of its unit; `clean` leaves no other NUL
    tied = clean(text).replace(" %", "\0%")
    lines = textwrap.wrap(tied, width, subsequent_indent=indent, break_on_hyphens=False)
    return [line.replace("\0", " ") for line in lines]


def _length(line: Line) -> int:
    return sum(
        len(p.text.rstrip()) if i == len(line) - 1 else len(p.text) for i, p in enumerate(line)
    )


def _table(parts: Sequence[FederationSummary], width: int, left: int) -> list[Line]:
    """The first form that fits: the matrix with all numbers, those of leaks, none; the same with
    the worst questions only; or counts."""
    asked = len(parts[0].rows) if len(parts) == 1 else 0
    for kept in range(asked, min(asked, max(asked // 2, FEWEST)) - 1, -1):
        for numbers in ("all", "leaks", "none") if kept else ():
            made = _matrix(parts[0], numbers, kept)
            if len(made) <= left and max(map(_length, made)) <= width:
                return made
    return _counts(parts, width, left)


def _matrix(part: FederationSummary, numbers: str, kept: int) -> list[Line]:
    """The first `kept` questions down, protections across; `numbers` in "all" cells, those of
    "leaks" or "none"."""
    rows = [(r.question, [_piece(c, numbers) for c in r.cells]) for r in part.rows[:kept]]
    if left := len(part.rows) - kept:
        rows.append((f"({left} more: see the report)", [StyledText("")] * len(part.variants)))
    rows += [
        (row.label, [StyledText(t, "dim") for t in row.short]) for row in part.costs if row.short
    ]
    return _aligned(part.variants, rows)


def _piece(c: MatrixCell, numbers: str) -> StyledText:
    """A cell with the short mark of its verdict."""
    marks = [v for k, v in VERDICTS.items() if k == c.verdict]
    marks = [KNOWN] if c.words == KNOWN.words else marks
    mark, style = (marks[0].mark, marks[0].style) if marks else ("-", "dim")
    shown = numbers == "all" or (numbers == "leaks" and c.verdict in (*LEAKING, "attributed"))
    return StyledText(f"{mark} {clean(c.number) if shown else ''}".rstrip(), style)


def _aligned(
    heads: Sequence[str], rows: Sequence[tuple[str, Sequence[StyledText]]], gap: int = 2
) -> list[Line]:
    """A table without rules; a heading takes several lines rather than a break inside a word."""
    first = max(len(clean(label)) for label, _ in rows) + gap
    wide = [
        max([*(len(cells[i].text) for _, cells in rows), *map(len, clean(head).split())]) + gap
        for i, head in enumerate(heads)
    ]
    whole = [max(w, len(clean(head)) + gap) for w, head in zip(wide, heads, strict=True)]
    wide = whole if first + sum(whole) <= WIDTH else wide
    stacked = [
        textwrap.wrap(clean(h), w - gap, break_long_words=False, break_on_hyphens=False)
        for h, w in zip(heads, wide, strict=True)
    ]
    deep = max(map(len, stacked), default=0)
    above = [["" for _ in range(deep - len(s))] + s for s in stacked]
    named = [("", [StyledText(column[i], "bold") for column in above]) for i in range(deep)]
    return [
        (
            StyledText(f"{clean(label):<{first}}"),
            *(StyledText(f"{c.text:<{w}}", c.style) for c, w in zip(cells, wide, strict=True)),
        )
        for label, cells in [*named, *rows]
    ]


def _counts(parts: Sequence[FederationSummary], width: int, left: int) -> list[Line]:
    """A line per federation and protection: how often each verdict was given, and the cost."""
    every = {c.verdict for p in parts for row in p.rows for c in row.cells}
    shown = [(name, label) for name, label in VERDICTS.items() if name in every]
    made = _counted(parts, shown, 2)
    # the last verdicts say least
    while max(map(_length, made)) > width and len(shown) > 1:
        made = _counted(parts, shown, 1)
        shown = shown[:-1]
    if len(made) <= left:
        return made
    kept = max(left - 1, 1)
    return [*made[:kept], (StyledText(f"and {len(made) - kept} more: see the report", "dim"),)]


def _counted(
    parts: Sequence[FederationSummary], verdicts: Sequence[tuple[str, Label]], gap: int
) -> list[Line]:
    rows = []
    for p in parts:
        costs = [row for row in p.costs if row.short]
        for i, variant in enumerate(p.variants):
            given = [row.cells[i].verdict for row in p.rows]
            cells = [
                StyledText(str(n) if (n := given.count(name)) else "-", label.style if n else "dim")
                for name, label in verdicts
            ]
            cells += [StyledText(texts[i], "dim") for texts in _qualities(costs)]
            cells += [StyledText(row.short[i], "dim") for row in costs if row.label == EPSILON]
            rows.append((f"{p.name}: {variant}" if len(parts) > 1 else variant, cells))
    heads = [*(label.mark for _, label in verdicts), "held out", "epsilon"]
    return _aligned(heads, rows, gap)


def _qualities(costs: Sequence[CostRow]) -> list[list[str]]:
    """One column of held-out metrics: accuracies as they are, others with their name."""
    for row in costs:
        name = row.label.removeprefix("held-out ")
        if name != row.label:
            return [[t if t.endswith("%") else f"{name} {t}" for t in row.short]]
    return [["-"] * max((len(row.short) for row in costs), default=0)]


# -- sentences ------------------------------------------------------------------------------------


def _findings(parts: Sequence[FederationSummary], width: int) -> list[Line]:
    """The two worst findings; of several federations one each, not the same question again."""
    found: list[tuple[str, WorstFinding]] = []
    for part in parts:
        asked = [f.audit for _, f in found]
        new = [f for f in part.worst if f.audit not in asked] or list(part.worst)
        found += (
            [(f"{part.name}: ", f) for f in new[:1]] if len(parts) > 1 else [("", f) for f in new]
        )
    lines: list[Line] = []
    for name, f in found[:2]:
        mark, style = VERDICTS[f.verdict].mark, VERDICTS[f.verdict].style
        first, *more = _wrapped(f"{mark} {name}{f.sentence}", width, "  ")
        lines.append((StyledText(mark, style), StyledText(first.removeprefix(mark))))
        # what is missing has to be read to the end, or nobody can supply it
        kept = more if f.verdict in UNANSWERED else more[:2]
        lines += [(StyledText(line),) for line in kept[:MOST]]
    return lines


def _steps(parts: Sequence[FederationSummary]) -> list[Line]:
    """The next command of the first federation that has one, unbroken."""
    step = next((p.step for p in parts if p.step is not None), None)
    return [] if step is None else [(StyledText("$ "), StyledText(clean(step.command), "bold"))]
