"""Differences of two runs: MOVER intervals, Holm's correction, verdicts, lost evidence."""

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedaudit.decide.diff.compare import STALE, compare, diff, difference
from fedaudit.decide.diff.page import plain_diff
from fedaudit.decide.diff.pairing import changed_settings
from fedaudit.decide.gate.evidence import run_evidence
from fedaudit.errors import TraceError, UsageError
from fedaudit.results import AuditResult, Bound, Estimate, Need
from fedaudit.stats.intervals import wilson
from fedaudit.study import run as run_one
from fedaudit.study.seal import seal

SMALL = {
    "seed": 31337,
    "data": {"name": "gaussian-mixture", "records": 160, "dimension": 6},
    "partition": {"kind": "dirichlet", "alpha": 0.5},
    "task": {"kind": "mlp", "hidden": [8]},
    "federation": {"clients": 4, "rounds": 3},
    "protections": {"shuffle": {}},
}
NOISY = {"shuffle": {}, "dp_sgd": {"noise_multiplier": 2.0, "clip": 1.0}}


@pytest.fixture(scope="module")
def plain_run(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "plain"
    run_one(SMALL, out)
    return out


@pytest.fixture(scope="module")
def noisy_run(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "noisy"
    run_one(SMALL | {"protections": NOISY}, out)
    return out


def evidence(run, **changes):
    """The evidence of a run with some estimates of its fingerprint replaced."""
    found = run_evidence(run)
    made = found.results["fingerprint"]
    made = replace(made, estimates={**made.estimates, **changes})
    return replace(found, results={**found.results, "fingerprint": made})


def share(hits, n):
    return wilson(hits, n, baseline=0.25)


def of(comparison, measure):
    return next(d for d in comparison.differences if d.measure == measure)


def test_held_out_loss_is_judged_by_its_own_interval(plain_run, noisy_run):
    (c,) = diff(plain_run, noisy_run)
    d = of(c, "held-out loss")
    first, second = (run_evidence(r).metrics for r in (plain_run, noisy_run))
    assert d.first.high - d.first.value == pytest.approx(1.959964 * first["loss_error"], rel=1e-6)
    assert d.value == pytest.approx(second["loss"] - first["loss"])
    assert d.first.baseline == d.second.baseline > 0
    assert not any("held-out loss" in note for note in c.notes)
    # more loss is worse: the same run against one with much less of it
    low = replace(run_evidence(plain_run), metrics={"loss": 0.001, "loss_error": 1e-4})
    assert of(compare(low, run_evidence(plain_run)), "held-out loss").change == "worse"
    unsure = replace(run_evidence(plain_run), metrics={"loss": 0.5})
    (note,) = [n for n in compare(unsure, unsure).notes if "loss" in n]
    assert "no standard error is stored" in note


# -- the rule --------------------------------------------------------------------------------------


def test_the_interval_is_newcombes_for_proportions():
    """Newcombe 1998, method 10, worked by hand: 56/70 against 48/80 gives 0.0524 to 0.3339."""
    d, low, high, _ = difference(wilson(48, 80), wilson(56, 70))
    assert d == pytest.approx(0.2, abs=1e-12)
    assert low == pytest.approx(0.0524, abs=5e-5)
    assert high == pytest.approx(0.3339, abs=5e-5)


def test_intervals_that_overlap_may_still_differ():
    a, b = wilson(48, 80), wilson(56, 70)
    assert a.high > b.low
    _, low, _, p = difference(a, b)
    assert low > 0
    assert p < 0.05


def test_p_is_below_five_percent_exactly_if_the_interval_excludes_zero():
    rng = np.random.default_rng(0)
    for _ in range(300):
        n, m = rng.integers(5, 200, size=2)
        a, b = (
            wilson(int(rng.integers(0, n + 1)), int(n)),
            wilson(int(rng.integers(0, m + 1)), int(m)),
        )
        d, low, high, p = difference(a, b)
        if d != 0:
            assert (p < 0.05) == (low > 0 or high < 0), (a, b)


def test_false_differences_stay_below_the_stated_rate():
    rng = np.random.default_rng(1)
    wrong = 0
    for _ in range(3000):
        a, b = (wilson(int(rng.binomial(60, 0.3)), 60) for _ in range(2))
        wrong += difference(a, b)[3] < 0.05
    assert wrong / 3000 < 0.05 + 4 * math.sqrt(0.05 * 0.95 / 3000)


def test_exact_numbers_that_differ_have_no_error():
    one = Estimate(value=1, low=1, high=1, n=5, confidence=1.0)
    two = replace(one, value=2, low=2, high=2)
    assert difference(one, two) == (1.0, 1.0, 1.0, 0.0)
    assert difference(one, one)[3] == 1.0
    bounded = replace(two, low=0.5)  # a search that was cut short
    assert difference(one, bounded)[3] == 1.0


def test_infinite_numbers_do_not_make_nan():
    endless = Estimate(value=math.inf, low=1, high=math.inf, n=5)
    finite = Estimate(value=1, low=0, high=math.inf, n=5)
    assert difference(finite, endless)[0] == math.inf
    assert difference(endless, endless)[0] == 0.0
    d, low, high, p = difference(finite, replace(finite, value=2))
    assert not any(math.isnan(x) for x in (d, low, high, p))
    assert p == 1.0 or high == math.inf


# -- runs ------------------------------------------------------------------------------------------


def test_a_run_does_not_differ_from_itself(plain_run):
    (c,) = diff(plain_run, plain_run)
    assert not c.settings
    assert not c.verdicts
    assert not c.worse
    assert {d.change for d in c.differences} == {"same"}
    assert all(x.worse == x.better == 0 for x in c.clients)


def test_a_change_is_worse_and_its_reverse_better(plain_run):
    low = evidence(plain_run, linkage_accuracy=share(20, 100))
    high = evidence(plain_run, linkage_accuracy=share(80, 100))
    assert of(compare(low, high), "linkage_accuracy").change == "worse"
    assert of(compare(high, low), "linkage_accuracy").change == "better"
    near = evidence(plain_run, linkage_accuracy=share(22, 100))
    assert of(compare(low, near), "linkage_accuracy").change == "same"
    assert compare(low, high).worse
    assert not compare(high, low).worse


def test_a_lower_headline_is_worse_if_less_is_a_leak(plain_run):
    base = run_evidence(plain_run)
    head = Estimate(value=5, low=5, high=5, n=3, confidence=1.0, baseline=3)
    made = AuditResult(
        audit="query_plan",
        question="?",
        vantage="server",
        headline="smallest_exposed_group",
        greater_is_leak=False,
        estimates={"smallest_exposed_group": head},
        detectable=2.0,
        trace_sha256=base.trace_sha256,
    )
    less = replace(
        made, estimates={"smallest_exposed_group": replace(head, value=1, low=1, high=1)}
    )
    a = replace(base, results={"query_plan": made})
    b = replace(base, results={"query_plan": less})
    c = compare(a, b)
    assert of(c, "smallest_exposed_group").change == "worse"
    (verdict,) = c.verdicts
    assert (verdict.audit, verdict.first, verdict.second) == ("query_plan", "no_evidence", "leak")
    assert verdict.change == "worse"


def verdict(base, kind="fingerprint", *, head=None, missing=None, protections=None, bounds=None):
    """Evidence with one result: an estimate with chance 0.25, or a missing need."""
    made = AuditResult(
        audit=kind,
        question="?",
        vantage="server",
        headline=None if head is None else "linkage_accuracy",
        estimates={} if head is None else {"linkage_accuracy": head},
        bounds=bounds or {},
        status="ok" if missing is None else "not_applicable",
        need=missing,
        detectable=None if head is None else 0.35,
        trace_sha256=base.trace_sha256,
    )
    config = base.config if protections is None else base.config | {"protections": protections}
    return replace(base, results={kind: made}, config=config)


LEAK, QUIET = share(80, 100), share(24, 100)
BEYOND = {"most": Bound(value=0.5, kind="upper", of="linkage_accuracy", source="x")}
FEW = Need(code="too_few_rounds", what="linking needs two rounds", remedy="run more")
UNSEEN = Need(code="no_single_updates", what="whatever the words are")


def test_verdicts_are_ranked_and_lost_evidence_is_worse(plain_run):
    base = run_evidence(plain_run)
    sides = {
        "disagreement": verdict(base, head=LEAK, bounds=BEYOND),
        "leak": verdict(base, head=LEAK),
        "no_evidence": verdict(base, head=QUIET),
        "not_applicable": verdict(base, missing=FEW),
    }
    expected = {
        ("no_evidence", "leak"): "worse",
        ("no_evidence", "disagreement"): "worse",
        ("leak", "disagreement"): "worse",
        ("disagreement", "leak"): "better",
        ("disagreement", "no_evidence"): "better",
        ("leak", "no_evidence"): "better",
        ("not_applicable", "leak"): "worse",
        ("not_applicable", "disagreement"): "worse",
        ("not_applicable", "no_evidence"): "changed",
        ("leak", "not_applicable"): "worse",
        ("disagreement", "not_applicable"): "worse",
        ("no_evidence", "not_applicable"): "worse",
    }
    for before, a in sides.items():
        for after, b in sides.items():
            c = compare(a, b)
            if before == after:
                assert c.verdicts == ()
                assert not c.worse
                continue
            (found,) = c.verdicts
            assert (found.first, found.second) == (before, after)
            assert found.change == expected[before, after], (before, after)
            assert not c.lost
            # between two measured verdicts the number itself moves as well
            if "not_applicable" in (before, after):
                assert c.worse == (found.change == "worse")
    why = compare(sides["leak"], sides["not_applicable"]).verdicts[0].why
    assert why == "evidence lost: linking needs two rounds"


def test_taking_a_shuffle_away_is_worse_whatever_the_numbers_say(plain_run, tmp_path):
    """100 % with a shuffler and 100 % without: only the verdict differs."""
    run_one(SMALL | {"protections": {}}, tmp_path / "bare")
    (found,) = diff(plain_run, tmp_path / "bare")
    assert found.worse
    changes = {v.audit: (v.second, v.change) for v in found.verdicts}
    assert changes["fingerprint"] == ("known_outright", "worse")
    every = Estimate(value=1.0, low=1.0, high=1.0, n=4, confidence=1.0, baseline=0.25)
    base = run_evidence(plain_run)
    linked = verdict(base, head=every)
    known = replace(linked.results["fingerprint"], known=True)
    bare = replace(linked, results={"fingerprint": known})
    (step,) = compare(linked, bare).verdicts
    assert (step.first, step.second, step.change) == ("leak", "known_outright", "worse")
    (step,) = compare(bare, linked).verdicts
    assert step.change == "better"


def test_a_protection_that_removes_the_question_loses_no_evidence(plain_run):
    base = run_evidence(plain_run)
    summed = verdict(base, missing=UNSEEN, protections={"secure_sum": {}})
    (found,) = compare(verdict(base, head=LEAK), summed).verdicts
    assert found.change == "better"
    assert found.why.startswith("no single update is left to look at")
    assert not compare(verdict(base, head=LEAK), summed).worse
    # secure aggregation answers queries: their algebra has to be shown
    asked = verdict(base, missing=UNSEEN, protections={"secure_aggregation": {}})
    assert compare(verdict(base, head=LEAK), asked).worse
    # the rule is about links: what an audit of members does not see is not shown
    other = verdict(base, "two_stage_membership", missing=UNSEEN, protections={"secure_sum": {}})
    assert compare(verdict(base, "two_stage_membership", head=LEAK), other).worse
    # the protection is taken away again: not applicable both times, and worse all the same
    (back,) = compare(summed, verdict(base, missing=FEW)).verdicts
    assert back.change == "worse"
    assert "linking needs two rounds" in back.why


def test_a_ratio_that_rises_under_cancellation_is_not_worse(plain_run):
    base = run_evidence(plain_run)

    def made(**estimates):
        found = AuditResult(
            audit="two_stage_membership",
            question="?",
            vantage="server",
            headline="membership_auc",
            estimates={"membership_auc": share(50, 100), **estimates},
            trace_sha256=base.trace_sha256,
        )
        return replace(base, results={"two_stage_membership": found})

    low = Estimate(value=0.2, low=0.19, high=0.21, n=50)
    high = Estimate(value=3.0, low=2.9, high=3.1, n=50)
    for name in ("SUR", "stage_1_survival"):
        c = compare(made(**{name: low}), made(**{name: high}))
        assert of(c, name).change == "changed"
        assert not c.worse
    # the risk as published counts above that of records that nobody trained on
    risen = replace(low, value=0.7, low=0.69, high=0.71)
    before = replace(low, baseline=0.19)
    same = compare(made(ts_mia=before), made(ts_mia=replace(risen, baseline=0.69)))
    assert of(same, "ts_mia, above non-members").change == "same"
    real = compare(made(ts_mia=before), made(ts_mia=replace(risen, baseline=0.19)))
    found = of(real, "ts_mia, above non-members")
    assert found.change == "worse"
    assert found.value == pytest.approx(0.5)
    assert found.second.high - found.second.value == pytest.approx(0.01 * math.sqrt(2))
    blind = compare(made(ts_mia=low), made(ts_mia=risen))
    assert of(blind, "ts_mia").change == "changed"


def test_a_measure_of_unknown_direction_has_changed(plain_run):
    a = evidence(plain_run, **{"something new": share(10, 100)})
    b = evidence(plain_run, **{"something new": share(90, 100)})
    assert of(compare(a, b), "something new").change == "changed"


def test_many_estimates_are_corrected_together(plain_run):
    """One difference at p = 0.03 among twenty is expected by chance."""
    quiet = {f"linkage_accuracy (m{i})": share(30, 100) for i in range(20)}
    a = evidence(plain_run, **quiet)
    b = evidence(plain_run, **{**quiet, "linkage_accuracy (m3)": share(45, 100)})
    d = of(compare(a, b), "linkage_accuracy (m3)")
    assert 0.01 < d.p < 0.05
    assert d.adjusted > 0.05
    assert d.change == "same"


def test_clients_are_counted_after_holm(plain_run):
    base = run_evidence(plain_run)
    made = base.results["fingerprint"]

    def rows(hits):
        out = {}
        for client, k in zip(made.per_client, hits, strict=True):
            e = wilson(k, 50)
            out[client] = {"share": e.value, "low": e.low, "high": e.high}
        return replace(base, results={"fingerprint": replace(made, per_client=out)})

    (found,) = compare(rows([10, 10, 10, 40]), rows([45, 12, 10, 10])).clients
    assert (found.clients, found.worse, found.better) == (4, 1, 1)
    assert {d.who for d in found.most} == {"client-00", "client-03"}


def test_settings_epsilon_and_utility_are_compared(plain_run, noisy_run):
    (c,) = diff(plain_run, noisy_run)
    assert ("protections.dp_sgd.noise_multiplier", "not set", "2.0") in c.settings
    (spent,) = c.epsilon
    assert (spent.protection, spent.first) == ("dp_sgd", None)
    assert (spent.worse, spent.better) == (0, 4)
    (back,) = diff(noisy_run, plain_run)
    assert back.epsilon[0].worse == 4
    assert back.worse
    assert of(c, "held-out accuracy").headline
    json.dumps(plain_diff([c]), allow_nan=False)


def test_an_empty_section_is_a_setting_too():
    first = {"protections": {"shuffle": {}}, "a": 1}
    assert changed_settings(first, {"a": 1}) == [("protections.shuffle", "there", "not set")]
    assert changed_settings({"a": {"b": 1}}, {"a": {"b": 2}}) == [("a.b", "1", "2")]
    assert changed_settings(first, first) == []


def test_clients_are_numbered_unless_names_are_requested(plain_run, tmp_path):
    other = Path(shutil.copytree(plain_run, tmp_path / "other"))
    file = other / "results" / "fingerprint.json"
    raw = json.loads(file.read_text())
    for row in raw["result"]["per_client"].values():
        row |= {"share": 1.0, "low": 0.99, "high": 1.0}
    file.write_text(json.dumps(raw))
    seal(other, "results")
    said = json.dumps(plain_diff(diff(plain_run, other)))
    assert "client-0" not in said


# -- different federations -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"federation": {"clients": 5, "rounds": 3}}, "clients"),
        ({"task": {"kind": "mlp", "hidden": [5]}}, "models"),
        ({"data": {"name": "gaussian-mixture", "records": 200, "dimension": 6}}, "data"),
    ],
)
def test_two_federations_are_refused_by_name_and_compared_anyway(plain_run, tmp_path, change, said):
    run_one(SMALL | change | {"audits": {"coverage": {}}}, tmp_path / "other")
    with pytest.raises(UsageError, match="different federations") as refused:
        diff(plain_run, tmp_path / "other")
    assert said in refused.value.got
    assert refused.value.exit_code == 2
    (c,) = diff(plain_run, tmp_path / "other", anyway=True)
    assert any(said in d for d in c.different)


def test_another_seed_or_more_rounds_are_the_same_federation(plain_run, tmp_path):
    run_one(SMALL | {"federation": {"clients": 4, "rounds": 2}}, tmp_path / "other", seed=9)
    (c,) = diff(plain_run, tmp_path / "other")
    assert ("federation.rounds", "3", "2") in c.settings
    assert any("records" in n for n in c.notes)


def test_stale_and_missing_results_are_named_not_compared(plain_run, tmp_path):
    other = Path(shutil.copytree(plain_run, tmp_path / "other"))
    file = other / "results" / "fingerprint.json"
    raw = json.loads(file.read_text())
    raw["result"]["trace_sha256"] = "0" * 64
    file.write_text(json.dumps(raw))
    (other / "results" / "coverage.json").unlink()
    seal(other, "results")
    (c,) = diff(plain_run, other)
    assert all(d.audit == "" for d in c.differences)
    assert c.lost == (
        "coverage: only in the first run",
        f"fingerprint of the second run {STALE}",
    )
    assert c.worse
    (back,) = diff(other, plain_run)
    assert back.unpaired == ("coverage: only in the second run",)
    assert f"fingerprint of the first run {STALE}" in back.notes
    assert back.lost == ()
    assert not back.worse


def test_a_run_without_results_is_an_error(plain_run, tmp_path):
    other = Path(shutil.copytree(plain_run, tmp_path / "other"))
    shutil.rmtree(other / "results")
    seal(other, "results")
    with pytest.raises(TraceError, match="no results"):
        diff(plain_run, other)
    with pytest.raises(TraceError, match="is not a run"):
        diff(plain_run, tmp_path / "nowhere")


# -- studies ---------------------------------------------------------------------------------------


def study(folder, federation="small", **runs):
    folder.mkdir()
    listed = []
    for variant, run in runs.items():
        shutil.copytree(run, folder / variant)
        listed.append({"federation": federation, "variant": variant, "path": variant})
    (folder / "study.json").write_text(json.dumps({"runs": listed}))
    seal(folder, "config")
    return folder


def test_studies_are_paired_by_federation_and_variant(plain_run, noisy_run, tmp_path):
    one = study(tmp_path / "one", plain=plain_run, noisy=noisy_run)
    two = study(tmp_path / "two", noisy=noisy_run)
    (c,) = diff(one, two)
    assert c.run == "small, noisy"
    assert c.lost == ("only in the first study: small, plain",)
    assert c.worse  # a run that is gone shows nothing
    (back,) = diff(two, one)
    assert any("only in the second study: small, plain" in n for n in back.notes)


def test_what_corresponds_is_compared_whatever_it_was_called(plain_run, noisy_run, tmp_path):
    one = study(tmp_path / "one", plain=plain_run, noisy=noisy_run)
    two = study(tmp_path / "two", federation="renamed", before=plain_run, noisy=noisy_run)
    found = diff(one, two)
    assert [c.run for c in found] == [
        "small, plain and renamed, before",
        "small, noisy and renamed, noisy",
    ]
    assert not found.worse
    assert all(c.lost == () for c in found)


def test_a_single_run_is_compared_with_its_like_in_a_study(plain_run, noisy_run, tmp_path):
    both = study(tmp_path / "both", plain=plain_run, noisy=noisy_run)
    for a, b in ((noisy_run, both), (both, noisy_run)):
        (c,) = diff(a, b)
        assert "noisy" in c.run
        assert c.settings == ()
        assert not c.worse


def test_runs_of_one_folder_correspond_to_those_of_another(plain_run, noisy_run, tmp_path):
    for name in ("one", "two"):
        shutil.copytree(plain_run, tmp_path / name / "plain")
        shutil.copytree(noisy_run, tmp_path / name / "noisy")
    found = diff(tmp_path / "one", tmp_path / "two")
    assert sorted(c.run for c in found) == ["noisy", "plain"]


def test_studies_that_share_nothing_are_refused(plain_run, noisy_run, tmp_path):
    one = study(tmp_path / "one", plain=plain_run)
    two = study(tmp_path / "two", noisy=noisy_run)
    with pytest.raises(UsageError, match="corresponds to") as told:
        diff(one, two)
    assert str(tmp_path / "one" / "plain") in told.value.remedy
