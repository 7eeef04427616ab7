"""The part of one audit: answers, figures and tables of all variants side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from fedaudit.report import curves
from fedaudit.report.chapter import Chapter
from fedaudit.report.findings import words_for
from fedaudit.report.overview import Part, Question
from fedaudit.report.rules import label_of
from fedaudit.report.tables import dot, folded, joined, listed, table, word
from fedaudit.report.terms import Glossary, column_meaning
from fedaudit.report.text import aligned, cell, figures
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
    said: set[str] = set()
    for i, (variant, chapter, r) in enumerate(of):
        if r.per_client:
            what = "What was guessed" if r.headline is None else "Per client"
            name = f"{what}: {variant}" if len(part.chapters) > 1 else what
            made = _meanings(r, said, told) + _clients(group, variant, chapter, r, told)
            out.append(folded(escape(f"{name} ({len(r.per_client)})"), made, i == 0))
    out.append(folded("Settings", _settings(of, told)))
    return "".join(out)


def _answers(part: Part, question: Question, told: Glossary) -> str:
    items = []
    for variant, answers in zip(part.variants, question.answers, strict=True):
        for a in answers:
            f = a.finding
            name = f"{variant}: " if len(part.chapters) > 1 else ""
            text = f'<span class="mark {f.verdict}">{escape(name)}{label_of(f).words}</span>'
            text += f" {joined(told.text(f.statement))} "
            how = f"Rests on {f.rests_on}. " if f.rests_on else ""
            how += f"Rule {f.cited}."
            if f.estimate is not None and f.estimate.method:
                how += f" Interval: {f.estimate.method}, n = {f.estimate.n}."
            text += f'<span class="small">{joined(told.text(how))}</span>'
            if a.needed:
                text += f'<p class="help">To measure it: {told.text(a.needed)}</p>'
            items.append(f"<li>{text}</li>")
    made = f'<ul class="answers">{"".join(items)}</ul>' if items else ""
    for remedy in question.remedies(part.variants):
        made += f'<p class="help">What helps: {told.text(remedy)}</p>'
    return made + _notes(part, question, told)


def _notes(part: Part, question: Question, told: Glossary) -> str:
    """What the audit noted: the same words once, with the variants that they are about."""
    about: dict[str, dict[str, None]] = {}
    noting: dict[str, None] = {}
    for variant, answers in zip(part.variants, question.answers, strict=True):
        for r in [a.result for a in answers[-1:] if a.result is not None]:
            noting[variant] = None
            for note in [*r.notes, *r.recording, *map(str, r.underpowered)]:
                about.setdefault(note, {})[variant] = None
    items = []
    for note, own in about.items():
        whose = "" if len(own) == len(noting) else f"<b>{escape(' / '.join(own))}:</b> "
        items.append(f"<li>{whose}{told.text(note)}</li>")
    return f'<ul class="notes">{"".join(items)}</ul>' if items else ""


# -- figures --------------------------------------------------------------------------------------


def _figures(group: str, of: Of) -> str:
    """Figures of the same kind stand beside one another, one per variant."""
    single = len({variant for variant, _, _ in of}) == 1
    kinds = dict.fromkeys(n for _, _, r in of for n in r.curves)
    several = {name: [(v, r) for v, _, r in of if name in r.curves] for name in kinds}
    own = [(variant, c, r) for variant, c, r in of if _client_rows(r)]
    together = sum(map(len, several.values())) + len(own)
    rows = []
    for name, drawn in several.items():
        size = _size(together if single else len(drawn))
        rows.append(
            [
                curves.figure(
                    name if single else f"{name}: {v}", r.curves[name], "h4", kind=name, size=size
                )
                for v, r in drawn
            ]
        )
    # one scale for all variants: what stands side by side is compared
    every = [v for _, _, r in own for _, *row in _client_rows(r) for v in row]
    size = _size(together if single else len(own))
    rows.append([_client_figure(group, v, c, r, every, size, single) for v, c, r in own])
    rows = [[f for row in rows for f in row]] if single else rows
    out = []
    for row in rows:
        shown = [f for f in row if f]
        if shown:
            kind = "two" if _size(len(shown)) == curves.WIDE else "three"
            out.append(f'<div class="figures {kind}">{"".join(shown)}</div>')
    return "".join(out)


def _size(beside: int) -> curves.Size:
    """One, two or four figures stand in rows of two, any other number in rows of three."""
    return curves.WIDE if beside in (1, 2, 4) else curves.NORMAL


def _client_rows(r: AuditResult) -> list[tuple[str, float, float, float]]:
    """(client, value, low, high) of everybody who has all three, at most MOST."""
    column = _drawn(r)
    if not column:
        return []
    out = []
    for name, row in list(r.per_client.items())[:MOST]:
        plain = _triple(row.get(column), row.get("low"), row.get("high"))
        if plain is not None:
            out.append((name, *plain))
    return out


def _client_figure(
    group: str,
    variant: str,
    chapter: Chapter,
    r: AuditResult,
    every: Sequence[float],
    size: curves.Size,
    single: bool,
) -> str:
    place = _places(chapter, r)
    column = _drawn(r)
    rows = [(place[name], name, v, low, high) for name, v, low, high in _client_rows(r)]
    headline = r.estimates[r.headline] if r.headline else None
    chance = None if headline is None or column == "part" else headline.baseline
    drawn = curves.clients(
        rows,
        group=group,
        label=column,
        chance=chance,
        total=min(len(place), MOST),
        beside=every,
        size=size,
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
    # guessing has no score of zero: there the baseline is what no leak would give
    label = "chance" if e.baseline else "without a leak"
    label = words_for(r.audit).against if name == r.headline else label
    said = f"{label} {base}; " if base else ""
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


def _meanings(r: AuditResult, said: set[str], told: Glossary) -> str:
    """What the columns of a table of clients mean, where that was not `said` of them yet."""
    columns = dict.fromkeys(c for row in r.per_client.values() for c in row)
    meant = {c.replace("_", " "): column_meaning(c) for c in columns if c not in said}
    said.update(columns)
    known = {c: words for c, words in meant.items() if words}
    if not known:
        return ""
    rows = "".join(f"<dt>{escape(c)}</dt><dd>{told.text(words)}</dd>" for c, words in known.items())
    return f'<div class="terms"><p class="small">Columns of this table</p><dl>{rows}</dl></div>'


def _clients(group: str, variant: str, chapter: Chapter, r: AuditResult, told: Glossary) -> str:
    columns = list(dict.fromkeys(c for row in r.per_client.values() for c in row))
    column = _drawn(r) if len(r.per_client) <= DOTS else ""
    place = _places(chapter, r)
    rows, keys = [], []
    shown = list(r.per_client.items())[:MOST]
    written = {c: aligned([row.get(c) for _, row in shown]) for c in columns}
    for i, (name, row) in enumerate(shown):
        cells = [escape(name), *(escape(written[c][i]) for c in columns)]
        if column:
            plain = _triple(*(row.get(c) for c in (column, "low", "high")))
            cells.append("" if plain is None else _client_dot(r, column, plain))
        rows.append(cells)
        keys.append(f"{group}-{place[name]}")
    words = {c for c in columns if any(isinstance(row.get(c), str) for _, row in shown)} - {"SNR"}
    numeric = [False, *(c not in words for c in columns), *([False] if column else [])]
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


def _settings(of: Of, told: Glossary) -> str:
    """What was set, one line per variant; the same lines once."""
    lines: dict[str, list[str]] = {}
    for variant, _, r in of:
        text = ", ".join(f"{k} = {word(v)}" for k, v in r.settings.items() if v is not None)
        lines.setdefault(text, []).append(variant)
    out = []
    for text, variants in lines.items():
        whose = f"{escape(' / '.join(variants))}: " if len(of) > 1 else ""
        out.append(f'<p class="small">{whose}{told.text(text)}</p>' if text else "")
    return "".join(out)


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
        # what follows no paper has nothing to differ from
        if card.get(heading) and not (heading == "Differs" and "Paper" not in card):
            inside += f"<h4>{title}</h4>{listed(card[heading], told.text)}"
    title = "Assumptions, and where this differs from the paper"
    return folded(title if "Paper" in card else "Assumptions", inside)
