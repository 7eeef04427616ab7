"""Distance between the target of a game and the closest protected record.

`distances` draws every feature. `decisions` draws features only until it is certain whether a
record is closer than tau.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedaudit.arrays import Bools, Floats, Indices
from fedaudit.audits.active_membership.channel import Codebook
from fedaudit.audits.active_membership.draws import BitSampler, fast_generator
from fedaudit.audits.active_membership.games.arrays import FEATURES_AT_ONCE, slices
from fedaudit.audits.active_membership.games.challenger import Challenge
from fedaudit.audits.active_membership.games.universe import Universe

FLOATS = 1 << 20
"""Features perturbed at once by a mechanism without a codebook."""
FIRST_FEATURES = 36
"""Features to draw first, for every pair."""
NEXT_FEATURES = 12
"""Features to draw next, for undecided pairs."""


def distances(universe: Universe, games: Challenge, rng: np.random.Generator) -> Floats:
    """The smallest L1 distance between a protected record and the target (G,)."""
    out = np.empty(len(games))
    n, r = games.data.shape[1], universe.features
    if universe.codes is None:
        step = max(1, FLOATS // (n * r))
        for part in slices(len(games), step):
            some = games.part(part)
            shown = universe.channel.perturb(universe.values[some.data].reshape(-1, r), rng)
            apart = np.abs(shown.reshape(-1, n, r) - universe.values[some.target][:, None])
            out[part] = apart.sum(axis=2).min(axis=1)
        return out
    book = universe.channel.codes
    assert book is not None
    rng = fast_generator(rng)
    rows = max(1, FEATURES_AT_ONCE // r)  # pairs of record and target
    pairs = games.data.ravel()
    targets = np.repeat(games.target, n)
    apart = np.empty(len(pairs), dtype=np.int64)
    for part in slices(len(pairs), rows):
        codes = universe.codes[pairs[part]].ravel()
        level = book.level(book.draw(codes, rng))
        level -= universe.levels[targets[part]].ravel()
        np.abs(level, out=level)
        apart[part] = level.reshape(-1, r).sum(axis=1, dtype=np.int64)
    return apart.reshape(len(games), n).min(axis=1) * book.step


def decisions(universe: Universe, games: Challenge, tau: float, rng: np.random.Generator) -> Bools:
    """Whether some protected record lies closer than `tau` to the target (G,).

    Features are drawn group by group. A pair ends when its partial sum reaches tau, a game when one
    record is within tau. The result is exact: features that are never drawn are independent of all
    others.
    """
    if universe.codes is None:
        return distances(universe, games, rng) < tau
    book = universe.channel.codes
    assert book is not None
    rng = fast_generator(rng)
    limit = math.ceil(tau / book.step - 1e-9)
    found = np.zeros(len(games), dtype=bool)
    # the target's own record first: if it is within tau, the game is decided
    own = np.flatnonzero(games.member)
    found[own] = _stays_within(universe, book, games.target[own], limit, rng)
    open_ = np.flatnonzero(~found)
    n = games.data.shape[1]
    for part in slices(len(open_), max(1, (1 << 16) // n)):
        some = open_[part]
        record, target = games.data[some], games.target[some]
        pairs = RecordPairs(universe, book, record, target, record == target[:, None])
        found[some] = pairs.within(limit, rng).any(axis=1)
    return found


def _stays_within(
    universe: Universe,
    book: Codebook,
    targets: Indices,
    limit: int,
    rng: np.random.Generator,
) -> Bools:
    """Whether records (P,) stay within `limit` steps of themselves; most do, so all is drawn."""
    assert universe.codes is not None
    out = np.empty(len(targets), dtype=bool)
    for part in slices(len(targets), max(1, FEATURES_AT_ONCE // universe.features)):
        codes = universe.codes.take(targets[part], axis=0)
        level = book.level(book.draw(codes.ravel(), rng)).reshape(codes.shape)
        level -= universe.levels.take(targets[part], axis=0)
        out[part] = np.abs(level, out=level).sum(axis=1, dtype=np.int64) < limit
    return out


def decide_lazily(
    done: Bools,
    features: int,
    limit: int,
    apart: Callable[[Indices, int, int], npt.NDArray[np.signedinteger]],
    *,
    group: int = 1,
) -> Bools:
    """Whether pairs (P,) are closer than `limit` steps, reading no more features than needed.

    `apart(pairs, first, stop)` returns distances (p, stop - first) of some pairs in some of their
    features. It is called at most once per pair and feature, in order; for the first features it is
    called on whole groups of `group` pairs. Pairs that are `done` count as far apart.
    """
    total = np.zeros(len(done), dtype=np.int64)
    alive = np.arange(len(done))
    first, width = 0, FIRST_FEATURES
    while first < features and len(alive):
        stop = min(features, first + width)
        step = max(1, FEATURES_AT_ONCE // (stop - first))
        for part in slices(len(alive), step if first else max(group, step - step % group)):
            some = alive[part]
            each = apart(some, first, stop)
            total[some] += np.einsum("ij->i", each, dtype=np.int32)  # .sum is slower
        if not first:
            total[done] = limit
        alive = alive[total[alive] < limit]
        # small groups next, which decide most pairs; larger ones for the few that remain
        first, width = stop, NEXT_FEATURES * max(1, stop // (16 * NEXT_FEATURES))
    return total < limit


@dataclass(frozen=True)
class RecordPairs:
    """Pairs of records (G, n) and targets (G,), as indices into the universe.

    `done` (G, n) marks pairs that are known to be far apart.
    """

    universe: Universe
    book: Codebook
    records: Indices
    targets: Indices
    done: Bools

    def within(self, limit: int, rng: np.random.Generator) -> Bools:
        """Whether each distance in steps is below `limit` (G, n), features drawn lazily."""
        flips = self.book.flips
        if flips is None or len(flips.widths) < 2:
            found = decide_lazily(
                self.done.ravel(),
                self.universe.features,
                limit,
                lambda some, a, b: self._draw_distances(some, a, b, rng),
                group=self.records.shape[1],
            )
        else:
            found = self._upper_bits_first(flips, limit, rng)
        return found.reshape(self.records.shape)

    def _upper_bits_first(self, flips: BitSampler, limit: int, rng: np.random.Generator) -> Bools:
        """For codes with many bits: draw the upper bits, which bound a distance from below, then
        the lower bits of the undecided pairs only."""
        r, width = self.universe.features, flips.widths[0]
        low = self.book.bits - width  # lower bits, drawn later
        # half as wide as codes and levels, to fit the cache
        codes, levels = self._upper_bits(low)
        drawn: list[tuple[Indices, slice, npt.NDArray[np.int16]]] = []

        def at_least(some: Indices, first: int, stop: int) -> npt.NDArray[np.int16]:
            here, target = self._feature_positions(some, first, stop)
            shown = flips.draw_part(0, here.size, rng).astype(np.int16)
            drawn.append((some, slice(first, stop), shown))
            shown = shown.reshape(here.shape) ^ codes.take(here, mode="clip")
            sign = shown >> np.int16(width - 1)
            shown &= np.int16((1 << (width - 1)) - 1)
            shown ^= -sign  # m for plus, -m - 1 for minus: in units of the lower bits, from below
            shown -= levels[:, first:stop].take(target, axis=0)
            np.abs(shown, out=shown)
            shown -= np.int16(1)
            np.maximum(shown, 0, out=shown)
            return shown.reshape(len(some), stop - first)

        done, group = self.done.ravel(), self.records.shape[1]
        out = decide_lazily(done, r, -(-limit >> low), at_least, group=group)
        left = np.flatnonzero(out)
        for part in slices(len(left), max(1, FEATURES_AT_ONCE // r)):
            some = left[part]
            words = np.empty((len(some), r), dtype=np.uint32)
            for asked, columns, upper in drawn:
                at = np.searchsorted(asked, some)
                at[at == len(asked)] = 0
                found = np.flatnonzero(asked[at] == some)
                words[found, columns] = upper.reshape(len(asked), -1)[at[found]]
            for i, bits in enumerate(flips.widths[1:], start=1):
                words <<= np.uint32(bits)
                words |= flips.draw_part(i, words.size, rng).reshape(words.shape)
            apart = self._distances_after(words.view(np.int32), some, 0, r)
            out[some] = apart.sum(axis=1, dtype=np.int64) < limit
        return out

    def _feature_positions(
        self, some: Indices, first: int, stop: int
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
        """Positions of the records' features in the table, in the target's order, and the targets.

        (p, stop - first) and (p,); for whole groups (g, n, stop - first) and (g, 1).
        """
        u, n = self.universe, self.records.shape[1]
        start = (self.records.ravel().take(some) * u.features).astype(np.int32)[:, None]
        if first:
            target = self.targets.take(some // n)
        else:
            target = self.targets[some[0] // n : some[-1] // n + 1, None]
            start = start.reshape(-1, n, 1)
        return u.by_weight[:, first:stop].take(target, axis=0) + start, target

    def _upper_bits(self, low: int) -> tuple[npt.NDArray[np.int16], npt.NDArray[np.int16]]:
        """Codes (N r,) and ordered levels (N, r) without their `low` lower bits."""
        u = self.universe
        assert u.codes is not None
        kept = u.__dict__.setdefault("_upper", {})
        if low not in kept:
            codes, levels = u.codes.ravel() >> low, u.levels_by_weight >> low
            kept[low] = codes.astype(np.int16), levels.astype(np.int16)
        return kept[low]

    def _draw_distances(
        self, some: Indices, first: int, stop: int, rng: np.random.Generator
    ) -> npt.NDArray[np.int32]:
        here, target = self._feature_positions(some, first, stop)
        assert self.universe.codes is not None
        codes = self.universe.codes.ravel().take(here, mode="clip")
        level = self.book.level(self.book.draw(codes.ravel(), rng)).reshape(codes.shape)
        level -= self.universe.levels_by_weight[:, first:stop].take(target, axis=0)
        return np.abs(level, out=level).reshape(len(some), stop - first)

    def _distances_after(
        self, flips: npt.NDArray[np.int32], some: Indices, first: int, stop: int
    ) -> npt.NDArray[np.int32]:
        """Distances (p, stop - first) of single pairs, from known flips."""
        u, n = self.universe, self.records.shape[1]
        assert u.codes is not None
        target = self.targets.take(some // n)
        column = u.by_weight[:, first:stop].take(target, axis=0).astype(np.int64)
        column += (self.records.ravel().take(some) * u.features)[:, None]
        level = self.book.level(flips ^ u.codes.ravel().take(column))
        level -= u.levels_by_weight[:, first:stop].take(target, axis=0)
        return np.abs(level, out=level)
