"""The universe of a game: all possible records."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from fedaudit.arrays import Floats, Indices
from fedaudit.audits.active_membership.channel import NO_MECHANISM, Channel
from fedaudit.audits.active_membership.draws import fast_generator
from fedaudit.audits.active_membership.games.arrays import FEATURES_AT_ONCE, slices
from fedaudit.errors import DataError, UsageError


@dataclass(frozen=True)
class Universe:
    """All possible records, each once, as a client would train on them without noise.

    `values` (N, r); `codes` (N, r) for discrete features. `merged`: the number of records that
    equalled another after encoding. N is |X| of Theorem 1.
    """

    values: Floats
    channel: Channel = field(default=NO_MECHANISM, repr=False)
    codes: npt.NDArray[np.int32] | None = field(default=None, repr=False)
    merged: int = 0

    @classmethod
    def of(cls, x: npt.ArrayLike, channel: Channel = NO_MECHANISM) -> Universe:
        """From records (n, r) before any protection."""
        raw = np.asarray(x, dtype=np.float64)
        if raw.ndim != 2:
            raise UsageError(
                "a universe is a table of records",
                expected="an array (records, features)",
                got=f"shape {raw.shape}",
                remedy="flatten every record into a row of features",
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
        """The universe of the records `rows`, in this order."""
        if len(rows) < 2:
            raise DataError(
                "too few records can be targets",
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
        """Features of every record (N, r), sorted by how much it differs there from the others:
        the first few then decide most pairs."""
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

    def perturbed(self, records: Indices, rng: np.random.Generator) -> Floats:
        """Perturbed versions (m, r) of `records` (m,), drawn independently."""
        book = self.channel.codes
        if self.codes is None or book is None:
            return self.channel.perturb(self.values[records], rng)
        rng = fast_generator(rng)
        out = np.empty((len(records), self.features))
        for part in slices(len(records), max(1, FEATURES_AT_ONCE // self.features)):
            codes = self.codes.take(records[part], axis=0)
            drawn = book.level(book.draw(codes.ravel(), rng)).reshape(codes.shape)
            np.multiply(drawn, book.step, out=out[part])
        out += book.origin
        return out

    def index_of(self, target: npt.ArrayLike) -> int:
        """The index of a record (r,) given before any protection."""
        raw = np.asarray(target, dtype=np.float64).reshape(1, -1)
        if raw.shape[1] != self.features:
            raise UsageError(
                "the target is not a record of this universe",
                expected=f"{self.features} features",
                got=str(raw.shape[1]),
                remedy="encode the target like the records of the universe",
            )
        _finite(raw, "the target")
        found = np.flatnonzero((self.values == self.channel.clean(raw)).all(axis=1))
        if not len(found):
            near = int(np.abs(self.values - self.channel.clean(raw)).sum(axis=1).argmin())
            raise DataError(
                "the target is not in the universe",
                expected=f"one of its {len(self)} records",
                got=f"an unknown record; the nearest is number {near}",
                remedy="add the target to the universe",
            )
        return int(found[0])

    def ball_sizes(self, tau: float) -> Indices:
        """Number of values closer than `tau` to each record (N,), for records of one feature."""
        book = self.channel.codes
        assert book is not None
        assert self.features == 1
        reach = math.ceil(tau / book.step - 1e-9) - 1  # steps, at most
        at = self.levels[:, 0].astype(np.int64)
        return np.minimum(at + reach, book.alphabet - 1) - np.maximum(at - reach, 0) + 1

    def snap(self, tau: float) -> float:
        """The threshold midway between two possible distances that decides like `tau`.

        Distances on a lattice are multiples of its step. Midway between two of them, rounding in a
        32-bit network cannot change a decision.
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
            remedy="fill in or drop them first",
        )
