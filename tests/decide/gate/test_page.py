"""JUnit, SARIF, JSON and terminal text of a gate."""

import io
import json
import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from rich.console import Console

from fedaudit.decide.gate.outcome import Gate, LimitCheck, LimitReading
from fedaudit.decide.gate.page import (
    junit,
    plain,
    rule_id,
    sarif,
    show_gate,
    statement,
    summary,
)
from fedaudit.results import Estimate

E = Estimate(value=0.3, low=0.2, high=0.4, n=50, baseline=0.25)


def check(status, name="linkage", run="", **more):
    reading = LimitReading(bound=0.4, limit=0.5 if status == "passed" else 0.1, estimate=E)
    base = LimitCheck(
        limit=name,
        metric="fingerprint.linkage_accuracy",
        rule="at most 0.1",
        status=status,
        run=run,
        readings=(reading,) if status in ("passed", "failed") else (),
        missing="" if status in ("passed", "failed") else "there is no result",
        remedy="" if status in ("passed", "failed") else "fedaudit audit RUN",
        file="results/fingerprint.json",
    )
    return replace(base, **more)


@pytest.fixture
def mixed():
    return Gate(
        run="run",
        policy="policy.toml",
        policy_sha256="ab" * 32,
        version="0.1.0",
        checks=(
            check("passed", "one"),
            check("failed", "two"),
            check("missing", "three", why="it was agreed"),
            check("allowed", "four"),
            check("failed", "two", run="digits, DP"),
        ),
        traces={"": "cd" * 32},
    )


def test_a_gate_passes_only_if_every_check_does(mixed):
    assert not mixed.passed
    assert replace(mixed, checks=mixed.checks[:1] + mixed.checks[3:4]).passed
    assert not replace(mixed, checks=()).passed
    assert mixed.counts == {"passed": 1, "failed": 2, "missing": 1, "allowed": 1}


# -- JUnit -----------------------------------------------------------------------------------------


def test_junit_counts_what_it_holds(mixed):
    root = ElementTree.fromstring(junit(mixed))
    assert root.tag == "testsuites"
    suites = root.findall("testsuite")
    assert len(suites) == 2
    for part in (root, *suites):
        cases = part.findall(".//testcase")
        assert int(part.get("tests")) == len(cases)
        for tag, key in (("failure", "failures"), ("error", "errors"), ("skipped", "skipped")):
            assert int(part.get(key)) == sum(c.find(tag) is not None for c in cases)
    assert [int(root.get(k)) for k in ("tests", "failures", "errors", "skipped")] == [5, 2, 1, 1]


def test_junit_says_what_was_found(mixed):
    root = ElementTree.fromstring(junit(mixed))
    for case in root.findall(".//testcase"):
        assert case.get("name")
        assert case.get("classname")
        assert float(case.get("time")) == 0
        told = [case.find(t) for t in ("failure", "error")]
        for found in (t for t in told if t is not None):
            assert found.get("message")
            assert found.get("type") in ("limit", "evidence")
            assert "limit: " in found.text
    failure = root.find(".//failure")
    assert "upper bound 0.4 breaks at most 0.1" in failure.get("message")


def test_junit_holds_any_text():
    """Users choose names: markup and control characters must not break the file."""
    name = 'a <b> & "c"\x00\x1b ]]> ü'
    made = Gate(
        run="r", policy="p", policy_sha256="0" * 64, version="0", checks=(check("failed", name),)
    )
    case = ElementTree.fromstring(junit(made)).find(".//testcase")
    assert case.get("name") == 'a <b> & "c"\ufffd\ufffd ]]> ü'


# -- SARIF -----------------------------------------------------------------------------------------


KINDS = ("pass", "open", "informational", "notApplicable", "review", "fail")


def assert_sarif(log):
    """Check the parts of the 2.1.0 schema that our logs use: required keys, enumerations, types."""
    assert log["version"] == "2.1.0"
    assert log["$schema"].endswith("sarif-2.1.0.json")
    assert set(log) <= {"$schema", "version", "runs", "properties"}
    for run in log["runs"]:
        driver = run["tool"]["driver"]
        assert isinstance(driver["name"], str)
        ids = [rule["id"] for rule in driver["rules"]]
        assert len(set(ids)) == len(ids)
        for rule in driver["rules"]:
            assert rule["defaultConfiguration"]["level"] in ("none", "note", "warning", "error")
            for key in ("shortDescription", "fullDescription"):
                assert rule[key]["text"]
        for result in run["results"]:
            assert result["message"]["text"]
            assert ids[result["ruleIndex"]] == result["ruleId"]
            assert result["level"] in ("none", "note", "warning", "error")
            assert result["kind"] in KINDS
            # 3.27.10: a kind other than fail has level none
            assert (result["kind"] == "fail") == (result["level"] != "none")
            for prints in result["partialFingerprints"].values():
                assert isinstance(prints, str)
            for place in result["locations"]:
                where = place["physicalLocation"]["artifactLocation"]
                assert not where["uri"].startswith("/")
                assert where["uriBaseId"] in run["originalUriBaseIds"]
                assert place["physicalLocation"]["region"]["startLine"] >= 1
            for suppressed in result.get("suppressions", []):
                assert suppressed["kind"] in ("inSource", "external")


def test_sarif_has_the_shape_of_its_schema(mixed):
    log = json.loads(sarif(mixed))
    assert_sarif(log)
    (run,) = log["runs"]
    assert len(run["tool"]["driver"]["rules"]) == 4  # limits, not checks
    assert [r["level"] for r in run["results"]] == ["none", "error", "error", "note", "error"]
    assert [bool(r.get("suppressions")) for r in run["results"]] == [False] * 3 + [True, False]


def test_fingerprints_hold_while_numbers_change(mixed):
    def prints(gate):
        found = json.loads(sarif(gate))["runs"][0]["results"]
        return [r["partialFingerprints"]["fedauditLimit/v1"] for r in found]

    other = tuple(replace(c, readings=(), missing="another day") for c in mixed.checks)
    assert prints(mixed) == prints(replace(mixed, checks=other))
    assert len(set(prints(mixed))) == 5


def test_rule_names_are_stable_and_distinct():
    assert rule_id("linkage") == "fedaudit/linkage"
    assert rule_id("linkage") != rule_id("Linkage") != rule_id("linkage!")
    assert re.fullmatch(r"fedaudit/[a-z0-9-]+", rule_id("TPR at 1 %"))
    assert rule_id("ü") != rule_id("ö")


# -- words -----------------------------------------------------------------------------------------


def test_a_statement_names_the_worst_clients_first():
    readings = (
        *(LimitReading(who=f"client {i}", bound=i / 10, limit=0.15) for i in range(1, 10)),
        LimitReading(who="client 10", missing="has no value"),
    )
    said = statement(check("failed", readings=readings))
    assert said.startswith("8 of 10 clients break it: client 9: 0.9 breaks at most 0.15; client 8")
    assert "and 3 more" in said
    assert "no evidence for 1 of 10 clients: client 10: has no value" in said


def test_the_text_says_if_only_the_interval_breaks_the_limit():
    near = LimitReading(bound=0.4, limit=0.35, estimate=E)
    assert statement(check("failed", readings=(near,))) == (
        "upper bound 0.4 breaks at most 0.35 (measured 0.3 [0.2, 0.4] at 95 %, chance 0.25, "
        "n = 50). The measured value keeps the limit, its interval does not: more evidence may "
        "help (`fedaudit power`)"
    )
    beyond = statement(check("failed", readings=(replace(near, limit=0.29),)))
    assert "more evidence" not in beyond


def test_all_clients_that_keep_a_limit_are_one_sentence():
    readings = tuple(LimitReading(who=f"client {i}", bound=i / 10, limit=1.0) for i in range(1, 4))
    said = statement(check("passed", readings=readings))
    assert said == "all 3 clients keep it; the nearest is client 3: 0.3 keeps at most 1"


def test_the_terminal_shows_failures_first(mixed):
    out = io.StringIO()
    show_gate(Console(file=out, width=100), mixed)
    text = out.getvalue()
    assert text.index("FAILED") < text.index("NO EVIDENCE") < text.index("allowed")
    assert text.index("allowed") < text.index("passed")
    assert "why: it was agreed" in text
    assert summary(mixed).startswith("FAILED: 5 checks, 1 kept, 2 broken, 1 without evidence")


def test_markup_in_names_is_text(mixed):
    out = io.StringIO()
    odd = replace(mixed, checks=(check("failed", "[bold]x[/nothing]"),))
    show_gate(Console(file=out, width=100), odd)
    assert "[bold]x[/nothing]" in out.getvalue()


def test_json_is_strict_and_holds_every_reading(mixed):
    endless = replace(E, high=float("inf"))
    reading = LimitReading(bound=float("inf"), limit=0.1, estimate=endless)
    odd = replace(mixed, checks=(check("failed", readings=(reading,)),))
    raw = json.loads(json.dumps(plain(odd), allow_nan=False))
    assert raw["passed"] is False
    assert raw["checks"][0]["readings"][0]["bound"] == "inf"
    assert raw["checks"][0]["readings"][0]["estimate"]["low"] == 0.2
