"""`query(round, clients) -> sum`: subset sums through the protocol, refusals, a ledger, the cost.

Every query is a separate run, since a mask must not be used twice: each of its clients uploads a
whole masked vector again. The aggregator refuses:

- fewer clients than the threshold N_sa, always ([FedAttr] Section 3.1);
- with `refuse_isolating`, a query whose answer, combined with those of the same round, would
  involve fewer than N_sa clients: two sums that differ in one client reveal its update. If the
  search for such a combination ends undecided, the query is refused.

The clients enforce the second rule: they do not reveal shares for such a query. The rule covers one
round, since the next one has other updates; the audit covers what persists across rounds.
"""

from __future__ import annotations

import csv
import os
import secrets
import time
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, TypeVar

import numpy as np
import numpy.typing as npt
from annotated_types import Ge

from fedaudit.arrays import Floats
from fedaudit.errors import UsageError
from fedaudit.protections.secure_aggregation.protocol import (
    KEY_BYTES,
    SEALED_BYTES,
    Client,
    PublicKeys,
    Random,
    Server,
    TooFewLeft,
    too_few,
)
from fedaudit.protections.secure_aggregation.ring import (
    RingOverflow,
    RingQuantiser,
    RingVector,
    ring_dtype,
    subset_sum,
)
from fedaudit.protections.secure_aggregation.shamir import SHARE_BYTES
from fedaudit.rows import empty_array
from fedaudit.settings import require
from fedaudit.stats.query_algebra import rank, smallest_support

Content = TypeVar("Content")
NOBODY: AbstractSet[int] = frozenset()
ClientThreshold = Annotated[int, Ge(2), "a sum over one client is its update"]

WORK = 50_000_000
"""Work limit of the search for an isolating combination, per query: half a second at most."""


class QueryRefused(UsageError):
    """A refused query: it would reveal too much. It is in the ledger without an answer."""


@dataclass(frozen=True, kw_only=True)
class LedgerEntry:
    """One line of the ledger.

    `asked`: clients of the query; `members`: clients in the sum (fewer after drop-outs, none
    without an answer); `reason`: why there was no answer. `sent` and `received`: bytes by client;
    `seconds` on this machine, all parties one after another.
    """

    round: int
    query: int
    asked: tuple[int, ...]
    members: tuple[int, ...] = ()
    reason: str = ""
    sent: Mapping[int, int] = field(default_factory=dict)
    received: Mapping[int, int] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def answered(self) -> bool:
        return bool(self.members)


class Ledger:
    """Every query of a federation, answered or not, in order."""

    def __init__(self) -> None:
        self.entries: list[LedgerEntry] = []

    def of(self, round_number: int) -> list[LedgerEntry]:
        return [e for e in self.entries if e.round == round_number]

    def matrix(self, round_number: int, clients: int) -> npt.NDArray[np.uint8]:
        """Answered queries of one round as 0/1 rows (Q, clients)."""
        rows = [e.members for e in self.of(round_number) if e.answered]
        out = np.zeros((len(rows), clients), dtype=np.uint8)
        for row, members in zip(out, rows, strict=True):
            row[list(members)] = 1
        return out

    def write_csv(self, path: str | os.PathLike[str], names: Sequence[str]) -> None:
        """Write a table for `fedaudit plan check`: the clients in each answer, and its cost."""
        with Path(path).open("w", newline="", encoding="utf-8") as file:
            table = csv.writer(file)
            head = ["round", "query", "answered", "reason", "bytes_up", "bytes_down", "seconds"]
            table.writerow([*head, *names])
            for e in self.entries:
                inside = set(e.members if e.answered else e.asked)
                row = [e.round, e.query, int(e.answered), e.reason]
                row += [sum(e.sent.values()), sum(e.received.values()), round(e.seconds, 6)]
                table.writerow([*row, *(int(i in inside) for i in range(len(names)))])


class SecureAggregator:
    """All parties in one process: clients with their vectors, and the server of each run.

        aggregator = SecureAggregator(threshold=5)
        aggregator.begin(1, {0: x0, 1: x1, ...})
        total = aggregator.query(1, range(10))

    `bound` on the absolute value of a client's numbers; `modulus_bits` 32 or 64; `masks=False`
    skips keys and masks and adds the quantised vectors: the same sums to the last bit, the same
    ledger, no protection (for long simulations).
    """

    def __init__(
        self,
        *,
        threshold: int,
        bound: float = 16.0,
        modulus_bits: int = 32,
        refuse_isolating: bool = True,
        masks: bool = True,
        random: Random = os.urandom,
    ) -> None:
        require(ClientThreshold, remedy="threshold = 5", threshold=threshold)
        self.threshold, self.bound, self.modulus_bits = threshold, bound, modulus_bits
        self.refuse_isolating, self.masks = refuse_isolating, masks
        self.ledger = Ledger()
        self._random = random
        self._round = 0
        self._vectors: dict[int, RingVector] = {}
        self._quantiser = RingQuantiser(bound, 1, modulus_bits)

    def begin(self, round_number: int, updates: Mapping[int, npt.ArrayLike]) -> None:
        """Start a round: clients quantise their updates (d,), or raise RingOverflow.

        Replaces the updates of the round before. Each update is read once, one after the other, so
        a mapping may compute them on demand.
        """
        self._vectors, self._round = {}, 0
        self._quantiser = RingQuantiser(self.bound, max(1, len(updates)), self.modulus_bits)
        vectors: dict[int, RingVector] = {}
        shapes: set[tuple[int, ...]] = set()
        rows: RingVector | None = None
        for at, (client, given) in enumerate(updates.items()):
            update = np.asarray(given)
            shapes.add(update.shape)
            if update.ndim != 1 or len(shapes) > 1:
                break
            if rows is None:
                rows = empty_array(len(updates), len(update), ring_dtype(self.modulus_bits))
            try:
                vectors[int(client)] = self._quantiser.encode(update, out=rows[at])
            except RingOverflow as error:
                raise RingOverflow(
                    f"the update of client {client} does not fit the ring",
                    expected=error.expected,
                    got=error.got,
                    remedy=error.remedy,
                ) from None
        if not vectors or len(vectors) != len(updates):
            raise UsageError(
                "the updates of a round do not fit together",
                expected="vectors of one length, from at least one client",
                got=f"shapes {sorted(shapes)}",
                remedy="give every client's update as one flat vector",
            )
        self._vectors, self._round = vectors, round_number

    @property
    def clients(self) -> tuple[int, ...]:
        """Clients of this round."""
        return tuple(self._vectors)

    @property
    def step(self) -> float:
        """The real number that one unit of the ring stands for in this round."""
        return self._quantiser.step

    def error(self, clients: int) -> float:
        """The largest error of any number in a sum over `clients` clients."""
        return self._quantiser.error(clients)

    def query(
        self,
        round_number: int,
        clients: Sequence[int],
        *,
        gone_before_upload: AbstractSet[int] = NOBODY,
        gone_before_reveal: AbstractSet[int] = NOBODY,
    ) -> Floats:
        """The sum (d,) of these clients' updates, without those who dropped out.

        Raises QueryRefused for a query that reveals too much, TooFewLeft if drop-outs leave fewer
        than the threshold; the ledger records both. `ledger.entries[-1].members` lists the clients
        in the sum.
        """
        asked = self._checked(round_number, clients)
        number = len(self.ledger.of(round_number))
        start = time.perf_counter()
        run = _ProtocolRun(asked, gone_before_upload, gone_before_reveal)
        try:
            self._refuse(asked)
            total = self._masked_sum(run) if self.masks else self._plain_sum(run)
        except (QueryRefused, TooFewLeft) as error:
            self._write(number, asked, (), run, start, error.what)
            raise
        self._write(number, asked, run.uploaded, run, start, "")
        return self._quantiser.decode(total)

    def _checked(self, round_number: int, clients: Sequence[int]) -> tuple[int, ...]:
        asked = tuple(sorted(int(c) for c in clients))
        if round_number != self._round:
            raise UsageError(
                f"round {round_number} cannot be queried",
                expected=f"the round that has begun, {self._round}" if self._round else "begin()",
                got=str(round_number),
                remedy="query a round before the next one begins",
            )
        unknown = [c for c in asked if c not in self._vectors]
        if unknown or len(set(asked)) != len(asked):
            raise UsageError(
                "a query names clients that are not in the round, or one of them twice",
                expected=f"different clients of {', '.join(map(str, sorted(self._vectors)))}",
                got=", ".join(map(str, asked)),
                remedy="query clients of this round",
            )
        return asked

    def _refuse(self, members: tuple[int, ...]) -> None:
        """Raise QueryRefused if the sum over `members` would reveal too much."""
        if len(members) < self.threshold:
            raise QueryRefused(
                "a query below the threshold was refused",
                expected=f"at least {self.threshold} clients",
                got=str(len(members)),
                remedy="query more clients, or lower the threshold",
            )
        if not self.refuse_isolating:
            return
        width = max(self._vectors) + 1
        answered = self.ledger.matrix(self._round, width)
        row = np.zeros((1, width), dtype=np.uint8)
        row[0, list(members)] = 1
        after = np.concatenate([answered, row])
        if len(answered) and rank(after) == rank(answered):
            return  # the answer follows from earlier ones
        support = smallest_support(after, below=self.threshold, work=WORK)
        if support.floor < self.threshold:
            shown = ", ".join(map(str, support.clients))
            raise QueryRefused(
                "a query that would isolate too few clients was refused",
                expected=f"combinations with this round's other answers of at least "
                f"{self.threshold} clients",
                got=f"one of {support.value}: {shown}"
                if support.value < self.threshold
                else "an undecided search",
                remedy="query disjoint groups, or set refuse_isolating = false",
            )

    def _after_upload(self, run: _ProtocolRun) -> None:
        """Raise, before unmasking, if too few clients are left or their sum reveals too much."""
        if len(run.uploaded) < self.threshold:
            raise too_few(len(run.uploaded), self.threshold, "after the upload")
        if run.uploaded != run.asked:
            self._refuse(run.uploaded)

    def _plain_sum(self, run: _ProtocolRun) -> RingVector:
        """Sum without masks; charges the bytes that the protocol would have cost."""
        size = len(next(iter(self._vectors.values())))
        run.charge_uploads(size * self.modulus_bits // 8)
        self._after_upload(run)
        run.charge_reveals()
        if len(run.revealing) < self.threshold:
            raise too_few(len(run.revealing), self.threshold, "to reveal shares")
        return subset_sum([self._vectors[c] for c in run.uploaded])

    def _masked_sum(self, run: _ProtocolRun) -> RingVector:
        """One run of the protocol; see `protocol`."""
        label, threshold = secrets.token_bytes(16), self.threshold
        size = len(next(iter(self._vectors.values())))
        server = Server(threshold=threshold, run=label, size=size, bits=self.modulus_bits)
        clients = {
            c: Client(c, threshold=threshold, run=label, random=self._random) for c in run.asked
        }
        # 1. public keys
        for c, client in clients.items():
            server.enrol(c, run.up(c, client.advertise(), 2 * KEY_BYTES))
        # 2. shares of secrets, sealed for the other clients
        sealed = {}
        for c, client in clients.items():
            roster: dict[int, PublicKeys] = run.down(
                c, server.roster, 2 * KEY_BYTES * (len(server.roster) - 1)
            )
            shares = client.share(roster)
            sealed[c] = run.up(c, shares, sum(map(len, shares.values())))
        for c, theirs in server.pass_on(sealed).items():
            if c not in run.gone_before_upload:
                clients[c].receive(run.down(c, theirs, sum(map(len, theirs.values()))))
        # 3. masked vectors, added up as they come
        for c in run.uploaded:
            masked = clients[c].upload(self._vectors[c])
            server.accept(c, run.up(c, masked, masked.nbytes))
        self._after_upload(run)
        # 4. shares that remove the masks
        revealed = {}
        for c in run.revealing:
            uploaded = run.down(c, server.uploaded, _bitmap(len(run.asked)))
            shares_of = clients[c].reveal(uploaded)
            revealed[c] = run.up(c, shares_of, len(shares_of) * SHARE_BYTES)
        return server.open(revealed)

    def _write(
        self,
        number: int,
        asked: tuple[int, ...],
        members: tuple[int, ...],
        run: _ProtocolRun,
        start: float,
        reason: str,
    ) -> None:
        self.ledger.entries.append(
            LedgerEntry(
                round=self._round,
                query=number,
                asked=asked,
                members=members,
                reason=reason,
                sent=dict(run.sent),
                received=dict(run.received),
                seconds=time.perf_counter() - start,
            )
        )


def _bitmap(clients: int) -> int:
    """Bytes of the list of clients that uploaded."""
    return (clients + 7) // 8


class _ProtocolRun:
    """Clients present at each step of one run, and the bytes each sent and received."""

    def __init__(
        self,
        asked: tuple[int, ...],
        before_upload: AbstractSet[int],
        before_reveal: AbstractSet[int],
    ) -> None:
        self.asked = asked
        self.gone_before_upload = before_upload
        self.uploaded = tuple(c for c in asked if c not in before_upload)
        self.revealing = tuple(c for c in self.uploaded if c not in before_reveal)
        self.sent: dict[int, int] = {}
        self.received: dict[int, int] = {}

    def up(self, client: int, what: Content, size: int) -> Content:
        self.sent[client] = self.sent.get(client, 0) + size
        return what

    def down(self, client: int, what: Content, size: int) -> Content:
        self.received[client] = self.received.get(client, 0) + size
        return what

    def charge_uploads(self, vector_bytes: int) -> None:
        """Charge the bytes of steps 1 to 3 without running them."""
        others = len(self.asked) - 1
        for c in self.asked:
            self.up(c, None, 2 * KEY_BYTES + SEALED_BYTES * others)
            self.down(c, None, 2 * KEY_BYTES * others)
        for c in self.uploaded:
            self.down(c, None, SEALED_BYTES * others)
            self.up(c, None, vector_bytes)

    def charge_reveals(self) -> None:
        """Charge the bytes of step 4 without running it."""
        for c in self.revealing:
            self.down(c, None, _bitmap(len(self.asked)))
            self.up(c, None, SHARE_BYTES * len(self.asked))
