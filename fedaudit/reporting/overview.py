"""First part of every report: one row per question, one answer per variant."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from fedaudit.audits import facts_of
from fedaudit.audits.facts import GRAVITIES
from fedaudit.protections.declared import in_force
from fedaudit.reporting.chapter import Chapter
from fedaudit.reporting.findings import ORDER, against, interval, number, words_for
from fedaudit.reporting.rules import VERDICTS, observer
from fedaudit.results import AuditResult, Bound, Estimate, Finding

SHOWS = "a leak would show"


def bound_text(b: Bound, percent: bool = False) -> str:
    """A bound in words: value, what it covers, unit, relation, source, assumption."""
    if math.isinf(b.value):
        return f"none that is finite ({b.source})"
    kind = "no guarantee, " if b.kind == "reference" else ""
    most = "" if kind else "at least " if b.kind == "lower" else "at most "
    assumes = f"assumes {b.assumes}" if b.assumes else ""
    about = "; ".join(text for text in (b.scope, f"{kind}{b.source}", assumes) if text)
    return f"{most}{number(b.value, percent)} ({about})"


@dataclass(frozen=True)
class VariantAnswer:
    """One finding of one chapter, with the result behind it."""

    chapter: Chapter
    finding: Finding
    result: AuditResult | None

    @property
    def percent(self) -> bool:
        return words_for(self.finding.audit).percent and self.finding.verdict != "disagreement"

    @property
    def value(self) -> str:
        """`value [low, high] at 95 %`, a count with its noun, or "not measured"."""
        e = self.finding.estimate
        if e is None:
            return "not measured"
        if self.finding.client is not None:
            return f"{self.finding.client}: {interval(e, self.percent)}"
        counted = words_for(self.finding.audit).counted
        other = self.result is not None and self.finding.measure != self.result.headline
        if counted is None or other or self.finding.verdict == "disagreement":
            return interval(e, self.percent)
        text = f"{number(e.value)} {counted[e.value != 1]}"
        if e.confidence >= 1 and e.low == e.high:
            return f"{text}, counted exactly"
        return text + interval(e).removeprefix(number(e.value))

    @property
    def n(self) -> str:
        """Number of independent observations; empty for an exact count."""
        e = self.finding.estimate
        return "" if e is None or e.confidence >= 1 or not e.n else f"n = {e.n:,}"

    @property
    def chance(self) -> str:
        e = self.finding.estimate
        return "" if e is None else against(e, self.percent)

    @property
    def against(self) -> str:
        """Name of the baseline: chance, or a threshold."""
        return words_for(self.finding.audit, self.finding.measure).against

    @property
    def bounds(self) -> list[Bound]:
        """Bounds on the measured value, tightest first, theorems before references."""
        r, measure = self.result, self.finding.measure
        if r is None or measure is None:
            return []
        wanted = "upper" if r.greater_is_leak else "lower"
        sign = 1 if r.greater_is_leak else -1
        fit = [b for b in r.bounds.values() if b.of == measure and b.kind in (wanted, "reference")]
        return sorted(fit, key=lambda b: (b.kind == "reference", sign * b.value))

    @property
    def extended(self) -> list[Bound]:
        """Bounds for other numbers of steps or rounds than were measured."""
        r, measure = self.result, self.finding.measure
        every = [] if r is None else r.bounds.values()
        return [b for b in every if b.of == measure and b.kind == "extended"]

    @property
    def bound(self) -> str:
        """The tightest bound in words, and those for other numbers of steps or rounds."""
        if self.finding.estimate is None:
            return ""
        shown = [bound_text(b, self.percent) for b in [*self.bounds[:1], *self.extended]]
        return "; ".join(shown if self.bounds else ["none known", *shown])

    @property
    def visible(self) -> str:
        """Smallest detectable leak, for an answer without a leak."""
        r, e = self.result, self.finding.estimate
        quiet = self.finding.verdict in ("no_evidence", "nothing_to_say")
        if not quiet or r is None or e is None:
            return ""
        if r.detectable is None:
            known = self.finding.verdict == "no_evidence"
            return "" if known else "at an unknown size"
        if math.isinf(r.detectable):
            return "at no size"
        ends = "from {} on" if r.greater_is_leak else "up to {}"
        return ends.format(number(r.detectable, self.percent))

    @property
    def needed(self) -> str:
        """What a measurement needs; empty if there is one."""
        return self.finding.remedy if self.finding.estimate is None else ""

    @property
    def to_measure(self) -> str:
        """The same as a sentence."""
        return f"To measure it: {self.needed}." if self.needed else ""

    @property
    def trusted(self) -> str:
        """Parties that must be honest for the answer to hold."""
        f, held = (
            self.finding,
            [f"{who} ({name})" for name, who in self.chapter.trust.items() if who],
        )
        if f.estimate is None:
            return ""
        others = ", ".join(held)
        if f.verdict in ("no_evidence", "nothing_to_say"):
            return others or f"{observer(f.vantage)}, as no protection is declared"
        besides = f"; {others}" if others else ""
        return f"the good will of {observer(f.vantage)}{besides}"

    @property
    def facts(self) -> list[tuple[str, str]]:
        """(label, text) of all that a measured value is compared with."""
        shown = [(SHOWS, self.visible)] if self.visible else []
        return [
            (self.against, ", ".join(t for t in (self.chance, self.n) if t)),
            *shown,
            ("bound", self.bound),
            ("trust", self.trusted),
        ]

    @property
    def lines(self) -> list[str]:
        """The facts after the baseline as plain text."""
        return [
            f"{label} {text}" if label == SHOWS else f"{label}: {text}"
            for label, text in self.facts[1:]
        ]

    @property
    def grounds(self) -> list[str]:
        """Messages and rule behind the verdict, as sentences."""
        f = self.finding
        rests = [f"Rests on {f.rests_on}."] if f.rests_on else []
        return [*rests, f"Rule {f.cited}."]

    @property
    def method(self) -> str:
        """Method of the interval as a sentence; empty without one."""
        e = self.finding.estimate
        return f"Interval: {e.method}, n = {e.n}." if e is not None and e.method else ""


@dataclass(frozen=True)
class QuestionRow:
    """A question and its answers per chapter, worst first; empty if it was not asked."""

    audit: str
    text: str
    answers: tuple[tuple[VariantAnswer, ...], ...]

    @property
    def all_answers(self) -> list[VariantAnswer]:
        return [a for of in self.answers for a in of]

    def remedies(self, variants: Sequence[str]) -> list[str]:
        """Remedies of the measured answers without repeats, worst answer first.

        If remedies differ, each starts with its `variants`, the names of the chapters.
        """
        found = [
            (a.finding, name)
            for name, own in zip(variants, self.answers, strict=True)
            for a in own
            if a.finding.estimate is not None and a.finding.remedy
        ]
        ranked = sorted(found, key=lambda pair: ORDER[pair[0].verdict])
        per: dict[str, dict[str, None]] = {}
        for f, name in ranked:
            per.setdefault(f.remedy, {})[name] = None
        if len(per) == 1:
            return list(per)
        return [f"{' / '.join(names)}: {text}" for text, names in per.items()]

    @property
    def beside(self) -> list[tuple[str, str, list[str]]]:
        """Measures that the audit shows next to its headline: name, words, a cell per chapter."""
        facts = facts_of(self.audit)
        results = [next((a.result for a in own if a.result), None) for own in self.answers]
        every = [r.estimates if r is not None else {} for r in results]
        names = [n for n in dict.fromkeys(n for of in every for n in of) if facts.shows(n)]
        out = []
        for name in names:
            declared = facts.measure(name)
            words = "" if declared is None else declared.words
            out.append((name, words, [_beside_cell(of.get(name)) for of in every]))
        return out

    @property
    def asked_of(self) -> str:
        """The audit and its observers."""
        seen = ", ".join(dict.fromkeys(a.finding.vantage for a in self.all_answers))
        return self.audit.replace("_", " ") + (f", seen by {seen}" if self.all_answers else "")

    @property
    def sources(self) -> list[str]:
        """Publications of the method, without repeats."""
        every = dict.fromkeys(a.finding.source for a in self.all_answers if a.finding.source)
        # omit a source that is the start of a longer one
        return [s for s in every if not any(o != s and o.startswith(s) for o in every)]


def _beside_cell(e: Estimate | None) -> str:
    return "" if e is None else f"{interval(e)}, baseline {against(e)}"


@dataclass(frozen=True)
class FederationOverview:
    """One federation: its chapters and their questions."""

    federation: str
    chapters: tuple[Chapter, ...]
    questions: tuple[QuestionRow, ...]

    @property
    def line(self) -> str:
        """The federation in one line."""
        first = self.chapters[0].summary
        lines = dict.fromkeys(c.summary.get("federation", "") for c in self.chapters)
        texts = [
            first.get("data", ""),
            " / ".join(line for line in lines if line),
            first.get("model", ""),
        ]
        return "; ".join(text for text in texts if text)

    @property
    def counts(self) -> list[tuple[str, int, str]]:
        """(verdict, count, words) of every verdict given."""
        found = [a.finding.verdict for q in self.questions for a in q.all_answers]
        count = ((v, found.count(v), label.words) for v, label in VERDICTS.items())
        return [(verdict, n, words) for verdict, n, words in count if n]

    @property
    def noted(self) -> list[str]:
        """Notes on the data, without repeats."""
        return list(
            dict.fromkeys(c.summary["noted"] for c in self.chapters if "noted" in c.summary)
        )

    @property
    def variants(self) -> list[str]:
        """A heading per chapter; never empty."""
        return [c.heading for c in self.chapters]


def report_heading(overviews: Sequence[FederationOverview]) -> str:
    subject = "these federations give" if len(overviews) > 1 else "this federation gives"
    return f"What {subject} away"


def by_federation(chapters: Sequence[Chapter]) -> list[FederationOverview]:
    """Chapters grouped by federation, in their order; questions worst first."""
    out = []
    for federation in dict.fromkeys(c.federation for c in chapters):
        own = tuple(c for c in chapters if c.federation == federation)
        audits = dict.fromkeys(
            audit
            for c in own
            for audit in [*(r.audit for r in c.results), *(f.audit for f in c.findings)]
        )
        questions = [_question(audit, own) for audit in audits]
        worst = sorted(questions, key=_rank)
        out.append(FederationOverview(federation, own, tuple(worst)))
    return out


def consequence(audit: str) -> int:
    """Sort key of audits whose verdicts are equally bad: the gravest first."""
    return GRAVITIES.index(facts_of(audit).gravity)


def _rank(q: QuestionRow) -> tuple[float, ...]:
    return min((ORDER[a.finding.verdict] for a in q.all_answers), default=9), consequence(q.audit)


def _question(audit: str, chapters: Sequence[Chapter]) -> QuestionRow:
    answers, texts = [], []
    for chapter in chapters:
        results = [r for r in chapter.results if r.audit == audit]
        found = [f for f in chapter.findings if f.audit == audit]
        asked = [*(f.question for f in found), *(r.question for r in results)]
        texts.append(next((question for question in asked if question), ""))
        answers.append(tuple(VariantAnswer(chapter, f, _result_of(f, results)) for f in found))
    # variants may ask a part of the question: take the longest
    question = max(texts, key=len, default="") or audit
    return QuestionRow(audit, question, _without_tried_advice(audit, answers))


def _without_tried_advice(
    audit: str, answers: Sequence[tuple[VariantAnswer, ...]]
) -> tuple[tuple[VariantAnswer, ...], ...]:
    """The answers without remedies that another chapter had in force and that did not help."""
    words = words_for(audit)

    def facts(a: VariantAnswer) -> set[str]:
        return in_force({"name": name} for name in a.chapter.trust)

    leaks = [a for of in answers for a in of if a.finding.verdict == "leak"]
    tried = {fact for a in leaks for fact in facts(a)}

    def corrected(a: VariantAnswer) -> VariantAnswer:
        own = facts(a)
        if a not in leaks or tried <= own:
            return a
        advice = words.untried(own, tried, known=a.finding.known)
        return replace(a, finding=replace(a.finding, remedy=advice))

    return tuple(tuple(corrected(a) for a in of) for of in answers)


def _result_of(finding: Finding, results: Sequence[AuditResult]) -> AuditResult | None:
    """The result behind a finding."""
    for r in results:
        if finding.measure is None and r.headline is None:
            return r
        if finding.measure is not None and finding.measure in r.estimates:
            return r
    return results[0] if results else None
