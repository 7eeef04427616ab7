"""Security games in closed form: thousands at once, without a model.

    universe.py    the possible records, and their perturbed versions
    challenger.py  Figure 11: data, coin and target of many games; or the published trials
    closest.py     distance of the closest protected record to the target, with every feature drawn;
                   or whether it is below tau, with features drawn only until that is certain
    escape.py      P_M of Theorem 1: exact for small alphabets, otherwise by draws
    cuts.py        thresholds for scores
    arrays.py      slices of arrays that fit the cache

The answer of the planted network depends on that distance alone (`fc.py`), so these decisions equal
those of the real network. If features are multiples of a step, distances are whole numbers.

Shapes: G games, n records per client, N records in the universe, r features.
"""

from fedaudit.audits.active_membership.games.challenger import (
    Challenge,
    against_client,
    challenge,
    trials,
)
from fedaudit.audits.active_membership.games.closest import decide_lazily, decisions, distances
from fedaudit.audits.active_membership.games.cuts import best_cut, midpoint
from fedaudit.audits.active_membership.games.escape import EscapeChance, escape_chance
from fedaudit.audits.active_membership.games.universe import Universe

__all__ = [
    "Challenge",
    "EscapeChance",
    "Universe",
    "best_cut",
    "challenge",
    "decisions",
    "distances",
    "decide_lazily",
    "midpoint",
    "against_client",
    "escape_chance",
    "trials",
]
