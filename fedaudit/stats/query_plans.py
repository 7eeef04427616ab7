"""Query plans for a secure aggregator: partitions, and the published pairs.

Plans are 0/1 arrays: (G, K) for one round, (T, G, K) for several, one row per query. Within a
round, partitions never expose fewer clients than a group: every non-zero combination of disjoint
groups contains a whole group. `decide.query_plans` computes their cost.

For every target i, the published plan queries M subsets with the target and N others, and M subsets
of N others without it ([FedAttr] Eq. (3)), redrawn until the others mask enough
([FedAttr] Eq. (5)). Protocol and audits both use it. `stats.query_algebra` computes its leakage:
one round has rank K.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedaudit.errors import UsageError
from fedaudit.settings import Count, Share, require

Plan = npt.NDArray[np.uint8]


# -- partitions ----------------------------------------------------------------------------------


def group_count(clients: int, group_size: int) -> int:
    """Number of groups of at least `group_size` clients; at least two."""
    if group_size < 1 or clients < 2 * group_size:
        raise UsageError(
            "these clients cannot be divided into groups",
            expected=f"at least {2 * max(group_size, 1)} clients for two groups of {group_size}",
            got=f"{clients} clients",
            remedy="use a smaller threshold, or query only the sum of all",
        )
    return clients // group_size


def _groups(labels: npt.NDArray[np.int64], groups: int) -> Plan:
    """Group numbers (..., K) as 0/1 rows (..., G, K)."""
    return (labels[..., None, :] == np.arange(groups)[:, None]).astype(np.uint8)


def _even(clients: int, groups: int) -> npt.NDArray[np.int64]:
    """Group numbers (K,) of groups whose sizes differ by at most one."""
    return np.sort(np.arange(clients) % groups)


def random_partitions(clients: int, group_size: int, rounds: int, rng: np.random.Generator) -> Plan:
    """A fresh random partition in every round (T, G, K)."""
    groups = group_count(clients, group_size)
    labels = np.tile(_even(clients, groups), (rounds, 1))
    return _groups(rng.permuted(labels, axis=1), groups)


def fixed_groups(clients: int, group_size: int, rounds: int, rng: np.random.Generator) -> Plan:
    """One random partition, kept in all rounds (T, G, K)."""
    return np.repeat(random_partitions(clients, group_size, 1, rng), rounds, axis=0)


def swapped_groups(
    clients: int, group_size: int, rounds: int, rng: np.random.Generator, *, fraction: float
) -> Plan:
    """A partition in which a fraction of the clients swaps groups every round (T, G, K).

    From 0 (fixed groups; any larger value swaps at least one pair) to 1 (one swap per pair, close
    to a fresh partition). Swapped clients come from different groups, so sizes stay.
    """
    require(Share, fraction=fraction, remedy="0.25")
    groups = group_count(clients, group_size)
    labels = rng.permutation(_even(clients, groups))
    swaps = max(round(fraction * clients / 2), 1 if fraction > 0 else 0)
    out = np.empty((rounds, clients), dtype=np.int64)
    draws = rng.random((rounds, swaps, 2)).tolist()
    now = labels.tolist()
    for t in range(rounds):
        for first, second in draws[t] if t else ():
            a = int(first * clients)
            others = [c for c, group in enumerate(now) if group != now[a]]
            b = others[int(second * len(others))]
            now[a], now[b] = now[b], now[a]
        out[t] = now
    return _groups(out, groups)


CYCLE = 5
"""Partitions of a cycled plan: enough to tell ten clients in groups of five apart twice."""

APART = 2
"""Rounds in which two clients are in different groups, before one is tested without the other."""


def balanced_partitions(
    clients: int, group_size: int, rounds: int, rng: np.random.Generator
) -> Plan:
    """Partitions that keep no two clients together much longer than any others (T, G, K).

    By construction where G is prime, all groups have s <= G clients and T <= G: then two clients
    are together at most once. Otherwise by a search that swaps clients between groups, and makes
    each partition the best one after those before it. Client numbers are drawn either way.
    """
    groups = group_count(clients, group_size)
    require(Count, rounds=rounds, remedy="10")
    even = clients % groups == 0 and clients // groups <= groups
    if even and rounds <= groups and _is_prime(groups):
        return _lines(clients, groups, rounds, rng)
    labels = np.empty((rounds, clients), dtype=np.int64)
    together = np.zeros((clients, clients), dtype=np.int64)
    for t in range(rounds):
        labels[t] = _swapped_apart(rng.permutation(_even(clients, groups)), together)
        together += labels[t][:, None] == labels[t]
    for t in [*range(rounds)] * (SWEEPS if rounds <= 2 * CYCLE else 0):
        together -= labels[t][:, None] == labels[t]
        labels[t] = _swapped_apart(labels[t], together)
        together += labels[t][:, None] == labels[t]
    return _groups(labels, groups)


SWEEPS = 3
"""Times that the search goes over all partitions again, if they are few."""


def cycled_partitions(
    clients: int, group_size: int, rounds: int, rng: np.random.Generator, *, cycle: int = CYCLE
) -> Plan:
    """`cycle` balanced partitions, one after the other and again (T, G, K).

    Sums over the same groups repeat, so that a mark is read more often, while the server learns of
    no further combinations: what persists of a client's update stays hidden behind the rank.
    """
    require(Count, cycle=cycle, remedy=str(CYCLE))
    few = balanced_partitions(clients, group_size, cycle, rng)
    return np.asarray(few[np.arange(rounds) % cycle])


def least_separation(plan: npt.ArrayLike) -> int:
    """Fewest rounds, over all pairs, in which two clients are in different groups (T, G, K)."""
    inside = np.asarray(plan) != 0
    labels = inside.argmax(axis=1)
    both = inside.any(axis=1)
    apart = (labels[:, :, None] != labels[:, None]) & both[:, :, None] & both[:, None]
    counts = apart.sum(axis=0)
    np.fill_diagonal(counts, len(labels) + 1)
    return int(counts.min())


def _is_prime(n: int) -> bool:
    return n > 1 and all(n % i for i in range(2, int(n**0.5) + 1))


def _lines(clients: int, groups: int, rounds: int, rng: np.random.Generator) -> Plan:
    """Client (x, b) is in group b + t x modulo the prime number of groups.

    Clients of one column x are never together; those of two columns are in one of G rounds.
    """
    at = rng.permutation(clients)
    column, row = at // groups, at % groups
    slopes = rng.permutation(groups)[:rounds]
    return _groups((row + slopes[:, None] * column) % groups, groups)


def _swapped_apart(
    labels: npt.NDArray[np.int64], together: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Swap clients between groups as long as that separates pairs that were `together` most.

    The cost of a pair grows fourfold with each round in which it was together. Each step makes the
    best swap of all.
    """
    labels = labels.copy()
    cost = 4.0 ** (together - together.max(initial=0))
    np.fill_diagonal(cost, 0.0)
    member = (labels[:, None] == np.arange(labels.max() + 1)).astype(np.float64)
    by_group = cost @ member  # (K, G): cost of a client beside each group
    for _ in range(len(labels) ** 2):
        moved = by_group[:, labels]  # [a, b]: a beside the group of b
        gain = moved - np.diag(moved)[:, None]
        change = gain + gain.T - 2 * cost
        change[labels[:, None] == labels] = 0.0
        a, b = np.unravel_index(change.argmin(), change.shape)
        if not change[a, b] < -1e-9:
            break
        here, there = labels[a], labels[b]
        by_group[:, here] += cost[:, b] - cost[:, a]
        by_group[:, there] += cost[:, a] - cost[:, b]
        labels[a], labels[b] = there, here
    return labels


def rounds_to_identify(clients: int, groups: int) -> int:
    """Fewest rounds that can identify every client's part: T >= (K - 1) / (G - 1).

    G groups over T rounds have rank at most 1 + T (G - 1), since the groups of every round sum to
    the same total. Necessary, not sufficient: fixed groups never identify anyone.
    """
    return -((1 - clients) // (groups - 1))


# -- the published pairs -------------------------------------------------------------------------


@dataclass(frozen=True)
class PairedQueries:
    """Queries of one target: `include`, `exclude` (M, K) 0/1, after `attempts` draws.

    [FedAttr] Eq. (3).
    """

    target: int
    include: Plan
    exclude: Plan
    attempts: int

    @property
    def queries(self) -> Plan:
        """All 2M subsets (2M, K)."""
        return np.concatenate([self.include, self.exclude])

    @property
    def contrast(self) -> npt.NDArray[np.float64]:
        """Weights (K,) of the clients' updates in the estimate: 1 at the target, alpha elsewhere.

        [FedAttr] Eq. (4): the mean of the include sums minus the mean of the exclude sums.
        """
        difference = self.include.sum(axis=0, dtype=np.int64) - self.exclude.sum(axis=0)
        return difference / len(self.include)


def check_pairs(clients: int, others: int, repeats: int) -> None:
    """Check the published plan's sizes: N from 1 to below K - 1, M from 1."""
    if not 1 <= others < clients - 1:
        raise UsageError(
            "the subsets of the paired plan do not fit the clients",
            expected=f"N from 1 to below K - 1 = {clients - 1} (with all others nothing is masked)",
            got=f"N = {others}, K = {clients}",
            remedy="use smaller subsets, or more clients",
        )
    require(Count, repeats=repeats, remedy="M = 5, as published")


def masks_enough(
    differences: npt.NDArray[np.int64], clients: int, others: int, repeats: int
) -> npt.NDArray[np.bool_]:
    """The acceptance rule for integer differences (..., K - 1) = M alpha_j: (...,).

    c = sum alpha^2 >= aN with a = (1 - rho) / M, rho = N / (K - 1), in whole numbers so that ties
    are decided as published. [FedAttr] Eq. (5) also asks M_eff = c^2 / sum alpha^4 >= aN; since no
    alpha exceeds 1, M_eff >= c, and the first condition implies it.
    """
    squares = (differences**2).sum(axis=-1)
    return np.asarray(squares * (clients - 1) >= others * (clients - 1 - others) * repeats)


def random_subsets(shape: tuple[int, ...], size: int, of: int, rng: np.random.Generator) -> Plan:
    """Uniform random subsets as 0/1 rows (*shape, of)."""
    keys = rng.random((*shape, of))
    out = np.zeros((*shape, of), dtype=np.uint8)
    np.put_along_axis(out, np.argpartition(keys, size - 1, axis=-1)[..., :size], 1, axis=-1)
    return out


def paired_subsets(
    clients: int, target: int, others: int, repeats: int, rng: np.random.Generator
) -> PairedQueries:
    """M include and M exclude subsets of one target, redrawn until accepted ([FedAttr] Eq. (5))."""
    check_pairs(clients, others, repeats)
    if not 0 <= target < clients:
        raise UsageError(
            "the target is not a client",
            expected=f"from 0 to {clients - 1}",
            got=str(target),
            remedy="number clients from 0",
        )
    attempts = 0
    while True:
        attempts += 1
        draw = random_subsets((2, repeats), others, clients - 1, rng)
        sums = draw.sum(axis=1, dtype=np.int64)
        if masks_enough(sums[0] - sums[1], clients, others, repeats):
            break
    include, exclude = (np.insert(draw[i], target, 1 - i, axis=1) for i in (0, 1))
    return PairedQueries(target, include, exclude, attempts)


def paired_plan(
    clients: int, others: int, repeats: int, rng: np.random.Generator
) -> tuple[PairedQueries, ...]:
    """One round of the published plan: pairs for every target, 2MK queries ([FedAttr] Eq. (3))."""
    return tuple(paired_subsets(clients, i, others, repeats, rng) for i in range(clients))
