"""The report as Markdown for a pull request: the first page, all questions, then details."""

from __future__ import annotations

from collections.abc import Sequence

from fedaudit.reporting import environment
from fedaudit.reporting.chapter import Chapter, notices_of
from fedaudit.reporting.first_page import summarise
from fedaudit.reporting.overview import VariantAnswer, by_federation, report_heading
from fedaudit.reporting.rules import CALIBRATION, RULES, VERDICTS, label_of
from fedaudit.reporting.tables import not_shown
from fedaudit.reporting.text import cell, client_columns

MAX_GUESSES = 50
"""Largest number of guesses in a table."""


def markdown(chapters: Sequence[Chapter], notices: Sequence[str] = (), place: str = "") -> str:
    """One or several chapters as Markdown; `names.renamed` sets the clients' names.

    Every federation begins with what the first page of the HTML report says. `place` is the folder
    of the report in commands.
    """
    overviews = by_federation(chapters)
    used = {f.rule for c in chapters for f in c.findings}
    whole = (
        environment.markdown()
        .get_template("report.md")
        .render(
            heading=report_heading(overviews),
            notices=[*notices, *notices_of(chapters), *notices_of(chapters, "data_notes")],
            federations=overviews,
            first=[summarise(part, place) for part in overviews],
            chapters=chapters,
            rules=[rule for rule in RULES.values() if rule.id in used],
            verdicts=VERDICTS,
            calibration=CALIBRATION,
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
