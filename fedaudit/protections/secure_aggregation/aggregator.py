"""`query(round, clients) -> sum`: subset sums through the protocol, refusals, a ledger, the cost.

Every query is a separate run, since a mask must not be used twice: each of its clients uploads a
whole masked vector again. The aggregator refuses:

- fewer clients than the threshold N_sa, always ([FedAttr] Section 3.1);
- with `refuse_isolating`, a query whose answer, combined with those of the same round, would
  involve fewer than N_sa clients: two sums that differ in one client reveal its update. If the
  search for such a combination ends undecided, the query is refused.

It spares everybody a run that the clients would refuse: each of them keeps a `ClientLedger` with
the same rule, which covers one round, and with a `budget` all rounds.
"""

from __future__ import annotations

import csv
import os
import time
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from annotated_types import Ge

from fedaudit.arrays import Floats
from fedaudit.errors import UsageError
from fedaudit.protections.secure_aggregation import wire
from fedaudit.protections.secure_aggregation.client import Client, ClientRules
from fedaudit.protections.secure_aggregation.graph import Quorum, avoidable
from fedaudit.protections.secure_aggregation.identity import (
    AGGREGATOR_NUMBER,
    SIGNATURE_BYTES,
    Directory,
    Identity,
    Random,
)
from fedaudit.protections.secure_aggregation.ledger import (
    AnsweredQuery,
    BegunStep,
    Budget,
    ClientLedger,
    check_isolation,
    check_size,
)
from fedaudit.protections.secure_aggregation.refusals import (
    QueryRefused,
    SplitView,
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
from fedaudit.protections.secure_aggregation.server import RunPlan, Server
from fedaudit.rows import empty_array
from fedaudit.settings import require

NOBODY: AbstractSet[int] = frozenset()
ClientThreshold = Annotated[int, Ge(2), "a sum over one client is its update"]


@dataclass(frozen=True, kw_only=True)
class LedgerEntry:
    """One line of the ledger.

    `asked`: clients of the query; `members`: clients in the sum (fewer after drop-outs, none
    without an answer); `reason`: why there was no answer. `sent` and `received`: bytes by client;
    `seconds` on this machine, all parties one after another. `agreed`: the sum that the clients
    signed; it counts against later queries, whether it could be opened or not.
    """

    round: int
    query: int
    asked: tuple[int, ...]
    members: tuple[int, ...] = ()
    reason: str = ""
    sent: Mapping[int, int] = field(default_factory=dict)
    received: Mapping[int, int] = field(default_factory=dict)
    seconds: float = 0.0
    agreed: tuple[int, ...] = ()

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

    `bound` on the absolute value of a client's numbers; `modulus_bits` 32 or 64; `quorum` as in
    `ClientRules`; `budget` across rounds, if the clients keep one; `history`: the sums of earlier
    rounds, to which this object adds its own. `masks=False` skips keys and
    masks and adds the quantised vectors: the same sums to the last bit, the same ledger, no
    protection (for long simulations). `draw` chooses neighbours beyond 100 clients.
    `complete`: masks between all pairs, whatever their number: a round of several sums needs them.
    """

    def __init__(
        self,
        *,
        threshold: int,
        bound: float = 16.0,
        modulus_bits: int = 32,
        refuse_isolating: bool = True,
        masks: bool = True,
        quorum: Quorum = "two_thirds",
        budget: Budget | None = None,
        history: list[dict[str, Any]] | None = None,
        random: Random = os.urandom,
        draw: Random | None = None,
        complete: bool = False,
    ) -> None:
        require(ClientThreshold, remedy="threshold = 5", threshold=threshold)
        self.threshold, self.bound, self.modulus_bits = threshold, bound, modulus_bits
        self.refuse_isolating, self.masks, self.quorum = refuse_isolating, masks, quorum
        self.ledger = Ledger()
        self.complete = complete
        self._rules = ClientRules(threshold=threshold, quorum=quorum, bound=bound)
        self._budget, self._random, self._draw = budget, random, draw
        self._history = [] if history is None else history
        self._identities: dict[int, Identity] = {}
        self._ledgers: dict[int, ClientLedger] = {}
        self._round, self._about = 0, ""
        self._vectors: dict[int, RingVector] = {}
        self._quantiser = RingQuantiser(bound, 1, modulus_bits)

    def begin(
        self, round_number: int, updates: Mapping[int, npt.ArrayLike], about: str = ""
    ) -> None:
        """Start a round: clients quantise their updates (d,), or raise RingOverflow.

        Replaces the updates of the round before. Each update is read once, one after the other, so
        a mapping may compute them on demand. `about`: digest (hex) of what clients trained with.
        """
        self._vectors, self._round, self._about = {}, 0, about
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

    def stored_error(self, total: Floats, scale: float, clients: int) -> float:
        """The same for float32 of `scale` x `total`, of updates times a share up to 1."""
        return self._quantiser.stored_error(total, scale, clients)

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
        run = _ProtocolRun(asked, gone_before_upload, gone_before_reveal, self._plan(asked))
        try:
            self._refuse(asked)
            total = self._masked_sum(run) if self.masks else self._plain_sum(run)
        except (QueryRefused, TooFewLeft) as error:
            self._write(number, run, start, error.what)
            raise
        self._write(number, run, start, "")
        return self._quantiser.decode(total)

    def _plan(self, asked: tuple[int, ...]) -> RunPlan:
        return RunPlan(
            round=self._round,
            length=len(next(iter(self._vectors.values()))),
            threshold=self.threshold,
            bits=self.modulus_bits,
            bound=self.bound,
            quorum=self.quorum,
            others=self._earlier(),
            about=self._about,
            complete=self.complete or None,
        )

    def _earlier(self) -> tuple[tuple[int, ...], ...]:
        """The sums of this round that clients have agreed to."""
        return tuple(e.agreed for e in self.ledger.of(self._round) if e.agreed)

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
        check_size(members, self.threshold)
        if self.refuse_isolating:
            check_isolation(self._earlier(), members, self.threshold)

    def _after_upload(self, run: _ProtocolRun) -> None:
        """Raise, before unmasking, if too few clients are left or their sum reveals too much."""
        if len(run.uploaded) < self.threshold:
            raise too_few(len(run.uploaded), self.threshold, "after the upload")
        if len(run.uploaded) < run.graph.quorum:
            raise too_few(len(run.uploaded), run.graph.quorum, "after the upload")
        if run.uploaded != run.asked:
            self._refuse(run.uploaded)

    def _client_ledger(self, client: int) -> ClientLedger:
        if client not in self._ledgers:
            ledger = self._ledgers[client] = ClientLedger(
                client,
                threshold=self.threshold,
                budget=self._budget,
                isolating=not self.refuse_isolating,
                measured=False,  # as stated, so that skipped masks give the same answers
            )
            for raw in self._history:
                if raw["round"] < self._round and client in raw["members"]:
                    ledger.entries.append(AnsweredQuery.from_json(raw))
        return self._ledgers[client]

    def _plain_sum(self, run: _ProtocolRun) -> RingVector:
        """Sum without masks; charges the bytes that the protocol would have cost."""
        run.charge_uploads()
        for c in run.uploaded:
            self._client_ledger(c).begin(self._consent(run))
        self._after_upload(run)
        agreed = AnsweredQuery(
            round=self._round,
            run=run.plan.run,
            members=run.uploaded,
            others=run.plan.others,
            unseen=run.unseen,
        )
        run.confirm(lambda c: self._client_ledger(c).admit(agreed))
        run.agreed = run.uploaded
        run.charge_views()
        run.check_quorum()
        run.charge_reveals()
        return subset_sum([self._vectors[c] for c in run.uploaded])

    def _consent(self, run: _ProtocolRun) -> BegunStep:
        return BegunStep(
            run=run.plan.run,
            step="upload",
            request="",
            round=self._round,
            members=run.asked,
            others=run.plan.others,
            unseen=run.unseen,
        )

    def _masked_sum(self, run: _ProtocolRun) -> RingVector:
        """One run of the protocol; see `client`."""
        server, clients = self._parties(run)
        # 1. public keys
        for c, client in clients.items():
            server.enrol(c, run.up(c, client.advertise()))
        # 2. shares of secrets, sealed for their holders
        roster = server.roster_message()
        for c, client in clients.items():
            server.accept_shares(c, run.up(c, client.share(run.down(c, roster))))
        # 3. masked vectors, added up as they come
        for c in run.uploaded:
            inbox = run.down(c, server.inbox(c))
            server.accept_upload(
                c, run.up(c, clients[c].upload(inbox, self._vectors[c], self._about))
            )
        self._after_upload(run)
        # 4. one list of uploads, signed
        uploads = server.uploads_message()
        run.confirm(
            lambda c: server.accept_view(c, run.up(c, clients[c].confirm(run.down(c, uploads))))
        )
        run.agreed = run.uploaded
        run.check_quorum()
        # 5. shares that remove the masks
        for c in run.revealing:
            try:
                shares = clients[c].reveal(run.down(c, server.views(c)))
            except SplitView:  # too few of its neighbours are left
                continue
            server.accept_reveal(c, run.up(c, shares))
        return server.open()

    def _parties(self, run: _ProtocolRun) -> tuple[Server, dict[int, Client]]:
        """The aggregator and the clients of a run, who know each other's public keys."""
        for number in (AGGREGATOR_NUMBER, *run.asked):
            if number not in self._identities:
                self._identities[number] = Identity.new(self._random)
        public = {n: i.public for n, i in self._identities.items()}
        directory = Directory(public)
        server = Server(run.plan, identity=self._identities[AGGREGATOR_NUMBER], directory=directory)
        clients = {
            c: Client(
                c,
                run=run.plan.run,
                round_number=self._round,
                identity=self._identities[c],
                directory=directory,
                ledger=self._client_ledger(c),
                rules=self._rules,
                random=self._random,
                draw=self._draw,
            )
            for c in run.asked
        }
        return server, clients

    def _write(self, number: int, run: _ProtocolRun, start: float, reason: str) -> None:
        if run.agreed and self._budget is not None:
            agreed = AnsweredQuery(
                round=self._round, run=run.plan.run, members=run.agreed, others=run.plan.others
            )
            self._history.append(asdict(agreed))
        self.ledger.entries.append(
            LedgerEntry(
                round=self._round,
                query=number,
                asked=run.asked,
                members=() if reason else run.uploaded,
                reason=reason,
                sent=dict(run.sent),
                received=dict(run.received),
                seconds=time.perf_counter() - start,
                agreed=run.agreed,
            )
        )


class _ProtocolRun:
    """Clients present at each step of one run, and the bytes each sent and received."""

    def __init__(
        self,
        asked: tuple[int, ...],
        before_upload: AbstractSet[int],
        before_reveal: AbstractSet[int],
        plan: RunPlan,
    ) -> None:
        self.asked, self.plan = asked, plan
        self.graph = plan.graph_of(max(2, len(asked)))
        self.unseen = avoidable(self.graph.clients, self.graph.neighbours, plan.graph)
        self.uploaded = tuple(c for c in asked if c not in before_upload)
        self.revealing = tuple(c for c in self.uploaded if c not in before_reveal)
        self.agreed: tuple[int, ...] = ()
        self.sent: dict[int, int] = {}
        self.received: dict[int, int] = {}

    def up(self, client: int, message: bytes) -> bytes:
        self.sent[client] = self.sent.get(client, 0) + len(message)
        return message

    def down(self, client: int, message: bytes) -> bytes:
        self.received[client] = self.received.get(client, 0) + len(message)
        return message

    def confirm(self, ask: Callable[[int], None]) -> None:
        """Ask everybody left, also after a refusal: who is not asked must count the sum as open."""
        refused: QueryRefused | None = None
        for c in self.revealing:
            try:
                ask(c)
            except QueryRefused as error:
                refused = refused or error
        if refused is not None:
            raise refused

    def check_quorum(self) -> None:
        """Raise TooFewLeft if those left cannot restore a secret."""
        if len(self.revealing) < self.graph.quorum:
            raise too_few(len(self.revealing), self.graph.quorum, "to reveal shares")

    # without masks: the sizes of messages that nobody makes; neighbours that others draw count
    # with their mean

    def charge_uploads(self) -> None:
        holders, bits = self.graph.neighbours + 1, (len(self.asked) + 7) // 8
        roster = wire.HEAD_BYTES + wire.RECORD_BYTES * len(self.asked)
        roster += len(self.plan.terms(self.graph).to_bytes())
        inbox = bits + wire.SHARED_BYTES * holders + SIGNATURE_BYTES
        for c in self.asked:
            shares = wire.SHARED_BYTES * holders + SIGNATURE_BYTES
            self._charge(c, wire.RECORD_BYTES + shares, roster)
        for c in self.uploaded:
            self._charge(c, self.plan.length * self.plan.bits // 8 + SIGNATURE_BYTES, inbox)

    def charge_views(self) -> None:
        bits = (len(self.asked) + 7) // 8
        for c in self.revealing:
            self._charge(c, SIGNATURE_BYTES, bits + SIGNATURE_BYTES)

    def charge_reveals(self) -> None:
        holders = self.graph.neighbours + 1
        views = min(self.graph.quorum, len(self.revealing) - 1, holders - 1)
        for c in self.revealing:
            shares = wire.REVEALED_BYTES * holders + SIGNATURE_BYTES
            self._charge(c, shares, wire.VIEW_BYTES * views)

    def _charge(self, client: int, sent: int, received: int) -> None:
        self.sent[client] = self.sent.get(client, 0) + sent
        self.received[client] = self.received.get(client, 0) + received
