"""LiRA and RMIA on arrays: slow twins, and the closed form for the mean of Gaussians."""

import math

import numpy as np
import pytest
from scipy.stats import norm

from fedaudit.audits.membership import attack, theory
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


# -- ceilings --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 0.0), (0.5, 1e-5), (3.0, 0.01), (9.0, 1e-5)])
def test_ceilings_are_those_of_the_trade_off_curve(epsilon, delta):
    rates = np.linspace(0.0, 1.0, 20_001)
    curve = np.array([theory.largest_rate(epsilon, delta, f) for f in rates])
    area = float(np.sum(0.5 * (curve[1:] + curve[:-1]) * np.diff(rates)))
    assert theory.largest_auc(epsilon, delta) == pytest.approx(area, abs=1e-4)
    assert theory.largest_advantage(epsilon, delta) == pytest.approx(
        float((curve - rates).max()), abs=1e-4
    )


def test_no_guarantee_allows_everything():
    assert theory.largest_auc(900.0, 0.0) == pytest.approx(1.0)
    assert theory.largest_rate(900.0, 1e-5, 0.01) == 1.0
