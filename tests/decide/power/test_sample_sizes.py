"""Sample sizes of a run, its smallest detectable leak, and the size that a wanted leak needs."""

import io
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from fedaudit import study
from fedaudit.audits.audit import Audit
from fedaudit.audits.facts import GREATER, AuditFacts, Measure
from fedaudit.audits.planning import Aim
from fedaudit.decide.gate.evidence import run_evidence
from fedaudit.decide.power.page import plain_power, show_power
from fedaudit.decide.power.sample_sizes import power_of_audit, power_of_run
from fedaudit.errors import ConfigError, TraceError, UsageError
from fedaudit.results import AuditResult, Estimate
from fedaudit.setup.catalogue import AUDITS, find
from fedaudit.stats import links, power
from fedaudit.study.seal import seal
from fedaudit.trace import Trace

SMALL = {
    "seed": 31337,
    "data": {"name": "gaussian-mixture", "records": 160, "dimension": 6},
    "partition": {"kind": "dirichlet", "alpha": 0.5},
    "task": {"kind": "mlp", "hidden": [8]},
    "federation": {"clients": 4, "rounds": 3},
    "protections": {"shuffle": {}},
    "audits": {
        "fingerprint": {},
        "coverage": {},
        "two_stage_membership": {"checked_rounds": 0},
        "active_membership": {"games": 60},
        "query_plan": {},
    },
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "run"
    study.run(SMALL, out)
    return out


def by_measure(needs):
    return {f"{n.audit}.{n.measure}": n for n in needs}


def store(run, result):
    made = replace(result, trace_sha256=Trace.open(run).sha256)
    file = run / "results" / f"{result.audit}.json"
    file.write_text(json.dumps({"asked": {}, "result": json.loads(made.to_json())}))
    seal(run, "results")


def linked(run, rows):
    """A copy of the run with the given numbers of found links per client."""
    made = run_evidence(run).results["fingerprint"]
    per_client = {
        client: {"links": n, "found": k}
        for client, (k, n) in zip(made.per_client, rows, strict=True)
    }
    store(run, replace(made, per_client=per_client))


# -- of a run --------------------------------------------------------------------------------------


def test_every_result_of_a_run_gets_a_line(finished):
    found = by_measure(power_of_run(finished))
    assert {n.audit for n in found.values()} == set(SMALL["audits"])
    assert found["coverage.kinds_outside_protection"].exact
    assert found["query_plan.nothing was measured"].how
    json.dumps(plain_power(list(found.values()), 0.9, 0.95), allow_nan=False)


def test_a_search_that_ended_undecided_asks_for_another_plan_not_for_rounds(finished, tmp_path):
    run = Path(shutil.copytree(finished, tmp_path / "run"))
    head = Estimate(value=6, low=3, high=6, n=3, confidence=1.0, baseline=5)
    ranged = AuditResult(
        audit="query_plan",
        question="?",
        vantage="server",
        headline="smallest_exposed_group",
        greater_is_leak=False,
        estimates={"smallest_exposed_group": head},
        detectable=2.0,
    )
    store(run, ranged)
    need = by_measure(power_of_run(run))["query_plan.smallest_exposed_group"]
    assert "undecided, 3 to 6" in need.how
    assert "plan design" in need.how
    whole = {"smallest_exposed_group": replace(head, low=6)}
    store(run, replace(ranged, estimates=whole))
    need = by_measure(power_of_run(run))["query_plan.smallest_exposed_group"]
    assert "no chance in it" in need.how


def test_links_are_counted_and_turned_into_rounds(finished, tmp_path):
    run = Path(shutil.copytree(finished, tmp_path / "run"))
    # alternating hits and misses in equal measure: links of a client are not alike
    linked(run, [(5, 10), (5, 10), (5, 10), (5, 10)])
    (need,) = power_of_run(run, audits=["fingerprint"], aim=Aim(effect=0.1))
    assert need.have == 40
    assert need.chance == pytest.approx(0.25)
    pairs = links.pairs_for_share(0.35, 4, 0.9, 0.0125)
    assert need.needed == 4 * pairs
    assert f"{pairs + 1} rounds" in need.how
    assert need.seen == links.detectable_share(4, 10, 0.9, 0.0125)
    assert need.enough is False


def test_the_report_states_the_leak_that_is_detected_in_half_of_all_runs(tmp_path):
    """The report states a measured value, `power` a true one."""
    raw = SMALL | {"federation": {"clients": 8, "rounds": 8}, "audits": {"fingerprint": {}}}
    study.run(raw, tmp_path / "run")
    result = run_evidence(tmp_path / "run").results["fingerprint"]
    half = power_of_run(tmp_path / "run", aim=Aim(power=0.5))[0]
    (need,) = power_of_run(tmp_path / "run")
    assert half.seen == pytest.approx(result.detectable, abs=1 / 8)  # one client more or less
    assert need.seen > result.detectable
    for figure in (result.detectable, need.seen):
        assert f"{figure:.3g}" in need.rule
    assert "half of all runs" in need.rule
    assert "in 90 of 100" in need.rule
    # what is counted: links there, clients here
    assert (need.have, result.estimates["linkage_accuracy"].n) == (56, 8)
    assert "56 links of 8 clients" in need.rule


def test_links_that_are_wholly_alike_ask_for_clients_not_rounds(finished, tmp_path):
    run = Path(shutil.copytree(finished, tmp_path / "run"))
    linked(run, [(10, 10), (0, 10), (10, 10), (0, 10)])
    (need,) = power_of_run(run, audits=["fingerprint"])
    assert need.needed is None
    assert "more than 4 clients" in need.how
    assert need.enough is False


def test_enough_links_are_enough(finished, tmp_path):
    run = Path(shutil.copytree(finished, tmp_path / "run"))
    linked(run, [(500, 2000)] * 4)
    (need,) = power_of_run(run, audits=["fingerprint"], aim=Aim(effect=0.1))
    assert need.enough is True
    assert need.seen < 0.35


def test_a_larger_effect_needs_less_and_more_power_more(finished):
    def needed(**aim):
        (need, *_) = power_of_run(finished, audits=["active_membership"], aim=Aim(**aim))
        return need.needed

    assert needed(effect=0.2) < needed(effect=0.1) < needed(effect=0.1, power=0.99)


def test_membership_tells_what_rates_need(finished):
    found = by_measure(power_of_run(finished, audits=["two_stage_membership"]))
    rate = found["two_stage_membership.true_positive_rate (at 0.1 %)"]
    assert rate.needed == 10_000
    assert rate.seen is None
    assert rate.enough is False
    (stated,) = {
        u.have
        for u in run_evidence(finished).results["two_stage_membership"].underpowered
        if "0.001 " in u.what
    }
    assert rate.have == stated
    auc = found["two_stage_membership.membership_auc"]
    assert auc.wanted == pytest.approx(0.55)
    assert auc.needed >= power.records_for_auc(0.55) // 2


def test_when_non_members_suffice_members_decide(finished, tmp_path):
    run = Path(shutil.copytree(finished, tmp_path / "run"))
    made = run_evidence(run).results["active_membership"]
    rates = {
        "true_positive_rate": Estimate(value=0.5, low=0.4, high=0.6, n=100),
        "true_negative_rate": Estimate(value=0.5, low=0.4, high=0.6, n=2000),
    }
    store(run, replace(made, estimates={**made.estimates, **rates}))
    *_, need = power_of_run(run, audits=["active_membership"])
    assert need.unit == "members"
    assert need.have == 100
    assert need.seen == power.detectable_rate(0.01, 100)


def test_a_stored_width_is_scaled_to_clients_and_federations(finished, tmp_path):
    run = Path(shutil.copytree(finished, tmp_path / "run"))
    head = Estimate(value=0.2, low=0.0, high=0.4, n=10, baseline=0.0)
    store(
        run,
        AuditResult(
            audit="topology_inference",
            question="?",
            vantage="network",
            headline="explained (A1)",
            estimates={"explained (A1)": head},
        ),
    )
    (need,) = power_of_run(run, audits=["topology_inference"], aim=Aim(effect=0.1))
    assert need.needed == power.units_for_effect(0.2, 10, 0.1)
    assert f"{-(-need.needed // 10)} target federations of 10 clients" in need.how
    flat = replace(head, low=0.2, high=0.2)
    made = run_evidence(run).results["topology_inference"]
    store(run, replace(made, estimates={"explained (A1)": flat}))
    (need,) = power_of_run(run, audits=["topology_inference"])
    assert need.needed is None
    assert "no width" in need.how


def test_a_study_is_planned_run_by_run(finished, tmp_path):
    shutil.copytree(finished, tmp_path / "one")
    runs = [{"federation": "small", "variant": "plain", "path": "one"}]
    (tmp_path / "study.json").write_text(json.dumps({"runs": runs}))
    seal(tmp_path, "config")
    assert {n.run for n in power_of_run(tmp_path)} == {"small, plain"}


def test_what_cannot_be_planned_is_refused(finished, tmp_path):
    with pytest.raises(ConfigError, match="fingerprint"):
        power_of_run(finished, audits=["fingerprnt"])
    with pytest.raises(UsageError, match="no result of attribution"):
        power_of_run(finished, audits=["attribution"])
    with pytest.raises(UsageError, match="beyond what can be measured"):
        power_of_run(finished, audits=["active_membership"], aim=Aim(effect=0.6))
    empty = Path(shutil.copytree(finished, tmp_path / "run"))
    shutil.rmtree(empty / "results")
    seal(empty, "results")
    with pytest.raises(TraceError, match="no results"):
        power_of_run(empty)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("effect", 0.0),
        ("effect", -1.0),
        ("power", 1.0),
        ("confidence", 0.0),
        ("clients", 1),
        ("rate", 2.0),
    ],
)
def test_an_invalid_aim_is_refused(key, value):
    with pytest.raises(UsageError):
        Aim(**{key: value})


# -- before a run ----------------------------------------------------------------------------------


def overrides(audit, method):
    cls = find(AUDITS, "audit", audit)
    return getattr(cls, method).__func__ is not getattr(Audit, method).__func__


@pytest.mark.parametrize("audit", sorted(AUDITS))
def test_every_audit_can_be_planned(audit):
    needs = power_of_audit(audit, Aim(clients=20))
    assert needs
    for need in needs:
        if overrides(audit, "samples_before"):  # the default says that the size is not known
            assert need.exact or need.needed > 0
        assert need.how
        assert need.enough is (True if need.exact else None)


def test_an_audit_that_cannot_plan_names_its_first_measure():
    class Own(Audit):
        name = "own"
        facts = AuditFacts(measures=(Measure("linked", GREATER, "share", "words"),))

    (found,) = Own.samples_before(Aim())
    assert (found.measure, found.needed) == ("linked", None)
    console = Console(file=io.StringIO(), width=100)
    show_power(console, [found], 0.9, 0.95)
    assert "own: linked" in console.file.getvalue()
    assert "not known before a run" in console.file.getvalue()


def test_attribution_needs_more_rounds_for_weaker_marks():
    strong, weak = (power_of_audit("attribution", Aim(effect=e, clients=12))[0] for e in (2.0, 0.7))
    assert strong.needed < weak.needed
    (never,) = power_of_audit("attribution", Aim(clients=8, threshold=5))
    assert never.needed is None
    assert "do not fill two groups" in never.how


def test_chance_follows_the_clients():
    few, many = (power_of_audit("fingerprint", Aim(clients=k))[0] for k in (5, 50))
    assert few.chance == pytest.approx(0.2)
    assert many.wanted == pytest.approx(0.03)
    assert many.needed > few.needed
