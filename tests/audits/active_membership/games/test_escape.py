"""P_M: exact values against draws and known values."""

import math

import numpy as np
import pytest

from fedaudit.audits.active_membership import games
from fedaudit.audits.active_membership.games import Challenge, Universe


def test_exact_chance_of_leaving_the_ball_is_what_draws_show(guarded, rng):
    universe = guarded
    # radii at which the answer is neither 0 nor 1
    each = np.arange(len(universe)).repeat(200)
    one = Challenge(each[:, None], each, np.ones(len(each), dtype=bool), np.arange(len(each)))
    moved = games.distances(universe, one, rng)
    for share in (0.2, 0.7):
        tau = universe.snap(float(np.quantile(moved, share)) + 1e-9)
        away = games.escape_chance(universe, tau, rng)
        seen = np.mean(moved >= tau)
        assert away.low <= away.value <= away.high
        assert away.value == pytest.approx(seen, abs=4.5 * 0.5 / math.sqrt(len(each)))
        exact = universe.channel.codes.transition is not None
        assert ("exact" in away.method) == exact
        assert (away.low == away.high) == exact


def test_exact_chance_of_grr_is_its_lie(symbols, rng):
    universe = symbols(50, 3.0)
    away = games.escape_chance(universe, universe.radius, rng)
    assert away.value == pytest.approx(49 / (math.exp(3) + 49), abs=1e-11)


def test_nothing_leaves_without_a_mechanism(rng):
    assert games.escape_chance(Universe.of(rng.random((5, 2))), 0.1, rng).high == 0.0
