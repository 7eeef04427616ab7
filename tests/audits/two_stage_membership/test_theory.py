"""Closed forms: known values, identities on random vectors, and bounds."""

import numpy as np
import pytest

from fedaudit.audits.two_stage_membership import theory
from fedaudit.stats import intervals


def test_phi_is_the_centred_sigmoid():
    z = np.linspace(-30, 30, 2001)
    np.testing.assert_allclose(theory.phi(z), 1 / (1 + np.exp(-z)) - 0.5, atol=1e-15)
    slope = np.diff(theory.phi(z)) / np.diff(z)
    assert (slope > 0).all()
    assert slope.max() <= 0.25
    # tiny increments keep their digits, huge ones do not overflow
    assert float(theory.phi(1e-18)) == pytest.approx(2.5e-19, rel=1e-12)
    assert float(theory.phi(1e6)) == 0.5


def test_energy_decomposition_and_survival_ratio_on_the_published_grid():
    """[TwoStage] Lemmas 2 and 3, on the vectors of Section 6.1."""
    rng = np.random.default_rng(0)
    unit, other = np.linalg.qr(rng.normal(size=(100, 2)))[0].T
    for r in np.linspace(0.01, 16, 40):
        for lam in np.linspace(-1, 1, 41):
            background = r * (lam * unit + np.sqrt(1 - lam**2) * other)
            moved = np.linalg.norm(unit + background)
            energy = theory.aggregate_energy(1.0, r, lam)
            assert float(energy) == pytest.approx(moved**2, rel=1e-9, abs=1e-12)
            if moved > 1e-6:
                assert float(theory.survival_ratio(r, lam)) == pytest.approx(1 / moved, rel=1e-6)


def test_survival_ratio_rises_under_cancellation():
    assert float(theory.survival_ratio(1.0, -0.99)) == pytest.approx(7.0711, abs=1e-4)
    assert float(theory.survival_ratio(1.0, -1.0)) == np.inf
    toward = theory.survival_ratio(1.0, -1 + np.logspace(0, -6, 13))
    assert (np.diff(toward) > 0).all()
    # the shift test is unaffected: B is known
    assert float(theory.detection_power(2.0, 0.05)) == pytest.approx(0.6388, abs=1e-4)


def test_survival_ratio_keeps_its_digits_near_cancellation():
    from decimal import Decimal

    for r, lam in ((1.0, -1 + 2.0**-40), (1 + 2.0**-20, -1 + 2.0**-45)):
        a, b = Decimal(r), Decimal(lam)
        exact = 1 / (1 + a * a + 2 * a * b).sqrt()
        assert float(theory.survival_ratio(r, lam)) == pytest.approx(float(exact), rel=1e-9)


@pytest.mark.parametrize("snr", [0.0, 0.7, 2.0, 4.0])
@pytest.mark.parametrize("rate", [0.01, 0.2])
def test_power_of_the_shift_test_by_simulation(snr, rate):
    """Simulated likelihood-ratio test for u in noise, with its threshold from noise alone."""
    rng = np.random.default_rng(1)
    d, sigma, draws = 20, 0.3, 20_000
    u = rng.normal(size=d)
    u *= snr * sigma / np.linalg.norm(u)
    direction = u / np.linalg.norm(u) if snr else np.eye(d)[0]
    without = (sigma * rng.normal(size=(draws, d))) @ direction
    with_it = (u + sigma * rng.normal(size=(draws, d))) @ direction
    found = (with_it > np.quantile(without, 1 - rate)).mean()
    expected = float(theory.detection_power(snr, rate))
    assert found == pytest.approx(expected, abs=5 * np.sqrt(0.25 / draws) + 0.01)
    if snr == 0:
        assert expected == pytest.approx(rate)


def test_power_without_noise_is_certain():
    assert float(theory.detection_power(np.inf, 0.01)) == 1.0


def test_bounds_hold_for_whatever_stays_within_the_remainder():
    """Theorem 1, Lemma 7 and the sound condition on random slopes and remainders."""
    rng = np.random.default_rng(2)
    sound = 0
    for _ in range(1500):
        n, norm, smooth = rng.integers(1, 30), rng.uniform(0, 1.5), rng.uniform(0, 4)
        slope = rng.normal(size=n) * rng.uniform(0, 3) + rng.uniform(-1, 4)
        limit = float(theory.remainder_bound(smooth, norm))
        assert limit == pytest.approx(smooth * norm**2 / 2)
        delta = slope + rng.choice([-1.0, 1.0, rng.uniform(-1, 1)], size=n) * limit
        j = float(theory.phi(delta).mean())
        proxy = float(theory.phi(slope).mean())
        assert abs(j - proxy) <= float(theory.advantage_slack(smooth, norm)) + 1e-12
        wide = float(theory.mean_score_slack(slope.var(), smooth, norm))
        assert abs(j - float(theory.phi(slope.mean()))) <= wide + 1e-12
        if theory.sound_condition(slope.mean(), slope.var(), smooth, norm):
            sound += 1
            assert j > 0
    assert sound > 50


def test_slacks_as_printed():
    assert float(theory.remainder_bound(2.0, 3.0)) == pytest.approx(9.0)
    assert float(theory.advantage_slack(2.0, 3.0)) == pytest.approx(2.25)
    assert float(theory.mean_score_slack(4.0, 2.0, 3.0)) == pytest.approx(0.5 + 2.25)


def test_the_published_condition_is_not_sufficient():
    """Scores +10 for 20 %, -1 for 80 %: the mean is positive and J is not. [TwoStage] Lemma 8"""
    slope = np.array([10.0] * 20 + [-1.0] * 80)
    mean, norm = slope.mean(), 1.0
    # linear scores, u along the mean score vector: L = 0, gamma = 1
    assert mean > 0
    assert theory.published_condition(norm, mean / norm, 1.0, 0.0)
    assert theory.published_condition(norm, mean / norm, 1.0, 0.1)
    assert float(theory.phi(slope).mean()) < 0
    assert not theory.sound_condition(mean, slope.var(), 0.0, norm)
    # concentrated scores satisfy both
    assert theory.sound_condition(1.2, 0.01, 0.1, norm)


def test_the_published_condition_as_printed():
    assert not theory.published_condition(0.1, 1.0, -0.5, 1.0)
    assert theory.published_condition(0.99, 1.0, 0.5, 1.0)
    assert not theory.published_condition(1.01, 1.0, 0.5, 1.0)


def test_published_smoothness_is_a_maximum_over_steps():
    assert theory.published_smoothness([1.0, 0.5, 9.0], [1.0, 0.1, 0.0]) == pytest.approx(100.0)
    assert np.isnan(theory.published_smoothness([0.0], [0.0]))


def test_the_published_violation_rate_and_its_interval():
    """50 of 750: 6.7 % [5.1, 8.7]. The published code rounds the quantile to 1.96."""
    from scipy.special import ndtr

    published = (0.050931623109996355, 0.08681827023629815)
    e = intervals.wilson(50, 750)
    assert e.value == pytest.approx(0.0667, abs=1e-4)
    assert (e.low, e.high) == pytest.approx(published, rel=1e-5)
    same = intervals.wilson(50, 750, float(2 * ndtr(1.96) - 1))
    assert (same.low, same.high) == pytest.approx(published, rel=1e-12)
