"""Ordinary records that name a client through sums: found where updates carry them."""

import numpy as np
import pytest

from fedaudit import study
from fedaudit.audits.attribution import record_sets, template
from fedaudit.audits.attribution.record_sets import NamedSets, RecordSetNaming
from fedaudit.audits.audit import Knowledge
from fedaudit.errors import NotApplicable, NothingToSay
from fedaudit.knowledge.record_sets import draw_sets
from fedaudit.knowledge.records import of_run
from fedaudit.randomness import Seed
from fedaudit.stats import query_plans
from fedaudit.trace import Trace, Truth
from fedaudit.trace.truth import MembersOnly

K, CONTROLS = 10, 40
SMALL = {
    "seed": 5,
    "data": {"name": "digits"},
    "task": {"kind": "mlp", "hidden": [8]},
    "federation": {"clients": 10, "rounds": 6},
    "training": {"learning_rate": 0.1, "steps": 2, "batch_size": 16},
    "protections": {"secure_aggregation": {"threshold": 5, "plan": "cycled", "masks": "skipped"}},
    "audits": {"record_set_naming": {"sizes": [1, 8]}},
}


def rows(effect, seed=0, rounds=10):
    """Rows of K sets, each of which adds `effect` to its own client, and of controls."""
    rng = np.random.default_rng(seed)
    plan = query_plans.balanced_partitions(K, 5, rounds, rng).astype(float)
    inner = rng.standard_normal((rounds, K, K + CONTROLS))
    inner[:, np.arange(K), np.arange(K)] += effect
    return [template.round_rows(p, p @ each, K) for p, each in zip(plan, inner, strict=True)]


def hits(effect, seeds=3):
    return sum(
        record_sets.whose(record_sets.one_set(rows(effect, seed), s, K), 0.05) == s
        for seed in range(seeds)
        for s in range(K)
    )


def test_null_power_and_monotone():
    found = [hits(effect) for effect in (0.0, 4.0, 8.0)]
    assert found == sorted(found)
    assert found[0] <= 3  # the right client of ten, at a level of 5 % each
    assert found[-1] >= 27


def guess(found):
    return NamedSets(
        names=("a", "b", "c"),
        found=found,
        controls={1: 40, 4: 30},
        notes=(),
        vantage="server",
        trace_sha256="0" * 64,
    )


def test_a_set_counts_only_if_it_names_its_own_client():
    truth = MembersOnly(
        {
            "a": np.array([0, 1, 0], bool),
            "b": np.array([1, 0, 0], bool),
            "c": np.array([0, 0, 1], bool),
        }
    )
    audit = RecordSetNaming(sizes=(1, 4))
    # sets belong to b, a, c
    found = audit.score(guess({1: (-1, 0, 0), 4: (1, 0, -1)}), truth, np.random.default_rng(0))
    assert found.headline == "set_named (4 records)"
    assert found.estimates["set_named (4 records)"].value == pytest.approx(2 / 3)
    assert found.estimates["set_named (1 records)"].value == pytest.approx(1 / 3)
    assert found.estimates["wrongly_named (1 records)"].value == pytest.approx(1 / 3)
    assert {n: row["from_records"] for n, row in found.per_client.items()} == {
        "a": 1,
        "b": 4,
        "c": None,
    }
    assert audit.score(guess({1: (0, 0, 0)}), None, np.random.default_rng(0)).status == "blind"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("sets") / "run"
    return study.run(SMALL, path), path


def test_a_run_says_how_many_records_name_a_client(run):
    result = {r.audit: r for r in run[0].results}["record_set_naming"]
    assert result.status == "ok"
    assert set(result.estimates) == {
        f"{name} ({size} records)" for name in ("set_named", "wrongly_named") for size in (1, 8)
    }
    assert len(result.per_client) == 10
    assert any("a client's own records that name it" in note for note in result.notes)


def test_sets_are_nested_controls_are_disjoint_and_names_stay_in_the_truth(run):
    path = run[1]
    trace, truth = Trace.open(path / "trace"), Truth.open(path / "truth")
    records = of_run(path, trace, truth)
    sets, owners, notes = draw_sets(records, (1, 8, 10_000), 20, 60, Seed(1))
    assert sets.sizes == (1, 8)
    assert "10000" in notes[0]
    assert sorted(np.flatnonzero(mine)[0] for mine in owners.values()) == list(range(10))
    for party, mine in owners.items():
        x, _ = sets.sets[int(np.flatnonzero(mine)[0])]
        own = records.own[party].x.reshape(len(records.own[party].x), -1)
        assert all((own == row.numpy().ravel()).all(axis=1).any() for row in x)
    made = sets.templates(8)
    assert made.available == min(60, len(sets.others[0]) // 8)
    with pytest.raises(NothingToSay, match="too few held-out"):
        draw_sets(records, (10_000,), 20, 60, Seed(1))


def test_vantage_sums_over_parts_are_needed(run):
    view = Trace.open(run[1] / "trace").seen_by("client-00")
    with pytest.raises(NotApplicable, match="no sums over parts"):
        RecordSetNaming().attack(view, Knowledge(), np.random.default_rng(0))
