import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics

from fedaudit.errors import UsageError
from fedaudit.stats import clustering

# Published "Random" rows for T = 10 rounds: independent uniform labels.
PUBLISHED_RANDOM_T10 = {
    3: (0.458, 0.563, 0.074),
    5: (0.351, 0.689, 0.192),
    10: (0.260, 0.827, 0.484),
    20: (0.206, 0.909, 0.933),
    40: (0.170, 0.954, 1.486),
    70: (0.148, 0.973, 1.984),
}

pairs_of_labels = st.integers(1, 30).flatmap(
    lambda n: st.tuples(
        st.lists(st.integers(0, 5), min_size=n, max_size=n),
        st.lists(st.integers(0, 5), min_size=n, max_size=n),
    )
)


def _naive_purity(truth, labels):
    total = 0
    for c in set(labels):
        inside = [t for t, label in zip(truth, labels, strict=True) if label == c]
        total += max(inside.count(t) for t in set(inside))
    return total / len(truth)


def _naive_rand(truth, labels):
    agree = [
        (truth[i] == truth[j]) == (labels[i] == labels[j])
        for i, j in itertools.combinations(range(len(truth)), 2)
    ]
    return sum(agree) / len(agree) if agree else 1.0


@settings(deadline=None, max_examples=80)
@given(pairs_of_labels)
def test_scores_equal_sklearn_and_naive_twins(pair):
    truth, labels = pair
    found = clustering.scores(truth, labels)
    assert found["purity"] == pytest.approx(_naive_purity(truth, labels))
    assert found["rand_index"] == pytest.approx(_naive_rand(truth, labels))
    assert found["rand_index"] == pytest.approx(metrics.rand_score(truth, labels))
    assert found["mutual_information"] == pytest.approx(
        metrics.mutual_info_score(truth, labels), abs=1e-12
    )
    if len(truth) > 1:
        assert found["adjusted_rand"] == pytest.approx(
            metrics.adjusted_rand_score(truth, labels), abs=1e-12
        )


def test_names_do_not_matter():
    truth = np.array(["anna", "bo", "anna", "cy"])
    assert clustering.scores(truth, [7, 1, 7, 9]) == pytest.approx(
        {
            "purity": 1.0,
            "rand_index": 1.0,
            "mutual_information": -sum(p * math.log(p) for p in (0.5, 0.25, 0.25)),
            "adjusted_rand": 1.0,
        }
    )


def test_tables_are_vectorised():
    tables = np.random.default_rng(0).integers(0, 5, size=(3, 2, 4, 6))
    for score in clustering.SCORES.values():
        together = score(tables)
        assert together.shape == (3, 2)
        for index in np.ndindex(3, 2):
            assert together[index] == pytest.approx(float(score(tables[index])))


@settings(deadline=None, max_examples=80)
@given(st.integers(2, 6), st.integers(1, 6), st.integers(0, 2**31), st.booleans())
def test_leaving_out_a_class_equals_deleting_its_row(classes, clusters, seed, fractions):
    rng = np.random.default_rng(seed)
    table = rng.integers(0, 4, size=(classes, clusters)).astype(float)
    table[:, 0] += 1  # every class has a message
    if fractions:
        table[-1] = 0.3
    found = clustering.without_each_class(table)
    for name, score in clustering.SCORES.items():
        slow = [float(score(np.delete(table, i, axis=0))) for i in range(classes)]
        np.testing.assert_allclose(found[name], slow, atol=1e-12)


def test_leaving_out_the_only_class_is_refused():
    with pytest.raises(UsageError, match="at least two classes"):
        clustering.without_each_class(np.ones((1, 3)))


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 40), st.integers(1, 7), st.integers(1, 9), st.integers(0, 2**31))
def test_scores_of_many_labellings_equal_those_of_each(messages, classes, clusters, seed):
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, classes, size=messages)
    labels = rng.integers(0, clusters, size=(5, messages))
    found = clustering._scores_of_draws(truth, labels, classes, clusters)
    for draw in range(5):
        for name, value in clustering.scores(truth, labels[draw]).items():
            assert found[name][draw] == pytest.approx(value, abs=1e-12)


def _design(clients, rounds):
    return np.tile(np.arange(clients), rounds), np.repeat(np.arange(rounds), clients)


@pytest.mark.parametrize("clients", sorted(PUBLISHED_RANDOM_T10))
def test_uniform_chance_equals_the_published_random_row(clients):
    truth, rounds = _design(clients, 10)
    found = clustering.chance(
        truth, rounds, rng=np.random.default_rng(1), design="uniform", draws=1500
    )
    measured = [found[s].value for s in ("purity", "rand_index", "mutual_information")]
    # both sides are means over random draws, the published one rounded to three digits
    assert measured == pytest.approx(PUBLISHED_RANDOM_T10[clients], abs=0.004)


def test_permutation_chance_for_twenty_clients_and_ten_rounds():
    found = clustering.chance(*_design(20, 10), rng=np.random.default_rng(2), draws=4000)
    measured = [found[s].value for s in ("purity", "rand_index", "mutual_information")]
    assert measured == pytest.approx([0.217, 0.914, 0.981], abs=0.0015)
    # Agreeing by chance: the label of a sender in another round is right with 1/20.
    assert found["rand_index"].value == pytest.approx(
        1 - 2 * math.comb(10, 2) * 20 * (1 - 1 / 20) / math.comb(200, 2), abs=5e-4
    )


def test_chance_equals_a_slow_twin():
    truth, rounds = _design(4, 3)
    rng = np.random.default_rng(3)
    slow = [
        clustering.scores(truth, np.concatenate([rng.permutation(4) for _ in range(3)]))
        for _ in range(3000)
    ]
    found = clustering.chance(truth, rounds, rng=rng, draws=3000)
    for name, estimate in found.items():
        assert estimate.value == pytest.approx(np.mean([s[name] for s in slow]), abs=0.015)


def test_chance_range_holds_a_random_linker():
    truth, rounds = _design(10, 5)
    rng = np.random.default_rng(4)
    span = clustering.chance(truth, rounds, rng=rng)["purity"]
    scored = [
        clustering.scores(truth, np.concatenate([rng.permutation(10) for _ in range(5)]))["purity"]
        for _ in range(400)
    ]
    assert np.mean([(span.low <= s <= span.high) for s in scored]) > 0.92
    assert span.high < 1.0


def test_clients_may_be_absent_and_rows_in_any_order():
    truth, rounds = _design(6, 8)
    rng = np.random.default_rng(5)
    keep = rng.permutation(48)[:30]
    found = clustering.chance(truth[keep], rounds[keep], rng=rng, draws=500)
    assert 0 < found["purity"].value < 1
    slow = []
    for _ in range(800):
        labels = np.empty(30, dtype=int)
        for r in np.unique(rounds[keep]):
            here = rounds[keep] == r
            labels[here] = rng.permutation(6)[: here.sum()]
        slow.append(clustering.scores(truth[keep], labels)["purity"])
    assert found["purity"].value == pytest.approx(np.mean(slow), abs=0.015)


def test_adjusted_rand_of_uniform_labels_is_zero_on_average():
    found = clustering.chance(
        *_design(8, 6), rng=np.random.default_rng(6), design="uniform", draws=3000
    )
    assert found["adjusted_rand"].value == pytest.approx(0.0, abs=0.004)


def test_refusals():
    rng = np.random.default_rng(0)
    with pytest.raises(UsageError, match="truth and labels do not fit"):
        clustering.scores([1, 2], [1])
    with pytest.raises(UsageError, match="random linker"):
        clustering.chance([0, 1, 2], [0, 0, 0], rng=rng, clusters=2)
    with pytest.raises(UsageError, match="did you mean 'uniform'"):
        clustering.chance([0, 1], [0, 0], rng=rng, design="unifrom")
