import numpy as np
import pytest
from scipy import stats as scipy_stats
from statsmodels.stats.proportion import proportion_confint

from fedaudit.errors import UsageError
from fedaudit.results import Estimate, Underpowered
from fedaudit.stats.intervals import (
    bootstrap,
    clopper_pearson,
    clopper_pearson_bounds,
    cluster_mean,
    mean,
    p_beyond,
    smallest_share_above,
    wilson,
)


@pytest.mark.parametrize("n", [1, 3, 4, 50])
def test_the_smallest_share_above_is_just_above(n):
    """One trial fewer would not show it; infinite where even all of them do not."""
    share = smallest_share_above(0.5, n)
    assert (share == np.inf) == (wilson(n, n).low <= 0.5)
    if share < np.inf:
        assert wilson(round(share * n), n).low > 0.5 >= wilson(round(share * n) - 1, n).low


def test_wilson_known_value():
    """The published interval was computed with 1.96 for the normal quantile."""
    found = wilson(50, 750, confidence=float(2 * scipy_stats.norm.cdf(1.96) - 1))
    assert (found.low, found.high) == pytest.approx(
        (0.050931623109996355, 0.08681827023629815), rel=1e-12
    )
    assert found.n == 750
    exact = wilson(50, 750)
    assert (exact.low, exact.high) == pytest.approx((found.low, found.high), rel=1e-5)


@pytest.mark.parametrize("confidence", [0.5, 0.9, 0.95, 0.999])
@pytest.mark.parametrize(("successes", "n"), [(0, 7), (1, 1), (3, 8), (50, 750), (12, 12)])
def test_proportions_equal_statsmodels(successes, n, confidence):
    for method, ours in (("wilson", wilson), ("beta", clopper_pearson)):
        low, high = proportion_confint(successes, n, alpha=1 - confidence, method=method)
        found = ours(successes, n, confidence)
        assert (found.low, found.high) == pytest.approx((low, high), abs=1e-12)


def test_numpy_counts_survive_json():
    for interval in (wilson, clopper_pearson):
        found = interval(np.int64(3), np.int64(8))
        assert type(found.n) is int
        assert found == interval(3, 8)


def test_wilson_touches_the_ends_exactly():
    for n in range(1, 400, 7):
        assert wilson(0, n).low == 0.0
        assert wilson(n, n).high == 1.0


def test_clopper_pearson_covers_exactly():
    """Exact coverage by summing the binomial: never below the level, for any true share."""
    n, confidence = 30, 0.9
    counts = np.arange(n + 1)
    low, high = clopper_pearson_bounds(counts, n, (1 - confidence) / 2)
    for share in np.linspace(0.01, 0.99, 99):
        inside = (low <= share) & (share <= high)
        assert scipy_stats.binom.pmf(counts, n, share)[inside].sum() >= confidence - 1e-9


def test_wilson_covers_near_its_level_on_average():
    n = 40
    found = [wilson(k, n) for k in range(n + 1)]
    low, high = np.array([e.low for e in found]), np.array([e.high for e in found])
    coverage = [
        scipy_stats.binom.pmf(np.arange(n + 1), n, p)[(low <= p) & (p <= high)].sum()
        for p in np.linspace(0.05, 0.95, 181)
    ]
    assert 0.94 < np.mean(coverage) < 0.97
    assert min(coverage) > 0.89


@pytest.mark.parametrize(("successes", "n"), [(0, 0), (3, 2), (-1, 5)])
@pytest.mark.parametrize("interval", [wilson, clopper_pearson])
def test_impossible_counts_are_refused(interval, successes, n):
    with pytest.raises(UsageError, match="count out of a total"):
        interval(successes, n)
    with pytest.raises(UsageError, match="count out of a total"):
        clopper_pearson_bounds([0, successes], [4, n], 0.025)


@pytest.mark.parametrize("confidence", [0.0, 1.0, 95.0, float("nan")])
def test_impossible_confidence_is_refused(confidence):
    with pytest.raises(UsageError, match=r"0\.95 for 95 %"):
        wilson(1, 2, confidence)


def test_mean_equals_scipy():
    x = np.random.default_rng(0).normal(3, 2, size=17)
    low, high = scipy_stats.t.interval(0.9, len(x) - 1, x.mean(), scipy_stats.sem(x))
    found = mean(x, 0.9, baseline=0.0)
    assert isinstance(found, Estimate)
    assert (found.value, found.low, found.high) == pytest.approx((x.mean(), low, high), rel=1e-10)
    assert found.baseline == 0.0


def test_mean_of_one_value_is_underpowered():
    assert mean([1.0]) == Underpowered(what="an interval for a mean", have=1, needed=2)


def test_values_that_are_not_finite_are_refused():
    with pytest.raises(UsageError, match="not finite"):
        mean([1.0, float("nan")])


@pytest.mark.parametrize("interval", ["percentile", "bca"])
def test_bootstrap_equals_scipy_on_the_same_draws(interval):
    x = np.random.default_rng(1).exponential(size=40)
    ours = bootstrap(x, rng=np.random.default_rng(2), resamples=1000, interval=interval)
    theirs = scipy_stats.bootstrap(
        (x,),
        np.mean,
        n_resamples=1000,
        method="BCa" if interval == "bca" else "percentile",
        rng=np.random.default_rng(2),
        vectorized=True,
    ).confidence_interval
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), rel=1e-9)


def test_bootstrap_equals_a_slow_twin_over_rows():
    rows = np.random.default_rng(3).normal(size=(9, 4))
    ours = bootstrap(
        rows,
        lambda stack: np.median(stack.mean(axis=2), axis=1),
        rng=np.random.default_rng(4),
        resamples=300,
    )
    picks = np.random.default_rng(4).integers(0, 9, size=(300, 9))
    slow = [np.median([rows[i].mean() for i in pick]) for pick in picks]
    assert (ours.low, ours.high) == pytest.approx(tuple(np.quantile(slow, [0.025, 0.975])))
    assert ours.n == 9


def test_blocks_do_not_change_what_is_drawn(monkeypatch):
    from fedaudit.stats import intervals

    x = np.random.default_rng(3).normal(size=(20, 3))
    whole = bootstrap(x, rng=np.random.default_rng(4), interval="bca", resamples=500)
    monkeypatch.setattr(intervals, "_BLOCK", 200)
    assert bootstrap(x, rng=np.random.default_rng(4), interval="bca", resamples=500) == whole


def test_resampling_clusters_covers_where_resampling_entries_does_not():
    """Games of a trial share one shift: intervals over rows cover, over entries they do not."""
    rng = np.random.default_rng(5)
    hits = {"rows": 0, "entries": 0}
    for _ in range(150):
        x = rng.normal(size=(25, 1)) + 0.3 * rng.normal(size=(25, 10))
        for name, units in (("rows", x), ("entries", x.ravel())):
            found = bootstrap(units, rng=rng, resamples=300)
            hits[name] += found.low <= 0.0 <= found.high
    assert hits["rows"] / 150 > 0.86
    assert hits["entries"] / 150 < 0.7


def test_cluster_mean_with_equal_sizes_is_the_row_bootstrap():
    x = np.random.default_rng(6).normal(size=(12, 5))
    names = np.repeat([f"client {i:02d}" for i in range(12)], 5)
    ours = cluster_mean(x.ravel(), names, rng=np.random.default_rng(7))
    rows = bootstrap(x, rng=np.random.default_rng(7))
    assert (ours.value, ours.low, ours.high) == pytest.approx((rows.value, rows.low, rows.high))
    assert ours.n == 12


def test_cluster_mean_weighs_values_not_clusters():
    found = cluster_mean([1, 1, 1, 0], ["a", "a", "a", "b"], rng=np.random.default_rng(0))
    assert found.value == 0.75


def test_bootstrap_of_a_constant_is_a_point():
    for interval in ("percentile", "bca"):
        found = bootstrap(np.ones(5), rng=np.random.default_rng(0), interval=interval)
        assert (found.low, found.value, found.high) == (1.0, 1.0, 1.0)


def test_bootstrap_refuses_what_it_cannot_do():
    rng = np.random.default_rng(0)
    assert bootstrap([1.0], rng=rng) == Underpowered(what="a bootstrap interval", have=1, needed=2)
    with pytest.raises(UsageError, match="did you mean 'bca'"):
        bootstrap([1.0, 2.0], rng=rng, interval="bcaa")
    with pytest.raises(UsageError, match="one number per resample"):
        bootstrap([1.0, 2.0], lambda stack: stack.mean(), rng=rng)
    with pytest.raises(UsageError, match="too few resamples"):
        bootstrap([1.0, 2.0], rng=rng, resamples=10)


def test_a_share_whose_values_agree_is_not_certain():
    names = np.repeat(list("abcdef"), 4)
    sure = cluster_mean(np.ones(24), names, rng=np.random.default_rng(0))
    assert sure.low == sure.high == 1.0
    found = cluster_mean(np.ones(24), names, rng=np.random.default_rng(0), share=True)
    six = wilson(6, 6)  # all trials of a cluster agree: six clusters are six trials
    assert (found.low, found.value, found.high) == pytest.approx((six.low, 1.0, 1.0))


def test_the_interval_of_a_share_covers_it():
    """Clusters with different shares around 0.9: the interval covers the mean at its level."""
    rng, hits = np.random.default_rng(1), 0
    for _ in range(300):
        own = rng.beta(9, 1, size=10)
        values = (rng.random((10, 5)) < own[:, None]).astype(float)
        found = cluster_mean(values.ravel(), np.repeat(np.arange(10), 5), rng=rng, share=True)
        hits += found.low <= 0.9 <= found.high
    assert hits >= 279  # 93 %


@pytest.mark.parametrize(("won", "games", "at"), [(7, 20, 0.2), (2, 20, 0.3), (20, 20, 0.7)])
def test_p_values_of_counted_shares_are_binomial(won, games, at):
    e = clopper_pearson(won, games)
    exact = (
        scipy_stats.binom.sf(won - 1, games, at)
        if won / games > at
        else scipy_stats.binom.cdf(won, games, at)
    )
    assert p_beyond(e, at) == pytest.approx(float(exact))


def test_p_values_from_intervals_are_normal_and_alike_on_both_sides():
    e = Estimate(value=0.3, low=0.3 - 1.959964 * 0.05, high=0.3 + 1.959964 * 0.05, n=0)
    for at in (0.1, 0.5):
        assert p_beyond(e, at) == pytest.approx(float(scipy_stats.norm.sf(4.0)), rel=1e-4)
    assert p_beyond(e, 0.3) == 1.0


def test_p_values_at_the_end_of_the_scale_and_without_width():
    best = Estimate(value=1.0, low=0.025 ** (1 / 12), high=1.0, n=0)
    worst = Estimate(value=0.0, low=0.0, high=1 - 0.025 ** (1 / 12), n=0)
    assert p_beyond(best, 0.5) == pytest.approx(0.5**12)
    assert p_beyond(worst, 0.5) == pytest.approx(0.5**12)
    one_sided = Estimate(value=2.0, low=2.0, high=np.inf, n=9, one_sided=True)
    assert p_beyond(one_sided, 1.0) == pytest.approx(0.05)
    exact = Estimate(value=2.0, low=2.0, high=2.0, n=9, confidence=1.0)
    assert p_beyond(exact, 1.0) < 1e-200
    assert p_beyond(exact, 2.0) == 1.0
