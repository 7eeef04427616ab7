"""Security games in closed form: thousands at once, without a model.

    universe.py    the records that can occur, and what clients train on for them
    challenger.py  Figure 11: data, coin and target of many games; or the published trials
    closest.py     how close the closest protected record comes to the target, every feature drawn;
                   or whether it comes closer than tau, features drawn only until that is certain
    leaving.py     P_M of Theorem 1, exact where the law is small, otherwise by draws
    cuts.py        where to cut scores
    arrays.py      types, and work in parts that stay in the cache

The planted network answers exactly by that distance (`fc.py`), so decisions are those of the
reference path. Where features are whole multiples of a step, distances are whole numbers.

Shapes: G games, n records per client, N records in the universe, r features.
"""

from fedaudit.audits.active_membership.games.challenger import (
    Challenge,
    challenge,
    on_client,
    trials,
)
from fedaudit.audits.active_membership.games.closest import decisions, distances, lazily
from fedaudit.audits.active_membership.games.cuts import best_cut, midpoint
from fedaudit.audits.active_membership.games.leaving import Outside, outside
from fedaudit.audits.active_membership.games.universe import Universe

__all__ = [
    "Challenge",
    "Outside",
    "Universe",
    "best_cut",
    "challenge",
    "decisions",
    "distances",
    "lazily",
    "midpoint",
    "on_client",
    "outside",
    "trials",
]
