"""The paper's closed forms: by simulation, by known values."""

import math

import numpy as np
import pytest

from fedaudit.audits.attribution import theory
from fedaudit.errors import UsageError


def test_theorem_3_with_the_papers_constants():
    known = {"signal": 3.3, "drift": 1.2, "noise": 0.85}
    at = theory.error_bounds(5, 4.0, **known)
    assert round(at.false_positive, 2) == 0.30
    assert round(at.false_negative, 5) == 0.00037
    assert theory.error_bounds(11, 4.0, **known).false_positive < 1.0
    assert theory.error_bounds(12, 4.0, **known).false_positive == 1.0
    assert theory.error_bounds(1, 4.0, **known).false_negative == 1.0


def test_a_growing_threshold_keeps_the_error_at_every_number_of_rounds():
    for rounds in (1, 5, 50, 500):
        gamma = theory.growing_threshold(rounds, drift=1.2, noise=0.85, error=0.01)
        bound = theory.error_bounds(rounds, gamma, signal=3.3, drift=1.2, noise=0.85)
        assert math.isclose(bound.false_positive, 0.01)


def test_the_anytime_threshold_is_crossed_by_few_over_all_rounds_and_fixed_ones_by_many():
    """Gaussian benign scores at the largest drift: the worst case that Assumption 1 allows."""
    rng = np.random.default_rng(1)
    drift, noise, rounds, runs = 0.5, 0.8, 300, 2000
    z = np.cumsum(drift + noise * rng.standard_normal((runs, rounds)), axis=1)
    z /= np.sqrt(np.arange(1, rounds + 1))
    ever = np.zeros(runs, bool)
    fixed = np.zeros(runs, bool)
    for t in range(1, rounds + 1):
        ever |= z[:, t - 1] > theory.anytime_threshold(t, drift=drift, noise=noise, error=0.05)
        fixed |= z[:, t - 1] > theory.growing_threshold(t, drift=drift, noise=noise, error=0.05)
    assert ever.mean() <= 0.05
    assert fixed.mean() > ever.mean()
    assert (z > 4.0).any(axis=1).mean() > 0.9  # the published threshold


def test_theorem_4_is_a_reference_for_one_release():
    """At K 10, N 5, M 5 the weakest accepted masking is aN = (1 - 5/9) / 5 * 5 = 4/9."""
    bound = theory.leakage_bound(10, 5, 5)
    assert bound.value == pytest.approx(0.5 * math.log1p(9 / 4))
    assert bound.kind == "reference"
    assert theory.leakage(theory.Masking(0.0, 0.0)) == math.inf


def test_bad_input():
    with pytest.raises(UsageError, match="noise"):
        theory.error_bounds(5, 4.0, signal=1, drift=0, noise=0)
