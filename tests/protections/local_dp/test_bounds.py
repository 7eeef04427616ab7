"""Local DP with bounds per column: the mechanism of 0..1, moved to each column's own range."""

import numpy as np
import pytest

from fedaudit.errors import ConfigError, DataError
from fedaudit.knowledge.probing.mechanisms import channel_of
from fedaudit.protections.local_dp.protection import LocalDP

COLUMNS = ("age", "pressure", "sex=f")
BOUNDS = {"age": (0.0, 120.0), "pressure": (50.0, 250.0)}
X = np.array([[0.0, 50.0, 0.0], [120.0, 250.0, 1.0], [60.0, 150.0, 1.0], [33.0, 101.0, 0.0]])
LOW, SPAN = np.array([0.0, 50.0, 0.0]), np.array([120.0, 200.0, 1.0])


def protection(**more):
    given = {"mechanism": "grr", "epsilon": 2.0, "alphabet": 5, "bounds": BOUNDS, **more}
    return LocalDP(**given).for_columns(COLUMNS, X)


@pytest.mark.parametrize("mechanism", ["grr", "rappor", "laplace"])
def test_the_draw_is_that_of_one_range_moved_to_each_column(mechanism):
    alphabet = None if mechanism == "laplace" else 5
    by_column = protection(mechanism=mechanism, alphabet=alphabet)
    plain = LocalDP(mechanism=mechanism, epsilon=2.0, alphabet=alphabet)
    moved, _ = by_column.randomise(X, np.random.default_rng(3))
    usual, _ = plain.randomise((X - LOW) / SPAN, np.random.default_rng(3))
    assert np.allclose(moved, LOW + usual * SPAN)
    # the guarantee does not depend on units
    assert by_column.of(3).worst_case_epsilon() == plain.of(3).worst_case_epsilon()


def test_values_of_one_column_are_refused_by_its_own_bounds():
    with pytest.raises(DataError):
        protection().randomise(X + 121.0, np.random.default_rng(0))
    clipped = protection(outside="clip").randomise(X * [2, 1, 1], np.random.default_rng(0))[1]
    assert clipped == 1


def test_bounds_of_the_table_cover_it_and_are_said_to_cost_what_no_epsilon_covers():
    found = protection(bounds="table")
    assert (found.low, found.high) == (tuple(X.min(axis=0)), tuple(X.max(axis=0)))
    assert found.randomise(X, np.random.default_rng(0))[1] == 0
    assert "no epsilon covers them" in " ".join(found.remarks())
    assert protection().remarks() == ()
    assert found.declare()["bounds_from"] == "table"


def test_games_play_the_mechanism_that_the_clients_used():
    local = protection()
    again = LocalDP(mechanism="grr", epsilon=2.0, alphabet=5, bounds=BOUNDS).as_declared(
        local.declare()
    )
    assert again == local
    channel = channel_of(again, 3)
    assert np.allclose(channel.clean(X), LOW + np.rint((X - LOW) / SPAN * 4) / 4 * SPAN)
    assert channel.codes is None


def test_bounds_that_fit_no_column_are_refused():
    with pytest.raises(ConfigError, match="no feature: 'agee'"):
        protection(bounds={"agee": (0.0, 1.0)})
    with pytest.raises(ConfigError, match="are no bounds"):
        protection(bounds={"age": (1.0, 1.0)})
    with pytest.raises(ConfigError, match="not a setting of bitrand"):
        LocalDP(mechanism="bitrand", bounds=BOUNDS)
    with pytest.raises(ConfigError, match="needs columns with names"):
        LocalDP(bounds=BOUNDS).for_columns((), X)
    with pytest.raises(ConfigError, match="bounds for other features"):
        protection().randomise(X[:, :2], np.random.default_rng(0))
