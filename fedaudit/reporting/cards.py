"""One folded card per question: a picture of all protections, what helps, and what it costs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from markupsafe import Markup

from fedaudit.reporting.audit import AuditSection, by_audit
from fedaudit.reporting.findings import ORDER, number
from fedaudit.reporting.first_page import (
    LEAKING,
    OPEN,
    cost_of,
    decisive,
    listed,
    one_unit,
    reading,
    short_question,
    shown_reading,
    span,
    unit_of,
    worst_of,
)
from fedaudit.reporting.overview import FederationOverview, QuestionRow, VariantAnswer
from fedaudit.reporting.rules import label_of
from fedaudit.reporting.scale import ScaleRow, scale


@dataclass(frozen=True)
class CardPart:
    """One federation in a card. `rows` stands in words where nothing was measured; `helped` are
    protections under which the leak did not show, `lines` what else there is to say."""

    heading: str
    picture: Markup
    rows: tuple[ScaleRow, ...]
    helped: tuple[str, ...]
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Card:
    """One question in all federations; `detail` is its method, numbers and sources."""

    audit: str
    title: str
    verdict: str
    words: str
    tally: str
    parts: tuple[CardPart, ...]
    detail: AuditSection


def cards(overviews: Sequence[FederationOverview]) -> Iterator[Card]:
    """One card per question, in the order of the matrices."""
    sections = {section.audit: section for section in by_audit(overviews)}
    for audit, section in sections.items():
        asked = [(p, q) for p in overviews for q in p.questions if q.audit == audit]
        found = [a for _, q in asked for own in q.answers if (a := worst_of(own)) is not None]
        if not found:
            continue
        worst = min(found, key=lambda a: ORDER[a.finding.verdict])
        yield Card(
            audit=audit,
            title=short_question(asked[0][1]),
            verdict=worst.finding.verdict,
            words=label_of(worst.finding).words,
            tally=_tally(worst, found, sum(len(p.variants) for p, _ in asked)),
            parts=tuple(_part(p, q, named=len(overviews) > 1) for p, q in asked),
            detail=section,
        )


def _tally(worst: VariantAnswer, found: Sequence[VariantAnswer], columns: int) -> str:
    """In how many of the columns the worst verdict was given, in each of its words."""
    alike = [label_of(a.finding).words for a in found if a.finding.verdict == worst.finding.verdict]
    own = label_of(worst.finding).words
    more = [f"{words} in {alike.count(words)}" for words in dict.fromkeys(alike) if words != own]
    if columns == 1:
        return ""
    return f"{', '.join([f'in {alike.count(own)}', *more])} of {columns} columns"


def _part(part: FederationOverview, q: QuestionRow, *, named: bool) -> CardPart:
    rows, lines, percent, alike = [], [], False, one_unit(q)
    for name, answers in zip(part.variants, q.answers, strict=True):
        a = worst_of(answers)
        if a is None:
            rows.append(ScaleRow(name, "not_asked", "not asked"))
            continue
        percent = percent or a.percent
        rows.append(_row(name, a, alike=alike))
        if (shown := decisive(a)).estimate is not None and shown.measure != a.finding.measure:
            lines.append(f"“{name}”: {_decided(a, alike=alike)}")
    helped, more = _helps(part, q)
    return CardPart(
        heading=part.federation if named else "",
        picture=scale(rows, percent=percent),
        rows=tuple(rows),
        helped=tuple(helped),
        lines=(*lines, *more),
    )


def _row(name: str, a: VariantAnswer, *, alike: bool) -> ScaleRow:
    """The number that the first page shows; bounds are on the headline."""
    measure, e = shown_reading(a, alike=alike)
    unit, percent = unit_of(a, measure)
    row = ScaleRow(
        name, a.finding.verdict, label_of(a.finding).words, e, unit=unit, percent=percent
    )
    if measure != a.finding.measure:
        return row
    bound = next((b.value for b in a.bounds if math.isfinite(b.value)), None)
    return replace(row, bound=bound, shows=_shows(a))


def _decided(a: VariantAnswer, *, alike: bool) -> str:
    """The reading that decided: shown in place of the headline, or named beside it."""
    shown, e = decisive(a).measure, a.finding.estimate
    if not alike:
        return f"decided by {reading(a)}."
    text = f"shown is {_spoken(shown)}, which decided"
    if e is None or a.finding.measure is None:
        return f"{text}."
    value = f"{number(e.value, a.percent)} ({span(e, a.percent)}, {a.against} {a.chance})"
    return f"{text}; {_spoken(a.finding.measure)} is {value}."


def _spoken(measure: str) -> str:
    return " ".join("AUC" if word == "auc" else word for word in measure.replace("_", " ").split())


def _shows(a: VariantAnswer) -> float | None:
    """The smallest leak that would have been seen, where none was."""
    quiet = a.finding.verdict in ("no_evidence", "nothing_to_say")
    seen = None if a.result is None or not quiet else a.result.detectable
    return None if seen is None or math.isinf(seen) else seen


def _helps(part: FederationOverview, q: QuestionRow) -> tuple[list[str], list[str]]:
    """Protections that removed the first variant's leak, with their cost; and those that did not,
    with advice that was not tried there."""
    first = worst_of(q.answers[0])
    if first is None or first.finding.verdict not in LEAKING:
        return [], []
    helped, still, unsure, advice = [], [], [], first.finding.remedy
    for i, name in list(enumerate(part.variants))[1:]:
        a = worst_of(q.answers[i])
        if a is None:
            continue
        if a.finding.verdict in LEAKING:
            still.append(f"“{name}”")
            advice = a.finding.remedy
        elif a.finding.verdict in OPEN:
            unsure.append(f"“{name}”")
        else:
            cost = cost_of(part, i)
            words = label_of(a.finding).words
            helped.append(f"“{name}”: {words}" + (f"; {cost}" if cost else ""))
    lines = [f"Still a leak with {listed(still)}."] if still else []
    lines += [f"Not settled with {listed(unsure)}."] if unsure else []
    if not helped and advice:
        lines.append(f"What else may help: {advice}.")
    return helped, lines
