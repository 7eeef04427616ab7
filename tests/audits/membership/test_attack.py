"""LiRA and RMIA on arrays: slow twins, and the closed form for the mean of Gaussians."""

import math

import numpy as np
import pytest
from scipy.stats import norm

from fedaudit.audits.membership import attack
from fedaudit.stats.roc import plain_auc


def twin_lira(target, shadows, inside):
    out = np.empty(target.shape)
    for i in np.ndindex(target.shape):
        column, coin = shadows[(slice(None), *i)], inside[(slice(None), *i)]
        a, b = column[coin], column[~coin]
        with_it = norm.logpdf(target[i], a.mean(), a.std(ddof=1))
        out[i] = with_it - norm.logpdf(target[i], b.mean(), b.std(ddof=1))
    return out


def coins(rng, shadows, *shape):
    """Half of the shadows have each record."""
    return np.argsort(rng.random((shadows, *shape)), axis=0) < shadows // 2


def test_naive_lira_is_a_ratio_of_two_normal_densities():
    rng = np.random.default_rng(0)
    inside = coins(rng, 80, 2, 3)
    shadows = rng.normal(size=inside.shape) + inside
    target = rng.normal(size=(2, 3))
    np.testing.assert_allclose(
        attack.lira(target, shadows, inside), twin_lira(target, shadows, inside)
    )


def test_few_shadows_share_one_spread():
    rng = np.random.default_rng(1)
    inside = coins(rng, 20, 5)
    shadows = rng.normal(size=inside.shape) + 2.0 * inside
    found = attack.lira(shadows[0], shadows, inside)
    spread = {
        side: math.sqrt(
            sum(((c := shadows[inside[:, i] == side, i]) - c.mean()) @ (c - c.mean())
                for i in range(5)) / (5 * 9)
        )
        for side in (True, False)
    }  # fmt: skip
    for i in range(5):
        own = [
            norm.logpdf(shadows[0, i], shadows[inside[:, i] == side, i].mean(), spread[side])
            for side in (True, False)
        ]
        assert found[i] == pytest.approx(own[0] - own[1])


def test_a_record_without_shadows_on_both_sides_says_nothing():
    shadows = np.random.default_rng(2).normal(size=(10, 2))
    inside = np.zeros((10, 2), bool)
    inside[:5, 0] = True
    assert [*np.isnan(attack.lira(shadows[0], shadows, inside))] == [False, True]
    assert [*np.isnan(attack.lira(shadows[0], shadows, None))] == [False, False]


def test_naive_rmia_compares_with_one_population_record_after_the_other():
    rng = np.random.default_rng(3)
    x, z = -rng.exponential(size=(7, 4)), -rng.exponential(size=(7, 9))
    found = attack.rmia(x[0], x[1:], z[0], z[1:])
    for i in range(4):
        ratio = math.exp(x[0, i]) / np.exp(x[1:, i]).mean()
        beaten = [ratio / (math.exp(z[0, j]) / np.exp(z[1:, j]).mean()) >= 1 for j in range(9)]
        assert found[i] == pytest.approx(np.mean(beaten))
    offline = attack.rmia(x[0], x[1:], z[0], z[1:], offline_a=0.3)
    ratio = math.exp(x[0, 0]) / (0.5 * (1.3 * np.exp(x[1:, 0]).mean() + 0.7))
    beaten = [ratio >= math.exp(z[0, j]) / np.exp(z[1:, j]).mean() for j in range(9)]
    assert offline[0] == pytest.approx(np.mean(beaten))


@pytest.mark.parametrize("offline_a", [None, 0.3, 0.9])
def test_rmia_is_the_formula_of_privacy_meter(offline_a):
    """`(outer(p_x / mean_x, mean_z / p_z) > gamma).mean(1)` with gamma 1; offline the mean of x is
    that of models without it, (1 + a) / 2 mean + (1 - a) / 2. Every second shadow trained on z."""
    rng = np.random.default_rng(2)
    x, shadows_x = rng.random(30), rng.random((8, 30))
    z, shadows_z = rng.random(400), rng.random((8, 400))
    mean_x, mean_z = shadows_x.mean(axis=0), shadows_z.mean(axis=0)
    if offline_a is not None:
        mean_x = (1 + offline_a) / 2 * mean_x + (1 - offline_a) / 2
    theirs = (np.outer(x / mean_x, 1 / (z / mean_z)) > 1.0).mean(axis=1)
    ours = attack.rmia(
        np.log(x), np.log(shadows_x), np.log(z), np.log(shadows_z), offline_a=offline_a
    )
    np.testing.assert_allclose(ours, theirs, atol=1e-12)


def test_rounds_without_evidence_do_not_count():
    evidence = np.array([[[1.0, np.nan]], [[2.0, np.nan]], [[np.nan, np.nan]]])
    np.testing.assert_array_equal(attack.summed(evidence), [[3.0, np.nan]])


# -- the mean of Gaussians -------------------------------------------------------------------------


def released_means(rng, pool, models, size):
    """Means (M, d) of `size` records, random halves of the pool (n, d), and who is in (M, n)."""
    inside = np.argsort(rng.random((models, len(pool))), axis=1) < size
    return inside @ pool / size, inside


@pytest.mark.parametrize("dimensions", [20, 200])
def test_theory_lira_reaches_the_closed_form_for_the_mean_of_gaussians(dimensions):
    """With half of the pool in each mean, x moves <mean, x> by |x|^2 / size, and the others'
    spread is |x| / sqrt(2 size): a pool of 2 size is drawn without replacement."""
    rng, size = np.random.default_rng(4), 100
    pool = rng.normal(size=(2 * size, dimensions))
    means, inside = released_means(rng, pool, 400, size)
    values = means @ pool.T
    aucs = []
    for target in range(40):
        others = np.delete(np.arange(len(values)), target)
        found = attack.lira(values[target], values[others], inside[others])
        aucs.append(plain_auc(found, inside[target]))
    # |x| is about sqrt(d); the AUC of N(0, 1) against N(s, 1) is Phi(s / sqrt 2)
    shift = math.sqrt(2.0 * dimensions / size)
    assert np.mean(aucs) == pytest.approx(0.5 * math.erfc(-shift / 2.0), abs=0.03)


def test_null_a_mean_of_other_records_tells_nothing():
    rng, size = np.random.default_rng(5), 100
    pool = rng.normal(size=(2 * size, 50))
    means, inside = released_means(rng, pool, 200, size)
    fresh = rng.normal(size=(40, size, 50)).mean(axis=1)  # these trained on nobody asked about
    labels = np.arange(2 * size) < size
    aucs = [
        plain_auc(attack.lira(t @ pool.T, means @ pool.T, inside), rng.permutation(labels))
        for t in fresh
    ]
    assert np.mean(aucs) == pytest.approx(0.5, abs=0.02)
