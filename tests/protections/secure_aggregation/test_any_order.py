"""Arbitrary orders, repeats, losses and damage: the exact sum or a refusal by name.

Every message between server and clients passes an adversary who delays, repeats, drops, damages or
swaps it. Clients die, and go on from any state that they ever stored, with the ledger that is on
their disk and an update that they have trained again. Whatever happens, no client sends two
different answers in a step, none reveals both kinds of shares of anybody, and a sum that is opened
is the sum of what was uploaded by those in the list.
"""

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from fedaudit.protections.secure_aggregation import (
    Client,
    ClientLedger,
    ClientRules,
    Neighbours,
    RunRefused,
    TooFewLeft,
    wire,
)

COUNT = 5
CLIENT = st.integers(0, 9)
FEW = Neighbours(colluding=0.0, dropout=0.0, security=2, completion=1)
DAMAGE = st.sampled_from(["none"] * 12 + ["cut", "grow", "flip", "swap", "empty"])
AHEAD = st.sampled_from([0] * 8 + [-1, 1, -2])
REFUSED = (RunRefused, TooFewLeft)
PARTIES = []


class AnyOrder(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        parties, settings_ = PARTIES
        self.run = parties(**{"count": COUNT, "threshold": 3, "size": 4, **settings_})
        self.stored = {c: [] for c in self.run.clients}  # states of every client, as they came
        self.trained = dict(self.run.vectors)  # what a client would upload now
        self.restarts = 0
        self.sent = {}  # what every client sent in every step
        self.kinds = {}  # owner -> holder -> kind of share revealed
        self.other = bytes(5)  # the message before
        if settings_:  # a sparse graph takes all ten
            self.run.keys()
            self.sent = {("advertise", c): p.advertise() for c, p in self.run.clients.items()}
            self.stored = {c: [p.dump()] for c, p in self.run.clients.items()}
        self.opened = None
        self.checked = 0  # sums compared with the exact one

    def damaged(self, message, how, at):
        """A message after the adversary; also remembered, to be sent in place of another."""
        before, self.other = self.other, message
        if how == "cut":
            return message[: at % max(1, len(message))]
        if how == "grow":
            return message + message[:at]
        if how == "flip" and message:
            at %= len(message)
            return message[:at] + bytes([message[at] ^ (1 << at % 8)]) + message[at + 1 :]
        return {"swap": before, "empty": b""}.get(how, message)

    def request(self, step, client, how, at):
        """What the server asks of a client in a step."""
        server = self.run.server
        if step == "advertise":
            return None
        make = {
            "share": lambda: server.roster_message(),
            "upload": lambda: server.inbox(client),
            "confirm": lambda: server.uploads_message(),
            "reveal": lambda: server.views(client),
        }[step]
        return self.damaged(make(), how, at)

    def answer(self, step, client, request):
        party = self.run.clients[client]
        if step == "advertise":
            return party.advertise()
        if step == "upload":
            return party.upload(request, self.trained[client])
        return getattr(party, step)(request)

    def deliver(self, step, client, message):
        server = self.run.server
        {
            "advertise": server.enrol,
            "share": server.accept_shares,
            "upload": server.accept_upload,
            "confirm": server.accept_view,
            "reveal": server.accept_reveal,
        }[step](client, message)

    def step_of(self, client):
        done = [s for s in ("advertise", "share", "upload", "confirm") if (s, client) in self.sent]
        return ("advertise", "share", "upload", "confirm", "reveal")[len(done)]

    @rule(
        client=CLIENT,
        ahead=st.sampled_from([0] * 8 + [-1, 1, -2]),
        how=DAMAGE,
        at=st.integers(0, 400),
    )
    def exchange(self, client, ahead, how, at):
        client %= self.run.count
        steps = ("advertise", "share", "upload", "confirm", "reveal")
        step = steps[min(4, max(0, steps.index(self.step_of(client)) + ahead))]
        try:
            message = self.answer(step, client, self.request(step, client, how, at))
        except REFUSED:
            return
        if step == "upload" and (step, client) not in self.sent:
            self.run.vectors[client] = self.trained[client]
        before = self.sent.setdefault((step, client), message)
        assert before == message  # a second answer in a step is the first one
        self.stored[client].append(self.run.clients[client].dump())
        if step == "reveal":
            body = message[: -wire.SIGNATURE_BYTES]
            for owner, rest in wire.by_number(body, wire.REVEALED_BYTES, "shares").items():
                assert self.kinds.setdefault((client, owner), rest[0]) == rest[0]

    @rule(client=CLIENT, how=DAMAGE, at=st.integers(0, 400), back=st.integers(0, 4))
    def arrive(self, client, how, at, back):
        client %= self.run.count
        steps = ("advertise", "share", "upload", "confirm", "reveal")
        known = [s for s in steps if (s, client) in self.sent]
        if not known:
            return
        step = known[-1 - min(back // 3, len(known) - 1)]
        try:
            self.deliver(step, client, self.damaged(self.sent[step, client], how, at))
        except REFUSED:
            return

    @rule(client=CLIENT, back=st.integers(0, 6), again=st.booleans())
    def restart(self, client, back, again):
        """A client dies, and goes on from its last state or an older one; `again`: it trains."""
        client %= self.run.count
        states = self.stored[client]
        if not states:
            return
        old = self.run.clients[client]
        fresh = Client(
            client,
            run=old.run,
            round_number=old.round_number,
            identity=old._identity,
            directory=old._directory,
            ledger=read_again(old.ledger),
            rules=old.rules,
            random=self.run.random,
        )
        fresh.load(states[max(0, len(states) - 1 - back)])
        self.run.clients[client] = fresh
        self.restarts += 1
        if again:
            self.trained[client] = self.trained[client] + np.uint32(1)

    @rule(dies=st.booleans())
    def everybody(self, dies=False):
        """One undamaged step of all clients that can take it, after a restart if they die."""
        for client in range(self.run.count):
            if dies:
                self.restart(client=client, back=0, again=True)
            self.exchange(client=client, ahead=0, how="none", at=0)
            self.arrive(client=client, how="none", at=0, back=0)

    @precondition(lambda self: self.run.server.phase == "shares revealed")
    @rule()
    def open(self):
        try:
            self.opened = self.run.open().copy()
        except REFUSED:
            return

    @invariant()
    def an_opened_sum_is_exact(self):
        if self.opened is not None:
            assert np.array_equal(self.opened, self.run.total(self.run.server.uploaded))
            self.checked += 1


def read_again(ledger):
    """The ledger as it is read from disk: its entries and begun steps, and no more."""
    found = ClientLedger(ledger.number, threshold=ledger.threshold)
    found.entries, found.begun = list(ledger.entries), dict(ledger.begun)
    return found


def played(parties, run=None, **settings_):
    """Machines that were run; each has compared what it opened with the exact sum."""
    PARTIES[:] = [parties, run or {}]
    machines = []

    class Counted(AnyOrder):
        def __init__(self):
            super().__init__()
            machines.append(self)

    run_state_machine_as_test(Counted, settings=settings(deadline=None, **settings_))
    return machines


def check_sums(machines):
    """Some orders open a sum, which is exact; others open none, and every refusal had a name."""
    opened = [m for m in machines if m.opened is not None]
    assert opened
    assert len(opened) < len(machines)
    for m in opened:
        assert m.checked
        assert len(m.run.server.uploaded) >= 3
        assert np.array_equal(m.opened, m.run.total(m.run.server.uploaded))


GRAPHS = {
    "complete": {},
    "sparse": {
        "count": 10,
        "complete": False,
        "graph": FEW,
        "rules": ClientRules(threshold=3, graph=FEW, all_pairs_up_to=0),
    },
}


def test_any_order_gives_the_exact_sum_or_a_refusal_by_name(parties):
    machines = played(parties, max_examples=25, stateful_step_count=30, derandomize=True)
    check_sums(machines)
    assert any(m.restarts for m in machines if m.opened is not None)


def test_any_order_over_a_sparse_graph(parties):
    settings_ = {"max_examples": 12, "stateful_step_count": 24, "derandomize": True}
    machines = played(parties, GRAPHS["sparse"], **settings_)
    check_sums(machines)
    assert not all(m.run.server.graph.complete for m in machines if m.opened is not None)


@pytest.mark.nightly
@pytest.mark.parametrize("graph", GRAPHS)
def test_many_orders_give_exact_sums_or_refusals_by_name(parties, graph):
    check_sums(played(parties, GRAPHS[graph], max_examples=700, stateful_step_count=50))


def test_without_damage_all_steps_give_the_sum_of_all(parties):
    PARTIES[:] = [parties, {}]
    machine = AnyOrder()
    for _ in range(5):
        machine.everybody()
    machine.open()
    assert np.array_equal(machine.opened, machine.run.total(range(COUNT)))
