"""The null of linking: naive twin, exact rates, matched chance levels, power, few clients."""

import itertools
from math import factorial

import numpy as np
import pytest

from fedaudit.audits.fingerprint import scores
from fedaudit.audits.fingerprint.null import Joined, LinkDesign, client_p_values, link_test
from fedaudit.stats import clustering

LEVEL = 0.025


def design(clients, rounds, rng, share=1.0):
    """Senders in random order, each round with a share of the clients."""
    many = max(2, round(share * clients))
    return [[f"c{c:02d}" for c in rng.permutation(clients)[:many]] for _ in range(rounds)]


def one_to_one(senders, rng):
    return [rng.permutation(len(own)).tolist() for own in senders]


def uniform(senders, rng):
    """Labels of a linker that may use one twice in a round, as k-means does."""
    return [rng.integers(0, 4, size=len(own)).tolist() for own in senders]


@pytest.mark.parametrize("given", [one_to_one, uniform])
@pytest.mark.parametrize("share", [1.0, 0.6])
def test_links_found_in_a_permutation_equal_the_plain_count(given, share):
    rng = np.random.default_rng(3)
    senders = design(6, 5, rng, share)
    labels = given(senders, rng)
    rows = LinkDesign.of(senders)
    perms = rows.permutations(20, rng)
    found = Joined.of(labels).found(perms, rows)
    flat = [v for own in labels for v in own]
    ends = np.cumsum([0, *map(len, senders)])
    for perm, hits in zip(perms, found, strict=True):
        moved = [flat[i] for i in perm]
        again = [moved[a:b] for a, b in itertools.pairwise(ends)]
        assert hits == sum(map(sum, scores.links(senders, again).found.values()))


@pytest.mark.parametrize("given", [one_to_one, uniform])
def test_a_clients_p_value_equals_the_share_of_all_its_rows(given):
    """Naive twin: every way in which one client's rows can fall, counted one by one."""
    rng = np.random.default_rng(4)
    senders = design(4, 4, rng)
    labels = given(senders, rng)
    found = client_p_values(senders, labels)
    joined = Joined.of(labels)
    source = np.split(joined.source, np.cumsum([4] * 3))
    every = []
    for rows in itertools.product(range(4), repeat=4):
        same = [labels[t][rows[t]] == labels[t + 1][rows[t + 1]] for t in range(3)]
        every.append(sum(s and source[t + 1][rows[t + 1]] == t for t, s in enumerate(same)))
    hits = {n: sum(h) for n, h in scores.links(senders, labels).found.items()}
    for name, p in found.items():
        assert p == pytest.approx(np.mean(np.array(every) >= hits[name]), abs=1e-12)


@pytest.mark.parametrize(("clients", "rounds"), [(3, 5), (3, 10), (4, 5), (8, 5)])
def test_a_random_linker_alarms_at_most_at_the_level(clients, rounds):
    """Readings and clients together; larger designs and more draws: make nightly."""
    rng = np.random.default_rng(clients * 100 + rounds)
    alarms = 0
    for _ in range(400):
        senders = design(clients, rounds, rng)
        given = {"a": one_to_one(senders, rng), "b": one_to_one(senders, rng)}
        test = link_test(senders, given, level=LEVEL, rng=rng, draws=199)
        alarms += min(*test.p.values(), *test.clients.values()) <= LEVEL
    # 99.9 % upper limit of a binomial at the level
    assert alarms <= 20


def test_the_chance_level_matches_the_method():
    """Labels that repeat within a round have another purity by chance than one-to-one labels."""
    rng = np.random.default_rng(6)
    senders = design(8, 6, rng)
    labels = {"one": one_to_one(senders, rng), "free": uniform(senders, rng)}
    test = link_test(senders, labels, level=LEVEL, rng=rng, draws=2000)
    truth = [s for own in senders for s in own]
    for name, given in labels.items():
        drawn = [
            clustering.scores(truth, [v for own in given for v in rng.permutation(own)])["purity"]
            for _ in range(400)
        ]
        assert test.chance[name]["purity"] == pytest.approx(np.mean(drawn), abs=0.01)
    assert abs(test.chance["one"]["purity"] - test.chance["free"]["purity"]) > 0.02


def test_a_perfect_linker_is_found_and_named_even_beside_useless_ones():
    rng = np.random.default_rng(7)
    senders = design(5, 4, rng)
    perfect = [[int(s[1:]) for s in own] for own in senders]
    labels = {"useless": one_to_one(senders, rng), "perfect": perfect}
    test = link_test(senders, labels, level=LEVEL, rng=rng)
    assert test.decided[0] == "perfect"
    assert test.p[test.decided] <= LEVEL


@pytest.mark.parametrize("order", [("poor", "good"), ("good", "poor")])
def test_the_strongest_linker_counts_whatever_the_order(order):
    rng = np.random.default_rng(5)
    senders = design(6, 8, rng)
    good = [[int(s[1:]) for s in own] for own in senders]
    given = {"good": good, "poor": one_to_one(senders, rng)}
    test = link_test(senders, {n: given[n] for n in order}, level=LEVEL, rng=rng)
    assert test.strongest == "good"
    assert test.decided == ("good", "linkage_accuracy")
    alone = client_p_values(senders, good)
    # Holm over six clients, two linkers, and a factor of one or two for both halves
    assert all(test.clients[n] >= 2 * p for n, p in alone.items())


def test_one_linked_client_among_many_is_named():
    rng = np.random.default_rng(8)
    senders = design(20, 11, rng)
    labels = one_to_one(senders, rng)
    for own, given in zip(senders, labels, strict=True):
        at, has = own.index("c07"), given.index(7)
        given[at], given[has] = given[has], given[at]
    test = link_test(senders, {"a": labels}, level=LEVEL, rng=rng)
    assert [name for name, p in test.clients.items() if p <= LEVEL] == ["c07"]


def test_too_few_clients_cannot_show_anything():
    """All links of three clients in two rounds are found by chance in one of six cases."""
    rng = np.random.default_rng(9)
    senders = [["a", "b", "c"], ["c", "a", "b"]]
    perfect = [[ord(s) for s in own] for own in senders]
    test = link_test(senders, {"a": perfect}, level=LEVEL, rng=rng)
    assert test.least == np.inf
    assert min(test.p.values()) > 1 / factorial(3)
