"""The report as Markdown."""

import math
import re
from dataclasses import replace

from fedaudit.reporting.chapter import Chapter
from fedaudit.reporting.environment import code, escape_markdown
from fedaudit.reporting.findings import judge_all
from fedaudit.reporting.first_page import summarise
from fedaudit.reporting.markdown import markdown
from fedaudit.reporting.overview import by_federation
from fedaudit.reporting.rules import CALIBRATION, RULES
from fedaudit.results import NO_TRUTH, AuditResult, Estimate, Need


def chapter(variant="unprotected", value=0.7, **more):
    e = Estimate(value=value, low=value - 0.1, high=value + 0.1, n=20, baseline=0.25, method="m")
    rows = [
        AuditResult(
            audit="fingerprint",
            question="Can it | be?",
            vantage="server",
            headline="s",
            estimates={"s": e},
            source="[X] Eq. (1)",
            detectable=0.35,
        ),
        AuditResult(
            audit="query_plan",
            question="?",
            vantage="server",
            status="not_applicable",
            need=Need(code="none", what="no sums", remedy="ask for some"),
        ),
    ]
    plain = {
        "federation": "digits",
        "variant": variant,
        "summary": {"federation": "3 clients", "promised": "dp_sgd: epsilon 2"},
        "findings": judge_all(rows),
        "results": rows,
        "guarantees": {"dp_sgd": {"client 1": {"epsilon": math.inf, "delta": 1e-5}}},
        "evidence": {"trace sha256": "ab12"},
        "config": "[data]\n",
        "clients": ("client 1",),
        "notices": ("Unfinished: 1 round",),
    }
    return Chapter(**{**plain, **more})


def study():
    return [chapter(), chapter("DP-SGD", 0.3)]


def test_the_table_has_a_row_per_question_and_a_column_per_variant():
    text = markdown(study())
    details = text.split("### In detail")[1]
    rows = [line for line in details.splitlines() if line.startswith("|")]
    assert rows[0] == "| question | unprotected | DP-SGD |"
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {4}
    assert rows[2] == (
        "| Can it \\| be?<br>source: \\[X\\] Eq. (1) "
        "| **leak** 70.0 % \\[60.0 %, 80.0 %\\] at 95 %, chance 25.0 %, n = 20<br>"
        "bound: none known<br>trust: the good will of the server<br>"
        "rule L1: the low end of the interval is above 25.0 % "
        "| **no evidence** 30.0 % \\[20.0 %, 40.0 %\\] at 95 %, chance 25.0 %, n = 20<br>"
        "a leak would show from 35.0 % on<br>bound: none known<br>"
        "trust: the server, as no protection is declared<br>"
        "rule E1: the low end of the interval is not above 25.0 % |"
    )
    assert rows[3].startswith(
        "| ? | **not applicable**: No sums.<br>to measure it: ask for some<br>rule A1: "
    )
    assert "Unfinished: 1 round" in text.split("## digits")[0]
    assert RULES["L1"].text in text
    assert CALIBRATION.replace("`", "") in text.replace("`", "")
    assert "`ab12`" in text


def test_markdown_begins_with_the_first_page():
    chapters = [replace(c, folder=c.variant) for c in study()]
    (part,) = by_federation(chapters)
    page = summarise(part, "run")
    text = markdown(chapters, place="run")
    first = text.split("### In detail")[0].replace("\\", "")
    assert page.today in first
    assert page.alternative in first
    assert page.step.command in first
    rows = [line.split(" | ") for line in first.splitlines() if line.startswith("|")]
    assert {len(row) for row in rows} == {3}
    (asked,) = [row for row in rows if row[0] == "| Updates of the same client?<br>by the server"]
    assert asked[1].startswith("**leak 70 %**<br>60 to 80 %, chance 25 %")
    assert asked[2].startswith("**no evidence: 30 %, chance 25 %**")
    assert [cost.label for cost in page.costs] == [r[0][2:] for r in rows[-len(page.costs) :]]


def test_guesses_of_a_blind_attack_are_listed():
    row = AuditResult(
        audit="fingerprint",
        question="Can it?",
        vantage="server",
        status="blind",
        need=NO_TRUTH,
        per_client={"group 1": {"updates": 2, "messages": "1:4 2:7"}},
        notes=("a group is said to be one client",),
    )
    text = markdown([chapter(results=[row], findings=judge_all([row]))])
    assert "| group 1 | 2 | 1:4 2:7 |" in text
    assert "a group is said to be one client" in text
    assert "listed below" in text


def test_notes_and_held_out_metrics_are_in_the_markdown():
    summary = {"data": "patients.csv", "noted": "values were filled", "held out": "loss 2.7"}
    text = markdown([chapter(summary=summary)])
    assert text.count("values were filled") == 1
    assert "patients.csv" in text
    assert "Held out:" in text
    assert "- unprotected: loss 2.7" in text


def test_hostile_text_stays_text_in_markdown():
    evil = "<img src=x> [a](javascript:b) @team `x` **y** | \n# z \x1b[2J"
    need = Need(code=evil, what=evil, remedy=evil)
    row = AuditResult(audit=evil, question=evil, vantage=evil, status="not_applicable", need=need)
    text = markdown(
        [chapter(federation=evil, results=[row], findings=judge_all([row]), notices=(evil,))]
    )
    assert "<img" not in text
    assert "\x1b" not in text
    assert not re.search(r"(?<!\\)\[a", text)
    assert "@team" not in text
    assert not re.search(r"^# z", text, re.MULTILINE)
    assert escape_markdown("a|b") == "a\\|b"
    assert code("a`b") == "`` a`b ``"


def test_measures_that_an_audit_shows_beside_its_headline_have_a_table():
    first = chapter()
    purity = Estimate(value=0.6, low=0.5, high=0.7, n=20, baseline=0.3)
    told = replace(first.results[0], estimates={**first.results[0].estimates, "purity": purity})
    rows = [told, *first.results[1:]]
    one = chapter(results=rows, findings=judge_all(rows))
    lines = markdown([one, chapter("DP-SGD", 0.3)]).splitlines()
    at = lines.index("| also measured | unprotected | DP-SGD |")
    assert lines[at + 2] == (
        "| purity: updates by the main client of their group | 0.6 \\[0.5, 0.7\\] at 95 %, "
        "baseline 0.3 | not measured |"
    )
