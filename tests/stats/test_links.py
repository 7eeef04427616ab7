"""Links by chance: enumeration, theory, power against simulation."""

import itertools
import math

import numpy as np
import pytest

from fedaudit.stats import links


@pytest.mark.parametrize("n", [1, 2, 3, 4, 6])
def test_fixed_points_equal_the_count_over_all_permutations(n):
    every = [sum(i == v for i, v in enumerate(p)) for p in itertools.permutations(range(n))]
    expected = np.bincount(every, minlength=n + 1) / math.factorial(n)
    np.testing.assert_allclose(links.fixed_points(n), expected, atol=1e-15)


@pytest.mark.parametrize(("clients", "pairs"), [(3, 4), (20, 9), (300, 2)])
def test_links_by_chance_have_one_per_pair_as_mean_and_as_variance(clients, pairs):
    p = np.array(links.links_by_chance(clients, pairs))
    h = np.arange(len(p))
    assert p.sum() == pytest.approx(1.0, abs=1e-12)
    assert p @ h == pytest.approx(pairs, rel=1e-9)
    assert p @ (h - pairs) ** 2 == pytest.approx(pairs, rel=1e-9)


def test_four_clients_and_two_rounds_can_show_nothing():
    assert links.least_links(4, 1, 0.025) is None  # 1 of 24
    assert links.least_links(4, 2, 0.025) is not None
    assert links.detectable_share(4, 1, 0.9, 0.025) is None


@pytest.mark.parametrize(("clients", "pairs"), [(3, 9), (8, 4), (50, 1)])
def test_power_is_what_simulation_gives(clients, pairs):
    rng = np.random.default_rng(1)
    least = links.least_links(clients, pairs, 0.0125)
    hits = rng.binomial(clients * pairs, 0.3, size=20_000)
    found = links.link_power(0.3, clients, pairs, 0.0125)
    assert (hits >= least).mean() == pytest.approx(found, abs=0.015)


def test_links_that_are_alike_need_more_rounds_or_cannot_do():
    plain = links.pairs_for_share(0.1, 20, 0.9, 0.0125)
    alike = links.pairs_for_share(0.1, 20, 0.9, 0.0125, likeness=0.1)
    assert links.link_power(0.1, 20, plain, 0.0125) >= 0.9
    assert plain < alike
    assert links.pairs_for_share(0.3, 4, 0.9, 0.0125, likeness=1.0) is None


def test_the_smallest_share_is_where_the_power_is_reached():
    share = links.detectable_share(20, 4, 0.9, 0.0125)
    assert links.link_power(share, 20, 4, 0.0125) >= 0.9
    assert links.link_power(share - 1e-3, 20, 4, 0.0125) < 0.9
