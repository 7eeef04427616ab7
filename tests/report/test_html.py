"""The page: self-contained, well-formed, and deaf to hostile strings."""

import math
import re
from html.parser import HTMLParser

import pytest

from fedaudit.report.findings import judge_all
from fedaudit.report.html import page
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
        if "style" not in self.open:
            self.words.append(data)


def parsed(html):
    out = Page()
    out.feed(html)
    out.close()
    assert out.open == []
    return out


def results(word="x"):
    e = Estimate(value=0.7, low=0.5, high=0.9, n=20, baseline=0.1, method=word)
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


def made(word="x"):
    rows = results(word)
    return page({word: word}, judge_all(rows), rows, {word: word})


def test_the_page_is_well_formed_and_complete():
    seen = parsed(made("needle"))
    assert seen.tags[:2] == ["html", "head"]
    assert {"main", "h1", "table", "svg", "dl"} <= set(seen.tags)
    text = " ".join(seen.words)
    assert "theory and measurement disagree" in text
    assert "not applicable" in text
    assert "0.700 [0.500" not in text  # the headline prints three figures, the table three decimals
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
    assert "script" not in evil.tags
    assert "img" not in evil.tags


def test_nothing_is_loaded_and_nothing_runs():
    html = made("word")
    assert not re.search(r"https?://|url\(|@import|<link|<script|src=|href=", html)
    assert "default-src 'none'" in html


def test_numbers_in_drawings_are_numbers():
    for value in re.findall(r'(?:x1|x2|y1|y2|cx|cy|points)="([^"]*)"', made("word")):
        for part in re.split(r"[ ,]", value):
            assert math.isfinite(float(part))


def test_a_page_without_findings_is_still_a_page():
    empty = page({}, [], [], {})
    parsed(empty)
    assert empty.startswith("<!doctype html>")
    assert "Findings" in empty


def test_the_dot_stands_where_the_number_is():
    e = Estimate(value=0.25, low=0.0, high=0.5, n=9, baseline=1.0)
    row = AuditResult(
        audit="a", question="?", vantage="v", headline="s", estimates={"s": e}, source="x"
    )
    html = page({}, [], [row], {})
    drawing = re.search(r'<svg role="img".*?</svg>', html)[0]
    # the axis runs from 10 to 170
    assert 'cx="50.0"' in drawing
    assert 'class="bar" x1="10.0" x2="90.0"' in drawing
    assert 'class="chance" x1="170.0"' in drawing
