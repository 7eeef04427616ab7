"""A gate compares confidence bounds with limits; missing evidence fails."""

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from fedaudit.audits import facts_of
from fedaudit.audits.facts import GREATER, LESS
from fedaudit.decide.gate import gate, load_policy, measures, write_example
from fedaudit.decide.gate.check import check_limit
from fedaudit.decide.gate.evidence import gather_evidence, run_evidence
from fedaudit.decide.gate.page import plain, statement
from fedaudit.decide.gate.starting import starting_policy
from fedaudit.errors import ConfigError, FormatError, IntegrityError, TraceError, UsageError
from fedaudit.files import Unreadable
from fedaudit.reporting.rules import VERDICTS
from fedaudit.results import AuditResult, Bound, Estimate, Need, Underpowered
from fedaudit.stats.intervals import wilson
from fedaudit.study import run as run_one
from fedaudit.study.seal import seal
from fedaudit.trace import Trace

SMALL = {
    "seed": 31337,
    "data": {"name": "gaussian-mixture", "records": 160, "dimension": 6},
    "partition": {"kind": "dirichlet", "alpha": 0.5},
    "task": {"kind": "mlp", "hidden": [8]},
    "federation": {"clients": 4, "rounds": 3},
    "protections": {"shuffle": {}, "dp_sgd": {"noise_multiplier": 1.0, "clip": 1.0}},
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
    run_one(SMALL, out)
    return out


@pytest.fixture
def run(finished, tmp_path):
    return Path(shutil.copytree(finished, tmp_path / "run"))


def stored(run, audit):
    return AuditResult.from_json(
        json.dumps(json.loads((run / "results" / f"{audit}.json").read_text())["result"])
    )


def store(run, result):
    """Store a result in a run, with the hash of its trace unless it has one."""
    if not result.trace_sha256:
        result = replace(result, trace_sha256=Trace.open(run).sha256)
    file = run / "results" / f"{result.audit}.json"
    file.write_text(json.dumps({"asked": {}, "result": json.loads(result.to_json())}))
    seal(run, "results")


def result(audit="fingerprint", headline="linkage_accuracy", **values):
    estimate = Estimate(
        **{"value": 0.3, "low": 0.2, "high": 0.4, "n": 100, "baseline": 0.25, **values}
    )
    return AuditResult(
        audit=audit,
        question="?",
        vantage="server",
        headline=headline,
        estimates={headline: estimate},
        detectable=0.3,
    )


def only(run, limit, **policy):
    """The one check of a policy with one limit."""
    head = {k: policy.pop(k) for k in list(policy) if k in ("confidence", "allow_missing")}
    (check,) = gate(run, {"policy": head, "limit": [limit]}, **policy).checks
    return check


LINKAGE = {"metric": "fingerprint.linkage_accuracy"}


# -- bounds, not values ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "status"),
    [
        ({"at_most": 0.4}, "passed"),
        ({"at_most": 0.39}, "failed"),  # the value 0.3 keeps it, its bound does not
        ({"at_least": 0.2}, "passed"),
        ({"at_least": 0.21}, "failed"),
        ({"at_most_times_chance": 1.6}, "passed"),
        ({"at_most_times_chance": 1.59}, "failed"),
        ({"at_least_times_chance": 0.8}, "passed"),
        ({"at_least_times_chance": 0.81}, "failed"),
        ({"at_most_above_chance": 0.15}, "passed"),
        ({"at_most_above_chance": 0.149}, "failed"),
        ({"at_least": 0.1, "at_most": 0.5}, "passed"),
        ({"at_least": 0.25, "at_most": 0.5}, "failed"),
    ],
)
def test_the_worst_end_of_the_interval_decides(run, limit, status):
    store(run, result())
    assert only(run, LINKAGE | limit).status == status


def test_a_value_inside_the_limit_does_not_make_up_for_its_interval(run):
    store(run, result())
    (reading,) = only(run, LINKAGE | {"at_most": 0.35}).readings
    assert (reading.bound, reading.limit, reading.kept) == (0.4, 0.35, False)
    assert reading.estimate.value <= reading.limit


def test_unknown_or_zero_chance_is_missing_evidence(run):
    store(run, result(baseline=None))
    assert only(run, LINKAGE | {"at_most_times_chance": 1.5}).status == "missing"
    store(run, result(baseline=0.0))
    assert only(run, LINKAGE | {"at_most_times_chance": 1.5}).status == "missing"
    assert only(run, LINKAGE | {"at_most_above_chance": 0.5}).status == "passed"


def test_an_infinite_bound_breaks_every_limit(run):
    store(run, result(high=float("inf")))
    check = only(run, LINKAGE | {"at_most": 1e9})
    assert check.status == "failed"
    json.dumps(plain(gate(run, {"limit": [LINKAGE | {"at_most": 1e9}]})), allow_nan=False)


def test_an_open_interval_gives_no_first_limit(run):
    """A measured epsilon is a lower bound: nothing above it was excluded."""
    open_above = {"value": 1.2, "low": 1.2, "high": math.inf, "baseline": 0.0, "one_sided": True}
    store(run, result("epsilon", "epsilon", **open_above))
    policy = starting_policy(run)
    assert "# epsilon: the interval of epsilon is open (at least 1.2 was measured)." in policy
    assert "epsilon.epsilon" not in policy


def test_real_results_are_judged_by_their_own_intervals(finished):
    head = stored(finished, "fingerprint").estimates["linkage_accuracy"]
    above = {"at_most": head.high + 1e-6}
    below = {"at_most": head.high - 1e-6}
    assert only(finished, LINKAGE | above).status == "passed"
    assert only(finished, LINKAGE | below).status == "failed"


# -- missing evidence fails ------------------------------------------------------------------------


def test_an_audit_that_was_not_run_fails_and_says_how_to_run_it(run):
    check = only(run, {"metric": "attribution.clients_named", "at_most": 3})
    assert check.status == "missing"
    assert check.code == "no_result"
    assert "not run" in check.missing
    assert "audits=['attribution']" in check.remedy
    (run / "results" / "fingerprint.json").unlink()
    seal(run, "results")
    requested = only(run, LINKAGE | {"at_most": 1})
    assert requested.code == "no_result"
    assert "config requests it" in requested.missing


def test_an_unmet_need_fails_with_its_remedy(run):
    check = only(run, {"metric": "query_plan.smallest_exposed_group", "at_least": 3})
    assert check.status == "missing"
    assert check.code == stored(run, "query_plan").need.code
    assert check.remedy


def test_underpowered_evidence_fails_and_says_what_it_needs(run):
    metric = "two_stage_membership.true_positive_rate (at 1 %)"
    check = only(run, {"metric": metric, "at_most": 0.9})
    assert check.status == "missing"
    assert check.code == "underpowered"
    assert "needs 1,000" in check.missing
    other = only(run, {"metric": metric.replace("1 %", "0.1 %"), "at_most": 0.9})
    assert "needs 10,000" in other.missing


def test_an_omitted_estimate_is_missing(run):
    check = only(run, {"metric": "fingerprint.linkage_accuracy (spectral)", "at_most": 1})
    assert (check.status, check.code) == ("missing", "not_stated")
    assert "linkage_accuracy" in check.remedy


def test_a_result_of_another_trace_is_stale(run):
    old = replace(stored(run, "fingerprint"), trace_sha256="0" * 64)
    store(run, old)
    check = only(run, LINKAGE | {"at_most": 1})
    assert (check.status, check.code) == ("missing", "stale")


def test_a_result_without_the_hash_of_a_trace_is_stale(run):
    file = run / "results" / "fingerprint.json"
    raw = json.loads(file.read_text())
    raw["result"]["trace_sha256"] = ""
    file.write_text(json.dumps(raw))
    seal(run, "results")
    assert only(run, LINKAGE | {"at_most": 1}).code == "stale"


def test_an_edited_result_is_refused(run):
    file = run / "results" / "fingerprint.json"
    raw = json.loads(file.read_text())
    raw["result"]["estimates"]["linkage_accuracy"] |= {"value": 0.0, "low": 0.0, "high": 0.01}
    file.write_text(json.dumps(raw))
    with pytest.raises(IntegrityError, match=r"results/fingerprint\.json"):
        gate(run, {"limit": [LINKAGE | {"at_most": 1}]})


@pytest.mark.parametrize(
    "file", ["config.toml", "run.json", "trace/manifest.json", "truth/truth.json", "seal.json"]
)
def test_an_edited_file_is_refused(run, file):
    text = (run / file).read_text()
    changed = {"config.toml": ("rounds = 3", "rounds = 4"), "run.json": ("0.1.0", "0.1.1")}
    old, new = changed.get(file, ("1", "2"))
    assert old in text
    (run / file).write_text(text.replace(old, new, 1))
    with pytest.raises(IntegrityError):
        gate(run, {"limit": [LINKAGE | {"at_most": 1}]})


def test_a_study_without_one_of_its_runs_is_refused(study):
    """Dropping a run from the list must not drop its leak."""
    text = (study / "study.json").read_text()
    runs = json.loads(text)["runs"]
    (study / "study.json").write_text(json.dumps({"runs": runs[:1]}))
    with pytest.raises(IntegrityError, match=r"study\.json"):
        gate(study, {"limit": [LINKAGE | {"at_most": 0.5}]})


def test_accuracy_is_checked_at_the_confidence_of_the_policy(run):
    """Wilson's lower end of a held-out share at the confidence of the policy."""
    found = run_evidence(run)
    hits = round(found.metrics["accuracy"] * found.held_out)
    for confidence in (0.8, 0.95, 0.999):
        low = wilson(hits, found.held_out, confidence).low
        for bound, status in ((low - 1e-6, "passed"), (low + 1e-6, "failed")):
            limit = {"metric": "accuracy", "at_least": bound}
            (check,) = gate(run, {"policy": {"confidence": confidence}, "limit": [limit]}).checks
            assert check.status == status
            assert check.readings[0].estimate.confidence == pytest.approx(confidence)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"asked": {}, "result": 5}', "\0"])
def test_an_unreadable_result_ends_the_gate(run, text):
    """The policy can allow missing evidence, but not an unreadable file."""
    (run / "results" / "fingerprint.json").write_text(text)
    seal(run, "results")
    with pytest.raises(Unreadable, match=r"fingerprint\.json") as refused:
        only(run, LINKAGE | {"name": "links", "at_most": 1}, allow=["links"])
    assert refused.value.exit_code == 3


def test_an_interval_at_a_lower_level_is_no_evidence(run):
    store(run, result(confidence=0.5))
    check = only(run, LINKAGE | {"at_most": 1})
    assert (check.status, check.code) == ("missing", "low_confidence")
    assert only(run, LINKAGE | {"at_most": 1}, confidence=0.5).status == "passed"


def test_a_policy_allows_missing_evidence_by_name_but_no_broken_limit(run):
    limit = {"name": "names", "metric": "attribution.clients_named", "at_most": 3}
    assert only(run, limit, allow_missing=["names"]).status == "allowed"
    assert only(run, limit, allow=["names"]).status == "allowed"
    broken = LINKAGE | {"name": "links", "at_most": 0.0}
    assert only(run, broken, allow=["links"]).status == "failed"


def test_allowing_an_unknown_limit_is_an_error(run):
    with pytest.raises(ConfigError, match="linkage"):
        only(run, LINKAGE | {"name": "linkage", "at_most": 1}, allow=["linkag"])


def test_only_kept_or_allowed_limits_pass(run):
    kept = LINKAGE | {"at_most": 1}
    lost = {"name": "lost", "metric": "attribution.clients_named", "at_most": 3}
    assert gate(run, {"limit": [kept]}).passed
    assert not gate(run, {"limit": [kept, lost]}).passed
    assert gate(run, {"limit": [kept, lost]}, allow=["lost"]).passed


def test_an_unfinished_run_fails_with_its_code(tmp_path):
    def stop(stage, done, total, note):
        if stage == "train" and done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_one(SMALL, tmp_path / "run", progress=stop)
    found = gate(tmp_path / "run", {"limit": [LINKAGE | {"at_most": 1}]})
    assert not found.passed
    assert found.checks[0].code == "unfinished"
    assert "of 3 rounds" in found.checks[0].missing


def test_a_run_without_recorded_rounds_fails(tmp_path):
    (tmp_path / "run.json").write_text("{}")
    assert only(tmp_path, LINKAGE | {"at_most": 1}).code == "unfinished"


def test_results_of_an_unfinished_trace_do_not_count(run):
    """Later rounds are not audited yet."""
    e = replace(run_evidence(run), unusable="unfinished")
    from fedaudit.decide.gate.check import _check_run

    policy = load_policy({"limit": [LINKAGE | {"at_most": 1}]})
    assert _check_run(policy.limits[0], e, policy).status == "missing"


@pytest.mark.parametrize("what", ["nothing", "a file", "an empty folder", "a trace"])
def test_anything_but_a_run_is_an_error(what, tmp_path, finished):
    place = tmp_path / "place"
    if what == "a file":
        place.write_text("")
    elif what == "an empty folder":
        place.mkdir()
    elif what == "a trace":
        shutil.copytree(finished / "trace", place)  # a recording that no run holds
    with pytest.raises(TraceError) as refused:
        gate(place, {"limit": [LINKAGE | {"at_most": 1}]})
    assert refused.value.exit_code == 3
    assert refused.value.remedy


def test_an_altered_trace_is_an_error(run):
    file = next((run / "trace").glob("round-*"))
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(IntegrityError):
        gate(run, {"limit": [LINKAGE | {"at_most": 1}]})


def test_a_run_without_truth_has_no_scored_evidence(run):
    """Accuracy and epsilon are stored in the truth."""
    shutil.rmtree(run / "truth")
    assert only(run, {"metric": "accuracy", "at_least": 0.0}).status == "missing"
    assert only(run, {"metric": "epsilon", "at_most": 1e9}).status == "missing"


# -- verdicts --------------------------------------------------------------------------------------


def test_a_forbidden_verdict_fails(run):
    store(run, result(low=0.26))
    check = only(run, {"metric": "fingerprint.verdict"})
    assert check.status == "failed"
    assert check.explanation.startswith(VERDICTS["leak"].words)
    assert only(run, {"metric": "fingerprint.verdict", "forbid": ["disagreement"]}).status == (
        "passed"
    )


def test_no_evidence_counts_only_with_enough_power(run):
    store(run, result())
    assert only(run, {"metric": "fingerprint.verdict"}).status == "passed"
    sharp = {"metric": "fingerprint.verdict", "must_detect": 0.3}
    assert only(run, sharp).status == "passed"
    check = only(run, sharp | {"must_detect": 0.29})
    assert (check.status, check.code) == ("missing", "underpowered")
    store(run, replace(result(), detectable=None))
    assert only(run, {"metric": "fingerprint.verdict"}).status == "missing"
    # a leak would have shown only near the most that is possible: rule N1
    store(run, replace(result(), detectable=0.99))
    check = only(run, {"metric": "fingerprint.verdict"})
    assert (check.status, check.code) == ("missing", "underpowered")
    named = {"metric": "fingerprint.verdict", "must_detect": 0.99}
    assert only(run, named).status == "passed"


def test_a_search_that_ended_undecided_is_missing_evidence(run):
    """Proven: no group below 3; promised: 5. The search neither found nor excluded a leak."""
    ranged = result("query_plan", "smallest_exposed_group", value=6, low=3, high=6, baseline=5.0)
    head = replace(ranged.estimates["smallest_exposed_group"], confidence=1.0)
    ranged = replace(
        ranged, estimates={ranged.headline: head}, greater_is_leak=False, detectable=2.0
    )
    store(run, ranged)
    verdict = {"metric": "query_plan.verdict"}
    check = only(run, verdict)
    assert (check.status, check.code) == ("missing", "underpowered")
    assert "undecided" in check.missing
    assert only(run, verdict | {"must_detect": 2}).status == "passed"
    assert only(run, verdict | {"must_detect": 4}).status == "missing"
    assert only(run, {"name": "p", **verdict}, allow_missing=["p"]).status == "allowed"
    whole = {ranged.headline: replace(head, low=6)}
    store(run, replace(ranged, estimates=whole, detectable=4.0))
    assert only(run, verdict).status == "passed"


@pytest.mark.parametrize("seen", [None, float("inf")])
def test_a_count_without_power_is_missing_evidence(run, seen):
    none = result("attribution", "clients_named", value=0, low=0, high=4, baseline=0.0)
    store(run, replace(none, detectable=seen))
    check = only(run, {"metric": "attribution.verdict"})
    assert (check.status, check.code) == ("missing", "underpowered")
    assert "must_detect" not in check.missing
    store(run, replace(none, detectable=1.0))
    assert only(run, {"metric": "attribution.verdict"}).status == "passed"


def test_a_disagreement_with_theory_fails(run):
    bound = Bound(value=0.1, kind="upper", of="linkage_accuracy", source="[X] Eq. (1)")
    store(run, replace(result(), bounds={"theorem": bound}))
    check = only(run, {"metric": "fingerprint.verdict", "forbid": ["disagreement"]})
    assert check.status == "failed"
    assert check.explanation.startswith(VERDICTS["disagreement"].words)


def test_what_was_measured_beside_an_audit_that_does_not_apply_can_be_limited(run):
    measured = result("active_membership", "success_any_architecture", value=0.6, high=0.65)
    need = Need(code="architecture_fixed", what="nothing can be planted here")
    store(run, replace(measured, status="not_applicable", need=need, headline=None))
    metric = {"metric": "active_membership.success_any_architecture"}
    assert only(run, {**metric, "at_most": 0.7}).status == "passed"
    assert only(run, {**metric, "at_most": 0.6}).status == "failed"
    verdict = only(run, {"metric": "active_membership.verdict"})
    assert (verdict.status, verdict.code) == ("missing", "architecture_fixed")
    assert only(run, {"metric": "active_membership.success", "at_most": 0.7}).status == "missing"


def test_all_verdicts_are_one_check_per_audit(run):
    found = gate(run, {"limit": [{"name": "quiet", "metric": "verdict"}]})
    names = {c.limit for c in found.checks}
    assert names == {f"quiet ({a})" for a in SMALL["audits"]}
    lost = next(c for c in found.checks if c.limit == "quiet (query_plan)")
    assert lost.status == "missing"
    allowed = gate(
        run, {"limit": [{"name": "quiet", "metric": "verdict"}]}, allow=["quiet (query_plan)"]
    )
    assert next(c for c in allowed.checks if c.limit == lost.limit).status == "allowed"
    every = gate(run, {"limit": [{"name": "quiet", "metric": "verdict"}]}, allow=["quiet"])
    assert next(c for c in every.checks if c.limit == lost.limit).status == "allowed"


# -- clients ---------------------------------------------------------------------------------------


def test_the_worst_client_decides(run):
    rows = stored(run, "fingerprint").per_client
    worst = max(float(r["high"]) for r in rows.values())
    limit = {"metric": "fingerprint.share", "per": "client"}
    assert only(run, limit | {"at_most": worst}).status == "passed"
    check = only(run, limit | {"at_most": worst - 1e-6})
    assert check.status == "failed"
    assert 1 <= sum(not r.kept for r in check.readings) <= 4
    assert len(check.readings) == 4


def test_a_client_without_a_row_is_missing(run):
    made = stored(run, "fingerprint")
    rows = dict(made.per_client)
    rows.pop("client-02")
    rows["client-01"] = {**rows["client-01"], "high": None}
    store(run, replace(made, per_client=rows))
    check = only(run, {"metric": "fingerprint.share", "per": "client", "at_most": 1})
    assert check.status == "missing"
    lacking = {r.who: r.missing for r in check.readings if r.missing}
    assert set(lacking) == {"client 2", "client 3"}


def test_counts_per_client_are_exact_and_other_columns_have_no_interval(run):
    links = {"metric": "fingerprint.links", "per": "client", "at_least": 0}
    assert only(run, links).status == "passed"
    lost = {"metric": "two_stage_membership.J", "per": "client", "at_most": 10}
    assert only(run, lost).status == "missing"
    assert only(run, lost | {"point_value": True}).status == "passed"


def test_epsilon_is_that_of_the_worst_client(run):
    spent = [g["epsilon"] for g in run_evidence(run).guarantees["dp_sgd"].values()]
    limit = {"metric": "epsilon"}
    assert only(run, limit | {"at_most": max(spent)}).status == "passed"
    broken = only(run, limit | {"at_most": max(spent) - 1e-9})
    assert broken.status == "failed"
    assert only(run, limit | {"at_most": 1e6, "protection": "dp_sgd"}).status == "passed"


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"unit": "client"}, "per client"),
        ({"protection": "central_dp"}, "central_dp"),
        ({"delta_at_most": 1e-9}, "1e-05"),
    ],
)
def test_a_promise_of_another_kind_is_missing_evidence(run, more, why):
    check = only(run, {"metric": "epsilon", "at_most": 1e6} | more)
    assert check.status == "missing"
    assert all(why in r.missing for r in check.readings)


@pytest.mark.parametrize("most", [1e-3, 1e6])
def test_an_epsilon_states_its_unit_and_delta(run, most):
    check = only(run, {"metric": "epsilon", "at_most": most})
    assert check.status == ("passed" if most > 1 else "failed")
    assert statement(check).endswith("(epsilon per record at delta 1e-05)")
    assert "client 1" in statement(check) or "client 2" in statement(check)
    lost = only(run, {"metric": "epsilon", "at_most": most, "unit": "person"})
    assert lost.status == "missing"
    assert "delta" not in statement(lost)


def test_the_low_end_of_accuracy_decides(run):
    accuracy = run_evidence(run).utility("accuracy")
    assert only(run, {"metric": "accuracy", "at_least": accuracy.low}).status == "passed"
    assert only(run, {"metric": "accuracy", "at_least": accuracy.value}).status == "failed"


def test_the_high_end_of_loss_decides_at_the_confidence_of_the_policy(run):
    found = run_evidence(run)
    value, error = found.metrics["loss"], found.metrics["loss_error"]
    assert error > 0
    for confidence, z in ((0.95, 1.959964), (0.99, 2.575829)):
        e = found.utility("loss", confidence)
        assert (e.low, e.high) == pytest.approx((value - z * error, value + z * error), rel=1e-6)
        assert e.baseline == pytest.approx(found.guessing["loss"])
        for limit, status in ((e.high + 1e-6, "passed"), (e.high - 1e-6, "failed")):
            check = only(run, {"metric": "loss", "at_most": limit}, confidence=confidence)
            assert check.status == status
            (reading,) = check.readings
            assert reading.estimate == e


def test_a_loss_without_standard_error_is_missing_unless_point_value_is_set(run):
    found = run_evidence(run)
    old = replace(found, metrics={k: v for k, v in found.metrics.items() if k != "loss_error"})
    loss = {"metric": "loss", "at_most": 100}

    def status(**more):
        policy = load_policy({"limit": [loss | more]})
        (check,) = check_limit(policy.limits[0], old, policy)
        return check

    assert status().status == "missing"
    (reading,) = status().readings
    assert reading.bound is None
    assert "standard error" in reading.missing
    assert "run it again" in status().remedy
    assert status(point_value=True).status == "passed"


def test_clients_are_numbered_unless_names_are_requested(tmp_path):
    table = ["hospital,a,b,label"]
    for i in range(80):
        table.append(f"Heliodor-{i % 4},{i % 7},{i % 5},{int(i % 7 > i % 5)}")
    (tmp_path / "table.csv").write_text("\n".join(table) + "\n")
    config = {
        "data": {
            "path": str(tmp_path / "table.csv"),
            "label": "label",
            "client": "hospital",
        },
        "partition": {"kind": "by_owner"},
        "task": {"kind": "mlp", "hidden": [4]},
        "federation": {"rounds": 2},
        "protections": {"shuffle": {}},
        "audits": {"fingerprint": {}},
    }
    run_one(config, tmp_path / "run", seed=1)
    limits = {"limit": [{"metric": "fingerprint.share", "per": "client", "at_most": 0.0}]}
    hidden = json.dumps(plain(gate(tmp_path / "run", limits)))
    assert "Heliodor" not in hidden
    assert "client-0" not in hidden
    assert '"client 4"' in hidden
    shown = json.dumps(plain(gate(tmp_path / "run", limits, names=True)))
    assert "Heliodor-3" in shown


# -- policies --------------------------------------------------------------------------------------


def named(name, **bounds):
    return {**LINKAGE, "name": name, **bounds}


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ({"limit": [{"metric": "fingerprint.linkage", "at_most": 1}]}, "linkage_accuracy"),
        ({"limit": [{"metric": "fingerprnt.linkage_accuracy", "at_most": 1}]}, "fingerprint"),
        ({"limit": [{"metric": "fingerprint.verdct"}]}, "verdict|linkage"),
        ({"limit": [{"metric": "epsilom", "at_most": 1}]}, "epsilon"),
        ({"limit": [{"metric": "fingerprint.share", "at_most": 1}]}, 'per = "client"'),
        (
            {"limit": [{"metric": "fingerprint.shar", "per": "client", "at_most": 1}]},
            "fingerprint.share",
        ),
        ({"limit": [{"metric": "accuracy", "per": "client", "at_least": 1}]}, "per client"),
        ({"limit": [LINKAGE]}, "no bound"),
        ({"limit": [LINKAGE | {"at_most": "0.1"}]}, "number"),
        ({"limit": [LINKAGE | {"at_most": float("nan")}]}, "finite"),
        ({"limit": [LINKAGE | {"at_most": float("inf")}]}, "finite"),
        ({"limit": [LINKAGE | {"atmost": 1}]}, "at_most"),
        ({"limit": [LINKAGE | {"at_most": 0.1, "at_least": 0.2}]}, "contradicts itself"),
        (
            {"limit": [named("a", at_most=0.1), named("b", at_least=0.2)]},
            "'a' and limit 'b' contradict",
        ),
        (
            {"limit": [named("a", at_most=0.1), named("a", at_most=0.2)]},
            "two limits",
        ),
        ({"limit": [LINKAGE | {"at_most_times_chance": 0.0}]}, "above 0"),
        ({"limit": [{"metric": "epsilon", "at_most": -1}]}, "at least 0"),
        ({"limit": [{"metric": "epsilon", "at_most_times_chance": 2}]}, "times_chance"),
        ({"limit": [{"metric": "fingerprint.verdict", "at_most": 1}]}, "at_most"),
        ({"limit": [{"metric": "fingerprint.verdict", "forbid": []}]}, "forbids nothing"),
        ({"limit": [{"metric": "fingerprint.verdict", "forbid": ["leek"]}]}, "leak"),
        ({"limit": []}, "no limit"),
        ({"limit": {"metric": "epsilon"}}, "two brackets"),
        ({"limit": ["epsilon"]}, "not a table"),
        ({"limits": [LINKAGE | {"at_most": 1}]}, "limit"),
        ({"policy": {"confidence": 1.5}, "limit": [LINKAGE | {"at_most": 1}]}, "confidence"),
        ({"policy": {"allow_missing": ["x"]}, "limit": [LINKAGE | {"at_most": 1}]}, "'x'"),
    ],
)  # fmt: skip
def test_an_invalid_policy_is_refused(policy, said):
    with pytest.raises(ConfigError, match=said) as refused:
        load_policy(policy)
    assert refused.value.exit_code == 2
    assert refused.value.remedy


def test_limits_of_different_runs_do_not_contradict():
    policy = load_policy(
        {
            "limit": [
                LINKAGE | {"name": "a", "variant": "DP", "at_most": 0.1},
                LINKAGE | {"name": "b", "variant": "none", "at_least": 0.2},
            ]
        }
    )
    assert [limit.name for limit in policy.limits] == ["a", "b"]


def test_a_missing_or_malformed_policy_file_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="--init"):
        load_policy(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("[[limit]\n")
    with pytest.raises(ConfigError, match="valid TOML"):
        load_policy(tmp_path / "bad.toml")


def test_the_example_policy_can_be_checked(tmp_path, finished):
    write_example(tmp_path / "policy.toml")
    policy = load_policy(tmp_path / "policy.toml")
    assert {x.metric for x in policy.limits} >= {"epsilon", "accuracy", "coverage.verdict"}
    found = gate(finished, policy)
    assert {c.limit for c in found.checks} == {x.name for x in policy.limits}
    with pytest.raises(UsageError, match="exists"):
        write_example(tmp_path / "policy.toml")
    write_example(tmp_path / "policy.toml", force=True)
    with pytest.raises(UsageError, match="cannot write"):
        write_example(tmp_path / "no" / "policy.toml")


# -- studies ---------------------------------------------------------------------------------------


@pytest.fixture
def study(finished, tmp_path):
    folder = tmp_path / "study"
    shutil.copytree(finished, folder / "one")
    shutil.copytree(finished, folder / "two")
    store(folder / "one", result())
    store(folder / "two", result(value=0.9, low=0.8, high=0.95))
    runs = [
        {"federation": "digits", "variant": "DP-SGD", "path": "one"},
        {"federation": "digits", "variant": "unprotected", "path": "two"},
    ]
    (folder / "study.json").write_text(json.dumps({"runs": runs}))
    seal(folder, "config")
    return folder


def test_a_study_checks_every_limit_in_every_run(study):
    found = gate(study, {"limit": [LINKAGE | {"at_most": 0.5}]})
    assert [(c.run, c.status) for c in found.checks] == [
        ("digits, DP-SGD", "passed"),
        ("digits, unprotected", "failed"),
    ]
    assert found.checks[1].file == "two/results/fingerprint.json"
    assert len({c.fingerprint for c in found.checks}) == 2


def test_limits_may_name_runs_of_a_study(study):
    limit = LINKAGE | {"at_most": 0.5, "variant": "DP-SGD"}
    assert gate(study, {"limit": [limit]}).passed
    check = only(study, limit | {"variant": "DPSGD"})
    assert check.status == "missing"
    assert "DP-SGD" in check.remedy
    alone = only(study / "one", limit)
    assert (alone.status, alone.code) == ("missing", "no_such_run")


def test_a_missing_run_of_a_study_fails(study):
    shutil.rmtree(study / "two")
    found = gate(study, {"limit": [LINKAGE | {"at_most": 1}]})
    assert [c.status for c in found.checks] == ["passed", "missing"]
    assert found.checks[1].code == "no_such_run"


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "{}",
        '{"runs": []}',
        '{"runs": [{"path": "one"}]}',
        '{"runs": [{"federation": "a", "path": "one"}, {"federation": "a", "path": "two"}]}',
        '{"runs": [{"federation": "a", "path": "../other"}]}',
    ],
)
def test_a_study_that_lists_no_runs_is_an_error(study, text):
    (study / "study.json").write_text(text)
    seal(study, "config")
    with pytest.raises(FormatError):
        gather_evidence(study)


# -- the table of measures -------------------------------------------------------------------------


def test_audits_declare_what_they_state(finished):
    """A measure that an audit states and does not declare could not be limited."""
    for name in ("fingerprint", "coverage", "two_stage_membership", "active_membership"):
        made = stored(finished, name)
        for row in made.per_client.values():
            for title in {*row} - {"low", "high", "chance"}:
                assert measures.column(name, title) is not None, (name, title)
        assert made.estimates
        for estimate in made.estimates:
            assert measures.can_measure(name, estimate), (name, estimate)
        if made.headline is not None:
            worse = GREATER if made.greater_is_leak else LESS
            assert facts_of(name).direction(made.headline) == worse


def test_a_measure_may_bear_a_qualifier():
    assert measures.can_measure("topology_inference", "top_recovery (3, A1)")
    assert not measures.can_measure("topology_inference", "top_recovery 3")
    assert not measures.can_measure("nothing", "top_recovery")
    assert measures.covers("true_positive_rate", "true_positive_rate (at 1 %)")
    assert measures.covers("true_positive_rate (at 1 %)", "true_positive_rate (at 1 %)")
    assert not measures.covers("true_positive_rate (at 0.1 %)", "true_positive_rate (at 1 %)")


def test_an_underpowered_measure_is_known_by_its_name(run):
    made = replace(
        stored(run, "fingerprint"),
        underpowered=(
            Underpowered(what="rows", have=1, needed=2, measure="linkage_accuracy (spectral)"),
        ),
    )
    store(run, made)
    check = only(run, {"metric": "fingerprint.linkage_accuracy (spectral)", "at_most": 1})
    assert check.code == "underpowered"


def test_only_the_parts_of_a_limit_on_all_verdicts_share_its_allowance(run):
    """A limit whose name merely looks like a part keeps failing without evidence."""
    limits = [
        {"name": "p", "metric": "verdict"},
        {"name": "p (x)", "metric": "topology_inference.explained (A1)", "at_most": 0.1},
    ]
    found = gate(run, {"policy": {"allow_missing": ["p"]}, "limit": limits})
    (other,) = [c for c in found.checks if c.limit == "p (x)"]
    assert other.status == "missing"
    assert not found.passed
