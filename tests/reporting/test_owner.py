"""The owner's extract: p-values and names of clients, nothing else of a result."""

import json

from fedaudit.reporting.chapter import Chapter
from fedaudit.reporting.owner import owner_extract
from fedaudit.results import AuditResult, Estimate

ROW = {"named": 1, "adjusted_p": 0.002, "part": 4.2, "stands_out": 9.9, "marked": 1, "key": 0}


def result(audit, row):
    estimate = Estimate(value=1.0, low=1.0, high=2.0, n=2, confidence=0.95)
    return AuditResult(
        audit=audit,
        question="Who?",
        source="",
        status="ok",
        settings={"error": 0.05},
        vantage="server",
        headline="clients_named",
        estimates={"clients_named": estimate},
        per_client={"client-00": row},
        trace_sha256="0" * 64,
    )


def chapter(*results):
    return Chapter(federation="digits", summary={}, findings=(), results=results)


def test_the_owner_is_given_p_values_and_names_alone():
    text = owner_extract([chapter(result("attribution", ROW), result("fingerprint", ROW))])
    (found,) = json.loads(text)["attributions"]
    assert found["audit"] == "attribution"
    assert found["error"] == 0.05
    assert found["clients"] == {"client-00": {"named": 1, "adjusted_p": 0.002}}
    for private in ("part", "stands_out", "marked", "9.9", "4.2"):
        assert private not in text


def test_without_an_attribution_there_is_no_extract():
    assert owner_extract([chapter(result("fingerprint", ROW))]) is None
    assert owner_extract([chapter()]) is None
