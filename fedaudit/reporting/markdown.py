"""The report as Markdown for a pull request: table of questions and variants, then details."""

from __future__ import annotations

from collections.abc import Sequence

from fedaudit.reporting import environment
from fedaudit.reporting.chapter import Chapter, notices_of
from fedaudit.reporting.overview import VariantAnswer, by_federation, report_heading
from fedaudit.reporting.rules import RULES, VERDICTS, label_of
from fedaudit.reporting.tables import not_shown
from fedaudit.reporting.text import cell, client_columns

MAX_GUESSES = 50
"""Largest number of guesses in a table."""


def markdown(chapters: Sequence[Chapter], notices: Sequence[str] = ()) -> str:
    """One or several chapters as Markdown; `names.renamed` sets the clients' names."""
    overviews = by_federation(chapters)
    used = {f.rule for c in chapters for f in c.findings}
    whole = (
        environment.markdown()
        .get_template("report.md")
        .render(
            heading=report_heading(overviews),
            notices=[*notices, *notices_of(chapters)],
            federations=overviews,
            chapters=chapters,
            rules=[rule for rule in RULES.values() if rule.id in used],
            verdicts=VERDICTS,
            label_of=label_of,
            why=_why,
            columns_of=client_columns,
            not_shown=not_shown,
            number=cell,
            most=MAX_GUESSES,
        )
    )
    return whole.rstrip() + "\n"


def _why(a: VariantAnswer) -> str:
    """The answer and its grounds in sentences."""
    f = a.finding
    facts = [f.statement, *a.grounds]
    if f.estimate is not None:
        facts.append(f"Bound: {a.bound}. Trust: {a.trusted}.")
    facts += [s for s in (a.method, a.to_measure) if s]
    if f.source:
        facts.append(f"Source: {f.source}.")
    return " ".join(facts)
