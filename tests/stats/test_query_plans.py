"""Partitions are disjoint and complete; published pairs match their acceptance rate and rank K."""

from itertools import pairwise

import numpy as np
import pytest

from fedaudit.errors import UsageError
from fedaudit.stats import query_algebra, query_plans


def rng(seed=0):
    return np.random.default_rng(seed)


DESIGNS = {
    "fixed": query_plans.fixed_groups,
    "random": query_plans.random_partitions,
    "balanced": query_plans.balanced_partitions,
    "cycled": query_plans.cycled_partitions,
    "swapped": lambda *a: query_plans.swapped_groups(*a, fraction=0.4),
}


@pytest.mark.parametrize("name", DESIGNS)
@pytest.mark.parametrize(("clients", "size"), [(10, 5), (11, 3), (50, 7)])
def test_every_round_is_a_partition_into_groups_that_are_large_enough(name, clients, size):
    plan = DESIGNS[name](clients, size, 6, rng())
    assert plan.shape == (6, clients // size, clients)
    assert (plan.sum(axis=1) == 1).all()
    assert plan.sum(axis=2).min() >= size
    for round_ in plan:
        assert query_algebra.smallest_support(round_).value == plan.sum(axis=2).min()


def test_designs_differ_in_how_long_two_clients_stay_together():
    def together(plan):
        same = np.einsum("tgi,tgj->tij", plan.astype(int), plan.astype(int))
        return np.mean([(a == b).mean() for a, b in pairwise(same)])

    stay = [
        together(query_plans.fixed_groups(20, 5, 40, rng())),
        *(
            together(query_plans.swapped_groups(20, 5, 40, rng(), fraction=f))
            for f in (0.1, 0.5, 1.0)
        ),
        together(query_plans.random_partitions(20, 5, 40, rng())),
    ]
    assert stay == sorted(stay, reverse=True)
    assert stay[0] == 1.0
    assert together(query_plans.swapped_groups(20, 5, 40, rng(), fraction=0.0)) == 1.0
    # a small fraction of few clients still swaps somebody
    assert together(query_plans.swapped_groups(10, 5, 40, rng(), fraction=0.01)) < 1.0


@pytest.mark.parametrize(("clients", "size"), [(10, 5), (12, 3), (21, 4)])
def test_stacked_rank_and_the_earliest_round(clients, size):
    """Rank at most 1 + T (G - 1); from T >= (K - 1) / (G - 1) on it can be K, and soon is."""
    groups = clients // size
    earliest = query_plans.rounds_to_identify(clients, groups)
    assert (earliest - 1) * (groups - 1) < clients - 1 <= earliest * (groups - 1)
    for rounds in range(1, 3 * earliest):
        plan = query_plans.random_partitions(clients, size, rounds, rng(rounds))
        found = query_algebra.rank(plan.reshape(-1, clients))
        assert found <= min(clients, 1 + rounds * (groups - 1))
        if rounds < earliest:
            assert found < clients
    assert found == clients
    fixed = query_plans.fixed_groups(clients, size, 50, rng())
    assert query_algebra.rank(fixed.reshape(-1, clients)) == groups


def test_the_masking_coefficient_has_the_expected_mean_and_implies_the_other_condition():
    clients, others, repeats, generator = 10, 5, 5, rng(2)
    draws = query_plans.random_subsets((40_000, 2, repeats), others, clients - 1, generator)
    difference = draws.sum(axis=2, dtype=np.int64)
    difference = difference[:, 0] - difference[:, 1]
    alpha = difference / repeats
    c = (alpha**2).sum(axis=1)
    expected = 2 * others * (1 - others / (clients - 1)) / repeats
    assert c.mean() == pytest.approx(expected, rel=0.01)
    accepted = query_plans.masks_enough(difference, clients, others, repeats)
    threshold = (1 - others / (clients - 1)) / repeats * others
    assert (accepted == (c >= threshold)).all()
    effective = c[accepted] ** 2 / (alpha[accepted] ** 4).sum(axis=1)
    assert (effective >= threshold).all()


def test_pairs_have_the_sizes_of_the_paper_and_estimate_the_target():
    generator = rng(3)
    contrasts = []
    for _ in range(2000):
        pairs = query_plans.paired_subsets(8, 2, 3, 4, generator)
        assert pairs.include.shape == pairs.exclude.shape == (4, 8)
        assert (pairs.include.sum(axis=1) == 4).all()
        assert (pairs.exclude.sum(axis=1) == 3).all()
        assert pairs.include[:, 2].all()
        assert not pairs.exclude[:, 2].any()
        assert pairs.attempts >= 1
        contrasts.append(pairs.contrast)
    unit = np.eye(8)[2]
    spread = np.std(contrasts, axis=0) / np.sqrt(len(contrasts))
    assert (np.abs(np.mean(contrasts, axis=0) - unit) <= 4.5 * spread + 1e-12).all()


@pytest.mark.parametrize(("clients", "others"), [(10, 5), (20, 4), (20, 6), (50, 16), (100, 33)])
def test_one_round_of_the_published_plan_gives_every_client_away(clients, others):
    plan = query_plans.paired_plan(clients, others, 5, rng(clients))
    sums = np.concatenate([p.queries for p in plan])
    assert sums.shape == (2 * 5 * clients, clients)
    assert query_algebra.rank(sums) == clients
    assert query_algebra.recoverable(sums) == tuple(range(clients))
    assert query_algebra.smallest_support(sums).value == 1
    # a client uploads M (1 + 2N) vectors a round on average
    assert sums.sum(axis=0).mean() == 5 * (1 + 2 * others)


def test_the_released_estimates_alone_are_an_invertible_system():
    conditions, isolated = [], []
    generator = rng(4)
    for _ in range(80):
        plan = query_plans.paired_plan(10, 5, 5, generator)
        system = np.array([p.contrast for p in plan])
        assert np.linalg.matrix_rank(system) == 10
        conditions.append(np.linalg.cond(system))
        isolated.append(plan[0].target in query_algebra.recoverable(plan[0].queries))
    assert 8 < np.median(conditions) < 20
    assert np.mean(isolated) > 0.5  # one target's ten queries isolate it in most rounds


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: query_plans.random_partitions(9, 5, 1, rng()), "divided"),
        (lambda: query_plans.random_partitions(9, 0, 1, rng()), "divided"),
        (lambda: query_plans.swapped_groups(10, 5, 2, rng(), fraction=1.5), "fraction"),
        (lambda: query_plans.paired_plan(10, 9, 5, rng()), "K - 1"),
        (lambda: query_plans.paired_plan(10, 0, 5, rng()), "N from 1"),
        (lambda: query_plans.paired_plan(10, 5, 0, rng()), "repeats is out of range"),
        (lambda: query_plans.paired_subsets(10, 10, 5, 5, rng()), "not a client"),
        (lambda: query_plans.paired_plan(6, 5, 5, rng()), "K - 1"),
    ],
)
def test_plans_that_make_no_sense_are_refused(call, words):
    with pytest.raises(UsageError, match=words):
        call()


def separation_by_hand(plan):
    labels = plan.argmax(axis=1)
    return min(
        int((labels[:, i] != labels[:, j]).sum()) for i in range(plan.shape[2]) for j in range(i)
    )


@pytest.mark.parametrize(
    ("clients", "size", "rounds"), [(10, 5, 5), (20, 5, 4), (50, 5, 3), (13, 3, 2), (200, 10, 3)]
)
def test_balanced_partitions_separate_every_pair_early(clients, size, rounds):
    plan = query_plans.balanced_partitions(clients, size, rounds + 1, rng())
    assert query_plans.least_separation(plan) == separation_by_hand(plan)
    assert query_plans.least_separation(plan[:rounds]) + 1 >= query_plans.APART
    random = query_plans.random_partitions(clients, size, rounds + 1, rng())
    assert query_plans.least_separation(plan) >= query_plans.least_separation(random)


def test_the_construction_meets_its_bound():
    """Seven groups of at most seven: two clients are together at most once in seven rounds."""
    plan = query_plans.balanced_partitions(35, 5, 7, rng(3))
    together = np.einsum("tgi,tgj->ij", plan.astype(int), plan.astype(int))
    np.fill_diagonal(together, 0)
    assert together.max() == 1
    assert query_plans.least_separation(plan) == 6


def test_five_partitions_are_cycled():
    plan = query_plans.cycled_partitions(10, 5, 12, rng())
    assert (plan[5:10] == plan[:5]).all()
    assert (plan[10:] == plan[:2]).all()
    assert np.linalg.matrix_rank(plan.reshape(-1, 10)) <= 6
    assert query_plans.least_separation(plan[:10]) == 2 * query_plans.least_separation(plan[:5])
