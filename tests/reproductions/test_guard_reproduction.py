"""Honest runs and disguises behind the error rates of `fedaudit guard`."""

import json

import numpy as np
import pytest
import torch

from fedaudit.protections.guard import Calibration
from fedaudit.protections.guard.guard import UNITS
from fedaudit.tasks import models
from reproductions.guard import honest, planted, run


def test_a_run_is_the_same_again_and_its_largest_is_kept():
    one, again = (honest.run(3, model="mlp", rounds=3) for _ in range(2))
    assert one.kind == again.kind
    assert len(one.states) == 3
    for a, b in zip(one.states, again.states, strict=True):
        assert all(np.array_equal(a[k], b[k]) for k in a)
    assert any((one.states[0][k] != one.states[2][k]).any() for k in one.states[0])
    each = [part.largest for part in honest.parts(one)]
    top = honest.largest(again).largest
    assert "rewritten" not in each[0]  # there was no model before the first
    assert set(top) <= set(UNITS)
    for name, value in top.items():
        assert value == max(v[name] for v in each if name in v)


def test_a_pruned_run_sends_what_is_pruned():
    one = honest.run(5, model="mlp", condition="pruned", rounds=2)
    for state in one.states:
        zeros = np.mean(state["1.weight"] == 0)
        assert zeros == pytest.approx(0.5, abs=0.02) or zeros == pytest.approx(0.8, abs=0.02)


def test_order_and_scale_keep_what_a_planted_model_computes():
    rng = np.random.default_rng(0)
    x = rng.random((20, 12)).astype(np.float32)
    state = planted.fully_connected(rng, x, hidden=48)

    def logits(own):
        module = models.mlp(12, (48, 64), 10)
        module.load_state_dict({k: torch.from_numpy(np.asarray(v)) for k, v in own.items()})
        return module(torch.from_numpy(x)).detach().numpy()

    for disguise in (planted.reorder_units, planted.rescale_units, planted.shrink_units):
        other = disguise(state) if disguise is planted.shrink_units else disguise(state, rng)
        assert not np.array_equal(other["1.weight"], state["1.weight"])
        np.testing.assert_allclose(logits(other), logits(state), atol=1e-4)


def shrunk(state, rng):
    return planted.shrink_heads(state)


@pytest.mark.parametrize("disguise", [planted.reorder_heads, planted.rescale_heads, shrunk, None])
def test_heads_compute_the_same_in_disguise(disguise):
    """Attention by hand: order, scale and bases of the heads do not change the output layer."""
    d = 12
    plain = planted.memory(np.random.default_rng(1), d)
    rng = np.random.default_rng(2)
    if disguise is None:  # the same draws up to the rotation
        other = planted.memory(np.random.default_rng(1), d, rotated=True)
    else:
        other = disguise(plain, rng)
    patterns = rng.normal(size=(6, d))

    def output(own):
        heads = []
        for q, k, v in zip(own["first.query"], own["first.key"], own["first.value"], strict=True):
            scores = (patterns @ q.T) @ (patterns @ k.T).T / np.sqrt(d - 1)
            weights = np.exp(scores - scores.max(axis=1, keepdims=True))
            weights /= weights.sum(axis=1, keepdims=True)
            heads.append(weights @ patterns @ v.T)
        joined = np.concatenate(heads, axis=1)
        out = joined @ own["first.out_weight"].T + own["first.out_bias"]
        return np.sort(out, axis=1)  # units may stand in another order

    np.testing.assert_allclose(output(other), output(plain), atol=1e-3)


def test_whole_numbers_are_the_same_numbers():
    state = planted.fully_connected(
        np.random.default_rng(0), np.random.default_rng(1).random((9, 8))
    )
    other = planted.whole_numbers(state)
    assert {k for k in state if other[k].dtype == np.int64} == {"1.weight", "3.weight", "5.weight"}
    assert all(np.array_equal(state[k], other[k]) for k in state)


def test_noise_has_its_share_of_the_norm():
    rng = np.random.default_rng(0)
    state = {"w": rng.normal(size=(200, 200)).astype(np.float32)}
    apart = planted.noisy(state, 0.1, rng)["w"] - state["w"]
    assert np.linalg.norm(apart) / np.linalg.norm(state["w"]) == pytest.approx(0.1, rel=0.02)


def test_stored_results_belong_to_the_shipped_table():
    results = json.loads(run.RESULTS.read_text(encoding="utf-8"))
    table = Calibration.read()
    assert results["runs_ranked"] == len(table.runs) == run.RANKED
    assert {r["disguise"] for r in results["detection"] if r["adversary"] == "attention"} == set(
        planted.GROUPS["attention"]
    )
    for row in results["detection"]:
        f = row["found"]
        assert f["low"] <= f["value"] <= f["high"]
