"""Adversaries who tell different parties different things, or the same thing twice.

Each is refused by name or gets the exact sum of those in its list, and nothing else.
"""

from itertools import pairwise

import numpy as np
import pytest
from scipy import stats

from fedaudit.protections.secure_aggregation import (
    Client,
    ClientLedger,
    ClientRules,
    Forged,
    Malformed,
    Neighbours,
    OutOfOrder,
    QueryRefused,
    RunRefused,
    SplitView,
    TooFewLeft,
    WrongShares,
    keys,
    wire,
)
from fedaudit.protections.secure_aggregation.identity import ExchangeKey
from fedaudit.protections.secure_aggregation.ring import add_streams

FEW = Neighbours(colluding=0.0, dropout=0.1, security=4, completion=2)


def sparse(parties, count=40, **more):
    rules = ClientRules(threshold=2, graph=FEW, all_pairs_up_to=0)
    return parties(count, graph=FEW, complete=False, rules=rules, **more)


def looks_uniform(vector):
    counts = np.bincount(np.ascontiguousarray(vector).view(np.uint8), minlength=256)
    return stats.chisquare(counts).pvalue > 1e-4


# -- about survivors, the roster, the graph ------------------------------------------------------


def test_a_client_said_to_be_gone_stays_masked_though_its_vector_arrived(parties):
    """The server has the vector, and is given its mask key: the client's own mask stays on."""
    run = parties(7, size=5000).keys().share().upload()
    rest = range(1, 7)
    run.uploads = run.signed_uploads(rest)
    run.server._inside.remove(0)
    bits = wire.bitmap(rest, run.server.roster.numbers.tolist())
    run.server._signed = keys.upload_view(run.server._view, bits)
    masked = np.frombuffer(run.clients[0]._done["upload"][1][:-64], "<u4")
    run.server.masked = run.server.masked - masked
    run.confirm(rest).reveal(rest)
    seed, mask_key = run.clients[0]._seed, run.clients[0]._mask_key
    assert np.array_equal(run.open(), run.total(rest))
    assert run.server._restored(0) == mask_key  # what the server now knows
    assert looks_uniform(run.unmasked(0, bytes(32), mask_key))
    assert np.array_equal(run.unmasked(0, seed, mask_key), run.vectors[0])  # the twin


@pytest.mark.parametrize("complete", [True, False])
def test_two_worlds_from_the_shares_on_get_no_sum_of_either(parties, complete):
    """Each half hears that only its own members have shared, and those who upload all the same
    that only they have."""
    run = (parties(40, threshold=10) if complete else sparse(parties)).keys().share()
    everybody, size = run.server.roster.numbers.tolist(), 5
    few = 0
    for half in (range(20), range(20, 40)):
        bits, masked = wire.bitmap(half, everybody), []
        for c in half:
            body = run.server.inbox(c)[size : -wire.SIGNATURE_BYTES]
            sealed = wire.by_number(body, wire.SHARED_BYTES, "an inbox")
            own = run.pack({n: e for n, e in sealed.items() if n in half})
            try:
                run.clients[c].upload(run.sign_inbox(c, bits + own), run.vectors[c])
            except TooFewLeft:
                few += 1
                continue
            masked.append(c)
        assert complete != bool(masked)
        for c in masked:
            listed = wire.bitmap(masked, everybody)
            signed = keys.upload_view(run.clients[c]._view, listed)
            with pytest.raises(TooFewLeft, match="holders"):
                run.clients[c].confirm(listed + run.identities[-1].sign("uploads", signed))
    assert few == 40 if complete else few > 20


def test_a_client_that_is_told_another_graph_is_alone_with_it(parties):
    """All pairs for one client, neighbours for the others: its shares belong to no run of theirs,
    and nobody signs what it would have to see before it reveals."""
    run = sparse(parties).keys()
    records = [*run.server._records.values()]
    other = run.signed_roster(records, {"neighbours": 39, "quorum": 27})
    for c, client in run.clients.items():
        shares = client.share(other if c == 0 else run.roster)
        if c:
            run.server.accept_shares(c, shares)
        else:
            with pytest.raises(Forged, match="client 0"):
                run.server.accept_shares(0, shares)
    rest = range(1, 40)
    run.upload(rest).confirm(rest)
    lone, bits = run.clients[0], wire.bitmap(range(40), [*range(40)])
    given, own = wire.Roster(other), run.entries_of(lone._done["share"][1], wire.SHARED_BYTES)[0]
    context = keys.inbox_context(given.context, 0)
    aggregator = run.identities[-1]
    inbox = wire.signed(aggregator, "inbox", context, bits + run.pack({0: own}))
    lone.upload(inbox, run.vectors[0])
    lone.confirm(bits + aggregator.sign("uploads", keys.upload_view(lone._view, bits)))
    with pytest.raises(SplitView):
        lone.reveal(run.pack(run.server._views))
    run.reveal(rest)
    assert np.array_equal(run.open(), run.total(rest))


@pytest.mark.parametrize("copied", [True, False])
def test_an_invented_neighbour_gives_one_mask_more_and_no_vector(parties, copied):
    """Whoever says to have drawn a client is not looked up: a record without an identity, with the
    server's own key or another client's. Its mask comes on top of all others."""
    run = sparse(parties, size=5000)
    for c in range(40):
        run.server.enrol(c, run.clients[c].advertise())
    own = ExchangeKey(b"s" * 32)
    mask = run.server._records[1].mask if copied else own.public
    made_up = wire.Record(99, mask, own.public, b"c" * 32, b"i" * 32, b"s" * 64)
    run.server._records[99] = made_up
    run.roster = run.server.roster_message()
    for c, client in run.clients.items():
        try:
            run.server.accept_shares(c, client.share(run.roster))
        except Forged:  # whoever draws it looks
            continue
        victim = c
    run.server.inbox(victim)
    everybody = run.server.roster.numbers.tolist()
    bits = wire.bitmap([*run.server.sharing, 99], everybody)
    body = run.server.inbox(victim)[len(bits) : -wire.SIGNATURE_BYTES]
    made_up_shares = {99: bytes(wire.SHARED_BYTES - wire.NUMBER_BYTES)}
    message = run.sign_inbox(victim, bits + body + run.pack(made_up_shares))
    masked = run.clients[victim].upload(message, run.vectors[victim])
    vector = np.frombuffer(masked[: -wire.SIGNATURE_BYTES], "<u4").copy()
    if not copied:
        view, public = run.clients[victim]._view, run.server._records[victim].mask
        add_streams(vector, [(keys.pair_mask(own, public, view, victim, 99), -1)])
    assert 99 not in run.clients[victim]._held  # nothing to reveal of it
    assert looks_uniform(vector - run.vectors[victim])


def test_an_upload_that_is_counted_twice_gives_noise(parties):
    """Any combination of masked vectors but their plain sum keeps the masks."""
    run = parties(7, size=5000).keys().share().upload().confirm().reveal()
    twice = np.frombuffer(run.clients[2]._done["upload"][1][:-64], "<u4")
    run.server.masked = run.server.masked + twice
    assert looks_uniform(run.open() - run.total([*range(7), 2]))
    run.server._total, run.server.phase = None, "shares revealed"
    run.server.masked = sum(
        np.frombuffer(run.clients[c]._done["upload"][1][:-64], "<u4") for c in range(7)
    ).astype("<u4")
    assert np.array_equal(run.open(), run.total(range(7)))  # the twin


# -- shares under other names --------------------------------------------------------------------


@pytest.mark.parametrize("how", ["owners", "holders"])
def test_permuted_shares_open_nothing_and_make_nobody_a_liar(parties, how):
    """The server hands everybody sealed shares under other owners' numbers, or other holders'."""
    run = parties(7).keys().share()
    size, inboxes = 1, {c: run.server.inbox(c) for c in range(7)}
    opened = {c: i[size : -wire.SIGNATURE_BYTES] for c, i in inboxes.items()}
    entries = {c: wire.by_number(b, wire.SHARED_BYTES, "inbox") for c, b in opened.items()}
    for c in range(7):
        others = [n for n in range(7) if n != c]
        own = entries[c] if how == "owners" else entries[(c + 1) % 7]
        order = others[1:] + others[:1] if how == "owners" else others
        mixed = {n: own[m] for n, m in zip(others, order, strict=True)}
        mixed[c] = entries[c][c]  # a client looks for what it sealed for itself
        message = run.sign_inbox(c, inboxes[c][:size] + run.pack(mixed))
        run.server.accept_upload(c, run.clients[c].upload(message, run.vectors[c]))
    run.uploads = run.server.uploads_message()
    run.confirm().reveal()
    assert run.server.liars == {}
    with pytest.raises((TooFewLeft, WrongShares)):
        run.open()


def test_a_client_sends_and_reveals_in_its_own_name_alone(parties):
    run = sparse(parties).keys()
    shares = {c: client.share(run.roster) for c, client in run.clients.items()}
    with pytest.raises(Forged, match="client 1"):
        run.server.accept_shares(1, shares[2])
    with pytest.raises(Malformed, match="graph"):  # as if another one had drawn them
        run.server.accept_shares(1, run.sign(1, "shares", shares[2][: -wire.SIGNATURE_BYTES]))
    for c, message in shares.items():
        run.server.accept_shares(c, message)
    run.upload().confirm()
    revealed = run.clients[1].reveal(run.server.views(1))
    mine = run.entries_of(revealed)
    stranger = next(n for n in range(40) if n not in mine)
    for wrong in (
        {**mine, stranger: next(iter(mine.values()))},  # of a client that never dealt to it
        {**mine, 77: next(iter(mine.values()))},
        {n: bytes([1 - rest[0]]) + rest[1:] for n, rest in mine.items()},  # the other kind
    ):
        with pytest.raises(Malformed, match="not requested"):
            run.server.accept_reveal(1, run.sign(1, "reveal", run.pack(wrong)))
    run.reveal()
    assert np.array_equal(run.open(), run.total(range(40)))


def test_a_share_that_another_holder_revealed_is_no_share_of_one_s_own(parties):
    """Fewer honest shares than it takes, padded with copies: the copier is named."""
    run = parties(7).keys().share().upload().confirm()
    honest = {c: run.clients[c].reveal(run.server.views(c)) for c in range(7)}
    for c in range(7):
        copied = c in (4, 5, 6)
        body = run.pack(run.entries_of(honest[0 if copied else c]))
        run.server.accept_reveal(c, run.sign(c, "reveal", body) if copied else honest[c])
    assert set(run.server.liars) == {4, 5, 6}
    with pytest.raises(WrongShares, match="client 4"):
        run.open()


def test_a_second_vector_of_a_client_replaces_nothing(parties):
    run = parties(5).keys().share().upload()
    first = run.clients[1]._done["upload"][1]
    other = run.sign(1, "upload", bytes(len(first) - wire.SIGNATURE_BYTES))
    for late in (other, first):
        run.server.accept_upload(1, first)  # the same again is a retry
        if late == other:
            with pytest.raises(OutOfOrder, match="client 1 has sent"):
                run.server.accept_upload(1, late)
    run.confirm().reveal()
    assert np.array_equal(run.open(), run.total(range(5)))


def test_a_client_s_own_signature_is_not_that_of_another(parties):
    run = parties(7).keys().share().upload().confirm()
    own = run.server._views[0]
    three = {n: run.server._views[n] for n in (1, 2, 3)}
    for padded in ({**three, 0: own}, {**three, 4: own, 5: own, 6: own}):
        with pytest.raises(SplitView, match="signed the list"):
            run.clients[0].reveal(run.pack(padded))
    run.reveal()
    assert np.array_equal(run.open(), run.total(range(7)))


# -- two runs ------------------------------------------------------------------------------------


def test_two_runs_side_by_side_in_a_round_open_at_most_one(parties):
    """All and all but client 0, both masked before either list is shown."""
    ledgers = {c: ClientLedger(c, threshold=4) for c in range(10)}
    first = parties(10, threshold=4, ledgers=ledgers).keys()
    rest = range(1, 10)
    second = parties(10, threshold=4, ledgers=ledgers, identities=first.identities, seed=4)
    second.keys(rest)
    first.share().upload()
    second.share(rest).upload(rest)
    for run, asked in ((first, rest), (second, rest)):
        for c in asked:
            with pytest.raises(QueryRefused, match="upload is open"):
                run.clients[c].confirm(run.uploads)
    first.confirm([0])  # the one client that is in one run alone
    assert set(first.server._views) == {0}
    with pytest.raises(SplitView):
        first.clients[0].reveal(first.pack(first.server._views))


def replayed(parties, ledger, number, gone=(), **more):
    """A run in which client 0's random numbers are those that it drew before."""
    run = parties(7, seed=number, round=number, **more)
    old = run.clients[0]
    run.clients[0] = Client(
        0,
        run=old.run,
        round_number=number,
        identity=old._identity,
        directory=old._directory,
        ledger=ledger,
        rules=old.rules,
        random=np.random.default_rng(5).bytes,
    )
    left = [c for c in range(7) if c not in gone]
    run.keys().share().upload(left)
    for c in left:
        run.server.accept_view(c, run.clients[c].confirm(run.uploads))
    run.server.views(left[0])
    return run


@pytest.mark.parametrize("kept", [True, False])
def test_keys_that_a_copied_machine_draws_again_are_refused(parties, kept):
    """Round 1 restores the mask key of a client that is gone, round 2 the seed of the same one."""
    ledgers = [ClientLedger(0, threshold=2) for _ in range(2)]
    first = replayed(parties, ledgers[0], 1, gone=(0,)).reveal(range(1, 7))
    assert np.array_equal(first.open(), first.total(range(1, 7)))
    mask_key = first.server._restored(0)
    if kept:
        with pytest.raises(OutOfOrder, match="drawn again"):
            replayed(parties, ledgers[0], 2, identities=first.identities)
        return
    second = replayed(parties, ledgers[1], 2, identities=first.identities).reveal()
    assert np.array_equal(second.open(), second.total(range(7)))
    seed = second.server._restored(0)
    assert np.array_equal(second.unmasked(0, seed, mask_key), second.vectors[0])


def test_fresh_keys_in_every_run_are_not_refused(parties):
    ledger = ClientLedger(0, threshold=2)
    ledgers = {0: ledger, **{c: ClientLedger(c, threshold=2) for c in range(1, 5)}}
    for number in range(1, 4):
        run = parties(5, seed=number, round=number, ledgers=ledgers)
        run.keys().share().upload().confirm().reveal()
        assert np.array_equal(run.open(), run.total(range(5)))
    drawn = [set(b.keys) for b in ledger.begun.values() if b.keys]
    assert len(drawn) == 3
    assert all(len(k) == 3 for k in drawn)
    assert all(a.isdisjoint(b) for a, b in pairwise(drawn))


# -- lengths -------------------------------------------------------------------------------------


def wrong_lengths(message):
    """Cut at the borders of its fields and around, and grown by pieces of itself."""
    for at in {0, 1, 7, 8, 31, 32, 33, 63, 64, 65, 96, 100, len(message) // 2, len(message) - 1}:
        if at < len(message):
            yield message[:at]
    for more in (b"\0", bytes(64), message[-64:], message, bytes(1 << 16)):
        yield message + more


def refused(work, message):
    for wrong in wrong_lengths(message):
        with pytest.raises((RunRefused, TooFewLeft)):
            work(wrong)


@pytest.mark.parametrize("complete", [True, False])
def test_a_message_of_any_other_length_is_refused_in_every_step(parties, complete):
    """Both ways, truncated and oversized; then the right one is taken, and the sum is exact."""
    run = parties(5) if complete else sparse(parties)
    server, client, one = run.server, run.clients[1], 1
    refused(lambda m: server.enrol(one, m), client.advertise())
    run.keys()
    refused(client.share, run.roster)
    refused(lambda m: server.accept_shares(one, m), client.share(run.roster))
    run.share()
    inbox = server.inbox(one)
    refused(lambda m: client.upload(m, run.vectors[one]), inbox)
    masked = client.upload(inbox, run.vectors[one])
    refused(lambda m: server.accept_upload(one, m), masked)
    run.upload()
    refused(client.confirm, run.uploads)
    refused(lambda m: server.accept_view(one, m), client.confirm(run.uploads))
    run.confirm()
    for c in run.clients:
        views = server.views(c)
        if c == one:
            refused(client.reveal, views)
            revealed = client.reveal(views)
            refused(lambda m: server.accept_reveal(one, m), revealed)
        server.accept_reveal(c, run.clients[c].reveal(views))
    assert np.array_equal(run.open(), run.total(range(run.count)))
