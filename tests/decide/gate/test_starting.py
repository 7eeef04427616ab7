"""The first policy for a study: which variant it starts from, and how it names it."""

import tomllib
from pathlib import Path

from fedaudit.decide.gate.evidence import Evidence
from fedaudit.decide.gate.starting import _policy_of
from fedaudit.results import AuditResult, Estimate


def result(audit, value, half):
    e = Estimate(value=value, low=value - half, high=value + half, n=400, baseline=0.5)
    return AuditResult(
        audit=audit,
        question="?",
        vantage="server",
        headline="success",
        estimates={"success": e},
        detectable=0.6,
    )


def evidence(variant, *results, federation="hospitals"):
    return Evidence(
        path=Path(variant),
        federation=federation,
        variant=variant,
        results={r.audit: r for r in results},
    )


def test_a_variant_with_a_leak_is_not_the_start_however_narrow_its_interval():
    """The report calls the variant without a leak the best; its interval is wider."""
    wide = evidence("sums", result("active_membership", 0.51, 0.05))
    narrow = evidence("sums, noise", result("active_membership", 0.53, 0.01))
    limits = tomllib.loads(_policy_of([narrow, wide]))["limit"]
    assert {x["variant"] for x in limits} == {"sums"}


def test_a_single_federation_is_not_named_after_its_file():
    """The same study from a renamed config keeps its limits."""
    bare, sums = (evidence(v, result("active_membership", 0.5, 0.05)) for v in ("bare", "sums"))
    assert "federation =" not in _policy_of([bare, sums])
    other = evidence("bare", result("active_membership", 0.9, 0.05), federation="banks")
    assert 'federation = "hospitals"' in _policy_of([bare, sums, other])
