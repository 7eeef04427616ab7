"""Universes: equal records, distances and perturbed records."""

import math

import numpy as np
import pytest

from fedaudit.audits.active_membership.games import Universe
from fedaudit.errors import DataError, UsageError


def test_equal_records_count_once_and_delta_is_half_the_smallest_distance(universe_of):
    x = [[0.0, 0.0], [0.05, 0.0], [1.0, 0.0], [1.0, 0.5]]
    universe = universe_of(x, "grr", 1.0, alphabet=3)
    assert len(universe) == 3  # 0.05 is encoded as 0
    assert universe.merged == 1
    assert universe.radius == pytest.approx(0.25)
    assert universe.snap(universe.radius) == pytest.approx(0.25)  # a distance is 0 or >= 0.5
    assert universe.snap(0.5) == pytest.approx(0.25)  # 0.5 itself is outside
    assert universe.snap(0.51) == pytest.approx(0.75)


def test_features_are_ordered_by_how_much_they_tell(rng):
    x = rng.random((30, 6))
    universe = Universe.of(x)
    slow = np.abs(x[:, None] - x[None]).sum(axis=1)
    np.testing.assert_array_equal(universe.by_weight, np.argsort(-slow, axis=1, kind="stable"))


def test_a_target_outside_the_universe_is_refused(universe_of):
    universe = universe_of([[0.0, 0.0], [1.0, 0.0]], "grr", 1.0, alphabet=3)
    assert universe.index_of([0.9, 0.1]) == 1  # as it is encoded
    with pytest.raises(DataError, match="not in the universe") as caught:
        universe.index_of([0.5, 0.5])
    assert "nearest" in caught.value.got
    with pytest.raises(UsageError, match="not a record of this universe"):
        universe.index_of([0.5])
    with pytest.raises(DataError, match="not finite"):
        universe.index_of([math.nan, 0.0])


def test_bad_universes_are_refused():
    with pytest.raises(DataError, match="not finite"):
        Universe.of([[0.0, math.inf], [1.0, 2.0]])
    with pytest.raises(DataError, match="nothing to tell apart"):
        Universe.of([[1.0, 2.0], [1.0, 2.0]])
    with pytest.raises(UsageError, match="table of records"):
        Universe.of([1.0, 2.0])


def apart(universe, rng):
    """Means of fast draws minus those of the mechanism itself, in standard errors: (4, m)."""
    each = np.repeat(np.arange(4), 3000)
    fast, slow = universe.perturbed(each, rng), universe.channel.perturb(universe.values[each], rng)
    out = []
    for i in range(4):
        own = each == i
        spread = slow[own].std(axis=0) * math.sqrt(2 / 3000)
        out.append((fast[own].mean(axis=0) - slow[own].mean(axis=0)) / (spread + 2e-10))
    return np.abs(out)


def test_records_are_shown_as_the_mechanism_shows_them(guarded, rng):
    assert (apart(guarded, rng) < 5).all()


def test_records_under_additive_noise_are_shown_as_the_mechanism_shows_them(
    universe_of, spread_records, rng
):
    assert (apart(universe_of(spread_records, "laplace", 2.0), rng) < 5).all()
