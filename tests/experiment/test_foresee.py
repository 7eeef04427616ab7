"""What is said before a run is what the run then finds."""

import pytest

from fedaudit import experiment
from fedaudit.experiment.config import check
from fedaudit.experiment.foresee import Foreseen, Stage, foresee

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
        "audits": {"topology_inference": {"shadows": 12}},
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
    ahead = foresee(config)
    said = {s.name for s in ahead.stages if s.cannot}
    found = experiment.run(config, tmp_path / "run")
    assert said == {r.audit for r in found.results if r.not_applicable}
    assert all(s.seconds == 0 for s in ahead.stages if s.cannot)
    assert all(s.seconds > 0 for s in ahead.stages if not s.cannot)


def test_more_work_takes_longer():
    small = foresee(check({**BASE, "federation": {"clients": 6, "rounds": 2}}))
    large = foresee(check({**BASE, "federation": {"clients": 6, "rounds": 200}}))
    assert large.stages[0].seconds > small.stages[0].seconds


def test_shares_of_a_run_grow_to_one():
    ahead = Foreseen((Stage("train", 6.0), Stage("a", 1.0), Stage("b", 3.0)), 1, 1, 1)
    steps = [("train", 0, 2), ("train", 1, 2), ("train", 2, 2), ("audit", 1, 2), ("audit", 2, 2)]
    assert [ahead.share(*s) for s in steps] == pytest.approx([0, 0.3, 0.6, 0.7, 1.0])
