"""Epsilons match published figures and Opacus, and are ordered correctly."""

import json
import math

import numpy as np
import pytest
import scipy.stats

from fedaudit.accounting import (
    ORDERS,
    Exposure,
    Guarantee,
    PrivacyCurve,
    _composed_losses,
    amplified_by_shuffling,
    calibrate,
    epsilon,
    from_opacus,
    gaussian_delta,
    largest_amplified,
    privacy_curve,
    renyi,
    shuffled,
    success_ceiling,
    total_variation,
    trade_off,
)
from fedaudit.errors import ConfigError, UsageError
from fedaudit.protections.dp_sgd import DPSGD

NEWS = {0.5: 10.87, 1.0: 2.216, 1.5: 0.935}
DIALOGUE = {0.5: 12.67, 1.0: 3.095, 1.5: 1.426}
NEWS_TEN = {0.5: 26.4, 1.0: 5.23, 1.5: 2.55}
DIALOGUE_TEN = {0.5: 33.3, 1.0: 7.71, 1.5: 3.85}


@pytest.mark.parametrize(
    ("rate", "steps", "rounds", "figures"),
    [
        (1 / 16, 16, 1, NEWS),
        (1 / 8, 8, 1, DIALOGUE),
        (1 / 16, 16, 10, NEWS_TEN),
        (1 / 8, 8, 10, DIALOGUE_TEN),
    ],
)
def test_published_epsilons_by_renyi(rate, steps, rounds, figures):
    """[Fingerprint] Tables 10 and 11, and the true cost of ten rounds."""
    exposure = Exposure(sampling_rate=rate, steps=steps, rounds=rounds)
    for z, published in figures.items():
        assert epsilon(exposure, z, 1e-4, by="rdp") == pytest.approx(published, rel=2e-3)


def test_renyi_equals_opacus():
    from opacus.accountants.analysis.rdp import compute_rdp

    for q, z in ((1 / 16, 0.5), (0.01, 1.0), (0.3, 2.0), (1.0, 1.3)):
        theirs = compute_rdp(q=q, noise_multiplier=z, steps=1, orders=list(ORDERS))
        np.testing.assert_allclose(renyi(q, z), theirs, rtol=1e-7)


@pytest.mark.parametrize(("q", "z", "steps"), [(1 / 16, 1.0, 160), (0.3, 0.8, 30), (1.0, 4.0, 10)])
def test_privacy_losses_are_tighter_than_renyi_and_above_the_exact_gaussian(q, z, steps):
    exposure = Exposure(sampling_rate=q, steps=steps, rounds=1)
    tight, loose = epsilon(exposure, z, 1e-5), epsilon(exposure, z, 1e-5, by="rdp")
    assert tight <= loose
    if q == 1.0:
        # n Gaussian steps are one of multiplier z / sqrt(n): exact profile of Balle and Wang
        from scipy.optimize import brentq
        from scipy.special import ndtr

        mu = math.sqrt(steps) / z

        def gap(e: float) -> float:
            return ndtr(mu / 2 - e / mu) - math.exp(e) * ndtr(-mu / 2 - e / mu) - 1e-5

        exact = brentq(gap, 0, 100)
        assert exact <= tight <= exact + 0.01


def test_more_noise_fewer_steps_and_rarer_sampling_never_cost_more():
    def e(q: float, z: float, n: int) -> float:
        return epsilon(Exposure(sampling_rate=q, steps=n, rounds=1), z, 1e-5, by="rdp")

    assert e(0.1, 0.8, 50) > e(0.1, 1.0, 50) > e(0.1, 2.0, 50)
    assert e(0.1, 1.0, 100) > e(0.1, 1.0, 50) > e(0.1, 1.0, 1)
    assert e(0.5, 1.0, 50) > e(0.1, 1.0, 50) > e(0.01, 1.0, 50)
    assert e(0.1, 0.0, 1) == math.inf
    assert e(0.1, 1.0, 0) == 0.0


@pytest.mark.parametrize("by", ["pld", "rdp"])
def test_calibration_meets_the_target_and_not_much_more(by):
    exposure = Exposure(sampling_rate=0.1, steps=10, rounds=5)
    z = calibrate(3.0, exposure, 1e-5, by=by)
    assert epsilon(exposure, z, 1e-5, by=by) <= 3.0
    assert epsilon(exposure, z * 0.99, 1e-5, by=by) > 3.0


def test_amplification_by_shuffling_helps_with_many_clients_and_is_refused_with_few():
    many = amplified_by_shuffling(1.0, 100_000, 1e-6)
    assert many is not None
    assert many[0] < 0.1
    assert many[1] == 1e-6
    assert amplified_by_shuffling(1.0, 1_000_000, 1e-6)[0] < many[0]
    assert amplified_by_shuffling(1.0, 20, 1e-6) is None
    assert amplified_by_shuffling(12.0, 100_000, 1e-6) is None
    assert amplified_by_shuffling(1.0, 100_000, 1e-6, local_delta=1e-12)[1] > 1e-6


def test_shuffled_rounds_of_gaussian_reports():
    """Never above the unshuffled epsilon, less with very many clients, None if unproven."""
    plain = {t: epsilon(Exposure(sampling_rate=1, steps=1, rounds=t), 2.0, 1e-5) for t in (1, 10)}
    few, many = shuffled(2.0, 10, 50, 1e-5), shuffled(2.0, 10, 100_000, 1e-5)
    assert few.epsilon is None
    assert few.local_epsilon > few.largest
    assert many.epsilon < 0.75 * plain[10]
    assert many.gains
    assert shuffled(2.0, 10, 1_000_000, 1e-5).epsilon < many.epsilon
    idle = shuffled(10.0, 10, 500, 1e-5)
    assert idle.epsilon == epsilon(Exposure(sampling_rate=1, steps=1, rounds=10), 10.0, 1e-5)
    assert not idle.gains
    assert shuffled(0.001, 10, 500, 1e-5).epsilon is None
    one = shuffled(2.0, 1, 100_000, 1e-5)
    assert one.epsilon <= plain[1]
    # one round alone: what the theorem says at the shares of delta that were set aside for it
    central, spent = amplified_by_shuffling(one.local_epsilon, 100_000, 1e-5 / 4)
    assert spent <= 1e-5
    assert one.epsilon == pytest.approx(central, abs=5e-3)


def test_a_report_is_charged_within_delta():
    """Gaussian tails, theorem and composition together spend at most delta."""
    for z, clients, rounds in ((8.0, 2_000, 5), (2.0, 100_000, 20), (1.5, 10_000_000, 3)):
        share = 1e-5 / (4 * rounds)
        found = shuffled(z, rounds, clients, 1e-5)
        assert found.largest == largest_amplified(clients, share)
        tails = gaussian_delta(found.local_epsilon, z)
        _, spent = amplified_by_shuffling(found.local_epsilon, clients, share, tails)
        assert share < spent <= 2 * share


@pytest.mark.parametrize("z", [0.7, 1.0, 4.0])
def test_the_delta_of_one_gaussian_is_the_accountants(z):
    once = Exposure(sampling_rate=1, steps=1, rounds=1)
    for delta in (1e-3, 1e-6, 1e-9):
        assert gaussian_delta(epsilon(once, z, delta), z) == pytest.approx(delta, rel=0.02)
    assert gaussian_delta(math.inf, z) == 0


def test_state_of_an_opacus_accountant():
    from opacus.accountants import RDPAccountant

    accountant = RDPAccountant()
    for _ in range(40):
        accountant.step(noise_multiplier=1.1, sample_rate=0.05)
    ours = from_opacus(accountant.state_dict(), 1e-5)
    assert ours.unit == "record"
    assert ours.epsilon <= accountant.get_epsilon(1e-5)
    assert ours.epsilon == pytest.approx(
        epsilon(Exposure(sampling_rate=0.05, steps=40, rounds=1), 1.1, 1e-5), rel=1e-6
    )
    for wrong in ({"something": 1}, {"history": [[1.0, 2.0, 3]]}, {"history": [[-1.0, 0.1, 3]]}):
        with pytest.raises(UsageError, match="Opacus"):
            from_opacus(wrong, 1e-5)
    assert from_opacus({"history": []}, 1e-5).epsilon == 0
    assert from_opacus({"history": [[0.0, 0.1, 3]]}, 1e-5).epsilon == math.inf
    # no guarantee: found without an accountant, which would fill the memory
    for endless in ([1.0, 0.1, 10**15], [1e-308, 0.5, 1], [0.3, 1.0, 10**7]):
        assert from_opacus({"history": [endless]}, 1e-5).epsilon == math.inf
    assert from_opacus({"history": [[0.2, 0.1, 3]]}, 1e-5).epsilon == pytest.approx(
        epsilon(Exposure(sampling_rate=0.1, steps=3, rounds=1), 0.2, 1e-5)
    )


def test_a_guarantee_survives_a_round_trip():
    for value in (1.5, math.inf):
        g = Guarantee(epsilon=value, delta=1e-5, unit="client", trust="the server")
        assert Guarantee.from_dict(g.to_dict()) == g


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5])
def test_a_delta_out_of_range_is_refused(delta):
    with pytest.raises(ConfigError, match="delta"):
        epsilon(Exposure(sampling_rate=0.1, steps=1, rounds=1), 1.0, delta)


# -- what an adversary can reach ------------------------------------------------------------------


def steps(count, q=1.0, rounds=1):
    return Exposure(sampling_rate=q, steps=count, rounds=rounds)


@pytest.mark.parametrize("z", [0.5, 1.0, 3.0])
@pytest.mark.parametrize(("relation", "moved"), [("replace", 2.0), ("add_or_remove", 1.0)])
@pytest.mark.parametrize("count", [1, 10])
def test_total_variation_of_gaussian_steps_is_known(z, relation, moved, count):
    mu = moved * math.sqrt(count) / z
    expected = 2 * scipy.stats.norm.cdf(mu / 2) - 1
    assert total_variation(steps(count), z, relation=relation) == pytest.approx(expected)
    ceiling = success_ceiling(steps(1, rounds=count), z, relation=relation)
    assert ceiling == pytest.approx(scipy.stats.norm.cdf(mu / 2))
    rates = np.array([0.001, 0.1, 0.5])
    curve = scipy.stats.norm.cdf(scipy.stats.norm.ppf(rates) + mu)
    np.testing.assert_allclose(trade_off(steps(count), z, rates, relation=relation), curve)


@pytest.mark.parametrize("relation", ["replace", "add_or_remove"])
def test_the_composed_losses_agree_with_the_closed_form(relation):
    for count, z in ((1, 1.0), (10, 2.0)):
        losses = _composed_losses(1.0, z, count, relation)
        exact = total_variation(steps(count), z, relation=relation)
        assert exact <= losses.get_delta_for_epsilon(0.0) <= exact + 1e-3


def mixtures(q, z, relation):
    """The densities of a sampled step with and without the unit, and with another one."""
    x = np.linspace(-12 * z - 2, 12 * z + 2, 200_001)
    blank = scipy.stats.norm.pdf(x, 0, z)
    one = (1 - q) * blank + q * scipy.stats.norm.pdf(x, 1, z)
    other = (1 - q) * blank + q * scipy.stats.norm.pdf(x, -1, z)
    return x[1] - x[0], one, other if relation == "replace" else blank


@pytest.mark.parametrize("relation", ["replace", "add_or_remove"])
@pytest.mark.parametrize(("q", "z"), [(0.1, 1.0), (0.4, 0.7)])
def test_a_sampled_step_agrees_with_numerical_integration(relation, q, z):
    width, p, other = mixtures(q, z, relation)
    exact = 0.5 * np.abs(p - other).sum() * width
    found = total_variation(steps(1, q), z, relation=relation)
    assert exact - 1e-9 <= found <= exact + 2e-3
    # the Neyman-Pearson curve of these densities, and that of the other direction
    for inside, outside in ((p, other), (other, p)):
        order = np.argsort(-inside / np.maximum(outside, 1e-300))
        fpr, tpr = (np.cumsum(d[order]) * width for d in (outside, inside))
        for rate in (0.01, 0.1, 0.5):
            bound = float(trade_off(steps(1, q), z, [rate], relation=relation)[0])
            assert bound >= np.interp(rate, fpr, tpr) - 1e-4
    rate = 0.1
    best = max(
        float(np.interp(rate, *(np.cumsum(d[np.argsort(-a / b)]) * width for d in (b, a))))
        for a, b in ((p, other), (other, p))
    )
    bound = float(trade_off(steps(1, q), z, [rate], relation=relation)[0])
    assert bound <= best + 0.02


def test_sampling_more_steps_and_less_noise_only_raise_the_ceiling():
    found = [success_ceiling(steps(k, 0.2), 1.0) for k in (1, 10, 100)]
    assert found == sorted(found)
    assert success_ceiling(steps(10, 0.2), 1.0) < success_ceiling(steps(10), 1.0)
    assert success_ceiling(steps(10, 0.2), 0.0) == 1.0
    assert success_ceiling(steps(10, 0.0), 1.0) == 0.5
    assert trade_off(steps(1), 0.0, [0.1]) == pytest.approx(1.0)
    with pytest.raises(UsageError, match="no bound"):
        total_variation(steps(1), -1.0)


@pytest.mark.parametrize("z", [0.7, 2.0, 30.0])
def test_a_curve_agrees_with_its_schedule(z):
    """Epsilon, total variation and trade-off on the coarse grid, never below the fine one."""
    exposure = Exposure(sampling_rate=0.1, steps=5, rounds=8)
    curve = privacy_curve(exposure, z)
    fine = epsilon(exposure, z, 1e-5)
    assert fine <= curve.epsilon_at(1e-5) <= fine * 1.05 + 0.01
    variation = total_variation(exposure, z, relation="add_or_remove")
    assert curve.total_variation == pytest.approx(variation, rel=0.02, abs=1e-4)
    rates = np.array([0.01, 0.1, 0.5])
    most = trade_off(exposure, z, rates, relation="add_or_remove")
    for rate, true_positive in zip(rates, most, strict=True):
        assert curve.least_false(float(true_positive)) == pytest.approx(rate, rel=0.02)


def test_a_curve_of_whole_batches_is_one_gaussian():
    exposure = Exposure(sampling_rate=1.0, steps=4, rounds=1)
    curve = privacy_curve(exposure, 2.0)
    assert curve.shift == 1.0
    assert curve.epsilon_at(1e-5) == pytest.approx(epsilon(exposure, 2.0, 1e-5), rel=2e-3)
    assert curve.least_false(0.5) == pytest.approx(0.15865525, abs=1e-7)
    assert curve.least_false(0.0) == 0.0


@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 0.0), (0.5, 1e-5), (3.0, 0.01), (600.0, 0.0)])
def test_the_curve_of_one_point_is_the_known_tent(epsilon, delta):
    curve = PrivacyCurve.of_point(epsilon, delta)
    rates = np.linspace(0.0, 1.0, 2001)
    tent = np.minimum(1.0, np.exp(epsilon) * rates + delta)
    tent = np.minimum(tent, 1.0 - np.exp(-epsilon) * (1.0 - delta - rates))
    assert [curve.most_true(f) for f in rates] == pytest.approx(np.maximum(tent, rates), abs=1e-12)
    assert curve.area == pytest.approx(np.trapezoid(tent, rates), abs=2e-3)
    assert curve.total_variation == pytest.approx((tent - rates).max(), abs=1e-3)
    assert PrivacyCurve.of_point(900.0, delta).most_true(0.0) == 1.0


def test_true_and_false_positives_of_a_curve_are_inverses():
    curve = privacy_curve(Exposure(sampling_rate=0.2, steps=5, rounds=10), 1.0)
    for f in (0.001, 0.05, 0.3):
        assert curve.least_false(curve.most_true(f)) == pytest.approx(f, rel=1e-6)


@pytest.mark.parametrize("rates", [(0.2, 0.05), (1.0, 1.0), (1.0, 0.2)])
def test_the_weakest_of_several_curves_lies_above_all_of_them_and_their_mixtures(rates):
    schedules = [
        Exposure(sampling_rate=q, steps=4, rounds=k) for q, k in zip(rates, (3, 9), strict=True)
    ]
    curves = [privacy_curve(e, 1.0) for e in schedules]
    bound = PrivacyCurve.weakest(curves)
    for f in (0.0, 1e-3, 0.01, 0.1, 0.5, 1.0):
        own = [c.most_true(f) for c in curves]
        assert bound.most_true(f) >= max(own) - 1e-9
        pooled = 0.5 * (curves[0].most_true(0.5 * f) + curves[1].most_true(1.5 * f))
        assert 1.5 * f > 1 or bound.most_true(f) >= pooled - 1e-9
    assert PrivacyCurve.weakest(curves[:1]) is curves[0]


def test_the_curve_of_a_guarantee_survives_a_round_trip():
    schedule = Exposure(sampling_rate=0.2, steps=5, rounds=10)
    given = DPSGD(noise_multiplier=1.0).guarantee(0, schedule)
    read = Guarantee.from_dict(json.loads(json.dumps(given.to_dict())))
    assert read == given
    assert read.curve().epsilon_at(1e-5) == pytest.approx(given.epsilon, rel=0.01)
    point = PrivacyCurve.of_point(given.epsilon, given.delta)
    assert all(read.curve().most_true(f) <= point.most_true(f) + 1e-3 for f in (0.01, 0.1, 0.5))
