"""Query plans from tables and ledgers, and designs of new ones."""

import json
from functools import partial

import numpy as np
import pytest

from fedaudit import study
from fedaudit.audits.query_plan import audit_plan
from fedaudit.decide import query_plans as plan
from fedaudit.errors import DataError, NotApplicable, UsageError
from fedaudit.protections.secure_aggregation import (
    QueryRefused,
    SecureAggregation,
    SecureAggregator,
)
from fedaudit.setup.config import check as checked_config
from fedaudit.stats.plan_design import Scores


def table(path, text):
    path.write_text(text, encoding="utf-8")
    return path


def test_a_table_with_rounds_and_one_without_a_head(tmp_path):
    with_head = plan.queries_of_table(
        table(tmp_path / "a.csv", "round,ann,bob,cy\n1,1,1,0\n1,0,1,1\n2,1,0.5,1\n")
    )
    assert with_head.names == ("ann", "bob", "cy")
    assert {r: m.tolist() for r, m in with_head.rounds.items()} == {
        1: [[1, 1, 0], [0, 1, 1]],
        2: [[1, 0.5, 1]],
    }
    bare = plan.queries_of_table(table(tmp_path / "b.csv", "1;1;0\n\n0;1;1\n"))
    assert bare.names == ("client-00", "client-01", "client-02")
    assert bare.rounds[1].tolist() == [[1, 1, 0], [0, 1, 1]]


def test_the_training_aggregate_of_a_table_counts_unless_it_is_left_out(tmp_path):
    file = table(tmp_path / "p.csv", "a,b,c,d\n1,1,1,0\n")
    assert plan.check(file).smallest.min_support == 1
    assert plan.check(file).smallest.recoverable == (3,)
    assert plan.check(file, training=False).smallest.min_support == 3


def test_an_exact_round_does_not_settle_a_bounded_one(tmp_path, monkeypatch):
    rows = np.vstack([np.repeat(np.eye(4), 10, axis=1), np.random.default_rng(0).random((14, 40))])
    rounds = [1] * 4 + [2] * 14
    lines = [f"{r}," + ",".join(map(str, row)) for r, row in zip(rounds, rows > 0.5, strict=True)]
    text = "\n".join(lines).replace("True", "1").replace("False", "0")
    file = table(tmp_path / "p.csv", f"round,{','.join(f'c{i}' for i in range(40))}\n{text}\n")
    monkeypatch.setattr(plan, "audit_plan", partial(audit_plan, work=20_000))
    found = plan.check(file, threshold=8, training=False)
    first, second = found.rounds[1], found.rounds[2]
    assert (first.min_support, first.min_support_exact) == (10, True)
    assert second.min_support_floor < 8 < 10 < second.min_support
    assert found.smallest is first
    assert found.floor == second.min_support_floor


def test_one_more_query_is_judged_before_it_is_asked(tmp_path):
    file = table(tmp_path / "p.csv", "round,a,b,c,d,e,f\n1,1,1,1,0,0,0\n2,1,1,1,1,0,0\n")
    first = plan.check(file, add=("a", "b"), add_to=1).added
    assert (first.rank, first.recoverable, first.support.value) == (1, (2,), 1)
    last = plan.check(file, add=("0", "1", "2", "3")).added
    assert (last.rank, last.recoverable) == (0, ())
    with pytest.raises(UsageError, match="not a client"):
        plan.check(file, add=("zoe",))
    with pytest.raises(UsageError, match="no round 7"):
        plan.check(file, add=("a",), add_to=7)


def test_a_ledger_that_secure_aggregation_wrote_is_read_again(tmp_path):
    aggregator = SecureAggregator(threshold=3)
    rng = np.random.default_rng(0)
    for number in (1, 2):
        aggregator.begin(number, {c: rng.normal(size=4) for c in range(6)})
        aggregator.query(number, range(6))
        aggregator.query(number, range(3))
        with pytest.raises(QueryRefused):
            aggregator.query(number, range(5))
    names = [f"site-{i}" for i in range(6)]
    aggregator.ledger.write_csv(tmp_path / "ledger.csv", names)
    found = plan.check(tmp_path / "ledger.csv", threshold=3)
    assert found.names == tuple(names)
    assert {r: (p.queries, p.rank, p.min_support) for r, p in found.rounds.items()} == {
        1: (3, 2, 3),
        2: (3, 2, 3),
    }


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "empty file"),
        ("round,query\n1,2\n", "0 clients"),
        ("a,b\n", "0 queries"),
        ("a,b\n1,x\n", "line 2"),
        ("a,b\n1,nan\n", "line 2"),
        ("a,b\n1,1e308\n", "line 2"),
        ("a,b\n1,1e-308\n", "line 2"),
        ("round,a,b\n1e308,1,1\n", "line 2"),
        ("a,b\n1," + "9" * 400 + "\n", "line 2"),
        ("a,b\n1," + "1" * 140_000 + "\n", "line"),
        ("a,b\n1\n", "2 cells"),
        ("a,a\n1,1\n", "twice"),
        ("round,a,b\n1.5,1,1\n", "line 2"),
        ("answered,a,b\n0,1,1\n", "none"),
        ('a,b\n"1,1\n', "line"),
    ],
)
def test_invalid_tables_are_refused_with_their_line(text, words, tmp_path):
    with pytest.raises(DataError, match=words):
        plan.check(table(tmp_path / "p.csv", text))


def test_a_missing_file_and_a_run_without_sums_are_refused(tmp_path):
    with pytest.raises(DataError, match="cannot read"):
        plan.check(tmp_path / "none.csv")
    config = {
        "data": {"name": "gaussian-mixture", "records": 120},
        "task": {"kind": "mlp", "hidden": [4]},
        "federation": {"clients": 4, "rounds": 1},
        "audits": {"coverage": {}},
    }
    run = study.run(config, tmp_path / "run")
    with pytest.raises(NotApplicable, match="no sums"):
        plan.check(run.path)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    config = {
        "data": {"name": "gaussian-mixture", "records": 240},
        "task": {"kind": "mlp", "hidden": [4]},
        "federation": {"clients": 8, "rounds": 2},
        "protections": {
            "secure_aggregation": {"threshold": 3, "plan": "paired", "refuse_isolating": False}
        },
        "audits": {"coverage": {}},
        "trace": {"raw_updates": True},
    }
    return study.run(config, tmp_path_factory.mktemp("runs") / "run")


def test_secure_aggregation_adds_the_query_plan_audit(finished):
    assert {r.audit for r in finished.results} == {"coverage", "query_plan"}
    (found,) = [f for f in finished.findings if f.audit == "query_plan"]
    assert found.verdict == "leak"
    (result,) = [r for r in finished.results if r.audit == "query_plan"]
    assert result.estimates["recovered_cosine"].value > 0.9999
    assert "query_plan" in (finished.path / "report.html").read_text(encoding="utf-8")
    quiet = checked_config({"protections": {"shuffle": {}}})
    assert "query_plan" not in quiet.audits


def test_a_run_is_checked_from_its_ledger(finished):
    found = plan.check(finished.path)
    assert found.threshold == 3  # as declared
    assert {p.rank for p in found.rounds.values()} == {8}
    assert found.smallest.min_support == 1
    json.dumps(found.to_dict(), allow_nan=False)


def test_replaying_secure_aggregation_over_named_uploads_leaves_a_ledger(tmp_path):
    config = {
        "data": {"name": "gaussian-mixture", "records": 240},
        "task": {"kind": "mlp", "hidden": [4]},
        "federation": {"clients": 8, "rounds": 6},
        "audits": {"coverage": {}},
    }
    run = study.run(config, tmp_path / "run")
    asked = SecureAggregation(threshold=4, plan="partitions")
    done = study.audit(run.path, ["query_plan"], as_if=[asked], out=tmp_path / "as-if")
    (result,) = done.results
    assert result.estimates["smallest_exposed_group"].value == 4
    # partitions are drawn anew, by a seed that nobody knows: six alike would be one in 35^5
    assert plan.check(tmp_path / "as-if").stacked.rank > 2


# -- design ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def designs():
    scores = Scores(effect=1.0, marked=3, error=0.05)
    return plan.design(10, 5, 20, scores=scores, runs=60, rng=np.random.default_rng(1))


def test_designs_range_from_groups_to_partitions(designs):
    names = [d.name for d in designs.designs]
    assert names[:3] == ["cycled", "balanced", "groups"]
    assert names[-2:] == ["partitions", "paired (published)"]
    assert designs.earliest == 9
    groups, fresh, published = designs.of("groups"), designs.of("partitions"), designs.designs[-1]
    assert (groups.rank, groups.identifiable, groups.needed) == (2, 0, None)
    assert (fresh.rank, fresh.identifiable, fresh.exposed) == (10, 10, 5)
    assert 22 <= fresh.needed.rounds <= 33
    assert fresh.power.detected.value > 0.7
    assert (groups.separation, groups.apart_from, groups.power.detected.value) == (0, None, 0.0)
    cycled, balanced = designs.of("cycled"), designs.of("balanced")
    # never full rank, and yet every client is tested without every other one
    assert (cycled.rank, cycled.identifiable, cycled.separation) == (6, 0, 8)
    assert (cycled.apart_from, balanced.apart_from, balanced.separation) == (5, 5, 10)
    assert fresh.apart_from > 5
    assert balanced.needed.rounds <= cycled.needed.rounds <= balanced.needed.rounds + 5
    # what repeats adds no rank: even an update that never changes stays hidden
    assert cycled.guessed[1.0].value < 0.8 < balanced.guessed[1.0].value
    assert (published.queries_per_round, published.exposed) == (100, 1)
    assert published.uploads_per_client == 55
    with pytest.raises(UsageError, match="did you mean"):
        designs.of("partition")


def test_the_price_rises_with_persistence_and_with_mixing(designs):
    fresh = [e.value for e in designs.of("partitions").cosine.values()]
    assert fresh == sorted(fresh)
    assert fresh[-1] == pytest.approx(1.0)
    mixing = [d for d in designs.designs if d.name not in ("cycled", "balanced")]
    at = [d.cosine[0.9].value for d in mixing if d.cosine]
    assert at[0] == pytest.approx(1 / np.sqrt(5))
    assert at[-1] == pytest.approx(0.965, abs=0.01)
    assert at[0] < at[-1]
    for d in designs.designs:
        for e in d.cosine.values():
            assert e.low <= e.value <= e.high <= 1.0
            assert e.baseline == pytest.approx(1 / np.sqrt(10))
    json.dumps(designs.to_dict(), allow_nan=False)


def test_a_written_plan_is_read_back_and_checked(designs, tmp_path):
    fresh = designs.of("partitions")
    plan.write_table(tmp_path / "plan.csv", fresh.plan)
    found = plan.check(tmp_path / "plan.csv", threshold=5)
    assert len(found.rounds) == 20
    assert {p.min_support for p in found.rounds.values()} == {5}
    assert found.stacked.rank == fresh.rank
    with pytest.raises(DataError, match="cannot write"):
        plan.write_table(tmp_path / "no" / "plan.csv", fresh.plan)


@pytest.mark.parametrize(
    ("arguments", "more"),
    [
        ((9, 5, 3), {}),
        ((10, 5, 0), {}),
        ((10, 5, 3), {"runs": 1}),
        ((10, 5, 3), {"scores": Scores(marked=10)}),
    ],
)
def test_invalid_designs_are_refused(arguments, more):
    with pytest.raises(UsageError):
        plan.design(*arguments, rng=np.random.default_rng(0), **more)
