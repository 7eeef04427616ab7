"""The HTML page: self-contained, well-formed, explained, safe against hostile strings."""

import base64
import hashlib
import itertools
import math
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from fedaudit.reporting.chapter import Chapter
from fedaudit.reporting.findings import judge_all
from fedaudit.reporting.page import page
from fedaudit.reporting.rules import RULES, VERDICTS
from fedaudit.reporting.terms import TERMS, Glossary, anchor, mentions
from fedaudit.results import AuditResult, Bound, Estimate, Need, Underpowered

VOID = {"meta", "br", "line", "circle", "polyline", "text-path"}


class Page(HTMLParser):
    """Checks that tags close in order; collects tags, attributes and text."""

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.open, self.tags, self.attributes, self.words = [], [], [], []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes

    def handle_endtag(self, tag):
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data):
        if not {"style", "script"} & {*self.open}:
            self.words.append(data)


def parsed(html):
    out = Page()
    out.feed(html)
    out.close()
    assert out.open == []
    return out


def results(word="x", value=0.7):
    e = Estimate(value=value, low=value - 0.2, high=value + 0.2, n=20, baseline=0.1, method=word)
    big = Estimate(value=math.inf, low=2.0, high=math.inf, n=20, baseline=0.0, method=word)
    negative = Estimate(value=-0.2, low=-0.5, high=0.1, n=20, method=word)
    return [
        AuditResult(
            audit=word,
            question=word,
            vantage=word,
            settings={word: word, "many": [word], "none": None},
            headline=word,
            estimates={word: e, "epsilon": big, "signed": negative},
            underpowered=(Underpowered(what=word, have=1, needed=2),),
            bounds={word: Bound(value=0.4, kind="upper", of=word, source=word, assumes=word)},
            per_client={word: {"share": 0.5, "low": 0.1, "high": 0.8, word: word, "no": None}},
            curves={word: {word: (1, 2, 3), word + "y": (0.1, math.inf, 3.0)}},
            notes=(word,),
            source=word,
        ),
        AuditResult(
            audit=word,
            question=word,
            vantage=word,
            status="not_applicable",
            need=Need(code=word, what=word, expected=word, got=word, remedy=word),
        ),
    ]


def chapter(word="x", rows=None, **more):
    rows = results(word) if rows is None else rows
    given = {"epsilon": 2.5, "delta": 1e-5, "unit": word, "relation": word, "trust": word}
    plain = {
        "federation": word,
        "variant": word,
        "summary": {word: word},
        "findings": judge_all(rows),
        "results": rows,
        "guarantees": {word: {word: {**given, "covers": word, "by": word}}},
        "evidence": {word: word},
        "config": word,
        "clients": (word,),
        "notices": (word,),
        "trust": {word: word},
        "cards": {word: {"Question": (word,), "Vantage": (word,), "Differs": (word, word)}},
    }
    return Chapter(**{**plain, **more})


def made(word="x"):
    return page([chapter(word), chapter(word, variant=word + "!")])


def text_of(html):
    return " ".join(" ".join(parsed(html).words).replace("\xa0", " ").split())


def test_the_page_is_well_formed_and_complete():
    seen = parsed(made("needle"))
    assert seen.tags[:2] == ["html", "head"]
    assert {"main", "h1", "table", "svg", "dl", "article", "details"} <= set(seen.tags)
    text = " ".join(seen.words)
    assert "theory and measurement disagree" in text
    assert "not applicable" in text
    assert "0.7 [0.5, 0.9] at 95" in text.replace("\xa0", " ")


HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "</style><script>alert(1)</script>",
    "</svg><svg/onload=alert(1)>",
    "&lt;b&gt; & <!-- -->",
    "javascript:alert(1)",
    "\x00\u202e\ud83d",
]


@pytest.mark.parametrize("word", HOSTILE)
def test_hostile_strings_stay_text(word):
    plain, evil = parsed(made("x")), parsed(made(word))
    # not one more tag, and no attribute beyond those that describe a drawing
    assert evil.tags == plain.tags
    assert [k for k, _ in evil.attributes] == [k for k, _ in plain.attributes]
    assert not [k for k, _ in evil.attributes if k.startswith("on")]
    assert evil.tags.count("script") == 1
    assert "img" not in evil.tags
    links = [v for k, v in evil.attributes if k == "href"]
    assert links == [v for k, v in plain.attributes if k == "href"]


def test_the_page_loads_nothing_and_allows_only_its_own_script():
    html = made("word")
    assert not re.search(r"https?://|url\(|@import|<link|src=|style=|\son\w+=", html)
    assert all(to.startswith("#") for to in re.findall(r'href="([^"]*)"', html))
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', html)[1]
    allowed = dict(part.strip().split(" ", 1) for part in policy.split(";"))
    assert allowed["default-src"] == "'none'"
    for tag, source in (("script", "script-src"), ("style", "style-src")):
        (inside,) = re.findall(rf"<{tag}>(.*?)</{tag}>", html, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert allowed[source] == f"'sha256-{digest}'"


def test_links_inside_the_page_resolve():
    html = made("word")
    ids = re.findall(r' id="([^"]*)"', html)
    assert len(ids) == len(set(ids))
    assert {to[1:] for to in re.findall(r'href="(#[^"]+)"', html)} <= set(ids)


@pytest.mark.parametrize("federations", [1, 2])
def test_headings_skip_no_level(federations):
    """A card has a heading of its own, also where one federation needs no name."""
    rows = results()
    html = page([chapter(rows=rows, federation=f"f{i}") for i in range(federations)])
    levels = [int(n) for n in re.findall(r"<h([1-6])[ >]", html)]
    assert levels[0] == 1
    assert levels.count(3) >= 1
    assert all(b <= a + 1 for a, b in itertools.pairwise(levels))


def test_numbers_in_drawings_are_numbers():
    for value in re.findall(r'(?:x1|x2|y1|y2|cx|cy|points)="([^"]*)"', made("word")):
        for part in re.split(r"[ ,]", value):
            assert math.isfinite(float(part))


def test_a_page_without_findings_is_still_a_page():
    empty = page([])
    parsed(empty)
    assert empty.startswith("<!doctype html>")
    assert "findings" in empty.lower()


def only(e, audit="a", **more):
    row = AuditResult(
        audit=audit, question="?", vantage="v", headline="s", estimates={"s": e}, source="x", **more
    )
    return chapter(rows=[row], clients=(), guarantees={}, cards={})


def test_the_dot_is_at_its_value():
    e = Estimate(value=0.25, low=0.0, high=0.5, n=9, baseline=1.0)
    drawing = re.search(r'<svg class="scale".*?</svg>', page([only(e)]))[0]
    # the axis runs from 10 to 510
    assert 'cx="135.0"' in drawing
    assert 'class="bar" x1="10.0" x2="260.0"' in drawing
    assert 'class="chance" x1="510.0"' in drawing


# -- verdicts and their rules ---------------------------------------------------------------------


def test_every_verdict_shows_its_rule():
    every = [
        only(Estimate(value=0.7, low=0.6, high=0.8, n=9, baseline=0.5)),
        only(Estimate(value=0.5, low=0.4, high=0.6, n=9, baseline=0.5)),
        only(Estimate(value=0.2, low=0.1, high=0.3, n=9, baseline=0.5), greater_is_leak=False),
        chapter(),
    ]
    html = page([replace(c, federation=f"f{i}") for i, c in enumerate(every)])
    answers = re.findall(r'<li class="answer">(.*?)</li>', html, re.DOTALL)
    assert len(answers) == sum(len(c.findings) for c in every)
    for answer in answers:
        verdict = re.search(r'class="mark (\w+)">([^<]*)<', answer)
        rule = RULES[re.search(r'href="#rule-(\w+)"', answer)[1]]
        assert rule.verdict == verdict[1]
        assert verdict[2].endswith(VERDICTS[rule.verdict].words)
    text = text_of(html)
    for rule in RULES.values():
        assert rule.text in text


def test_a_value_shows_its_tightest_bound():
    e = Estimate(value=0.6, low=0.55, high=0.65, n=9, baseline=0.5)
    loose, tight, told = (
        Bound(value=v, kind=k, of="s", source=s)
        for v, k, s in ((0.9, "upper", "[A]"), (0.8, "upper", "[B]"), (0.1, "reference", "[C]"))
    )
    text = text_of(page([only(e, bounds={"a": loose, "b": tight, "c": told})]))
    assert "bound at most 0.8 ([B])" in text
    assert "bound 0.1 (no guarantee, [C])" in text_of(page([only(e, bounds={"c": told})]))
    assert "bound at" not in text_of(page([only(e)]))


def test_the_first_page_names_the_trusted_parties():
    e = Estimate(value=0.6, low=0.55, high=0.65, n=9, baseline=0.5)
    leak = replace(only(e), trust={"shuffle": "the shuffler"})
    assert "must be trusted the shuffler" in text_of(page([leak]))
    assert "must be trusted all who see messages" in text_of(page([replace(leak, trust={})]))


def test_no_evidence_states_the_smallest_detectable_leak():
    e = Estimate(value=0.5, low=0.4, high=0.6, n=9, baseline=0.5)
    assert "a leak would show from 0.7 on" in text_of(page([only(e, detectable=0.7)]))
    less = only(e, detectable=0.3, greater_is_leak=False)
    assert "a leak would show up to 0.3" in text_of(page([less]))
    assert "a leak would show at an unknown size" in text_of(page([only(e)]))
    exact = Estimate(value=0, low=0, high=0, n=9, confidence=1.0, baseline=0)
    assert "a leak would show" not in text_of(page([only(exact)]))


# -- several chapters -----------------------------------------------------------------------------


def study():
    out = []
    for federation in ("digits", "docs"):
        for variant, value in (("unprotected", 0.9), ("DP-SGD", 0.3)):
            rows = [r for r in results("a", value) if r.headline]
            rows[0] = replace(rows[0], bounds={}, audit="fingerprint", question="Is it so?")
            out.append(
                chapter("a", rows, federation=federation, variant=variant, clients=("a", "b"))
            )
    return out


def test_variants_stand_side_by_side():
    html = page(study())
    tables = re.findall(r'<table class="matrix.*?</table>', html, re.DOTALL)
    assert len(tables) == 2
    for table in tables:
        heads = re.findall(r'<th scope="col"[^>]*>([^<]*)', table)
        assert heads == ["question", "unprotected", "DP-SGD"]
        cells = re.findall(r'<td class="cell [^>]*>(.*?)</td>', table, re.DOTALL)
        assert "90&nbsp;%" in cells[0]
        assert "30&nbsp;%" in cells[1]


def test_a_client_is_one_client_in_one_federation_only():
    html = page(study())
    keys = set(re.findall(r'<tr data-client="([^"]*)"', html))
    assert keys == {"0-1", "1-1"}
    assert set(re.findall(r'<g class="who" data-client="([^"]*)"', html)) == keys


def test_thousands_of_clients_do_not_burst_the_page():
    row = {"share": 0.5, "low": 0.1, "high": 0.8}
    e = Estimate(value=0.5, low=0.1, high=0.8, n=9, baseline=0.5)
    many = {f"site-{i}": row for i in range(5000)}
    large = only(e, per_client=many)
    promised = {"x": {name: {} for name in many}}
    html = page([replace(large, clients=tuple(many), guarantees=promised)])
    assert len(html) < 1_000_000
    assert text_of(html).count("The first 300 of 5,000;") == 2


def test_notices_are_at_the_top():
    html = page([chapter(notices=("Unfinished: 2 of 5 rounds",)), chapter(variant="y", notices=())])
    assert html.index("Unfinished: 2 of 5 rounds") < html.index("<main")


# -- terms ----------------------------------------------------------------------------------------


def test_a_term_is_linked_once_at_its_first_mention():
    told = Glossary()
    first = told.text("AUC 0.7, chance 0.5, AUC again")
    assert first.count("<a ") == 2
    assert told.text("AUC") == "AUC"
    assert told.fresh() == [(term, TERMS[term][1]) for term in ("AUC", "chance")]
    assert told.fresh() == []


def test_every_linked_term_is_explained_once():
    html = page([chapter("AUC 0.7, chance 0.5, AUC again")])
    assert html.index('id="glossary"') > html.index('id="evidence"')
    for term in ("AUC", "chance"):
        assert html.count(f'id="{anchor(term)}"') == 1
        assert TERMS[term][1] in text_of(html)


@pytest.mark.parametrize(
    ("text", "term"),
    [
        ("membership_auc", "membership"),
        ("true positive rate", "true positive rate"),
        ("at 0.01 FPR", "false positive rate"),
        ("protected by dp_sgd", "DP-SGD"),
        ("shuffled", "shuffler"),
        ("a secure sum", "secure sum"),
        ("linkage_accuracy", "linkage"),
        ("n = 20", "n"),
        ("epsilon 8", "epsilon"),
    ],
)
def test_terms_are_recognised(text, term):
    assert f'href="#{anchor(term)}"' in Glossary().text(text)


def test_words_that_only_look_like_terms_are_left_alone():
    for text in ("rebound", "chances are", "client-03 rounded", "an = 3"):
        linked = re.findall(r'href="#term-([\w-]+)"', Glossary().text(text))
        assert linked in ([], ["client"])


def test_every_term_has_a_page_wide_unique_place():
    assert len({anchor(t) for t in TERMS}) == len(TERMS)
    for name, (pattern, meaning) in TERMS.items():
        assert re.compile(pattern)
        assert meaning.endswith("."), name


@pytest.mark.parametrize(
    ("text", "term"),
    [
        ("a fully connected network (mlp)", "mlp"),
        ("frozen language model (lora)", "lora"),
        ("at 95 % (normal interval, n = 9)", "normal interval"),
        ("by guessing 2.302", "by guessing"),
        ("at most 84.1 % (Phi(1/z): a record moves a sum by 2 C, noise has z C)", "z, C"),
        ("Wilson over 20 clusters (design effect 9)", "design effect, clusters"),
        ("as the closed form decides them", "closed form"),
        ("40 games through the engine", "engine"),
        ("universe of 1,797 records", "universe"),
        ("what_if = none", "what_if"),
        ("auroc (A2-topo)", "A0, A1, A2"),
        ("coupled: eta = 0.6, alpha = 0.5", "eta, alpha"),
        ("regressor = lightgbm", "lightgbm"),
        ("vantage = wiretap", "vantage"),
    ],
)
def test_words_of_the_first_screen_and_of_settings_are_terms(text, term):
    assert f'href="#{anchor(term)}"' in Glossary().text(text)


def test_low_rank_is_not_the_term_rank():
    assert anchor("rank") not in Glossary().text("low-rank adapters")


# -- parts of an audit ----------------------------------------------------------------------------


def variants(*each, audit="a"):
    """One federation in several variants: (variant, notes, clients) each."""
    e = Estimate(value=0.5, low=0.1, high=0.8, n=9, baseline=0.5)
    out = []
    for variant, notes, per_client in each:
        made = only(e, audit, notes=notes, per_client=per_client)
        out.append(replace(made, variant=variant))
    return out


def test_equal_notes_appear_once():
    html = page(variants(("a", ("both", "first"), {}), ("b", ("both",), {})))
    notes = re.search(r'<ul class="notes">(.*?)</ul>', html)[1]
    assert notes == "<li>both</li><li><b>a:</b> first</li>"


def test_neighbouring_figures_of_clients_share_their_scale():
    rows = [{"x": {"share": v, "low": v / 2, "high": v}} for v in (1.0, 0.4)]
    html = page(variants(("a", (), rows[0]), ("b", (), rows[1])))
    figures = re.findall(r"<figure><h4>Per client: \w</h4>.*?</figure>", html, re.DOTALL)
    ticks = [re.findall(r'text-anchor="end">([\d.]+)<', f) for f in figures]
    assert len(ticks) == 2
    assert ticks[0] == ticks[1]
    assert "1" in ticks[0]


def test_columns_are_explained_before_their_table_and_once():
    row = {"AUC": 0.5, "low": 0.1, "high": 0.8, "lambda": 0.2, "J": 0.002}
    both = ("a", (), {"x": row}), ("b", (), {"x": {**row, "J": 0.00041}})
    html = page(variants(*both, audit="two_stage_membership"))
    assert html.count("Columns of this table") == 1
    first = html.index('<table class="clients sortable">')
    assert html.index("(1 same direction, -1 opposite)") < first


def test_numbers_of_one_column_have_the_same_decimals():
    small = {"share": 0.5, "low": 0.1, "high": 0.8, "J": 0.00041}
    rows = {"x": small, "y": {**small, "J": 0.002}, "z": {**small, "J": None}}
    html = page(variants(("a", (), rows)))
    assert re.findall(r'<td class="n">(0\.00\d+)</td>', html) == ["0.00041", "0.00200"]


@pytest.mark.parametrize(("figures", "row"), [(1, "two"), (2, "two"), (3, "three"), (4, "two")])
def test_figures_fill_the_width(figures, row):
    rows = {"x": {"share": 0.5, "low": 0.1, "high": 0.8}}
    html = page(variants(*((f"v{i}", (), rows) for i in range(figures))))
    assert f'<div class="figures {row}">' in html


def test_an_audit_without_a_paper_shows_no_differences():
    e = Estimate(value=0.5, low=0.1, high=0.8, n=9, baseline=0.5)
    bare = replace(only(e), cards={"a": {"Differs": ("Nothing to differ from.",)}})
    assert "Nothing to differ from" not in text_of(page([bare]))
    none = {"a": {"Paper": ("None; ours.",), "Differs": ("Nothing to differ from.",)}}
    text = text_of(page([replace(bare, cards=none)]))
    assert "None; ours." in text
    assert "Nothing to differ from" not in text
    assert "differs from the paper" not in text
    told = {"a": {"Paper": ("[X]",), "Differs": ("It differs.",)}}
    assert "It differs." in text_of(page([replace(bare, cards=told)]))


def test_a_count_says_what_it_counts():
    two, one = (Estimate(value=v, low=v, high=v, n=9, confidence=1.0, baseline=0) for v in (2, 1))
    for e, said in (
        (two, "2 kinds of data, counted exactly"),
        (one, "1 kind of data, counted exactly"),
    ):
        row = AuditResult(
            audit="coverage", question="?", vantage="wiretap", headline="s", estimates={"s": e}
        )
        text = text_of(page([chapter(rows=[row], guarantees={}, cards={})]))
        assert f"leak {said}" in text
        assert "with full protection 0" in text


def test_advice_says_for_which_variant_it_is():
    e = Estimate(value=0.9, low=0.8, high=1.0, n=9, baseline=0.5)
    row = AuditResult(
        audit="fingerprint", question="?", vantage="server", headline="s", estimates={"s": e}
    )
    every = [
        chapter(rows=[row], federation="f", variant=name, findings=judge_all([row], in_force))
        for name, in_force in (("bare", ()), ("noisy", ("noise_at_step",)))
    ]
    text = text_of(page(every))
    assert "noisy: add more noise in" in text
    assert "bare: add noise at the" in text


def test_a_remedy_for_all_variants_appears_once_per_place():
    e = Estimate(value=0.9, low=0.8, high=1.0, n=9, baseline=0.5)
    every = [replace(only(e), variant=v) for v in ("a", "b", "c")]
    assert text_of(page(every)).count("What helps: see the audit's page") == 1


def test_a_baseline_of_zero_is_not_called_chance():
    zero = Estimate(value=0.9, low=0.8, high=1.0, n=9, baseline=0.0)
    half = replace(zero, baseline=0.5)
    row = AuditResult(
        audit="topology_inference",
        question="?",
        vantage="wiretap",
        headline="s",
        estimates={"s": zero, "lift": zero, "AUROC": half},
    )
    text = text_of(page([chapter(rows=[row], guarantees={}, cards={})]))
    assert "chance 0" not in text.replace("chance 0.500", "")
    assert "one guess for all clients 0.0 %" in text
    assert "without a leak 0.000" in text
    assert "chance 0.500" in text


def test_the_fast_search_for_terms_finds_what_the_plain_patterns_find():
    plain = re.compile("|".join(f"(?P<t{i}>{p})" for i, (p, _) in enumerate(TERMS.values())))
    pieces = (
        [meaning for _, meaning in TERMS.values()]
        + list(RULES)
        + [
            "A2(topo) x(org) full rank rank_per_client _auc false_alarm \u00e9clients an n = 3",
            " ".join(TERMS),
            "_".join(TERMS),
            "".join(TERMS),
            *(p.replace("\\b", " ").replace("\\", "") for p, _ in TERMS.values()),
        ]
    )
    names, found = list(TERMS), 0
    for text in pieces:
        expected = [(names[int(m.lastgroup[1:])], *m.span()) for m in plain.finditer(text)]
        assert list(mentions(text)) == expected, text
        found += len(expected)
    assert found > len(TERMS)
