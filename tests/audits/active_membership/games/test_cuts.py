"""Cuts against a search over all cuts."""

import numpy as np
import pytest

from fedaudit.audits.active_membership import games


def test_best_cut_is_found_by_trying_all(rng):
    for _ in range(20):
        scores = rng.integers(0, 8, 60).astype(float)
        member = rng.random(60) < 0.4
        cut = games.best_cut(scores, member)

        def gain(at, s=scores, m=member):
            called = s > at
            return called[m].mean() - called[~m].mean()

        tried = max(gain(at) for at in np.arange(-0.5, 8.5, 0.5))
        assert gain(cut) == pytest.approx(tried)


def test_midpoint_is_halfway_between_means():
    closest = np.array([1.0, 3.0, 10.0, 20.0])
    member = np.array([True, True, False, False])
    assert games.midpoint(closest, member) == pytest.approx(8.5)
