"""The table of docs/secure-aggregation.md: every row is played by an adversary.

Where an attack is held off, the same attack without what holds it off opens a client: an attack
that could not succeed would prove nothing.
"""

import numpy as np
import pytest

from fedaudit.errors import UsageError
from fedaudit.protections.secure_aggregation import (
    Budget,
    ClientLedger,
    ClientRules,
    Directory,
    Forged,
    Identity,
    Malformed,
    Neighbours,
    OutOfOrder,
    QueryRefused,
    RunRefused,
    SplitView,
    TooFewLeft,
    TrustOnFirstUse,
    WeakTerms,
    WrongShares,
    keys,
    wire,
)
from fedaudit.protections.secure_aggregation.client import NONCE, _aead
from fedaudit.protections.secure_aggregation.identity import AGGREGATOR_NUMBER, ExchangeKey
from fedaudit.protections.secure_aggregation.ledger import AnsweredQuery

OUTSIDE = Identity(b"o" * 32)
"""An identity that nobody knows."""


def split_lists(run, victim=0):
    """Tell one half that the victim uploaded and the other that it did not; its vector, or raise.

    The victim itself hears that it uploaded.
    """
    run.keys().share().upload()
    everybody = list(range(run.count))
    halves = [everybody[: run.count // 2], everybody[run.count // 2 :]]
    lists = [everybody, [c for c in everybody if c != victim]]
    shares = []
    for half, members in zip(halves, lists, strict=True):
        message = run.signed_uploads(members)
        views = {c: run.clients[c].confirm(message) for c in half}
        got = {}
        for c in half:
            others = {h: v for h, v in views.items() if h != c}
            got[c] = run.entries_of(run.clients[c].reveal(run.pack(others)))[victim][1:]
        shares.append(got)
    seed, mask_key = (run.restored(s) for s in shares)
    return run.unmasked(victim, seed, mask_key)


# -- a lying server ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "quorum"), [(10, "two_thirds"), (10, "majority"), (9, "majority")]
)
def test_two_lists_of_uploads_open_nobody(parties, count, quorum):
    with pytest.raises(SplitView, match="signed the list"):
        split_lists(parties(count, threshold=5 if count == 10 else 4, quorum=quorum))


def test_two_lists_open_a_client_where_the_threshold_alone_is_asked_for(parties):
    run = parties(10, threshold=5, quorum="threshold")
    assert np.array_equal(split_lists(run), run.vectors[0])


def with_colluders(run, colluders, victim=0):
    """The same with clients that sign both lists and hand over all of their shares."""
    run.keys().share().upload()
    everybody = range(run.count)
    honest = [c for c in everybody if c not in colluders]
    halves = [honest[: (len(honest) + 1) // 2], honest[(len(honest) + 1) // 2 :]]
    lists = [[*everybody], [c for c in everybody if c != victim]]
    secrets = []
    for kind, (half, members) in enumerate(zip(halves, lists, strict=True)):
        message = run.signed_uploads(members)
        signed = keys.upload_view(run.server._view, message[:-64])
        views = {c: run.clients[c].confirm(message) for c in half}
        views |= {c: run.identities[c].sign("view", signed) for c in colluders}
        held = {c: run.clients[c]._held[victim] for c in colluders}
        got = {c: held[c][33 * kind : 33 * kind + 33] for c in colluders}
        for c in half:
            others = run.pack({h: v for h, v in views.items() if h != c})
            revealed = run.clients[c].reveal(others)
            got[c] = run.entries_of(revealed)[victim][1:]
        secrets.append(run.restored(dict(list(got.items())[: run.server.graph.quorum])))
    return run.unmasked(victim, *secrets)


def test_a_third_may_collude_with_the_server_and_more_open_a_client(parties):
    """Of nine clients with seven shares to open, 2t - n - 1 = 4 gain nothing; five do."""
    with pytest.raises(SplitView):
        with_colluders(parties(9, threshold=4), colluders=[5, 6, 7, 8])
    run = parties(9, threshold=4)
    opened = with_colluders(run, colluders=[4, 5, 6, 7, 8])
    assert np.array_equal(opened, run.vectors[0])


def test_less_than_two_thirds_is_refused_unless_it_is_asked_for_by_name(parties):
    for asked in ("majority", "threshold"):
        run = parties(9, threshold=3, quorum=asked, rules=ClientRules(threshold=3)).keys()
        with pytest.raises(WeakTerms, match="quorum"):
            run.share()
    run = parties(9, threshold=3, rules=ClientRules(threshold=4)).keys()
    with pytest.raises(WeakTerms, match="threshold"):
        run.share()
    few = Neighbours(security=1, completion=1)
    run = parties(
        60, graph=few, complete=False, rules=ClientRules(threshold=2, all_pairs_up_to=0)
    ).keys([*range(60)])
    assert not run.server.graph.complete
    with pytest.raises(WeakTerms, match="graph"):
        run.share([0])


def forged_roster(run, victim=0):
    """A run in which the server plays everybody but the victim: its vector, or raise.

    `run` has the server's own identities for all others.
    """
    run.keys().share().upload().confirm().reveal()
    total = run.open()
    return total - run.total([c for c in range(run.count) if c != victim])


def test_a_roster_of_the_servers_own_keys_is_refused(parties):
    honest = parties(5)
    mine = {
        n: i if n in (0, AGGREGATOR_NUMBER) else Identity(bytes([n]) * 32)
        for n, i in honest.identities.items()
    }
    lying = parties(5, identities=mine)
    lying.clients[0]._directory = Directory(honest.known)
    with pytest.raises(Forged, match="identity of client 1"):
        forged_roster(lying)


def test_without_a_directory_it_is_believed_with_a_warning(parties):
    lying = parties(5)
    lying.clients[0]._directory = Directory(None)
    with pytest.warns(TrustOnFirstUse, match="on trust"):
        assert np.array_equal(forged_roster(lying), lying.vectors[0])


def test_a_pinned_key_is_kept_over_runs_and_a_new_one_refused(tmp_path):
    with pytest.warns(TrustOnFirstUse):
        Directory(None, path=tmp_path / "known.json").check(3, OUTSIDE.public)
    again = Directory(None, path=tmp_path / "known.json")
    again.check(3, OUTSIDE.public)  # no warning now
    with pytest.raises(Forged, match="client 3"):
        again.check(3, Identity(b"x" * 32).public)
    with pytest.raises(Forged, match="client 4"):
        Directory({3: OUTSIDE.public}).check(4, OUTSIDE.public)


def test_an_invented_client_is_refused(parties):
    """`reveal` for a client 99 that the server made up once opened another one."""
    run = parties(4)
    for c in range(4):
        run.server.enrol(c, run.clients[c].advertise())
    with pytest.raises(Forged, match="client 99"):
        run.server.enrol(99, run.record(99, OUTSIDE))
    run.server._directory = Directory({**run.known, 99: OUTSIDE.public})
    run.server.enrol(99, run.record(99, OUTSIDE))
    with pytest.raises(Forged, match="client 99"):
        run.clients[0].share(run.server.roster_message())


def test_keys_of_another_run_or_client_are_refused(parties):
    run, before = parties(5, seed=1), parties(5, seed=1)
    own = {c: wire.Record.from_bytes(client.advertise()) for c, client in run.clients.items()}
    old = wire.Record.from_bytes(before.clients[1].advertise())
    swapped = wire.Record(1, own[2].mask, own[1].channel, *(b"c" * 32, own[1].identity, b"s" * 64))
    for wrong in (old, swapped):
        with pytest.raises(Forged, match="keys of client 1"):
            run.clients[0].share(run.signed_roster([*({**own, 1: wrong}.values())]))
    other = wire.Record.from_bytes(run.record(0, run.identities[0]))
    with pytest.raises(Forged, match="own record"):
        run.clients[0].share(run.signed_roster([*({**own, 0: other}.values())]))
    for terms in ({"round": 2}, {"run": "f" * 32}):
        with pytest.raises(Malformed, match="another run or round"):
            run.clients[0].share(run.signed_roster([*own.values()], terms))
    for terms in ({"quorum": 9}, {"quorum": 0}, {"neighbours": 9}, {"neighbours": 0}):
        with pytest.raises(RunRefused):
            run.clients[0].share(run.signed_roster([*own.values()], terms))
    run.clients[0].share(run.signed_roster([*own.values()]))


def test_messages_of_somebody_else_than_the_aggregator_are_refused(parties):
    run = parties(5).keys()
    body = run.roster[wire.KEY_BYTES + wire.SIGNATURE_BYTES :]
    forged = OUTSIDE.sign("roster", wire.fingerprint("roster", body))
    for head in (OUTSIDE.public + forged, run.known[AGGREGATOR_NUMBER] + forged):
        with pytest.raises(Forged):
            run.clients[0].share(head + body)
    run.share().upload()
    with pytest.raises(Forged, match="list of uploads"):
        run.clients[0].confirm(run.uploads[:-64] + OUTSIDE.sign("uploads", b""))


@pytest.mark.parametrize("members", [[1, 2, 3, 4], [0, 1]])
def test_lists_that_leave_clients_out(parties, members):
    run = parties(5, threshold=3).keys().share().upload()
    with pytest.raises((Malformed, TooFewLeft)):
        run.clients[0].confirm(run.signed_uploads(members))


def test_a_list_with_a_client_that_has_not_shared_is_refused(parties):
    run = parties(6).keys().share(range(5)).upload(range(5))
    with pytest.raises(Malformed, match="without keys"):
        run.clients[0].confirm(run.signed_uploads(range(6)))


def test_a_second_list_after_the_first_is_refused(parties):
    run = parties(8).keys().share().upload().confirm()
    with pytest.raises(RunRefused, match="confirm is not possible"):
        run.clients[0].confirm(run.signed_uploads(range(7)))


def test_two_lists_of_those_who_shared_give_no_sum(parties):
    """The masks are bound to the list: another one at a single client, and nothing cancels."""
    run = parties(7, size=2000).keys().share()
    for c in range(7):
        inbox = run.server.inbox(c)
        if c == 0:  # client 0 hears that client 6 has not shared
            bits = wire.bitmap(range(6), run.server.roster.numbers.tolist())
            entries = run.entries_of(inbox[1:], wire.SHARED_BYTES)
            inbox = run.sign_inbox(0, bits + run.pack({n: e for n, e in entries.items() if n != 6}))
        masked = run.clients[c].upload(inbox, run.vectors[c])
        if c == 0:  # an honest server refuses what was masked for another list; this one does not
            with pytest.raises(Forged, match="upload of client 0"):
                run.server.accept_upload(0, masked)
            masked = run.sign(0, "upload", masked[: -wire.SIGNATURE_BYTES])
        run.server.accept_upload(c, masked)
    uploads = run.server.uploads_message()
    with pytest.raises((Malformed, Forged)):
        run.clients[0].confirm(uploads)
    for c in range(1, 7):
        run.server.accept_view(c, run.clients[c].confirm(uploads))
    for c in range(1, 7):
        run.server.accept_reveal(c, run.clients[c].reveal(run.server.views(c)))
    wrong = run.open() - run.total(range(7))
    assert (wrong > 2**24).mean() > 0.9  # client 0 stays masked


def test_sealed_shares_lost_or_altered_on_the_way_harm_nobody(parties):
    run = parties(7).keys().share()
    for c in range(7):
        inbox = run.server.inbox(c)
        if c < 2:  # two holders cannot read what client 3 sealed for them
            entries = run.entries_of(inbox[1:], wire.SHARED_BYTES)
            entries[3] = bytes(len(entries[3]))
            inbox = run.sign_inbox(c, inbox[:1] + run.pack(entries))
        run.server.accept_upload(c, run.clients[c].upload(inbox, run.vectors[c]))
    run.uploads = run.server.uploads_message()
    run.confirm().reveal()
    assert np.array_equal(run.open(), run.total(range(7)))


# -- lying clients -------------------------------------------------------------------------------


def lie(run, liar, *owners):
    """What a client reveals, with a wrong share of each owner."""
    entries = run.entries_of(run.clients[liar].reveal(run.server.views(liar)))
    for owner in owners:
        entries[owner] = entries[owner][:5] + bytes([entries[owner][5] ^ 1]) + entries[owner][6:]
    return run.sign(liar, "reveal", run.pack(entries))


def test_a_wrong_share_is_left_out_and_its_sender_named(parties):
    run = parties(7).keys().share().upload(range(6)).confirm()
    run.server.accept_reveal(0, lie(run, 0, 3, 5))
    run.reveal(range(1, 6))
    assert np.array_equal(run.open(), run.total(range(6)))
    assert run.server.liars == {0: ["share of client 3", "share of client 5"]}


def test_too_many_wrong_shares_are_a_refusal_that_names_them(parties):
    run = parties(7).keys().share().upload().confirm()
    for c in range(3):
        run.server.accept_reveal(c, lie(run, c, 3))
    run.reveal(range(3, 7))
    with pytest.raises(WrongShares, match=r"client 3(.|\n)*client 0(.|\n)*client 1(.|\n)*client 2"):
        run.open()


@pytest.mark.parametrize("gone", [[], [3]])
def test_shares_of_another_secret_than_the_published_one_are_refused(parties, gone):
    run = parties(7).keys()
    liar = run.clients[3]
    liar._seed = liar._mask_key = bytes(32)  # after its keys and commitment went out
    run.share().upload([c for c in range(7) if c not in gone]).confirm()
    run.reveal()
    with pytest.raises(WrongShares, match="client 3"):
        run.open()


@pytest.mark.parametrize("name", ["mask", "channel"])
def test_weak_and_copied_keys_are_refused_before_they_stop_anybody(parties, name):
    run = parties(5)
    run.server.enrol(0, run.clients[0].advertise())
    copied = getattr(wire.Record.from_bytes(run.clients[0].advertise()), name)
    for key, words in ((bytes(32), "unusable"), (copied, "another client")):
        with pytest.raises(Malformed, match=words):
            run.server.enrol(1, run.record(1, run.identities[1], **{name: key}))
    run.server.enrol(1, run.clients[1].advertise())


def test_a_signature_of_another_list_is_refused_by_name(parties):
    run = parties(5).keys().share().upload()
    with pytest.raises(Forged, match="client 2 did not sign"):
        run.server.accept_view(2, run.identities[2].sign("view", b"another"))
    run.confirm().reveal()
    assert np.array_equal(run.open(), run.total(range(5)))


def test_signatures_that_the_server_makes_up_do_not_count(parties):
    run = parties(5).keys().share().upload()
    view = run.clients[0].confirm(run.uploads)
    made_up = {c: OUTSIDE.sign("view", run.clients[0]._signed) for c in range(1, 5)}
    for views in (made_up, dict.fromkeys(range(1, 5), view)):
        with pytest.raises(SplitView):
            run.clients[0].reveal(run.pack(views))


def test_a_client_that_lies_about_its_own_update_is_not_noticed(parties):
    """No protocol of this kind checks inputs; a bound on every number is all there is."""
    run = parties(5)
    before = run.total(range(5))
    run.vectors[4] = run.vectors[4] + np.uint32(10**6)
    run.keys().share().upload().confirm().reveal()
    assert np.array_equal(run.open(), before + np.uint32(10**6))


# -- several sums --------------------------------------------------------------------------------


class Rounds:
    """Runs with the same identities and ledgers; every query is a run of the clients asked."""

    def __init__(self, parties, tmp_path, count=10, threshold=4, **ledger):
        self.parties, self.path, self.count, self.threshold = parties, tmp_path, count, threshold
        self.settings = ledger
        self.identities, self.seed = None, 0

    def ask(self, number, members, **terms):
        ledgers = {  # read from disk every time: each run is after a restart
            c: ClientLedger(
                c, threshold=self.threshold, path=self.path / f"{c}.jsonl", **self.settings
            )
            for c in range(self.count)
        }
        self.seed += 1
        run = self.parties(
            self.count,
            threshold=self.threshold,
            seed=self.seed,
            round=number,
            ledgers=ledgers,
            identities=self.identities,
            **terms,
        )
        self.identities, self.last = run.identities, run
        values = np.random.default_rng(1000 + number)  # an update belongs to its round
        for vector in run.vectors.values():
            vector[:] = values.integers(0, 1000, len(vector))
        run.keys(members).share(members).upload(members)
        refused = None
        for c in members:  # everybody is asked: who is not counts the sum as open
            try:
                run.confirm([c])
            except QueryRefused as error:
                refused = refused or error
        if refused:
            raise refused
        run.reveal()
        return run.open()


def test_the_clients_refuse_to_isolate_one_another_after_a_restart(parties, tmp_path):
    rounds = Rounds(parties, tmp_path)
    rounds.ask(1, range(10))
    with pytest.raises(QueryRefused, match="isolate"):
        rounds.ask(1, range(1, 10), others=(tuple(range(10)),))
    with pytest.raises(QueryRefused, match="upload is open"):
        rounds.ask(1, range(1, 10))  # others could still sign the list that it declined
    rounds.ask(2, range(10))  # other updates
    with pytest.raises(QueryRefused, match="does not list"):
        rounds.ask(2, range(1, 10))  # and an aggregator that keeps silent about the first
    rounds.ask(3, range(1, 10))
    with pytest.raises(QueryRefused, match="earlier round"):
        rounds.ask(1, range(1, 10))


def test_the_same_sums_are_given_where_the_rule_is_given_up_by_name(parties, tmp_path):
    rounds = Rounds(parties, tmp_path, isolating=True, budget=None)
    assert np.array_equal(rounds.ask(1, range(10)), rounds.last.total(range(10)))
    assert np.array_equal(rounds.ask(1, range(1, 10)), rounds.last.total(range(1, 10)))


HIDDEN = [(0, 1, 2, 3, 4), (5, 6, 7, 8)]
"""Two disjoint groups: with the sum of all they leave client 9 alone."""


def test_a_client_can_insist_on_a_list_that_is_final(parties, tmp_path):
    everybody, half = tuple(range(10)), tuple(range(5))
    rounds = Rounds(parties, tmp_path, only_final=True)
    with pytest.raises(QueryRefused, match="final list"):
        rounds.ask(1, everybody)
    total = rounds.ask(2, everybody, others=(half,), final=True)
    assert np.array_equal(total, rounds.last.total(everybody))
    assert np.array_equal(rounds.ask(2, half, others=(everybody,)), rounds.last.total(half))
    with pytest.raises(QueryRefused, match="second final list"):
        rounds.ask(2, half, others=(everybody,), final=True)


def test_a_sum_hidden_from_a_disjoint_group_needs_a_final_list(parties, tmp_path):
    everybody = tuple(range(10))
    open_ended = Rounds(parties, tmp_path / "open", budget=None)
    (tmp_path / "open").mkdir()
    total = open_ended.ask(1, everybody)
    first = open_ended.ask(1, HIDDEN[0], others=(everybody,))
    second = open_ended.ask(1, HIDDEN[1], others=(everybody,))  # nobody sees all three
    assert np.array_equal(total - first - second, open_ended.last.vectors[9])  # not held off
    (tmp_path / "final").mkdir()
    final = Rounds(parties, tmp_path / "final", budget=None)
    final.ask(1, everybody, others=(HIDDEN[0],), final=True)
    final.ask(1, HIDDEN[0], others=(everybody,))
    with pytest.raises(QueryRefused, match="final list"):
        final.ask(1, HIDDEN[1], others=(everybody,))


def balanced(rng, count=10):
    order = rng.permutation(count)
    return tuple(sorted(order[: count // 2].tolist())), tuple(sorted(order[count // 2 :].tolist()))


def answered(plan, rounds):
    """Rounds that a client agrees to, of a plan of groups by round."""
    ledger = ClientLedger(0, threshold=5, budget=Budget())
    for number in range(1, rounds + 1):
        query = AnsweredQuery(
            round=number,
            run=str(number),
            members=tuple(range(10)),
            others=plan(number),
            final=True,
        )
        try:
            ledger.admit(query)
        except QueryRefused:
            return number - 1
    return rounds


def test_fresh_partitions_end_at_the_budget_and_five_cycled_ones_do_not():
    rng = np.random.default_rng(0)
    five = [balanced(rng) for _ in range(5)]
    assert answered(lambda number: five[number % 5], 200) == 200
    assert 5 < answered(lambda _: balanced(rng), 200) < 40


# -- messages on their way, rosters, restarts ----------------------------------------------------


@pytest.mark.parametrize("step", ["share", "upload", "reveal"])
def test_a_message_altered_on_its_way_is_refused_and_the_right_one_still_taken(parties, step):
    """A flipped bit in an upload was once another update, summed without a word."""
    run = parties(5)
    run.keys()
    steps = {
        "share": (lambda c: run.clients[c].share(run.roster), run.server.accept_shares),
        "upload": (
            lambda c: run.clients[c].upload(run.server.inbox(c), run.vectors[c]),
            run.server.accept_upload,
        ),
        "confirm": (lambda c: run.clients[c].confirm(run.uploads), run.server.accept_view),
        "reveal": (
            lambda c: run.clients[c].reveal(run.server.views(c)),
            run.server.accept_reveal,
        ),
    }
    for name, (make, accept) in steps.items():
        if name == "confirm":
            run.uploads = run.server.uploads_message()
        messages = {c: make(c) for c in range(5)}
        for c, message in messages.items():
            if name == step:
                flipped = message[:9] + bytes([message[9] ^ 4]) + message[10:]
                for wrong in (flipped, messages[(c + 1) % 5]):
                    with pytest.raises(Forged, match=f"of client {c}"):
                        accept(c, wrong)
            accept(c, message)
    assert np.array_equal(run.open(), run.total(range(5)))


def test_an_inbox_that_lost_an_entry_is_refused(parties):
    """Without the entry a client leaves out a mask that its partner adds: a wrong sum."""
    few = Neighbours(colluding=0.0, dropout=0.1, security=4, completion=2)
    run = parties(
        20, graph=few, complete=False, rules=ClientRules(threshold=2, graph=few, all_pairs_up_to=0)
    )
    run.keys().share()
    assert not run.server.graph.complete
    inbox = run.server.inbox(0)
    lost = inbox[: -wire.SIGNATURE_BYTES - wire.SHARED_BYTES] + inbox[-wire.SIGNATURE_BYTES :]
    for wrong in (lost, run.server.inbox(1)):
        with pytest.raises(Forged, match="inbox"):
            run.clients[0].upload(wrong, run.vectors[0])
    run.upload().confirm().reveal()
    assert np.array_equal(run.open(), run.total(range(20)))


def resealed(run, dealer, holders):
    """What a client sends that seals other shares for some holders than its digests say."""
    entries = run.entries_of(run.clients[dealer].share(run.roster), wire.SHARED_BYTES)
    context, cut = run.server._context, 2 * wire.DIGEST_BYTES
    channel = ExchangeKey(run.clients[dealer]._channel)
    for h in holders:
        public = run.server.roster.record(h).channel
        key = keys.seal_key(channel, public, context, dealer, h)
        entries[h] = entries[h][:cut] + _aead(key).encrypt(NONCE, bytes(66), context)
    return run.sign(dealer, "shares", run.pack(entries))


@pytest.mark.parametrize(("holders", "summed"), [((1, 2), True), ((1, 2, 4), False)])
def test_shares_that_do_not_fit_their_digests_blame_their_owner(parties, holders, summed):
    """The holders were once called liars for passing on what they were sent."""
    run = parties(7).keys()
    for c in range(7):
        message = resealed(run, 3, holders) if c == 3 else run.clients[c].share(run.roster)
        run.server.accept_shares(c, message)
    run.upload().confirm().reveal()
    assert run.server.liars == {}
    if summed:
        assert np.array_equal(run.open(), run.total(range(7)))
    else:
        with pytest.raises(WrongShares, match="client 3"):
            run.open()


def test_shares_of_no_single_polynomial_are_refused_with_their_owner(parties):
    run = parties(7).keys()
    dealer, entries = run.clients[3], {}
    holders = dealer._draw_holders(run.server.roster)
    dealer._roster, dealer._holders = run.server.roster, holders
    channel, context = ExchangeKey(dealer._channel), run.server._context
    for h, record in holders.items():
        pair = b"\x00" + run.random(32) + b"\x00" + run.random(32)
        key = keys.seal_key(channel, record.channel, context, 3, h)
        sealed = _aead(key).encrypt(NONCE, pair, context)
        entries[h] = keys.pair_digests(context, pair) + sealed
    made_up = run.sign(3, "shares", run.pack(entries))
    dealer._done["share"] = (b"", made_up)
    for c in range(7):
        run.server.accept_shares(c, made_up if c == 3 else run.clients[c].share(run.roster))
    run.upload().confirm().reveal()
    with pytest.raises(WrongShares, match="client 3"):
        run.open()


def test_a_roster_of_a_former_run_is_refused(parties):
    before = parties(5)
    before.keys().share().upload().confirm().reveal()
    now = parties(5, identities=before.identities, ledgers=before.ledgers, round=2, seed=9)
    for c in range(5):
        now.clients[c].advertise()
    with pytest.raises(Malformed, match="another run or round"):
        now.clients[0].share(before.roster)
    # the same run label again: whoever answered in it does not take part
    again = parties(5, identities=before.identities, ledgers=before.ledgers, run=before.plan.run)
    with pytest.raises(OutOfOrder, match="not answered"):
        again.clients[0].advertise()
    # and whoever did not has other keys now than those in the old roster
    fresh = parties(5, identities=before.identities, run=before.plan.run, seed=9)
    fresh.clients[0].advertise()
    with pytest.raises(Forged, match="own record"):
        fresh.clients[0].share(before.roster)


def test_withheld_signatures_stop_a_run_and_still_count_against_the_next(parties):
    """A server that asks for signatures and says that too few came: the sum may be known to it."""
    run = parties(10, threshold=4).keys().share().upload().confirm()
    with pytest.raises(SplitView):
        run.clients[0].reveal(run.server.views(0)[: 72 * 3])
    later = parties(10, threshold=4, identities=run.identities, ledgers=run.ledgers, seed=5)
    members = range(1, 10)
    later.keys(members).share(members).upload(members)
    with pytest.raises(QueryRefused, match="does not list"):
        later.confirm()


def test_a_roster_filled_with_colluders_is_held_off_by_the_threshold_alone(parties):
    """The aggregator chooses who takes part. Five of seven collude: a threshold that counts on
    three honest ones must be eight; with five, the sum is that of two clients."""
    run = parties(7, threshold=5).keys().share().upload().confirm().reveal()
    known = run.total(range(2, 7))  # colluders tell their vectors
    assert np.array_equal(run.open() - known, run.total([0, 1]))
    careful = parties(7, threshold=5, rules=ClientRules(threshold=5 + 3)).keys()
    with pytest.raises(TooFewLeft):
        careful.clients[0].share(careful.roster)


def test_one_key_under_two_numbers_is_refused(tmp_path):
    """A client that counts twice, or an aggregator that is a client too."""
    with pytest.raises(UsageError, match="same public key"):
        Directory({3: OUTSIDE.public, 4: OUTSIDE.public})
    first = Directory(None)
    with pytest.warns(TrustOnFirstUse):
        first.check(3, OUTSIDE.public)
    with pytest.raises(Forged, match="identity of party 3"):
        first.check(AGGREGATOR_NUMBER, OUTSIDE.public)


def test_two_aggregators_with_one_identity_get_one_sum(parties, tmp_path):
    """A server that was copied, or restored from a backup: each knows of its own runs alone."""
    rounds, copy = (Rounds(parties, tmp_path, threshold=4) for _ in range(2))
    rounds.ask(1, range(10))
    copy.identities, copy.seed = rounds.identities, 50
    with pytest.raises(QueryRefused, match="does not list"):
        copy.ask(1, range(1, 10))


def test_a_sum_per_round_that_leaves_one_client_out_in_turn_ends(parties, tmp_path):
    """Equal updates in two rounds once gave their difference; the budget is that of all clients."""
    rounds = Rounds(parties, tmp_path, threshold=4, budget=Budget(persistence=1.0))
    rounds.ask(1, range(10))
    with pytest.raises(QueryRefused, match="client 0"):
        rounds.ask(2, range(1, 10))
    assert np.array_equal(rounds.ask(3, range(10)), rounds.last.total(range(10)))
