"""The challenger: data, coin and target of many games.

Independent games, the published trials, and games against one client with its own records.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedaudit.arrays import Bools, Indices
from fedaudit.audits.active_membership.games.arrays import slices
from fedaudit.audits.active_membership.theory import check_game
from fedaudit.errors import UsageError


@dataclass(frozen=True)
class Challenge:
    """The challenger's draws, as indices into the universe.

    `data` (G, n): the client's records. `target` (G,). `member` (G,): whether the target is among
    the data. `trial` (G,): games of one trial share data and targets.
    """

    data: Indices
    target: Indices
    member: Bools
    trial: Indices

    def __len__(self) -> int:
        return len(self.member)

    def part(self, games: slice) -> Challenge:
        return Challenge(
            self.data[games], self.target[games], self.member[games], self.trial[games]
        )


def challenge(
    universe: int,
    records: int,
    games: int,
    rng: np.random.Generator,
    *,
    target: int | None = None,
) -> Challenge:
    """Independent games: n different records, a fair coin, a target that is in or out.

    [ActiveMembership] Figure 11, with the uniform distribution on the universe. `target`: the
    record of every game (`Universe.index_of`); by default each game draws another.
    """
    check_game(records, universe)
    if target is not None:
        return _fixed_target(universe, records, games, target, rng)
    data, inside, outside = _draw_tables(universe, records, games, rng)
    member = rng.random(games) < 0.5
    return Challenge(data, np.where(member, inside, outside), member, np.arange(games))


def _fixed_target(
    universe: int, records: int, games: int, target: int, rng: np.random.Generator
) -> Challenge:
    """Games about one record: a client's other records come from the rest of the universe."""
    if not 0 <= target < universe:
        raise UsageError(
            "the target is not in the universe",
            expected=f"a number from 0 to {universe - 1}",
            got=str(target),
            remedy="get the number of a record from Universe.index_of",
        )
    step = max(1, (1 << 21) // universe)
    data = np.empty((games, records), dtype=np.int64)
    for part in slices(games, step):
        keys = rng.random((part.stop - part.start, universe))
        keys[:, target] = 2.0  # never drawn
        data[part] = np.argpartition(keys, records - 1, axis=1)[:, :records]
    member = rng.random(games) < 0.5
    inside = np.flatnonzero(member)
    data[inside, rng.integers(0, records, len(inside))] = target
    return Challenge(data, np.full(games, target), member, np.arange(games))


def trials(
    universe: int, records: int, count: int, games: int, rng: np.random.Generator
) -> Challenge:
    """The published design: `count` trials of `games` games. [ActiveMembership] Appendix G

    A trial keeps its data and both targets; every game has a new coin and new noise.
    """
    check_game(records, universe)
    data, inside, outside = _draw_tables(universe, records, count, rng)
    trial = np.repeat(np.arange(count), games)
    member = rng.random(count * games) < 0.5
    target = np.where(member, inside[trial], outside[trial])
    return Challenge(data[trial], target, member, trial)


def against_client(
    universe: int, own: npt.ArrayLike, games: int, rng: np.random.Generator
) -> Challenge:
    """Games against one client with its records `own` (n,): only the target is drawn."""
    mine = np.unique(np.asarray(own, dtype=np.int64))
    check_game(len(mine), universe)
    others = np.setdiff1d(np.arange(universe), mine)
    member = rng.random(games) < 0.5
    target = np.where(member, rng.choice(mine, games), rng.choice(others, games))
    return Challenge(
        np.broadcast_to(mine, (games, len(mine))), target, member, np.zeros(games, dtype=np.int64)
    )


def _draw_tables(
    universe: int, records: int, count: int, rng: np.random.Generator
) -> tuple[Indices, Indices, Indices]:
    """Data (count, n) without repetition, one member of each, and one non-member."""
    data = np.empty((count, records), dtype=np.int64)
    outside = np.empty(count, dtype=np.int64)
    step = max(1, (1 << 21) // universe)
    for low in range(0, count, step):
        rows = slice(low, min(count, low + step))
        keys = rng.random((rows.stop - low, universe))
        chosen = np.argpartition(keys, records, axis=1)[:, : records + 1]
        # the record of rank n is a uniform draw from the remaining ones
        data[rows], outside[rows] = chosen[:, :records], chosen[:, records]
    inside = data[np.arange(count), rng.integers(0, records, count)]
    return data, inside, outside
