"""One client in one run: five messages up, each once, in order.

    advertise  signed public keys: one for masks, one to seal shares; a commitment to a seed
    share      k neighbours drawn; shares of the mask key and of the seed, sealed for each holder
    upload     x + PRG(own seed) + PRG(pair) for every later partner - PRG(pair) for earlier ones
    confirm    a signature of the list of uploads, once the ledger allows that sum
    reveal     after `quorum` holders signed the same list: for each client that uploaded a share of
               its seed, for each that did not a share of its mask key; never both

Every message is bytes. The same request again (a network retry) gets the same bytes again, another
one is refused, and a refused request changes nothing. Keys are fresh in every run and bound to what
this client was shown: seals to roster and terms, masks also to the list of clients that shared.

Why the list cannot be split. n_C colluding clients, t = `quorum` of the m holders of a client, with
2t > m + c for c colluding holders. (1) No client's two secrets are both restored: t shares of each
kind would be 2t of the m + c that exist. (2) A holder that reveals is in its own list, and t of its
own holders signed that list, so fewer than t give out its mask key: its masks with the clients it
holds for stay on. (3) If a client's seed is restored, t of its holders revealed under lists that
contain it. By (2) the honest ones must be in the same sum. So every client of an opened sum has t
holders among the sum's honest clients and the colluders: in the complete graph the sum has at least
t - c honest clients; in a sparse one `graph` bounds the chance of a small sum.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from threading import RLock
from typing import Any

import numpy as np

from fedaudit.protections.secure_aggregation import keys, shamir, wire
from fedaudit.protections.secure_aggregation.graph import (
    COMPLETE_UP_TO,
    Neighbours,
    Quorum,
    avoidable,
    failures,
    quorum_of,
)
from fedaudit.protections.secure_aggregation.identity import (
    AGGREGATOR_NUMBER,
    KEY_BYTES,
    SIGNATURE_BYTES,
    X25519_PRIME,
    Directory,
    ExchangeKey,
    Identity,
    Random,
    verify,
)
from fedaudit.protections.secure_aggregation.ledger import (
    AnsweredQuery,
    BegunStep,
    ClientLedger,
    sketch_of,
)
from fedaudit.protections.secure_aggregation.refusals import (
    Forged,
    OtherRing,
    OutOfOrder,
    SplitView,
    WeakTerms,
    malformed,
    too_few,
)
from fedaudit.protections.secure_aggregation.ring import (
    RingQuantiser,
    RingVector,
    add_streams,
    ring_dtype,
)
from fedaudit.settings import AtLeastTwo, PositiveFinite, Whole, checked

STEPS = ("advertise", "share", "upload", "confirm", "reveal")
_KEPT = (
    "_mask_key",
    "_seed",
    "_channel",
    "_retry_key",
    "_shared",
    "_uploaded",
    "_view",
    "_signed",
    "_inbox",
)
NONCE = bytes(12)
"""A seal's key serves one message only."""


@dataclass(frozen=True, kw_only=True)
@checked("rules")
class ClientRules:
    """What a client asks of a run before it sends more than public keys.

    `threshold`: fewest clients in a sum. `quorum`: shares that restore a secret of the complete
    graph: "two_thirds" (more than 2n/3: up to n/3 clients may collude with a lying server),
    "majority" (more than n/2: a lying server alone) or "threshold" (the threshold, whatever n is:
    the server must follow the protocol, since it can show two halves two lists and open a client).
    `graph`: what a sparse graph must keep; `all_pairs_up_to` so many clients none is accepted: it
    counts on far fewer colluding ones, and the server chooses. `bound`: largest number of a vector;
    a run with another one is refused, since vectors of different units have no sum.
    """

    threshold: AtLeastTwo = 5
    quorum: Quorum = "two_thirds"
    graph: Neighbours = field(default_factory=Neighbours)
    all_pairs_up_to: Whole = COMPLETE_UP_TO
    bound: PositiveFinite = 16.0


class Client:
    """One client in one run; it does not keep the vector passed to `upload`.

    `number` identifies it, from 0; `run` (hex) is unique to the run; `round_number` is the round
    whose update it will send, of the `training` with this label. `ledger` is the client's own, over
    all runs and trainings. `random(n)` gives n random bytes, from the operating system unless a
    test needs repeatable ones; `draw` those that choose neighbours.
    """

    def __init__(
        self,
        number: int,
        *,
        run: str,
        round_number: int,
        training: str = "",
        identity: Identity,
        directory: Directory,
        ledger: ClientLedger,
        rules: ClientRules = ClientRules(),  # noqa: B008 - frozen
        random: Random = os.urandom,
        draw: Random | None = None,
    ) -> None:
        self.number, run = wire.check_number(number), wire.check_run(run)
        if ledger.number != self.number:
            raise malformed("the ledger is another client's", str(number), ledger.number)
        self.run, self.round_number, self.training = run, round_number, training
        self.rules, self.ledger = rules, ledger
        self._identity, self._directory = identity, directory
        self._random, self._draw = random, draw or random
        self._mask_key, self._seed, self._channel = (random(KEY_BYTES) for _ in range(3))
        self._retry_key = wire.fingerprint("retry", self._seed)
        self._done: dict[str, tuple[bytes, bytes]] = {}
        self._lock = RLock()  # a retry may come while the first request is at work
        self._roster: wire.Roster | None = None
        self._holders: dict[int, wire.Record] = {}  # who holds shares of this client's secrets
        self._held: dict[int, bytes] = {}  # owner -> its two shares
        self._sealing: ExchangeKey | None = None  # opens what its holders sealed, in step 3
        self._shared = self._uploaded = b""  # a bit per client of the roster
        self._view = self._signed = self._inbox = b""

    # -- kept between processes ------------------------------------------------------------------

    def dump(self) -> dict[str, bytes]:
        """All of the client's state: secret, and for this client's own storage alone."""
        out = {name: getattr(self, name) for name in _KEPT}
        out["whose"] = self._label
        out["roster"] = b"" if self._roster is None else self._roster.message
        out["holders"] = b"".join(map(wire.number_bytes, self._holders))
        out["held"] = b"".join(wire.number_bytes(n) + pair for n, pair in self._held.items())
        for step, (request, answer) in self._done.items():
            out[f"request {step}"], out[f"answer {step}"] = request, answer
        return out

    @property
    def _label(self) -> bytes:
        return f"{self.number} {self.training} {self.round_number} {self.run}".encode()

    def load(self, state: Mapping[str, bytes]) -> None:
        """Go on from a `dump` of the same client and run."""
        missing = {*_KEPT, "whose", "roster", "holders", "held"} - set(state)
        if missing or state["whose"] != self._label:
            raise malformed(
                "the stored state is not that of this client and run",
                f"client {self.number} in run {self.run[:8]}",
                f"no {', '.join(sorted(missing))}" if missing else "another",
            )
        for name in _KEPT:
            setattr(self, name, state[name])
        if state["roster"]:
            roster = self._roster = wire.Roster(state["roster"])
            numbers = map(wire.number_of, wire.pieces(state["holders"], 8, "holders"))
            self._holders = {n: roster.record(n) for n in numbers}
        pair = 2 * shamir.SHARE_BYTES
        self._held = wire.by_number(state["held"], wire.NUMBER_BYTES + pair, "held shares")
        self._done = {
            step: (state[f"request {step}"], state[f"answer {step}"])
            for step in STEPS
            if f"request {step}" in state
        }

    # -- the five steps --------------------------------------------------------------------------

    def advertise(self) -> bytes:
        """Step 1: a record of signed public keys."""
        return self._once("advertise", b"", self._advertise)

    def share(self, roster: bytes) -> bytes:
        """Step 2: shares for every holder."""
        self._in_order("share")
        given = wire.Roster(_bytes(roster))
        # large: hashed once, in `context`
        request = given.head + given.context
        return self._once("share", request, lambda: self._share(given, request))

    def ring(self) -> RingQuantiser:
        """The ring that the roster states: the same for all whose masks cancel."""
        roster = self._shown()
        return RingQuantiser(roster.terms.bound, len(roster), roster.terms.bits)

    def before_training(self, inbox: bytes, about: str) -> bytes | None:
        """Check the request of step 3 before the vector is computed; once in a run.

        The upload, if it was sent before. Whoever trains first and checks then tells a server that
        repeats its request, with model after model, whether each of them gives an upload.
        """
        inbox = _bytes(inbox)
        if "upload" in self._done:
            if wire.fingerprint("inbox", inbox, about.encode()) != self._inbox:
                raise _order("upload", "the same request again", "another one")
            return self._done["upload"][1]
        self._open_inbox(inbox, about)
        self._begin("train", inbox + about.encode())
        return None

    def upload(self, inbox: bytes, vector: RingVector, about: str = "") -> bytes:
        """Step 3: the masked vector (d,), trained with what has this digest (hex)."""
        self._check_vector(vector)
        # keyed: the digest of a vector that could be guessed tells nothing to others
        request = _bytes(inbox) + blake2b(vector.data, key=self._retry_key).digest()
        return self._once("upload", request, lambda: self._upload(inbox, vector, request, about))

    def confirm(self, uploads: bytes) -> bytes:
        """Step 4: a signature of the list of uploads."""
        return self._once("confirm", uploads, lambda: self._confirm(uploads))

    def reveal(self, views: bytes) -> bytes:
        """Step 5: one share of every client that this one holds shares of."""
        return self._once("reveal", views, lambda: self._reveal(views))

    def _once(self, step: str, request: bytes, work: Callable[[], bytes]) -> bytes:
        """The step's answer: made now, or as before for the same request."""
        digest = wire.fingerprint("request", _bytes(request))
        with self._lock:
            if step in self._done:
                before, answer = self._done[step]
                if before != digest:
                    raise _order(step, "the same request again", "another one")
                return answer
            self._in_order(step)
            answer = work()
            self._done[step] = digest, answer
            return answer

    def _begin(self, step: str, request: bytes, **more: Any) -> None:
        """Write a step into the ledger before its answer exists."""
        digest = wire.fingerprint("request", request).hex()
        self.ledger.begin(
            BegunStep(
                run=self.run,
                step=step,
                request=digest,
                training=self.training,
                round=self.round_number,
                **more,
            )
        )

    def _in_order(self, step: str) -> None:
        last = STEPS[STEPS.index(step) - 1] if step != STEPS[0] else None
        if last is not None and last not in self._done:
            raise _order(step, f"{last} first", "nothing of it")

    # -- 1 ---------------------------------------------------------------------------------------

    def _advertise(self) -> bytes:
        known = {e.run for e in self.ledger.entries}
        if self.run in known:
            raise _order("advertise", "a run that this client has not answered in", "one it has")
        mask, channel = (ExchangeKey(s).public for s in (self._mask_key, self._channel))
        own = wire.Record(
            self.number,
            mask,
            channel,
            keys.commitment(self._seed, self.number),
            self._identity.public,
            b"",
        )
        signature = self._identity.sign("keys", self.run.encode() + b"|" + own.signed)
        return own.to_bytes() + signature

    # -- 2 ---------------------------------------------------------------------------------------

    def _share(self, roster: wire.Roster, request: bytes) -> bytes:
        self._check_roster(roster)
        drawn = roster.terms.neighbours < len(roster) - 1
        own = roster.record(self.number)
        fresh = tuple(k.hex()[:32] for k in (own.mask, own.channel, own.commitment))
        if drawn:  # once: a server that repeats a roster with a forged record in it would get
            self._begin("share", request, keys=fresh)  # draws until one leaves that record out
        holders = self._draw_holders(roster)
        if not drawn:
            self._begin("share", request, keys=fresh)
        terms, context = roster.terms, roster.context
        points = [number + 1 for number in holders]
        parts = [
            shamir.split(int.from_bytes(secret), terms.quorum, points, self._random)
            for secret in (self._seed, self._mask_key)
        ]
        # between all pairs its holders are those who seal for it: half of the agreements are kept
        out, channel = [], ExchangeKey(self._channel, keep=not drawn)
        for number, record in holders.items():
            pair = b"".join(part[number + 1].to_bytes(shamir.SHARE_BYTES) for part in parts)
            key = keys.seal_key(channel, record.channel, context, self.number, number)
            sealed = _aead(key).encrypt(NONCE, pair, context)
            out.append(wire.number_bytes(number) + keys.pair_digests(context, pair) + sealed)
        self._roster, self._holders = roster, holders
        self._sealing = None if drawn else channel
        return wire.signed(self._identity, "shares", context, b"".join(out))

    def _check_roster(self, roster: wire.Roster) -> None:
        terms, rules, n = roster.terms, self.rules, len(roster)
        if not verify(roster.aggregator, roster.signature, "roster", roster.context):
            raise _forged("the roster", "the aggregator's signature")
        self._directory.check(AGGREGATOR_NUMBER, roster.aggregator)
        if terms.run != self.run or terms.round != self.round_number:
            raise malformed(
                "the roster belongs to another run or round",
                f"run {self.run[:8]} of round {self.round_number}",
                f"run {terms.run[:8]} of round {terms.round}",
            )
        if (
            self.number not in roster
            or roster.record(self.number).to_bytes() != (self._done["advertise"][1])
        ):
            raise _forged("this client's own record", "the keys that it sent")
        if n < max(rules.threshold, 2):
            raise too_few(n, rules.threshold, "before keys were shared")
        if terms.bound != rules.bound:
            raise OtherRing(
                "the run's ring is not this client's: their sum would mean nothing",
                expected=f"numbers up to {rules.bound:g}",
                got=f"up to {terms.bound:g}",
                remedy="give RunPlan and every client's ClientRules the same bound",
            )
        if terms.threshold < rules.threshold:
            raise _weak("threshold", f"at least {rules.threshold}", terms.threshold)
        if not 1 <= terms.neighbours <= n - 1 or not 1 <= terms.quorum <= terms.neighbours + 1:
            raise malformed(
                "the terms do not fit the roster", f"up to {n - 1} neighbours", terms.neighbours
            )
        if terms.neighbours == n - 1:
            least = quorum_of(n, rules.quorum, rules.threshold)
            if terms.quorum < least:
                raise _weak("quorum", f"at least {least} of {n} shares", terms.quorum)
        else:
            graph = failures(n, terms.neighbours, terms.quorum, rules.graph)
            if n <= rules.all_pairs_up_to:
                raise _weak("graph", f"masks between all pairs of {n} clients", graph)
            if graph.unprotected > -rules.graph.security:
                raise _weak("graph", f"2^-{rules.graph.security} or less", graph)
            if terms.threshold > (most := graph.largest_threshold(rules.graph)):
                raise _weak("threshold", f"up to {most} of {n} clients", terms.threshold)

    def _draw_holders(self, roster: wire.Roster) -> dict[int, wire.Record]:
        """This client and its neighbours, drawn uniformly; every record checked."""
        at, k = int(np.searchsorted(roster.numbers, self.number)), roster.terms.neighbours
        others = np.delete(roster.numbers, at)
        if k < len(others):
            seed = int.from_bytes(self._draw(KEY_BYTES), "little")
            others = np.random.default_rng(seed).choice(others, k, replace=False)
        holders = {}
        for number in sorted([self.number, *others.tolist()]):
            record = holders[number] = roster.record(number)
            if number != self.number:
                check_record(record, self.run)
                self._directory.check(number, record.identity)
        for name in ("mask", "channel"):
            if len({getattr(r, name) for r in holders.values()}) < len(holders):
                raise _forged("the list of public keys", "a key of its own for every client")
        return holders

    # -- 3 ---------------------------------------------------------------------------------------

    def _shown(self) -> wire.Roster:
        if self._roster is None:
            raise _order("upload", "share first", "nothing of it")
        return self._roster

    @property
    def _unseen(self) -> int:
        """Members of this run's sum that may not have been there."""
        roster = self._shown()
        return avoidable(len(roster), roster.terms.neighbours, self.rules.graph)

    def _check_vector(self, vector: RingVector) -> None:
        terms = self._shown().terms
        dtype, size = ring_dtype(terms.bits), terms.length
        array = isinstance(vector, np.ndarray) and not isinstance(vector, np.ma.MaskedArray)
        if not array or vector.dtype != dtype or vector.shape != (size,):
            got = f"{vector.dtype} {vector.shape}" if array else type(vector).__name__
            raise malformed(
                "the vector is not one of this run's ring",
                f"{dtype} ({size},), as RingQuantiser.encode makes it",
                got,
            )
        if not vector.flags.c_contiguous:
            raise malformed("the vector is not contiguous", "one piece of memory", "strides")
        signed, most = vector.view(f"<i{dtype.itemsize}"), self.ring().largest
        if signed.max() > most or signed.min() < -most:
            raise malformed(
                "the vector does not fit this run's ring: the sum could wrap",
                f"up to {most} in size, as Client.ring encodes numbers up to its bound",
                "more",
            )

    def _open_inbox(self, inbox: bytes, about: str) -> bytes:
        """The inbox of this run, for whoever received what the roster states."""
        roster = self._shown()
        if about != roster.terms.about:
            raise SplitView(
                "this client received something else to train with than the run's roster states",
                expected=roster.terms.about[:16] or "no digest",
                got=about[:16] or "no digest",
                remedy="send all clients of a round the same model and settings",
            )
        context = keys.inbox_context(roster.context, self.number)
        return wire.checked_body(inbox, roster.aggregator, "inbox", context, "the aggregator")

    def _upload(self, inbox: bytes, vector: RingVector, request: bytes, about: str) -> bytes:
        roster, size, sent = self._shown(), (len(self._shown()) + 7) // 8, inbox
        inbox = self._open_inbox(inbox, about)
        bits = inbox[:size]
        sharing = roster.members(bits, "the list of sharers")
        sealed = wire.by_number(inbox[size:], wire.SHARED_BYTES, "the inbox")
        mine = {*sealed, self.number}
        if roster.marked(bits, mine) != mine:
            raise malformed("the inbox does not fit its list", "sharers, this client too", "others")
        holding = roster.marked(bits, self._holders)
        if len(sharing) < roster.terms.threshold or len(holding) < roster.terms.quorum:
            raise too_few(len(holding), roster.terms.quorum, "before the upload")
        held = self._open_seals(roster, sealed)
        if self.number not in held:
            raise malformed("this client's own shares are missing", "what it sealed", "others")
        view = keys.shared_view(roster.context, bits)
        partners = (holding | set(sealed)) - {self.number}
        streams = [(keys.own_mask(self._seed, view, self.number), 1)]
        own = ExchangeKey(self._mask_key)
        for other in partners:
            public = (self._holders.get(other) or roster.record(other)).mask
            key = keys.pair_mask(own, public, view, self.number, other)
            streams.append((key, 1 if other > self.number else -1))
        self._begin(
            "upload",
            request,
            sketch=sketch_of(vector) if self.ledger.measured else (),
            members=sharing,
            others=roster.terms.others,
            final=roster.terms.final,
            unseen=self._unseen,
        )
        masked = vector.copy()
        add_streams(masked, streams)
        self._held, self._view, self._shared = held, view, bits
        self._inbox = wire.fingerprint("inbox", sent, about.encode())
        return wire.signed(self._identity, "upload", view, masked.tobytes())

    def _open_seals(self, roster: wire.Roster, sealed: dict[int, bytes]) -> dict[int, bytes]:
        """Owner -> its two shares. Seals that do not open, or hold other shares than their digests
        say, are left out: revealing them would make this client look like a liar."""
        from cryptography.exceptions import InvalidTag

        held, context = {}, roster.context
        channel, self._sealing = self._sealing or ExchangeKey(self._channel), None
        for owner, entry in sealed.items():
            public = (self._holders.get(owner) or roster.record(owner)).channel
            key = keys.seal_key(channel, public, context, owner, self.number)
            digests, text = entry[: 2 * wire.DIGEST_BYTES], entry[2 * wire.DIGEST_BYTES :]
            try:
                pair = _aead(key).decrypt(NONCE, text, context)
            except InvalidTag:
                continue
            if keys.pair_digests(context, pair) == digests:
                held[owner] = pair
        return held

    # -- 4 ---------------------------------------------------------------------------------------

    def _confirm(self, uploads: bytes) -> bytes:
        roster = self._roster
        assert roster is not None
        if len(uploads) <= SIGNATURE_BYTES:
            raise malformed("the list of uploads cannot be read", "a list and a signature", "less")
        bits, signature = uploads[:-SIGNATURE_BYTES], uploads[-SIGNATURE_BYTES:]
        members = roster.members(bits, "the list of uploads")
        signed = keys.upload_view(self._view, bits)
        if not verify(roster.aggregator, signature, "uploads", signed):
            raise _forged("the list of uploads", "the aggregator's signature")
        inside = bool(roster.marked(bits, [self.number]))
        if not inside or any(u & ~s for u, s in zip(bits, self._shared, strict=True)):
            raise malformed(
                "the list of uploads is wrong",
                "clients that shared, this one among them",
                "a client without keys" if inside else "this client left out",
            )
        terms, holding = roster.terms, roster.marked(bits, self._holders)
        if len(members) < terms.threshold:
            raise too_few(len(members), terms.threshold, "after the upload")
        if len(holding) < terms.quorum:
            raise too_few(len(holding), terms.quorum, "among this client's holders")
        query = AnsweredQuery(
            round=terms.round,
            run=terms.run,
            training=self.training,
            members=members,
            others=terms.others,
            final=terms.final,
            unseen=self._unseen,
            aggregator=roster.aggregator.hex(),
            signature=signature.hex(),
        )
        self.ledger.admit(query)
        self._uploaded, self._signed = bits, signed
        return self._identity.sign("view", signed)

    # -- 5 ---------------------------------------------------------------------------------------

    def _reveal(self, views: bytes) -> bytes:
        roster = self._roster
        assert roster is not None
        given = wire.by_number(views, wire.VIEW_BYTES, "the signatures")
        if not set(given) <= set(self._holders):
            raise malformed("signatures of others", "those of this client's holders", "others")
        agree = 1  # this client itself
        for number, signature in given.items():
            if agree >= roster.terms.quorum:
                break
            identity = self._holders[number].identity
            if number != self.number and verify(identity, signature, "view", self._signed):
                agree += 1
        if agree < roster.terms.quorum:
            raise SplitView(
                "too few others signed the list of uploads that this client was shown",
                expected=f"{roster.terms.quorum} of {len(self._holders)} holders",
                got=str(agree),
                remedy="repeat in the next round; if it happens again, the server shows different "
                "lists to different clients",
            )
        out, cut = [], shamir.SHARE_BYTES
        uploaded = roster.marked(self._uploaded, self._held)
        for owner, pair in self._held.items():
            kind = wire.SEED_SHARE if owner in uploaded else wire.MASK_SHARE
            share = pair[:cut] if kind == wire.SEED_SHARE else pair[cut:]
            out.append(wire.number_bytes(owner) + bytes([kind]) + share)
        # nobody who steals this client's state later opens its upload, or another's
        self._mask_key = self._seed = self._channel = b""
        self._held = {}
        return wire.signed(self._identity, "reveal", self._signed, b"".join(out))


def check_record(record: wire.Record, run: str) -> None:
    """Raise Forged unless the record's identity signed its keys for this run.

    Before the identity is looked up: nobody pins a key under a number without having its secret.
    """
    for key in (record.mask, record.channel):
        if int.from_bytes(key, "little") >= X25519_PRIME:
            raise malformed("a public key is not in its canonical form", "below 2^255 - 19", "more")
    content = run.encode() + b"|" + record.signed
    if not verify(record.identity, record.signature, "keys", content):
        raise _forged(f"the keys of client {record.number}", "its signature for this run")


def _aead(key: bytes):  # type: ignore[no-untyped-def]
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    return AESGCM(key)


def _bytes(message: object) -> bytes:
    if not isinstance(message, bytes):
        raise malformed("a message cannot be read", "bytes", type(message).__name__)
    return message


def _order(step: str, expected: str, got: str) -> OutOfOrder:
    what = f"{step} is not possible now"
    return OutOfOrder(what, expected=expected, got=got, remedy="start a new run")


def _forged(what: str, expected: str) -> Forged:
    return Forged(
        f"{what} is not genuine", expected=expected, got="something else", remedy="start a new run"
    )


def _weak(what: str, expected: str, got: object) -> WeakTerms:
    return WeakTerms(
        f"the run's {what} protects less than this client asks for",
        expected=expected,
        got=str(got),
        remedy="state ClientRules that allow it by name, or raise the run's terms",
    )
