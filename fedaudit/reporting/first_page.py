"""First page of a report: who can learn what, what an alternative leaves and costs, what to do.

Everything here is chosen by fields: verdicts, estimates, and what the audits declare about
themselves (`audits.facts`). No audit is named.
"""

from __future__ import annotations

import math
import os
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from fedaudit.audits import facts_of
from fedaudit.audits.facts import base_name
from fedaudit.reporting.chapter import Chapter
from fedaudit.reporting.findings import ORDER, against, decision_for, number, words_for
from fedaudit.reporting.overview import (
    FederationOverview,
    QuestionRow,
    VariantAnswer,
    consequence,
)
from fedaudit.reporting.rules import KNOWN, VERDICTS, label_of, observer
from fedaudit.results import AuditResult, Estimate, Verdict

LEAKING = ("disagreement", "leak")
OPEN = ("failed", "nothing_to_say", "unscored")
MOST_NAMED = 3
"""Largest number of leaks that a sentence names; the matrix has all."""
FEW = 3
"""Largest number of clients that stand out together; more cannot be told apart."""


@dataclass(frozen=True)
class MatrixCell:
    """One question under one protection: `words` from the table of verdicts, and its number.

    `than`: what a number that is no evidence is no more than; read without it, the number would be
    taken for a leak. `unit` stands before the number.
    """

    verdict: str
    words: str
    number: str = ""
    beside: str = ""
    than: str = ""
    unit: str = ""

    @property
    def text(self) -> str:
        value = f"{self.unit} {self.number}".strip()
        if self.than:
            return f"{self.words}: {', '.join(filter(None, (value, self.than)))}"
        return f"{self.words} {value}".rstrip()


class MatrixRow(NamedTuple):
    """One question: the audit, its words, who looks, and a cell per variant."""

    audit: str
    question: str
    observers: str
    cells: tuple[MatrixCell, ...]


@dataclass(frozen=True)
class CostRow:
    """Costs of the protections, one text per variant; `short` is shown on a narrow terminal."""

    label: str
    texts: tuple[str, ...]
    short: tuple[str, ...] = ()


@dataclass(frozen=True)
class WorstFinding:
    """One of the worst findings, in a sentence."""

    audit: str
    verdict: Verdict
    sentence: str


@dataclass(frozen=True)
class NextStep:
    """The step after switching on what was tested: what for, and a command to paste."""

    why: str
    command: str


@dataclass(frozen=True)
class FederationSummary:
    """One federation on the first page.

    `about`: data, clients, rounds and model in a line. `worst`: the worst findings of the first
    variant.
    """

    name: str
    about: str
    variants: tuple[str, ...]
    rows: tuple[MatrixRow, ...]
    costs: tuple[CostRow, ...]
    today: str
    alternative: str
    step: NextStep | None
    worst: tuple[WorstFinding, ...]


ABOUT = ("data", "federation")
"""Entries of a chapter's summary that stand above the matrix."""
NOT_ASKED = MatrixCell("not_asked", "not asked")


@dataclass(frozen=True)
class KeyEntry:
    """A word of the matrix and its meaning; `verdict` names its colour."""

    verdict: str
    words: str
    meaning: str


def key_of(summaries: Sequence[FederationSummary]) -> list[KeyEntry]:
    """The words that the matrices hold, and no others; worst first."""
    cells = [c for s in summaries for row in s.rows for c in row.cells]
    used = {c.words for c in cells}
    labels: dict[str, tuple[str, str]] = {
        label.words: (v, label.meaning) for v, label in VERDICTS.items()
    }
    labels[KNOWN.words] = ("leak", KNOWN.meaning)
    labels[NOT_ASKED.words] = (NOT_ASKED.verdict, "not tested; a leak may exist")
    found = [KeyEntry(v, words, text) for words, (v, text) in labels.items() if words in used]
    if any(c.unit == SPOKEN["area"] for c in cells):
        found.append(KeyEntry("", SPOKEN["area"], "0.5 is guessing, 1 is always right"))
    return found


def summarise(part: FederationOverview, place: str = "") -> FederationSummary:
    """The first page of one federation; `place` is the folder of the report in commands."""
    best = best_alternative(part)
    return FederationSummary(
        name=part.federation,
        about="; ".join(filter(None, (part.chapters[0].summary.get(k) for k in ABOUT))),
        variants=tuple(part.variants),
        rows=tuple(
            MatrixRow(q.audit, short_question(q), _observers(q), tuple(_cells(q)))
            for q in part.questions
        ),
        costs=_costs(part),
        today=_today(part),
        alternative=_alternative(part, best),
        step=_next_step(part, best, place),
        worst=tuple(_worst(part)),
    )


def short_question(q: QuestionRow) -> str:
    """The question in a few words, as its audit declares it."""
    headline = next((a.finding.measure for a in q.all_answers), None)
    return words_for(q.audit, headline).short or q.audit.replace("_", " ").capitalize()


# -- matrix ---------------------------------------------------------------------------------------


def worst_of(answers: Sequence[VariantAnswer]) -> VariantAnswer | None:
    return min(answers, key=lambda a: ORDER[a.finding.verdict], default=None)


def _cells(q: QuestionRow) -> list[MatrixCell]:
    """The row of a question, all numbers in one unit."""
    alike = one_unit(q)
    return [_cell(worst_of(answers), alike=alike) for answers in q.answers]


def one_unit(q: QuestionRow) -> bool:
    """Whether the readings that decided are in one unit; if not, the headlines stand in a row,
    each with the reading that decided beside it."""
    answered = [a for of in q.answers if (a := worst_of(of)) is not None]
    return len({unit_of(a) for a in answered if a.finding.estimate is not None}) <= 1


def _cell(a: VariantAnswer | None, *, alike: bool) -> MatrixCell:
    if a is None:
        return NOT_ASKED
    words, (measure, e) = label_of(a.finding).words, shown_reading(a, alike=alike)
    if e is None:
        # why a question stayed open is said here; that one does not arise, in its card
        need = a.result.need if a.result is not None and a.finding.verdict in OPEN else None
        return MatrixCell(a.finding.verdict, words, beside=need.what if need else "")
    unit, percent = unit_of(a, measure)
    if math.isinf(e.high):  # known from below only: no number that could be read as the answer
        least = f"{unit} at least {number(e.value, percent)}"
        return MatrixCell(
            a.finding.verdict, words, beside=", ".join(filter(None, (least, _most(a))))
        )
    quiet, facts = a.finding.verdict == "no_evidence", [span(e, percent, unit)]
    # a baseline of zero needs no words
    base = whole(f"{a.against} {against(e, percent)}") if e.baseline else ""
    if (counted := _counted(a, e)) and quiet:
        least = "none below" if a.result and not a.result.greater_is_leak else "none beyond"
        than = f"{least} {base}" if base else "none found"
        return MatrixCell("no_evidence", words, "", f"{number(e.value)} {counted}", than)
    shown = value_text(e.value, unit, percent)
    shown += f" ({a.finding.client})" if a.finding.client is not None else ""
    if counted:
        facts = [counted]
    if not quiet:
        facts.append(base)
    decided = f"decided by {reading(a)}" if measure != decisive(a).measure else _corrected(a, e)
    beside = ", ".join(filter(None, [*facts, assumed(a, measure), decided, granted(a)]))
    than = base if quiet else ""
    return MatrixCell(a.finding.verdict, words, shown, whole(beside), than, unit)


def _counted(a: VariantAnswer, e: Estimate) -> str:
    """What an exact headline counts, with its names where the result lists them; else empty."""
    words = words_for(a.finding.audit)
    if words.counted is None or a.result is None or a.finding.measure != a.result.headline:
        return ""
    names = a.result.settings.get(words.counted_in, ()) if e.value else ()
    noun = words.counted[e.value != 1] + (f" ({listed(names)})" if names else "")
    return f"{noun}, counted exactly" if e.confidence >= 1 else f"{noun}, {span(e)}"


def reading(a: VariantAnswer) -> str:
    """The reading that decided: "AUC 0.592 (0.514 to 0.671, chance 0.5)"."""
    e, (unit, percent) = decisive(a).estimate, unit_of(a)
    if e is None:
        return ""
    base = f", {a.against} {against(e, percent)}" if e.baseline else ""
    value = f"{unit} {value_text(e.value, unit, percent)}".lstrip()
    return f"{value} ({span(e, percent, unit)}{base})"


def _corrected(a: VariantAnswer, e: Estimate) -> str:
    """The p-value behind a verdict over several readings, where the interval of the reading that
    is shown would suggest another verdict; empty otherwise."""
    test = None if a.result is None else a.result.test
    if test is None or e.baseline is None or a.finding.client is not None or a.finding.known:
        return ""
    beyond = not e.low <= e.baseline <= e.high
    if beyond == test.significant:
        return ""
    return f"but p {test.p_value:.2g} over all tries"


def assumed(a: VariantAnswer, measure: str) -> str:
    """What a reading assumes beyond the headline: "if it plants weights"; mostly empty."""
    declared = facts_of(a.finding.audit).measure(measure)
    return f"if {declared.given}" if declared is not None and declared.given else ""


def granted(a: VariantAnswer) -> str:
    """What a stronger observer reaches where no leak showed: "but 100 % if ..."; else empty.

    Readings that the verdict's own test has weighed are left out.
    """
    if a.finding.verdict != "no_evidence" or a.result is None:
        return ""
    declared = facts_of(a.finding.audit)
    weighed = () if a.result.test is None else a.result.test.adjusted
    for name, e in a.result.estimates.items():
        measure = declared.measure(name)
        if measure is None or not measure.given or e.baseline is None or name in weighed:
            continue
        if measure.worse * (e.low if measure.worse > 0 else e.high) > measure.worse * e.baseline:
            shown = number(e.value, measure.unit.startswith("share"))
            return f"but {shown} if {measure.given}"
    return ""


def whole(text: str) -> str:
    """Whole percentages without decimals, where space is short."""
    return text.replace(".0 %", " %").replace(".0 to", " to")


def _observers(q: QuestionRow) -> str:
    """Who looks, over all protections."""
    answered = [a for of in q.answers if (a := worst_of(of)) is not None]
    measured = [a for a in answered if a.finding.estimate is not None] or answered
    return " / ".join(dict.fromkeys(observer(a.finding.vantage) for a in measured))


def _most(a: VariantAnswer) -> str:
    """The tightest upper bound in few words, beside a value that is known from below only."""
    tight = next((b for b in a.bounds if b.kind == "upper"), None)
    if tight is None:
        return ""
    return f"at most {number(tight.value)}" + (f" by {tight.assumes}" if tight.assumes else "")


class Decisive(NamedTuple):
    """The estimate behind a verdict, and its full name."""

    measure: str
    estimate: Estimate | None


def decisive(a: VariantAnswer) -> Decisive:
    """The headline, or the reading that decided a test over several (rule L5)."""
    test = None if a.result is None else a.result.test
    headline = Decisive(a.finding.measure or "", a.finding.estimate)
    if a.result is None or test is None or a.finding.client is not None or a.finding.known:
        return headline
    if not test.significant or test.decided == a.result.headline:
        return headline
    return Decisive(test.decided, a.result.estimates[test.decided])


def shown_reading(a: VariantAnswer, *, alike: bool) -> Decisive:
    """The reading that a row shows: that which decided, if all in the row are `alike` in unit."""
    return decisive(a) if alike else Decisive(a.finding.measure or "", a.finding.estimate)


SPOKEN = {"area": "AUC", "epsilon": "epsilon", "share": ""}
"""First word of a measure's unit -> what stands before its number."""


def unit_of(a: VariantAnswer, measure: str | None = None) -> tuple[str, bool]:
    """What stands before the number of an answer, and whether it is a percentage; by default of
    the measure that decided."""
    measure = decisive(a).measure if measure is None else measure
    declared = facts_of(a.finding.audit).measure(measure)
    unit = "" if declared is None else declared.unit.partition(" ")[0]
    if measure == a.finding.measure:
        return SPOKEN.get(unit, ""), a.percent
    return SPOKEN.get(unit, base_name(measure).replace("_", " ")), unit == "share"


def value_text(value: float, unit: str = "", percent: bool = False) -> str:
    """A number on the first page: whole percentages without decimals, areas with three."""
    return f"{value:.3f}" if unit == SPOKEN["area"] else whole(number(value, percent))


def span(e: Estimate, percent: bool = False, unit: str = "") -> str:
    """The interval without its level: "35.8 to 63.2 %"; "exact" for an exact value."""
    if e.confidence >= 1 and e.low == e.high:
        return "exact"
    low, high = (value_text(v, unit, percent) for v in (e.low, e.high))
    return f"{low.removesuffix(' %')} to {high}"


def _costs(part: FederationOverview) -> tuple[CostRow, ...]:
    """Rows below the matrix: held-out quality, epsilon, trust, the most exposed client, basis."""
    chapters, name = part.chapters, utility_of(part.chapters)
    rows = []
    if name is not None:
        known = [c.utility[name] for c in chapters]
        values = [number(e.value, name == "accuracy") for e in known]
        texts = [f"{v} ({span(e, name == 'accuracy')})" for v, e in zip(values, known, strict=True)]
        rows.append(CostRow(f"held-out {name}", tuple(texts), tuple(values)))
    promised = [epsilon_of(c, UNITS) for c in chapters]
    rows += [
        CostRow(
            EPSILON,
            tuple(text or "no promise" for text in promised),
            tuple(text.partition(" ")[0] or "none" for text in promised),
        ),
        CostRow("must be trusted", tuple(map(_trusted, chapters))),
        CostRow("most exposed client", tuple(_exposed(part, i) for i in range(len(chapters)))),
    ]
    if any(c.expected for c in chapters):
        rows.append(CostRow("updates received", tuple(map(_basis, chapters))))
    return tuple(rows)


def utility_of(chapters: Sequence[Chapter]) -> str | None:
    """The held-out metric that all chapters share: accuracy before others; None without one."""
    names = [n for n in chapters[0].utility if all(n in c.utility for c in chapters)]
    return "accuracy" if "accuracy" in names else names[0] if names else None


EPSILON = "epsilon promised"
UNITS = {"example": "example (a record may have several)"}
"""Unit of an epsilon -> its words below the matrix; others go by their names."""


def epsilon_of(chapter: Chapter, units: Mapping[str, str] | None = None) -> str:
    """The largest epsilon that a client was promised, with its unit; empty without one. `units`:
    unit -> what it is called."""
    out = []
    for given in chapter.guarantees.values():
        known = [g for g in given.values() if isinstance(g, Mapping) and "epsilon" in g]
        if known:
            worst = max(known, key=lambda g: float(g["epsilon"]))
            unit = str(worst.get("unit", "unit"))
            out.append(f"{float(worst['epsilon']):.3g} per {(units or {}).get(unit, unit)}")
    return "; ".join(out)


def _trusted(chapter: Chapter) -> str:
    return (
        "; ".join(dict.fromkeys(who for who in chapter.trust.values() if who))
        or "all who see messages"
    )


def _basis(chapter: Chapter) -> str:
    if not chapter.expected:
        return "not known"
    text = f"{chapter.arrived:,} of {chapter.expected:,}"
    each, rest = divmod(chapter.expected, max(len(chapter.clients), 1))
    even = chapter.clients and not rest and chapter.arrived == chapter.expected
    return f"{text}, {each} per client" if even else text


# -- clients --------------------------------------------------------------------------------------


def _exposed(part: FederationOverview, i: int) -> str:
    """The client whose own interval lies farthest above chance in any attack that found a leak."""
    found: list[tuple[float, str, str]] = []
    for q in part.questions:
        a = worst_of(q.answers[i])
        if a is None or a.result is None or a.finding.verdict != "leak":
            continue
        if a.finding.client is not None and a.finding.estimate is not None:
            text = number(a.finding.estimate.value, a.percent)
            found.append((2.0, a.finding.client, f"{text}, “{short_question(q)}”"))
            continue
        own = own_intervals(a.result)
        top = max(own.values(), default=0.0)
        tied = [name for name, way in own.items() if way == top]
        if top > 0 and len(tied) <= FEW and len(tied) < len(own) / 2:
            value = client_text(a, a.result, tied[0])
            if decisive(a).measure != a.finding.measure and a.finding.estimate is not None:
                # clients are told by the headline, and another reading stands in the matrix
                value += f", all {number(a.finding.estimate.value, a.percent)}"
            found.append((top, listed(tied), f"{value}, “{short_question(q)}”"))
    if found:
        _, who, why = max(found, key=lambda f: f[0])
        return f"{who}: {why}"
    leaks = any(
        (a := worst_of(q.answers[i])) and a.finding.verdict == "leak" for q in part.questions
    )
    return "cannot be told apart" if leaks else "none stands out"


def client_text(a: VariantAnswer, result: AuditResult, client: str) -> str:
    """A client's own value of the headline and its interval, with the headline's unit."""
    row, (unit, percent) = result.per_client[client], unit_of(a, result.headline)
    found = (row.get(decision_for(result.audit).client_value), row.get("low"), row.get("high"))
    known = [v for v in found if isinstance(v, int | float)]
    value, low, high = (value_text(v, unit, percent) for v in known)
    return f"{unit} {value} ({low.removesuffix(' %')} to {high})".lstrip()


def own_intervals(result: AuditResult) -> dict[str, float]:
    """Client -> how far its interval lies above chance, as a share of the way to the top."""
    column = decision_for(result.audit).client_value
    if not column or result.headline is None or not result.greater_is_leak:
        return {}
    baseline = result.estimates[result.headline].baseline or 0.0
    out = {}
    for name, row in result.per_client.items():
        low, chance = row.get("low"), row.get("chance", baseline)
        if column in row and isinstance(low, int | float) and isinstance(chance, int | float):
            out[name] = (low - chance) / (1 - chance) if chance < 1 else 0.0
    return out


# -- sentences ------------------------------------------------------------------------------------


def severity(a: VariantAnswer) -> tuple[float, ...]:
    """Sort key, worst first: verdict, gravity, what needs no attack, then the share of the way from
    chance to the most that is possible."""
    f = a.finding
    return ORDER[f.verdict], consequence(f.audit), -f.known, -_way(a)


def _way(a: VariantAnswer) -> float:
    """Share of the way from chance to the most that the near end of the interval has gone; 0 for
    what is no share."""
    e = a.finding.estimate
    if e is None:
        return 0.0
    base = e.baseline or 0.0
    if a.result is not None and not a.result.greater_is_leak:
        return (base - e.high) / base if base > 0 else 0.0
    if max(e.value, e.low, base) <= 1 and base < 1:
        return (e.low - base) / (1 - base)
    return 0.0


def _of_variant(part: FederationOverview, i: int) -> list[VariantAnswer]:
    """The worst answer to every question under one protection, worst first."""
    every = [worst_of(q.answers[i]) for q in part.questions]
    return sorted((a for a in every if a is not None), key=severity)


def _leaks(part: FederationOverview, i: int) -> list[VariantAnswer]:
    return [a for a in _of_variant(part, i) if a.finding.verdict in LEAKING]


def can(a: VariantAnswer) -> str:
    """What the observer can do, in words that follow "can"."""
    measure, e = decisive(a)
    words, percent = words_for(a.finding.audit, measure), unit_of(a)[1]
    if not words.learns or e is None:
        return f"answer: {a.finding.question}" if a.finding.question else "learn about clients"
    base = "" if e.baseline is None else number(e.baseline, percent)
    what = words.learns.format(value=value_text(e.value, percent=percent), baseline=base)
    return f"{what} {assumed(a, measure)}".rstrip()


def _who_can(answers: Sequence[VariantAnswer]) -> str:
    """ "the server can X and Y; the wiretap can Z", by observer."""
    per: dict[str, list[str]] = {}
    for a in answers:
        per.setdefault(observer(a.finding.vantage), []).append(can(a))
    parts = [f"{who} can {listed(what)}" for who, what in per.items()]
    return "; ".join(parts)


def listed(texts: Sequence[str]) -> str:
    texts = list(dict.fromkeys(texts))
    return " and ".join([", ".join(texts[:-1]), texts[-1]] if len(texts) > 1 else texts)


def _today(part: FederationOverview) -> str:
    every, leaks = _of_variant(part, 0), _leaks(part, 0)
    if not leaks:
        unsure = sum(a.finding.verdict in OPEN for a in every)
        text = f"Today none of {len(every)} questions shows a leak"
        return text + (f"; {unsure} could not be answered." if unsure else ".")
    broken = [a for a in leaks if a.finding.verdict == "disagreement"]
    if broken:
        return f"Theory and measurement disagree: {broken[0].finding.statement}"
    named = _gravest(leaks)
    more = [a for a in leaks if a not in named]
    return f"Today {_who_can(named)}{_more(more)}."


def _gravest(leaks: Sequence[VariantAnswer]) -> list[VariantAnswer]:
    """The leaks that a sentence names: all if they are few, else the worst of every gravity."""
    if len(leaks) <= MOST_NAMED + 1:
        return list(leaks)
    first: dict[int, VariantAnswer] = {}
    for a in leaks:
        first.setdefault(consequence(a.finding.audit), a)
    return list(first.values())[:MOST_NAMED]


def _more(leaks: Sequence[VariantAnswer]) -> str:
    """Leaks that a sentence does not name, by who has them."""
    if not leaks:
        return ""
    to = Counter(observer(a.finding.vantage) for a in leaks)
    other = [f"{n} to {who}" for who, n in list(to.items())[1:]]
    return ", ".join([f"; {len(leaks)} more leaks", *other])


@dataclass(frozen=True)
class Alternative:
    """One protection compared with the first one: what still leaks, what stays open (`unsure`: it
    was asked, `unasked`: it leaked before and was not asked here)."""

    index: int
    leaks: tuple[VariantAnswer, ...]
    unsure: tuple[str, ...]
    unasked: tuple[str, ...]
    lost: float
    trusted: int

    @property
    def rank(self) -> tuple[float, ...]:
        # a question that was not answered may hide a leak
        still_open = len(self.unsure) + len(self.unasked)
        # of as many leaks, the weaker ones; a tenth of the way is no difference
        way = round(sum(max(_way(a), 0.0) for a in self.leaks), 1)
        return len(self.leaks) + still_open, len(self.leaks), way, self.lost, self.trusted


def best_alternative(part: FederationOverview) -> Alternative | None:
    """The measured protection that leaves fewest and weakest leaks, of equals the cheapest."""
    others = [_alternative_at(part, i) for i in range(1, len(part.chapters))]
    return min(others, key=lambda a: a.rank, default=None)


def _alternative_at(part: FederationOverview, i: int) -> Alternative:
    unsure, unasked = [], []
    for q in part.questions:
        before, now = worst_of(q.answers[0]), worst_of(q.answers[i])
        if now is not None and (now.finding.verdict in OPEN or granted(now)):
            unsure.append(short_question(q))
        elif now is None and before is not None and before.finding.verdict in LEAKING:
            unasked.append(short_question(q))
    name = utility_of(part.chapters)
    lost = float("inf")
    if name is not None:
        change = part.chapters[0].utility[name].value - part.chapters[i].utility[name].value
        lost = change if name == "accuracy" else -change
    trusted = len([who for who in part.chapters[i].trust.values() if who])
    leaks = tuple(_leaks(part, i))
    return Alternative(i, leaks, tuple(unsure), tuple(unasked), lost, trusted)


def _alternative(part: FederationOverview, best: Alternative | None) -> str:
    if best is None:
        remedies = dict.fromkeys(a.finding.remedy for a in _leaks(part, 0) if a.finding.remedy)
        helps = f" What may help: {next(iter(remedies))}." if remedies else ""
        return f"No other protection was measured.{helps}"
    chapter = part.chapters[best.index]
    eps = epsilon_of(chapter)
    # a protection that leaves a leak is no answer, and is not offered as one
    notes = [*([f"epsilon {eps}"] if eps else []), *(["not enough"] if best.leaks else [])]
    named = f"“{part.variants[best.index]}”" + (f" ({'; '.join(notes)})" if notes else "")
    left = []
    if best.leaks:
        titles = [_title(part, a) for a in best.leaks]
        titles[1:] = [f"{len(titles) - 1} more"] if len(titles) > 2 else titles[1:]
        left.append(f"leaks left: {listed(titles)}")
    else:
        left.append("no leak showed")
    for word, questions in (("unsure", best.unsure), ("not asked", best.unasked)):
        if questions:
            left.append(f"{word}: {listed([f'“{text}”' for text in questions])}")
    left.append(cost_of(part, best.index) or "its cost is not known")
    return f"Now use {named}; {'; '.join(left)}; trust: {_trusted(chapter)}."


def _title(part: FederationOverview, a: VariantAnswer) -> str:
    """The question of a leak, and its number."""
    cell = _cell(a, alike=one_unit(_row_of(part, a)))
    value = f"{cell.unit} {cell.number}".strip()
    return f"“{short_question(_row_of(part, a))}”" + (f" ({value})" if value else "")


def cost_of(part: FederationOverview, i: int) -> str:
    """What a protection costs in held-out quality, beside the first one; empty if not known."""
    name = utility_of(part.chapters)
    if name is None:
        return ""
    before, after = (part.chapters[k].utility[name].value for k in (0, i))
    shown = [number(v, name == "accuracy") for v in (before, after)]
    now = f"{shown[1]} ({span(part.chapters[i].utility[name], name == 'accuracy')})"
    if shown[0] == shown[1]:
        return f"{name} stays {now}"
    return f"{name} {shown[0]} becomes {now}"


def _worst(part: FederationOverview) -> list[WorstFinding]:
    """The worst findings of the first variant: leaks if there are any."""
    out = []
    for a in _leaks(part, 0) or _of_variant(part, 0):
        cell = _cell(a, alike=True)
        value = f"{cell.unit} {cell.number}".strip()
        if a.finding.verdict == "leak":
            counted = words_for(a.finding.audit).counted
            e = a.finding.estimate
            many = f"{value} {counted[e.value != 1]}" if counted and e else value
            who = _who_can([a])
            said = bool(cell.number) and cell.number in who  # "rebuild 37.3 % of records"
            shown = ", ".join(filter(None, ("" if said else many, _chance(a))))
            text = f"{who} ({shown})." if shown else f"{who}."
        elif a.finding.verdict == "disagreement":
            text = a.finding.statement
        elif a.finding.estimate is None:
            missing = f"{a.finding.statement} {a.finding.remedy}".strip()
            text = f"{short_question(_row_of(part, a))} {missing}"
        else:
            facts = ", ".join(filter(None, (value, cell.than)))
            facts = f"{facts} ({cell.beside})" if facts else cell.beside
            text = f"{short_question(_row_of(part, a))} {facts}"
        out.append(WorstFinding(a.finding.audit, a.finding.verdict, text))
    return out


def _chance(a: VariantAnswer) -> str:
    e = decisive(a).estimate
    if e is None or not e.baseline:
        return ""
    return whole(f"{a.against} {against(e, unit_of(a)[1])}")


def _row_of(part: FederationOverview, a: VariantAnswer) -> QuestionRow:
    return next(q for q in part.questions if q.audit == a.finding.audit)


# -- next step ------------------------------------------------------------------------------------


def _next_step(part: FederationOverview, best: Alternative | None, place: str) -> NextStep | None:
    """What to run next: repair, search for a protection, measure more, or fix limits."""
    base, last = part.chapters[0], part.chapters[0 if best is None else best.index]
    left = list(best.leaks) if best is not None else _leaks(part, 0)
    answers = _of_variant(part, 0 if best is None else best.index)
    unsure = [a for a in answers if a.finding.verdict in OPEN]
    if base.folder is None:
        return None
    if any(a.finding.verdict == "disagreement" for a in left):
        return NextStep("First, IT", _command("verify", _at(last, place)))
    if left and base.config:
        config = os.path.join(_at(base, place), "config.toml")
        return NextStep(
            "Then, IT",
            _command("harden", config, "--limit", "verdict"),
        )
    if left and base.trust:
        return None  # a recording behind a protection: another one on top would not be this one
    if left:
        return NextStep(
            "Then, IT",
            _command("audit", _at(base, place), "--as", "secure_sum"),
        )
    if unsure:
        return NextStep(
            "Then, IT",
            _command("power", _at(last, place), "--audit", unsure[0].finding.audit),
        )
    return NextStep(
        "Then, IT",
        _command("gate", _at(last, place), "--init", "policy.toml"),
    )


def _at(chapter: Chapter, place: str) -> str:
    """The folder of a run in a command; `place` is the folder of the report that names it."""
    assert chapter.folder is not None
    return os.path.normpath(os.path.join(place, chapter.folder))


def _command(*words: str) -> str:
    return shlex.join(["fedaudit", *words])


def shown_place(folder: Path) -> str:
    """The report's folder as a report may show it: its name, not where it lies."""
    return folder.resolve().name
