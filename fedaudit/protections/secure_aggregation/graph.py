"""How many neighbours, and how many of their shares: from failure probabilities that are stated.

With n clients, masks between all pairs cost n^2. In SecAgg+ (Bell et al., 2020) every client has k
neighbours only. As in their variant for a lying server, every client draws its own k, uniformly,
after the roster is fixed, so that nobody else chooses them. Its k neighbours and itself hold shares
of its two secrets, any t of which restore one; pairs of which either drew the other share a mask.

Three things can go wrong. c clients collude with the server, h = n - c are honest, u drop out; all
of them may be chosen by the adversary, but before the neighbours are drawn (c) or not (who is
reported as gone). X ~ Hypergeometric(n - 1, b, k) counts the neighbours among b clients.

    opened     an honest client has so many colluding holders that both kinds of its shares reach
               t: X_c >= 2t - (k + 1). A union bound over h clients.
    isolated   a set of s <= h / 2 honest clients can be opened apart from the rest, by any lists
               shown to anybody. Each of its members must then have t holders within the set and
               the colluders (see `client`), so P <= sum_s C(h, s) P[X_{s-1+c} >= t - 1]^s.
    stuck      a client has fewer than t holders left: X_u > k - t. A union bound over n clients;
               the round then ends without a sum, and nothing is revealed.

For the complete graph k = n - 1 nothing is random: with 2t > n + c no client is opened twice, and
any sum contains at least t - c honest clients. Isolated sets are not counted for it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np

from fedaudit.arrays import Floats
from fedaudit.errors import UsageError
from fedaudit.settings import Count, ShareBelowOne, checked

Quorum = Literal["two_thirds", "majority", "threshold"]
COMPLETE_UP_TO = 100
"""Clients up to which every pair shares a mask: a third of them may then collude."""
_SLACK = 1e-9
_EACH = 64  # sets up to this size are counted one by one
QUORUMS: tuple[Quorum, ...] = ("two_thirds", "majority", "threshold")


def quorum_of(holders: int, rule: Quorum, threshold: int) -> int:
    """Shares that restore a secret among this many holders."""
    if rule == "two_thirds":
        return 2 * holders // 3 + 1
    return holders // 2 + 1 if rule == "majority" else min(threshold, holders)


@dataclass(frozen=True, kw_only=True)
@checked("graph", error=UsageError)
class Neighbours:
    """Draw as few neighbours as these shares and failure probabilities allow.

    `colluding`: share of the clients that tell the server all they know; `dropout`: share that
    leaves between keys and shares. A run fails to protect with probability at most 2^-`security`,
    and to give a sum with at most 2^-`completion`.
    """

    colluding: ShareBelowOne = 0.05
    dropout: ShareBelowOne = 0.05
    security: Count = 40
    completion: Count = 20

    def honest(self, clients: int) -> int:
        """How many of so many clients do not collude."""
        # a share of 0.29 of 100 is 29, though floating-point numbers make it 28.999...
        return clients - math.floor(self.colluding * clients + _SLACK)

    def gone(self, clients: int) -> int:
        """How many of so many clients may drop out."""
        return math.ceil(self.dropout * clients - _SLACK)


@dataclass(frozen=True)
class Graph:
    """n clients with k neighbours each, t shares; log2 of the three failure probabilities."""

    clients: int
    neighbours: int
    quorum: int
    opened: float
    isolated: float
    stuck: float

    @property
    def complete(self) -> bool:
        return self.neighbours == self.clients - 1

    @property
    def unprotected(self) -> float:
        """log2 of the probability that an honest client's sum is smaller than promised."""
        return float(np.logaddexp2(self.opened, self.isolated))

    def largest_threshold(self, ask: Neighbours) -> int:
        """Most clients that are surely in a sum, of all that its list names.

        In a sparse graph more than half of the honest ones, whatever lists are shown (`isolated`).
        """
        return self.clients if self.complete else ask.honest(self.clients) // 2 + 1

    def __str__(self) -> str:
        if self.complete:
            return f"complete graph of {self.clients} clients, {self.quorum} shares open"
        return (
            f"{self.clients} clients, {self.neighbours} neighbours drawn by each, {self.quorum} "
            f"shares open; a client opened: {_chance(self.opened)}, a set isolated: "
            f"{_chance(self.isolated)}, no sum: {_chance(self.stuck)}"
        )


def _chance(log: float) -> str:
    return "0" if log == -math.inf else f"2^{log:.1f}"


def failures(clients: int, neighbours: int, quorum: int, ask: Neighbours) -> Graph:
    """The graph with its failure probabilities, under the shares of `ask`."""
    n, k, t = clients, neighbours, quorum
    honest, gone = ask.honest(n), ask.gone(n)
    colluding = n - honest
    if k == n - 1:
        opened = -math.inf if 2 * t > n + colluding else 0.0
        return Graph(n, k, t, opened, -math.inf, -math.inf if t <= n - gone else 0.0)
    sets = np.arange(1, honest // 2 + 1)
    # sets of similar size are bounded by the largest of them
    largest = np.minimum(sets[-1:], np.where(sets < _EACH, sets, -(-sets // _EACH) * _EACH))
    sizes, at = np.unique(largest, return_inverse=True)
    inside = _tail(n - 1, np.minimum(sizes - 1 + colluding, n - 1), k, t - 1)[at]
    terms = _choose(honest, sets) + sets * inside
    isolated = float(np.logaddexp2.reduce(terms)) if len(terms) else -math.inf
    twice = float(_tail(n - 1, np.array([colluding]), k, 2 * t - k - 1)[0])
    stuck = float(_tail(n - 1, np.array([gone]), k, k - t + 1)[0])
    return Graph(
        n,
        k,
        t,
        min(0.0, math.log2(honest) + twice),
        min(0.0, isolated),
        min(0.0, math.log2(n) + stuck),
    )


@cache
def avoidable(clients: int, neighbours: int, ask: Neighbours) -> int:
    """Most members of a sum that may not have been there, up to 2^-`security`.

    A client notices an invented or absent member only if it draws it: its keys are forged, or its
    masks stay on. More than half of the h honest clients must be left (`isolated`), none of which
    drew one of p such members, whom the server may choose after the draws:
    C(n, p) P[Binomial(h, (1 - p / n)^k) >= h / 2] (Chernoff).
    """
    n, k = clients, neighbours
    if k >= n - 1:
        return 0
    honest = ask.honest(n)
    most = n - honest // 2 - 1
    for p in range(1, most + 1):
        spared = math.exp(k * math.log1p(-p / n))
        chance = 0.5 * honest * math.log2(4 * spared * (1 - spared)) if spared < 0.5 else 0.0
        if float(_choose(n, p)) + chance <= -ask.security:
            return p - 1
    return most


@cache
def smallest_graph(clients: int, ask: Neighbours) -> Graph | None:
    """The fewest neighbours that keep what `ask` states; None if all pairs are no dearer."""
    most = (clients - 1) // 2  # both ends draw: twice as many masks as neighbours
    if most < 2 or _shares(clients, most, ask) is None:
        return None
    low, high = 1, most
    while high - low > 1:
        middle = (low + high) // 2
        if _shares(clients, middle, ask) is None:
            low = middle
        else:
            high = middle
    return _shares(clients, high, ask)


def _shares(clients: int, neighbours: int, ask: Neighbours) -> Graph | None:
    """The fewest shares with which this many neighbours protect, if they also give a sum."""
    low, high = (neighbours + 1) // 2, neighbours + 1
    while high - low > 1:  # more shares protect better
        middle = (low + high) // 2
        if failures(clients, neighbours, middle, ask).unprotected <= -ask.security:
            high = middle
        else:
            low = middle
    found = failures(clients, neighbours, high, ask)
    good = found.unprotected <= -ask.security and found.stuck <= -ask.completion
    return found if good else None


@cache
def _log_factorials(count: int) -> Floats:
    logs = np.log2(np.maximum(np.arange(count + 1), 1))
    return np.asarray(np.cumsum(logs))


def _choose(n: int, k: object) -> Floats:
    """log2 of binomial coefficients; -inf outside 0..n."""
    table, at = _log_factorials(n), np.asarray(k)
    inside = (at >= 0) & (at <= n)
    kept = np.where(inside, at, 0)
    return np.where(inside, table[n] - table[kept] - table[n - kept], -np.inf)


def _tail(total: int, marked: np.ndarray, draws: int, least: int) -> Floats:
    """log2 P[X >= least] for X ~ Hypergeometric(total, marked, draws), for every `marked`."""
    if least <= 0:
        return np.zeros(len(marked))
    counts = np.arange(least, draws + 1)
    table = _log_factorials(total)
    m, x = marked[:, None], counts[None, :]
    possible = (x <= m) & (draws - x <= total - m)

    def logs(n: np.ndarray, k: np.ndarray) -> Floats:
        k = np.where(possible, k, 0)
        n = np.where(possible, n, 0)
        return np.asarray(table[n] - table[k] - table[n - k])

    terms = logs(m + 0 * x, x + 0 * m) + logs(total - m + 0 * x, draws - x + 0 * m)
    terms = np.where(possible, terms - float(_choose(total, draws)), -np.inf)
    return np.asarray(np.logaddexp2.reduce(terms, axis=1, initial=-np.inf))
