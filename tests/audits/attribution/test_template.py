"""Template attribution: rows, contrasts, and the test on planted linear effects."""

import numpy as np
import pytest

from fedaudit.audits.attribution import template
from fedaudit.errors import UsageError
from fedaudit.stats import query_plans

K, KEYS, UNUSED = 10, 3, 60


def inner_of_clients(rng, *, rounds, holders=(), effect=0.0, persistent=0.5, forget=0.0):
    """-<template, update> (T, K, S + U): a part that stays, a part that is new, and marks.

    `forget`: how far benign clients spread on the owner's keys from round to round, beyond that.
    """
    shape = (K, KEYS + UNUSED)
    stays = rng.standard_normal(shape) * np.sqrt(persistent)
    new = rng.standard_normal((rounds, *shape)) * np.sqrt(1 - persistent)
    new[..., :KEYS] *= 1 + forget
    own = np.zeros(shape)
    for key, client in enumerate(holders):
        own[client, key] = effect
    strength = 1 + 0.3 * rng.standard_normal((rounds, 1, 1))
    return stays + new + strength * own


def rows_of(plan, inner):
    found = [
        template.round_rows(groups, groups @ each, KEYS)
        for groups, each in zip(plan.astype(float), inner, strict=True)
    ]
    assert all(f is not None for f in found)
    return found


def cycled(rounds=10, seed=0):
    return query_plans.cycled_partitions(K, 5, rounds, np.random.default_rng(seed))


def test_rows_are_the_deviation_from_the_mean_over_groups():
    """Naive twin: equal groups, centred, one dropped; the same row space and the same test."""
    groups = query_plans.random_partitions(12, 4, 1, np.random.default_rng(0))[0].astype(float)
    make, design = template.centred_rows(groups)
    centred = (groups - groups.mean(axis=0))[:-1]
    assert design.shape == (2, 12)
    assert np.allclose(design @ design.T, np.eye(2))
    assert np.allclose(design.sum(axis=1), 0)
    assert np.allclose(make @ groups, design)
    assert np.linalg.matrix_rank(np.concatenate([centred, design]), tol=1e-9) == 2


def test_rows_of_unequal_groups_drop_what_all_clients_share():
    groups = np.array([[1, 1, 1, 0, 0, 0, 0], [0, 0, 0, 1, 1, 1, 1.0], [1, 1, 1, 1, 1, 1, 1]])
    make, design = template.centred_rows(groups)
    assert len(design) == 1  # the total says nothing new
    assert np.allclose(make @ (groups @ np.full(7, 3.0)), 0)
    assert not len(template.centred_rows(np.ones((1, 7)))[0])


def test_the_contrast_takes_the_other_client_out_and_keeps_the_own_one():
    rng = np.random.default_rng(1)
    rows = rows_of(cycled(), inner_of_clients(rng, rounds=10))
    mixture = template.Mixture.of(rows, KEYS)
    for other in range(K):
        weights, fine = mixture.contrasts(other)
        at = weights @ mixture.design
        assert np.allclose(np.diag(at)[fine], 1)
        assert (at[fine, other] <= 1e-9).all()  # a mark only adds: it may lower, never raise
    assert fine.sum() == K - 1


def test_the_persistent_share_is_found():
    rng = np.random.default_rng(2)
    for share in (0.0, 0.4, 0.8):
        plan = query_plans.balanced_partitions(K, 5, 12, rng)
        found = [
            template.Mixture.of(
                rows_of(plan, inner_of_clients(rng, rounds=12, persistent=share)), KEYS
            ).persistent
            for _ in range(6)
        ]
        # rho weighs A A', whose diagonal blocks are 1 as those of what is new
        assert np.mean(found) == pytest.approx(share, abs=0.12)


def test_theory_the_distance_is_the_expected_one():
    """Mean z of one marked client, nobody taken out, over many draws."""
    rng = np.random.default_rng(3)
    plan, effect, seen, want = cycled(), 3.0, [], []
    for _ in range(150):
        inner = inner_of_clients(rng, rounds=10, persistent=0.5)
        inner[:, 4, 0] += effect
        rows = rows_of(plan, inner)
        values = np.concatenate([r.values for r in rows])
        mixture = template.Mixture.of(rows, KEYS)
        _, z = next(iter(template.distances(mixture, values, KEYS)))
        n = mixture.information
        scale = np.sqrt((inner[..., KEYS:] ** 2).mean())
        seen.append(z[4, 0])
        want.append(effect / scale * np.sqrt(n[4, 4]))  # nobody else holds the key
    assert np.mean(seen) == pytest.approx(np.mean(want), rel=0.08)


@pytest.mark.parametrize("forget", [0.0, 0.5])
def test_null_false_names_stay_below_the_level(forget):
    """Nobody holds the keys, or three do and the others forget them unequally."""
    rng = np.random.default_rng(4)
    wrong = 0
    for run in range(60):
        holders = (0, 1, 2) if forget else ()
        inner = inner_of_clients(
            rng, rounds=10, holders=holders, effect=4.0 * bool(forget), forget=forget
        )
        named = template.decide(rows_of(cycled(seed=run), inner), KEYS, 0.05).named.flagged
        wrong += bool(named[3:].any()) if forget else bool(named.any())
    assert wrong <= 6  # 5 % of 60 is 3


def test_power_holders_are_named_and_each_by_its_own_key():
    rng = np.random.default_rng(5)
    found = 0
    for run in range(20):
        inner = inner_of_clients(rng, rounds=10, holders=(2, 5, 7), effect=8.0)
        decision = template.decide(rows_of(cycled(seed=run), inner), KEYS, 0.05)
        found += int(decision.named.flagged[[2, 5, 7]].sum())
        named = np.flatnonzero(decision.named.flagged)
        assert all(decision.named.key[k] == (2, 5, 7).index(k) for k in named)
    assert found >= 50


def test_monotone_more_effect_and_more_rounds_never_say_less():
    means = []
    for effect in (0.0, 1.5, 3.0, 6.0):
        rng = np.random.default_rng(6)
        inner = inner_of_clients(rng, rounds=10, holders=(2, 5, 7), effect=effect)
        z = template.decide(rows_of(cycled(), inner), KEYS, 0.05).p_values.distance
        means.append(z[[2, 5, 7], [0, 1, 2]].mean())
    assert means == sorted(means)


def test_clients_that_are_never_apart_cannot_be_tested():
    rng = np.random.default_rng(7)
    plan = query_plans.fixed_groups(K, 5, 6, rng)
    inner = inner_of_clients(rng, rounds=6, holders=(1,), effect=50.0)
    found = template.decide(rows_of(plan, inner), KEYS, 0.05)
    assert not found.testable.any()
    assert not found.named.flagged.any()
    looks = template.sequential(rows_of(plan, inner), KEYS, 0.05)
    assert looks.looks == 0


def test_the_note_says_how_many_keys_the_level_asks_for():
    """Naive twin: the smallest p-value of a rank among so many keys, and among one fewer."""
    rng = np.random.default_rng(9)
    decision = template.decide(rows_of(cycled(), inner_of_clients(rng, rounds=10)), KEYS, 0.05)
    asked = int(template.tail_note(decision, KEYS, 0.05).split("; ")[1].split(" ")[0])
    assert 1 / (asked + 1) <= 0.05 / (K * KEYS) < 1 / asked
    assert "no such assumption" not in template.tail_note(decision, 1, 0.49)


def test_too_few_unused_keys_are_refused_with_their_number():
    rng = np.random.default_rng(8)
    few = inner_of_clients(rng, rounds=10)[..., : KEYS + 12]
    with pytest.raises(UsageError, match="at least 20"):
        template.decide(rows_of(cycled(), few), KEYS, 0.05)


def test_templates_are_centred_and_of_unit_length():
    rng = np.random.default_rng(9)
    raw = rng.standard_normal((KEYS + UNUSED, 40)).astype(np.float32) + 5
    unit = template.unit_templates(raw.copy(), KEYS)
    want = raw - raw[KEYS:].mean(axis=0)
    assert np.allclose(unit, want / np.linalg.norm(want, axis=1, keepdims=True), atol=1e-5)
    with pytest.raises(UsageError, match="template is zero"):
        template.unit_templates(np.ones((KEYS + UNUSED, 4), np.float32), KEYS)
