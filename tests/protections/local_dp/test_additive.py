"""Laplace and Gaussian noise on features: scales, exact budgets, laws, and the grid beneath."""

import math
from dataclasses import dataclass

import dp_accounting
import numpy as np
import pytest
from scipy import stats

from fedaudit.accounting import Exposure, epsilon
from fedaudit.errors import ConfigError, DataError
from fedaudit.protections.local_dp import Gaussian, Laplace
from fedaudit.protections.local_dp.additive import gaussian_epsilon, gaussian_multiplier
from fedaudit.protections.local_dp.check import check_mechanism


def test_laplace_noise_has_its_scale_and_spends_r_epsilon():
    m = Laplace(epsilon=2.0, features=3, low=-1.0, high=3.0)
    assert m.scale == 2.0
    assert m.worst_case_epsilon() == m.claimed_epsilon == 6.0
    noise = m.perturb(np.ones((20_000, 3)), np.random.default_rng(0)) - 1.0
    assert stats.kstest(noise.ravel(), stats.laplace(scale=2.0).cdf).pvalue > 1e-4


@pytest.mark.parametrize("eps", [0.3, 1.0, 6.0])
def test_on_a_coarse_grid_the_law_is_exact_and_its_worst_case_epsilon(eps):
    """Four steps: the whole law by brute force, against draws and against the stated budget."""
    m = Laplace(epsilon=eps, steps=4)
    reports = np.arange(-400, 405)[:, None] / 4
    law = np.array([m.log_likelihood(reports, [x]) for x in np.arange(5) / 4])
    assert np.exp(law).sum(axis=1) == pytest.approx(1.0)
    apart = law[:, None, :] - law[None, :, :]
    assert apart.max() == pytest.approx(m.worst_case_epsilon())
    drawn = m.perturb(np.full((50_000, 1), 0.5), np.random.default_rng(3))
    assert np.array_equal(drawn * 4, np.rint(drawn * 4))
    expected = np.exp(law[2]) * 50_000
    counts = np.bincount((drawn.ravel() * 4).astype(int) + 400, minlength=805)
    often = expected > 5
    assert (
        stats.chisquare(
            np.append(counts[often], counts[~often].sum()),
            np.append(expected[often], expected[~often].sum()),
        ).pvalue
        > 1e-4
    )


@dataclass(frozen=True, kw_only=True)
class Textbook(Laplace):
    """Noise added to doubles, as it is usually written."""

    def perturb(self, x, rng):
        return np.asarray(x) + rng.laplace(scale=self.scale, size=np.shape(x))

    def log_likelihood(self, report, x):
        return -np.abs(report - x).sum(axis=-1) / self.scale


def test_noise_added_to_doubles_is_told_apart_by_its_last_digits_and_ours_is_not():
    rng = np.random.default_rng
    textbook = check_mechanism(Textbook(epsilon=1.0, features=2), rng=rng(5), samples=50_000)
    assert textbook.draws == "refuted"
    ours = [
        check_mechanism(Laplace(epsilon=1.0, features=2), rng=rng(s), samples=50_000).draws
        for s in range(5)
    ]
    assert set(ours) == {"consistent"}


def test_gaussian_noise_is_the_smallest_that_keeps_a_feature_private():
    m = Gaussian(epsilon=2.0, features=4, delta=1e-4, low=0.0, high=5.0)
    z = m.standard_deviation / m.width

    def delta_of(multiplier):
        cdf = stats.norm.cdf
        edge = 1 / (2 * multiplier)
        return cdf(edge - 2.0 * multiplier) - math.exp(2.0) * cdf(-edge - 2.0 * multiplier)

    assert delta_of(z) == pytest.approx(1e-4 / 4, rel=1e-6)
    assert delta_of(0.999 * z) > 1e-4 / 4
    noise = m.perturb(np.ones((20_000, 4)), np.random.default_rng(0)) - 1.0
    assert stats.kstest(noise.ravel(), stats.norm(scale=m.standard_deviation).cdf).pvalue > 1e-4


def test_the_exact_gaussian_budget_is_that_of_one_shift_of_the_whole_record():
    m = Gaussian(epsilon=1.0, features=9, delta=1e-5)
    multiplier = m.standard_deviation / (m.width * 3)
    once = Exposure(sampling_rate=1.0, steps=1, rounds=1)
    # the accountant rounds losses up by at most a thousandth
    assert m.worst_case_epsilon() == pytest.approx(epsilon(once, multiplier, 1e-5), abs=2e-3)
    assert m.worst_case_epsilon() < m.claimed_epsilon == 9.0


@pytest.mark.parametrize("delta", [1e-3, 1e-8])
@pytest.mark.parametrize("eps", [0.01, 1.0, 4.0, 60.0])
def test_gaussian_conversions_agree_with_the_accountant_library(eps, delta):
    z = gaussian_multiplier(eps, delta)
    assert z == pytest.approx(dp_accounting.get_sigma_gaussian(eps, delta), rel=1e-6)
    assert gaussian_epsilon(z, delta) == pytest.approx(eps, rel=1e-6)
    assert gaussian_epsilon(z / 20, delta) == pytest.approx(
        dp_accounting.get_epsilon_gaussian(z / 20, delta), rel=1e-6
    )
    assert gaussian_epsilon(1e9, delta) == 0.0


def test_likelihoods_of_a_fine_grid_are_those_of_the_density():
    report, x = np.array([[0.3, 2.0], [-1.0, 0.5]]), np.array([0.25, 1.0])
    gaussian = Gaussian(epsilon=1.0, features=2)
    law = stats.norm(scale=gaussian.standard_deviation)
    expected = law.logpdf(report - x).sum(axis=1)
    assert gaussian.log_likelihood(report, x) == pytest.approx(expected, abs=1e-4)
    laplace = Laplace(epsilon=1.0, features=2)
    law = stats.laplace(scale=laplace.scale)
    expected = law.logpdf(report - x).sum(axis=1) + 2 * math.log(laplace.step)
    assert laplace.log_likelihood(report, x) == pytest.approx(expected, abs=1e-4)
    assert np.array_equal(laplace.unbiased(report), report)


@pytest.mark.parametrize("cls", [Laplace, Gaussian])
def test_reports_lie_on_the_grid_and_are_right_on_average(cls):
    m = cls(epsilon=3.0, low=-2.0, high=2.0)
    x = 0.7712345
    report = m.perturb(np.full((40_000, 1), x), np.random.default_rng(1))
    places = (report - m.low) / m.step
    assert np.abs(places - np.rint(places)).max() < 1e-6
    assert abs(report.mean() - x) < 4.5 * report.std() / 200


@pytest.mark.parametrize("cls", [Laplace, Gaussian])
def test_values_beyond_the_bounds_are_refused(cls):
    m = cls(epsilon=1.0, features=2)
    for wrong in (1.5, -0.1, float("nan"), float("inf")):
        with pytest.raises(DataError, match="bounds"):
            m.perturb(np.array([[0.5, wrong]]), np.random.default_rng(0))
    for low, high in ((1.0, 1.0), (2.0, 1.0), (0.0, float("inf"))):
        with pytest.raises(ConfigError, match="bounds"):
            cls(epsilon=1.0, low=low, high=high)
    with pytest.raises(ConfigError, match="steps"):
        cls(epsilon=1.0, steps=0)


def test_a_delta_that_is_none_is_refused():
    with pytest.raises(ConfigError, match="delta"):
        Gaussian(epsilon=1.0, delta=0.0)
