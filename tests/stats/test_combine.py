import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats
from statsmodels.stats.multitest import multipletests

from fedaudit.errors import UsageError
from fedaudit.stats.combine import fisher, holm, stouffer

p_lists = st.lists(st.floats(1e-12, 1.0), min_size=1, max_size=12)


@settings(deadline=None, max_examples=50)
@given(p_lists)
def test_fisher_equals_scipy(p):
    found = fisher(p)
    statistic, p_value = scipy_stats.combine_pvalues(p, method="fisher")
    assert found.statistic == pytest.approx(statistic, abs=1e-12)
    assert found.p_value == pytest.approx(p_value, rel=1e-9)
    assert found.tests == len(p)


@settings(deadline=None, max_examples=50)
@given(p_lists)
def test_holm_equals_statsmodels(p):
    np.testing.assert_allclose(holm(p), multipletests(p, method="holm")[1], rtol=1e-12)


def test_stouffer_equals_scipy():
    z = np.array([0.3, 2.0, -1.0, 1.5])
    statistic, _ = scipy_stats.combine_pvalues(scipy_stats.norm.sf(z), method="stouffer")
    assert stouffer(z) == pytest.approx(statistic)


def test_stouffer_counts_the_tests_that_were_made():
    z = np.random.default_rng(0).normal(size=(9, 3))
    assert stouffer(z) == pytest.approx(z.sum(axis=0) / 3)
    z[5:, 1] = np.nan
    z[:, 2] = np.nan
    found = stouffer(z)
    assert found[1] == pytest.approx(z[:5, 1].sum() / np.sqrt(5))
    assert np.isnan(found[2])


def test_fisher_z_score_is_the_inverse_normal_of_its_p_value():
    found = fisher([0.01, 0.02, 0.5])
    assert scipy_stats.norm.sf(found.z_score) == pytest.approx(found.p_value)
    strong = fisher([1e-300] * 3)
    assert math.isfinite(strong.z_score)
    assert strong.z_score > 35


def test_combined_p_values_are_uniform_under_the_null():
    rng = np.random.default_rng(1)
    p = np.array([fisher(rng.uniform(size=5)).p_value for _ in range(800)])
    q = scipy_stats.norm.sf(stouffer(rng.normal(size=(5, 800))))
    for sample in (p, q):
        assert scipy_stats.kstest(sample, "uniform").pvalue > 1e-3


def test_holm_keeps_the_order_given():
    assert holm([0.04, 0.01, 0.9]).tolist() == pytest.approx([0.08, 0.03, 0.9])


@pytest.mark.parametrize("p", [[0.0], [1.1], [-0.1], [], [float("nan")], [[0.1]]])
def test_impossible_p_values_are_refused(p):
    for combine in (fisher, holm):
        with pytest.raises(UsageError):
            combine(p)
