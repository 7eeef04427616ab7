"""Report clients that lost records or have few.

The smaller a client, the more each record shapes its update. A client that lost all its records
during reading is not in the federation, and no audit covers it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fedaudit.data.dataset import Dataset
from fedaudit.data.partition import ByOwner, Partition
from fedaudit.errors import FormatError
from fedaudit.matching import MOST

BATCH = 16
"""Records below which a client counts as small, if a step uses all of them."""


@dataclass(frozen=True, kw_only=True)
class Shortage:
    """Clients by name, with numbers of records.

    `lost`: records read, none left; `left_out`: records of owners that do not take part;
    `reduced`: records read and records left, fewer than half; `small`: training records, more than
    one and fewer than a `batch`; `single`: clients with one training record.
    """

    lost: Mapping[str, int] = field(default_factory=dict)
    left_out: Mapping[str, int] = field(default_factory=dict)
    reduced: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    small: Mapping[str, int] = field(default_factory=dict)
    single: tuple[str, ...] = ()
    batch: int = BATCH

    def lines(self, called: Callable[[str], str] = repr) -> list[str]:
        """One line per kind of shortage; `called` turns a client's name into text."""
        out = []
        if self.lost:
            who = [f"{called(c)} ({n} read)" for c, n in self.lost.items()]
            out.append(
                f"{_clients(who)} lost every record to missing values or the hold-out, and "
                f"{_take(who)} no part: {_some(who)}. No result covers {_them(who)}"
            )
        if self.left_out:
            who = [f"{called(c)} ({n} records)" for c, n in self.left_out.items()]
            out.append(f"{_clients(who)} of the data {_take(who)} no part: {_some(who)}")
        if self.reduced:
            who = [f"{called(c)} ({n} read, {k} left)" for c, (n, k) in self.reduced.items()]
            out.append(f"{_clients(who)} lost more than half of the records read: {_some(who)}")
        if self.small:
            who = [f"{called(c)} ({n})" for c, n in self.small.items()]
            out.append(
                f"{_clients(who)} {_train(who)} on fewer records than one batch ({self.batch}): "
                f"{_some(who)}. Each local step uses them all: an update nearly shows its records"
            )
        if self.single:
            who = [called(c) for c in self.single]
            out.append(
                f"{_clients(who)} {_train(who)} on a single record: {_some(who)}. Such an update "
                "is that record's gradient"
            )
        return out

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Shortage:
        """The inverse of `dataclasses.asdict` and a JSON round trip."""
        try:
            counts = {
                name: {str(c): int(n) for c, n in plain[name].items()}
                for name in ("lost", "left_out", "small")
            }
            return cls(
                **counts,
                reduced={str(c): (int(n), int(k)) for c, (n, k) in plain["reduced"].items()},
                single=tuple(map(str, plain["single"])),
                batch=int(plain["batch"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise FormatError(
                "the truth has no valid shortage of records",
                expected="shortage as written by `fedaudit run`",
                got=f"{type(error).__name__}: {error}",
                remedy="restore truth.json, or run again into another folder",
            ) from None


def shortage(train: Dataset, parts: Partition, batch: int) -> Shortage:
    """Clients short of records after reading, splitting and partitioning.

    `batch`: records of one local step; 0 if a step uses all records of a client.
    """
    batch = batch or BATCH
    sizes = dict(zip(parts.names, parts.sizes.tolist(), strict=True))
    held = Counter(train.client or ())
    owned = parts.kind == ByOwner.kind
    read = {c: n for c, (n, _) in train.dropped.items()}
    kept = {c: n - gone for c, (n, gone) in train.dropped.items()}
    return Shortage(
        lost={c: n for c, n in read.items() if owned and c not in held},
        left_out={c: n for c, n in held.items() if owned and c not in sizes},
        reduced={
            c: (read[c], k) for c, k in kept.items() if owned and c in sizes and 2 * k < read[c]
        },
        small={c: n for c, n in sizes.items() if 1 < n < batch},
        single=tuple(c for c, n in sizes.items() if n == 1),
        batch=batch,
    )


def _clients(who: list[str]) -> str:
    return f"{len(who)} client{'' if len(who) == 1 else 's'}"


def _take(who: list[str]) -> str:
    return "takes" if len(who) == 1 else "take"


def _train(who: list[str]) -> str:
    return "trains" if len(who) == 1 else "train"


def _them(who: list[str]) -> str:
    return "it" if len(who) == 1 else "them"


def _some(who: list[str]) -> str:
    rest = len(who) - MOST
    return ", ".join(who[:MOST]) + (f" and {rest} more" if rest > 0 else "")
