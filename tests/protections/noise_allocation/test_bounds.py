"""The sound bound holds where mutual information can be computed; the published one does not."""

import itertools
import math

import numpy as np
import pytest

from fedaudit.accounting import Exposure, epsilon
from fedaudit.errors import ConfigError, UsageError
from fedaudit.protections.noise_allocation import bounds, record_epsilons, windowed
from fedaudit.protections.noise_allocation.bounds import (
    LEAST_MULTIPLIER,
    entropy_cap,
    mechanism,
    poisson_factor,
)


def information(means, weights, sigma):
    """I(p; y) in nats by quadrature: p uniform, y ~ sum_k weights[p, k] N(means[k], sigma)."""
    y = np.linspace(means.min() - 12 * sigma, means.max() + 12 * sigma, 40_001)
    step = y[1] - y[0]
    kernels = np.exp(-(((y - means[:, None]) / sigma) ** 2) / 2) / sigma / math.sqrt(2 * math.pi)
    given = weights @ kernels  # (values of p, grid)
    overall = given.mean(axis=0)

    def entropy(density):
        return -np.sum(density * np.log(np.maximum(density, 1e-300)), axis=-1) * step

    return float(entropy(overall) - entropy(given).mean())


def full_batch(n, sigma, rounds):
    """A one-parameter model whose gradient is +1 for the sensitive class and -1 otherwise (C = 1).

    Whole batches: every round tells 2p - 1 plus noise, and the mean over rounds is sufficient.
    """
    means = 2 * np.arange(n + 1) / n - 1
    return information(means, np.eye(n + 1), sigma / math.sqrt(rounds))


@pytest.mark.parametrize("n", [4, 20, 64])
@pytest.mark.parametrize("sigma", [0.05, 0.3, 1.0, 5.0])
@pytest.mark.parametrize("rounds", [1, 10])
def test_the_sound_bound_holds_for_whole_batches(n, sigma, rounds):
    told = full_batch(n, sigma, rounds)
    found = bounds([sigma**2], [0.0], rounds=rounds, batch_size=n, sizes=[n])
    assert found.mechanism[0] == pytest.approx(rounds / (2 * sigma**2))
    assert told <= found.dataset[0] + 1e-9
    assert told <= math.log(n + 1) + 1e-9


def test_the_published_bound_does_not():
    """[TopologyAwareDP] Eq. (2) with no leverage at all: independent clients, one round."""
    n, sigma = 64, 0.3
    published = bounds([sigma**2], [0.0], rounds=1, batch_size=n, sizes=[n]).published[0]
    assert published == pytest.approx(1 / (2 * sigma**2 * n**2))
    assert full_batch(n, sigma, 1) > 100 * published


@pytest.mark.parametrize(("n", "q"), [(4, 0.5), (8, 0.25), (16, 0.5), (6, 1.0)])
@pytest.mark.parametrize("sigma", [0.2, 0.7, 2.0])
def test_the_sound_bound_holds_for_poisson_batches(n, q, sigma):
    """Every record of the +1 and -1 classes is drawn with probability q; the sum is over n q."""
    from scipy.stats import binom

    expected = n * q
    sums = np.arange(-n, n + 1)
    weights = np.zeros((n + 1, sums.size))
    for k in range(n + 1):
        plus, minus = binom.pmf(np.arange(k + 1), k, q), binom.pmf(np.arange(n - k + 1), n - k, q)
        # the distribution of (drawn of +1) - (drawn of -1), from -(n - k) to k
        weights[k, k : n + k + 1] = np.convolve(plus, minus[::-1])
    told = information(sums / expected, weights, sigma)
    limit = mechanism(np.array([sigma**2]), steps=1, batch_size=int(expected), sizes=[n])[0]
    assert limit == pytest.approx((1 + (1 - q) / expected) / (2 * sigma**2))
    assert told <= limit


def test_the_poisson_factor_is_the_second_moment_of_the_batch():
    n, batch = 40, 8
    q = batch / n
    moment = (n * q * (1 - q) + (n * q) ** 2) / batch**2
    assert poisson_factor(batch, [n])[0] == pytest.approx(moment)
    assert poisson_factor(batch, [batch])[0] == 1
    # unknown sizes: no smaller than for any size
    assert poisson_factor(batch) >= poisson_factor(batch, [10**9])[0]


def test_library_units():
    sigma, batch, steps = 0.1, 32, 500
    z = sigma * batch
    found = mechanism(np.array([sigma**2]), steps=steps, batch_size=batch, sizes=[batch])
    assert found[0] == pytest.approx(steps * batch**2 / (2 * z**2))


def test_cap_and_vacuity():
    found = bounds([1e-4, 1e3], [0.1, 0.1], rounds=10, batch_size=16, sizes=[100, 100])
    assert found.vacuous.tolist() == [True, False]
    assert found.cap == pytest.approx(math.log(101))
    assert found.dataset[1] < 0.2
    assert (entropy_cap([1, 9]) == np.log([2, 10])).all()
    unknown = bounds([1e-4], [0.1], rounds=10, batch_size=16)
    assert unknown.cap is None
    assert unknown.vacuous is None


def test_local_steps_count_in_the_sound_bound_alone():
    one = bounds([0.1, 0.1], [0, 0], rounds=10, batch_size=16, steps_per_round=1)
    many = bounds([0.1, 0.1], [0, 0], rounds=10, batch_size=16, steps_per_round=[1, 7])
    np.testing.assert_allclose(many.mechanism / one.mechanism, [1, 7])
    np.testing.assert_array_equal(many.published, one.published)


# -- windows ---------------------------------------------------------------------------------------

SETTING = {"rounds": 20, "batch_size": 32, "sizes": [400, 200, 100]}
VARIANCES = np.array([0.5, 1.0, 2.0])
LEVERAGE = np.array([1.0, 0.5, 0.2])


def test_a_window_of_all_rounds_is_no_window():
    whole = bounds(VARIANCES, LEVERAGE, **SETTING)
    for length in (20, 50):
        seen = windowed(VARIANCES, LEVERAGE, window=length, model_weights=[1, 1, 1], **SETTING)
        assert seen.rounds_seen == 20
        np.testing.assert_allclose(seen.dataset, whole.dataset)
        np.testing.assert_allclose(seen.published, whole.published)
        assert (seen.models == 0).all()


def test_without_an_average_nothing_is_gained():
    whole = bounds(VARIANCES, LEVERAGE, **SETTING)
    seen = windowed(VARIANCES, LEVERAGE, window=5, **SETTING)
    np.testing.assert_allclose(seen.dataset, whole.dataset)
    assert (seen.published < whole.published).all()


@pytest.mark.parametrize("steps", [1, 3])
def test_a_shorter_window_never_tells_more(steps):
    found = [
        windowed(
            VARIANCES,
            LEVERAGE,
            window=w,
            model_weights=[4, 2, 1],
            steps_per_round=steps,
            **SETTING,
        )
        for w in (1, 5, 20)
    ]
    for shorter, longer in itertools.pairwise(found):
        assert (shorter.dataset <= longer.dataset + 1e-12).all()
        assert (shorter.published < longer.published).all()


@pytest.mark.parametrize("rounds", [1, 8])
@pytest.mark.parametrize("weights", [(1, 1), (9, 1), (1, 9)])
def test_what_comes_through_the_models_is_bounded(rounds, weights):
    """Two clients of one-parameter models: the average of T rounds tells of client 0's classes."""
    n, sigma = 16, np.array([0.6, 0.9])
    p = np.array(weights) / sum(weights)
    noise = math.sqrt(float(np.sum(p**2 * sigma**2)) / rounds)
    means = p[0] * (2 * np.arange(n + 1) / n - 1)
    told = information(means, np.eye(n + 1), noise)
    seen = windowed(
        sigma**2,
        [0, 0],
        rounds=rounds + 1,
        window=1,
        batch_size=n,
        sizes=[n, n],
        model_weights=weights,
    )
    assert told <= seen.models[0]
    assert seen.models[0] <= rounds / (2 * sigma[0] ** 2) + 1e-12


def test_a_client_whose_weight_is_everything_gains_nothing_from_the_average():
    seen = windowed(
        VARIANCES,
        LEVERAGE,
        window=5,
        model_weights=[1, 1e-12, 1e-12],
        steps_per_round=4,
        **SETTING,
    )
    assert seen.models[0] == pytest.approx(15 * 4 * poisson_factor(32, [400])[0] / (2 * 0.5))


def test_a_window_has_a_round():
    with pytest.raises(UsageError, match="window is out of range"):
        windowed(VARIANCES, LEVERAGE, window=0, **SETTING)


# -- epsilons --------------------------------------------------------------------------------------


def test_epsilons_are_the_accountants():
    z, sizes = np.array([1.0, 2.0, 1.0]), [320, 3200, 320]
    found = record_epsilons(z, sizes=sizes, batch_size=32, rounds=5, steps_per_round=4, delta=1e-5)
    for i in range(3):
        schedule = Exposure(sampling_rate=32 / sizes[i], steps=4, rounds=5)
        assert found.values[i] == epsilon(schedule, float(z[i]), 1e-5)
    assert found.rounded == 1


def test_equal_schedules_are_computed_once():
    seen = []
    record_epsilons(
        np.full(500, 1.5),
        sizes=np.repeat([320, 640], 250),
        batch_size=32,
        rounds=3,
        delta=1e-5,
        accountant="rdp",
        watch=lambda done, total: seen.append((done, total)),
    )
    assert seen == [(1, 2), (2, 2)]


def test_grouped_epsilons_are_never_too_small_and_near():
    rng = np.random.default_rng(3)
    sizes = rng.integers(100, 5000, size=30)
    z = 0.8 + sizes / 2000
    setting = {"sizes": sizes, "batch_size": 32, "rounds": 10, "delta": 1e-5, "accountant": "rdp"}
    exact, grouped = record_epsilons(z, **setting), record_epsilons(z, most_groups=14, **setting)
    assert exact.rounded == 1 < grouped.rounded < 1.5
    assert (grouped.values >= exact.values).all()
    assert (grouped.values <= exact.values * grouped.rounded**6).all()


def test_a_hundred_thousand_clients_in_a_few_epsilons():
    sizes = np.random.default_rng(4).integers(100, 5000, size=150_000)
    seen = []
    found = record_epsilons(
        np.float64(2.0),
        sizes=sizes,
        batch_size=32,
        rounds=10,
        delta=1e-5,
        accountant="rdp",
        most_groups=10,
        watch=lambda done, total: seen.append(total),
    )
    assert found.values.shape == sizes.shape
    assert len(seen) <= 10
    order = np.argsort(sizes, kind="stable")
    assert (np.diff(found.values[order]) <= 1e-12).all()  # larger clients spend no more


def test_very_little_noise_is_accounted_without_amplification():
    setting = {"sizes": [1000], "batch_size": 10, "rounds": 20, "delta": 1e-5}
    little = record_epsilons([LEAST_MULTIPLIER * 0.999], **setting).values[0]
    more = record_epsilons([LEAST_MULTIPLIER], **setting).values[0]
    assert math.isfinite(little)
    assert little > more
    whole = Exposure(sampling_rate=1.0, steps=1, rounds=20)
    assert little == epsilon(whole, LEAST_MULTIPLIER * 0.999, 1e-5, by="rdp")
    # schedules that would need gigabytes of grid end too
    huge = {**setting, "sizes": [10], "rounds": 100_000}
    assert record_epsilons([0.06], **huge).values[0] > 1e6


def test_delta_is_checked():
    with pytest.raises(ConfigError, match="delta"):
        record_epsilons([1.0], sizes=[100], batch_size=10, rounds=1, delta=0.0)
