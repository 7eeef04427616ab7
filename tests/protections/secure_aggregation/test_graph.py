"""Neighbours from failure probabilities: against the exact hypergeometric law and against draws."""

import math

import numpy as np
import pytest
from scipy import stats

from fedaudit.errors import UsageError
from fedaudit.protections.secure_aggregation import Neighbours
from fedaudit.protections.secure_aggregation.graph import (
    QUORUMS,
    failures,
    quorum_of,
    smallest_graph,
)


@pytest.mark.parametrize(("n", "k", "t"), [(30, 6, 5), (60, 10, 7), (200, 20, 14)])
def test_failure_probabilities_are_those_of_the_hypergeometric_law(n, k, t):
    """A slow twin, set by set, with the tails of another library."""
    ask = Neighbours(colluding=0.1, dropout=0.15)
    c, gone = math.floor(0.1 * n), math.ceil(0.15 * n)
    h = n - c

    def tail(marked, least):
        return stats.hypergeom.sf(least - 1, n - 1, marked, k)

    found = failures(n, k, t, ask)
    assert found.opened == pytest.approx(min(0.0, math.log2(h * tail(c, 2 * t - k - 1))), abs=1e-6)
    assert found.stuck == pytest.approx(min(0.0, math.log2(n * tail(gone, k - t + 1))), abs=1e-6)
    sets = sum(math.comb(h, s) * tail(s - 1 + c, t - 1) ** s for s in range(1, h // 2 + 1))
    assert found.isolated >= min(0.0, math.log2(sets)) - 1e-6
    if h // 2 <= 64:
        assert found.isolated == pytest.approx(min(0.0, math.log2(sets)), abs=1e-6)


@pytest.mark.parametrize("n", [100, 300, 1000, 10_000])
def test_the_stated_probabilities_are_exact(n):
    """Whole numbers throughout: C(b, x) C(n - 1 - b, k - x) out of C(n - 1, k)."""
    ask = Neighbours()
    graph = smallest_graph(n, ask)
    k, t, honest, gone = graph.neighbours, graph.quorum, ask.honest(n), ask.gone(n)

    def log_tail(marked, least, factor):
        ways = (
            math.comb(marked, x) * math.comb(n - 1 - marked, k - x)
            for x in range(least, min(k, marked) + 1)
        )
        found = factor * sum(ways)
        shift = max(0, found.bit_length() - 1000), max(0, math.comb(n - 1, k).bit_length() - 1000)
        if not found:
            return -math.inf
        below = math.log2(math.comb(n - 1, k) >> shift[1]) + shift[1]
        return math.log2(found >> shift[0]) + shift[0] - below

    # k drawn and itself hold shares; both kinds of t restored: t + t <= k + 1 + colluding ones
    assert graph.opened == pytest.approx(log_tail(n - honest, 2 * t - k - 1, honest), abs=1e-6)
    # fewer than t of k left
    assert graph.stuck == pytest.approx(log_tail(gone, k - t + 1, n), abs=1e-6)


@pytest.mark.parametrize(("share", "n", "colluding"), [(0.29, 100, 29), (0.05, 1000, 50)])
def test_shares_of_clients_are_not_rounded_away(share, n, colluding):
    """0.29 of 100 is 28.999... in floating point: one colluder fewer than was stated."""
    ask = Neighbours(colluding=share, dropout=share)
    assert n - ask.honest(n) == colluding
    assert ask.gone(n) == colluding
    assert (
        failures(n, 10, 8, ask).opened
        == failures(n, 10, 8, Neighbours(colluding=colluding / n + 1e-12)).opened
    )


def test_a_union_bound_holds_in_draws():
    """Small graphs that fail often: the share that fails stays below the bound."""
    n, k, t, ask = 40, 6, 5, Neighbours(colluding=0.1, dropout=0.2)
    rng, runs = np.random.default_rng(0), 4000
    opened = stuck = 0
    for _ in range(runs):
        drawn = np.argsort(rng.random((n, n - 1)), axis=1)[:, :k]
        drawn = drawn + (drawn >= np.arange(n)[:, None])
        opened += ((drawn < 4).sum(axis=1)[4:] >= 2 * t - k - 1).any()
        stuck += ((drawn < 8).sum(axis=1) > k - t).any()
    found = failures(n, k, t, ask)
    assert 0 < opened / runs <= 2**found.opened
    assert 0 < stuck / runs <= 2**found.stuck + 1e-9


@pytest.mark.parametrize("n", [150, 1000])
def test_the_smallest_graph_keeps_what_is_asked_and_one_neighbour_fewer_does_not(n):
    ask = Neighbours()
    graph = smallest_graph(n, ask)
    assert graph.unprotected <= -ask.security
    assert graph.stuck <= -ask.completion
    fewer = (failures(n, graph.neighbours - 1, t, ask) for t in range(1, graph.neighbours + 1))
    assert not any(f.unprotected <= -ask.security and f.stuck <= -ask.completion for f in fewer)
    assert "2^-" in str(graph)


def test_neighbours_grow_with_the_logarithm():
    k = [smallest_graph(n, Neighbours()).neighbours for n in (500, 5000)]
    assert k[0] < k[1] < 1.5 * k[0]
    assert smallest_graph(10, Neighbours()) is None  # all pairs are cheaper
    strict = smallest_graph(1000, Neighbours(security=80)).neighbours
    assert strict > smallest_graph(1000, Neighbours()).neighbours


def test_quorums_are_what_their_names_say():
    for n in range(2, 60):
        two_thirds, majority, threshold = (quorum_of(n, rule, 5) for rule in QUORUMS)
        assert 3 * two_thirds > 2 * n
        assert 2 * majority > n
        assert threshold == min(5, n)
        assert max(two_thirds, majority, threshold) <= n
    with pytest.raises(UsageError):
        Neighbours(colluding=1.0)
    with pytest.raises(UsageError):
        Neighbours(security=0)


def test_the_complete_graph_fails_only_where_too_many_collude():
    assert failures(9, 8, 7, Neighbours(colluding=0.3)).opened == -math.inf
    assert failures(9, 8, 5, Neighbours(colluding=0.3)).opened == 0.0
    assert "complete" in str(failures(9, 8, 7, Neighbours()))


def closed_sets(drawn, colluding, least):
    """Whether up to half of the honest clients could be opened apart from the rest.

    Every set is tried: each member must have `least` of its draws among set and colluders.
    """
    n = len(drawn)
    honest = n - colluding  # the first ones
    sets = np.arange(1, 2**honest, dtype=np.uint32)
    sets = sets[np.bitwise_count(sets) <= honest // 2]
    good = np.ones(len(sets), dtype=bool)
    crowd = sets | np.uint32(2**n - 2**honest)
    for i in range(honest):
        holders = np.uint32(sum(1 << int(j) for j in drawn[i]))
        enough = np.bitwise_count(crowd & holders) >= least
        good &= enough | ((sets >> np.uint32(i)) & 1 == 0)
    return good.any()


@pytest.mark.parametrize(("n", "k", "t"), [(14, 4, 4), (14, 3, 3), (13, 5, 5)])
def test_isolated_sets_are_as_rare_as_the_bound_says(n, k, t):
    """All sets of small graphs, against the union bound over sets."""
    ask, rng, runs = Neighbours(colluding=2 / n + 1e-9, dropout=0.0), np.random.default_rng(1), 400
    found = 0
    for _ in range(runs):
        drawn = np.argsort(rng.random((n, n - 1)), axis=1)[:, :k]
        drawn = drawn + (drawn >= np.arange(n)[:, None])
        found += closed_sets(drawn, 2, t - 1)
    bound = 2 ** failures(n, k, t, ask).isolated
    assert 0 < found / runs <= bound + 3 * math.sqrt(bound / runs)
    assert bound <= 30 * found / runs  # a union bound, and not a guess


def two_lists(holders, victim, quorum, colluding):
    """Whether a server that shows two lists restores both kinds of a client's shares.

    It gives one list to just those whom half of the victim's honest holders wait for, and the
    other list to all others. A holder reveals if `quorum` of its holders, itself one of them,
    signed its list; colluders sign both.
    """
    honest = [h for h in sorted(holders[victim]) if h not in colluding]
    half = honest[: max(0, quorum - len(holders[victim] & colluding))]
    first = {victim, *half}
    for h in half:  # signers that these wait for
        missing = quorum - len(holders[h] & (first | colluding))
        first |= set([c for c in sorted(holders[h]) if c not in first | colluding][:missing])
    second = set(range(len(holders))) - first - colluding

    def revealing(own):
        signed = own | colluding
        ready = {h for h in holders[victim] & own if len(holders[h] & signed) >= quorum}
        return len(ready | holders[victim] & colluding)

    return revealing(first) >= quorum and revealing(second) >= quorum


def test_a_server_with_two_lists_opens_nobody_in_the_stated_graph_and_some_with_fewer_shares():
    """Why both kinds of shares are counted: in a large sparse graph a minority signs its own list,
    and its own holders are enough for it."""
    n = 2000
    graph, rng = smallest_graph(n, Neighbours()), np.random.default_rng(2)
    colluding, holders = set(range(n - n // 20, n)), []
    for i in range(n):
        drawn = rng.choice(n - 1, graph.neighbours, replace=False)
        holders.append({i, *(drawn + (drawn >= i)).tolist()})
    assert not any(two_lists(holders, v, graph.quorum, colluding) for v in range(100))
    few = (graph.neighbours + 1) // 2
    assert sum(two_lists(holders, v, few, colluding) for v in range(100)) > 20


@pytest.mark.parametrize("n", [300, 1000, 10_000])
def test_no_drawn_graph_comes_near_to_failing(n):
    """Draws of the graphs that are used: what was seen, far from what would fail."""
    graph, rng = smallest_graph(n, Neighbours()), np.random.default_rng(n)
    k, t, bad = graph.neighbours, graph.quorum, n // 20
    worst = rng.hypergeometric(bad, n - 1 - bad, k, size=200_000).max()
    assert worst < 2 * t - k - 1
    assert worst <= k - t
    assert k < 10 * math.log2(n)
