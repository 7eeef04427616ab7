"""Closed forms of [FedAttr] against all query designs, simulation and known values."""

import itertools
import math

import numpy as np
import pytest

from fedaudit.audits.attribution import theory as audit_theory
from fedaudit.errors import UsageError
from fedaudit.stats import query_plans
from reproductions.attribution import theory


def all_contrasts(clients, others, repeats):
    """Integer weights M alpha (designs, K - 1) of every draw of M + M subsets, equally likely."""
    subsets = np.array(
        [
            np.isin(np.arange(clients - 1), c)
            for c in itertools.combinations(range(clients - 1), others)
        ]
    ).astype(np.int64)
    sums = np.array(
        [
            subsets[list(d)].sum(axis=0)
            for d in itertools.product(range(len(subsets)), repeat=repeats)
        ]
    )
    return (sums[:, None] - sums[None]).reshape(-1, clients - 1)


@pytest.mark.parametrize(("clients", "others", "repeats"), [(4, 1, 2), (5, 2, 2), (4, 2, 3)])
def test_theorems_1_and_2_by_enumeration(clients, others, repeats):
    """Unbiased with and without rejection; the covariance is exact without, bounded with it."""
    whole = all_contrasts(clients, others, repeats)
    accepted = query_plans.masks_enough(whole, clients, others, repeats)
    assert 0 < accepted.mean() < 1
    rng = np.random.default_rng(0)
    updates = rng.standard_normal((clients, 3))
    rest = np.delete(updates, 0, axis=0)
    for keep, rate in ((np.ones(len(whole), bool), 1.0), (accepted, accepted.mean())):
        error = whole[keep] / repeats @ rest
        assert np.allclose(error.mean(axis=0), 0, atol=1e-12)
        covariance = error.T @ error / len(error)
        bound = theory.covariance_bound(updates, 0, others, repeats, acceptance=rate)
        assert np.linalg.eigvalsh(bound - covariance).min() > -1e-12
        if rate == 1.0:
            assert np.allclose(covariance, bound)
        assert np.isclose(
            theory.estimator_variance(updates, 0, others, repeats, acceptance=rate), np.trace(bound)
        )
    strength = (whole**2).sum(axis=1).mean() / repeats**2
    assert math.isclose(strength, theory.expected_masking(clients, others, repeats))
    assert accepted.mean() >= theory.acceptance_bound(clients, others, repeats)


def test_theorem_13_and_corollary_14_on_a_quadratic_score():
    """F(w) = h |w|^2 / 2 has gradient constant h: the bias is h/2 E|error|^2 exactly."""
    rng = np.random.default_rng(2)
    updates = rng.standard_normal((4, 3))
    whole = all_contrasts(4, 1, 2)
    kept = whole[query_plans.masks_enough(whole, 4, 1, 2)]
    rate = len(kept) / len(whole)
    variance = theory.estimator_variance(updates, 0, 1, 2, acceptance=rate)
    h = 0.7
    estimates = updates[0] + kept / 2 @ updates[1:]
    bias = abs((h / 2 * (estimates**2).sum(axis=1)).mean() - h / 2 * (updates[0] ** 2).sum())
    smooth = theory.score_bias(variance, smoothness=h)
    assert 0 < bias <= smooth + 1e-12
    direction = rng.standard_normal(3)
    each = np.abs((estimates - updates[0]) @ direction).mean()
    steep = float(np.linalg.norm(direction))
    assert each <= theory.score_bias(variance, lipschitz=steep)
    assert theory.score_bias(variance, lipschitz=1e9, smoothness=h) == smooth
    carried = theory.transferred(theory.Separation(3.0, 0.5), 1.0)
    assert (carried.signal, carried.drift, carried.holds) == (2.0, 1.5, True)
    assert not theory.transferred(theory.Separation(3.0, 0.5), 1.5).holds


def test_the_rejection_bound_is_void_at_the_defaults_and_not_for_many_clients():
    assert theory.rejection_bound(10, 5, 5) == 1.0
    expected = 2 * (2 - 1) * math.exp(-2000 * (1 - 2000 / 9999) ** 2 / 2)
    assert math.isclose(theory.rejection_bound(10_000, 2000, 1), expected)


def test_theorem_3_is_void_after_some_rounds():
    assert theory.valid_rounds(4.0, drift=1.2) == 11
    assert theory.valid_rounds(4.0, drift=0.0) == math.inf
    assert theory.valid_rounds(4.0, drift=2.0) == 3  # at T = 4 the drift reaches the threshold


def test_theorem_4_and_11():
    """For Gaussian updates the Gaussian term is the mutual information."""
    pair = query_plans.paired_subsets(10, 3, 5, 5, np.random.default_rng(0))
    masked = theory.masking(pair.contrast, 3)
    alpha = np.delete(pair.contrast, 3)
    assert math.isclose(masked.strength, float(alpha @ alpha))
    assert masked.effective >= masked.strength
    assert math.isclose(
        audit_theory.leakage(masked, dimensions=2),
        0.5 * math.log((1 + alpha @ alpha) ** 2 / (alpha @ alpha) ** 2),
    )
    bound = audit_theory.leakage_bound(10, 5, 5)
    assert audit_theory.leakage(masked) <= bound.value + 1e-12
    assert bound.kind == "reference"
    assert "alone" in bound.assumes
    assert audit_theory.leakage(theory.masking([0.0, 1.0, 0.0], 1)) == math.inf


@pytest.mark.parametrize(
    ("clients", "others", "rate"),
    [(10, 5, 0.873), (10, 4, 0.873), (20, 4, 0.974), (50, 4, 0.998), (50, 16, 0.999)],
)
def test_acceptance_rates_as_computed(clients, others, rate):
    rng = np.random.default_rng(1)
    found = theory.acceptance_rate(clients, others, 5, rng, draws=30_000)
    assert found.low - 0.001 <= rate <= found.high + 0.001


def test_bad_input():
    with pytest.raises(UsageError, match="do not fit"):
        theory.variance_factor(10, 9, 5)
    with pytest.raises(UsageError, match="repeats is out of range"):
        theory.variance_factor(10, 5, 0)
