"""The part of one audit: answers, figures and tables of all variants side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from fedaudit.report import curves
from fedaudit.report.chapter import Chapter
from fedaudit.report.findings import words_for
from fedaudit.report.overview import Part, Question
from fedaudit.report.rules import VERDICTS
from fedaudit.report.tables import dot, folded, joined, listed, table, word
from fedaudit.report.terms import Glossary
from fedaudit.report.text import cell, figures
from fedaudit.results import AuditResult, Estimate

VALUES = ("share", "value", "estimate", "AUC", "auc", "part")
"""Columns that are drawn per client where `low` and `high` stand beside them."""

MOST = 300
"""Clients that a table or figure shows: a page is read by people. results.json has all."""
DOTS = 100
"""Clients up to which every row has a drawing of its own."""

Of = Sequence[tuple[str, Chapter, AuditResult]]
"""Results of one audit in one federation: (variant, chapter, result)."""


def by_audit(divided: Sequence[Part], told: Glossary) -> Iterator[str]:
    """One section per audit, in the order of the first screen."""
    audits = dict.fromkeys(q.audit for part in divided for q in part.questions)
    for number, audit in enumerate(audits):
        asked = [
            (i, part, q)
            for i, part in enumerate(divided)
            for q in part.questions
            if q.audit == audit
        ]
        out = [f'<section id="audit-{number}"><h2>{told.text(asked[0][2].text)}</h2>']
        chapters = [c for _, part, _ in asked for c in part.chapters]
        out.append(_card(audit, chapters, told))
        for group, part, question in asked:
            if len(divided) > 1:
                out.append(f"<h3>{escape(part.federation)}</h3>")
            out.append(_in_federation(f"{group}", part, question, told))
        out.append(_assumptions(audit, chapters, told))
        yield "".join([*out, told.explained(), "</section>"])


def _card(audit: str, chapters: Sequence[Chapter], told: Glossary) -> str:
    """What is asked and who looks, in the audit's own words."""
    card = next((c.cards[audit] for c in chapters if audit in c.cards), {})
    parts = "".join(f"<p>{told.text(t)}</p>" for t in card.get("Question", ()))
    who = "".join(f"<p>Who looks: {told.text(t)}</p>" for t in card.get("Vantage", ())[:1])
    source = dict.fromkeys(
        r.source for c in chapters for r in c.results if r.audit == audit and r.source
    )
    named = f"audit {audit}, measured: {words_for(audit).measure}"
    if source:
        named += f"; source: {'; '.join(source)}"
    return f'{parts}{who}<p class="small">{told.text(named)}</p>'


def _in_federation(group: str, part: Part, question: Question, told: Glossary) -> str:
    of = [
        (variant, chapter, r)
        for variant, chapter in zip(part.variants, part.chapters, strict=True)
        for r in chapter.results
        if r.audit == question.audit
    ]
    out = [_answers(part, question, told), _figures(group, of)]
    out.append(folded(f"All scores ({_count(of)})", _scores(of, told)))
    out.append(folded("Bounds from theory", _bounds(of, told)))
    for i, (variant, chapter, r) in enumerate(of):
        if r.per_client:
            name = f"Per client: {variant}" if len(part.chapters) > 1 else "Per client"
            made = _clients(group, variant, chapter, r, told)
            out.append(folded(escape(f"{name} ({len(r.per_client)})"), made, i == 0))
    out.append(folded("Settings", _settings(of)))
    return "".join(out)


def _answers(part: Part, question: Question, told: Glossary) -> str:
    items = []
    for variant, answers in zip(part.variants, question.answers, strict=True):
        for a in answers:
            f = a.finding
            name = f"{variant}: " if len(part.chapters) > 1 else ""
            text = (
                f'<span class="mark {f.verdict}">{escape(name)}{VERDICTS[f.verdict].words}</span>'
            )
            text += f" {joined(told.text(f.statement))} "
            how = f"Rule {f.rule}."
            if f.estimate is not None and f.estimate.method:
                how += f" Interval: {f.estimate.method}, n = {f.estimate.n}."
            text += f'<span class="small">{joined(told.text(how))}</span>'
            if f.remedy:
                label = "To measure it" if a.needed else "What helps"
                text += f'<p class="help">{label}: {told.text(f.remedy)}</p>'
            if a.result is not None and f is answers[-1].finding:
                lacking = [str(u) for u in a.result.underpowered]
                text += listed([*a.result.notes, *lacking], told.text)
            items.append(f"<li>{text}</li>")
    return f'<ul class="answers">{"".join(items)}</ul>' if items else ""


# -- figures --------------------------------------------------------------------------------------


def _figures(group: str, of: Of) -> str:
    """Figures of the same kind stand beside one another, one per variant."""
    rows = []
    single = len({variant for variant, _, _ in of}) == 1
    for name in dict.fromkeys(n for _, _, r in of for n in r.curves):
        drawn = [
            curves.figure(name if single else f"{name}: {variant}", r.curves[name], "h4", kind=name)
            for variant, _, r in of
            if name in r.curves
        ]
        rows.append("".join(drawn))
    own = [_client_figure(group, variant, chapter, r, single) for variant, chapter, r in of]
    rows.append("".join(own))
    rows = ["".join(rows)] if single else rows
    return "".join(f'<div class="figures">{row}</div>' for row in rows if row)


def _client_figure(group: str, variant: str, chapter: Chapter, r: AuditResult, single: bool) -> str:
    column = _drawn(r)
    if not column:
        return ""
    place = _places(chapter, r)
    rows = []
    for name, row in list(r.per_client.items())[:MOST]:
        plain = _triple(row.get(column), row.get("low"), row.get("high"))
        if plain is not None:
            rows.append((place[name], name, *plain))
    headline = r.estimates[r.headline] if r.headline else None
    chance = None if headline is None or column == "part" else headline.baseline
    drawn = curves.clients(
        rows, group=group, label=column, chance=chance, total=min(len(place), MOST)
    )
    title = "Per client" if single else f"Per client: {variant}"
    return curves.framed(f"<h4>{escape(title)}</h4>", drawn) if drawn else ""


def _places(chapter: Chapter, r: AuditResult) -> dict[str, int]:
    """Client -> its number in the federation; those it does not know come after."""
    every = dict.fromkeys([*chapter.clients, *r.per_client])
    return {name: i for i, name in enumerate(every, 1)}


def _drawn(r: AuditResult) -> str:
    columns = {c for row in r.per_client.values() for c in row}
    return next((c for c in VALUES if {c, "low", "high"} <= columns), "")


def _triple(*values: object) -> tuple[float, float, float] | None:
    """Value, low and high where all three are numbers."""
    plain = [float(v) for v in values if isinstance(v, int | float)]
    return (plain[0], min(plain[1:]), max(plain[1:])) if len(plain) == 3 else None


# -- tables ---------------------------------------------------------------------------------------


def _count(of: Of) -> int:
    return len(dict.fromkeys(n for _, _, r in of for n in r.estimates))


def _scores(of: Of, told: Glossary) -> str:
    """Scores down, variants across: value, interval, chance, and how the interval was made."""
    names = dict.fromkeys(n for _, _, r in of for n in r.estimates)
    rows = []
    for name in names:
        cells = [told.text(name.replace("_", " "))]
        for _, _, r in of:
            e = r.estimates.get(name)
            cells.append("" if e is None else _score(r, name, e, told))
        rows.append(cells)
    if not rows:
        return ""
    head = ["score", *(variant for variant, _, _ in of)]
    return table(head, rows, [False] * len(head), title="All scores of this audit", kind="scores")


def _score(r: AuditResult, name: str, e: Estimate, told: Glossary) -> str:
    value, low, high, base = figures(e)
    bounds = [b for b in r.bounds.values() if b.of == name]
    said = f"chance {base}; " if base else ""
    said += f"n = {e.n}" + (f"; {e.method}" if e.method else "")
    return (
        f'<span class="value">{escape(f"{value} [{low}, {high}]")}</span>{dot(e, bounds=bounds)}'
        f'<span class="small">{joined(told.text(said))}</span>'
    )


def _bounds(of: Of, told: Glossary) -> str:
    rows = [
        [
            *([escape(variant)] if len(of) > 1 else []),
            told.text(name),
            escape(b.kind),
            escape(cell(b.value)),
            told.text(b.of.replace("_", " ")),
            escape(b.source),
            told.text(b.assumes),
        ]
        for variant, _, r in of
        for name, b in r.bounds.items()
    ]
    if not rows:
        return ""
    head = ["bound", "kind", "value", "of", "source", "holds if"]
    numeric = [False, False, True, False, False, False]
    if len(of) > 1:
        head, numeric = ["variant", *head], [False, *numeric]
    return table(head, rows, numeric, title="What theory says of these values")


def _clients(group: str, variant: str, chapter: Chapter, r: AuditResult, told: Glossary) -> str:
    columns = list(dict.fromkeys(c for row in r.per_client.values() for c in row))
    column = _drawn(r) if len(r.per_client) <= DOTS else ""
    place = _places(chapter, r)
    rows, keys = [], []
    for name, row in list(r.per_client.items())[:MOST]:
        cells = [escape(name), *(escape(cell(row.get(c))) for c in columns)]
        if column:
            plain = _triple(*(row.get(c) for c in (column, "low", "high")))
            cells.append("" if plain is None else _client_dot(r, column, plain))
        rows.append(cells)
        keys.append(f"{group}-{place[name]}")
    numeric = [False, *([True] * len(columns)), *([False] if column else [])]
    made = table(
        ["client", *(c.replace("_", " ") for c in columns), *([""] if column else [])],
        rows,
        numeric,
        title=f"Every client on its own: {chapter.federation}, {variant}",
        kind="clients sortable",
        keys=keys,
        text=told.text,
        head_text=told.plain,
    )
    if len(r.per_client) > MOST:
        made += f'<p class="small">{escape(left_out(len(r.per_client)))}</p>'
    return made


def left_out(total: int) -> str:
    return f"The first {MOST} of {total:,} clients; all are in results.json."


def _client_dot(r: AuditResult, column: str, plain: tuple[float, float, float]) -> str:
    headline = r.estimates[r.headline] if r.headline else None
    known = headline is not None and column != "part"
    own = Estimate(
        value=plain[0],
        low=plain[1],
        high=plain[2],
        n=0,
        baseline=headline.baseline if headline is not None and known else None,
    )
    return dot(own, percent=words_for(r.audit).percent and known, width=120, labels=False)


def _settings(of: Of) -> str:
    """What was set, one line per variant; the same lines once."""
    lines: dict[str, list[str]] = {}
    for variant, _, r in of:
        text = ", ".join(f"{k} = {word(v)}" for k, v in r.settings.items() if v is not None)
        lines.setdefault(text, []).append(variant)
    several = len(of) > 1
    return "".join(
        f'<p class="small">{escape((", ".join(variants) + ": ") if several else "")}{escape(t)}</p>'
        for t, variants in lines.items()
        if t
    )


def _assumptions(audit: str, chapters: Sequence[Chapter], told: Glossary) -> str:
    """On what the numbers rest, and where the method departs from its paper."""
    assumed = dict.fromkeys(
        f"{b.source}: {b.assumes}"
        for c in chapters
        for r in c.results
        if r.audit == audit
        for b in r.bounds.values()
        if b.assumes
    )
    card = next((c.cards[audit] for c in chapters if audit in c.cards), {})
    inside = ""
    if assumed:
        inside += f"<h4>Assumptions</h4>{listed(list(assumed), told.text)}"
    for heading, title in (("Paper", "Paper"), ("Differs", "Where this differs from the paper")):
        if card.get(heading):
            inside += f"<h4>{title}</h4>{listed(card[heading], told.text)}"
    return folded("Assumptions, and where this differs from the paper", inside)
