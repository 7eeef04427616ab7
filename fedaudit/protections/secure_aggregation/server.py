"""The server in one run: keys, routed shares, the sum of masked vectors, revealed shares.

It never holds a client's vector. Every `accept_*` takes one message of one client; the same again
is accepted silently (a retry), another one refused. The transport says who a client is.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import wraps
from threading import RLock
from typing import Concatenate, ParamSpec, TypeVar

import numpy as np

from fedaudit.protections.secure_aggregation import keys, shamir, wire
from fedaudit.protections.secure_aggregation.client import check_record
from fedaudit.protections.secure_aggregation.graph import (
    COMPLETE_UP_TO,
    Graph,
    Neighbours,
    Quorum,
    failures,
    quorum_of,
    smallest_graph,
)
from fedaudit.protections.secure_aggregation.identity import (
    KEY_BYTES,
    SIGNATURE_BYTES,
    Directory,
    ExchangeKey,
    Identity,
    refuse_weak,
    verify,
)
from fedaudit.protections.secure_aggregation.refusals import (
    Forged,
    OutOfOrder,
    WrongShares,
    malformed,
    too_few,
)
from fedaudit.protections.secure_aggregation.ring import RingVector, add_streams, ring_dtype
from fedaudit.settings import AtLeastTwo, Count, PositiveFinite, Whole, checked

P = ParamSpec("P")
T = TypeVar("T")
PHASES = ("keys", "shares", "uploads", "views", "shares revealed", "closed")


@dataclass(frozen=True, kw_only=True)
@checked("plan")
class RunPlan:
    """What the aggregator asks for in a run, before it knows who answers.

    `complete`: masks between all pairs; None: up to 100 clients, or where a sparse graph is no
    cheaper. `bits`, `bound`: the ring, see `RingQuantiser`. `others`, `final`, `about`: see
    `wire.RunTerms`.
    """

    round: Whole
    length: Count
    threshold: AtLeastTwo = 5
    bits: int = 32
    bound: PositiveFinite = 16.0
    quorum: Quorum = "two_thirds"
    graph: Neighbours = field(default_factory=Neighbours)
    complete: bool | None = None
    others: tuple[tuple[int, ...], ...] = ()
    final: bool = False
    about: str = ""
    run: str = field(default_factory=lambda: secrets.token_hex(16))

    def graph_of(self, clients: int) -> Graph:
        """The graph of a run of this many clients."""
        sparse = None
        if not (self.complete or (self.complete is None and clients <= COMPLETE_UP_TO)):
            sparse = smallest_graph(clients, self.graph)
        if sparse is not None:
            return sparse
        quorum = quorum_of(clients, self.quorum, self.threshold)
        return failures(clients, clients - 1, quorum, self.graph)

    def terms(self, graph: Graph) -> wire.RunTerms:
        return wire.RunTerms(
            run=self.run,
            round=self.round,
            threshold=self.threshold,
            neighbours=graph.neighbours,
            quorum=graph.quorum,
            length=self.length,
            bits=self.bits,
            bound=float(self.bound),
            others=self.others,
            final=self.final,
            about=self.about,
        )


def _alone(
    step: Callable[Concatenate[Server, P], T],
) -> Callable[Concatenate[Server, P], T]:
    """The step, one at a time: a retry that comes while its vector is being added counts once."""

    @wraps(step)
    def locked(self: Server, /, *args: P.args, **kwargs: P.kwargs) -> T:
        with self._lock:
            return step(self, *args, **kwargs)

    return locked


class Server:
    """The server in one run; `masked` is the masked sum until `open` removes the masks."""

    def __init__(self, plan: RunPlan, *, identity: Identity, directory: Directory) -> None:
        self.plan, self._identity, self._directory = plan, identity, directory
        self.phase, self._lock = PHASES[0], RLock()
        self.graph: Graph | None = None
        self.roster: wire.Roster | None = None
        self._records: dict[int, wire.Record] = {}
        self._public: set[bytes] = set()
        self._shares: dict[int, dict[int, bytes]] = {}
        self._seen: dict[tuple[str, int], bytes] = {}
        self._inboxes: dict[int, list[bytes]] = {}
        self._shared_bits = self._view = self._uploads = self._signed = b""
        self._views: dict[int, bytes] = {}
        self._revealed: dict[int, dict[int, tuple[int, bytes]]] = {}
        self.liars: dict[int, list[str]] = {}
        self.masked: RingVector = np.zeros(plan.length, dtype=ring_dtype(plan.bits))
        self.sharing: tuple[int, ...] = ()
        self._inside: set[int] = set()
        self._total: RingVector | None = None

    @property
    def uploaded(self) -> tuple[int, ...]:
        """Clients whose masked vectors are in the sum, sorted."""
        return tuple(sorted(self._inside))

    # -- 1 keys ----------------------------------------------------------------------------------

    @_alone
    def enrol(self, number: int, message: bytes) -> None:
        if self._repeated("keys", number, message):
            return
        record = wire.Record.from_bytes(message)
        if record.number != wire.check_number(number):
            raise malformed("a record under another number", str(number), record.number)
        check_record(record, self.plan.run)
        self._directory.check(number, record.identity)
        for key in (record.mask, record.channel):
            refuse_weak(key)  # one weak key would stop everybody
            if key in self._public:
                raise malformed("a public key of another client", "fresh keys", f"client {number}")
        self._public |= {record.mask, record.channel}
        self._records[number] = record
        self._remember("keys", number, message)

    @_alone
    def roster_message(self) -> bytes:
        """Close enrolment: terms and records, signed."""
        if self.roster is None:
            count = len(self._records)
            self._advance("keys", "shares", count, "after keys were sent")
            self.graph = self.plan.graph_of(count)
            terms = self.plan.terms(self.graph)
            body = wire.Roster.body(terms, list(self._records.values()))
            signature = self._identity.sign("roster", wire.fingerprint("roster", body))
            self._message = self._identity.public + signature + body
            self.roster = wire.Roster(self._message)
        return self._message

    # -- 2 shares --------------------------------------------------------------------------------

    @_alone
    def accept_shares(self, number: int, message: bytes) -> None:
        if self._repeated("shares", number, message):
            return
        self._known(number, self._records)
        body = self._signed_by(number, "shares", self._context, message)
        shares = wire.by_number(body, wire.SHARED_BYTES, "the shares")
        assert self.graph is not None
        wanted = self.graph.neighbours + 1
        if len(shares) != wanted or number not in shares or not set(shares) <= set(self._records):
            raise malformed(
                "the shares do not fit the graph", f"{wanted} holders of this run", len(shares)
            )
        self._shares[number] = shares
        self._remember("shares", number, message)

    @_alone
    def inbox(self, number: int) -> bytes:
        """Close sharing: who shared, and what was sealed for this client."""
        self._known(number, self._shares)
        if not self._shared_bits:
            self._advance("shares", "uploads", len(self._shares), "after shares were sent")
            assert self.roster is not None
            self.sharing = tuple(sorted(self._shares))
            self._shared_bits = wire.bitmap(self.sharing, self.roster.numbers.tolist())
            self._view = keys.shared_view(self.roster.context, self._shared_bits)
            self._inboxes = {n: [] for n in self.sharing}
            for sender, shares in self._shares.items():
                for holder, entry in shares.items():
                    if holder in self._inboxes:
                        self._inboxes[holder].append(wire.number_bytes(sender) + entry)
        body = self._shared_bits + b"".join(self._inboxes[number])
        return wire.signed(self._identity, "inbox", keys.inbox_context(self._context, number), body)

    # -- 3 masked vectors ------------------------------------------------------------------------

    @_alone
    def accept_upload(self, number: int, message: bytes) -> None:
        if self._repeated("uploads", number, message):
            return
        self._known(number, self._inboxes)
        size = self.masked.nbytes + SIGNATURE_BYTES
        if len(message) != size:
            raise malformed("a masked vector does not fit", f"{size} bytes", len(message))
        body = self._signed_by(number, "upload", self._view, message)
        np.add(self.masked, np.frombuffer(body, dtype=self.masked.dtype), out=self.masked)
        self._inside.add(number)
        self._remember("uploads", number, message)

    @_alone
    def uploads_message(self) -> bytes:
        """Close uploads: the signed list of those who uploaded."""
        if not self._uploads:
            self._advance("uploads", "views", len(self._inside), "after the upload")
            assert self.roster is not None
            bits = wire.bitmap(self._inside, self.roster.numbers.tolist())
            self._signed = keys.upload_view(self._view, bits)
            self._uploads = bits + self._identity.sign("uploads", self._signed)
        return self._uploads

    # -- 4 signatures of the list ----------------------------------------------------------------

    @_alone
    def accept_view(self, number: int, message: bytes) -> None:
        if self._repeated("views", number, message):
            return
        self._known(number, self._inside)
        if not verify(self._records[number].identity, message, "view", self._signed):
            raise Forged(
                f"client {number} did not sign the list of uploads",
                expected="its signature of the list that it was sent",
                got="another",
                remedy="leave the client out",
            )
        self._views[number] = message
        self._remember("views", number, message)

    @_alone
    def views(self, number: int) -> bytes:
        """Close signing: the signatures of this client's holders, as many as it needs."""
        self._known(number, self._inside)
        if self.phase not in PHASES[4:]:
            self._advance("views", "shares revealed", len(self._views), "to sign their list")
        assert self.graph is not None
        signers = [h for h in self._shares[number] if h in self._views and h != number]
        chosen = signers[: self.graph.quorum]
        return b"".join(wire.number_bytes(h) + self._views[h] for h in chosen)

    # -- 5 shares that remove masks --------------------------------------------------------------

    @_alone
    def accept_reveal(self, number: int, message: bytes) -> None:
        if self._repeated("shares revealed", number, message):
            return
        self._known(number, self._inside)
        body = self._signed_by(number, "reveal", self._signed, message)
        given = wire.by_number(body, wire.REVEALED_BYTES, "the revealed shares")
        out = {}
        for owner, rest in given.items():
            kind, share = rest[0], rest[1:]
            wanted = wire.SEED_SHARE if owner in self._inside else wire.MASK_SHARE
            entry = self._shares.get(owner, {}).get(number)
            if entry is None or kind != wanted:
                raise malformed("a share that was not requested", "shares it holds", owner)
            at = kind * wire.DIGEST_BYTES
            digest = keys.share_digest(self._context, kind, share)
            if digest == entry[at : at + wire.DIGEST_BYTES]:
                out[owner] = share
            else:  # it has compared the share with the digest before: its own lie
                self.liars.setdefault(number, []).append(f"share of client {owner}")
        self._revealed[number] = {owner: (given[owner][0], share) for owner, share in out.items()}
        self._remember("shares revealed", number, message)

    @property
    def _context(self) -> bytes:
        assert self.roster is not None
        return self.roster.context

    @_alone
    def open(self) -> RingVector:
        """The sum (d,) over clients that uploaded."""
        if self._total is None:
            if self.phase != "shares revealed":
                raise OutOfOrder(
                    "the sum cannot be opened now",
                    expected="revealed shares",
                    got=f"the phase of {self.phase}",
                    remedy="follow the steps of the protocol",
                )
            assert self.graph is not None
            if len(self._revealed) < self.graph.quorum:
                raise too_few(len(self._revealed), self.graph.quorum, "to reveal shares")
            streams = self._masks()
            total = self.masked.copy()
            add_streams(total, streams)
            self._total = self.masked = total
            self.phase = "closed"
        return self._total

    def _masks(self) -> list[tuple[bytes, int]]:
        """Streams left in the masked sum, with the sign that removes them."""
        inside, streams = self._inside, []
        for number in self.uploaded:
            seed = self._restored(number)
            if keys.commitment(seed, number) != self._records[number].commitment:
                raise _wrong(number)
            streams.append((keys.own_mask(seed, self._view, number), -1))
        drawn_by: dict[int, set[int]] = {n: set() for n in self.sharing}
        for owner, shares in self._shares.items():
            for holder in shares:
                if holder in drawn_by and holder != owner:
                    drawn_by[holder].add(owner)
        for gone in sorted(set(self.sharing) - inside):
            partners = ((set(self._shares[gone]) & set(self.sharing)) | drawn_by[gone]) & inside
            if not partners:
                continue
            own = ExchangeKey(self._restored(gone))
            if own.public != self._records[gone].mask:
                raise _wrong(gone)
            for other in sorted(partners):
                key = keys.pair_mask(own, self._records[other].mask, self._view, other, gone)
                streams.append((key, -1 if gone > other else 1))
        return streams

    def _restored(self, owner: int) -> bytes:
        """A client's secret from shares that match what it committed to."""
        assert self.graph is not None
        good = []
        revealing = sum(holder in self._revealed for holder in self._shares[owner])
        for holder in self._shares[owner]:
            found = self._revealed.get(holder, {}).get(owner)
            if found is not None:
                good.append((holder + 1, int.from_bytes(found[1])))
            if len(good) == self.graph.quorum:
                break
        if len(good) < self.graph.quorum:
            if self.liars or revealing >= self.graph.quorum:  # enough are left, without its shares
                raise _wrong(owner, self.liars)
            raise too_few(len(good), self.graph.quorum, f"to reveal shares of client {owner}")
        weights = shamir.cached_weights(tuple(point for point, _ in good))
        secret = sum(w * s for w, (_, s) in zip(weights, good, strict=True)) % shamir.PRIME
        if secret >= 2 ** (8 * KEY_BYTES):
            raise _wrong(owner)
        return secret.to_bytes(KEY_BYTES)

    # -- order -----------------------------------------------------------------------------------

    def _advance(self, now: str, then: str, left: int, when: str) -> None:
        """Enter the next phase, or raise and stay: more messages may still come."""
        if self.phase != now:
            raise OutOfOrder(
                "the run is in another phase",
                expected=now,
                got=self.phase,
                remedy="start a new run",
            )
        if left < self.plan.threshold:
            raise too_few(left, self.plan.threshold, when)
        self.phase = then

    def _repeated(self, step: str, number: int, message: bytes) -> bool:
        """Whether this message came before; raises if another came, or none may come now."""
        known = self._seen.get((step, wire.check_number(number)))
        if known is not None:
            if isinstance(message, bytes) and known == wire.fingerprint("seen", message):
                return True
            raise OutOfOrder(
                f"client {number} has sent its {step} already",
                expected="the same message again, or none",
                got="another one",
                remedy="start a new run",
            )
        if self.phase != step:
            raise OutOfOrder(
                f"client {number} cannot send {step} now",
                expected=self.phase,
                got=step,
                remedy="start a new run",
            )
        if not isinstance(message, bytes):
            raise malformed("a message cannot be read", "bytes", type(message).__name__)
        return False

    def _remember(self, step: str, number: int, message: bytes) -> None:
        self._seen[step, number] = wire.fingerprint("seen", message)

    def _signed_by(self, number: int, step: str, context: bytes, message: bytes) -> bytes:
        """The message without its signature; Forged if another than this client sent it."""
        public = self._records[number].identity
        return wire.checked_body(message, public, step, context, f"client {number}")

    def _known(self, number: int, among: object) -> None:
        if wire.check_number(number) not in among:  # type: ignore[operator]
            raise malformed("a client has no part in this step", "one of the run's", number)


def _wrong(owner: int, liars: dict[int, list[str]] | None = None) -> WrongShares:
    told = sorted((liars or {}).items())
    names = ", ".join(f"client {n}" for n, _ in told)
    lies = ", ".join(f"client {n} ({len(lies)} in all)" for n, lies in told)
    return WrongShares(
        f"the shares of client {owner} do not restore what it committed to",
        expected="shares of its key and seed",
        got=f"wrong ones from {lies}" if names else "others",
        remedy=f"repeat without client {owner}" + (f", {names}" if names else ""),
    )
