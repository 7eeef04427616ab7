"""The terminal report: complete, fits 80 columns, no control codes when piped."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from fedaudit.reporting.chapter import Chapter
from fedaudit.reporting.findings import judge_all
from fedaudit.reporting.text import (
    align_column,
    cell,
    headline,
    longest_word,
    show,
    show_study,
    wrappable,
)
from fedaudit.results import AuditResult, Estimate, Need, Underpowered

SUMMARY = {"federation": "3 clients, 2 rounds, fedavg on a star topology", "model": "mlp"}


def results(clients=3):
    low = Estimate(value=0.72, low=0.51, high=0.93, n=40, baseline=0.05, method="Wilson")
    other = Estimate(value=2.5, low=0.1, high=8.0, n=40, baseline=1.0, method="jackknife " * 6)
    row = {"links": 9, "share": 0.5, "low": 0.2, "high": 0.8, "remark": None}
    return [
        AuditResult(
            audit="fingerprint",
            question="Can the server tell, from nothing but what it received, who sent what?",
            vantage="server",
            headline="accuracy",
            estimates={"accuracy": low, "mutual_information": other},
            underpowered=(Underpowered(what="rate at 0.001", have=40, needed=3000),),
            per_client={f"client-{i:02d}": row for i in range(clients)},
            notes=("a long remark " * 12,),
            source="[Fingerprint] Section 3.2.4, greedy match over all rounds and all tensors",
        ),
        AuditResult(
            audit="query_plan",
            question="What does a set of queries give away?",
            vantage="aggregator",
            status="not_applicable",
            need=Need(code="none", what="no queries were recorded", remedy="record them"),
        ),
    ]


def printed(width=80, clients=3, **console):
    out = io.StringIO()
    rows = results(clients)
    show(Console(file=out, width=width, highlight=False, **console), SUMMARY, judge_all(rows), rows)
    return out.getvalue()


@pytest.mark.parametrize("width", [80, 60, 120])
def test_every_line_fits(width):
    assert max(len(line.rstrip()) for line in printed(width).splitlines()) <= width


def test_one_line_per_finding_with_value_interval_baseline_source():
    first, second = judge_all(results())
    assert headline(first) == (
        "fingerprint: accuracy 72.0 % [51.0 %, 93.0 %] at 95 %, baseline 5.0 %, n = 40; "
        "source: [Fingerprint] Section 3.2.4, greedy match over all rounds and all tensors"
    )
    assert headline(second).startswith("query_plan: not measured")
    wide = printed(300).splitlines()
    assert [line for line in wide if line.startswith("LEAK") and headline(first) in line]


def test_the_report_is_complete():
    text = " ".join(printed().split())
    for piece in (
        "3 clients, 2 rounds",
        "LEAK",
        "n/a",
        "what helps",
        "record them",
        "underpowered: rate at 0.001 needs 3000, has 40",
        "client-02",
        "mutual information",
    ):
        assert piece in text


def test_no_control_codes_without_a_terminal():
    assert "\x1b" not in printed()
    assert "\x1b" in printed(force_terminal=True, color_system="standard", _environ={})


def test_names_are_text_and_not_markup():
    row = AuditResult(
        audit="[red]x[/red]",
        question="[bold]?",
        vantage="[/]",
        status="failed",
        need=Need(code="[i]", what="[link=file:///etc]a[/link]"),
        notes=("[/bold]",),
        per_client={"[blink]": {"[u]": "[/u]"}},
    )
    out = io.StringIO()
    show(Console(file=out, width=80), {"[b]": "[/b]"}, judge_all([row]), [row])
    for piece in ("[red]x[/red]", "[bold]?", "[link=file:///etc]a[/link]", "[blink]", "[/u]"):
        assert piece in out.getvalue()


def test_a_foreign_trace_cannot_control_the_terminal():
    evil = "a\x1b[2J\x07\x9bb\rc"
    row = AuditResult(
        audit=evil,
        question=evil,
        vantage=evil,
        status="failed",
        need=Need(code=evil, what=evil),
        notes=(evil,),
        per_client={evil: {evil: evil}},
    )
    out = io.StringIO()
    show(Console(file=out, width=80), {evil: evil}, judge_all([row]), [row])
    assert not set("\x1b\x07\x9b\r") & set(out.getvalue())


def test_many_clients_are_cut_and_counted():
    text = printed(clients=25)
    assert "client-19" in text
    assert "client-20" not in text
    assert "and 5 more" in text


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, ""),
        (3, "3"),
        (0.5, "0.500"),
        (0.0, "0.000"),
        (1e-5, "1e-05"),
        (2e7, "2e+07"),
        ("a", "a"),
    ],
)
def test_cells(value, shown):
    assert cell(value) == shown


def study():
    rows = results()
    return [
        Chapter(
            federation="digits",
            variant=variant,
            summary=SUMMARY,
            findings=judge_all(rows),
            results=rows,
            notices=notices,
        )
        for variant, notices in (("unprotected", ()), ("DP-SGD", ("Unfinished: 1 round",)))
    ]


def printed_study(chapters, width=80, **more):
    out = io.StringIO()
    show_study(Console(file=out, width=width, highlight=False), chapters, **more)
    return out.getvalue()


@pytest.mark.parametrize("width", [80, 60, 120])
def test_several_chapters_begin_with_the_questions_and_fit(width):
    text = printed_study(study(), width)
    assert max(len(line.rstrip()) for line in text.splitlines()) <= width
    first = text.split("--- ")[0] if "--- " in text else text.split("---")[0]
    assert first.count("LEAK: 72.0 %") == 2
    whole = " ".join(first.split())
    for piece in (
        "chance 5.0 %, n = 40",
        "bound: none known",
        "trust: the good will of the server",
        "rule L1: the low end of the interval is above 5.0 %",
        "n/a: No queries were recorded. To measure it: record them. Rule A1: what it asks about",
        "source [Fingerprint] Section 3.2.4",
    ):
        assert piece in whole
    assert first.index("unprotected") < first.index("DP-SGD")
    assert "NOTE" in text
    assert "Unfinished: 1 round" in text


def test_several_chapters_can_be_printed_as_their_table_alone():
    text = printed_study(study(), details=False)
    assert "per client" not in text
    assert "baseline" not in text
    assert "Unfinished: 1 round" in text
    assert text.count("LEAK: ") == 2
    assert "what helps" in text


def test_one_chapter_is_printed_as_before():
    (only, _) = study()
    assert printed_study([only]) == printed()
    assert "per client" not in printed_study([only], details=False)


def test_no_evidence_states_the_smallest_detectable_leak():
    e = Estimate(value=0.1, low=0.02, high=0.3, n=40, baseline=0.05, method="Wilson")
    rows = [replace(results()[0], estimates={"accuracy": e}, per_client={}, detectable=0.15)]
    chapters = [replace(c, findings=judge_all(rows), results=rows, notices=()) for c in study()]
    text = " ".join(printed_study(chapters, details=False).split())
    assert text.count("no evidence: 10.0 %") == 2
    assert text.count("a leak would show from 15.0 % on") == 2
    assert "rule E1: the low end of the interval is not above 5.0 %" in text


def test_no_word_of_a_name_is_broken():
    assert longest_word(["active_membership: success", "a"]) == len("active_membership:")
    assert longest_word(["x" * 90], most=30) == 30
    assert longest_word([]) == 0
    assert wrappable("active_membership: success_rate") == "active membership: success_rate"


def test_cells_of_a_column_are_comparable():
    assert align_column([0.002, 0.00041, None]) == ["0.00200", "0.00041", ""]
    assert align_column([0.5, 0.25]) == ["0.500", "0.250"]
    assert align_column([1e-9, 0.5]) == ["1e-09", "0.500"]
    assert align_column([0.0, 0.0005, 3]) == ["0.00000", "0.00050", "3"]
