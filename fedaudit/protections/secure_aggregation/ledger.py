"""A client's ledger: the sums it helped to open, and what it refuses because of them.

Within a round the algebra is exact: no combination of the round's sums may involve fewer than
`threshold` clients. A client knows the sums it is in, and those that the aggregator lists as the
round's others: earlier ones that are missing there are a lie that it notices. If the first query of
a round is `final`, its list binds the whole round: the clients that signed it, more than half, and
those that uploaded to it and were never asked to sign, who allow no further sum of that round.
Clients that drop out of the first query drop out of all. Without a final list, an aggregator can
hide one group's sum from another, disjoint group.

Across rounds updates persist in part. `Budget` limits the cosine between any client's mean update
and the best linear guess of it from all sums of all rounds (`stats.plan_design.best_guess`). It
looks at all clients of the sums: one that is left out of a round cannot object itself.

How much persists is stated, and measured: the ledger keeps a sketch of every update that was sent.
A server that sends the same model again under another round's number gets the same update, and the
budget then counts with a persistence of one.

An entry is on disk before the client signs anything, so that a restart forgets nothing. Nor does a
client that goes on from an old copy of its state: `begin` is written before shares or a masked
vector leave it, and other ones in the same run, under the same keys, are refused. The file is
locked and read again for every entry: processes that share it see one another's.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np
from annotated_types import Gt, Le

from fedaudit.arrays import Floats
from fedaudit.errors import IntegrityError, UsageError
from fedaudit.files import lock_file, parse_json, sync_folder, write_all
from fedaudit.protections.secure_aggregation.refusals import (
    LedgerUnwritten,
    OutOfOrder,
    QueryRefused,
)
from fedaudit.protections.secure_aggregation.ring import RingVector
from fedaudit.settings import AtLeastTwo, Share, Whole, checked, require
from fedaudit.stats.count_sketch import CountSketch
from fedaudit.stats.query_algebra import smallest_support

Members = tuple[int, ...]
Cosine = Annotated[float, Gt(0), Le(1)]
SKETCH = 256
"""Cells of an update's sketch: cosines of unrelated updates are off by 1/16."""
ALIKE = 0.95
"""Persistence, stated or measured, from which sums of two rounds are compared as those of one."""
MOST_SUMS = 2000
"""Different sums of all rounds up to which a budget is computed: some seconds."""
WORK = 50_000_000
"""Work limit of the search for an isolating combination, per query: half a second at most."""


@dataclass(frozen=True, kw_only=True)
@checked("budget", error=UsageError)
class Budget:
    """What all rounds together may tell about this client.

    A query is refused if both limits are exceeded. `max_cosine` of the best guess of any client's
    mean update, if a share `persistence` of an update is the same in every round, or more where the
    client's own updates were more alike. `max_partitions`:
    different sets of sums, whatever their cosine, as long as no client's update follows from them:
    a plan that cycles through five of them has G groups and rank at most 1 + 5 (G - 1), so part of
    most updates stays unseen for ever. Each client that drops out makes another set; the sums of
    all clients and of all but one leave that one alone. `max_partitions=0`: only the cosine counts.
    """

    max_cosine: Cosine = 0.8
    persistence: Share = 2 / 3
    max_partitions: Whole = 5


@dataclass(frozen=True, kw_only=True)
class AnsweredQuery:
    """A sum that the client agreed to: members, the round's other sums, and who asked.

    `training` labels a training whose rounds count from the start again. `unseen`: members that may
    not have been there (`graph.avoidable`): in a sparse graph a client sees its neighbours alone.
    """

    round: int
    run: str
    training: str = ""
    members: Members
    others: tuple[Members, ...] = ()
    final: bool = False
    unseen: int = 0
    aggregator: str = ""
    signature: str = ""

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Self:
        """From `asdict` of one, after JSON has made its tuples lists."""
        others = tuple(map(tuple, raw["others"]))
        return cls(**{**raw, "members": tuple(raw["members"]), "others": others})

    @property
    def when(self) -> tuple[str, int]:
        """Stands for the updates that it summed."""
        return self.training, self.round


@dataclass(frozen=True, kw_only=True)
class BegunStep:
    """A step whose answer may have left the client, whatever else of its state is lost.

    `request`: digest of what it answers. For shares `keys`: digests of the run's public keys. For
    uploads `sketch` of the vector, and the sum to which it may be added without another word of
    this client: `members` are those who shared.
    """

    run: str
    step: str
    request: str
    training: str = ""
    round: int = 0
    keys: tuple[str, ...] = ()
    sketch: tuple[int, ...] = ()
    members: Members = ()
    others: tuple[Members, ...] = ()
    final: bool = False
    unseen: int = 0

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Self:
        """From `asdict` of one, after JSON has made its tuples lists."""
        lists = {name: tuple(raw.get(name, ())) for name in ("keys", "sketch", "members")}
        return cls(**{**raw, **lists, "others": tuple(map(tuple, raw["others"]))})

    @property
    def when(self) -> tuple[str, int]:
        """Stands for the update that it sends."""
        return self.training, self.round

    @property
    def consent(self) -> AnsweredQuery:
        """The sum that an upload allows others to open."""
        return AnsweredQuery(
            round=self.round,
            run=self.run,
            training=self.training,
            members=self.members,
            others=self.others,
            final=self.final,
            unseen=self.unseen,
        )


class ClientLedger:
    """Answered queries of one client, in a file if `path` is given; refuses what reveals too much.

    `threshold`: fewest clients in any combination of a round's sums. `isolating=True` gives that
    rule up, by name. `budget=None` gives up the limit across rounds. `only_final` asks for a final
    list with the first query of every round. `measured=False` takes the budget's persistence as it
    is stated.
    """

    def __init__(
        self,
        number: int,
        *,
        threshold: int,
        budget: Budget | None = Budget(),  # noqa: B008 - frozen
        path: str | os.PathLike[str] | None = None,
        isolating: bool = False,
        only_final: bool = False,
        measured: bool = True,
    ) -> None:
        require(AtLeastTwo, remedy="threshold = 5", threshold=threshold)
        self.number, self.threshold = number, threshold
        self.budget, self.isolating, self.only_final = budget, isolating, only_final
        self.measured = measured
        self.begun: dict[tuple[str, str], BegunStep] = {}
        self._path = None if path is None else Path(path)
        self.entries: list[AnsweredQuery] = []
        self._read_up_to = 0
        if self._path is not None and self._path.exists():
            with self._locked(self._path) as descriptor:
                self._read(self._path, descriptor)

    def admit(self, query: AnsweredQuery) -> None:
        """Write the query down, or raise QueryRefused; whether it was declined is kept too."""
        try:
            self._admit(query)
        except QueryRefused:
            if (query.run, "upload") in self.begun:
                self.begin(BegunStep(run=query.run, step="declined", request=""))
            raise

    def _admit(self, query: AnsweredQuery) -> None:
        if self._path is None:
            if self._allow(query):
                self.entries.append(query)
            return
        with self._locked(self._path) as descriptor:
            self._read(self._path, descriptor)  # what other processes have admitted since
            if self._allow(query):
                self._append(query, descriptor)
                self.entries.append(query)

    def begin(self, step: BegunStep) -> None:
        """Write down that a step begins; raises OutOfOrder if it has begun with another request.

        Shares are drawn anew by whoever has lost them, and training may differ: for these even the
        same request is refused. So are shares of keys that served another run: a machine that was
        copied draws the same ones again.
        """
        if self._path is None:
            if self._is_new(step):
                self.begun[step.run, step.step] = step
            return
        with self._locked(self._path) as descriptor:
            self._read(self._path, descriptor)
            if self._is_new(step):  # remembered only once it is on disk
                self._append(step, descriptor)
                self.begun[step.run, step.step] = step

    def _is_new(self, step: BegunStep) -> bool:
        known = self.begun.get((step.run, step.step))
        if known is None:
            fresh = set(step.keys)
            if fresh and not all(fresh.isdisjoint(b.keys) for b in self.begun.values()):
                raise OutOfOrder(
                    "keys of an earlier run were drawn again: together both runs could open it",
                    expected="fresh keys in every run",
                    got="random numbers that repeat",
                    remedy="give the client a random generator that is not a copy",
                )
            return True
        if step.step in ("share", "train") or known.request != step.request:
            raise OutOfOrder(
                f"{step.step} was answered before, from a state of this client that is lost",
                expected="its first answer in this run",
                got="another one, under the same keys",
                remedy="wait for the next run",
            )
        return False

    def _allow(self, query: AnsweredQuery) -> bool:
        """Whether the query is new; raises QueryRefused if it reveals too much."""
        known = next((e for e in self.entries if e.run == query.run), None)
        if known is not None:
            if known.members != query.members or known.when != query.when:
                raise _refused("a second sum in the same run was refused", "one list", "another")
            return False
        latest = self.entries[-1].when if self.entries else query.when
        again = query.training != latest[0] and any(
            e.training == query.training for e in self.entries
        )
        if again or (query.training == latest[0] and query.round < latest[1]):
            raise _refused(
                "a query of an earlier round was refused", "the latest round or the next", "earlier"
            )
        if not self.isolating:
            self._check_round(query)
        if self.budget is not None:
            self._check_budget(query, self.budget)
            if not self.isolating:
                self._check_alike(query, self.budget)
        return True

    # -- one round -------------------------------------------------------------------------------

    def _check_round(self, query: AnsweredQuery) -> None:
        check_size(query.members, self.threshold)
        mine = [e for e in self.entries if e.when == query.when]
        if any(e.when == query.when for e in self.unconfirmed(query.run, declined=True)):
            raise _refused(
                "a second sum was refused in a round in which this client's upload is open",
                "the upload's own list of uploads, or another round",
                "another run",
            )
        if (mine or query.others) and any(e.unseen for e in (*mine, query)):
            raise _refused(
                "a second sum was refused in a round with a sparse graph",
                "one sum: members that this client has not seen could make up the difference",
                f"{len(mine) + 1} or more",
                "mask between all pairs in rounds of several sums",
            )
        plan = next((e for e in mine if e.final), None)
        if query.final and mine:
            raise _refused("a second final list was refused", "one, with the first query", "more")
        if self.only_final and not query.final and plan is None:
            raise _refused("a round without a final list was refused", "all of its sums", "none")
        if plan is not None:
            if query.members not in planned(plan, self.threshold):
                raise _refused(
                    "a sum that the round's final list does not hold was refused",
                    "a sum of the list that came first, without those who dropped out then",
                    f"{len(query.members)} other clients",
                )
            return
        hidden = [e.members for e in mine if e.members not in query.others]
        if hidden:
            raise _refused(
                "the aggregator does not list a sum that this client helped to open",
                "all of the round's sums",
                f"{len(hidden)} missing",
            )
        if not query.final:  # planned sums are checked one by one, each without those refused
            check_isolation(query.others, query.members, self.threshold)

    # -- all rounds ------------------------------------------------------------------------------

    def unconfirmed(self, run: str, *, declined: bool = False) -> list[AnsweredQuery]:
        """Sums of other runs that this client sent a vector to, and was never asked to confirm.

        Those that it `declined` to confirm may be opened by others too; counted for ever, one bad
        list would end all later rounds.
        """
        answered = {run, *(e.run for e in self.entries)}
        if not declined:
            answered |= {r for r, step in self.begun if step == "declined"}
        sent = (b for b in self.begun.values() if b.step == "upload" and b.members)
        return [b.consent for b in sent if b.run not in answered]

    def _check_alike(self, query: AnsweredQuery, budget: Budget) -> None:
        """Rounds of nearly the same updates are one round to whoever compares sums."""
        given = [*self.entries, *self.unconfirmed(query.run)]
        if budget.persistence <= ALIKE:
            same = self._alike(query) if self.measured else set()
            given = [e for e in given if e.when in same]
        others = [members for e in given if e.when != query.when for members in self._sums_of(e)]
        if not others:
            return
        unseen = max(query.unseen, *(e.unseen for e in given))
        here = [e.members for e in self.entries if e.when == query.when]
        here += [] if query.final else query.others
        if unseen and set(others) != {query.members}:
            raise _refused(
                "another sum of updates that are nearly the same was refused: sparse graphs",
                "the same clients as before",
                "others",
            )
        check_isolation(tuple(dict.fromkeys([*others, *here])), query.members, self.threshold)

    def _alike(self, query: AnsweredQuery) -> set[tuple[str, int]]:
        """Rounds whose update of this client was nearly that of the query's round."""
        whens, rows = _directions([b for b in self.begun.values() if b.sketch])
        own = np.array([when == query.when for when in whens], dtype=np.bool_)
        near = (np.abs(rows @ rows[own].T) > ALIKE).any(axis=1) & ~own
        return {when for when, alike in zip(whens, near, strict=True) if alike}

    def _check_budget(self, query: AnsweredQuery, budget: Budget) -> None:
        given = [*self.entries, *self.unconfirmed(query.run), query]
        known, unseen = self._rounds(given), max(e.unseen for e in given)
        if len(set().union(*known)) == 1:  # more than half of a lone sum were there: see `client`
            unseen = 0
        rounds, different = _canonical(known), set(known)
        # a part of another round's sums tells no more: a round that has just begun is not another
        sets = sum(not any(sums < other for other in different) for sums in different)
        sums = sum(map(len, set(rounds)))
        if sums > MOST_SUMS:
            raise _refused(
                "a query was refused: its budget across rounds cannot be computed",
                f"up to {MOST_SUMS} different sums",
                f"{sums}",
            )
        if sets <= max(1, budget.max_partitions) and not alone(rounds, unseen):
            return
        persistence = max(budget.persistence, self.persistence(query) if self.measured else 0.0)
        cosines = guess_cosines(rounds, persistence, unseen)
        worst = max(cosines, key=cosines.__getitem__)
        if cosines[worst] > budget.max_cosine:
            raise _refused(
                "a query beyond the budget across rounds was refused",
                f"up to {budget.max_partitions} different sets of sums that leave no client alone, "
                f"or best guesses of mean updates of cosine up to {budget.max_cosine:g}",
                f"{sets} sets, and {cosines[worst]:.3f} for client {worst}, after "
                f"{len(rounds)} rounds of which {persistence:.0%} persists",
                "cycle through a few balanced partitions, or query only the sum of all",
            )

    def persistence(self, query: AnsweredQuery) -> float:
        """Largest cosine, up to its sign, of this client's updates in two rounds.

        Up to its sign: a model whose hidden units all have their signs flipped can negate updates.
        """
        answered = {e.run for e in (*self.entries, *self.unconfirmed(query.run), query)}
        sent = [b for b in self.begun.values() if b.sketch and b.run in answered]
        whens, rows = _directions(sent)
        known: dict[tuple[str, int], int] = {}
        at, most = np.array([known.setdefault(w, len(known)) for w in whens]), 0.0
        for low in range(0, len(rows), 500):  # thousands of rounds would not fit at once
            pairs = np.abs(rows[low : low + 500] @ rows.T)
            other = at[low : low + 500, None] != at
            most = max(most, float(pairs.max(where=other, initial=0.0)))
        return min(1.0, most)

    def _rounds(self, entries: Sequence[AnsweredQuery]) -> list[frozenset[Members]]:
        """The sums of every round, as far as this client knows them."""
        out: dict[tuple[str, int], set[Members]] = {}
        for e in entries:
            out.setdefault(e.when, set()).update(self._sums_of(e))
        return [frozenset(sums) for sums in out.values()]

    def _sums_of(self, entry: AnsweredQuery) -> tuple[Members, ...]:
        listed = (entry.members, *entry.others)
        if entry.final:
            listed = planned(entry, self.threshold)
        return tuple(m for m in listed if m)

    # -- the file --------------------------------------------------------------------------------

    @contextmanager
    def _locked(self, path: Path) -> Iterator[int]:
        """The file, open, and this process alone at it."""
        new = not path.exists()
        made = 0 if self._read_up_to else os.O_CREAT  # one that is gone is not begun anew
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_APPEND | made | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise LedgerUnwritten(
                "the client's ledger cannot be opened: nothing leaves this client",
                expected="a file that this client can write",
                got=str(error),
                remedy="make the folder, or mend its rights, then repeat the step",
            ) from error
        try:
            lock_file(descriptor)
            if new:
                sync_folder(path.parent)  # the name of a new file, too, survives a power cut
            yield descriptor
        finally:
            os.close(descriptor)  # and the lock with it

    def _append(self, entry: AnsweredQuery | BegunStep, descriptor: int) -> None:
        line = (json.dumps(asdict(entry), separators=(",", ":")) + "\n").encode()
        try:
            write_all(descriptor, line)
            os.fsync(descriptor)
        except OSError as error:
            with suppress(OSError):  # what was written of it stands for nothing
                os.ftruncate(descriptor, self._read_up_to)
            raise LedgerUnwritten(
                "the client's ledger cannot be written: nothing leaves this client",
                expected=f"room for {len(line)} bytes",
                got=str(error),
                remedy="free the disk, then repeat the step",
            ) from error
        self._read_up_to += len(line)

    def _read(self, path: Path, descriptor: int) -> None:
        """Entries that were added since; drops a line that was torn while it was written."""
        if os.fstat(descriptor).st_size < self._read_up_to:
            raise IntegrityError(
                f"{path} has lost entries that this client wrote",
                expected=f"at least {self._read_up_to} bytes",
                got=f"{os.fstat(descriptor).st_size} bytes",
                remedy="restore the file; without it this client must not answer in this round",
            )
        os.lseek(descriptor, self._read_up_to, os.SEEK_SET)
        content = b"".join(iter(lambda: os.read(descriptor, 1 << 20), b""))
        whole = content[: content.rfind(b"\n") + 1]
        try:
            found = [_entry(parse_json(line)) for line in whole.splitlines()]
        except (ValueError, TypeError, KeyError) as error:
            raise IntegrityError(
                f"{path} is not a client's ledger",
                expected="an answered query or a begun step per line",
                got=str(error),
                remedy="restore the file; without it this client must not answer in this round",
            ) from None
        self.entries += [e for e in found if isinstance(e, AnsweredQuery)]
        self.begun |= {(e.run, e.step): e for e in found if isinstance(e, BegunStep)}
        self._read_up_to += len(whole)
        if len(whole) < len(content):  # nothing was signed for a torn line
            os.ftruncate(descriptor, self._read_up_to)


def _entry(raw: Mapping[str, Any]) -> AnsweredQuery | BegunStep:
    return BegunStep.from_json(raw) if "step" in raw else AnsweredQuery.from_json(raw)


def _directions(sent: Sequence[BegunStep]) -> tuple[list[tuple[str, int]], Floats]:
    """When each upload was sent, and its sketch at length one (n, SKETCH).

    All uploads of a round: a server may ask for other ones between two that are alike.
    """
    rows = np.array([b.sketch for b in sent], dtype=np.float64).reshape(-1, SKETCH)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return [b.when for b in sent], rows / np.maximum(lengths, 1.0)


def sketch_of(vector: RingVector) -> tuple[int, ...]:
    """A ring vector (d,), sign and size up to rounding, in `SKETCH` whole numbers."""
    signed = vector.view(f"<i{vector.dtype.itemsize}").astype(np.float32)
    largest = float(np.abs(signed).max(initial=0.0))
    cells = np.zeros((1, SKETCH), dtype=np.float32)
    _folding(len(vector)).add(cells, signed[None] / max(largest, 1.0), 0)
    top = float(np.abs(cells).max())
    return tuple(np.rint(cells[0] * (1000 / top if top else 0.0)).astype(int).tolist())


@lru_cache(maxsize=2)
def _folding(columns: int) -> CountSketch:
    return CountSketch(columns, SKETCH, np.random.default_rng(0))


# -- rules that aggregator and clients share ------------------------------------------------------


def check_size(members: Sequence[int], threshold: int) -> None:
    """Raise QueryRefused for fewer members than the threshold."""
    if len(members) < threshold:
        raise QueryRefused(
            "a query below the threshold was refused",
            expected=f"at least {threshold} clients",
            got=str(len(members)),
            remedy="query more clients, or lower the threshold",
        )


def check_isolation(others: Sequence[Members], members: Members, threshold: int) -> None:
    """Raise QueryRefused if a sum, with a round's others, would isolate too few clients."""
    isolated = _isolated(tuple(others), tuple(members), threshold)
    if isolated is not None:
        raise QueryRefused(
            "a query that would isolate too few clients was refused",
            expected=f"combinations with this round's other answers of at least {threshold} "
            "clients",
            got=isolated,
            remedy="query disjoint groups, or set refuse_isolating = false",
        )


@lru_cache(maxsize=4096)
def _isolated(others: tuple[Members, ...], members: Members, threshold: int) -> str | None:
    """The clients that would be isolated, in words; None if the sum is harmless."""
    columns = sorted({c for row in (*others, members) for c in row})
    at = {c: i for i, c in enumerate(columns)}
    rows = np.zeros((len(others) + 1, len(columns)), dtype=np.uint8)
    for row, inside in zip(rows, (*others, members), strict=True):
        row[[at[c] for c in inside]] = 1
    # also if the sum follows from the others: an aggregator may list what was never asked for
    support = smallest_support(rows, below=threshold, work=WORK)
    if support.floor >= threshold:
        return None
    if support.value >= threshold:
        return "an undecided search"
    return f"one of {support.value}: {', '.join(str(columns[i]) for i in support.clients)}"


@lru_cache(maxsize=256)
def planned(first: AnsweredQuery, threshold: int) -> tuple[Members, ...]:
    """The sums that a final query allows: itself, then the others that isolate no client."""
    here, allowed = set(first.members), [first.members]
    for listed in first.others:
        members = tuple(c for c in listed if c in here)
        if len(members) >= threshold and _isolated(tuple(allowed), members, threshold) is None:
            allowed.append(members)
    return tuple(dict.fromkeys(allowed))


def guess_cosine(rounds: Sequence[frozenset[Members]], client: int, persistence: float) -> float:
    """Cosine of the best linear guess of a client's mean update with the truth."""
    return guess_cosines(_canonical(rounds), persistence).get(client, 0.0)


@lru_cache(maxsize=256)
def guess_cosines(
    rounds: tuple[tuple[Members, ...], ...], persistence: float, unseen: int = 0
) -> dict[int, float]:
    """Client -> cosine of the best linear guess of its mean update with the truth.

    For updates with a share `persistence` in common from round to round, and nothing between
    clients: cos^2 = v a' (A A' * (p + (1 - p) [same round]))^+ a, with the sums A of all rounds,
    a = A e_client and v = p + (1 - p) / T. Rounds that asked for the same sums count as their mean,
    which is what the best guess uses of them; so the matrix does not grow while a plan is cycled.
    Any `unseen` members count as absent from every group of clients that no sum tells apart.
    """
    p, times = persistence, Counter(rounds)
    part = np.array([u for u, sums in enumerate(times) for _ in sums])
    table, column, alike = _incidence(tuple(m for sums in times for m in sums))
    alike = np.maximum(1.0, alike - unseen)
    own = np.array([p + (1 - p) / n for n in times.values()])[part]
    kernel: Floats = np.where(part[:, None] == part, own[:, None], p)
    inverse = np.linalg.pinv((table * alike) @ table.T * kernel, rcond=1e-10, hermitian=True)
    squares = (p + (1 - p) / len(rounds)) * ((inverse @ table) * table).sum(axis=0)
    cosines = np.sqrt(np.maximum(squares, 0.0))
    return {client: float(cosines[at]) for client, at in column.items()}


@lru_cache(maxsize=256)
def alone(rounds: tuple[tuple[Members, ...], ...], unseen: int = 0) -> tuple[int, ...]:
    """Clients whose update follows from the sums of all rounds, if updates never change.

    Any `unseen` members count as absent, as in `guess_cosines`.
    """
    table, column, alike = _incidence(tuple(dict.fromkeys(m for sums in rounds for m in sums)))
    alike = np.maximum(1.0, alike - unseen)
    # a client is in the row space of the sums if its leverage there is one
    _, singular, rows = np.linalg.svd(table * np.sqrt(alike), full_matrices=False)
    leverage = np.square(rows[singular > 1e-9 * singular[0]]).sum(axis=0)
    return tuple(c for c, at in column.items() if alike[at] == 1 and leverage[at] > 1 - 1e-9)


def _canonical(rounds: Sequence[frozenset[Members]]) -> tuple[tuple[Members, ...], ...]:
    return tuple(sorted(tuple(sorted(r)) for r in rounds))


def _incidence(sums: Sequence[Members]) -> tuple[Floats, dict[int, int], Floats]:
    """Sums as 0/1 rows (Q, U), client -> column, clients per column (U,).

    Clients that are in the same sums share a column: nothing tells them apart.
    """
    inside: dict[int, list[int]] = {}
    for row, members in enumerate(sums):
        for client in members:
            inside.setdefault(client, []).append(row)
    patterns: dict[tuple[int, ...], int] = {}
    column = {c: patterns.setdefault(tuple(r), len(patterns)) for c, r in inside.items()}
    table = np.zeros((len(sums), len(patterns)))
    for rows, at in patterns.items():
        table[list(rows), at] = 1
    return table, column, np.bincount(list(column.values())).astype(np.float64)


def _refused(
    what: str, expected: str, got: str, remedy: str = "start the next round"
) -> QueryRefused:
    return QueryRefused(what, expected=expected, got=got, remedy=remedy)
