"""The planted network measures the distance; its gradient decides like the closed form."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import stats

from fedaudit.audits.active_membership import fc, games, probe
from fedaudit.audits.active_membership.adversary import FullyConnected
from fedaudit.audits.active_membership.games import Universe
from fedaudit.errors import DataError, UsageError
from fedaudit.knowledge.probing import channel_of
from fedaudit.protections.local_dp.protection import LocalDP


def planted(targets, tau, **settings):
    """The torch modules of planted rows, built by loading the row into the task's module."""
    rows = fc.weights(targets, tau, **settings)
    task = fc.task(
        rows_features := np.shape(targets)[-1],
        detectors=settings.get("detectors", 1),
        classes=settings.get("classes", 10),
    )
    assert rows.shape[1] == task.layout.width
    assert rows_features == task.module[0].in_features
    return task, [task.named(torch.from_numpy(row)) for row in rows]


def test_weights_are_those_of_the_paper(rng):
    target = rng.random(4)
    _, (p,) = planted(target[None], 0.7)
    eye = torch.eye(4)
    assert torch.equal(p["0.weight"], torch.cat([eye, -eye]))
    expected = np.concatenate([-target, target]).astype(np.float32)
    np.testing.assert_array_equal(p["0.bias"].numpy(), expected)
    assert torch.equal(p["2.weight"], torch.full((1, 8), -1.0))
    assert p["2.bias"].item() == pytest.approx(0.7)


def test_the_neuron_is_tau_minus_the_distance_or_nothing(rng):
    """[ActiveMembership] Eq. (10), against plain arithmetic."""
    x, target = rng.random((30, 5)), rng.random(5)
    task, (p,) = planted(target[None], 1.5)
    p = {k: v.double() for k, v in p.items()}
    hidden = torch.relu(F.linear(torch.from_numpy(x), p["0.weight"], p["0.bias"]))
    neuron = torch.relu(F.linear(hidden, p["2.weight"], p["2.bias"]))[:, 0]
    stored = target.astype(np.float32)  # weights are kept in single precision
    expected = np.maximum(1.5 - np.abs(x - stored).sum(axis=1), 0)
    np.testing.assert_allclose(neuron.numpy(), expected, atol=1e-12)
    assert 0 < (expected > 0).sum() < 30
    assert task.kind == "classifier"


@pytest.mark.parametrize("label", [0, 9])
def test_the_gradient_of_the_bias_never_cancels(rng, label):
    """One active example moves it by at least gain / (C + 1), two move it further, any label."""
    target = rng.random(3)
    task, (p,) = planted(target[None], 0.5, gain=2.0)
    active = torch.from_numpy(np.stack([target, target + 0.1])).float()
    far = torch.full((1, 3), 9.0)

    def gradient(x):
        named = {k: v.clone().requires_grad_() for k, v in p.items()}
        y = torch.full((len(x),), label)
        loss = task.losses(named, x, y, None).sum()
        return torch.autograd.grad(loss, named[fc.ANSWER_TENSOR])[0].item()

    one, two = gradient(active[:1]), gradient(active)
    assert one >= 2.0 / 11
    assert two >= one + 2.0 / 11
    assert gradient(far) == 0.0
    assert gradient(torch.cat([far, active[:1]])) == pytest.approx(one)


def test_only_the_armed_detector_answers(rng):
    target = rng.random((1, 3))
    task, models = planted(
        np.repeat(target, 4, axis=0), 0.5, detectors=3, armed=[0, 1, 2, -1], classes=4
    )
    x = torch.from_numpy(target).float()
    for k, p in enumerate(models):
        named = {name: v.clone().requires_grad_() for name, v in p.items()}
        loss = task.losses(named, x, torch.zeros(1, dtype=torch.int64), None).sum()
        grad = torch.autograd.grad(loss, named[fc.ANSWER_TENSOR])[0]
        assert grad.nonzero().flatten().tolist() == ([k] if k < 3 else [])


def test_a_power_of_two_changes_no_decision(rng):
    x, target, tau = rng.random((200, 6)), rng.random(6), 2.0
    scale = fc.scale_for(7.3)
    assert scale == 1 / 8
    assert fc.scale_for(0.4) == 1.0
    kept = []
    for s in (1.0, scale):
        _, (p,) = planted(target[None], tau, scale=s)
        hidden = torch.relu(F.linear(torch.from_numpy(x).float(), p["0.weight"], p["0.bias"]))
        kept.append(F.linear(hidden, p["2.weight"], p["2.bias"])[:, 0])
    assert torch.equal(kept[0] * scale, kept[1])


def test_a_step_survives_rounding_beside_the_bias():
    for records, classes in ((1, 2), (64, 10), (50_000, 1000)):
        rate = fc.learning_rate(records, classes)
        moved = np.float32(1.0) - np.float32(rate / ((classes + 1) * records))
        assert np.float32(1.0) - moved > 0


def test_bad_targets_are_refused():
    with pytest.raises(DataError, match="not finite"):
        fc.weights([[math.nan, 0.0]], 1.0)
    for tau in (0.0, -1.0, math.inf):
        with pytest.raises(UsageError, match="tau is out of range"):
            fc.weights([[1.0, 0.0]], tau)


# -- through the engine ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mechanism", "epsilon", "settings"),
    [
        ("bitrand", 5.0, {"bits": 10, "integer_bits": 1}),
        ("grr", 3.0, {"alphabet": 5}),
    ],
)
def test_a_thousand_games_are_decided_alike(play, rng, mechanism, epsilon, settings):
    """Reference path, closed form and lazy looks: the same decision in every one of 1,000 games."""
    hook = LocalDP(mechanism=mechanism, epsilon=epsilon, **settings)
    raw = np.unique(rng.integers(0, 5, (300, 12)) / 4.0, axis=0)
    universe = Universe.of(raw, channel_of(hook, 12))
    adversary = FullyConnected.prepare(universe, 6, rng)
    played = games.challenge(len(universe), 6, 1000, rng)
    trace, shown = play(adversary, played, universe.values, 3, (hook,))
    answer = probe.read_answer(trace.seen_by("server"), adversary.answer_tensor)
    engine = (answer.rows != 0).any(axis=1)
    closed = adversary.answers(shown, played.target) > adversary.cut
    np.testing.assert_array_equal(engine, closed)
    assert 0.05 < engine.mean() < 0.95  # both answers occur

    step = universe.channel.codes.step
    apart = np.rint(np.abs(shown - universe.values[played.target][:, None]) / step).astype(np.int32)
    order = universe.by_weight[played.target].astype(np.int64)[:, None]
    table = np.take_along_axis(apart, order, axis=2).reshape(6000, 12)
    lazy = games.decide_lazily(
        np.zeros(6000, dtype=bool),
        12,
        math.ceil(adversary.tau / step),
        lambda some, a, b: table[some, a:b],
        group=6,
    )
    np.testing.assert_array_equal(lazy.reshape(1000, 6).any(axis=1), engine)


def test_planted_models_and_answers_are_on_the_wire(play, rng):
    """The trace has planted models and answers; a client sees its own planted model."""
    universe = Universe.of(rng.random((40, 4)))
    adversary = FullyConnected.prepare(universe, 5, rng)
    played = games.challenge(40, 5, 6, rng)
    trace, _ = play(adversary, played, universe.values, 1)
    sent = trace.seen_by("client-02").received(1, "client-02")
    np.testing.assert_array_equal(sent, adversary.rows(played.target[2:3], classes=10)[0])
    answer = probe.read_answer(trace.seen_by("server"), adversary.answer_tensor)
    assert answer.named
    np.testing.assert_array_equal((answer.rows > 0).any(axis=1), played.member)


def test_thresholds_are_ordered_as_they_should_be(rng):
    hook = LocalDP(mechanism="grr", epsilon=3.0, alphabet=5)
    raw = np.unique(rng.integers(0, 5, (200, 16)) / 4.0, axis=0)
    universe = Universe.of(raw, channel_of(hook, 16))
    won = {}
    played = games.challenge(len(universe), 8, 4000, rng)
    closest = games.distances(universe, played, rng)
    for how in ("theory", "published", "tuned"):
        adversary = FullyConnected.prepare(universe, 8, rng, threshold=how)
        called = closest < adversary.tau
        won[how] = called[played.member].mean() + 1 - called[~played.member].mean()
    assert won["tuned"] >= max(won.values()) - 0.05
    assert won["tuned"] > won["theory"] + 0.2


# -- beside noise ---------------------------------------------------------------------------------


def test_what_is_declared_gives_signal_and_noise():
    plain = [{"name": "shuffle"}, {"name": "clip", "bound": 1.0}]
    assert probe.noise_model(plain, 1.0, 10, 3) is None
    dp = {"name": "dp_sgd", "noise_multiplier": 0.5, "clip": 2.0}
    one = probe.noise_model([dp], 4.0, 10, 3)
    assert one.signal == pytest.approx(4.0 * 2.0 / 10)
    np.testing.assert_allclose(one.spread, 0.5 * one.signal)
    assert probe.noise_model([{**dp, "noise_multiplier": 0.0}], 4.0, 10, 3) is None
    each = probe.noise_model([{**dp, "noise_multiplier": [0.0, 1.0]}], 4.0, 10, 2)
    np.testing.assert_allclose(each.spread, [0.0, each.signal])
    assert one.of_sum.spread == pytest.approx(np.sqrt(3) * one.spread[0])
    late = probe.noise_model([{**dp, "name": "update_noise"}], 4.0, 10, 3)
    assert (late.signal, late.spread[0]) == (2.0, 1.0)
    assert probe.gain_for([dp], 99) == pytest.approx(200.0)
    assert probe.gain_for(plain, 99) == 1.0
    # of an update: one of n records has to fill the whole bound
    assert probe.gain_for([{**dp, "name": "update_noise"}], 99, records=7) == pytest.approx(1400.0)


def test_one_row_is_cut_at_half_of_what_a_match_gives():
    noise = probe.NoiseModel(2.0, np.array([0.7, 0.1]))
    for client in (0, 1):
        ratio = noise.log_ratio(np.array([0.99, 1.0, 1.01]), client)
        assert ratio[0] < 0 < ratio[2]
        assert ratio[1] == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("spread", [[0.5] * 10, [0.2, 0.4, 0.8] * 3, [0.0, 1.0, 1.0]])
def test_evidence_is_the_likelihood_ratio_of_rows_without_names(spread, rng):
    """By the densities themselves, and no cut on the largest row is right more often."""
    noise = probe.NoiseModel(1.0, np.array(spread))
    k, many = len(spread), 4000
    member = rng.random(many) < 0.5
    moved = rng.normal(size=(many, k)) * spread
    holder = rng.integers(0, k, many)
    moved[member, holder[member]] += 1.0
    order = rng.permuted(np.tile(np.arange(k), (many, 1)), axis=1)
    rows = np.take_along_axis(moved, order, axis=1)
    found = noise.evidence(rows.T)
    if 0.0 not in spread:

        def density(x, mean):
            return np.mean([stats.norm.pdf(x, mean, s) for s in spread], axis=0)

        by_hand = np.mean(density(rows, 1.0) / density(rows, 0.0), axis=1)
        np.testing.assert_allclose(found, np.log(by_hand), atol=1e-8)
    success = 0.5 * ((found > 0)[member].mean() + (found <= 0)[~member].mean())
    largest = rows.max(axis=1)
    cut = games.best_cut(largest, member)
    of_largest = 0.5 * ((largest > cut)[member].mean() + (largest <= cut)[~member].mean())
    assert success >= of_largest - 0.02
    assert success > 0.6


def test_rows_without_a_match_are_called_at_most_as_often_as_rows_with_one(rng):
    """Noise that drowns the signal: chance, not "always yes" as the largest row alone would say."""
    noise = probe.NoiseModel(1.0, np.full(10, 20.0))
    rows = rng.normal(size=(10, 4000)) * 20.0
    member = rng.random(4000) < 0.5
    rows[0, member] += 1.0
    called = noise.evidence(rows) > 0
    success = 0.5 * (called[member].mean() + (~called)[~member].mean())
    assert success == pytest.approx(0.5, abs=4.5 * 0.5 / np.sqrt(4000))
    assert 0.1 < called.mean() < 0.9
