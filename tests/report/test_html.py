"""The page: self-contained, well-formed, explained, and deaf to hostile strings."""

import base64
import hashlib
import math
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from fedaudit.report.chapter import Chapter
from fedaudit.report.findings import judge_all
from fedaudit.report.page import page
from fedaudit.report.rules import RULES, VERDICTS
from fedaudit.report.terms import TERMS, Glossary, anchor
from fedaudit.results import AuditResult, Bound, Estimate, Underpowered

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
        AuditResult(audit=word, question=word, vantage=word, not_applicable=word),
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
    assert {"main", "h1", "table", "svg", "dl", "nav", "details"} <= set(seen.tags)
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


def test_nothing_is_loaded_and_only_its_own_script_runs():
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


def test_links_inside_the_page_lead_somewhere():
    html = made("word")
    ids = re.findall(r' id="([^"]*)"', html)
    assert len(ids) == len(set(ids))
    assert {to[1:] for to in re.findall(r'href="(#[^"]+)"', html)} <= set(ids)


def test_numbers_in_drawings_are_numbers():
    for value in re.findall(r'(?:x1|x2|y1|y2|cx|cy|points)="([^"]*)"', made("word")):
        for part in re.split(r"[ ,]", value):
            assert math.isfinite(float(part))


def test_a_page_without_findings_is_still_a_page():
    empty = page([])
    parsed(empty)
    assert empty.startswith("<!doctype html>")
    assert "findings" in empty.lower()


def only(e, **more):
    row = AuditResult(
        audit="a", question="?", vantage="v", headline="s", estimates={"s": e}, source="x", **more
    )
    return chapter(rows=[row], clients=(), guarantees={}, cards={})


def test_the_dot_stands_where_the_number_is():
    e = Estimate(value=0.25, low=0.0, high=0.5, n=9, baseline=1.0)
    drawing = re.search(r'<svg role="img".*?</svg>', page([only(e)]))[0]
    # the axis runs from 10 to 190
    assert 'cx="55.0"' in drawing
    assert 'class="bar" x1="10.0" x2="100.0"' in drawing
    assert 'class="chance" x1="190.0"' in drawing


# -- verdicts and their rules ---------------------------------------------------------------------


def test_no_verdict_without_its_rule():
    every = [
        only(Estimate(value=0.7, low=0.6, high=0.8, n=9, baseline=0.5)),
        only(Estimate(value=0.5, low=0.4, high=0.6, n=9, baseline=0.5)),
        only(Estimate(value=0.2, low=0.1, high=0.3, n=9, baseline=0.5), greater_is_leak=False),
        chapter(),
    ]
    html = page([replace(c, federation=f"f{i}") for i, c in enumerate(every)])
    answers = re.findall(r'<div class="answer">(.*?)</div>', html, re.DOTALL)
    assert len(answers) == sum(len(c.findings) for c in every)
    for answer in answers:
        verdict = re.search(r'class="mark (\w+)">([^<]*)<', answer)
        rule = RULES[re.search(r'href="#rule-(\w+)"', answer)[1]]
        assert (rule.verdict, VERDICTS[rule.verdict].words) == (verdict[1], verdict[2])
    text = text_of(html)
    for rule in RULES.values():
        assert rule.text in text


def test_the_tightest_bound_stands_beside_the_value():
    e = Estimate(value=0.6, low=0.55, high=0.65, n=9, baseline=0.5)
    loose, tight, told = (
        Bound(value=v, kind=k, of="s", source=s)
        for v, k, s in ((0.9, "upper", "[A]"), (0.8, "upper", "[B]"), (0.1, "reference", "[C]"))
    )
    text = text_of(page([only(e, bounds={"a": loose, "b": tight, "c": told})]))
    assert "bound at most 0.8 ([B])" in text
    assert "bound 0.1 (no guarantee, [C])" in text_of(page([only(e, bounds={"c": told})]))
    assert "bound none known" in text_of(page([only(e)]))


def test_who_must_be_trusted_is_said():
    e = Estimate(value=0.6, low=0.55, high=0.65, n=9, baseline=0.5)
    leak = replace(only(e), trust={"shuffle": "the shuffler"})
    assert "trust v not to do this; the shuffler (shuffle)" in text_of(page([leak]))


def test_no_evidence_says_from_where_on_a_leak_would_show():
    e = Estimate(value=0.5, low=0.4, high=0.6, n=9, baseline=0.5)
    assert "a leak would show from 0.7 on" in text_of(page([only(e, detectable=0.7)]))
    less = only(e, detectable=0.3, greater_is_leak=False)
    assert "a leak would show up to 0.3" in text_of(page([less]))
    assert "a leak would show" not in text_of(page([only(e)]))


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
    tables = re.findall(r'<table class="overview.*?</table>', html, re.DOTALL)
    assert len(tables) == 2
    for table in tables:
        heads = re.findall(r'<th scope="col"[^>]*>([^<]*)', table)
        assert heads == ["question", "unprotected", "DP-SGD", "what changes it"]
        (row,) = re.findall(r'<tr><th scope="row">.*?</tr>', table, re.DOTALL)
        cells = re.findall(r"<td>(.*?)</td>", row, re.DOTALL)
        assert "90.0&nbsp;%" in cells[0]
        assert "30.0&nbsp;%" in cells[1]


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
    assert text_of(html).count("The first 300 of 5,000 clients") == 2


def test_unfinished_and_blind_stand_at_the_top():
    html = page([chapter(notices=("Unfinished: 2 of 5 rounds",)), chapter(variant="y", notices=())])
    assert html.index("Unfinished: 2 of 5 rounds") < html.index("<main")


# -- terms ----------------------------------------------------------------------------------------


def test_a_term_is_explained_where_it_first_stands_and_once():
    told = Glossary()
    first = told.text("AUC 0.7, chance 0.5, AUC again")
    assert first.count("<a ") == 2
    assert told.text("AUC") == "AUC"
    explained = told.explained()
    assert f'id="{anchor("AUC")}"' in explained
    assert TERMS["chance"][1][:40] in explained
    assert told.explained() == ""


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
