"""Query plans that leak and plans that do not, against solving the system."""

import numpy as np
import pytest

from fedaudit.audits.audit import Knowledge
from fedaudit.audits.query_plan import QueryPlan, audit_plan, solution
from fedaudit.errors import ConfigError, NotApplicable
from fedaudit.layout import Layout
from fedaudit.reporting.findings import judge, settled
from fedaudit.results import AuditResult
from fedaudit.stats import query_algebra, query_plans
from fedaudit.trace import AGGREGATOR, SERVER, Recorder, Trace, Truth, TruthRecorder
from fedaudit.trace.ledger import QUERY, query_layout
from fedaudit.trace.schema import UNANSWERED

K, D = 10, 400
NAMES = tuple(f"client-{i:02d}" for i in range(K))


def total_and(plan):
    return np.vstack([np.ones((1, K)), plan])


def paired(seed=0):
    plan = query_plans.paired_plan(K, 5, 5, np.random.default_rng(seed))
    return total_and(np.concatenate([p.queries for p in plan]))


def recorded(path, plans, *, threshold=5, persistence=0.9, unanswered=(), names=NAMES):
    """A trace with one round per plan (Q, K), and its truth."""
    rng = np.random.default_rng(7)
    own = rng.standard_normal((K, D))
    declared = [{"name": "secure_aggregation", "covers": [], "threshold": threshold}]
    recorder = Recorder(
        path / "trace",
        layouts={"model": Layout.of([("w", (D,))]), QUERY: query_layout(names)},
        declared=declared if threshold else [],
    )
    truth = TruthRecorder(path / "truth", {})
    for number, plan in enumerate(plans, start=1):
        fresh = rng.standard_normal((K, D))
        x = (np.sqrt(persistence) * own + np.sqrt(1 - persistence) * fresh).astype(np.float32)
        rows = np.asarray(plan, dtype=np.uint8)
        many = len(rows)
        with recorder.round() as wire:
            refused = {UNANSWERED: "too few"}
            notes = [
                {QUERY: i, **(refused if (number, i) in unanswered else {})} for i in range(many)
            ]
            wire.send_rows(
                "query", [SERVER] * many, [AGGREGATOR] * many, rows, step=1, metadata=notes,
                layout=QUERY,
            )  # fmt: skip
            for i, row in enumerate(rows):
                if (number, i) not in unanswered:
                    note = {QUERY: i}
                    wire.send("sum", AGGREGATOR, SERVER, row @ x, step=2, metadata=note)
        truth.round(number, {}, x, names)
    recorder.close()
    return Trace.open(path / "trace"), Truth.open(path / "truth")


def audited(trace, truth=None, **settings):
    audit = QueryPlan(**settings)
    guess = audit.attack(trace.seen_by(audit.vantage), Knowledge(), np.random.default_rng(1))
    return audit.score(guess, truth, np.random.default_rng(2))


# -- theory ----------------------------------------------------------------------------------------


def test_theory_one_published_round_has_rank_k():
    found = audit_plan(paired())
    assert (found.rank, found.clients, found.queries) == (K, K, 101)
    assert found.recoverable == tuple(range(K))
    assert (found.min_support, found.min_support_exact, found.min_support_floor) == (1, True, 1)
    assert found.share == (1.0,) * K


def test_theory_partitions_expose_their_smallest_group():
    plan = query_plans.random_partitions(K, 3, 1, np.random.default_rng(0))[0]
    found = audit_plan(total_and(plan))
    assert (found.rank, found.recoverable) == (3, ())
    assert (found.min_support, found.min_support_exact) == (3, True)
    assert len(found.smallest) == 3
    sizes = plan.sum(axis=1)
    assert np.allclose(found.share, (1 / sizes) @ plan)


def test_naive_solving_the_system_gives_the_recoverable_clients_and_nobody_else():
    rng = np.random.default_rng(3)
    for _ in range(30):
        queries = (rng.random((6, 7)) < 0.5).astype(float)
        x = rng.standard_normal((7, 50))
        found = audit_plan(queries)
        right = np.abs(solution(queries) @ (queries @ x) - x).max(axis=1) < 1e-8
        assert tuple(np.flatnonzero(right)) == found.recoverable


# -- audit -----------------------------------------------------------------------------------------


def test_power_the_published_plan_leaks_and_the_updates_come_out(tmp_path):
    trace, truth = recorded(tmp_path, [paired(1), paired(2)])
    result = audited(trace, truth)
    e = result.estimates
    assert (e["smallest_exposed_group"].value, e["smallest_exposed_group"].baseline) == (1, 5)
    assert e["recoverable_updates"].value == 1
    assert e["rank_per_client"].value == 1
    assert e["recovered_cosine"].value > 0.999
    assert e["recovered_cosine"].baseline < 0.7
    (finding,) = judge(result)
    assert finding.verdict == "leak"
    assert finding.measure == "smallest_exposed_group"
    assert all(c["rounds_recoverable"] == 2 for c in result.per_client.values())
    assert not any("record_set_naming" in note for note in result.notes)  # updates are told
    # M (1 + 2N) = 55 uploads a round on average, and the training aggregate
    assert np.mean([c["uploads_per_round"] for c in result.per_client.values()]) == 56


def test_null_partitions_above_the_threshold_are_no_leak(tmp_path):
    rng = np.random.default_rng(4)
    plans = [total_and(p) for p in query_plans.random_partitions(K, 5, 12, rng)]
    result = audited(*recorded(tmp_path, plans))
    e = result.estimates
    assert e["smallest_exposed_group"].value == 5
    assert e["recoverable_updates"].value == 0
    over_rounds, finding = judge(result)
    assert finding.verdict == "no_evidence"
    assert result.detectable == 4  # the largest group that would have been a leak
    # the part that persists across rounds is estimated, and in the verdict
    assert (over_rounds.verdict, over_rounds.rule) == ("leak", "L4")
    assert over_rounds.measure == "recoverable_if_updates_persist"
    assert e["recoverable_if_updates_persist"].value == 1
    assert e["persistent_cosine"].value > 0.9
    assert e["guessed_cosine"].value > 0.9
    assert any("persist" in note for note in result.notes)
    assert any("record_set_naming" in note for note in result.notes)


def test_one_client_that_stands_alone_over_all_rounds_is_a_leak_and_named(tmp_path):
    """Groups of nine and of ten: their difference is the persistent update of one client."""
    but_one = np.ones((1, K))
    but_one[0, 3] = 0
    result = audited(*recorded(tmp_path, [np.ones((1, K)), but_one], threshold=5))
    found, headline = judge(result)
    assert (found.verdict, found.measure) == ("leak", "recoverable_if_updates_persist")
    assert found.client == "client-03"
    assert headline.verdict == "no_evidence"
    assert settled(result).status == "ok"


def test_updates_that_arrive_by_name_need_no_sum(tmp_path):
    plain = {"w": np.zeros(3, dtype=np.float32)}
    about = {"clients": ["a", "b"], "hubs": [SERVER]}
    recorder = Recorder(tmp_path / "t", like=plain, federation=about)
    for _ in range(2):
        with recorder.round() as wire:
            for name in ("a", "b"):
                wire.send("model", SERVER, name, plain, step=0)
                wire.send("delta", name, SERVER, {"w": np.ones(3, np.float32)}, step=1)
    recorder.close()
    result = audited(Trace.open(tmp_path / "t"))
    assert result.known
    assert result.estimates["smallest_exposed_group"].value == 1
    assert result.estimates["recoverable_updates"].value == 1
    (finding,) = judge(result)
    assert (finding.verdict, finding.rule) == ("leak", "K1")


def test_a_search_that_ends_undecided_cannot_say(tmp_path, monkeypatch):
    """A fully searched round does not settle a round with a bounded search."""
    known = np.kron(np.eye(3), np.ones((1, 3)))
    known = np.hstack([known, [[0], [0], [1]]])
    opaque = np.random.default_rng(3).random((3, K)) < 0.6
    trace, _ = recorded(tmp_path, [known, opaque], threshold=3)
    (clear,) = judge(audited(trace))
    assert (clear.verdict, clear.rule) == ("no_evidence", "E2")
    monkeypatch.setattr(query_algebra, "WORK", 40)
    result = audited(trace)
    e = result.estimates["smallest_exposed_group"]
    assert (e.value, e.low, e.high, e.baseline) == (3, 2, 3, 3)
    assert "bounded" in e.method
    assert any("bounded in round 2: at least 2" in note for note in result.notes)
    assert result.detectable == 1  # groups of two were not excluded
    (finding,) = judge(result)
    assert (finding.verdict, finding.rule) == ("nothing_to_say", "N1")
    assert (finding.estimate.low, finding.estimate.high) == (2, 3)


def test_null_fixed_groups_gain_nothing_over_rounds(tmp_path):
    plans = [total_and(p) for p in query_plans.fixed_groups(K, 5, 6, np.random.default_rng(5))]
    e = audited(*recorded(tmp_path, plans)).estimates
    assert e["recoverable_if_updates_persist"].value == 0
    assert e["persistent_cosine"].value == pytest.approx(1 / np.sqrt(5), abs=0.05)


def test_the_training_aggregate_counts(tmp_path):
    """A sum of all but one client is no leak alone; with the sum of all it exposes the client."""
    but_one = np.ones((1, K))
    but_one[0, 3] = 0
    alone = audited(recorded(tmp_path / "a", [but_one])[0])
    beside = audited(recorded(tmp_path / "b", [total_and(but_one)])[0])
    assert alone.estimates["smallest_exposed_group"].value == 9
    assert beside.estimates["smallest_exposed_group"].value == 1
    assert "client-03" in beside.notes[0]


def test_what_was_not_answered_does_not_count(tmp_path):
    but_one = np.ones((1, K))
    but_one[0, 3] = 0
    trace, _ = recorded(tmp_path, [total_and(but_one)], unanswered={(1, 1)})
    result = audited(trace)
    assert result.estimates["smallest_exposed_group"].value == K
    assert any("1 query refused" in note for note in result.notes)


def test_monotone_more_answers_never_expose_larger_groups(tmp_path):
    plan = paired(6)
    values = [audit_plan(plan[:n]).min_support for n in (1, 2, 4, 8, 16, 40, len(plan))]
    assert values == sorted(values, reverse=True)
    ranks = [audit_plan(plan[:n]).rank for n in (1, 2, 4, 8, 16, 40, len(plan))]
    assert ranks == sorted(ranks)


def test_vantage_who_did_not_ask_sees_nothing_to_audit(tmp_path):
    trace, _ = recorded(tmp_path, [paired()])
    audit = QueryPlan(vantage="network")
    with pytest.raises(NotApplicable, match="no sums"):
        audit.attack(trace.seen_by("network"), Knowledge(), np.random.default_rng(0))
    trace, _ = recorded(tmp_path / "none", [np.ones((1, K))], unanswered={(1, 0)})
    with pytest.raises(NotApplicable, match="no query was answered"):
        audited(trace)


def test_the_threshold_is_the_declared_one_or_the_auditors(tmp_path):
    groups = np.kron(np.eye(5), np.ones((1, 2)))
    declared, _ = recorded(tmp_path / "a", [groups], threshold=5)
    silent, _ = recorded(tmp_path / "b", [groups], threshold=0)
    baselines = [
        audited(t, **s).estimates["smallest_exposed_group"].baseline
        for t, s in ((declared, {}), (silent, {}), (declared, {"threshold": 3}))
    ]
    assert baselines == [5, 2, 3]
    assert [judge(audited(t))[0].verdict for t in (declared, silent)] == ["leak", "no_evidence"]


def test_renaming_clients_changes_only_labels(tmp_path):
    plans = [paired(8)]
    others = tuple(f"site {chr(65 + i)}" for i in range(K))
    a = audited(*recorded(tmp_path / "a", plans))
    b = audited(*recorded(tmp_path / "b", plans, names=others))
    assert a.estimates == b.estimates
    assert [*b.per_client] == list(others)
    assert [*a.per_client.values()] == [*b.per_client.values()]


def test_the_result_survives_json_and_is_the_same_twice(tmp_path):
    trace, truth = recorded(tmp_path, [paired(9), paired(10)])
    before = [trace.block(n).copy() for n in trace.rounds]
    result = audited(trace, truth)
    assert AuditResult.from_json(result.to_json()) == result
    assert audited(trace, truth) == result
    assert all(np.array_equal(a, trace.block(n)) for a, n in zip(before, trace.rounds, strict=True))
    # without truth: the same, except for measurements against it
    blind = audited(trace)
    assert set(result.estimates) - set(blind.estimates) == {
        *("recovered_cosine", "persistent_cosine", "guessed_cosine")
    }


@pytest.mark.parametrize("wrong", [{"threshold": 0}, {"solve": -1}, {"confidence": 1.0}])
def test_settings_out_of_range_are_refused(wrong):
    with pytest.raises(ConfigError):
        QueryPlan(**wrong)
