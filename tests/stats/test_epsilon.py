import math

import numpy as np
import pytest
from scipy import stats as scipy_stats

from fedaudit.accounting import gaussian_delta, smallest_multiplier
from fedaudit.errors import UsageError
from fedaudit.results import Underpowered
from fedaudit.stats import epsilon


def _naive(tp, n1, fp, n0, delta, alpha):
    """Both directions with scipy's beta quantiles."""
    tpr_low = scipy_stats.beta.ppf(alpha / 2, tp, n1 - tp + 1) if tp else 0.0
    fpr_high = scipy_stats.beta.ppf(1 - alpha / 2, fp + 1, n0 - fp) if fp < n0 else 1.0
    fn, tn = n1 - tp, n0 - fp
    tnr_low = scipy_stats.beta.ppf(alpha / 2, tn, n0 - tn + 1) if tn else 0.0
    fnr_high = scipy_stats.beta.ppf(1 - alpha / 2, fn + 1, n1 - fn) if fn < n1 else 1.0
    best = 0.0
    for top, bottom in ((tpr_low, fpr_high), (tnr_low, fnr_high)):
        if top - delta > 0:
            best = max(best, math.log((top - delta) / bottom))
    return best


@pytest.mark.parametrize(
    "counts",
    [(90, 100, 5, 100), (100, 100, 0, 100), (0, 10, 0, 10), (10, 10, 10, 10), (30, 100, 1, 400)],
)
@pytest.mark.parametrize("delta", [0.0, 1e-5, 0.1])
def test_lower_bound_equals_naive(counts, delta):
    found = epsilon.from_counts(*counts, delta=delta, confidence=0.9)
    assert found.low == pytest.approx(_naive(*counts, delta, 0.1), abs=1e-10)
    assert found.low <= found.value <= found.high == math.inf


def test_plug_in_value():
    assert epsilon.from_counts(60, 100, 20, 100).value == pytest.approx(math.log(3))
    assert epsilon.from_counts(60, 100, 0, 100).value == math.inf
    assert epsilon.from_counts(20, 100, 60, 100).value == 0.0  # worse than chance refutes nothing


def test_symmetric_direction_is_used():
    """Few misses: TNR / FNR is the stronger of the two ratios."""
    found = epsilon.from_counts(1000, 1000, 500, 1000)
    assert found.low > math.log(1000 / 500)


def test_more_calls_tried_is_a_weaker_bound():
    bounds = [epsilon.from_counts(90, 100, 5, 100, calls_tried=m).low for m in (1, 10, 100)]
    assert bounds[0] > bounds[1] > bounds[2] > 0
    corrected = epsilon.from_counts(90, 100, 5, 100, calls_tried=10).low
    assert corrected == pytest.approx(_naive(90, 100, 5, 100, 0.0, 0.005), abs=1e-10)


def test_randomised_response_is_never_refuted_more_often_than_stated():
    """Calls of an eps-DP bit: the bound exceeds eps in at most 5 % of audits, and gets near."""
    truth, rng, games = 1.0, np.random.default_rng(0), 2000
    keep = math.exp(truth) / (1 + math.exp(truth))
    bounds = np.array(
        [
            epsilon.from_counts(
                int(rng.binomial(games, keep)), games, int(rng.binomial(games, 1 - keep)), games
            ).low
            for _ in range(400)
        ]
    )
    assert (bounds > truth).mean() <= 0.05
    assert np.median(bounds) > 0.8


def test_held_out_threshold_is_honest_where_the_best_threshold_is_not():
    rng = np.random.default_rng(1)
    member = np.arange(600) < 300
    honest, greedy = [], []
    for _ in range(200):
        scores = rng.normal(size=600)
        honest.append(epsilon.from_scores(scores, member, rng=rng, confidence=0.8).low)
        inside, outside = scores[member], scores[~member]
        greedy.append(
            epsilon.lower_bounds(
                (inside[:, None] >= scores).sum(0),
                300,
                (outside[:, None] >= scores).sum(0),
                300,
                delta=0.0,
                tail=0.2,
            ).max()
        )
    assert np.mean(np.array(honest) > 0) <= 0.2
    assert np.mean(np.array(greedy) > 0) > 0.3


def test_scores_with_a_leak_are_found():
    """Gaussian scores with shift 3: large epsilon is refuted, within what the theory allows."""
    rng = np.random.default_rng(2)
    member = np.arange(4000) < 2000
    found = epsilon.from_scores(rng.normal(size=4000) + 3.0 * member, member, rng=rng, delta=1e-5)
    assert 2.0 < found.low < 6.0
    assert found.n == 2000
    assert "other half" in found.method


def test_threshold_choice_equals_naive_search():
    rng = np.random.default_rng(3)
    inside, outside = np.round(rng.normal(1, 1, 40), 1), np.round(rng.normal(0, 1, 50), 1)
    chosen = epsilon._best_threshold(inside, outside, 0.0, 0.05)

    def bound(t):
        return _naive(int((inside >= t).sum()), 40, int((outside >= t).sum()), 50, 0.0, 0.05)

    everything = np.concatenate([inside, outside])
    assert bound(chosen) == pytest.approx(max(bound(t) for t in everything))


def test_a_weak_leak_is_found_with_every_seed_and_never_above_the_promise():
    """The Gaussian mechanism with epsilon 1: thin tails must not win the choice of a threshold."""
    promise, delta = 1.0, 1e-5
    z = smallest_multiplier(lambda z: gaussian_delta(promise, z) <= delta)
    member = np.arange(40_000) < 20_000
    found = []
    for seed in range(25):
        rng = np.random.default_rng(seed)
        scores = rng.normal(size=len(member)) + member / z
        found.append(epsilon.from_scores(scores, member, rng=rng, delta=delta).low)
    assert min(found) > 0.1
    assert max(found) <= promise
    assert np.mean(found) > 0.25


def test_too_few_and_nonsense():
    rng = np.random.default_rng(0)
    assert epsilon.from_scores([1.0, 2.0, 3.0], [1, 0, 0], rng=rng) == Underpowered(
        what="an epsilon bound (members)", have=1, needed=2
    )
    with pytest.raises(UsageError, match="order"):
        epsilon.from_counts(5, 4, 0, 1)
    with pytest.raises(UsageError, match="delta"):
        epsilon.from_counts(1, 4, 0, 1, delta=1.0)
    with pytest.raises(UsageError, match="calls_tried"):
        epsilon.from_counts(1, 4, 0, 1, calls_tried=0)


# -- one run, many coins ---------------------------------------------------------------------------


def _gaussian(shift):
    return lambda x: float(scipy_stats.norm.cdf(scipy_stats.norm.ppf(x) - shift))


def _naive_p_value(m, r, v, eps, delta):
    """[OneRun], with a loop and scipy's binomial."""
    q = 1 / (1 + math.exp(-eps))
    beta, total, alpha = scipy_stats.binom.sf(v - 1, r, q), 0.0, 0.0
    for i in range(1, v + 1):
        total += scipy_stats.binom.pmf(v - i, r, q)
        alpha = max(alpha, total / i)
    return min(1.0, beta + 2 * m * delta * alpha)


@pytest.mark.parametrize("counts", [(1000, 100, 95), (200, 200, 130), (50, 10, 10), (20, 20, 3)])
@pytest.mark.parametrize("delta", [0.0, 1e-5, 1e-2])
def test_coins_equal_the_naive_sum(counts, delta):
    for eps in (0.0, 0.7, 3.0):
        found = epsilon.coins_p_value(*counts, epsilon=eps, delta=delta)
        assert found == pytest.approx(_naive_p_value(*counts, eps, delta), rel=1e-9, abs=1e-14)


def test_all_of_a_hundred_guesses_right_shows_what_is_known():
    """q^100 = 0.05 at the bound of a pure mechanism."""
    low = epsilon.coins_bound(1000, 100, 100)
    assert 1 / (1 + math.exp(-low)) ** 100 == pytest.approx(0.05, rel=1e-6)


# Of the auditor of jax_privacy 1.1 (`_epsilon_one_run`, `_epsilon_one_run_fdp`) on the same counts.
KNOWN = {
    (1000, 100, 95, 1e-5): (2.165175787875041, 3.3233004900323655),
    (2000, 2000, 1400, 1e-5): (0.765864980306458, 1.3758171932761956),
    (500, 50, 50, 1e-6): (2.7833087629132476, 4.9581843463426765),
    (5000, 500, 430, 1e-5): (1.5946531595860713, 2.263527503584592),
}


@pytest.mark.parametrize("counts", KNOWN)
def test_bounds_equal_those_of_another_implementation(counts):
    m, r, v, delta = counts
    any_mechanism, gaussian = KNOWN[counts]
    assert epsilon.coins_bound(m, r, v, delta=delta) == pytest.approx(any_mechanism, abs=1e-6)
    for at, refuted in ((gaussian - 1e-4, True), (gaussian + 1e-4, False)):
        z = smallest_gaussian(at, delta)
        assert epsilon.f_dp_refutes(m, r, v, _gaussian(1 / z), 0.05) is refuted


def smallest_gaussian(eps, delta):
    """The noise multiplier of one Gaussian mechanism that is (eps, delta)-DP, by bisection."""
    low, high = 0.01, 100.0
    while high / low > 1 + 1e-9:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if gaussian_delta(eps, middle) > delta else (low, middle)
    return high


def test_the_p_value_of_a_curve_is_where_it_begins_to_be_refuted():
    curve = _gaussian(1.0)
    for right in (60, 90, 97):
        p = epsilon.f_dp_p_value(500, 100, right, curve)
        if p < 1:
            assert epsilon.f_dp_refutes(500, 100, right, curve, p)
            assert not epsilon.f_dp_refutes(500, 100, right, curve, p / 1.02)
    found = [epsilon.f_dp_p_value(500, 100, right, curve) for right in range(50, 101, 5)]
    assert found == sorted(found, reverse=True)
    assert found[0] > 0.05 > found[-1]


def test_a_family_search_finds_the_last_refuted_curve():
    curves = {i: _gaussian(0.05 * 1.1**i) for i in range(-60, 61)}
    found = epsilon.f_dp_bound(500, 100, 85, curves.__getitem__, most=60)
    assert epsilon.f_dp_refutes(500, 100, 85, curves[found], 0.05)
    assert not epsilon.f_dp_refutes(500, 100, 85, curves[found + 1], 0.05)
    assert epsilon.f_dp_bound(500, 100, 50, curves.__getitem__, most=16) is None


def test_coverage_of_both_bounds_and_of_the_consistency_test():
    """Coins behind a Gaussian of shift 1: false refutations stay below 5 % in 300 runs."""
    rng, m, shift = np.random.default_rng(0), 300, 1.0
    tv = 2 * scipy_stats.norm.cdf(shift / 2) - 1
    true = next(e for e in np.linspace(0, 10, 10001) if gaussian_delta(e, 1 / shift) <= 1e-5)
    wrong = {"any": 0, "curve": 0, "consistent": 0}
    for _ in range(300):
        coin = rng.random(m) < 0.5
        score = shift * coin + rng.normal(size=m)
        order = np.argsort(score)
        right = int((~coin[order[:50]]).sum() + coin[order[-50:]].sum())
        wrong["any"] += epsilon.coins_p_value(m, 100, right, epsilon=true, delta=1e-5) <= 0.05
        wrong["curve"] += epsilon.f_dp_refutes(m, 100, right, _gaussian(shift), 0.05)
        whole = int(((score > shift / 2) == coin).sum())
        p = epsilon.independent_p_value(m, whole, total_variation=tv)
        wrong["consistent"] += p <= 0.05
    assert wrong["any"] <= 1
    assert wrong["curve"] <= 24  # 95 % of runs at most at a rate of 5 %: 15 + 2.3 deviations
    assert wrong["consistent"] <= 24


def test_betting_covers_dependent_coins_and_nears_the_mean():
    """All coins of a run share one loss: runs are 0.9 or 0.5 right."""
    rng, above = np.random.default_rng(1), 0
    lows = []
    for _ in range(200):
        shares = np.where(rng.random(200) < 0.5, 0.9, 0.5)
        lows.append(epsilon.rehearsals_bound(shares))
        above += lows[-1] > 0.7
    assert above <= 17
    assert np.median(lows) > 0.65


@pytest.mark.parametrize("counts", [(10, 11, 5), (10, 5, 6), (0, 0, 0), (10, 5, -1)])
def test_impossible_counts_are_refused(counts):
    with pytest.raises(UsageError):
        epsilon.coins_bound(*counts)
