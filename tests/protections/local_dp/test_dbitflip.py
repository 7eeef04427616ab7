"""dBitFlipPM: how many buckets are asked for, and what that costs."""

import numpy as np
import pytest

from fedaudit.errors import ConfigError
from fedaudit.protections.local_dp import RAPPOR, DBitFlip, unary


def test_two_buckets_cost_epsilon_and_one_costs_half():
    of = {d: DBitFlip(epsilon=2.0, alphabet=6, features=3, buckets=d) for d in (1, 2, 6)}
    assert [m.worst_case_epsilon() for m in of.values()] == [3.0, 6.0, 6.0]
    assert {m.claimed_epsilon for m in of.values()} == {6.0}


def test_so_many_buckets_answer_and_all_equally_often():
    m = DBitFlip(epsilon=1.0, alphabet=7, features=2, buckets=3)
    report = m.perturb(np.zeros((5000, 2), int), np.random.default_rng(0))
    assert (report >= 0).sum(axis=-1).min() == (report >= 0).sum(axis=-1).max() == 3
    share = (report >= 0).mean(axis=(0, 1))
    assert np.allclose(share, 3 / 7, atol=0.02)


def test_all_buckets_are_symmetric_unary_encoding():
    """With d = k its law is that of a one-hot RAPPOR report of the same epsilon."""
    flip, rappor = DBitFlip(epsilon=1.7, alphabet=4), RAPPOR(epsilon=1.7, alphabet=4)
    assert np.array_equal(flip.outputs(), rappor.outputs())
    assert np.allclose(flip.transition(), rappor.transition())


def test_the_mean_of_unbiased_reports_is_the_histogram():
    m = DBitFlip(epsilon=3.0, alphabet=5, buckets=2)
    rng = np.random.default_rng(1)
    values = rng.choice(5, p=[0.4, 0.3, 0.2, 0.1, 0.0], size=(40_000, 1))
    histogram = m.unbiased(m.perturb(values, rng)).mean(axis=(0, 1))
    assert np.allclose(histogram, [0.4, 0.3, 0.2, 0.1, 0.0], atol=0.03)


@pytest.mark.parametrize("buckets", [0, 5])
def test_buckets_that_there_are_not_are_refused(buckets):
    with pytest.raises(ConfigError, match="buckets"):
        DBitFlip(epsilon=1.0, alphabet=4, buckets=buckets)


@pytest.mark.parametrize("buckets", [2, None])
def test_unbiased_estimates_are_right_on_average_over_buckets(buckets):
    """Given which buckets are asked for, they are not: k/d times the value there, 0 elsewhere."""
    m = DBitFlip(epsilon=2.0, alphabet=4, buckets=buckets)
    report = m.perturb(np.full((40_000, 1), 1), np.random.default_rng(0))
    found = m.unbiased(report)[:, 0]
    np.testing.assert_allclose(found.mean(axis=0), [0, 1, 0, 0], atol=0.06)
    asked = (report[:, 0] >= 0)[:, 1]
    given = found[asked, 1].mean()
    assert given == pytest.approx(4 / m.sampled, abs=0.1)


@pytest.mark.parametrize(("k", "d"), [(5, 5), (6, 2), (7, 1), (4, 3)])
def test_first_set_bits_by_walking_through_the_positions_one_by_one(k, d):
    """The table for all values at once against the plain recursion for each."""
    p, q = 0.8, 0.3
    slow = np.zeros((k, k))
    for v in range(k):
        clear = np.zeros(d + 1)
        clear[0] = 1.0
        for j in range(k):
            asked = (d - np.arange(d + 1)) / (k - j)
            one = p if j == v else q
            slow[v, j] = (clear * asked).sum() * one
            moved = clear * asked * (1.0 - one)
            clear = clear * (1.0 - asked)
            clear[1:] += moved[:-1]
        slow[v, 0] += clear.sum()
    np.testing.assert_allclose(unary.first_bit_transition(k, d, p, q), slow, atol=1e-14)
