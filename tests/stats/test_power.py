"""Closed forms for the power of audits, compared with simulation and with the intervals."""

import math

import numpy as np
import pytest

from fedaudit.errors import UsageError
from fedaudit.results import Estimate
from fedaudit.stats import power, roc
from fedaudit.stats.intervals import clopper_pearson, wilson


def near(found, expected, runs):
    """Within four standard errors of a simulated share."""
    return abs(found - expected) <= 4 * math.sqrt(expected * (1 - expected) / runs) + 1e-9


@pytest.mark.parametrize("chance", [0.01, 0.05, 0.3, 0.5])
@pytest.mark.parametrize("n", [1, 5, 20, 77, 400])
@pytest.mark.parametrize("confidence", [0.9, 0.99])
def test_the_least_successes_are_where_wilsons_interval_clears_chance(chance, n, confidence):
    clear = [k for k in range(n + 1) if wilson(k, n, confidence).low > chance]
    assert int(power.least_successes(chance, n, confidence)) == (clear[0] if clear else n + 1)


@pytest.mark.parametrize(("share", "chance", "n"), [(0.1, 0.05, 200), (0.6, 0.5, 150), (1, 0.5, 3)])
def test_the_power_of_a_share_is_what_simulation_gives(share, chance, n):
    rng = np.random.default_rng(1)
    hits = rng.binomial(n, share, size=4000)
    clears = np.array([wilson(int(k), n).low > chance for k in range(n + 1)])
    assert near(float(clears[hits].mean()), float(power.share_power(share, chance, n)), 4000)


def test_trials_for_a_share_hold_from_there_on():
    n = power.trials_for_share(0.1, 0.05, 0.9)
    after = power.share_power(0.1, 0.05, np.arange(n, 3 * n))
    assert after.min() >= 0.9
    assert float(power.share_power(0.1, 0.05, n - 1)) < 0.9
    assert power.trials_for_share(0.2, 0.05) < n < power.trials_for_share(0.075, 0.05)


def test_very_many_trials_are_answered_without_listing_them():
    rough = power.trials_for_share(0.5002, 0.5)
    z = 1.959964 + 1.281552
    assert rough == pytest.approx((z * 0.5 / 0.0002) ** 2, rel=1e-3)


# -- games ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("success", "games"), [(0.6, 210), (0.7, 80), (0.55, 400)])
def test_the_power_of_games_is_what_simulation_gives(success, games):
    rng = np.random.default_rng(2)
    low = np.array([clopper_pearson(k, games).low for k in range(games + 1)])
    simulated = float((low[rng.binomial(games, success, 4000)] > 0.5).mean())
    assert near(simulated, float(power.games_power(success, games)), 4000)


def test_games_and_the_smallest_success_are_inverse():
    games = power.games_for_success(0.6)
    assert power.games_power(0.6, games) >= 0.9
    assert power.games_power(0.6, games - 1) < 0.9
    assert power.detectable_success(games) <= 0.6
    assert power.games_for_success(0.51) == pytest.approx(
        power.games_for_success(0.52) * 4, rel=0.05
    )
    assert power.games_for_success(0.502) > 200_000
    assert power.detectable_success(5) is None


# -- AUC -----------------------------------------------------------------------------------------


def exponential_scores(rng, auc, members, others):
    """Exponential scores: P(member above other) = A, for which Hanley and McNeil are exact."""
    inside = rng.exponential(auc / (1 - auc), size=members)
    return np.concatenate([inside, rng.exponential(1.0, size=others)])


@pytest.mark.parametrize(("auc", "members", "others"), [(0.6, 60, 90), (0.75, 40, 30)])
def test_the_deviation_of_an_auc_is_that_of_exponential_scores(auc, members, others):
    rng = np.random.default_rng(3)
    member = np.arange(members + others) < members
    values = [
        roc.auc(exponential_scores(rng, auc, members, others), member).value for _ in range(1500)
    ]
    assert np.mean(values) == pytest.approx(auc, abs=0.01)
    assert np.std(values) == pytest.approx(power.auc_deviation(auc, members, others), rel=0.08)


def test_records_for_an_auc_reach_the_power_with_delongs_interval():
    rng = np.random.default_rng(4)
    n = power.records_for_auc(0.6, 0.9)
    member = np.arange(2 * n) < n
    clear = []
    for _ in range(500):
        e = roc.auc(exponential_scores(rng, 0.6, n, n), member)
        assert isinstance(e, Estimate)
        clear.append(e.low > 0.5)
    # DeLong's deviation is itself estimated: a little more slack than the binomial's
    assert abs(np.mean(clear) - 0.9) < 0.06
    assert power.detectable_auc(n, n) == pytest.approx(0.6, abs=2e-3)
    assert power.detectable_auc(1, 50) is None


def test_more_others_need_fewer_members():
    assert power.records_for_auc(0.55, others_per_member=3.0) < power.records_for_auc(0.55)


# -- true positives at a rate --------------------------------------------------------------------


def test_members_for_a_rate_reach_the_power():
    n = power.members_for_rate(0.05, 0.01, 0.9)
    rng = np.random.default_rng(5)
    hits = rng.binomial(n, 0.05, size=3000)
    clears = np.array([clopper_pearson(k, n).low > 0.01 for k in range(hits.max() + 1)])
    assert clears[hits].mean() >= 0.9 - 4 * math.sqrt(0.09 / 3000)
    assert power.detectable_rate(0.01, n) <= 0.05
    assert power.detectable_rate(0.01, n // 4) > 0.05
    assert power.detectable_rate(0.9, 3) is None


# -- explained, and widths -----------------------------------------------------------------------


def test_clients_for_an_explained_share_reach_the_power():
    from scipy import stats

    rng = np.random.default_rng(6)
    n, r = power.clients_for_explained(0.2, 0.9), math.sqrt(0.2)
    found = []
    for _ in range(800):
        x = rng.standard_normal(n)
        y = r * x + math.sqrt(1 - r * r) * rng.standard_normal(n)
        found.append(stats.pearsonr(x, y).pvalue < 0.05)
    assert abs(np.mean(found) - 0.9) < 0.05


def test_units_and_the_effect_seen_are_inverse():
    n = power.units_for_effect(0.1, 50, 0.05)
    shrunk = 0.1 * math.sqrt(50 / n)
    assert power.detectable_effect(shrunk) == pytest.approx(0.05, rel=0.01)


@pytest.mark.parametrize(
    "call",
    [
        lambda: power.trials_for_share(0.05, 0.05),
        lambda: power.trials_for_share(1.2, 0.05),
        lambda: power.records_for_auc(0.5),
        lambda: power.games_for_success(0.4),
        lambda: power.trials_for_share(0.1, 0.05, power=1.0),
        lambda: power.clients_for_explained(1.0),
        lambda: power.units_for_effect(0.1, 10, 0.0),
    ],
)
def test_what_cannot_be_asked_is_refused(call):
    with pytest.raises(UsageError) as refused:
        call()
    assert refused.value.expected
    assert refused.value.remedy
