"""Figure 11 as printed: data and targets of games."""

import math

import numpy as np
import pytest

from fedaudit.audits.active_membership import games
from fedaudit.audits.active_membership.games import Universe
from fedaudit.errors import ConfigError, UsageError


def test_data_are_different_records_and_the_target_is_in_or_out(rng):
    played = games.challenge(12, 5, 4000, rng)
    assert all(len(set(row)) == 5 for row in played.data.tolist())
    inside = (played.data == played.target[:, None]).any(axis=1)
    np.testing.assert_array_equal(inside, played.member)
    assert abs(played.member.mean() - 0.5) < 4.5 * 0.5 / math.sqrt(4000)


def test_every_record_is_drawn_equally_often(rng):
    """Data, targets inside and targets outside: each uniform over the universe."""
    played = games.challenge(12, 5, 12_000, rng)
    for numbers in (
        played.data.ravel(),
        played.target[played.member],
        played.target[~played.member],
    ):
        counts = np.bincount(numbers, minlength=12)
        expected = len(numbers) / 12
        chi = ((counts - expected) ** 2 / expected).sum()
        assert chi < 40  # 11 degrees of freedom: p < 1e-4


def test_trials_share_data_and_both_targets(rng):
    played = games.trials(30, 4, 6, 50, rng)
    assert len(played) == 300
    for t in range(6):
        own = played.trial == t
        assert len(np.unique(played.data[own], axis=0)) == 1
        assert len(np.unique(played.target[own & played.member])) == 1
        assert len(np.unique(played.target[own & ~played.member])) == 1
        assert 5 < played.member[own].sum() < 45


def test_games_on_a_client_keep_its_records(rng):
    played = games.against_client(20, [3, 5, 5, 9], 200, rng)
    assert played.data.shape == (200, 3)
    assert set(played.target[played.member]) == {3, 5, 9}
    assert not set(played.target[~played.member]) & {3, 5, 9}


def test_games_about_one_record_have_it_or_not(rng):
    universe = Universe.of(rng.random((40, 3)))
    number = universe.index_of(universe.values[7])
    assert number == 7
    played = games.challenge(40, 5, 3000, rng, target=number)
    assert (played.target == 7).all()
    has = (played.data == 7).any(axis=1)
    np.testing.assert_array_equal(has, played.member)
    assert all(len(np.unique(row)) == 5 for row in played.data)
    assert 0.45 < played.member.mean() < 0.55
    often = np.bincount(played.data.ravel(), minlength=40)
    assert np.delete(often, 7).std() / np.delete(often, 7).mean() < 0.15
    with pytest.raises(UsageError, match="not in the universe"):
        games.challenge(40, 5, 10, rng, target=40)


def test_clients_that_hold_everything_are_refused(rng):
    with pytest.raises(ConfigError, match="not enough different records"):
        games.challenge(5, 5, 10, rng)
