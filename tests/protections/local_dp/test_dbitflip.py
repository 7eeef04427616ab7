"""dBitFlipPM: how many buckets are asked for, and what that costs."""

import numpy as np
import pytest

from fedaudit.errors import ConfigError
from fedaudit.protections.local_dp import RAPPOR, DBitFlip


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
