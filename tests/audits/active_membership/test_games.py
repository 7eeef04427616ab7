"""The closed form: Figure 11 as printed, a naive twin, lazy draws, P_M; and what is refused."""

import math

import numpy as np
import pytest

from fedaudit.audits.active_membership import games
from fedaudit.audits.active_membership.channel import OPEN, Channel
from fedaudit.audits.active_membership.games import Challenge, Universe
from fedaudit.errors import ConfigError, DataError, UsageError

MECHANISMS = [
    ("grr", 2.0, {"alphabet": 5}),
    ("rappor", 3.0, {"alphabet": 4}),
    ("dbitflip", 3.0, {"alphabet": 4}),
    ("bitrand", 4.0, {"bits": 8, "integer_bits": 2}),
    ("bitrand", 5.0, {"bits": 14, "integer_bits": 3}),
    ("ome", 4.0, {"bits": 8, "integer_bits": 2}),
]


# -- the challenger -------------------------------------------------------------------------------


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
    played = games.on_client(20, [3, 5, 5, 9], 200, rng)
    assert played.data.shape == (200, 3)
    assert set(played.target[played.member]) == {3, 5, 9}
    assert not set(played.target[~played.member]) & {3, 5, 9}


# -- naive twin -----------------------------------------------------------------------------------


def spread_records(rng, count=24, features=6):
    """Records that a quantiser of few levels and eight bits keep apart."""
    return np.unique(rng.integers(0, 5, (count, features)) / 4.0, axis=0)


@pytest.mark.parametrize(("mechanism", "epsilon", "settings"), MECHANISMS)
def test_distances_and_decisions_have_the_law_of_the_mechanism(
    universe_of, rng, mechanism, epsilon, settings
):
    """Slow twin: every record goes through the mechanism itself, distances by a loop."""
    universe = universe_of(spread_records(rng), mechanism, epsilon, **settings)
    played = games.challenge(len(universe), 3, 4000, rng)
    every = universe.channel.perturb(universe.values[played.data[:2000]].reshape(6000, -1), rng)
    slow = []
    for shown, target in zip(every.reshape(2000, 3, -1), played.target[:2000], strict=True):
        slow.append(min(np.abs(x - universe.values[target]).sum() for x in shown))
    fast = games.distances(universe, played, rng)
    tau = universe.snapped(float(np.median(slow)))
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
    found = games.lazily(done, features, limit, apart, group=8)
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
        tau = universe.snapped(float(np.quantile(every, share)))
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


# -- the universe ---------------------------------------------------------------------------------


def test_equal_records_count_once_and_delta_is_half_the_smallest_distance(universe_of):
    x = [[0.0, 0.0], [0.05, 0.0], [1.0, 0.0], [1.0, 0.5]]
    universe = universe_of(x, "grr", 1.0, alphabet=3)
    assert len(universe) == 3  # 0.05 is encoded as 0
    assert universe.merged == 1
    assert universe.radius == pytest.approx(0.25)
    assert universe.snapped(universe.radius) == pytest.approx(0.25)  # a distance is 0 or >= 0.5
    assert universe.snapped(0.5) == pytest.approx(0.25)  # 0.5 itself is outside
    assert universe.snapped(0.51) == pytest.approx(0.75)


def test_features_are_ordered_by_how_much_they_tell(rng):
    x = rng.random((30, 6))
    universe = Universe.of(x)
    slow = np.abs(x[:, None] - x[None]).sum(axis=1)
    np.testing.assert_array_equal(universe.by_weight, np.argsort(-slow, axis=1, kind="stable"))


def test_a_target_outside_the_universe_is_refused(universe_of):
    universe = universe_of([[0.0, 0.0], [1.0, 0.0]], "grr", 1.0, alphabet=3)
    assert universe.number_of([0.9, 0.1]) == 1  # as it is encoded
    with pytest.raises(DataError, match="not in the universe") as caught:
        universe.number_of([0.5, 0.5])
    assert "nearest" in caught.value.got
    with pytest.raises(UsageError, match="not a record of this universe"):
        universe.number_of([0.5])
    with pytest.raises(DataError, match="not finite"):
        universe.number_of([math.nan, 0.0])


def test_bad_universes_are_refused():
    with pytest.raises(DataError, match="not finite"):
        Universe.of([[0.0, math.inf], [1.0, 2.0]])
    with pytest.raises(DataError, match="nothing to tell apart"):
        Universe.of([[1.0, 2.0], [1.0, 2.0]])
    with pytest.raises(UsageError, match="table of records"):
        Universe.of([1.0, 2.0])
    with pytest.raises(ConfigError, match="not enough different records"):
        games.challenge(5, 5, 10, np.random.default_rng(0))


# -- P_M ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("mechanism", "epsilon", "settings"), MECHANISMS)
def test_exact_chance_of_leaving_the_ball_is_what_draws_show(
    universe_of, rng, mechanism, epsilon, settings
):
    universe = universe_of(spread_records(rng), mechanism, epsilon, **settings)
    # radii at which the answer is neither 0 nor 1
    each = np.arange(len(universe)).repeat(200)
    one = Challenge(each[:, None], each, np.ones(len(each), dtype=bool), np.arange(len(each)))
    moved = games.distances(universe, one, rng)
    for share in (0.2, 0.7):
        tau = universe.snapped(float(np.quantile(moved, share)) + 1e-9)
        away = games.outside(universe, tau, rng)
        seen = np.mean(moved >= tau)
        assert away.low <= away.value <= away.high
        assert away.value == pytest.approx(seen, abs=4.5 * 0.5 / math.sqrt(len(each)))
        exact = universe.channel.codes.transition is not None
        assert ("exact" in away.method) == exact
        assert (away.low == away.high) == exact


def test_exact_chance_of_grr_is_its_lie(symbols, rng):
    universe = symbols(50, 3.0)
    away = games.outside(universe, universe.radius, rng)
    assert away.value == pytest.approx(49 / (math.exp(3) + 49), abs=1e-11)


def test_nothing_leaves_without_a_mechanism(rng):
    assert games.outside(Universe.of(rng.random((5, 2))), 0.1, rng).high == 0.0


# -- cuts -----------------------------------------------------------------------------------------


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


def test_the_open_channel_protects_nothing():
    assert not OPEN.protects
    assert OPEN.claim_holds
    assert not Channel(name="x", claimed_epsilon=1.0, exact_epsilon=2.0).claim_holds


@pytest.mark.parametrize(("mechanism", "epsilon", "settings"), [*MECHANISMS, ("laplace", 2.0, {})])
def test_records_are_shown_as_the_mechanism_shows_them(
    universe_of, rng, mechanism, epsilon, settings
):
    universe = universe_of(spread_records(rng), mechanism, epsilon, **settings)
    each = np.repeat(np.arange(4), 3000)
    fast, slow = universe.shown(each, rng), universe.channel.perturb(universe.values[each], rng)
    for i in range(4):
        own = each == i
        spread = slow[own].std(axis=0) * math.sqrt(2 / 3000)
        assert (np.abs(fast[own].mean(axis=0) - slow[own].mean(axis=0)) < 5 * spread + 1e-9).all()


def test_games_about_one_record_have_it_or_not(rng):
    universe = Universe.of(rng.random((40, 3)))
    number = universe.number_of(universe.values[7])
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
