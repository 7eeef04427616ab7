"""The report as strict JSON."""

import json
import math

import pytest

from fedaudit.codec import json_number
from fedaudit.reporting.chapter import Chapter
from fedaudit.reporting.findings import judge_all
from fedaudit.reporting.machine import FORMAT, machine
from fedaudit.results import AuditResult, Estimate, Finding, Need


def chapter(variant="unprotected", value=0.7, guarantees=None):
    e = Estimate(value=value, low=value - 0.1, high=value + 0.1, n=20, baseline=0.25, method="m")
    rows = [
        AuditResult(
            audit="fingerprint",
            question="?",
            vantage="server",
            headline="s",
            estimates={"s": e},
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
    promised = {"dp_sgd": {"client 1": {"epsilon": math.inf, "delta": 1e-5}}}
    return Chapter(
        federation="digits",
        variant=variant,
        summary={"federation": "3 clients"},
        findings=judge_all(rows),
        results=rows,
        guarantees=promised if guarantees is None else guarantees,
        evidence={"trace sha256": "ab12"},
    )


def test_json_is_strict_and_complete():
    def refuse(word):
        raise AssertionError(word)

    chapters = [chapter(), chapter("DP-SGD", 0.3)]
    report = json.loads(machine(chapters), parse_constant=refuse)
    assert (report["format"], report["version"]) == (FORMAT, 2)
    first = report["chapters"][0]
    assert (first["federation"], first["variant"]) == ("digits", "unprotected")
    assert first["guarantees"]["dp_sgd"]["client 1"]["epsilon"] == "inf"
    assert first["evidence"] == {"trace sha256": "ab12"}
    for written, given in zip(report["chapters"], chapters, strict=True):
        assert [Finding.from_dict(f) for f in written["findings"]] == list(given.findings)
        back = [AuditResult.from_json(json.dumps(r)) for r in written["results"]]
        assert back == list(given.results)
        for f in written["findings"]:
            assert report["rules"][f["rule"].partition(":")[0]]["verdict"] == f["verdict"]


def test_a_guarantee_that_is_not_a_number_is_null():
    odd = chapter(guarantees={"x": {"a": {"epsilon": math.nan, "list": (1, -math.inf)}}})
    written = json.loads(machine([odd]))["chapters"][0]["guarantees"]["x"]["a"]
    assert written == {"epsilon": None, "list": [1, "-inf"]}


@pytest.mark.parametrize(
    ("value", "written"),
    [(0.5, 0.5), (None, None), (math.inf, "inf"), (-math.inf, "-inf"), (math.nan, None)],
)
def test_numbers_that_json_lacks(value, written):
    assert json_number(value) == written
