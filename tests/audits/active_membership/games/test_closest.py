"""Distances and lazy decisions against naive twins."""

import math

import numpy as np
import pytest

from fedaudit.audits.active_membership import games
from fedaudit.audits.active_membership.games import Universe


def test_distances_and_decisions_have_the_law_of_the_mechanism(guarded, rng):
    """Slow twin: every record goes through the mechanism itself, distances by a loop."""
    universe = guarded
    played = games.challenge(len(universe), 3, 4000, rng)
    every = universe.channel.perturb(universe.values[played.data[:2000]].reshape(6000, -1), rng)
    slow = []
    for shown, target in zip(every.reshape(2000, 3, -1), played.target[:2000], strict=True):
        slow.append(min(np.abs(x - universe.values[target]).sum() for x in shown))
    fast = games.distances(universe, played, rng)
    tau = universe.snap(float(np.median(slow)))
    lazy = games.decisions(universe, played, tau, rng)
    for member in (True, False):
        own = played.member == member
        shares = [
            np.mean(np.array(slow)[own[:2000]] < tau),
            np.mean(fast[own] < tau),
            np.mean(lazy[own]),
        ]
        assert max(shares) - min(shares) < 4.5 * 0.5 * math.sqrt(2 / 900)


@pytest.mark.parametrize("features", [1, 7, 36, 40, 300])
def test_lazy_looks_decide_as_the_whole_sum_does(rng, features):
    table = rng.integers(0, 9, (64, features)).astype(np.int32)
    looked = np.zeros(table.shape, dtype=int)

    def apart(some, first, stop):
        looked[some, first:stop] += 1
        return table[some, first:stop]

    done = rng.random(64) < 0.2
    limit = int(np.median(table.sum(axis=1)))
    found = games.decide_lazily(done, features, limit, apart, group=8)
    np.testing.assert_array_equal(found, (table.sum(axis=1) < limit) & ~done)
    assert looked.max() == 1
    assert (looked[found] == 1).all()
    if features == 300:
        assert looked.mean() < 0.9


def test_upper_bits_first_decide_as_all_bits(universe_of, rng):
    """14 bits: pairs that the upper bits leave open are completed by the lower ones."""
    x = np.unique(rng.integers(0, 64, (40, 5)), axis=0) / 8.0
    universe = universe_of(x, "bitrand", 9.0, bits=14, integer_bits=3)
    assert len(universe.channel.codes.flips.widths) == 2
    played = games.challenge(len(universe), 4, 20_000, rng)
    for share in (0.1, 0.5, 0.9):
        every = games.distances(universe, played, rng)
        tau = universe.snap(float(np.quantile(every, share)))
        lazy = games.decisions(universe, played, tau, rng)
        assert np.mean(every < tau) == pytest.approx(lazy.mean(), abs=4.5 * 0.5 / 100)


def test_without_a_mechanism_every_game_is_won(rng):
    universe = Universe.of(rng.random((50, 8)))
    played = games.challenge(50, 6, 300, rng)
    closest = games.distances(universe, played, rng)
    np.testing.assert_array_equal(closest < universe.radius, played.member)
    np.testing.assert_array_equal(closest[played.member], 0.0)
    np.testing.assert_array_equal(
        games.decisions(universe, played, universe.radius, rng), played.member
    )


def test_additive_noise_goes_through_the_mechanism_itself(universe_of, rng):
    universe = universe_of(rng.random((20, 3)), "laplace", 50.0)
    assert universe.codes is None
    played = games.challenge(20, 4, 500, rng)
    closest = games.distances(universe, played, rng)
    assert closest[played.member].min() > 0
    # three Laplace variables of scale 1/50: mean distance 3/50
    assert closest[played.member].mean() == pytest.approx(0.06, rel=0.15)
