import numpy as np
import pytest
from scipy import stats as scipy_stats
from sklearn import metrics

from fedaudit.errors import UsageError
from fedaudit.results import Estimate, Underpowered
from fedaudit.stats import roc


def _sample(seed, n1=60, n0=80, shift=0.8, digits=None):
    rng = np.random.default_rng(seed)
    scores = np.concatenate([rng.normal(shift, 1, n1), rng.normal(0, 1, n0)])
    member = np.arange(n1 + n0) < n1
    order = rng.permutation(n1 + n0)
    scores = scores if digits is None else np.round(scores, digits)
    return scores[order], member[order]


def _naive_delong(inside, outside):
    """The variance from the full n1 x n0 matrix of comparisons."""
    compare = (inside[:, None] > outside) + 0.5 * (inside[:, None] == outside)
    v1, v0 = compare.mean(axis=1).var(ddof=1), compare.mean(axis=0).var(ddof=1)
    return compare.mean(), np.sqrt(v1 / len(inside) + v0 / len(outside))


@pytest.mark.parametrize("digits", [None, 1, 0])
def test_curve_and_auc_equal_sklearn(digits):
    scores, member = _sample(0, digits=digits)
    fpr, tpr, threshold = metrics.roc_curve(member, scores, drop_intermediate=False)
    ours = roc.curve(scores, member)
    np.testing.assert_allclose(ours.false_positive_rate, fpr, atol=1e-15)
    np.testing.assert_allclose(ours.true_positive_rate, tpr, atol=1e-15)
    np.testing.assert_array_equal(ours.threshold, threshold)
    assert roc.auc(scores, member).value == pytest.approx(metrics.roc_auc_score(member, scores))


@pytest.mark.parametrize("digits", [None, 1, 0])
def test_delong_equals_the_matrix_of_all_comparisons(digits):
    scores, member = _sample(1, digits=digits)
    value, error = _naive_delong(scores[member], scores[~member])
    found = roc.auc(scores, member, confidence=0.9)
    half = scipy_stats.norm.ppf(0.95) * error
    assert (found.value, found.low, found.high) == pytest.approx(
        (value, value - half, value + half), rel=1e-12
    )
    assert found.baseline == 0.5


def test_auc_interval_covers():
    """Normal scores with shift 1: AUC = Phi(1 / sqrt 2)."""
    truth = scipy_stats.norm.cdf(1 / np.sqrt(2))
    hits = 0
    for seed in range(300):
        found = roc.auc(*_sample(seed, n1=50, n0=50, shift=1.0))
        hits += found.low <= truth <= found.high
    assert 0.9 < hits / 300 < 0.985


def test_bootstrap_agrees_with_delong_and_with_resampling_records():
    scores, member = _sample(2, digits=1)
    quick = roc.auc(
        scores, member, interval="bootstrap", rng=np.random.default_rng(0), resamples=4000
    )
    delong = roc.auc(scores, member)
    assert (quick.low, quick.high) == pytest.approx((delong.low, delong.high), abs=0.015)
    rng, inside, outside = np.random.default_rng(1), scores[member], scores[~member]
    slow = [_naive_delong(rng.choice(inside, 60), rng.choice(outside, 80))[0] for _ in range(1500)]
    assert (quick.low, quick.high) == pytest.approx(
        tuple(np.quantile(slow, [0.025, 0.975])), abs=0.015
    )
    with pytest.raises(UsageError, match="rng"):
        roc.auc(scores, member, interval="bootstrap")


def test_perfect_separation_is_not_certainty():
    found = roc.auc([3.0, 4.0, 5.0, 0.0, 1.0], [1, 1, 1, 0, 0])
    assert found.value == found.high == 1.0
    assert found.low == pytest.approx(0.025 ** (1 / 2))  # two disjoint pairs
    reverse = roc.auc([3.0, 4.0, 5.0, 0.0, 1.0], [0, 0, 0, 1, 1])
    assert (reverse.low, reverse.value) == (0.0, 0.0)
    assert reverse.high == pytest.approx(1 - 0.025 ** (1 / 2))


def test_constant_scores_say_nothing():
    found = roc.auc(np.zeros(40), np.arange(40) < 20)
    assert found.value == 0.5
    assert isinstance(roc.curve(np.zeros(4), [1, 1, 0, 0]), roc.Curve)


def test_one_class_is_underpowered():
    assert roc.auc([1.0, 2.0], [True, True]) == Underpowered(
        what="an AUC (non-members)", have=0, needed=2
    )
    assert isinstance(roc.curve([1.0, 2.0], [False, False]), Underpowered)


@pytest.mark.parametrize(("rate", "needed"), [(0.01, 1000), (0.001, 10000), (0.1, 100), (0.3, 34)])
def test_a_rate_needs_ten_false_positives(rate, needed):
    assert roc.nonmembers_needed(rate) == needed
    rng = np.random.default_rng(0)
    member = np.arange(needed + 50) < 50
    scores = rng.normal(size=needed + 50)
    assert isinstance(roc.true_positive_rate_at(scores, member, rate), Estimate)
    short = roc.true_positive_rate_at(scores[:-1], member[:-1], rate)
    assert isinstance(short, Underpowered)
    assert (short.have, short.needed) == (needed - 1, needed)
    assert str(needed) in str(short)


@pytest.mark.parametrize("digits", [None, 2, 1, 0])
def test_rate_is_never_exceeded_and_equals_the_naive_threshold(digits):
    scores, member = _sample(3, n1=300, n0=1000, shift=1.5, digits=digits)
    inside, outside = scores[member], scores[~member]
    best = max(((inside >= t).mean() for t in scores if (outside >= t).mean() <= 0.01), default=0.0)
    found = roc.true_positive_rate_at(scores, member, 0.01)
    assert found.value <= best
    if digits is None:  # without ties nothing is lost
        assert found.value == pytest.approx(best)
        assert found.value > 0.1


def test_ties_at_the_threshold_are_not_called():
    """All scores equal: calling them would be a false-positive rate of 1."""
    found = roc.true_positive_rate_at(np.zeros(1100), np.arange(1100) < 100, 0.01)
    assert found.value == found.low == 0.0


def test_chance_level_is_what_exchangeable_scores_give():
    rng = np.random.default_rng(4)
    member = np.arange(150) < 50
    found = [roc.true_positive_rate_at(rng.normal(size=150), member, 0.1) for _ in range(2000)]
    assert np.mean([e.value for e in found]) == pytest.approx(found[0].baseline, abs=0.004)
    assert found[0].baseline == 11 / 101


def test_scores_that_do_not_fit_are_refused():
    with pytest.raises(UsageError, match="do not fit"):
        roc.curve([0.3, 0.7], [True])
    with pytest.raises(UsageError, match="finite"):
        roc.curve([0.3, float("nan")], [True, False])


def test_ranks_are_those_of_scipy():
    from scipy.stats import rankdata

    values = np.round(np.random.default_rng(12).normal(size=200), 1)
    np.testing.assert_array_equal(roc.midranks(values), rankdata(values))
