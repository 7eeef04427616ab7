"""Sparse graphs: a server that parts a neighbourhood, or would like to choose it.

Real clients and a real server; what holds an attack off is left out in its twin, which succeeds.
"""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from fedaudit.protections.secure_aggregation import (
    Client,
    ClientRules,
    Forged,
    Neighbours,
    OutOfOrder,
    RunPlan,
    RunRefused,
    SplitView,
    TooFewLeft,
    WeakTerms,
    WrongShares,
    keys,
    wire,
)
from fedaudit.protections.secure_aggregation.graph import failures
from fedaudit.protections.secure_aggregation.identity import AGGREGATOR_NUMBER

FEW = Neighbours(colluding=0.0, dropout=0.1, security=4, completion=2)
COUNT = 40


class HalfQuorum(RunPlan):
    """A server that asks for half of the shares of a sparse graph."""

    def graph_of(self, clients):
        graph = super().graph_of(clients)
        return replace(graph, quorum=graph.neighbours // 2)


def sparse(parties, count=COUNT, plan=None, **more):
    run = parties(
        count,
        graph=more.pop("graph", FEW),
        complete=False,
        rules=ClientRules(threshold=2, graph=FEW, all_pairs_up_to=0),
        **more,
    )
    if plan is not None:
        run.server.plan = run.plan = plan(**vars(run.plan))
    return run.keys()


def holders_of(run):
    """Who holds whose shares: what the server routes."""
    return {c: set(shares) for c, shares in run.server._shares.items()}


def halves(holders, victim, quorum):
    """Clients to be told that the victim uploaded, and clients to be told that it did not.

    The first are as few as it takes for `quorum` of its holders to see enough of their own holders
    sign with them.
    """
    ready, first = [], {victim}
    for h in sorted(holders[victim] - {victim}, key=lambda h: -len(holders[h] & holders[victim])):
        if len(ready) == quorum:
            break
        missing = quorum - len(holders[h] & (first | {h}))
        more = sorted(holders[h] - first - {h})[: max(0, missing)]
        first |= {h, *more}
        ready.append(h)
    return first, set(holders) - first


def told(run, group, members, colluding=()):
    """What a group of clients reveals under one list: client -> its shares, or nothing.

    Colluding clients sign it too.
    """
    bits = run.signed_uploads(members)
    signed = keys.upload_view(run.server._view, bits[: -wire.SIGNATURE_BYTES])
    views, out = {c: run.identities[c].sign("view", signed) for c in colluding}, {}
    for c in group:
        try:
            views[c] = run.clients[c].confirm(bits)
        except (RunRefused, TooFewLeft):
            continue
    for c in set(views) - set(colluding):
        own = set(run.clients[c]._holders)
        given = run.pack({h: v for h, v in views.items() if h in own and h != c})
        try:
            out[c] = run.entries_of(run.clients[c].reveal(given))
        except SplitView:
            continue
    return out


def shares_of(revealed, owner, kind):
    return {
        h: shares[owner][1:]
        for h, shares in revealed.items()
        if owner in shares and shares[owner][0] == kind
    }


def split_neighbourhood(run, victim):
    """The victim's vector, if two lists restore both of its secrets; None if they do not."""
    run.share().upload()
    holders, quorum = holders_of(run), run.server.graph.quorum
    first, second = halves(holders, victim, quorum)
    everybody = set(range(run.count))
    seeds = shares_of(told(run, first, everybody), victim, wire.SEED_SHARE)
    masks = shares_of(told(run, second, everybody - {victim}), victim, wire.MASK_SHARE)
    if min(len(seeds), len(masks)) < quorum:
        return None
    secrets = []
    for found in (seeds, masks):
        some = dict(list(found.items())[:quorum])
        secrets.append(run.restored(some))
    return run.unmasked(victim, *secrets)


def test_a_parted_neighbourhood_opens_nobody(parties):
    """Two lists, to those whom half of a client's holders wait for and to all others."""
    for victim in (0, 17):
        run = sparse(parties, seed=victim)
        graph = run.server.graph
        assert not graph.complete
        assert 2 * graph.quorum > graph.neighbours + 1  # no client has two quorums of holders
        assert split_neighbourhood(run, victim) is None


def test_it_opens_a_client_where_half_of_the_shares_are_enough(parties, monkeypatch):
    with pytest.raises(WeakTerms, match="graph"):
        sparse(parties, plan=HalfQuorum).share([0])
    monkeypatch.setattr(Client, "_check_roster", lambda *_: None)
    for victim in (42, 17, 0):
        run = sparse(parties, 60, HalfQuorum, seed=victim)
        found = split_neighbourhood(run, victim)
        if found is not None:
            break
    assert np.array_equal(found, run.vectors[victim])


def test_two_worlds_with_lists_of_their_own_open_no_sum_of_either(parties):
    """A server that parts all clients in two, along their neighbours as far as it can."""
    run = sparse(parties)
    run.share().upload()
    holders = holders_of(run)
    near = np.zeros((COUNT, COUNT))
    for c, own in holders.items():
        near[c, sorted(own)] = near[sorted(own), c] = 1
    # the second eigenvector of the graph's Laplacian: the cut that parts the fewest neighbours
    _, vectors = np.linalg.eigh(np.diag(near.sum(axis=1)) - near)
    order = np.argsort(vectors[:, 1])
    worlds = [set(order[: COUNT // 2].tolist()), set(order[COUNT // 2 :].tolist())]
    revealed = [told(run, world, world) for world in worlds]
    quorum = run.server.graph.quorum
    for world, other, shares in zip(worlds, worlds[::-1], revealed, strict=True):
        across = [c for c in other if any(near[c, m] for m in world)]
        keys_known = [c for c in across if len(shares_of(shares, c, wire.MASK_SHARE)) >= quorum]
        assert len(across) > len(other) // 2
        assert not keys_known  # so the masks across the cut stay on every sum of one world


def test_the_server_chooses_no_neighbours(parties):
    """Everybody is drawn equally often, by the client's own randomness, whatever its number."""
    drawn, runs = np.zeros(20), 300
    run = parties(
        20, graph=FEW, complete=False, rules=ClientRules(threshold=2, graph=FEW, all_pairs_up_to=0)
    ).keys()
    client, given = run.clients[3], wire.Roster(run.roster)
    for _ in range(runs):
        own = set(client._draw_holders(given)) - {3}
        assert len(own) == run.server.graph.neighbours
        drawn[sorted(own)] += 1
    assert drawn[3] == 0
    others = np.delete(drawn, 3)
    assert stats.chisquare(others).pvalue > 1e-3


def test_a_second_roster_gets_no_second_draw(parties):
    """Asking until the neighbours suit it: a client draws once in a run."""
    run = sparse(parties, 20)
    client = run.clients[0]
    first = client.share(run.roster)
    records = [*run.server._records.values()]
    for other in (run.signed_roster(records[:-1]), run.signed_roster(records, {"length": 7})):
        with pytest.raises(OutOfOrder):
            client.share(other)
    assert client.share(run.roster) == first


def test_a_roster_for_one_client_alone_gives_it_no_part_in_the_sum(parties):
    """Fewer clients to draw from, more of them the server's: nobody else signs that roster."""
    run = sparse(parties, 30)
    some = [r for n, r in run.server._records.items() if n < 20]
    lone = run.signed_roster(some)
    for c in range(30):
        message = run.clients[c].share(lone if c == 0 else run.roster)
        if c == 0:
            with pytest.raises(Forged, match="client 0"):
                run.server.accept_shares(0, message)
        else:
            run.server.accept_shares(c, message)
    rest = range(1, 30)
    run.upload(rest).confirm(rest).reveal(rest)
    assert np.array_equal(run.open(), run.total(rest))
    with pytest.raises(Forged, match="inbox"):
        run.clients[0].upload(run.server.inbox(1), run.vectors[0])


def without(run, number, owner):
    """A client's inbox as a lying server signs it: without the shares of one owner."""
    size = (run.count + 7) // 8
    body = run.server.inbox(number)
    entries = wire.by_number(body[size : -wire.SIGNATURE_BYTES], wire.SHARED_BYTES, "an inbox")
    entries.pop(owner, None)
    return run.sign_inbox(number, body[:size] + run.pack(entries))


@pytest.mark.parametrize("gone", [(), (5,)])
def test_a_server_that_loses_one_client_s_shares_gets_no_sum(parties, gone):
    """Selectively, at all of its holders but one less than open it."""
    run = sparse(parties, 20)
    run.share()
    quorum, holders = run.server.graph.quorum, sorted(set(run.server._shares[5]) - {5})
    robbed = holders[quorum - 2 :]  # client 5 holds a share itself
    left = [c for c in range(20) if c not in gone]
    for c in left:
        inbox = without(run, c, 5) if c in robbed else run.server.inbox(c)
        run.server.accept_upload(c, run.clients[c].upload(inbox, run.vectors[c]))
    run.uploads = run.server.uploads_message()
    run.confirm(left).reveal(left)
    with pytest.raises((WrongShares, TooFewLeft), match="client 5"):
        run.open()


def test_a_client_that_signs_both_lists_helps_neither_beyond_its_own_shares(parties):
    """A colluder signs whatever it is shown; the holders of a victim still need `quorum` others."""
    run = sparse(parties)
    run.share().upload()
    quorum, holders = run.server.graph.quorum, holders_of(run)
    colluder = next(iter(holders[0] - {0}))
    everybody = set(range(COUNT))
    first, second = halves(holders, 0, quorum)
    for group, members in ((first, everybody), (second, everybody - {0})):
        list_ = run.signed_uploads(members)
        signed = keys.upload_view(run.server._view, list_[: -wire.SIGNATURE_BYTES])
        both = {colluder: run.identities[colluder].sign("view", signed)}
        waiting = [c for c in sorted(group - {colluder}) if colluder in holders[c]]
        for c in waiting[:3]:
            run.clients[c].confirm(list_)
            # repeated under other numbers, a signature stays one
            copies = dict.fromkeys(holders[c] - {c}, both[colluder])
            with pytest.raises(SplitView):
                run.clients[c].reveal(run.pack(copies))
    assert AGGREGATOR_NUMBER not in holders[0]


def test_a_client_that_draws_its_friends_stops_one_run_and_is_named(parties):
    """Nobody sees how a client drew. Its friends keep its shares for themselves: no sum, and the
    next run is one without it."""
    run = sparse(parties)
    liar, count = run.clients[3], run.server.graph.neighbours
    friends = [3, *range(COUNT - count, COUNT)]
    given = wire.Roster(run.roster)
    liar._draw_holders = lambda _: {n: given.record(n) for n in friends}
    run.share().upload().confirm()
    for c in range(COUNT):
        entries = run.entries_of(run.clients[c].reveal(run.server.views(c)))
        if c in friends:
            entries.pop(3, None)
        run.server.accept_reveal(c, run.sign(c, "reveal", run.pack(entries)))
    with pytest.raises(WrongShares, match="client 3"):
        run.open()
    again, rest = parties(COUNT, seed=8, round=2, identities=run.identities), range(COUNT)
    rest = [c for c in rest if c != 3]
    again.keys(rest).share(rest).upload(rest).confirm(rest).reveal(rest)
    assert np.array_equal(again.open(), again.total(rest))


class AlmostAllPairs(RunPlan):
    """A server that leaves out one neighbour of each client, and asks for fewer shares with it."""

    def graph_of(self, clients):
        return failures(clients, clients - 2, 17, self.graph)


@pytest.mark.parametrize("asked", [{}, {"all_pairs_up_to": 0}])
def test_a_graph_for_many_is_refused_by_a_few_clients(parties, asked):
    """Of thirty clients ten collude, as all pairs allow. A sparse graph counts on one in twenty, so
    the server calls its graph sparse; clients that accept it are opened."""
    run = parties(30, threshold=4, rules=ClientRules(threshold=4, **asked))
    run.server.plan = run.plan = AlmostAllPairs(**vars(run.plan))
    run.keys()
    if not asked:
        with pytest.raises(WeakTerms, match="graph"):
            run.share([0])
        return
    run.share().upload()
    everybody, secrets = set(range(30)), []
    worlds = ({*range(10)}, everybody), ({*range(10, 20)}, everybody - {0})
    for kind, (half, members) in enumerate(worlds):
        found = shares_of(told(run, half, members, range(20, 30)), 0, kind)
        held = {c: run.clients[c]._held.get(0) for c in range(20, 30)}
        part = slice(33 * kind, 33 * kind + 33)
        found |= {c: pair[part] for c, pair in held.items() if pair}
        secrets.append(run.restored(dict(list(found.items())[: run.server.graph.quorum])))
    assert np.array_equal(run.unmasked(0, *secrets), run.vectors[0])
