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
