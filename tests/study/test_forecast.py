"""What is said before a run is what the run then finds."""

import pytest
import torch

from fedaudit.audits.planning import Shape
from fedaudit.audits.two_stage_membership import TwoStageMembership
from fedaudit.errors import ConfigError, DataError, UsageError
from fedaudit.randomness import Seed
from fedaudit.setup.config import check
from fedaudit.setup.prepare import load_data
from fedaudit.study import forecast as module
from fedaudit.study import run, study
from fedaudit.study.forecast import Forecast, Stage, estimate_cost
from fedaudit.trace import Truth

BASE = {
    "data": {"name": "digits"},
    "task": {"kind": "mlp", "hidden": [4]},
    "federation": {"clients": 6, "rounds": 2},
    "training": {"batch_size": 16},
    "audits": {
        "coverage": {},
        "fingerprint": {},
        "query_plan": {},
        "attribution": {},
        "active_membership": {"games": 40, "recorded": 2, "simulated": 50, "client_games": 10},
        "two_stage_membership": {"records": 4, "checked_rounds": 1, "checked_records": 2},
    },
}
CASES = {
    "nothing": {},
    "shuffled": {"protections": {"shuffle": {}}},
    "sums": {"protections": {"secure_sum": {}}},
    "planned": {
        "protections": {"secure_aggregation": {"threshold": 3, "plan": "partitions"}},
        "marks": {"clients": 1},
    },
    "asked": {"protections": {"secure_aggregation": {"threshold": 3}}, "marks": {"clients": 1}},
    "placed": {
        "protections": {"shuffle": {}},
        "topology": {"kind": "hierarchical", "sizes": [3, 3]},
        "audits": {"topology_inference": {"shadows": 20}},
    },
    "summed": {
        "protections": {"secure_sum": {}},
        "audits": {"topology_inference": {"shadows": 20}},
    },
    "asked, star": {
        "protections": {"secure_aggregation": {"threshold": 3}},
        "audits": {"topology_inference": {"shadows": 20}},
    },
    "few": {
        "topology": {"kind": "hierarchical", "sizes": [3, 3]},
        "audits": {"topology_inference": {"shadows": 12}},
    },
    "alike": {
        "protections": {"shuffle": {}},
        "audits": {"topology_inference": {"shadows": 20}},
    },
    "text": {
        "data": {"name": "docs"},
        "task": {"kind": "gpt", "width": 8, "depth": 1, "heads": 2, "length": 16},
        "training": {"steps": 1, "batch_size": 2},
        "audits": {"active_membership": {}, "fingerprint": {}},
    },
}


@pytest.mark.parametrize("case", CASES)
def test_what_cannot_be_done_is_what_turns_out_not_to_apply(case, tmp_path):
    config = check({**BASE, **CASES[case]})
    ahead = estimate_cost(config)
    said = {s.name: s.missing.code for s in ahead.stages if s.missing}
    found = run(config, tmp_path / "run")
    # what only an excluded assumption answers is measured nevertheless, and its time foreseen
    unanswered = [r for r in found.results if r.headline is None and not r.estimates]
    assert said == {r.audit: r.need.code for r in unanswered}
    assert all(s.seconds == 0 for s in ahead.stages if s.cannot)
    assert all(s.seconds > 0 for s in ahead.stages if not s.cannot)


def test_layers_that_there_are_not_are_refused_before_training(tmp_path):
    def begun(stage, done, total, note):
        assert (stage, done) == ("train", 0)
        assert note != "training"

    wrong = {**BASE, "audits": {"fingerprint": {"features": ["blocks.9.*"]}}}
    with pytest.raises(ConfigError, match=r"audits\.fingerprint\.features") as planned:
        estimate_cost(check(wrong))
    with pytest.raises(ConfigError) as ran:
        run(wrong, tmp_path / "run", progress=begun)
    assert ran.value.exit_code == 2
    assert not list((tmp_path / "run").glob("trace/round-*"))
    layers = check(BASE).task.build(load_data(check(BASE), Seed(1))[0], Seed(1)).layout.names
    for error in (planned, ran):
        assert "'blocks.9.*'" in error.value.got
        assert all(name in error.value.remedy for name in layers)
    # a layer that exists and is not written down cannot be compared either
    kept = {**BASE, "trace": {"tensors": [layers[0]]}}
    with pytest.raises(ConfigError):
        estimate_cost(check({**kept, "audits": {"fingerprint": {"features": [layers[-1]]}}}))
    estimate_cost(check({**kept, "audits": {"fingerprint": {"features": [layers[0]]}}}))


def test_more_work_takes_longer():
    small = estimate_cost(check({**BASE, "federation": {"clients": 6, "rounds": 2}}))
    large = estimate_cost(check({**BASE, "federation": {"clients": 6, "rounds": 200}}))
    assert large.stages[0].seconds > small.stages[0].seconds


def test_shares_of_a_run_grow_to_one():
    ahead = Forecast(
        (Stage("train", 6.0, 6.0), Stage("a", 1.0, 1.0), Stage("b", 3.0, 3.0)), 1, 1, 1
    )
    steps = [("train", 0, 2), ("train", 1, 2), ("train", 2, 2), ("audit", 1, 2), ("audit", 2, 2)]
    assert [ahead.share(*s) for s in steps] == pytest.approx([0, 0.3, 0.6, 0.7, 1.0])


def hospitals(folder, gaps=False):
    """Eight owners of 10 to 80 records, and a text column; `gaps`: values are missing in both."""
    rows = ["owner,age,ward,outcome"]
    for k in range(8):
        for i in range(10 * (k + 1)):
            age = "" if gaps and i == 3 else str(20 + (7 * i + k) % 60)
            ward = "" if gaps and i == 5 else "AB"[i % 2]
            rows.append(f"h{k},{age},{ward},{(i + k) % 2}")
    file = folder / "h.csv"
    file.write_text("\n".join(rows) + "\n")
    data = {"path": str(file), "label": "outcome", "client": "owner", "test_fraction": 0.2}
    if gaps:
        data["missing"] = "mean"
    return {**BASE, "data": data, "partition": {"kind": "by_owner"}}


def test_owners_that_take_no_part_are_not_counted_and_the_plan_says_so(tmp_path):
    raw = hospitals(tmp_path) | {"federation": {"clients": 3, "rounds": 2}, "audits": {}}
    found = estimate_cost(check(raw))
    done = run(raw, tmp_path / "run")
    trained = Truth.open(done.path / "truth").facts["clients"].values()
    assert found.records == sum(c["examples"] for c in trained)
    whole = estimate_cost(check(raw | {"federation": {"rounds": 2}}))
    assert found.records < whole.records == 288
    # one hospital has 8 records; otherwise there is nothing to say
    told = [n for n in whole.notes if not n.startswith("columns standardised")]
    assert ["'h0' (8)" in note for note in told] == [True]
    parts = study.plan([raw])
    text = "\n".join(study.describe(parts, study.estimate_costs(parts)))
    assert f"3 clients, {found.records} records" in text
    assert "note: the 3 largest of 8 owners take part; 5 owners with" in text
    assert "held-out records still come from all owners" in text


def test_values_that_are_filled_in_are_said_before_the_run_once_for_all_variants(tmp_path):
    noisy = {"protections": {"dp_sgd": {}}}
    raw = hospitals(tmp_path, gaps=True) | {"audits": {}, "compare": {"base": "a", "b": noisy}}
    parts = study.plan([raw])
    text = "\n".join(study.describe(parts, study.estimate_costs(parts)))
    assert text.count("note: missing values filled over all records") == 1
    assert "texts the category (missing)" in text
    assert "no epsilon covers" in text


def test_the_same_job_is_estimated_to_take_the_same_time():
    one, other = (estimate_cost(check(BASE)) for _ in range(2))
    assert one == other


def test_the_machine_is_measured_on_one_core_and_left_as_it_was(monkeypatch):
    """Two threads on a busy machine wait for each other: the figure would swing tenfold."""
    seen = []

    class Clock:
        def perf_counter(self):
            seen.append(torch.get_num_threads())
            return float(len(seen))

    before = torch.get_num_threads()
    monkeypatch.setattr(module, "time", Clock())
    torch.set_num_threads(2)
    try:
        module._slowness.__wrapped__()
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert set(seen) == {1}


def test_more_clients_than_records_are_refused_before_a_plan_is_told():
    with pytest.raises(DataError, match="cannot be divided among 5000 clients"):
        estimate_cost(check({**BASE, "federation": {"clients": 5000}}))


@pytest.mark.parametrize(("hidden", "growth"), [(False, 2.0), (True, 4.0)])
def test_linking_records_to_anonymous_rows_takes_the_square_of_the_clients(hidden, growth):
    """Rows with names are asked about their own records and those of a few others."""

    def seconds(clients):
        shape = Shape(
            kind="mlp", clients=clients, rounds=10, width=10_000, weights=10_000, tokens=1,
            examples=100 * clients, epochs=1.0, records=100 * clients, hidden=hidden,
        )  # fmt: skip
        return TwoStageMembership(checked_rounds=0).cost(shape) - 0.5

    assert seconds(400) / seconds(200) == pytest.approx(growth, rel=0.01)
    # few clients are asked about all records either way
    assert seconds(2) == pytest.approx(seconds(4) / 2, rel=0.01)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"protections": {"secure_aggregation": {"threshold": 7}}}, "fewer clients"),
        (
            {
                "federation": {"clients": 6, "rounds": 2, "participation": 0.5},
                "protections": {"secure_aggregation": {"threshold": 4}},
            },
            "fewer clients take part in a round",
        ),
        (
            {"protections": {"secure_aggregation": {"threshold": 2, "plan": "paired",
                                                    "subset_size": 5}}},
            "do not fit the clients",
        ),
        ({"marks": {"clients": 9}}, "all clients would be marked"),
        ({"marks": {"clients": 1, "kind": "kgw"}}, "kgw"),
    ],
)  # fmt: skip
def test_what_a_run_would_refuse_is_refused_before_any_run_of_a_study(changes, words):
    with pytest.raises((DataError, ConfigError, UsageError), match=words):
        estimate_cost(check(BASE | changes))
    with pytest.raises((DataError, ConfigError, UsageError), match=words):
        study.estimate_costs(study.plan([{**BASE, "compare": {"fine": {}, "not": changes}}]))


def test_pairs_that_will_be_refused_are_told_before():
    asked = {"threshold": 2, "plan": "paired"}
    said = estimate_cost(check(BASE | {"protections": {"secure_aggregation": asked}})).notes
    assert any("refuse_isolating" in note for note in said)
    asked["refuse_isolating"] = False
    said = estimate_cost(check(BASE | {"protections": {"secure_aggregation": asked}})).notes
    assert not any("refuse_isolating" in note for note in said)
