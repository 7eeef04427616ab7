"""The planted heads, their closed form, Theorem 3, and bad input."""

import itertools
import math

import numpy as np
import pytest
import torch

from fedaudit.audits.active_membership import attention, games, patterns, probe, theory
from fedaudit.audits.active_membership.adversary import (
    AttentionAdversary,
    logistic_cut,
    own_patterns,
)
from fedaudit.audits.active_membership.channel import Channel
from fedaudit.audits.active_membership.games import Universe
from fedaudit.audits.active_membership.planted import Memory
from fedaudit.errors import ConfigError, DataError, UsageError


def test_the_query_leaves_the_target_out_and_the_key_is_its_pseudo_inverse(rng):
    """[ActiveMembership] Eq. (8); pinv(W_Q) W_Q = I - v v^T / |v|^2."""
    v, u = rng.normal(size=6), rng.normal(size=6)
    task = attention.task(patterns.identity(3, 6), classes=4)
    row = attention.weights(v, u, beta=2.0, gamma=0.1, classes=4, rng=rng)
    assert len(row) == task.layout.width
    p = {k: x.double().numpy() for k, x in task.named(torch.from_numpy(row)).items()}
    for head, left_out in enumerate((v, u, v, u)):
        q, k = p["query"][head], p["key"][head]
        np.testing.assert_allclose(q @ left_out, 0.0, atol=1e-6)
        np.testing.assert_allclose(k, 2.0 * math.sqrt(5) * np.linalg.pinv(q).T, atol=1e-5)
        projection = np.eye(6) - np.outer(left_out, left_out) / (left_out @ left_out)
        np.testing.assert_allclose(np.linalg.pinv(q) @ q, projection, atol=1e-6)
        np.testing.assert_array_equal(p["value"][head], np.eye(6))
    eye, none = np.eye(6), np.zeros((6, 6))
    expected = np.block([[eye, -eye, none, none], [none, none, -eye, eye]])
    np.testing.assert_array_equal(p["out_weight"], expected)
    np.testing.assert_allclose(p["out_bias"], -0.1, rtol=1e-6)


def test_the_closed_form_is_what_the_planted_heads_compute(rng):
    """A unit is active if and only if the heads differ by more than gamma, and by how much."""
    embedding = patterns.identity(4, 7)
    x, v, u = rng.normal(size=(5, 28)), rng.normal(size=7), rng.normal(size=7)
    task = attention.task(embedding, classes=3)
    row = torch.from_numpy(attention.weights(v, u, beta=0.3, gamma=0.0, classes=3, rng=rng))
    p = task.named(row)
    shown = torch.from_numpy(x).float().view(5, 4, 7)
    heads = []
    for h in range(2):
        q, k = shown @ p["query"][h].T, shown @ p["key"][h].T
        heads.append(torch.softmax(q @ k.transpose(1, 2) / math.sqrt(6), dim=-1) @ shown)
    slow = (heads[0] - heads[1]).abs().amax(dim=(1, 2)).numpy()
    fast = attention.differences(embedding(x), v, u, 0.3)
    np.testing.assert_allclose(fast, slow, rtol=2e-4)


def near_orthogonal(rng, count=40, n=3, d=48):
    """Records of patterns that hardly align, one after another."""
    x = rng.normal(size=(count, n, d))
    return (x / np.linalg.norm(x, axis=2, keepdims=True)).reshape(count, -1)


def test_games_through_the_engine_are_decided_alike(play, rng):
    universe = Universe.of(near_orthogonal(rng))
    adversary = AttentionAdversary.prepare(universe, patterns.identity(3, 48), 5, rng, simulated=60)
    played = games.challenge(len(adversary.universe), 5, 40, rng)
    trace, shown = play(adversary, played, adversary.universe.values, 2)
    answer = probe.read_answer(trace.seen_by("server"), adversary.answer_tensor)
    engine = (answer.rows != 0).any(axis=1)
    closed = adversary.answers(shown, played.target) > adversary.cut
    np.testing.assert_array_equal(engine, closed)
    np.testing.assert_array_equal(engine, played.member)  # power: unprotected, and won


def test_patches_of_images_keep_their_pixels(rng):
    images = rng.random((2, 3, 4, 6))
    cut = patterns.cut_record((3, 4, 6), 2)
    assert cut.shape == (6, 12)
    flat = images.reshape(2, -1)
    np.testing.assert_array_equal(flat[:, cut[0]].reshape(2, 3, 2, 2), images[:, :, :2, :2])
    np.testing.assert_array_equal(flat[:, cut[5]].reshape(2, 3, 2, 2), images[:, :, 2:, 4:])


@pytest.mark.parametrize("kind", ["linear", "fourier"])
def test_the_module_embeds_as_the_closed_form_does(rng, kind):
    x = rng.random((30, 16))
    if kind == "linear":
        embedding = patterns.linear((1, 4, 4), 2, 9, rng)
    else:
        embedding = patterns.fourier((1, 4, 4), 2, 9, x, rng)
    task = attention.task(embedding, classes=3)
    inside = task.module.patterns(torch.from_numpy(x).float().view(30, 1, 4, 4))
    # in single precision every factor, product and partial sum is rounded, in any order
    added = embedding.position if embedding.phase is None else embedding.phase
    terms = np.abs(x[:, embedding.cut]) @ np.abs(embedding.map) + np.abs(added)
    rounded = (embedding.cut.shape[1] + 4) * np.finfo(np.float32).eps * terms.max()
    np.testing.assert_allclose(inside.numpy(), embedding(x), rtol=0, atol=rounded)
    assert not any("map" in name for name in task.layout.names)  # it does not travel


def test_fourier_features_are_nearly_orthogonal_where_linear_ones_are_not(rng):
    """Why the server would choose them: patches of positive pixels all point the same way."""
    x = rng.random((60, 16))
    kinds = (
        patterns.linear((16,), 4, 64, rng),
        patterns.fourier((16,), 4, 64, x, rng, bandwidth=0.1),
    )
    aligned = []
    for embedding in kinds:
        p = embedding(x)[:, 0]
        p = p / np.linalg.norm(p, axis=1, keepdims=True)
        aligned.append(np.abs((p @ p.T)[np.triu_indices(60, 1)]).mean())
    assert aligned[0] > 0.8
    assert aligned[1] < 0.2


def test_own_patterns_are_those_that_stand_nowhere_else():
    cut = np.array([[[1.0], [2.0]], [[2.0], [3.0]], [[1.0], [5.0]]])
    assert own_patterns(cut, by_place=False) == [[], [1], [1]]
    assert own_patterns(cut, by_place=True) == [[1], [0, 1], [1]]


# -- Theorem 3 ------------------------------------------------------------------------------------


def test_separation_and_norms_by_definition(rng):
    clean = rng.normal(size=(3, 4, 5))
    shown = clean + 0.1 * rng.normal(size=clean.shape)
    m = attention.pattern_extremes(clean, shown)
    slow = min(
        x[i] @ x[i] - max(x[i] @ x[j] for j in range(4) if j != i) for x in shown for i in range(4)
    )
    assert m.separation == pytest.approx(slow)
    assert m.norm == pytest.approx(np.linalg.norm(clean, axis=2).max())
    assert m.noise == pytest.approx(np.linalg.norm(shown - clean, axis=2).max())
    assert np.linalg.norm(shown, axis=2).max() <= m.bound == m.norm + m.noise
    assert m.records == 3
    assert m.spread == pytest.approx(
        max(np.linalg.norm(x[i] - x.mean(axis=0)) for x in shown for i in range(4))
    )


def one_hot(rng, count, n, d):
    chosen = np.argsort(rng.random((count, d)), axis=1)[:, :n]
    return np.eye(d)[chosen]


def test_one_hot_patterns_have_a_floor_and_games_respect_it(rng):
    """[ActiveMembership] Remark 4: orthogonal patterns, a floor near 1, success above it."""
    n, d = 3, 60
    x = one_hot(rng, 200, n, d - 1)
    x = np.concatenate([x, np.zeros((200, n, 1))], axis=2)  # a token that nobody uses
    unused = attention.least_used_direction(x)
    np.testing.assert_allclose(np.abs(unused), np.eye(d)[-1], atol=1e-12)
    found = attention.floor(x, x, 10.0, records=1, rng=rng, other=unused[None])
    assert found.near_target == pytest.approx(1 - 1 / (d - 1), abs=0.01)  # the target itself aligns
    assert found.near_other == 1.0
    assert found.in_box == 0.0
    assert 0.85 < found.low <= found.value
    # as published, with a random direction, one-hot patterns have no floor at this size
    assert attention.floor(x, x, 10.0, records=1, rng=rng).value < 0
    # games at the theorem's own beta and gamma, one record of a client, v a pattern or not
    won = 0
    for game in range(300):
        record, member = x[game % 200][None], game % 2 == 0
        outside = np.flatnonzero(record[0, :, :-1].sum(axis=0) == 0)
        v = record[0, 1] if member else np.eye(d)[rng.choice(outside)]
        apart = attention.differences(record, v, unused, found.beta)[0]
        won += (apart > found.gamma) == member
    assert 2 * won / 300 - 1 >= found.low


def test_more_noise_never_raises_the_floor(rng):
    """Monotone: the cube grows with the noise, the projections too."""
    x = np.concatenate([one_hot(rng, 100, 4, 40), np.zeros((100, 4, 1))], axis=2)
    unused = np.eye(41)[-1:]
    floors = []
    for size in (0.0, 0.01, 0.03, 0.1):
        r = rng.normal(size=x.shape)
        r *= size / np.linalg.norm(r, axis=2, keepdims=True)
        floors.append(attention.floor(x, x + r, 12.0, records=1, rng=rng, other=unused).value)
    assert all(a >= b - 0.02 for a, b in itertools.pairwise(floors))
    assert floors[0] > 0.5 > floors[-1]


def test_a_beta_below_the_theorem_is_refused_with_one_that_would_do(rng):
    x = one_hot(rng, 50, 4, 20)
    with pytest.raises(UsageError, match="too small") as caught:
        attention.floor(x, x, 0.5, records=1, rng=rng)
    enough = float(caught.value.remedy.split("=")[1].split()[0])
    attention.floor(x, x, enough, records=1, rng=rng)
    assert enough == pytest.approx(theory.smallest_beta(1.0, 4, 1.0), rel=1e-4)


def test_gamma_and_beta_from_the_theorem(rng):
    universe = Universe.of(np.eye(30).reshape(10, -1))  # no two records share a token
    made = AttentionAdversary.prepare(
        universe, patterns.identity(3, 30), 1, rng, threshold="theory", beta=10.0
    )
    assert made.gamma == pytest.approx(2 * theory.retrieval_error(10.0, 1.0, 3, 1.0))
    with pytest.raises(UsageError, match="too small"):
        AttentionAdversary.prepare(
            universe, patterns.identity(3, 30), 1, rng, threshold="theory", beta=0.1
        )
    found = AttentionAdversary.prepare(
        universe, patterns.identity(3, 30), 1, rng, threshold="theory"
    )
    assert found.beta == pytest.approx(theory.smallest_beta(1.0, 3, 1.0), rel=1e-3)


@pytest.mark.parametrize("size", [0.001, 0.01, 0.02])
def test_the_theorems_own_beta_keeps_its_floor(size):
    """Beta and the floor rest on one sample, and a margin covers what other draws add."""
    rng = np.random.default_rng(0)
    n, d = 3, 48
    x = np.zeros((200, n * d))
    for row in x:
        for j, c in enumerate(rng.choice(d - 1, n, replace=False)):
            row[j * d + c] = 1 + 0.01 * rng.random()
    channel = Channel(name="gaussian", perturb=lambda v, r: v + r.normal(0, size, v.shape))
    refused = 0
    for seed in range(12):
        g = np.random.default_rng(seed)
        universe = Universe.of(x, channel)
        made = AttentionAdversary.prepare(
            universe, patterns.identity(n, d), 1, g, threshold="theory"
        )
        own = attention.floor(
            *made.sampled, made.beta, records=1, rng=g, other=made.other, measured=made.measured
        )
        assert own.gamma == pytest.approx(made.gamma)
        assert own.sampled == 200
        clean, shown = made.sample(g, 1 << 22)
        try:
            attention.floor(clean, shown, made.beta, records=1, rng=g, other=made.other)
        except UsageError:
            refused += 1
    assert refused <= 2  # without the margin about half of them


def test_tokens_become_rows_of_their_own_and_the_module_sees_the_same(rng):
    x = rng.integers(0, 9, (5, 4)).astype(np.float64)
    for additive in (False, True):
        made = patterns.tokens(4, 9, 16, rng, additive=additive)
        assert made.tells_places_apart
        seen = made(x)
        slow = [[made.table[j, int(t)] for j, t in enumerate(row)] for row in x]
        np.testing.assert_array_equal(seen, slow)
        by_torch = Memory(made, 2).patterns(torch.from_numpy(x).float())
        np.testing.assert_allclose(by_torch, seen, atol=1e-6)
    same = patterns.from_table(np.broadcast_to(np.eye(9, 10), (4, 9, 10)))
    assert not same.tells_places_apart  # one-hot rows do not say where a token stands
    with pytest.raises(ConfigError, match="too large"):
        patterns.tokens(1000, 30_000, 64, rng)


def test_a_logistic_fit_is_undecided_between_two_groups(rng):
    scores = np.concatenate([rng.normal(0, 0.1, 300), rng.normal(1, 0.1, 300)])
    member = np.arange(600) >= 300
    assert logistic_cut(scores, member) == pytest.approx(0.5, abs=0.1)
    assert logistic_cut(-scores, member) == (-scores).max()  # the wrong way round: say no


# -- bad input ------------------------------------------------------------------------------------


def test_more_patterns_than_dimensions_is_refused(rng):
    with pytest.raises(ConfigError, match="more patterns than dimensions") as caught:
        patterns.linear((8, 8), 2, 9, rng)
    assert "16" in caught.value.remedy
    with pytest.raises(DataError, match="several patterns"):
        patterns.identity(1, 5)
    with pytest.raises(ConfigError, match="does not fit into so few"):
        patterns.linear((8, 8), 4, 8, rng)
    with pytest.raises(ConfigError, match="cut into patches") as caught:
        patterns.cut_record((1, 8, 8), 3)
    assert caught.value.remedy in ("patch = 4", "patch = 2")
    with pytest.raises(ConfigError, match="divisor of 10"):
        patterns.cut_record((10,), 4)


def test_targets_without_a_direction_are_refused(rng):
    for v in (np.zeros(4), np.array([1.0, math.nan, 0.0, 0.0])):
        with pytest.raises(DataError, match="no direction"):
            attention.orthogonal_rows(v, rng)
    with pytest.raises(UsageError, match="beta or gamma"):
        attention.weights(np.ones(4), np.ones(4), beta=0.0, gamma=1.0, rng=rng)


def test_patches_that_are_all_alike_are_refused(rng):
    with pytest.raises(DataError, match="all patches are alike"):
        patterns.fourier((8,), 4, 8, np.zeros((5, 8)), rng)
