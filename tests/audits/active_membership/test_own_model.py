"""The adversary inside the run's own model, through the clients' own local steps."""

import numpy as np
import pytest
import torch
from scipy.stats import binom, norm

from fedaudit.accounting import Exposure
from fedaudit.audits.active_membership import ActiveMembership, scores
from fedaudit.audits.active_membership.games import Universe
from fedaudit.audits.active_membership.own_model import HalfSpaces, half_spaces
from fedaudit.federation.local.schedule import Training
from fedaudit.hooks import AddedNoise
from fedaudit.knowledge import KnowledgeBuilder, of_config
from fedaudit.knowledge.probing import channel_of
from fedaudit.knowledge.probing.own_model import own_model
from fedaudit.randomness import Seed
from fedaudit.reporting.findings import judge
from fedaudit.setup.config import load
from fedaudit.setup.prepare import Prepared, build
from fedaudit.stats.intervals import clopper_pearson
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
        {"update_noise": {"noise_multiplier": 0.05}},
        {"local_dp": {"mechanism": "grr", "epsilon": 8.0}},
    ],
    ids=lambda p: next(iter(p)),
)
def test_where_the_own_model_cannot_be_used_any_other_is_a_measure_and_no_verdict(protections):
    result = audited({"adversary": "auto"}, protections=protections)
    assert (result.status, result.need.code) == ("not_applicable", "architecture_fixed")
    assert set(result.estimates) == {"success_any_architecture"}
    assert result.estimates["success_any_architecture"].low > 0.5
    (finding,) = judge(result)
    assert finding.verdict == "not_applicable"
    assert finding.code == "architecture_fixed"
    assert scores.ANY_MODEL in result.notes
    assert all(b.of == "success_any_architecture" for b in result.bounds.values())
    asked = audited({"adversary": "fc"}, protections=protections)
    assert asked.estimates["success"].value == result.estimates["success_any_architecture"].value
    assert judge(asked)[0].verdict == "leak"


# -- behind DP-SGD --------------------------------------------------------------------------------

STEPS = {"batch_size": 5, "epochs": 2, "learning_rate": 0.1}
NOISY = {"games": 20, "recorded": 400}


def behind(z, seed=1, **sections):
    return audited(
        {"adversary": "auto", **NOISY},
        seed,
        training=STEPS,
        protections={"dp_sgd": {"noise_multiplier": z, "clip": 1.0}},
        **sections,
    )


def test_a_match_moves_one_column_as_the_closed_form_says():
    """Naive: one full step without noise, on the target and on everybody else."""
    config = load({"data": {"name": "digits"}, "task": {"kind": "mlp", "hidden": [4, 3]}})
    task = Prepared.of(config).task
    rng = np.random.default_rng(0)
    universe = Universe.of(rng.random((40, 64)), channel_of(None, 64))
    labels = np.arange(40) % 10
    model = own_model(task, Training(learning_rate=0.5), 64, labels, noisy=True)
    server = HalfSpaces(universe=universe, model=model)
    step = Exposure(sampling_rate=0.25, steps=8, rounds=1)
    column = server.behind_noise(AddedNoise("step", 2.0, 0.7), step, 20, 3, np.array([7]))
    assert column.spread == pytest.approx([0.5 * 0.7 * 2.0 / 5 * np.sqrt(8)] * 3)
    flat = torch.from_numpy(server.rows(np.array([7]), classes=10)[0])
    x = torch.from_numpy(universe.values).float()
    for record in (7, 8):
        at, label = flat.clone().requires_grad_(), torch.tensor([7])
        loss = task.losses(task.differentiable(at), x[[record]], label, None)
        (gradient,) = torch.autograd.grad(loss.sum(), at)
        gradient *= min(1.0, 0.7 / float(gradient.norm()))
        moved = server.columns(gradient[None, model.second[0]].numpy(), 1)[0, 0]
        # two visits of a record in eight steps that draw a quarter
        if record == 7:
            assert column.signal[0] == pytest.approx(0.5 * 2 / 5 * moved, rel=1e-4, abs=1e-6)
        assert (record == 7) == bool(np.abs(moved).max() > 0)


def right_behind(z, steps=6, rate=1 / 3):
    """Success of the likelihood ratio of a step that draws the target in `rate` of all steps.

    A match moves the column by almost C in every step that draws it, the ratio expects the mean
    number of draws, and no other record moves the column.
    """
    visits = np.arange(steps + 1)
    signal, spread = 8 / np.sqrt(65), z * np.sqrt(steps)
    half = signal * rate * steps / 2
    found = norm.cdf((visits * signal - half) / spread) @ binom.pmf(visits, steps, rate)
    return 0.5 * (found + norm.cdf(half / spread))


@pytest.mark.parametrize("z", [0.5, 4.0])
def test_behind_dp_sgd_the_own_model_finds_what_theory_says(z):
    """Theory: within the 99.9 % interval; and below the ceiling of the round as it was played."""
    result = behind(z)
    (bound,) = (b for n, b in result.bounds.items() if n.startswith("as played"))
    found = result.estimates["success"]
    right = clopper_pearson(round(found.value * found.n), found.n, 0.999)
    assert right.low <= right_behind(z) <= right.high
    assert right_behind(z) < bound.value < right_behind(z) + 0.16
    assert found.low <= bound.value
    assert "sampling rate 0.333" in bound.covers
    assert scores.PLANTED["own_model"] in result.notes
    assert "success_any_architecture" in result.estimates
    if z < 1:
        assert judge(result)[0].verdict == "leak"


@pytest.mark.parametrize("protection", ["shuffle", "secure_aggregation"])
def test_names_taken_away_behind_dp_sgd_leave_the_record_to_be_found(protection):
    own = {"threshold": 2} if protection == "secure_aggregation" else {}
    config = {protection: own, "dp_sgd": {"noise_multiplier": 0.2}}
    result = audited({"adversary": "auto", **NOISY}, training=STEPS, protections=config)
    assert result.estimates["success"].low > 0.5


def test_noise_that_drowns_everything_behind_dp_sgd_leaves_chance():
    """Null: at z = 1,000 nothing can be found."""
    result = behind(1000.0)
    assert result.estimates["success"].low <= 0.5
    assert not result.test.significant


def test_behind_dp_sgd_steps_with_momentum_are_not_played():
    result = audited(
        {"adversary": "auto", **NOISY},
        training={**STEPS, "momentum": 0.5},
        protections={"dp_sgd": {"noise_multiplier": 1.0}},
    )
    assert (result.status, result.need.code) == ("not_applicable", "architecture_fixed")
    assert "without momentum" in result.need.got


def test_an_architecture_that_fits_nothing_excludes_the_attack_by_default():
    result = audited({"adversary": "auto"}, training={"weight_decay": 0.1})
    assert (result.status, result.need.code) == ("not_applicable", "architecture_fixed")


def test_the_planted_architecture_states_its_assumption():
    result = audited({"adversary": "fc"})
    assert scores.ANY_MODEL in result.notes
