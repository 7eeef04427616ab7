"""All estimates from one product on distinct sums, against sums added up one by one."""

import numpy as np
import pytest

from fedaudit.audits.attribution import estimator
from fedaudit.errors import UsageError
from fedaudit.stats import query_plans

K, D = 8, 5
UPDATES = np.random.default_rng(3).standard_normal((K, D))


def asked(pairs):
    rows = np.unique(np.concatenate([p.queries for p in pairs]), axis=0)
    return np.concatenate([np.ones((1, K)), rows])


def test_one_product_equals_the_mean_of_include_sums_minus_that_of_exclude_sums():
    pairs = query_plans.paired_plan(K, 3, 4, np.random.default_rng(0))
    queries = asked(pairs)
    assert len(queries) < 1 + 2 * 4 * K  # a subset drawn twice is one query
    made = estimator.published(pairs, queries)
    got = made.of(queries @ UPDATES)
    for pair, row, design in zip(pairs, got, made.design, strict=True):
        include = [sum(UPDATES[j] for j in np.flatnonzero(u)) for u in pair.include]
        exclude = [sum(UPDATES[j] for j in np.flatnonzero(v)) for v in pair.exclude]
        assert np.allclose(row, np.mean(include, axis=0) - np.mean(exclude, axis=0))
        assert np.allclose(design, pair.contrast)
        assert np.isclose(design[pair.target], 1.0)


def test_pooled_and_group_candidates_weigh_clients_as_their_design_says():
    queries = asked(query_plans.paired_plan(K, 3, 4, np.random.default_rng(1)))
    made = estimator.pooled(queries)
    assert made.target.tolist() == list(range(K))
    assert np.allclose(np.diag(made.design), 1.0)
    assert np.allclose(made.of(queries @ UPDATES), made.design @ UPDATES)
    parts = query_plans.random_partitions(K, 4, 1, np.random.default_rng(2))[0]
    groups = estimator.groups(parts)
    assert np.allclose(groups.design.sum(axis=1), 1.0)
    assert np.allclose(groups.of(parts @ UPDATES)[0], UPDATES[parts[0] == 1].mean(axis=0))


def test_bad_input():
    pairs = query_plans.paired_plan(K, 3, 4, np.random.default_rng(0))
    with pytest.raises(UsageError, match="no answer"):
        estimator.published(pairs, asked(pairs)[:-1])
    with pytest.raises(UsageError, match="no client has subsets"):
        estimator.pooled(np.ones((1, K)))
    with pytest.raises(UsageError, match="no clients"):
        estimator.groups(np.zeros((1, K)))


def test_updates_are_solved_for_where_the_sums_determine_them():
    """One round of the published pairs determines all updates; a partition determines none."""
    rng = np.random.default_rng(5)
    pairs = query_plans.paired_plan(10, 5, 5, rng)
    asked = np.unique(np.concatenate([p.queries for p in pairs]), axis=0).astype(float)
    updates = rng.standard_normal((10, 7))
    found = estimator.solved(asked)
    assert found.target.tolist() == list(range(10))
    assert np.allclose(found.of(asked @ updates), updates)
    groups = np.array([[1, 1, 0, 0], [0, 0, 1, 1], [1, 1, 1, 1]])
    assert len(estimator.solved(groups)) == 0

    made = estimator.published(pairs, asked)
    assert (estimator.decisive(made, asked).design == np.eye(10)).all()
    assert estimator.decisive(made, groups) is made, "these sums determine nobody"
    means = estimator.groups(groups[:2])
    assert estimator.decisive(means, groups) is means


def test_candidates_from_answers_one_after_another_are_the_matrix_product():
    rng = np.random.default_rng(3)
    weights = rng.standard_normal((4, 6)) * (rng.random((4, 6)) < 0.5)
    sums = rng.standard_normal((6, 20)).astype(np.float32)
    for at_once in (None, 1, 4):
        got = estimator.combined(weights, (row for row in sums), at_once=at_once)
        assert np.allclose(got, weights @ sums.astype(np.float64))
    with pytest.raises(UsageError, match="do not fit the coefficients"):
        estimator.combined(weights, sums[:5])
