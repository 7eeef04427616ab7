"""What a client agrees to once: its model, its draw of neighbours, its ledger's records."""

import errno
from dataclasses import replace

import numpy as np
import pytest

from fedaudit.protections.secure_aggregation import (
    Budget,
    ClientLedger,
    ClientRules,
    Forged,
    LedgerUnwritten,
    Neighbours,
    OutOfOrder,
    QueryRefused,
    SplitView,
    WeakTerms,
)
from fedaudit.protections.secure_aggregation import ledger as ledgers
from fedaudit.protections.secure_aggregation.graph import avoidable
from fedaudit.protections.secure_aggregation.ledger import AnsweredQuery, BegunStep, alone

FEW = Neighbours(colluding=0.0, dropout=0.1, security=4, completion=2)


def test_clients_with_different_models_give_no_sum(parties):
    """A server sends the victim the model and everybody else one with dead units."""
    run = parties(10, about="a1").keys().share()
    for c, client in run.clients.items():
        inbox = run.server.inbox(c)
        if c == 0:
            client.upload(inbox, run.vectors[c], "a1")
            continue
        with pytest.raises(SplitView, match="something else to train with"):
            client.upload(inbox, run.vectors[c], "b2")


def test_a_roster_per_model_joins_nobody(parties):
    """The server states each client's own model: signatures then cover another roster."""
    run = parties(10, about="a1").keys()
    other = run.signed_roster(list(run.server._records.values()), {"about": "b2"})
    for c, client in run.clients.items():
        message = client.share(other if c else run.roster)
        if c:
            with pytest.raises(Forged):
                run.server.accept_shares(c, message)


def test_a_forged_record_ends_the_run_for_whoever_drew_it(parties):
    """Repeating the roster until a draw leaves the record out would choose neighbours."""
    rules = ClientRules(threshold=2, graph=FEW, all_pairs_up_to=0)
    run = parties(40, graph=FEW, complete=False, rules=rules).keys()
    records = list(run.server._records.values())
    forged = [r if r.number < 30 else replace(r, signature=bytes(64)) for r in records]
    roster = run.signed_roster(forged)
    refused = 0
    for client in list(run.clients.values())[:30]:
        try:
            client.share(roster)
        except Forged:
            refused += 1
            for again in (roster, roster, run.roster):
                with pytest.raises(OutOfOrder):
                    client.share(again)
    assert refused > 10


def test_a_step_that_is_not_on_disk_has_not_begun(tmp_path, monkeypatch):
    """The retry after a full disk passed without a record: masks could be used twice."""
    ledger = ClientLedger(0, threshold=2, path=tmp_path / "ledger")
    step = BegunStep(run="r", step="upload", request="a")
    calls = []

    def full(descriptor, content):
        calls.append(1)
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(ledgers, "write_all", full)
    for _ in range(2):
        with pytest.raises(LedgerUnwritten):
            ledger.begin(step)
    assert len(calls) == 2
    assert not ledger.begun
    monkeypatch.undo()
    ledger.begin(step)
    again = ClientLedger(0, threshold=2, path=tmp_path / "ledger")
    with pytest.raises(OutOfOrder):
        again.begin(replace(step, request="b"))


def test_an_upload_without_a_list_binds_its_client(parties):
    """A client that was never asked to confirm had no entry, and allowed any other sum."""
    ledgers_of = {c: ClientLedger(c, threshold=4) for c in range(10)}
    first = parties(10, threshold=4, ledgers=ledgers_of).keys().share().upload()
    first.confirm(range(1, 10))
    again = parties(10, threshold=4, ledgers=ledgers_of, identities=first.identities, run="b" * 32)
    half = range(5)
    again.keys(half).share(half).upload(half)
    with pytest.raises(QueryRefused, match="upload is open"):
        again.clients[0].confirm(again.uploads)
    (counted,) = ledgers_of[0].unconfirmed("another")
    assert counted.members == tuple(range(10))


def admitted(ledger, number, members, **more):
    ledger.admit(
        AnsweredQuery(round=number, run=f"{number} {len(members)}", members=members, **more)
    )


def test_members_that_nobody_saw_hide_no_difference_of_two_sums():
    """S with 20 invented members, then S without one client: by their numbers 21 clients apart."""
    everybody, without = tuple(range(300)), tuple(range(1, 280))
    ledger = ClientLedger(5, threshold=5)
    admitted(ledger, 1, everybody, unseen=20)
    with pytest.raises(QueryRefused, match="sparse graph"):
        admitted(ledger, 1, without, others=(everybody,), unseen=20)
    assert not alone(((everybody,), (without,)))
    assert 0 in alone(((everybody,), (without,)), 20)


def test_a_threshold_that_a_sparse_graph_cannot_keep_is_refused(parties):
    """More than half of the clients are surely in its sum, and no more than that."""
    rules = ClientRules(threshold=30, graph=FEW, all_pairs_up_to=0)
    run = parties(40, graph=FEW, complete=False, threshold=30, rules=rules).keys()
    with pytest.raises(WeakTerms, match="threshold"):
        run.clients[0].share(run.roster)


def test_how_many_members_may_be_unseen():
    """Drawn graphs, with the members that fewest clients drew: never more than are counted."""
    assert avoidable(300, 299, Neighbours()) == 0
    n, k, rng = 300, 38, np.random.default_rng(0)
    drawn = np.zeros((n, n), dtype=bool)
    for row in range(n):
        drawn[row, rng.choice(np.delete(np.arange(n), row), k, replace=False)] = True
    left, chosen = np.ones(n, dtype=bool), 0
    while True:  # greedy: leave out whom fewest of those left drew
        counts = drawn[left].sum(axis=0) + n * ~left
        best = int(counts.argmin())
        left &= ~drawn[:, best]
        left[best] = False
        if left.sum() <= n / 2:
            break
        chosen += 1
    assert 2 <= chosen <= avoidable(n, k, Neighbours())


def sketched(ledger, number, sketch):
    ledger.begin(
        BegunStep(run=f"r{number}", step="upload", request="", round=number, sketch=tuple(sketch))
    )


@pytest.mark.parametrize("sign", [1, -1])
def test_two_clients_left_out_of_a_round_with_equal_updates_are_not_opened(sign):
    """Ten, then ten without two: their sum, below the threshold. Units flipped negate updates."""
    values = np.random.default_rng(0).integers(-1000, 1000, 256)
    ledger = ClientLedger(5, threshold=5, budget=Budget())
    for number, members, sketch in ((1, range(10), values), (2, range(2, 10), sign * values)):
        sketched(ledger, number, sketch.tolist())
        query = AnsweredQuery(round=number, run=f"r{number}", members=tuple(members))
        if number == 1:
            ledger.admit(query)
            continue
        assert ledger.persistence(query) > 0.99
        with pytest.raises(QueryRefused, match=r"isolate|budget"):
            ledger.admit(query)
    other = np.random.default_rng(1).integers(-1000, 1000, 256)
    sketched(ledger, 3, other.tolist())
    ledger.admit(AnsweredQuery(round=3, run="r3", members=tuple(range(10))))
