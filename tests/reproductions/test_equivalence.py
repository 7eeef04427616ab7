import numpy as np
import pytest
from scipy import stats as scipy_stats
from statsmodels.stats.weightstats import ttost_ind, ttost_paired

from fedaudit.errors import UsageError
from fedaudit.results import Underpowered
from reproductions.topology.equivalence import paired, two_sample


def _naive_paired(a, b, margin):
    d = a - b
    error = d.std(ddof=1) / np.sqrt(len(d))
    return max(
        scipy_stats.t.sf((d.mean() + margin) / error, len(d) - 1),
        scipy_stats.t.cdf((d.mean() - margin) / error, len(d) - 1),
    )


@pytest.fixture
def samples():
    rng = np.random.default_rng(0)
    a = rng.normal(0.8, 0.01, size=18)
    return a, a + rng.normal(0.001, 0.004, size=18)


@pytest.mark.parametrize("margin", [0.0005, 0.002, 0.005])
def test_paired_equals_statsmodels_and_the_definition(samples, margin):
    a, b = samples
    found = paired(a, b, margin)
    assert found.p_value == pytest.approx(ttost_paired(a, b, -margin, margin)[0])
    assert found.p_value == pytest.approx(_naive_paired(a, b, margin))
    assert found.difference_p_value == pytest.approx(scipy_stats.ttest_rel(a, b).pvalue)
    low, high = found.difference.low, found.difference.high
    assert found.equivalent == (-margin < low and high < margin)
    assert found.difference.confidence == pytest.approx(0.9)


def test_two_sample_equals_statsmodels(samples):
    a, b = samples[0], samples[1][:11]
    found = two_sample(a, b, 0.01)
    assert found.p_value == pytest.approx(ttost_ind(a, b, -0.01, 0.01, usevar="unequal")[0])
    welch = scipy_stats.ttest_ind(a, b, equal_var=False)
    assert found.difference_p_value == pytest.approx(welch.pvalue)
    low, high = welch.confidence_interval(0.9)
    assert (found.difference.low, found.difference.high) == pytest.approx((low, high))


def test_a_difference_at_the_margin_passes_at_most_at_the_level():
    rng = np.random.default_rng(1)
    passed = 0
    for _ in range(400):
        a = rng.normal(size=10)
        passed += paired(a + 0.5 + 0.3 * rng.normal(size=10), a, 0.5).equivalent
    assert passed / 400 <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 400)


def test_equal_samples_are_equivalent():
    found = paired([0.5, 0.6], [0.5, 0.6], 0.01)
    assert found.equivalent
    assert found.difference.value == 0.0
    assert not paired([1.5, 1.5], [0.5, 0.5], 0.01).equivalent
    assert two_sample([1.0, 1.0], [1.0, 1.0, 1.0], 0.1).equivalent


def test_refusals():
    assert isinstance(paired([1.0], [1.0], 0.1), Underpowered)
    assert isinstance(two_sample([1.0], [1.0, 2.0], 0.1), Underpowered)
    with pytest.raises(UsageError, match="pairs"):
        paired([1.0, 2.0], [1.0], 0.1)
    with pytest.raises(UsageError, match="margin"):
        paired([1.0, 2.0], [1.0, 2.0], 0.0)
    with pytest.raises(UsageError, match=r"above 0\.5"):
        paired([1.0, 2.0], [1.0, 2.5], 0.1, confidence=0.4)
