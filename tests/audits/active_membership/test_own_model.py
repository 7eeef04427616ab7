"""The adversary inside the run's own model, through the clients' own local steps."""

import numpy as np
import pytest

from fedaudit.audits.active_membership import ActiveMembership, scores
from fedaudit.audits.active_membership.own_model import half_spaces
from fedaudit.knowledge import KnowledgeBuilder, of_config
from fedaudit.randomness import Seed
from fedaudit.reporting.findings import judge
from fedaudit.setup.config import load
from fedaudit.setup.prepare import build
from fedaudit.study.auditing import audit_one
from fedaudit.trace import MemoryRecorder, MemoryTruth

SMALL = {
    "adversary": "own_model",
    "games": 200,
    "recorded": 30,
    "client_games": 0,
    "simulated": 20,
    "universe": 300,
    "records": 15,
}


def audited(settings=None, seed=1, **sections):
    config = load(
        {
            "data": {"name": "digits"},
            "task": {"kind": "mlp", "hidden": [4]},
            "federation": {"clients": 5, "rounds": 1},
            "training": {"batch_size": 4, "epochs": 3, "momentum": 0.5},
            **sections,
        }
    )
    federation, facts = build(config)
    recorder, truth = MemoryRecorder(**federation.about()), MemoryTruth(facts)
    federation.run(recorder, truth)
    trace = recorder.trace()
    builder = KnowledgeBuilder(
        trace, truth, Seed(seed), lambda: of_config(config, trace, truth), config
    )
    return audit_one(ActiveMembership(**SMALL | (settings or {})), trace, truth, seed, builder)


def test_a_half_space_holds_its_record_and_no_other():
    """Naive: every record against every half-space."""
    x = np.random.default_rng(0).normal(size=(60, 20))
    w, threshold, half = half_spaces(x)
    inside = x @ w.T > threshold
    assert (half > 0).all()
    assert (inside == np.eye(60, dtype=bool)).all()


def test_a_record_between_two_others_has_no_half_space_of_its_own():
    x = np.array([[-1.0, 0.0], [0.0, 0.0], [1.0, 0.0], [0.0, 2.0], [0.0, -2.0]])
    assert (half_spaces(x)[2] > 0).tolist() == [True, False, True, True, True]


@pytest.mark.parametrize(
    "sections",
    [
        {},
        {"task": {"kind": "mlp", "hidden": [6, 5], "activation": "gelu"}},
        {"training": {"optimizer": "adam", "batch_size": 4}},
        {"protections": {"shuffle": {}}},
        {"protections": {"secure_aggregation": {"threshold": 2}}},
        {
            "task": {"kind": "mlp", "hidden": [6], "activation": "gelu"},
            "training": {"epochs": 8, "batch_size": 4, "learning_rate": 0.3},
            "protections": {"secure_aggregation": {"threshold": 2}},
        },
    ],
    ids=["sgd", "deep gelu", "adam", "shuffled", "secure sum", "secure sum of many steps"],
)
def test_targets_are_found_in_the_runs_own_model_and_local_steps(sections):
    result = audited(**sections)
    assert result.estimates["success"].value > 0.97
    assert "30 of 30 games through the engine agree with the closed form" in result.notes
    assert judge(result)[0].verdict == "leak"
    assert scores.PLANTED["own_model"] in result.notes


def test_local_dp_that_drowns_everything_leaves_chance():
    result = audited(protections={"local_dp": {"mechanism": "grr", "epsilon": 0.001}})
    assert result.estimates["success"].low <= 0.5
    assert not result.test.significant


@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_records_that_nothing_separates_leave_no_update_that_a_secure_sum_refuses(activation):
    """More records than directions: overshooting neurons made the local steps diverge."""
    result = audited(
        {"universe": 1500, "records": 15},
        task={"kind": "mlp", "hidden": [6], "activation": activation},
        training={"epochs": 3, "batch_size": 8, "learning_rate": 0.1},
        protections={"secure_aggregation": {"threshold": 2}},
    )
    assert result.estimates["success"].value > 0.9


@pytest.mark.parametrize(
    ("sections", "code"),
    [
        ({"task": {"kind": "mlp", "hidden": []}}, "architecture_fixed"),
        ({"task": {"kind": "mlp", "hidden": [4], "activation": "tanh"}}, "architecture_fixed"),
        ({"training": {"weight_decay": 0.1}}, "architecture_fixed"),
        ({"protections": {"update_noise": {"noise_multiplier": 1.0}}}, "noisy_uploads"),
    ],
)
def test_where_nothing_can_be_planted_the_code_says_so(sections, code):
    result = audited(**sections)
    assert (result.status, result.need.code) == ("not_applicable", code)


def test_by_default_the_recorded_architecture_counts_and_any_other_stands_beside():
    """Records that no half-space separates: the own model misses what another model finds."""
    result = audited({"adversary": "auto", "universe": 1500, "records": 15})
    assert scores.PLANTED["own_model"] in result.notes
    beside = result.estimates["success_any_architecture"]
    alone = audited({"adversary": "fc", "universe": 1500, "records": 15}).estimates["success"]
    assert beside.value == alone.value == 1.0
    assert result.estimates["success"].value <= 1.0
    assert result.headline == "success"


@pytest.mark.parametrize(
    "protections",
    [
        {"dp_sgd": {"noise_multiplier": 1.0}},
        {"local_dp": {"mechanism": "grr", "epsilon": 1.0}},
    ],
    ids=lambda p: next(iter(p)),
)
def test_behind_noise_any_architecture_is_granted_and_said(protections):
    result = audited({"adversary": "auto"}, protections=protections)
    assert scores.ANY_MODEL in result.notes
    assert any("nothing was planted in the run's own model" in note for note in result.notes)
    assert "success_any_architecture" not in result.estimates


def test_an_architecture_that_fits_nothing_excludes_the_attack_by_default():
    result = audited({"adversary": "auto"}, training={"weight_decay": 0.1})
    assert (result.status, result.need.code) == ("not_applicable", "architecture_fixed")


def test_the_planted_architecture_states_its_assumption():
    result = audited({"adversary": "fc"})
    assert scores.ANY_MODEL in result.notes
