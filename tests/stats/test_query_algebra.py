"""Query algebra against slow rational twins, and cases where floating point fails."""

from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest

from fedaudit.errors import UsageError
from fedaudit.stats import query_algebra as qa


def eliminated(matrix):
    """Rank over the rationals, by Gauss with fractions."""
    rows = [[Fraction(int(v)) for v in row] for row in matrix]
    rank = 0
    for column in range(len(rows[0]) if rows else 0):
        pivot = next((r for r in range(rank, len(rows)) if rows[r][column]), None)
        if pivot is None:
            continue
        rows[rank], rows[pivot] = rows[pivot], rows[rank]
        for r in range(rank + 1, len(rows)):
            factor = rows[r][column] / rows[rank][column]
            rows[r] = [a - factor * b for a, b in zip(rows[r], rows[rank], strict=True)]
        rank += 1
    return rank


def fewest(matrix):
    """The smallest support by trying all sets of clients."""
    clients, full = matrix.shape[1], eliminated(matrix)
    for size in range(1, clients + 1):
        for inside in combinations(range(clients), size):
            others = [c for c in range(clients) if c not in inside]
            if (eliminated(matrix[:, others]) if others else 0) < full:
                return size
    return 0


def matrices(count, largest=7):
    """0/1, small whole, sparse, and 0/1 with clients who always occur together."""
    rng = np.random.default_rng(11)
    for i in range(count):
        clients = int(rng.integers(2, largest + 1))
        shape = (int(rng.integers(1, clients + 2)), clients)
        yield (
            rng.integers(0, 2, shape),
            rng.integers(-3, 4, shape),
            (rng.random(shape) < 0.3).astype(int),
            np.repeat(rng.integers(0, 2, (shape[0], clients)), 2, axis=1)[:, :clients],
        )[i % 4]


def test_rank_recoverable_and_support_as_the_slow_twins_say():
    seen = set()
    for a in matrices(100):
        clients, rank = a.shape[1], eliminated(a)
        assert qa.rank(a) == rank
        unit = np.eye(clients, dtype=int)
        alone = [k for k in range(clients) if eliminated(np.vstack([a, unit[k]])) == rank]
        assert qa.recoverable(a) == tuple(alone)
        support = qa.smallest_support(a)
        assert support.exact
        assert support.value == len(support.clients) == fewest(a)
        seen.add(support.value)
    assert seen >= {0, 1, 2, 3, 4}


def test_with_a_limit_the_search_answers_that_question_alone():
    for a in matrices(80):
        true = fewest(a)
        for below in (2, 3, 5):
            found = qa.smallest_support(a, below=below)
            assert (found.value < below) == (true < below)
            assert found.value < below or found.floor >= below
            assert found.floor <= true <= found.value


def test_columns_scaled_by_irrational_numbers_keep_all_of_it():
    """Scaling columns keeps all supports; these matrices take the floating-point path."""
    for a in matrices(60, largest=6):
        real = a * np.sqrt([2.0, 3.0, 5.0, 7.0, 11.0, 13.0])[: a.shape[1]]
        assert qa.rank(real) == qa.rank(a)
        assert qa.recoverable(real) == qa.recoverable(a)
        exact, found = qa.smallest_support(a), qa.smallest_support(real)
        assert (found.value, found.floor) == (exact.value, exact.floor)


def test_floating_point_would_see_rank_one():
    big = 10**8
    a = np.array([[big, big + 1], [big - 1, big]])  # determinant 1
    assert np.linalg.matrix_rank(a) == 1
    assert qa.rank(a) == 2
    assert qa.recoverable(a) == (0, 1)


def test_a_prime_that_divides_a_minor_fools_nobody():
    p = 2**31 - 1  # the first prime of the elimination
    assert qa.rank([[p]]) == 1
    assert qa.recoverable([[1, p, 0], [0, 0, 1]]) == (2,)
    assert qa.smallest_support([[1, p]]).value == 2
    assert qa.recoverable([[1, p], [0, 1]]) == (0, 1)


def test_fractions_are_exact_too():
    thirds = np.array([[1 / 3, 1 / 3, 1 / 3, 0], [0.1, 0.1, 0.1, 0.7], [0.25, 0.5, 0.25, 0]])
    assert qa.rank(thirds) == 3
    assert qa.recoverable(thirds) == (1, 3)
    assert qa.smallest_support(thirds).clients in ((1,), (3,))


def test_two_sums_that_differ_in_one_client_are_its_plaintext():
    a = [[1, 1, 1, 1, 0], [1, 1, 1, 0, 0]]
    assert qa.recoverable(a) == (3,)
    assert qa.smallest_support(a).clients == (3,)


def test_a_witness_is_a_combination_of_the_answers():
    for a in matrices(80):
        support = qa.smallest_support(a)
        if support.value:
            inside = np.isin(np.arange(a.shape[1]), support.clients)
            left, values, _ = np.linalg.svd(a[:, ~inside])  # cancel everybody else
            weights = left[:, int((values > 1e-9).sum()) :].T @ a[:, inside]
            assert np.abs(weights).max(axis=0).min() > 1e-8


def test_shares_are_the_projector_and_sum_to_the_rank():
    rng = np.random.default_rng(2)
    for a in matrices(60):
        share = qa.share(a)
        assert share.sum() == pytest.approx(qa.rank(a))
        assert set(np.flatnonzero(share == 1.0)) == set(qa.recoverable(a))
        projector = np.linalg.pinv(a.astype(float)) @ a
        assert np.allclose(share, np.diag(projector))
    # of uncorrelated vectors, what the best linear guess explains
    a = np.array([[1, 1, 0, 0], [0, 1, 1, 1]])
    x = rng.standard_normal((4, 200_000))
    guess = np.linalg.pinv(a) @ (a @ x)
    explained = 1 - ((x - guess) ** 2).mean(axis=1)
    assert np.allclose(explained, qa.share(a), atol=0.01)


def test_condition_is_of_distinct_queries_on_their_row_space():
    a = np.array([[1, 1, 0], [1, 1, 0], [0, 0, 2], [0, 0, 0]])
    assert qa.condition(a) == pytest.approx(2 / np.sqrt(2))
    assert qa.condition(np.zeros((2, 3))) == 1.0


def test_groups_expose_groups_and_nothing_smaller():
    groups = np.kron(np.eye(4, dtype=int), np.ones((1, 5), dtype=int))
    with_total = np.vstack([groups, np.ones((1, 20), dtype=int)])
    support = qa.smallest_support(with_total)
    assert (support.value, support.exact) == (5, True)
    assert qa.rank(with_total) == 4
    assert np.allclose(qa.share(with_total), 0.2)


def test_what_a_query_adds_is_known_before_it_is_asked():
    told = [[1, 1, 1, 0, 0, 0], [0, 0, 0, 1, 1, 1]]
    again = qa.added_by(told, [1, 1, 1, 1, 1, 1])
    assert (again.rank, again.recoverable, again.support.value) == (0, (), 3)
    assert np.allclose(again.share, 0)
    cut = qa.added_by(told, [1, 1, 0, 1, 0, 0])
    assert (cut.rank, cut.recoverable, cut.support.value) == (1, (), 2)
    lone = qa.added_by(told, [1, 1, 0, 0, 0, 0])
    assert lone.recoverable == (2,)
    assert lone.support.clients == (2,)
    assert lone.share[2] == pytest.approx(2 / 3)
    first = qa.added_by([], [1, 1, 0])
    assert (first.rank, first.support.value) == (1, 2)


def test_where_work_does_not_suffice_both_ends_are_true():
    rng = np.random.default_rng(5)
    a = rng.integers(0, 2, (9, 18))
    exact = qa.smallest_support(a)
    assert exact.exact
    bounded = qa.smallest_support(a, work=2_000)
    assert bounded.floor <= exact.value <= bounded.value
    assert not bounded.exact


def test_a_large_random_plan_is_searched_from_the_cheaper_side():
    """Few rows: all words by zeros. Few missing rows: all dependent checks."""
    rng = np.random.default_rng(6)
    for rows in (4, 37):
        a = rng.integers(0, 2, (rows, 40))
        found = qa.smallest_support(a)
        assert found.exact
        others = np.delete(a, list(found.clients), axis=1)
        assert qa.rank(others) < qa.rank(a)


@pytest.mark.parametrize(
    ("queries", "words"),
    [
        ([1, 0, 1], "matrix"),
        (np.zeros((2, 0)), "matrix"),
        ([[1.0, np.nan]], "finite"),
        ([[1.0, np.inf]], "finite"),
    ],
)
def test_what_is_no_query_matrix_is_refused(queries, words):
    with pytest.raises(UsageError, match=words):
        qa.rank(queries)
