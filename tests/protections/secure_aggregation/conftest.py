"""A federation of the protocol whose messages a test can stop, change and repeat."""

import numpy as np
import pytest

from fedaudit.protections.secure_aggregation import (
    Client,
    ClientLedger,
    ClientRules,
    Directory,
    Identity,
    RunPlan,
    Server,
    keys,
    shamir,
    wire,
)
from fedaudit.protections.secure_aggregation.identity import AGGREGATOR_NUMBER, ExchangeKey
from fedaudit.protections.secure_aggregation.ring import add_streams, ring_dtype


class Parties:
    """Clients and server of one run; every step keeps its messages."""

    def __init__(self, count=5, *, threshold=2, size=6, seed=0, quorum="two_thirds", **more):
        random = np.random.default_rng(seed).bytes
        self.random = random
        self.count, self.size, self.threshold = count, size, threshold
        everybody = (AGGREGATOR_NUMBER, *range(count))
        self.identities = more.pop("identities", None) or {
            n: Identity.new(random) for n in everybody
        }
        self.known = {n: i.public for n, i in self.identities.items()}
        self.directory = more.pop("directory", None) or Directory(self.known)
        rules = more.pop("rules", None) or ClientRules(threshold=threshold, quorum=quorum)
        self.ledgers = more.pop("ledgers", None) or {
            c: ClientLedger(c, threshold=threshold) for c in range(count)
        }
        self.plan = RunPlan(
            **{"round": 1, "length": size, "threshold": threshold, "quorum": quorum, **more}
        )
        self.server = Server(
            self.plan, identity=self.identities[AGGREGATOR_NUMBER], directory=self.directory
        )
        self.clients = {
            c: Client(
                c,
                run=self.plan.run,
                round_number=self.plan.round,
                identity=self.identities[c],
                directory=self.directory,
                ledger=self.ledgers[c],
                rules=rules,
                random=random,
            )
            for c in range(count)
        }
        dtype = ring_dtype(self.plan.bits)
        values = np.random.default_rng(seed + 1)
        self.vectors = {c: values.integers(0, 1000, size, dtype=dtype) for c in range(count)}

    def sign(self, number, step, body):
        """A message as this client would sign it, true or not."""
        server = self.server
        context = {
            "shares": server._context,
            "upload": server._view,
            "reveal": server._signed,
        }[step]
        return wire.signed(self.identities[number], step, context, body)

    def sign_inbox(self, number, body):
        """An inbox as the aggregator would sign it, true or not."""
        context = keys.inbox_context(self.server._context, number)
        return wire.signed(self.identities[AGGREGATOR_NUMBER], "inbox", context, body)

    def signed_uploads(self, members):
        """A list of uploads as the aggregator would sign it, true or not."""
        bits = wire.bitmap(members, self.server.roster.numbers.tolist())
        view = keys.upload_view(self.server._view, bits)
        return bits + self.identities[AGGREGATOR_NUMBER].sign("uploads", view)

    def record(self, number, identity, **changes):
        """A signed record of fresh keys, or of others."""
        seed, mask, channel = (self.random(32) for _ in range(3))
        values = {
            "mask": ExchangeKey(mask).public,
            "channel": ExchangeKey(channel).public,
            "commitment": keys.commitment(seed, number),
            **changes,
        }
        unsigned = wire.Record(number, identity=identity.public, signature=b"", **values)
        signature = identity.sign("keys", self.plan.run.encode() + b"|" + unsigned.signed)
        return unsigned.to_bytes() + signature

    def signed_roster(self, records, terms=None):
        """The aggregator's message for these records and terms."""
        graph = self.plan.graph_of(len(records))
        given = {**vars(self.plan.terms(graph)), **(terms or {})}
        body = wire.Roster.body(wire.RunTerms(**given), records)
        return self.sign_roster(body)

    def sign_roster(self, body):
        aggregator = self.identities[AGGREGATOR_NUMBER]
        signature = aggregator.sign("roster", wire.fingerprint("roster", body))
        return aggregator.public + signature + body

    @staticmethod
    def pack(entries):
        return b"".join(wire.number_bytes(n) + rest for n, rest in entries.items())

    @staticmethod
    def entries_of(message, size=wire.REVEALED_BYTES):
        """What a signed message holds, by number."""
        return wire.by_number(message[: -wire.SIGNATURE_BYTES], size, "a message")

    @staticmethod
    def restored(shares):
        """A secret from holder -> share."""
        weights = shamir.weights_at_zero([h + 1 for h in shares])
        total = sum(w * int.from_bytes(s) for w, s in zip(weights, shares.values(), strict=True))
        return (total % shamir.PRIME).to_bytes(32)

    def unmasked(self, victim, seed, mask_key):
        """A client's vector from its upload and both of its secrets."""
        view, held = self.server._view, self.server._shares
        sent = self.clients[victim]._done["upload"][1]
        vector = np.frombuffer(sent[: -wire.SIGNATURE_BYTES], "<u4").copy()
        partners = {c for c in held if victim in held[c] or c in held[victim]} - {victim}
        streams, own = [(keys.own_mask(seed, view, victim), -1)], ExchangeKey(mask_key)
        for other in partners:
            public = self.server.roster.record(other).mask
            key = keys.pair_mask(own, public, view, victim, other)
            streams.append((key, -1 if other > victim else 1))
        add_streams(vector, streams)
        return vector

    def total(self, members):
        return sum((self.vectors[c] for c in members), np.zeros_like(self.vectors[0]))

    def keys(self, who=None):
        for c in range(self.count) if who is None else who:
            self.server.enrol(c, self.clients[c].advertise())
        self.roster = self.server.roster_message()
        return self

    def share(self, who=None):
        for c in range(self.count) if who is None else who:
            self.server.accept_shares(c, self.clients[c].share(self.roster))
        return self

    def upload(self, who=None):
        for c in range(self.count) if who is None else who:
            masked = self.clients[c].upload(self.server.inbox(c), self.vectors[c])
            self.server.accept_upload(c, masked)
        self.uploads = self.server.uploads_message()
        return self

    def confirm(self, who=None):
        for c in self.server.uploaded if who is None else who:
            self.server.accept_view(c, self.clients[c].confirm(self.uploads))
        return self

    def reveal(self, who=None):
        for c in self.server.uploaded if who is None else who:
            self.server.accept_reveal(c, self.clients[c].reveal(self.server.views(c)))
        return self

    def open(self):
        return self.server.open()


@pytest.fixture
def parties():
    return Parties
