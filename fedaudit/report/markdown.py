"""The report for a pull request: a table of questions and variants, then the details."""

from __future__ import annotations

import re
from collections.abc import Sequence

from fedaudit.report.chapter import Chapter
from fedaudit.report.overview import Answer, Part, parts
from fedaudit.report.rules import RULES, VERDICTS
from fedaudit.report.text import clean


def markdown(chapters: Sequence[Chapter], notices: Sequence[str] = ()) -> str:
    """One or several chapters as Markdown; clients under the names that the chapters have."""
    divided = parts(chapters)
    plural = len(divided) > 1
    out = [f"# What {'these federations give' if plural else 'this federation gives'} away", ""]
    out += [f"> **{said(notice)}**\n" for notice in notices]
    for chapter in chapters:
        where = f"{chapter.title}: " if len(chapters) > 1 else ""
        out += [f"> **{said(where + notice)}**\n" for notice in chapter.notices]
    for part in divided:
        out += _part(part)
    out += ["## Rules", ""]
    used = dict.fromkeys(f.rule.partition(":")[0] for c in chapters for f in c.findings)
    out += [
        f"- **{rule.id}**, {VERDICTS[rule.verdict].words}: {rule.text}"
        for rule in RULES.values()
        if rule.id in used
    ]
    out += ["", "## Evidence", ""]
    for chapter in chapters:
        facts = "; ".join(f"{said(k)}: {code(v)}" for k, v in chapter.evidence.items())
        out.append(f"- {said(chapter.title)}: {facts}")
    return "\n".join(out).rstrip() + "\n"


def _part(part: Part) -> list[str]:
    head = ["question", *part.variants]
    out = [f"## {said(part.federation)}", "", said(part.line), ""]
    out += ["| " + " | ".join(map(said, head)) + " |", "|" + " --- |" * len(head)]
    for q in part.questions:
        cells = ["<br>".join(_cell(a) for a in answers) or "not asked" for answers in q.answers]
        out.append("| " + " | ".join([said(q.text), *cells]) + " |")
    out.append("")
    for q in part.questions:
        out += [f"<details><summary>{said(q.text)}</summary>", ""]
        for variant, answers in zip(part.variants, q.answers, strict=True):
            for a in answers:
                out.append(f"- **{said(variant)}: {VERDICTS[a.finding.verdict].words}.** {_why(a)}")
        out += [f"- What changes it: {said(r)}" for r in q.remedies]
        out += ["", "</details>", ""]
    promised = [
        f"- {said(v)}: {said(c.summary['promised'])}"
        for v, c in zip(part.variants, part.chapters, strict=True)
        if "promised" in c.summary
    ]
    return [*out, *(["Promised:", "", *promised, ""] if promised else [])]


def _cell(a: Answer) -> str:
    words = f"**{VERDICTS[a.finding.verdict].words}** ({a.finding.rule.partition(':')[0]})"
    if a.finding.estimate is None:
        return words
    return f"{words} {said(a.value)}, {a.against} {said(a.chance)}"


def _why(a: Answer) -> str:
    f = a.finding
    facts = [f.statement, f"Rule {f.rule}."]
    if f.estimate is not None:
        facts.append(f"Bound: {a.bound}. Trust: {a.trusted}.")
        if f.estimate.method:
            facts.append(f"Interval: {f.estimate.method}, n = {f.estimate.n}.")
    if a.needed:
        facts.append(f"To measure it: {a.needed}.")
    if f.source:
        facts.append(f"Source: {f.source}.")
    return said(" ".join(facts))


_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~!@])")


def said(text: str) -> str:
    """Text that stays text: no markup, no mention, no line of its own."""
    escaped = _SPECIAL.sub(r"\\\1", " ".join(clean(text).split()))
    return escaped.replace(r"\<", "&lt;").replace(r"\>", "&gt;").replace(r"\@", "&#64;")


def code(text: str) -> str:
    """Text as code, whatever ticks it holds."""
    plain = " ".join(clean(text).split())
    ticks = "`" * (max((len(t) for t in re.findall("`+", plain)), default=0) + 1)
    return f"{ticks}{plain}{ticks}" if len(ticks) == 1 else f"{ticks} {plain} {ticks}"
