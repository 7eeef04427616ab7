"""The report for a pull request: a table of questions and variants, then the details."""

from __future__ import annotations

import re
from collections.abc import Sequence

from fedaudit.report.chapter import Chapter, notices_of
from fedaudit.report.overview import Answer, Part, parts
from fedaudit.report.rules import RULES, VERDICTS, label_of
from fedaudit.report.text import cell, clean


def markdown(chapters: Sequence[Chapter], notices: Sequence[str] = ()) -> str:
    """One or several chapters as Markdown; clients under the names that the chapters have."""
    divided = parts(chapters)
    plural = len(divided) > 1
    out = [f"# What {'these federations give' if plural else 'this federation gives'} away", ""]
    out += [f"> **{said(notice)}**\n" for notice in notices]
    for title, notice in notices_of(chapters):
        where = f"{title}: " if title else ""
        out.append(f"> **{said(where + notice)}**\n")
    for part in divided:
        out += _part(part)
    out += ["## Rules", ""]
    used = dict.fromkeys(f.rule for c in chapters for f in c.findings)
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
    out += [f"Noted: {said(noted)}.\n" for noted in part.noted]
    out += ["| " + " | ".join(map(said, head)) + " |", "|" + " --- |" * len(head)]
    for q in part.questions:
        cells = ["<br>".join(_cell(a) for a in answers) or "not asked" for answers in q.answers]
        source = f"<br>source: {said('; '.join(q.sources))}" if q.sources else ""
        out.append("| " + " | ".join([said(q.text) + source, *cells]) + " |")
    out.append("")
    for q in part.questions:
        out += [f"<details><summary>{said(q.text)}</summary>", ""]
        for variant, answers in zip(part.variants, q.answers, strict=True):
            for a in answers:
                out.append(f"- **{said(variant)}: {label_of(a.finding).words}.** {_why(a)}")
        out += [f"- What changes it: {said(r)}" for r in q.remedies(part.variants)]
        for variant, answers in zip(part.variants, q.answers, strict=True):
            for a in answers:
                out += _guesses(variant, a)
        out += ["", "</details>", ""]
    for label in ("arrived", "promised", "held out"):
        out += _summary(part, label)
    return out


def _summary(part: Part, label: str) -> list[str]:
    """One line of the summary, variant by variant."""
    lines = [
        f"- {said(v)}: {said(c.summary[label])}"
        for v, c in zip(part.variants, part.chapters, strict=True)
        if label in c.summary
    ]
    return [f"{label.capitalize()}:", "", *lines, ""] if lines else []


MOST = 50
"""Rows of guesses that are shown: a pull request is read by people."""


def _guesses(variant: str, a: Answer) -> list[str]:
    """What an attack guessed that nobody can score: its notes, and row by row what it says."""
    r = a.result
    if r is None or a.finding.verdict != "unscored":
        return []
    out = [f"- {said(note)}" for note in r.notes]
    if not r.per_client:
        return out
    columns = list(dict.fromkeys(c for row in r.per_client.values() for c in row))
    out += ["", f"What was guessed, {said(variant)}:", ""]
    out += [
        "| " + " | ".join(map(said, ["", *columns])) + " |",
        "|" + " --- |" * (len(columns) + 1),
    ]
    for name, row in list(r.per_client.items())[:MOST]:
        cells = [said(name), *(said(cell(row.get(c))) for c in columns)]
        out.append("| " + " | ".join(cells) + " |")
    if len(r.per_client) > MOST:
        out += ["", f"The first {MOST} of {len(r.per_client):,}; all are in results.json."]
    return out


def _cell(a: Answer) -> str:
    """The verdict with its rule, and what it rests on."""
    f = a.finding
    out = [f"**{label_of(f).words}**"]
    if f.estimate is None:
        out[0] += f": {said(f.statement)}"
        if a.needed:
            out.append(f"to measure it: {said(a.needed)}")
    else:
        n = f", {a.n}" if a.n else ""
        out[0] += f" {said(a.value)}, {a.against} {said(a.chance)}{n}"
        if a.visible:
            out.append(f"a leak would show {said(a.visible)}")
        out.append(f"bound: {said(a.bound)}")
        out.append(f"trust: {said(a.trusted)}")
    out += [f"rests on {f.rests_on}"] if f.rests_on else []
    out.append(f"rule {said(f.cited)}")
    return "<br>".join(out)


def _why(a: Answer) -> str:
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
