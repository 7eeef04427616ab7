"""Closed forms against known values, against enumeration, and against played games."""

import itertools
import math

import numpy as np
import pytest

from fedaudit.audits.active_membership import games, theory
from fedaudit.errors import ConfigError, UsageError


def test_published_setting_of_grr():
    """(epsilon, d, n) = (6, 100, 64): Theorem 4, what is exact, and the ceiling."""
    assert theory.theorem4(6, 64, 100) == pytest.approx(0.6756, abs=5e-5)
    assert theory.grr_advantage(6, 64, 100) == pytest.approx(0.7065, abs=5e-5)
    table = np.full((100, 100), 1 / (math.exp(6) + 99))
    np.fill_diagonal(table, math.exp(6) / (math.exp(6) + 99))
    value, how = theory.ceiling(table, 1)
    assert value == pytest.approx(0.801, abs=5e-4)
    assert "exact" in how
    assert value < theory.theorem2(6)


def test_theorem4_is_theorem1_for_grr():
    for epsilon, n, d in ((0.3, 1, 2), (2, 5, 40), (6, 64, 100), (700, 3, 9)):
        outside = (d - 1) / (math.exp(epsilon) + d - 1)
        assert theory.theorem4(epsilon, n, d) == pytest.approx(theory.theorem1(outside, n, d))


@pytest.mark.parametrize(("epsilon", "alphabet", "n"), [(6.0, 100, 64), (3.0, 20, 5), (1.0, 6, 3)])
def test_exact_advantage_equals_simulation(symbols, rng, epsilon, alphabet, n):
    """The theory test: played games give (p - q)(1 - q)^(n - 1), above Theorem 4's floor."""
    universe = symbols(alphabet, epsilon)
    played = games.challenge(alphabet, n, 40_000, rng)
    called = games.decisions(universe, played, universe.radius, rng)
    rates = [called[played.member].mean(), called[~played.member].mean()]
    spread = math.sqrt(sum(p * (1 - p) for p in rates) / 20_000)
    exact = theory.grr_advantage(epsilon, n, alphabet)
    assert rates[0] - rates[1] == pytest.approx(exact, abs=4 * spread + 1e-9)
    assert exact > theory.theorem4(epsilon, n, alphabet)
    assert exact <= theory.ceiling(universe.channel.codes.transition, 1)[0] + 1e-12


def test_a_lower_bound_below_guessing_is_not_raised_and_says_nothing():
    """n = 60 of |X| = 200 under much noise: the advantage of Theorem 1 is negative."""
    floor = theory.success(theory.theorem1(1.0, 60, 200))
    assert floor == pytest.approx(0.5 * (1 + 1 - 259 / 199))
    assert floor < 0.5
    assert theory.is_vacuous(floor)
    assert theory.is_vacuous(0.5)
    assert not theory.is_vacuous(theory.success(theory.theorem1(0.1, 60, 200)))
    assert theory.success(-1.4) == 0.0  # a share of games


def test_a_lower_bound_that_says_nothing_still_holds():
    """With hardly any budget it lies below one half, and below what is exact."""
    epsilon, alphabet, n = 0.05, 20, 5
    floor = theory.success(theory.theorem4(epsilon, n, alphabet))
    assert theory.is_vacuous(floor)
    assert floor <= theory.success(theory.grr_advantage(epsilon, n, alphabet))


def test_theorem2_covers_delta_and_large_budgets():
    assert theory.theorem2(0.0) == 0.0
    assert theory.theorem2(1.0) == pytest.approx((math.e - 1) / (math.e + 1))
    assert theory.theorem2(1.0, 0.01) == pytest.approx((math.e - 1 + 0.02) / (math.e + 1))
    assert theory.theorem2(35_342.0) == 1.0


@pytest.mark.parametrize("features", [1, 2, 3, 4])
def test_symmetric_total_variation_by_enumeration(features):
    k, hit = 3, 0.6
    miss = (1 - hit) / (k - 1)
    one = np.full((k, k), miss)
    np.fill_diagonal(one, hit)
    apart = 0.0
    for out in itertools.product(range(k), repeat=features):
        p, q = math.prod(one[0, o] for o in out), math.prod(one[1, o] for o in out)
        apart += abs(p - q) / 2
    assert theory.symmetric_total_variation(hit, miss, features) == pytest.approx(apart)
    assert theory.ceiling(one, features)[0] == pytest.approx(apart)


def test_ceiling_of_other_channels_is_no_less_than_the_truth():
    """A channel whose rows are not alike: the Hellinger bound lies above the enumerated value."""
    table = np.array([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.3, 0.3, 0.4]])
    features = 3
    worst = 0.0
    for a, b in itertools.product(itertools.product(range(3), repeat=features), repeat=2):
        apart = sum(
            abs(
                math.prod(table[x, o] for x, o in zip(a, out, strict=True))
                - math.prod(table[x, o] for x, o in zip(b, out, strict=True))
            )
            for out in itertools.product(range(3), repeat=features)
        )
        worst = max(worst, apart / 2)
    value, how = theory.ceiling(table, features)
    assert worst <= value <= 1.0
    assert "Hellinger" in how


def test_smallest_beta_is_where_the_condition_begins_to_hold():
    for separation, patterns, norm in ((1.0, 5, 1.0), (0.2, 15, 1.3), (3.0, 49, 10.0)):
        beta = theory.smallest_beta(separation, patterns, norm)
        assert theory.needed_separation(beta, patterns, norm) == pytest.approx(separation)
        for larger in (1.01, 2, 50):
            assert theory.needed_separation(larger * beta, patterns, norm) < separation
        assert theory.needed_separation(0.99 * beta, patterns, norm) > separation
    assert theory.smallest_beta(-0.1, 5, 1.0) is None


def test_the_square_belongs_to_the_norm():
    """Eq. (26), not Eq. (5): M = 3 enters as 9 inside the logarithm."""
    expected = 2 / (10 * 5) + math.log(2 * 4 * 5 * 10 * 9) / 10
    assert theory.needed_separation(10.0, 5, 3.0) == pytest.approx(expected)


def test_a_beta_that_is_too_small_is_refused_with_one_that_would_do():
    with pytest.raises(UsageError, match="too small") as caught:
        theory.check_beta(1.0, 0.5, 10, 1.0)
    named = float(caught.value.remedy.split("=")[1].split()[0])
    theory.check_beta(named, 0.5, 10, 1.0)
    with pytest.raises(UsageError, match="for no beta"):
        theory.check_beta(100.0, 0.0, 10, 1.0)


def test_theorem3_with_one_probability_is_as_printed():
    p, box, n, patterns = 0.999, 0.1, 3, 5
    printed = p + p ** (2 * n * patterns) - box - 1
    assert theory.theorem3(p, p, box, n, patterns) == pytest.approx(printed)


def test_a_game_needs_a_record_that_is_left_out():
    for call in (
        lambda: theory.theorem1(0.1, 5, 5),
        lambda: theory.theorem4(1.0, 7, 3),
        lambda: theory.grr_advantage(1.0, 0, 3),
    ):
        with pytest.raises(ConfigError, match="not enough different records"):
            call()


@pytest.mark.parametrize("levels", [(0, 1, 2, 5, 9), (0, 3, 6, 11), (2, 10)])
def test_exact_advantage_holds_where_only_some_values_occur(levels, universe_of, rng):
    """A smaller universe: values that no record has count towards the ball around a target."""
    alphabet, epsilon, n = 12, 1.5, len(levels) - 1
    x = np.array(levels, dtype=np.float64)[:, None] / (alphabet - 1)
    universe = universe_of(x, "grr", epsilon, alphabet=alphabet)
    tau = universe.snap(universe.radius)
    balls = universe.ball_sizes(tau)
    at = universe.levels[:, 0]
    slow = [sum(abs(v - a) * universe.channel.codes.step < tau for v in range(12)) for a in at]
    np.testing.assert_array_equal(balls, slow)
    exact = theory.grr_advantage(epsilon, n, alphabet, balls)
    played = games.challenge(len(universe), n, 60_000, rng)
    called = games.decisions(universe, played, tau, rng)
    found = called[played.member].mean() - called[~played.member].mean()
    assert found == pytest.approx(exact, abs=4.5 * np.sqrt(0.5 / 30_000))
    if max(balls) == 1:
        assert theory.theorem4(epsilon, n, alphabet) <= exact


def test_a_symmetric_ceiling_is_that_of_its_table():
    table = np.full((6, 6), 0.1)
    np.fill_diagonal(table, 0.5)
    assert theory.symmetric_ceiling(6, 0.5, 3) == theory.ceiling(table, 3)
