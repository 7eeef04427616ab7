"""How many links chance finds, and how many are needed to show linking.

Under the null the rows of a round belong to the clients in random order, so the links found between
two rounds are the fixed points of a random permutation, and pairs of rounds add up independently.
A binomial with success 1/K has the same mean and a variance too small by the factor 1 - 1/K: at
three clients a test based on it alarms three times as often as stated.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from fedaudit.arrays import Floats
from fedaudit.stats.power import MOST, check_power

NEGLIGIBLE = 1e-15
FEW_PAIRS = 100_000
"""Largest number of pairs of rounds that is searched for."""


def fixed_points(n: int) -> Floats:
    """P(k fixed points) of a uniform permutation of n, k = 0..n: (n + 1,). Rencontres numbers.

    P(k) = 1/k! sum_{i <= n - k} (-1)^i / i!; terms beyond 1/20! vanish in double precision.
    """
    signs = [(-1.0) ** i / math.factorial(min(i, 150)) for i in range(n + 1)]
    partial = np.cumsum(signs)
    return np.array([partial[n - k] / math.factorial(min(k, 150)) for k in range(n + 1)])


@lru_cache(maxsize=512)
def links_by_chance(clients: int, pairs: int) -> tuple[float, ...]:
    """P(h links found by chance), h = 0, 1, ..., over `pairs` pairs of rounds of all clients."""
    one = _trimmed(fixed_points(clients))
    out, left = np.ones(1), pairs
    while left:
        if left & 1:
            out = _trimmed(np.convolve(out, one))
        one, left = _trimmed(np.convolve(one, one)), left >> 1
    return tuple(out.tolist())


def _trimmed(p: Floats) -> Floats:
    """Without the far tail, whose total is negligible."""
    tail = p[::-1].cumsum()[::-1]
    return p[: max(1, int((tail > NEGLIGIBLE).sum()))]


def least_links(clients: int, pairs: int, level: float) -> int | None:
    """Fewest links that chance finds in at most `level` of cases; None if all links are not enough.

    With four clients and one pair of rounds all links are found in 1 of 24 cases.
    """
    p = np.array(links_by_chance(clients, pairs))
    tail = p[::-1].cumsum()[::-1]
    least = int((tail > level).sum())
    return least if least <= clients * pairs else None


def link_power(
    share: float, clients: int, pairs: int, level: float, likeness: float = 0.0
) -> float:
    """Probability that a linker which finds each link with probability `share` is significant.

    `likeness`: correlation of a client's links. Independent links: exact binomial tail; else normal
    with the variance times Kish's 1 + (pairs - 1) likeness.
    """
    from scipy.special import bdtrc, ndtr

    least = least_links(clients, pairs, level)
    if least is None:
        return 0.0
    links = clients * pairs
    if share >= 1.0:
        return 1.0
    if likeness <= 0.0:
        return float(bdtrc(least - 1, links, share)) if least else 1.0
    spread = math.sqrt(links * share * (1 - share) * (1 + (pairs - 1) * likeness))
    return float(ndtr((links * share - least + 0.5) / max(spread, 1e-12)))


def pairs_for_share(
    share: float, clients: int, power: float, level: float, likeness: float = 0.0
) -> int | None:
    """Pairs of rounds with all clients from which linking at `share` is shown with `power`.

    None if no number suffices: links of a client that are alike count as few, and then only more
    clients help.
    """
    check_power(power)

    def enough(pairs: int) -> bool:
        return link_power(share, clients, pairs, level, likeness) >= power

    high = 1
    while not enough(high):
        high *= 2
        if high > min(FEW_PAIRS, MOST // clients):
            return None
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def detectable_share(
    clients: int, pairs: int, power: float, level: float, likeness: float = 0.0
) -> float | None:
    """The smallest share of links that is shown with `power`; None if not even all are."""
    check_power(power)
    if link_power(1.0, clients, pairs, level, likeness) < power:
        return None
    low, high = 0.0, 1.0
    while high - low > 1e-6:
        middle = (low + high) / 2
        found = link_power(middle, clients, pairs, level, likeness) >= power
        low, high = (low, middle) if found else (middle, high)
    return high


# -- single clients -------------------------------------------------------------------------------


def links_until_sure(
    hits: Sequence[bool], chance: float, confidence: float, clients: int = 1
) -> int | None:
    """Links after which a client counts as linked, by an exact binomial test after every link.

    All tests of all clients share the error rate, so neither many links nor many clients raise it.
    """
    level = (1.0 - confidence) / max(1, len(hits)) / max(1, clients)
    total = 0
    for n, hit in enumerate(hits, start=1):
        total += hit
        if _tail(n, total, chance) <= level:
            return n
    return None


@lru_cache(maxsize=4096)
def _tail(n: int, least: int, chance: float) -> float:
    """P(Binomial(n, chance) >= least)."""
    return sum(math.comb(n, k) * chance**k * (1 - chance) ** (n - k) for k in range(least, n + 1))
