"""Noise that is known to be in an upload, against what was measured."""

import numpy as np
import pytest

from fedaudit.knowledge import (
    noise_of,
)
from fedaudit.setup.prepare import build
from fedaudit.trace import SERVER, MemoryTruth, Recorder, Trace


def test_no_declared_noise_is_none(small):
    config, trace, truth, _ = small
    assert noise_of(trace, truth, config) is None


@pytest.mark.parametrize("participation", [1.0, 0.4])
def test_noise_of_uploads_as_measured(participation, played):
    part = {"clients": 5, "rounds": 2, "participation": participation, "weighting": "size"}
    noisy = {"update_noise": {"noise_multiplier": 2.0, "clip": 0.5}}
    config, trace, truth = played(federation=part, protections=noisy)
    noise = noise_of(trace, truth, config)
    updates = trace.seen_by(SERVER).updates(1)
    assert len(updates.senders) == max(2, round(5 * participation))
    share = updates.weights / updates.weights.sum()
    # clipped to 0.5, each number of an upload is noise of deviation 1 but for a trace of signal
    for name, p, row in zip(updates.senders, share, updates.rows, strict=True):
        assert noise.own[name] == pytest.approx(p * row.std(), rel=0.1)
    assert noise.aggregate == pytest.approx((share @ updates.rows).std(), rel=0.1)
    assert "update_noise" in noise.rule


@pytest.mark.parametrize("hidden", [False, True])
def test_noise_of_every_round_goes_by_its_own_weights(hidden, played):
    """Others take part in every round, with other shares in the mean."""
    part = {"clients": 8, "rounds": 5, "participation": 0.4, "weighting": "size"}
    noisy = {"update_noise": {"noise_multiplier": 2.0, "clip": 0.5}}
    noisy |= {"shuffle": {}} if hidden else {}
    mixed = {"kind": "dirichlet", "alpha": 0.1}
    config, trace, truth = played(seed=4, federation=part, protections=noisy, partition=mixed)
    noise = noise_of(trace, truth, config)
    stated, view = [], trace.seen_by(SERVER)
    for number in view.rounds:
        updates = view.updates(number)
        sigma, own = noise.in_round(updates.senders, updates.weights)
        share = updates.weights / updates.weights.sum()
        np.testing.assert_allclose(own, share * updates.rows.std(axis=1), rtol=0.1)
        assert sigma == pytest.approx((share @ updates.rows).std(), rel=0.1)
        stated.append(sigma)
    if not hidden:
        assert max(stated) > 1.05 * min(stated)
    assert noise.clip == 0.5


def test_noise_on_the_sum_is_divided_by_those_who_took_part(played):
    noisy = {"central_dp": {"noise_multiplier": 3.0, "clip": 0.5}}
    config, trace, truth = played(protections=noisy)
    noise = noise_of(trace, truth, config)
    for count in (2, 5):
        sigma, own = noise.in_round(["client-00"] * count, np.ones(count))
        assert sigma == pytest.approx(1.5 / count)
        assert not own.any()


@pytest.mark.parametrize("participation", [1.0, 0.4])
def test_noise_of_an_honest_server_as_measured(participation, played):
    part = {"clients": 5, "rounds": 1, "participation": participation}
    noisy = {"central_dp": {"noise_multiplier": 3.0, "clip": 0.5}}
    config, trace, truth = played(federation=part, protections=noisy)
    noise = noise_of(trace, truth, config)
    view = trace.seen_by(SERVER)
    first = next(i for i, m in view.indexed(1) if m.kind == "model")
    added = view.released() - view.payload(1, first) - view.updates(1).rows.mean(0)
    assert noise.aggregate == pytest.approx(float(added.std()), rel=0.1)
    assert not noise.own


def test_noise_of_training_as_measured(played):
    """DP-SGD with much noise: updates are sums of independent steps, to first order."""
    noisy = {"dp_sgd": {"noise_multiplier": [4.0, 8.0, 16.0, 4.0, 8.0], "clip": 0.01}}
    config, trace, truth = played(protections=noisy, training={"epochs": 2, "learning_rate": 0.05})
    noise = noise_of(trace, truth, config)
    updates = trace.seen_by(SERVER).updates(1)
    for name, row in zip(updates.senders, updates.rows, strict=True):
        assert noise.own[name] == pytest.approx(row.std() / 5, rel=0.15)
    assert noise.aggregate == pytest.approx(updates.rows.mean(0).std(), rel=0.15)


@pytest.mark.parametrize("known", [True, False])
def test_noise_whose_size_cannot_be_told_is_said_to_be_there(known, played):
    adam = {"optimizer": "adam", "learning_rate": 0.01}
    config, trace, truth = played(protections={"dp_sgd": {}}, training=adam)
    noise = noise_of(trace, truth, config if known else None)
    assert not noise.complete
    assert "unknown size" in noise.rule


def in_half_precision(config, folder):
    """The trace of a config in float16."""
    federation, facts = build(config)
    about = {"layouts": federation.layouts(), "federation": federation.describe()}
    federation.run(Recorder(folder, dtype="float16", **about), MemoryTruth(facts))
    return Trace.open(folder)


@pytest.mark.parametrize("rate", [1.0, 0.5])
@pytest.mark.parametrize("hidden", [False, True])
def test_rounding_of_a_trace_in_half_precision_as_measured(tmp_path, rate, hidden, played):
    """The step of the model minus the sum of the updates is nothing but rounding."""
    sections = {
        "federation": {"clients": 5, "rounds": 2, "weighting": "size", "server_learning_rate": rate}
    }
    config, exact, _ = played(**sections)
    if hidden:
        config, _, _ = played(**sections, protections={"shuffle": {}})
    trace = in_half_precision(config, tmp_path / "half")
    noise = noise_of(trace, None, config)
    assert noise.complete
    assert noise.rule == "quantisation: recorded in float16, rounding step / sqrt(12)"
    view, full = trace.seen_by(SERVER), exact.seen_by(SERVER)
    updates = view.updates(1)
    share = updates.weights / updates.weights.sum()
    sent = [view.received(n, "client-00", before=1).astype(np.float64) for n in (1, 2)]
    left = (sent[1] - sent[0]) / rate - share @ updates.rows.astype(np.float64)
    assert noise.aggregate == pytest.approx(float(left.std()), rel=0.1)
    if hidden:
        assert [*noise.own] == trace.manifest.federation["clients"]
        return
    # a few large numbers bear most of it: all clients together, and a wide margin
    off = share * np.linalg.norm(updates.rows - full.updates(1).rows, axis=1)
    stated = [noise.own[name] for name in updates.senders]
    width = trace.layout.width
    assert np.linalg.norm(stated) == pytest.approx(np.linalg.norm(off) / width**0.5, rel=0.25)
    assert noise_of(exact, None, config) is None


def test_half_precision_of_a_trace_that_names_no_clients(tmp_path):
    """Whole models from other software: every upload is read against the model that was sent."""
    rng = np.random.default_rng(0)
    start = rng.normal(size=2000).astype(np.float32)
    recorder = Recorder(tmp_path / "trace", like={"w": start}, dtype="float16")
    with recorder.round() as wire:
        for name in ("A", "B"):
            wire.send("model", SERVER, name, {"w": start})
        ups = {n: start + rng.normal(size=2000).astype(np.float32) for n in ("A", "B")}
        for name, up in ups.items():
            wire.send("model", name, SERVER, {"w": up})
    trace = Trace.open(tmp_path / "trace")
    noise = noise_of(trace)
    rows = trace.seen_by(SERVER).updates(1).rows
    for name, row in zip(("A", "B"), rows, strict=True):
        off = (row - (ups[name] - start)).std()
        assert noise.own[name] == pytest.approx(float(off) / 2, rel=0.1)
    assert noise.aggregate > np.sqrt(sum(v**2 for v in noise.own.values()))


@pytest.mark.parametrize("weighting", ["equal", "size"])
def test_rounding_of_a_secure_sum_as_measured(weighting, played):
    """A ring of few steps, so that rounding stands out of single precision."""
    part = {"clients": 5, "rounds": 1, "weighting": weighting}
    ring = {"secure_aggregation": {"threshold": 3, "bound": 1e5}}
    config, trace, truth = played(federation=part, protections=ring)
    noise = noise_of(trace, truth, config)
    _, plain, _ = played(federation=part)
    ended = [t.seen_by(SERVER).released().astype(np.float64) for t in (trace, plain)]
    # what no client moved at all is not rounded either
    moving = (plain.seen_by(SERVER).updates(1).rows != 0).all(axis=0)
    assert moving.sum() > 300
    off = float((ended[0] - ended[1])[moving].std())
    assert noise.aggregate == pytest.approx(off, rel=0.15)
    assert noise.rule.startswith("quantisation: secure_aggregation")
    assert noise.complete
    # other software may not say how fine its ring is
    trace.manifest.declared[0].pop("bound")
    assert noise_of(trace, truth, config) is None
