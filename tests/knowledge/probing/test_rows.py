"""Records as rows, and their numbers in a universe."""

import numpy as np

from fedaudit.audits.active_membership.games import Universe
from fedaudit.knowledge.probing.rows import numbers_of


def test_records_that_are_equal_share_a_number():
    rng = np.random.default_rng(3)
    pool = rng.integers(0, 3, (60, 2)) / 2.0
    universe = Universe.of(pool)
    kept = universe.restricted(np.array([0, 2, 3, 5, 7]))
    for some in (universe, kept):
        first, number = numbers_of(some, pool)
        for row, own in zip(pool, number, strict=True):
            at = [i for i, value in enumerate(some.values) if (value == row).all()]
            assert own == (at[0] if at else -1)
        for i in range(len(some)):
            assert first[i] == number.tolist().index(i)
    assert (number == -1).any()
