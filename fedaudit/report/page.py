"""The report as one self-contained file: no network, one small script that it can do without.

    page.py      the document: first screen, protections, evidence
    audit.py     the part of one audit, variants side by side
    tables.py    tables and the small drawing beside every number
    terms.py     terms explained where they first stand
    page.css, page.js   put into the file; the policy in its head allows these two and nothing else

Everything is shown without the script. With it tables can be sorted, figures read out their values,
and a client lights up wherever it stands.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from html import escape
from pathlib import Path
from typing import Any

from fedaudit.report.audit import MOST, by_audit, left_out
from fedaudit.report.chapter import Chapter, notices_of
from fedaudit.report.overview import Answer, Part, Question, parts
from fedaudit.report.rules import RULES, VERDICTS, label_of
from fedaudit.report.tables import definitions, dot, folded, joined, legend, listed, table
from fedaudit.report.terms import Glossary
from fedaudit.report.text import cell

ABOUT = ("arrived", "protected by", "promised", "held out", "truth", "state")
"""What of a summary sets one variant apart from another."""


@lru_cache
def _inlined(name: str) -> tuple[str, str]:
    """A file beside this one, and the source expression that allows exactly its text."""
    text = Path(__file__).with_name(name).read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return text, f"'sha256-{digest}'"


def page(chapters: Sequence[Chapter], *, title: str = "", notices: Sequence[str] = ()) -> str:
    """The whole report of one or several chapters as one HTML document.

    Clients stand in it under the names that the chapters have: see `names.renamed`.
    """
    style, style_hash = _inlined("page.css")
    script, script_hash = _inlined("page.js")
    # nothing else may be loaded or run, whatever a trace's strings hold
    policy = (
        f"default-src 'none'; style-src {style_hash}; script-src {script_hash}; "
        "base-uri 'none'; form-action 'none'"
    )
    told = Glossary()
    divided = parts(chapters)
    heading = title or (
        "What these federations give away"
        if len(divided) > 1
        else "What this federation gives away"
    )
    lines = "".join(_line(part, i, told, many=len(divided) > 1) for i, part in enumerate(divided))
    first = "".join(_federation(part, i, told) for i, part in enumerate(divided))
    body = [
        f"<header><h1>{escape(heading)}</h1>{_notices(chapters, notices)}{lines}</header>",
        _contents(divided),
        '<main id="main">',
        first or "<h2>Findings</h2><p>Nothing was recorded or audited.</p>",
        _key(told),
        *by_audit(divided, told),
        _protections(divided, told),
        _evidence(chapters, told),
        "</main>",
    ]
    whole = (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>fedaudit report: {escape(heading)}</title><style>{style}</style></head>\n"
        f'<body><a class="skip" href="#main">Skip to the findings</a>{"".join(body)}'
        f"<script>{script}</script></body></html>\n"
    )
    # half a surrogate pair, as JSON can hold, has no place in a file
    return whole.encode("utf-8", "replace").decode("utf-8")


# -- first screen ---------------------------------------------------------------------------------


def _notices(chapters: Sequence[Chapter], overall: Sequence[str]) -> str:
    out = [f'<p class="notice">{escape(notice)}</p>' for notice in overall]
    for title, notice in notices_of(chapters):
        where = f"{title}: " if title else ""
        out.append(f'<p class="notice">{escape(where + notice)}</p>')
    return "".join(out)


def _contents(divided: Sequence[Part]) -> str:
    audits = dict.fromkeys(q.audit for part in divided for q in part.questions)
    entries = [(f"federation-{i}", part.federation) for i, part in enumerate(divided)]
    entries += [("rules", "how verdicts are made")]
    entries += [(f"audit-{i}", audit.replace("_", " ")) for i, audit in enumerate(audits)]
    entries += [("protections", "protections"), ("evidence", "evidence")]
    items = "".join(f'<li><a href="#{to}">{escape(words)}</a></li>' for to, words in entries)
    return f'<nav aria-label="Contents"><ul>{items}</ul></nav>'


def _line(part: Part, number: int, told: Glossary, *, many: bool) -> str:
    """A federation in one line."""
    name = f'<a href="#federation-{number}">{escape(part.federation)}</a>: ' if many else ""
    noted = "".join(f'<p class="small">Noted: {told.text(n)}.</p>' for n in part.noted)
    return f'<p class="line">{name}{told.text(part.line)} {_counts(part)}</p>{noted}'


def _federation(part: Part, number: int, told: Glossary) -> str:
    """One row per question."""
    return (
        f'<section id="federation-{number}"><h2>{escape(part.federation)}: findings</h2>'
        f"{_overview(part, told)}{legend()}{told.explained()}</section>"
    )


def _counts(part: Part) -> str:
    found = [a.finding.verdict for q in part.questions for a in q.every]
    out = [
        f'<span class="count"><b class="{verdict}">{found.count(verdict)} &times;</b> '
        f"{label.words}</span>"
        for verdict, label in VERDICTS.items()
        if verdict in found
    ]
    return f'<span class="counts">{"".join(out)}</span>' if out else ""


def _overview(part: Part, told: Glossary) -> str:
    """Questions down, variants across."""
    heads = "".join(
        f'<th scope="col">{escape(name)}{_about(chapter, told)}</th>'
        for name, chapter in zip(part.variants, part.chapters, strict=True)
    )
    rows = "".join(_row(part, q, told) for q in part.questions)
    return (
        '<table class="overview cards"><thead><tr><th scope="col" class="ask">question</th>'
        f'{heads}<th scope="col" class="act">what changes it</th></tr></thead>'
        f"<tbody>{rows}</tbody></table>"
    )


def _about(chapter: Chapter, told: Glossary) -> str:
    """What sets one variant apart, below its name."""
    said = [f"{label}: {chapter.summary[label]}" for label in ABOUT if label in chapter.summary]
    return "".join(f'<br><span class="small">{joined(told.text(text))}</span>' for text in said)


def _row(part: Part, q: Question, told: Glossary) -> str:
    audits = dict.fromkeys(a.finding.vantage for a in q.every)
    seen = f", seen by {', '.join(audits)}" if audits else ""
    ask = f"<b>{told.text(q.text)}</b><br>"
    ask += f'<span class="small">{told.text(q.audit.replace("_", " ") + seen)}</span>'
    cells = []
    for name, answers in zip(part.variants, q.answers, strict=True):
        inside = "".join(_answer(a, told) for a in answers) or '<p class="small">not asked</p>'
        label = f'<span class="label">{escape(name)}</span>' if len(part.chapters) > 1 else ""
        cells.append(f"<td>{label}{inside}</td>")
    act = "".join(f"<p>{told.text(r)}</p>" for r in q.remedies(part.variants))
    act = act or f'<p class="small">{escape(q.unchanged)}</p>'
    return (
        f'<tr><th scope="row">{ask}</th>{"".join(cells)}'
        f'<td><span class="label">what changes it</span>{act}</td></tr>'
    )


def _answer(a: Answer, told: Glossary) -> str:
    f = a.finding
    parts = [_verdict(a, told)]
    if f.estimate is not None:
        parts.append(f'<p class="value"><b>{joined(escape(a.value))}</b></p>')
        parts.append(dot(f.estimate, percent=a.percent, bounds=a.bounds[:1], width=200))
        facts = {a.against: f"{a.chance}{', ' if a.n else ''}{a.n}"}
        if a.visible:
            facts["a leak would show"] = a.visible
        facts |= {"bound": a.bound, "trust": a.trusted}
        parts += [
            f'<p class="fact"><span class="what">{told.text(k)}</span> {joined(told.text(v))}</p>'
            for k, v in facts.items()
        ]
    else:
        parts.append(f'<p class="fact">{told.text(f.statement)}</p>')
        if a.needed:
            needed = f'<span class="what">to measure it:</span> {told.text(a.needed)}'
            parts.append(f'<p class="fact">{needed}</p>')
    if f.rests_on:
        parts.append(f'<p class="fact"><span class="what">rests on</span> {f.rests_on}</p>')
    return f'<div class="answer">{"".join(parts)}</div>'


def _verdict(a: Answer, told: Glossary) -> str:
    """The word, and beside it the rule that it follows from."""
    f = a.finding
    where = f'<a href="#rule-{f.rule}">rule {f.rule}</a>: {joined(told.text(f.because))}'
    return (
        f'<p><span class="mark {f.verdict}">{label_of(f).words}</span> '
        f'<span class="small">{where if f.rule in RULES else escape(f.cited)}</span></p>'
    )


def _key(told: Glossary) -> str:
    rows = [
        [
            f'<span id="rule-{rule.id}">{rule.id}</span>',
            f'<span class="mark {rule.verdict}">{VERDICTS[rule.verdict].words}</span>',
            told.text(rule.text),
        ]
        for rule in RULES.values()
    ]
    made = table(
        ["rule", "verdict", "is given if"],
        rows,
        [False, False, False],
        title="Every verdict follows from one of these rules",
        text=told.text,
    )
    return (
        f'<section id="rules"><h2>How verdicts are made</h2>{folded("The rules", made, True)}'
        f"{told.explained()}</section>"
    )


# -- protections and evidence ---------------------------------------------------------------------


def _protections(divided: Sequence[Part], told: Glossary) -> str:
    out = []
    for number, part in enumerate(divided):
        for chapter in part.chapters:
            out.append(_protected(chapter, f"{number}", told, many=len(divided) > 1))
    return (
        f'<section id="protections"><h2>Protections, and what they promise</h2>{"".join(out)}'
        f"{told.explained()}</section>"
    )


def _protected(chapter: Chapter, group: str, told: Glossary, *, many: bool) -> str:
    name = chapter.title if many or chapter.variant else "This federation"
    parts = [f"<h3>{escape(name)}</h3>"]
    by = chapter.summary.get("protected by", "")
    if by:
        parts.append(f"<p>Protected by {told.text(by)}.</p>")
    trust = {k: v for k, v in chapter.trust.items() if v}
    if trust:
        words = "; ".join(f"{k}: {v}" for k, v in trust.items())
        parts.append(f"<p>Who must be trusted for it: {told.text(words)}.</p>")
    if not chapter.guarantees:
        parts.append(f"<p>{told.text('No epsilon is promised to any client.')}</p>")
    place = {c: i for i, c in enumerate(chapter.clients, 1)}
    for protection, given in chapter.guarantees.items():
        head = ["client", "epsilon", "delta", "of one", "neighbours", "trusted", "covers", "by"]
        rows, keys = [], []
        for client, g in list(given.items())[:MOST]:
            rows.append([escape(client), *_promise(g if isinstance(g, Mapping) else {})])
            keys.append(f"{group}-{place.get(client, client)}")
        made = table(
            head,
            rows,
            [False, True, True, False, False, False, False, False],
            title=f"What {protection} promises every client over the whole run: {chapter.title}",
            kind="clients sortable",
            keys=keys,
            text=told.text,
            head_text=told.plain,
        )
        if len(given) > MOST:
            made += f'<p class="small">{escape(left_out(len(given)))}</p>'
        parts.append(folded(escape(f"{protection}: epsilon per client ({len(given)})"), made, True))
    if chapter.allocation is not None:
        parts.append(_allocated(chapter, group, told))
    return "".join(parts)


def _allocated(chapter: Chapter, group: str, told: Glossary) -> str:
    """What noise per client would change at the same budget, and what each number is worth."""
    assert chapter.allocation is not None
    place = {c: i for i, c in enumerate(chapter.clients, 1)}
    shown = {
        "leverage": "leverage",
        "uniform_noise_multiplier": "multiplier now",
        "noise_multiplier": "multiplier allocated",
        "uniform_epsilon": "epsilon now",
        "epsilon": "epsilon allocated",
        "published_before": "published bound now",
        "published_after": "published bound allocated",
    }
    rows = chapter.allocation["clients"][:MOST]
    kept = [k for k in shown if rows and k in rows[0]]
    made = table(
        ["client", *(shown[k] for k in kept)],
        [[escape(str(r["client"])), *(escape(cell(float(r[k]))) for k in kept)] for r in rows],
        [False, *(True for _ in kept)],
        title=f"Noise per client at the budget of the run: {chapter.title}",
        kind="clients sortable",
        keys=[f"{group}-{place.get(str(r['client']), r['client'])}" for r in rows],
        text=told.text,
        head_text=told.plain,
    )
    said = definitions({s["about"]: s["text"] for s in chapter.allocation["statements"]}, told.text)
    return folded("Noise per client instead of the same for all: what it would change", said + made)


def _promise(g: Mapping[str, Any]) -> list[str]:
    numbers = [cell(float(g[k])) if k in g else "" for k in ("epsilon", "delta")]
    words = [str(g.get(k, "")).replace("_", " ") for k in ("unit", "relation", "trust", "covers")]
    return [escape(t) for t in (*numbers, *words, str(g.get("by", "")))]


def _evidence(chapters: Sequence[Chapter], told: Glossary) -> str:
    out = []
    for chapter in chapters:
        if len(chapters) > 1:
            out.append(f"<h3>{escape(chapter.title)}</h3>")
        out.append(definitions(chapter.summary, told.text))
        out.append(definitions(chapter.evidence, told.text))
        config = f'<pre tabindex="0">{escape(chapter.config)}</pre>' if chapter.config else ""
        out.append(folded("All settings of this run, without its seed", config))
    notes = [
        "The seed stays in truth/: whoever has it can redraw every noise and every shuffle.",
        "Results, bounds and findings are also in results.json.",
    ]
    return (
        f'<section id="evidence"><h2>Evidence</h2>{"".join(out)}{listed(notes, told.text)}'
        f"{told.explained()}</section>"
    )
