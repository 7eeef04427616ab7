"""Security games in closed form: thousands at once, without a model.

    challenge    Figure 11: data, coin and target of many games; or the published trials
    distances    how close the closest protected record comes to the target, every feature drawn
    decisions    whether it comes closer than tau, features drawn only until that is certain
    outside      P_M of Theorem 1, exact where the law is small, otherwise by draws

The planted network answers exactly by that distance (`fc.py`), so decisions are those of the
reference path. Where features are whole multiples of a step, distances are whole numbers.

Shapes: G games, n records per client, N records in the universe, r features.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from fedaudit.audits.active_membership.channel import OPEN, Channel, Codebook
from fedaudit.audits.active_membership.draws import Flips, fast
from fedaudit.audits.active_membership.theory import check_game
from fedaudit.errors import DataError, UsageError
from fedaudit.results import Estimate
from fedaudit.stats.intervals import clopper_pearson

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

DRAWN = 1 << 14
"""Features drawn at once: their arrays stay in the cache, and below what malloc maps anew."""
FLOATS = 1 << 20
"""Features perturbed at once by a mechanism without a codebook."""
FIRST = 36
"""Features that are drawn of every pair before anything is known, ..."""
THEN = 12
"""... and of those that are still open next."""
EXACT_WORK = 2e9
"""Multiplications that an exact P_M may take."""


@dataclass(frozen=True)
class Universe:
    """All records that can occur, each once, as a client would train on them without noise.

    `values` (N, r); `codes` (N, r) where features are discrete. `merged` records were equal to
    others after encoding. What Theorem 1 calls |X| is N.
    """

    values: Floats
    channel: Channel = field(default=OPEN, repr=False)
    codes: npt.NDArray[np.int32] | None = field(default=None, repr=False)
    merged: int = 0

    @classmethod
    def of(cls, x: npt.ArrayLike, channel: Channel = OPEN) -> Universe:
        """From records (n, r) as they are before any protection."""
        raw = np.asarray(x, dtype=np.float64)
        if raw.ndim != 2:
            raise UsageError(
                "a universe is a table of records",
                expected="an array (records, features)",
                got=f"shape {raw.shape}",
                remedy="flatten every record into its features",
            )
        _finite(raw, "records")
        clean = np.ascontiguousarray(channel.clean(raw) + 0.0)  # no negative zeros
        _, first = np.unique(clean, axis=0, return_index=True)
        first.sort()
        if len(first) < 2:
            raise DataError(
                "a universe of one record leaves nothing to tell apart",
                expected="at least two records that differ after encoding",
                got=f"{len(first)} of {len(raw)}",
                remedy="give more records, or encode them more finely",
            )
        book = channel.codes
        codes = None if book is None else book.encode(raw[first]).astype(np.int32)
        return cls(clean[first], channel, codes, len(raw) - len(first))

    def restricted(self, rows: Indices) -> Universe:
        """The universe of some of its records, in this order."""
        if len(rows) < 2:
            raise DataError(
                "too few records can be asked about",
                expected="at least two records of this universe",
                got=str(len(rows)),
                remedy="give more records, or (attention) larger patches",
            )
        if len(rows) == len(self) and (np.diff(rows) > 0).all():
            return self
        codes = None if self.codes is None else self.codes[rows]
        return Universe(self.values[rows], self.channel, codes, self.merged)

    def __len__(self) -> int:
        return len(self.values)

    @property
    def features(self) -> int:
        return self.values.shape[1]

    @cached_property
    def levels(self) -> npt.NDArray[np.int32]:
        """Features as whole numbers (N, r)."""
        assert self.codes is not None
        assert self.channel.codes is not None
        return np.ascontiguousarray(self.channel.codes.level(self.codes))

    @cached_property
    def radius(self) -> float:
        """Delta: half the smallest L1 distance of two records. [ActiveMembership] Section 4.1"""
        from scipy.spatial.distance import pdist

        if self.codes is None:
            return 0.5 * float(pdist(self.values, "cityblock").min())
        assert self.channel.codes is not None
        return 0.5 * self.channel.codes.step * round(float(pdist(self.levels, "cityblock").min()))

    @cached_property
    def by_weight(self) -> npt.NDArray[np.unsignedinteger]:
        """Features of every record (N, r), those first in which it differs most from the others:
        a pair is then decided after few of them."""
        ordered = np.sort(self.values, axis=0)
        sums = np.concatenate([np.zeros((1, self.features)), np.cumsum(ordered, axis=0)])
        away = np.empty_like(self.values)
        for j in range(self.features):
            t, n = self.values[:, j], len(self)
            below = np.searchsorted(ordered[:, j], t)
            left = t * below - sums[below, j]
            away[:, j] = left + (sums[n, j] - sums[below, j]) - t * (n - below)
        small = np.uint16 if self.features <= 1 << 16 else np.uint32
        return np.argsort(-away, axis=1, kind="stable").astype(small)

    @cached_property
    def levels_by_weight(self) -> npt.NDArray[np.int32]:
        """`levels` in that order, (N, r)."""
        return np.take_along_axis(self.levels, self.by_weight, axis=1)

    def shown(self, records: Indices, rng: np.random.Generator) -> Floats:
        """What clients train on for records of these numbers (m,), drawn independently: (m, r)."""
        book = self.channel.codes
        if self.codes is None or book is None:
            return self.channel.perturb(self.values[records], rng)
        rng = fast(rng)
        out = np.empty((len(records), self.features))
        for part in _parts(len(records), max(1, DRAWN // self.features)):
            codes = self.codes.take(records[part], axis=0)
            drawn = book.level(book.draw(codes.ravel(), rng)).reshape(codes.shape)
            np.multiply(drawn, book.step, out=out[part])
        out += book.origin
        return out

    def number_of(self, target: npt.ArrayLike) -> int:
        """The number of a record (r,), as it is before any protection."""
        raw = np.asarray(target, dtype=np.float64).reshape(1, -1)
        if raw.shape[1] != self.features:
            raise UsageError(
                "the target is not a record of this universe",
                expected=f"{self.features} features",
                got=str(raw.shape[1]),
                remedy="encode it as the records of the universe are",
            )
        _finite(raw, "the target")
        found = np.flatnonzero((self.values == self.channel.clean(raw)).all(axis=1))
        if not len(found):
            near = int(np.abs(self.values - self.channel.clean(raw)).sum(axis=1).argmin())
            raise DataError(
                "the target is not in the universe",
                expected=f"one of its {len(self)} records",
                got=f"a record that equals none of them; the nearest is number {near}",
                remedy="add the target to the universe: whoever asks for it thinks it possible",
            )
        return int(found[0])

    def balls(self, tau: float) -> Indices:
        """How many values of a single feature lie closer than `tau` to each record (N,)."""
        book = self.channel.codes
        assert book is not None
        assert self.features == 1
        reach = math.ceil(tau / book.step - 1e-9) - 1  # steps, at most
        at = self.levels[:, 0].astype(np.int64)
        return np.minimum(at + reach, book.alphabet - 1) - np.maximum(at - reach, 0) + 1

    def snapped(self, tau: float) -> float:
        """The threshold between two possible distances that decides as `tau` does.

        Distances on a lattice are multiples of its step: halfway between two of them, rounding in a
        network of 32-bit floats cannot turn a decision.
        """
        book = self.channel.codes
        if self.codes is None or book is None:
            return tau
        return (math.ceil(tau / book.step - 1e-9) - 0.5) * book.step


def _finite(x: Floats, what: str) -> None:
    bad = int((~np.isfinite(x)).sum())
    if bad:
        raise DataError(
            f"{what}: features are not finite",
            expected="finite numbers",
            got=f"{bad} of {x.size} are NaN or infinite",
            remedy="fill or drop them first",
        )


# -- the challenger -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Challenge:
    """What the challenger drew, by numbers of records in the universe.

    `data` (G, n) the client's records, `target` (G,), `member` (G,) whether the target is among
    them; `trial` (G,) games of one trial share data and targets.
    """

    data: Indices
    target: Indices
    member: Mask
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
    """Independent games: n different records, a fair coin, a target in or out of them.

    [ActiveMembership] Figure 11, with the uniform distribution on the universe. `target`: the
    record that is asked about in every game (`Universe.number_of`), by default another each time.
    """
    check_game(records, universe)
    if target is not None:
        return _about(universe, records, games, target, rng)
    data, inside, outside = _tables(universe, records, games, rng)
    member = rng.random(games) < 0.5
    return Challenge(data, np.where(member, inside, outside), member, np.arange(games))


def _about(
    universe: int, records: int, games: int, target: int, rng: np.random.Generator
) -> Challenge:
    """Games about one record: the others of a client are drawn from the rest of the universe."""
    if not 0 <= target < universe:
        raise UsageError(
            "the target is not in the universe",
            expected=f"a number from 0 to {universe - 1}",
            got=str(target),
            remedy="ask for the number of a record with Universe.number_of",
        )
    step = max(1, (1 << 21) // universe)
    data = np.empty((games, records), dtype=np.int64)
    for part in _parts(games, step):
        keys = rng.random((part.stop - part.start, universe))
        keys[:, target] = 2.0  # never among them
        data[part] = np.argpartition(keys, records - 1, axis=1)[:, :records]
    member = rng.random(games) < 0.5
    inside = np.flatnonzero(member)
    data[inside, rng.integers(0, records, len(inside))] = target
    return Challenge(data, np.full(games, target), member, np.arange(games))


def trials(
    universe: int, records: int, count: int, games: int, rng: np.random.Generator
) -> Challenge:
    """The published design: `count` trials of `games` games; within a trial data and both targets
    stay, coins and noise are new. [ActiveMembership] Appendix G"""
    check_game(records, universe)
    data, inside, outside = _tables(universe, records, count, rng)
    trial = np.repeat(np.arange(count), games)
    member = rng.random(count * games) < 0.5
    target = np.where(member, inside[trial], outside[trial])
    return Challenge(data[trial], target, member, trial)


def on_client(universe: int, own: npt.ArrayLike, games: int, rng: np.random.Generator) -> Challenge:
    """Games against one client as it is: its records `own` (n,) stay, the target is drawn."""
    mine = np.unique(np.asarray(own, dtype=np.int64))
    check_game(len(mine), universe)
    others = np.setdiff1d(np.arange(universe), mine)
    member = rng.random(games) < 0.5
    target = np.where(member, rng.choice(mine, games), rng.choice(others, games))
    return Challenge(
        np.broadcast_to(mine, (games, len(mine))), target, member, np.zeros(games, dtype=np.int64)
    )


def _tables(
    universe: int, records: int, count: int, rng: np.random.Generator
) -> tuple[Indices, Indices, Indices]:
    """Data (count, n) without repetition, one record of each, and one that is not in it."""
    data = np.empty((count, records), dtype=np.int64)
    outside = np.empty(count, dtype=np.int64)
    step = max(1, (1 << 21) // universe)
    for low in range(0, count, step):
        rows = slice(low, min(count, low + step))
        keys = rng.random((rows.stop - low, universe))
        chosen = np.argpartition(keys, records, axis=1)[:, : records + 1]
        # the record of rank n is a uniform draw from those that were not taken
        data[rows], outside[rows] = chosen[:, :records], chosen[:, records]
    inside = data[np.arange(count), rng.integers(0, records, count)]
    return data, inside, outside


# -- distances ------------------------------------------------------------------------------------


def distances(universe: Universe, games: Challenge, rng: np.random.Generator) -> Floats:
    """The smallest L1 distance of a protected record to the target (G,), every feature drawn."""
    out = np.empty(len(games))
    n, r = games.data.shape[1], universe.features
    if universe.codes is None:
        step = max(1, FLOATS // (n * r))
        for part in _parts(len(games), step):
            some = games.part(part)
            shown = universe.channel.perturb(universe.values[some.data].reshape(-1, r), rng)
            apart = np.abs(shown.reshape(-1, n, r) - universe.values[some.target][:, None])
            out[part] = apart.sum(axis=2).min(axis=1)
        return out
    book = universe.channel.codes
    assert book is not None
    rng = fast(rng)
    rows = max(1, DRAWN // r)  # pairs of a record and a target whose features fit the cache
    pairs = games.data.ravel()
    targets = np.repeat(games.target, n)
    apart = np.empty(len(pairs), dtype=np.int64)
    for part in _parts(len(pairs), rows):
        codes = universe.codes[pairs[part]].ravel()
        level = book.level(book.draw(codes, rng))
        level -= universe.levels[targets[part]].ravel()
        np.abs(level, out=level)
        apart[part] = level.reshape(-1, r).sum(axis=1, dtype=np.int64)
    return apart.reshape(len(games), n).min(axis=1) * book.step


def decisions(universe: Universe, games: Challenge, tau: float, rng: np.random.Generator) -> Mask:
    """Whether some protected record lies closer than `tau` to the target (G,).

    Exact: features are drawn one group after another, a pair is left as soon as its partial sum
    reaches tau, and a game as soon as one record is found within. What is never drawn is
    independent of everything else.
    """
    if universe.codes is None:
        return distances(universe, games, rng) < tau
    book = universe.channel.codes
    assert book is not None
    rng = fast(rng)
    limit = math.ceil(tau / book.step - 1e-9)
    found = np.zeros(len(games), dtype=bool)
    # the target's own record first: if it is within, no other needs to be drawn
    own = np.flatnonzero(games.member)
    found[own] = _own(universe, book, games.target[own], limit, rng)
    open_ = np.flatnonzero(~found)
    n = games.data.shape[1]
    for part in _parts(len(open_), max(1, (1 << 16) // n)):
        some = open_[part]
        record, target = games.data[some], games.target[some]
        pairs = Pairs(universe, book, record, target, record == target[:, None])
        found[some] = pairs.within(limit, rng).any(axis=1)
    return found


def _own(
    universe: Universe,
    book: Codebook,
    targets: Indices,
    limit: int,
    rng: np.random.Generator,
) -> Mask:
    """Whether records (P,) stay within `limit` steps of themselves: most do, so all is drawn."""
    assert universe.codes is not None
    out = np.empty(len(targets), dtype=bool)
    for part in _parts(len(targets), max(1, DRAWN // universe.features)):
        codes = universe.codes.take(targets[part], axis=0)
        level = book.level(book.draw(codes.ravel(), rng)).reshape(codes.shape)
        level -= universe.levels.take(targets[part], axis=0)
        out[part] = np.abs(level, out=level).sum(axis=1, dtype=np.int64) < limit
    return out


def lazily(
    done: Mask,
    features: int,
    limit: int,
    apart: Callable[[Indices, int, int], npt.NDArray[np.signedinteger]],
    *,
    group: int = 1,
) -> Mask:
    """Whether pairs (P,) are closer than `limit` steps, looking at as little as decides.

    `apart(pairs, first, stop)`: distances (p, stop - first) of some pairs in some of their
    features. It is asked about every feature of a pair at most once, in order; about the first
    ones for whole groups of `group` pairs. Pairs that are `done` count as far apart.
    """
    total = np.zeros(len(done), dtype=np.int64)
    alive = np.arange(len(done))
    first, width = 0, FIRST
    while first < features and len(alive):
        stop = min(features, first + width)
        step = max(1, DRAWN // (stop - first))
        for part in _parts(len(alive), step if first else max(group, step - step % group)):
            some = alive[part]
            each = apart(some, first, stop)
            total[some] += np.einsum("ij->i", each, dtype=np.int32)  # .sum is slower
        if not first:
            total[done] = limit
        alive = alive[total[alive] < limit]
        # small groups next, where most pairs are decided; larger ones for the few that remain
        first, width = stop, THEN * max(1, stop // (16 * THEN))
    return total < limit


@dataclass(frozen=True)
class Pairs:
    """Records (G, n) and targets (G,) whose distances are asked for, by number in the universe;
    `done` (G, n) marks pairs that are known to be far apart."""

    universe: Universe
    book: Codebook
    records: Indices
    targets: Indices
    done: Mask

    def within(self, limit: int, rng: np.random.Generator) -> Mask:
        """Whether each distance in steps is below `limit` (G, n), features drawn lazily."""
        flips = self.book.flips
        if flips is None or len(flips.widths) < 2:
            found = lazily(
                self.done.ravel(),
                self.universe.features,
                limit,
                lambda some, a, b: self._apart(some, a, b, rng),
                group=self.records.shape[1],
            )
        else:
            found = self._from_above(flips, limit, rng)
        return found.reshape(self.records.shape)

    def _from_above(self, flips: Flips, limit: int, rng: np.random.Generator) -> Mask:
        """Of codes with many bits the upper ones are drawn first, which bound a distance from
        below; the lower ones only for pairs that this leaves open."""
        r, width = self.universe.features, flips.widths[0]
        low = self.book.bits - width  # bits that are not drawn yet
        # half as wide as codes and levels: these tables stay in the cache
        codes, levels = self._upper(low)
        drawn: list[tuple[Indices, slice, npt.NDArray[np.int16]]] = []

        def at_least(some: Indices, first: int, stop: int) -> npt.NDArray[np.int16]:
            here, target = self._where(some, first, stop)
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
        out = lazily(done, r, -(-limit >> low), at_least, group=group)
        left = np.flatnonzero(out)
        for part in _parts(len(left), max(1, DRAWN // r)):
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
            apart = self._levels(words.view(np.int32), some, 0, r)
            out[some] = apart.sum(axis=1, dtype=np.int64) < limit
        return out

    def _where(
        self, some: Indices, first: int, stop: int
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
        """Places of the records' features in their table, in the target's order, and targets.

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

    def _upper(self, low: int) -> tuple[npt.NDArray[np.int16], npt.NDArray[np.int16]]:
        """Codes (N r,) and ordered levels (N, r) without their `low` lower bits."""
        u = self.universe
        assert u.codes is not None
        kept = u.__dict__.setdefault("_upper", {})
        if low not in kept:
            codes, levels = u.codes.ravel() >> low, u.levels_by_weight >> low
            kept[low] = codes.astype(np.int16), levels.astype(np.int16)
        return kept[low]

    def _apart(
        self, some: Indices, first: int, stop: int, rng: np.random.Generator
    ) -> npt.NDArray[np.int32]:
        here, target = self._where(some, first, stop)
        assert self.universe.codes is not None
        codes = self.universe.codes.ravel().take(here, mode="clip")
        level = self.book.level(self.book.draw(codes.ravel(), rng)).reshape(codes.shape)
        level -= self.universe.levels_by_weight[:, first:stop].take(target, axis=0)
        return np.abs(level, out=level).reshape(len(some), stop - first)

    def _levels(
        self, flips: npt.NDArray[np.int32], some: Indices, first: int, stop: int
    ) -> npt.NDArray[np.int32]:
        """Distances (p, stop - first) of single pairs whose flips are known."""
        u, n = self.universe, self.records.shape[1]
        assert u.codes is not None
        target = self.targets.take(some // n)
        column = u.by_weight[:, first:stop].take(target, axis=0).astype(np.int64)
        column += (self.records.ravel().take(some) * u.features)[:, None]
        level = self.book.level(flips ^ u.codes.ravel().take(column))
        level -= u.levels_by_weight[:, first:stop].take(target, axis=0)
        return np.abs(level, out=level)


def _parts(count: int, step: int) -> Iterator[slice]:
    for low in range(0, count, step):
        yield slice(low, min(count, low + step))


# -- P_M of Theorem 1 -----------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Outside:
    """P_M: the chance that a protected record leaves the ball of radius Delta around itself, mean
    over the universe. `low` = `high` where it is exact."""

    value: float
    low: float
    high: float
    method: str


def outside(
    universe: Universe,
    tau: float,
    rng: np.random.Generator,
    *,
    draws: int = 20_000,
    confidence: float = 0.95,
) -> Outside:
    """P_M at radius `tau`. [ActiveMembership] Section 4.1"""
    if not universe.channel.protects:
        return Outside(value=0.0, low=0.0, high=0.0, method="exact: nothing is randomised")
    exact = _exact_outside(universe, tau)
    if exact is not None:
        return Outside(value=exact, low=exact, high=exact, method="exact: law of a sum, by FFT")
    each = rng.integers(0, len(universe), draws)
    one = Challenge(each[:, None], each, np.ones(draws, dtype=bool), np.arange(draws))
    away = int((~decisions(universe, one, tau, rng)).sum())
    share: Estimate = clopper_pearson(away, draws, confidence)
    return Outside(
        value=share.value,
        low=share.low,
        high=share.high,
        method=f"{draws:,} draws, Clopper-Pearson at {100 * confidence:g} %",
    )


def _exact_outside(universe: Universe, tau: float) -> float | None:
    """P_M from the law of one feature: distances add up, so their generating functions multiply.

    On a circle of length L the sum wraps around; tilted by e^(-theta d), theta L = 40, what wraps
    comes back with weight e^-40.
    """
    book = universe.channel.codes
    if universe.codes is None or book is None or book.transition is None:
        return None
    limit = math.ceil(tau / book.step - 1e-9)  # inside: a distance below this
    if limit <= 0:
        return 1.0
    length = 1 << max(6, (4 * limit - 1).bit_length())
    k = book.alphabet
    work = float(len(universe)) * min(k, universe.features) * length + float(k) * k
    if work > EXACT_WORK:
        return None
    level = book.level(np.arange(k, dtype=np.int32)).astype(np.int64)
    apart = np.abs(level[:, None] - level)
    theta = 40.0 / length
    used, where = np.unique(universe.codes, return_inverse=True)
    spectra = np.empty((len(used), length // 2 + 1), dtype=np.complex128)
    for row, code in enumerate(used):
        tilted = book.transition[code] * np.exp(-theta * apart[code])
        law = np.bincount(apart[code] % length, weights=tilted, minlength=length)
        spectra[row] = np.fft.rfft(law)
    where = where.reshape(universe.codes.shape)
    back = np.exp(theta * np.arange(limit))
    inside = 0.0
    for own in where:
        product = np.ones(length // 2 + 1, dtype=np.complex128)
        for code, times in zip(*np.unique(own, return_counts=True), strict=True):
            product *= spectra[code] ** int(times)
        inside += float(np.fft.irfft(product, length)[:limit] @ back)
    return float(min(1.0, max(0.0, 1.0 - inside / len(universe))))


# -- choosing tau ---------------------------------------------------------------------------------


def midpoint(closest: Floats, member: Mask) -> float:
    """Halfway between the mean distances of members and of others."""
    return 0.5 * (float(closest[member].mean()) + float(closest[~member].mean()))


def best_cut(scores: npt.ArrayLike, member: Mask) -> float:
    """The cut with the largest TPR + TNR if what scores above it is called a member.

    Midway between neighbouring scores; of several equally good ones the middle one.
    """
    s = np.asarray(scores, dtype=np.float64)
    levels, where = np.unique(s, return_inverse=True)
    inside = np.bincount(where[member], minlength=len(levels)).cumsum() / max(1, member.sum())
    out = np.bincount(where[~member], minlength=len(levels)).cumsum() / max(1, (~member).sum())
    gain = out - inside  # TNR + TPR - 1 with the cut right above each level
    best = np.flatnonzero(gain >= gain.max() - 1e-12)
    at = int(best[len(best) // 2])
    if at + 1 == len(levels):
        return float(levels[-1])
    return 0.5 * float(levels[at] + levels[at + 1])
