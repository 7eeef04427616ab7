"""The rules that turn numbers into verdicts, and the words they may never use."""

import json
import math
import re
from pathlib import Path

import pytest

import fedaudit
from fedaudit.report import findings, rules
from fedaudit.report.findings import FAILED, interval, judge, judge_all, number
from fedaudit.results import AuditResult, Bound, Estimate, Finding


def result(value=0.5, low=0.4, high=0.6, *, baseline=0.1, audit="fingerprint", **more):
    return AuditResult(
        audit=audit,
        question="Is it so?",
        vantage="server",
        headline="score",
        estimates={
            "score": Estimate(value=value, low=low, high=high, n=30, baseline=baseline, method="m")
        },
        source="[Fingerprint] Section 3",
        **more,
    )


def verdicts(*results):
    return [f.verdict for f in judge_all(results)]


def test_a_leak_needs_the_whole_interval_beyond_the_baseline():
    assert verdicts(result(low=0.11)) == ["leak"]
    assert verdicts(result(low=0.1)) == ["no_evidence"]
    assert verdicts(result(value=0.9, low=0.05, high=1.0)) == ["no_evidence"]


def test_which_side_is_bad_is_the_results_to_say():
    assert verdicts(result(0.05, 0.01, 0.09, greater_is_leak=False)) == ["leak"]
    assert verdicts(result(0.05, 0.01, 0.11, greater_is_leak=False)) == ["no_evidence"]
    assert verdicts(result(0.5, 0.4, 0.6, greater_is_leak=False)) == ["no_evidence"]


def test_no_baseline_means_zero():
    assert verdicts(result(low=0.01, baseline=None)) == ["leak"]
    assert verdicts(result(low=0.0, baseline=None)) == ["no_evidence"]


def test_no_evidence_states_what_would_have_been_seen():
    (found,) = judge(result(low=0.05, detectable=0.25))
    assert "25.0 %" in found.statement
    (found,) = judge(result(low=0.05))
    assert "not known" in found.statement


def test_a_missing_need_is_named_with_its_remedy():
    bare = AuditResult(
        audit="fingerprint",
        question="Is it so?",
        vantage="server",
        not_applicable="senders are named; got names" + findings.REMEDY + "put a shuffler before",
    )
    (found,) = judge(bare)
    assert found.verdict == "not_applicable"
    assert found.statement == "Senders are named; got names."
    assert found.remedy == "put a shuffler before"
    assert found.estimate is None


def test_a_disagreement_with_theory_comes_first():
    upper = Bound(value=0.3, kind="upper", of="score", source="[X] Eq. (1)", assumes="no noise")
    odd = result(low=0.4, bounds={"ceiling": upper})
    plain = result(audit="coverage", low=0.2)
    found = judge_all([plain, odd])
    assert [f.verdict for f in found] == ["disagreement", "leak", "leak"]
    assert "ceiling" in found[0].statement
    assert found[0].source == "[X] Eq. (1)"
    assert "no noise" in found[0].remedy


@pytest.mark.parametrize(
    ("kind", "value", "contradicts"),
    [
        ("upper", 0.39, True),
        ("upper", 0.4, False),  # the interval touches the bound
        ("lower", 0.61, True),
        ("lower", 0.6, False),
        ("reference", 0.0, False),
        ("reference", 1.0, False),
    ],
)
def test_only_a_theorem_can_be_contradicted_and_only_by_the_whole_interval(
    kind, value, contradicts
):
    bound = Bound(value=value, kind=kind, of="score", source="[X] Eq. (1)")
    got = verdicts(result(bounds={"b": bound}))
    assert ("disagreement" in got) is contradicts


def test_findings_are_sorted_worst_first_and_otherwise_keep_their_order():
    na = AuditResult(audit="a", question="?", vantage="server", not_applicable="x")
    fine = result(low=0.0, audit="b")
    leak_c, leak_d = result(audit="c"), result(audit="d")
    found = judge_all([na, fine, leak_c, leak_d])
    assert [f.audit for f in found] == ["c", "d", "b", "a"]


def test_numbers_come_with_interval_and_baseline():
    for f in judge_all([result(), result(low=0.0, audit="new_audit"), result(audit="coverage")]):
        assert f.estimate is not None
        assert f.estimate.baseline is not None
        assert f.rule
        assert f.source


def test_the_rule_that_is_printed_is_the_rule_that_was_used():
    (leak,) = judge(result(low=0.2))
    assert leak.rule == "L1: the low end of the interval is above 10.0 %"
    (none,) = judge(result(low=0.0))
    assert none.rule == "E1: the low end of the interval is not above 10.0 %"


def test_every_finding_follows_from_a_rule_of_the_table_with_its_verdict():
    upper = Bound(value=0.3, kind="upper", of="score", source="[X] Eq. (1)")
    lower = Bound(value=0.9, kind="lower", of="score", source="[X] Eq. (2)")
    every = [
        result(bounds={"u": upper, "l": lower}),
        result(low=0.0),
        result(0.05, 0.01, 0.09, greater_is_leak=False),
        result(0.05, 0.01, 0.2, greater_is_leak=False),
        AuditResult(audit="a", question="?", vantage="server", not_applicable="x"),
        AuditResult(audit="a", question="?", vantage="server", not_applicable="no truth: blind"),
        AuditResult(audit="a", question="?", vantage="server", not_applicable=FAILED + "x"),
    ]
    found = judge_all(every)
    assert {f.rule.partition(":")[0] for f in found} == set(rules.RULES)
    for f in found:
        assert rules.RULES[f.rule.partition(":")[0]].verdict == f.verdict


def test_how_numbers_are_printed():
    assert number(0.123456) == "0.123"
    assert number(3) == "3"
    assert number(0.5, percent=True) == "50.0 %"
    assert number(-0.0001, percent=True) == "0.0 %"
    assert number(-0.01, percent=True) == "-1.0 %"
    assert number(math.inf) == "infinite"
    assert interval(Estimate(value=1, low=1, high=1, n=3, confidence=1.0)) == "1 [1, 1], exact"
    wide = Estimate(value=0.5, low=0, high=1, n=3, confidence=0.999)
    assert interval(wide, percent=True) == "50.0 % [0.0 %, 100.0 %] at 99.9 %"


def test_findings_survive_json():
    everything = [
        result(),
        result(value=math.inf, low=1.0, high=math.inf, baseline=0.0),
        AuditResult(audit="a", question="?", vantage="server", not_applicable="x"),
    ]
    for f in judge_all(everything):
        text = json.dumps(f.to_dict(), allow_nan=False)
        assert Finding.from_dict(json.loads(text)) == f


def test_no_verdict_says_safe():
    """Absence of evidence is all a measurement can give."""
    words = re.compile(r"\b(safe|safely|secure\b(?! sum)|harmless|no risk|guaranteed)", re.I)
    said = [
        text
        for w in [*rules.WORDS.values(), rules.GENERIC]
        for text in (w.leak, w.no_evidence, w.remedy, w.measure)
    ]
    said += [r.text + r.of_one for r in rules.RULES.values()]
    said += [label.words for label in rules.VERDICTS.values()]
    assert [text for text in said if words.search(text)] == []
    sources = (Path(fedaudit.__file__).parent / "report").glob("*.py")
    for file in sources:
        code = file.read_text(encoding="utf-8").replace('There is no "safe".', "")
        assert not re.search(r"\bsafe\b", code, re.I), file
    for f in judge_all([result(low=0.0), result(audit="coverage", low=0.0, baseline=0.0)]):
        assert not words.search(f.statement)
