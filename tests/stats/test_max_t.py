import itertools

import numpy as np
import pytest
from scipy import stats as scipy_stats

from fedaudit.errors import UsageError
from fedaudit.stats.max_t import max_t, rank_weights, restricted, success_weights


def naive(weights, labels, strata):
    """Single steps, one labelling at a time: p of each reading alone and adjusted step-down p."""
    n = len(labels)
    kept = []
    for bits in itertools.product([False, True], repeat=n):
        y = np.array(bits)
        if all(y[strata == s].sum() == labels[strata == s].sum() for s in np.unique(strata)):
            kept.append([float(sum(w[y])) for w in weights])
    values = np.array(kept)
    seen = np.array([float(sum(w[labels])) for w in weights])
    mean, sd = values.mean(axis=0), values.std(axis=0)
    z, z_seen = (values - mean) / sd, (seen - mean) / sd
    alone = [(z[:, j] >= z_seen[j] - 1e-9).mean() for j in range(len(weights))]
    order = sorted(range(len(weights)), key=lambda j: -z_seen[j])
    adjusted, worst = [0.0] * len(weights), 0.0
    for i, j in enumerate(order):
        largest = z[:, order[i:]].max(axis=1)
        worst = max(worst, (largest >= z_seen[j] - 1e-9).mean())
        adjusted[j] = worst
    return np.array(alone), np.array(adjusted)


@pytest.mark.parametrize("seed", range(6))
def test_equals_its_naive_twin(seed):
    rng = np.random.default_rng(seed)
    strata = np.repeat(["a", "b"], [6, 5])
    labels = rng.random(11) < 0.5
    labels[[0, 6]], labels[[1, 7]] = True, False
    weights = np.stack([rng.normal(size=11), rng.integers(0, 3, 11), rng.normal(size=11) + labels])
    found = max_t(weights, labels, rng=rng, strata=strata)
    alone, adjusted = naive(weights, labels, strata)
    assert found.exact
    np.testing.assert_allclose(found.p_value, alone)
    np.testing.assert_allclose(found.adjusted, adjusted)
    assert found.p == adjusted.min()


def test_one_rank_reading_is_the_exact_rank_sum_test():
    rng = np.random.default_rng(1)
    scores, labels = rng.normal(size=14), np.arange(14) < 6
    found = max_t([rank_weights(scores)], labels, rng=rng)
    expected = scipy_stats.mannwhitneyu(
        scores[labels], scores[~labels], alternative="greater", method="exact"
    )
    assert found.p == pytest.approx(expected.pvalue)
    assert found.labellings == 3003


def test_one_success_reading_is_the_exact_test_of_its_design():
    rng = np.random.default_rng(2)
    called, labels = rng.random(13) < 0.5, rng.random(13) < 0.5
    coins = max_t([success_weights(called)], labels, rng=rng, coins=True)
    right = int((called == labels).sum())
    assert coins.p == pytest.approx(scipy_stats.binom.sf(right - 1, 13, 0.5))
    given = max_t([success_weights(called)], labels, rng=rng)
    table = [
        [(called & labels).sum(), (~called & labels).sum()],
        [(called & ~labels).sum(), (~called & ~labels).sum()],
    ]
    assert given.p == pytest.approx(scipy_stats.fisher_exact(table, alternative="greater").pvalue)


def test_drawn_labellings_agree_with_all_of_them():
    rng = np.random.default_rng(3)
    labels = np.arange(16) < 8
    weights = np.stack([rng.normal(size=16) + 0.5 * labels, rng.normal(size=16)])
    whole = max_t(weights, labels, rng=rng)
    drawn = max_t(weights, labels, rng=rng, enumerate_up_to=1, draws=40_000)
    assert (whole.exact, drawn.exact) == (True, False)
    np.testing.assert_allclose(drawn.adjusted, whole.adjusted, atol=0.01)
    np.testing.assert_allclose(drawn.critical(0.05), whole.critical(0.05), rtol=0.05)


def _games(rng, n, shift):
    labels = rng.random(n) < 0.5
    return rng.normal(size=n) + shift * labels, labels


@pytest.mark.parametrize("coins", [False, True])
def test_null_alarms_stay_at_the_level(coins):
    """Four readings of the same games; about 5 % of families alarm."""
    rng = np.random.default_rng(4)
    alarms, repeats = 0, 1500
    for _ in range(repeats):
        scores, labels = _games(rng, 40, 0.0)
        noisy = scores + rng.normal(size=40)
        readings = [success_weights(scores > 0), *map(rank_weights, (scores, noisy, -scores))]
        alarms += max_t(readings, labels, rng=rng, coins=coins, draws=199).p <= 0.05
    assert scipy_stats.binomtest(alarms, repeats, 0.05, alternative="greater").pvalue > 0.001
    assert alarms > 0.03 * repeats


def test_null_alarms_with_clients_and_groups_in_one_family():
    """Strata differ in level and size: pooled scores would alarm, labels within strata do not."""
    rng = np.random.default_rng(5)
    client = np.repeat(np.arange(4), [30, 20, 10, 6])
    alarms, repeats = 0, 1000
    for _ in range(repeats):
        labels = rng.random(66) < 0.2 + 0.2 * client
        scores = rng.normal(size=66) + 2.0 * client  # confounded by the client
        ranks = rank_weights(scores, client)
        masks = [client >= 0, client < 2, *(client == c for c in range(4))]
        alarms += (
            max_t(restricted(ranks, masks), labels, rng=rng, strata=client, draws=199).p <= 0.05
        )
    assert scipy_stats.binomtest(alarms, repeats, 0.05, alternative="greater").pvalue > 0.001
    assert alarms > 0.02 * repeats


def test_a_second_equal_reading_costs_nothing_and_a_blind_one_little():
    rng = np.random.default_rng(6)
    found = {"alone": 0, "twice": 0, "beside a blind one": 0}
    for _ in range(400):
        scores, labels = _games(rng, 80, 0.6)
        own = rank_weights(scores)
        blind = rank_weights(rng.normal(size=80))
        for name, family in zip(found, ([own], [own, own], [own, blind]), strict=True):
            found[name] += max_t(family, labels, rng=rng, draws=399).p <= 0.05
    assert found["alone"] > 0.7 * 400  # the exact rank-sum test has power 0.83 here
    assert abs(found["twice"] - found["alone"]) < 0.04 * 400
    assert found["beside a blind one"] > found["alone"] - 0.14 * 400


def test_names_the_reading_that_decided():
    rng = np.random.default_rng(7)
    scores, labels = _games(rng, 200, 1.0)
    readings = [rank_weights(rng.normal(size=200)), rank_weights(scores)]
    found = max_t(readings, labels, rng=rng)
    assert found.decided == 1
    assert found.adjusted[1] == pytest.approx(1e-4)
    assert found.adjusted[0] >= found.p_value[0]


def test_a_reading_that_labels_cannot_change_neither_alarms_nor_costs():
    rng = np.random.default_rng(8)
    scores, labels = _games(rng, 60, 0.5)
    own = rank_weights(scores)
    alone = max_t([own], labels, rng=np.random.default_rng(1))
    beside = max_t([own, np.full(60, 0.1)], labels, rng=np.random.default_rng(1))
    assert beside.adjusted[1] == 1.0
    assert beside.adjusted[0] == alone.adjusted[0]
    assert np.isinf(beside.critical(0.05)[1])


def test_critical_values_are_where_the_verdict_turns():
    rng = np.random.default_rng(9)
    labels = np.arange(12) < 6
    scores = rng.normal(size=12)
    weights = [rank_weights(scores), success_weights(scores > 0)]
    cut = max_t(weights, labels, rng=rng).critical(0.05)
    for _ in range(200):
        y = rng.permutation(labels)
        found = max_t(weights, y, rng=rng)
        assert (found.p <= 0.05) == bool((found.observed >= cut - 1e-9).any())
    assert np.isinf(max_t(weights, labels, rng=rng).critical(0.001)).all()


def test_a_function_of_labels_can_be_a_reading():
    rng = np.random.default_rng(10)
    scores, labels = _games(rng, 12, 1.0)

    def largest_gap(y):
        return (np.where(y, scores, -np.inf).max(axis=1))[:, None]

    found = max_t(largest_gap, labels, rng=rng)
    assert found.exact
    assert 0 < found.p <= 1
    with pytest.raises(UsageError, match="k readings per labelling"):
        max_t(lambda y: np.zeros(3), labels, rng=rng)


def test_two_sided_counts_both_tails():
    rng = np.random.default_rng(11)
    scores, labels = _games(rng, 50, -1.2)
    assert max_t([rank_weights(scores)], labels, rng=rng).p > 0.5
    assert max_t([rank_weights(scores)], labels, rng=rng, two_sided=True).p < 0.05


@pytest.mark.parametrize(
    ("readings", "labels", "more", "message"),
    [
        (np.zeros((1, 3)), [True, False], {}, "do not fit"),
        (np.zeros((0, 2)), [True, False], {}, "do not fit"),
        ([[0.0, np.nan]], [True, False], {}, "finite"),
        ([[0.0, 1.0]], [0.5, 1.0], {}, "true or false"),
        ([[0.0, 1.0]], [True, False], {"strata": ["a"]}, "strata"),
        ([[0.0, 1.0]], [True, False], {"strata": ["a", "a"], "coins": True}, "no strata"),
    ],
)
def test_refuses_what_does_not_fit(readings, labels, more, message):
    with pytest.raises(UsageError, match=message):
        max_t(readings, labels, rng=np.random.default_rng(0), **more)
