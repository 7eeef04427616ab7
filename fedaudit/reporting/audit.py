"""One section of the page per audit: answers, figures and tables, variants side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from fedaudit.audits import facts_of
from fedaudit.reporting import curves
from fedaudit.reporting.chapter import Chapter
from fedaudit.reporting.findings import words_for
from fedaudit.reporting.overview import SHOWS, FederationOverview, QuestionRow, VariantAnswer
from fedaudit.reporting.rules import label_of
from fedaudit.reporting.tables import MAX_CLIENTS, UNDRAWN, ClientRow, ClientTable, dot, not_shown
from fedaudit.reporting.text import align_column, client_columns, estimate_cells
from fedaudit.results import AuditResult, Bound, Estimate

VALUES = ("share", "value", "estimate", "AUC", "auc", "part")
"""Columns that are plotted per client if the table has `low` and `high`."""

DOTS = 100
"""Largest number of clients with a plot in every row."""

VariantResults = Sequence[tuple[str, Chapter, AuditResult]]
"""Results of one audit in one federation: (variant, chapter, result)."""


@dataclass(frozen=True)
class AnswerLine:
    """One answer in a sentence, what it is compared with, its grounds, and what a missing
    measurement needs."""

    verdict: str
    label: str
    statement: str
    facts: str
    rule: str
    how: str
    needed: str


@dataclass(frozen=True)
class ScoreCell:
    """One score of one variant: `value [low, high]`, its plot, chance and method in words."""

    value: str
    drawing: Markup
    words: str


@dataclass(frozen=True)
class ClientsView:
    """The clients of one variant; `meanings` explains columns at their first use."""

    heading: str
    meanings: Mapping[str, str]
    table: ClientTable


@dataclass(frozen=True)
class AuditInFederation:
    """One audit in one federation. `scores`: (name, one cell per variant or None).

    `notes` and `settings` are (variants, text), the variants empty where all share the text.
    `figures` are rows of (CSS class, figures).
    """

    heading: str
    several: bool
    answers: list[AnswerLine]
    remedies: list[str]
    notes: list[tuple[str, str]]
    figures: list[tuple[str, list[curves.ReportFigure]]]
    score_head: list[tuple[str, bool]]
    scores: list[tuple[str, str, list[ScoreCell | None]]]
    bounds: list[tuple[str, str, Bound]]
    clients: list[ClientsView]
    settings: list[tuple[str, str]]

    @property
    def bound_head(self) -> list[tuple[str, bool]]:
        names = ["bound", "kind", "value", "of", "source", "holds if"]
        head = [(name, name == "value") for name in names]
        return [("variant", False), *head] if self.several else head


@dataclass(frozen=True)
class AuditSection:
    """One audit in all federations, with its card (module docstring)."""

    audit: str
    question: str
    asked: Sequence[str]
    who_looks: Sequence[str]
    about: str
    federations: list[AuditInFederation]
    grounds: str
    assumed: list[str]
    papers: list[tuple[str, Sequence[str]]]


def by_audit(overviews: Sequence[FederationOverview]) -> Iterator[AuditSection]:
    """One section per audit, in the order of the first screen."""
    for audit in dict.fromkeys(q.audit for part in overviews for q in part.questions):
        asked = [
            (i, part, q)
            for i, part in enumerate(overviews)
            for q in part.questions
            if q.audit == audit
        ]
        chapters = [c for _, part, _ in asked for c in part.chapters]
        card = next((c.cards[audit] for c in chapters if audit in c.cards), {})
        yield AuditSection(
            audit=audit,
            question=asked[0][2].text,
            asked=card.get("Question", ()),
            who_looks=card.get("Vantage", ())[:1],
            about=_about(audit, chapters),
            federations=[
                _in_federation(f"{group}", part, q, heading=part.federation * (len(overviews) > 1))
                for group, part, q in asked
            ],
            grounds="Assumptions, and where this differs from the paper"
            if _has_paper(card)
            else "Assumptions",
            assumed=_assumed(audit, chapters),
            papers=_papers(card),
        )


def _about(audit: str, chapters: Sequence[Chapter]) -> str:
    sources = dict.fromkeys(
        r.source for c in chapters for r in c.results if r.audit == audit and r.source
    )
    named = f"audit {audit}, measured: {words_for(audit).measure}"
    return f"{named}; source: {'; '.join(sources)}" if sources else named


def _assumed(audit: str, chapters: Sequence[Chapter]) -> list[str]:
    """Assumptions of the bounds, without repeats."""
    every = (r for c in chapters for r in c.results if r.audit == audit)
    bounds = (b for r in every for b in r.bounds.values() if b.assumes)
    return list(dict.fromkeys(f"{b.source}: {b.assumes}" for b in bounds))


def _papers(card: Mapping[str, Sequence[str]]) -> list[tuple[str, Sequence[str]]]:
    """The paper, and the differences from it; empty without a paper."""
    titles = {"Paper": "Paper"}
    if _has_paper(card):
        titles["Differs"] = "Where this differs from the paper"
    return [(title, card[key]) for key, title in titles.items() if card.get(key)]


def _has_paper(card: Mapping[str, Sequence[str]]) -> bool:
    """Whether a card names a paper; "Paper: none" says that the audit is our own."""
    return any(not text.lower().startswith("none") for text in card.get("Paper", ()))


def _in_federation(
    group: str, part: FederationOverview, question: QuestionRow, heading: str
) -> AuditInFederation:
    of = [
        (variant, chapter, r)
        for variant, chapter in zip(part.variants, part.chapters, strict=True)
        for r in chapter.results
        if r.audit == question.audit
    ]
    answers = [
        _answer_line(f"{variant}: " * (len(part.chapters) > 1), a)
        for variant, answers in zip(part.variants, question.answers, strict=True)
        for a in answers
    ]
    return AuditInFederation(
        heading=heading,
        several=len(of) > 1,
        answers=answers,
        remedies=question.remedies(part.variants),
        notes=_notes(part, question),
        figures=figure_rows(group, of),
        score_head=[("score", False), *((variant, False) for variant, _, _ in of)],
        scores=_scores(of),
        bounds=[(variant, name, b) for variant, _, r in of for name, b in r.bounds.items()],
        clients=_clients(group, of, many=len(part.chapters) > 1),
        settings=_settings(of),
    )


def _answer_line(name: str, a: VariantAnswer) -> AnswerLine:
    f, facts = a.finding, []
    if f.estimate is not None:
        compared = ", ".join(text for text in (f"{a.against} {a.chance}", a.n) if text)
        facts = [a.value, compared, f"{SHOWS} {a.visible}" if a.visible else ""]
        # an absent bound is said once, for all variants
        facts.append(f"bound {a.bound}" if a.bounds or a.extended else "")
    told = [
        f.because[:1].upper() + f.because[1:] + "." if f.because else "",
        f"Rests on {f.rests_on}." if f.rests_on else "",
        a.method,
    ]
    return AnswerLine(
        f.verdict,
        name + label_of(f).words,
        f.statement,
        "; ".join(text for text in facts if text),
        f.rule,
        " ".join(text for text in told if text),
        a.needed,
    )


def _notes(part: FederationOverview, question: QuestionRow) -> list[tuple[str, str]]:
    """Notes of the audit without repeats, each with its variants."""
    about: dict[str, dict[str, None]] = {}
    noting: dict[str, None] = {}
    for variant, answers in zip(part.variants, question.answers, strict=True):
        for r in [a.result for a in answers[-1:] if a.result is not None]:
            noting[variant] = None
            for note in [*r.notes, *r.recording, *map(str, r.underpowered)]:
                about.setdefault(note, {})[variant] = None
    return [
        ("" if len(own) == len(noting) else " / ".join(own), note) for note, own in about.items()
    ]


# -- figures --------------------------------------------------------------------------------------


def figure_rows(
    group: str, of: VariantResults, *, always: bool = False
) -> list[tuple[str, list[curves.ReportFigure]]]:
    """Rows of (CSS class, figures); figures of one kind are in one row, one per variant.

    `always`: also figures that show nothing, which a report replaces by a sentence.
    """
    single = len({variant for variant, _, _ in of}) == 1
    kinds = dict.fromkeys(n for _, _, r in of for n in r.curves)
    several = {name: [(v, r) for v, _, r in of if name in r.curves] for name in kinds}
    own = [(variant, c, r) for variant, c, r in of if _client_rows(r)]
    together = sum(map(len, several.values())) + len(own)
    rows: list[list[curves.ReportFigure | None]] = []
    for name, drawn in several.items():
        size = _size(together if single else len(drawn))
        rows.append(
            [
                curves.figure(
                    r.audit,
                    name,
                    r.curves[name],
                    title=name if single else f"{name}: {v}",
                    size=size,
                    always=always,
                )
                for v, r in drawn
            ]
        )
    # one scale for all variants, to compare them
    every = [v for _, _, r in own for _, *row in _client_rows(r) for v in row]
    size = _size(together if single else len(own))
    rows.append(
        [_client_figure(group, "" if single else f": {v}", c, r, every, size) for v, c, r in own]
    )
    rows = [[f for row in rows for f in row]] if single else rows
    shown = [[f for f in row if f is not None] for row in rows]
    return [("two" if _size(len(row)) == curves.WIDE else "three", row) for row in shown if row]


def _size(beside: int) -> curves.Size:
    """One, two or four figures are in rows of two, any other number in rows of three."""
    return curves.WIDE if beside in (1, 2, 4) else curves.NORMAL


def _client_rows(r: AuditResult) -> list[tuple[str, float, float, float]]:
    """(client, value, low, high) of the clients that have all three, at most MAX_CLIENTS."""
    column = _drawn_column(r)
    if not column:
        return []
    out = []
    for name, row in list(r.per_client.items())[:MAX_CLIENTS]:
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
) -> curves.ReportFigure | None:
    place, rows = _places(chapter, r), _client_rows(r)
    if len(rows) > 1 and len({row[1:] for row in rows}) == 1:
        _, v, low, high = rows[0]
        told = f"All {len(rows)} clients have {v:.3g} [{low:.3g}, {high:.3g}]."
        return curves.ReportFigure(f"Per client{variant}", Markup(), told)
    drawn = curves.client_dots(
        [(place[name], name, v, low, high) for name, v, low, high in rows],
        group=group,
        label=_drawn_column(r),
        chance=_chance(r),
        total=min(len(place), MAX_CLIENTS),
        beside=every,
        size=size,
    )
    return curves.ReportFigure(f"Per client{variant}", Markup(drawn)) if drawn else None


def _chance(r: AuditResult) -> float | None:
    """Chance level of the plotted column; a "part" has none."""
    known = r.headline is not None and _drawn_column(r) != "part"
    return r.estimates[r.headline].baseline if r.headline is not None and known else None


def _places(chapter: Chapter, r: AuditResult) -> dict[str, int]:
    """Client -> its number in the federation; clients outside it come last."""
    every = dict.fromkeys([*chapter.clients, *r.per_client])
    return {name: i for i, name in enumerate(every, 1)}


def _drawn_column(r: AuditResult) -> str:
    """The column that is plotted per client; empty if none."""
    columns = {c for row in r.per_client.values() for c in row}
    return next((c for c in VALUES if {c, "low", "high"} <= columns), "")


def _triple(*values: object) -> tuple[float, float, float] | None:
    """Value, low and high if all three are numbers."""
    plain = [float(v) for v in values if isinstance(v, int | float)]
    return (plain[0], min(plain[1:]), max(plain[1:])) if len(plain) == 3 else None


# -- tables ---------------------------------------------------------------------------------------


def _scores(of: VariantResults) -> list[tuple[str, str, list[ScoreCell | None]]]:
    """Scores down, variants across: the name of a score, its measure in words, its cells."""
    out = []
    for name in dict.fromkeys(n for _, _, r in of for n in r.estimates):
        own = [(r, r.estimates.get(name)) for _, _, r in of]
        cells = [None if e is None else _score(r, name, e) for r, e in own]
        declared = facts_of(of[0][2].audit).measure(name)
        words = "" if declared is None else declared.words
        out.append((name.replace("_", " "), words, cells))
    return out


def _score(r: AuditResult, name: str, e: Estimate) -> ScoreCell:
    value, low, high, base = estimate_cells(e)
    # a baseline of zero is not guessing, but the value without a leak
    label = "chance" if e.baseline else "without a leak"
    label = words_for(r.audit).against if name == r.headline else label
    words = f"{label} {base}; " if base else ""
    words += f"n = {e.n}" + (f"; {e.method}" if e.method else "")
    drawing = dot(e, bounds=[b for b in r.bounds.values() if b.of == name])
    return ScoreCell(f"{value} [{low}, {high}]", drawing, words)


def _clients(group: str, of: VariantResults, *, many: bool) -> list[ClientsView]:
    """A table of clients per variant; the first table with a column explains it."""
    out = []
    explained: set[str] = set()
    for variant, chapter, r in of:
        if not r.per_client:
            continue
        what = "Guesses" if r.headline is None else "Per client"
        name = f"{what}: {variant}" if many else what
        columns = client_columns(r)
        facts = facts_of(r.audit)
        meant = {c.replace("_", " "): facts.column_words(c) for c in columns if c not in explained}
        explained.update(columns)
        out.append(
            ClientsView(
                heading=f"{name} ({len(r.per_client)})",
                meanings={c: words for c, words in meant.items() if words},
                table=_client_table(group, variant, chapter, r),
            )
        )
    return out


def _client_table(group: str, variant: str, chapter: Chapter, r: AuditResult) -> ClientTable:
    columns = client_columns(r)
    column = _drawn_column(r) if len(r.per_client) <= DOTS else ""
    place = _places(chapter, r)
    shown = list(r.per_client.items())[:MAX_CLIENTS]
    written = {c: align_column([row.get(c) for _, row in shown]) for c in columns}
    words = {c for c in columns if any(isinstance(row.get(c), str) for _, row in shown)} - {"SNR"}
    return ClientTable(
        title=f"Results per client: {chapter.federation}, {variant}",
        head=(("client", False), *((c.replace("_", " "), c not in words) for c in columns)),
        rows=tuple(
            ClientRow(
                key=f"{group}-{place[name]}",
                cells=(name, *(written[c][i] for c in columns)),
                drawing=_client_dot(r, [row.get(c) for c in (column, "low", "high")]),
            )
            for i, (name, row) in enumerate(shown)
        ),
        drawn=bool(column),
        left_out=not_shown(len(r.per_client)),
    )


def _client_dot(r: AuditResult, values: Sequence[object]) -> Markup:
    plain = _triple(*values)
    if plain is None:
        return UNDRAWN
    value, low, high = plain
    own = Estimate(value=value, low=low, high=high, n=0, baseline=_chance(r))
    percent = words_for(r.audit).percent and r.headline is not None and _drawn_column(r) != "part"
    return dot(own, percent=percent, width=120, labels=False)


def _settings(of: VariantResults) -> list[tuple[str, str]]:
    """(variants, settings) without repeats; no variants if there is only one."""
    lines: dict[str, list[str]] = {}
    for variant, _, r in of:
        text = ", ".join(
            f"{k} = {_setting_text(v)}" for k, v in r.settings.items() if v is not None
        )
        lines.setdefault(text, []).append(variant)
    several = len(of) > 1
    return [(" / ".join(own) if several else "", text) for text, own in lines.items() if text]


def _setting_text(value: object) -> str:
    """A setting as text."""
    return " ".join(map(str, value)) or "none" if isinstance(value, list | tuple) else str(value)
