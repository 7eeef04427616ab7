"""The report for a pull request: a table of questions and variants, then the details."""

from __future__ import annotations

from collections.abc import Sequence

from fedaudit.reporting import environment
from fedaudit.reporting.chapter import Chapter, notices_of
from fedaudit.reporting.overview import VariantAnswer, parts
from fedaudit.reporting.rules import RULES, VERDICTS, label_of
from fedaudit.reporting.text import cell
from fedaudit.results import AuditResult

MOST = 50
"""Rows of guesses that are shown: people read a pull request."""


def markdown(chapters: Sequence[Chapter], notices: Sequence[str] = ()) -> str:
    """One or several chapters as Markdown; clients have the names that the chapters give them."""
    divided = parts(chapters)
    plural = "these federations give" if len(divided) > 1 else "this federation gives"
    used = {f.rule for c in chapters for f in c.findings}
    titled = [f"{title}: {notice}" if title else notice for title, notice in notices_of(chapters)]
    whole = (
        environment.markdown()
        .get_template("report.md")
        .render(
            heading=f"What {plural} away",
            notices=[*notices, *titled],
            federations=divided,
            chapters=chapters,
            rules=[rule for rule in RULES.values() if rule.id in used],
            verdicts=VERDICTS,
            label_of=label_of,
            why=_why,
            columns_of=_columns,
            number=cell,
            most=MOST,
        )
    )
    return whole.rstrip() + "\n"


def _columns(r: AuditResult) -> list[str]:
    return list(dict.fromkeys(c for row in r.per_client.values() for c in row))


def _why(a: VariantAnswer) -> str:
    """The answer with everything that it rests on, in sentences."""
    f = a.finding
    facts = [f.statement, *([f"Rests on {f.rests_on}."] if f.rests_on else []), f"Rule {f.cited}."]
    if f.estimate is not None:
        facts.append(f"Bound: {a.bound}. Trust: {a.trusted}.")
        if f.estimate.method:
            facts.append(f"Interval: {f.estimate.method}, n = {f.estimate.n}.")
    if a.needed:
        facts.append(f"To measure it: {a.needed}.")
    if f.source:
        facts.append(f"Source: {f.source}.")
    return " ".join(facts)
