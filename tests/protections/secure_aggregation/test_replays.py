"""Old states, old messages and old models: nothing is answered twice in different ways."""

import json

import numpy as np
import pytest

from fedaudit.protections.secure_aggregation import (
    Budget,
    ClientLedger,
    Directory,
    Forged,
    Malformed,
    OutOfOrder,
    QueryRefused,
    RunRefused,
    SplitView,
    TrustOnFirstUse,
    keys,
    wire,
)
from fedaudit.protections.secure_aggregation.client import NONCE, _aead
from fedaudit.protections.secure_aggregation.identity import (
    AGGREGATOR_NUMBER,
    X25519_PRIME,
    ExchangeKey,
)
from fedaudit.protections.secure_aggregation.ledger import AnsweredQuery, BegunStep, sketch_of


def restored(parties, run, number, state, ledger):
    """The client in a new process, from a stored state."""
    fresh = parties(
        run.count,
        identities=run.identities,
        run=run.plan.run,
        seed=77,
        ledgers={c: ledger if c == number else ClientLedger(c, threshold=2) for c in range(5)},
    ).clients[number]
    fresh.load(state)
    return fresh


@pytest.mark.parametrize("kept", [True, False])
def test_a_client_that_goes_on_from_an_old_state_sends_no_second_vector(parties, tmp_path, kept):
    """Its masks were those of the first: the difference of two uploads is that of two updates."""
    path = tmp_path / "ledger"
    run = parties(5, ledgers={c: ClientLedger(c, threshold=2, path=f"{path}{c}") for c in range(5)})
    run.keys().share()
    state, inbox = run.clients[0].dump(), run.server.inbox(0)
    first = run.clients[0].upload(inbox, run.vectors[0])
    again = ClientLedger(0, threshold=2, path=f"{path}0") if kept else ClientLedger(0, threshold=2)
    client = restored(parties, run, 0, state, again)
    other = run.vectors[0] + np.arange(run.size, dtype="<u4")
    if kept:
        with pytest.raises(OutOfOrder, match="state of this client that is lost"):
            client.upload(inbox, other)
        assert client.upload(inbox, run.vectors[0]) == first  # the same again is a retry
    else:
        second = client.upload(inbox, other)
        apart = np.frombuffer(second[:-64], "<u4") - np.frombuffer(first[:-64], "<u4")
        assert apart.tolist() == list(range(run.size))


@pytest.mark.parametrize("kept", [True, False])
def test_a_client_that_goes_on_from_an_old_state_seals_no_second_shares(parties, tmp_path, kept):
    """The seal's key and nonce were those of the first: two ciphertexts tell their difference."""
    path = tmp_path / "ledger"
    ledgers = {c: ClientLedger(c, threshold=2) for c in range(5)}
    ledgers[0] = ClientLedger(0, threshold=2, path=path)
    run = parties(5, ledgers=ledgers).keys()
    state = run.clients[0].dump()
    first = run.clients[0].share(run.roster)
    again = ClientLedger(0, threshold=2, path=path) if kept else ClientLedger(0, threshold=2)
    client = restored(parties, run, 0, state, again)
    if kept:
        with pytest.raises(OutOfOrder, match="state of this client that is lost"):
            client.share(run.roster)
        return
    context, public = run.server.roster.context, run.server.roster.record(1).channel
    key = keys.seal_key(ExchangeKey(client._channel), public, context, 0, 1)
    texts = [
        run.entries_of(m, wire.SHARED_BYTES)[1][2 * wire.DIGEST_BYTES :]
        for m in (first, client.share(run.roster))
    ]
    shares = [_aead(key).decrypt(NONCE, t, context) for t in texts]
    assert shares[0] != shares[1]
    one, two, *plain = (np.frombuffer(t[:66], np.uint8) for t in (*texts, *shares))
    assert np.array_equal(one ^ two, plain[0] ^ plain[1])


def test_a_state_that_is_stolen_after_the_run_opens_no_upload(parties):
    """With the masked vectors on record, a client's secrets and its neighbours' shares would."""
    run = parties(5).keys().share().upload().confirm()
    before = {c: client.dump() for c, client in run.clients.items()}
    secrets = {c: (state["_seed"], state["_mask_key"]) for c, state in before.items()}
    shares = [pair for client in run.clients.values() for pair in client._held.values()]
    run.reveal()
    for c, client in run.clients.items():
        left = b"|".join(client.dump().values())
        assert all(s in b"|".join(before[c].values()) for s in secrets[c])  # the probe finds them
        assert not any(s in left for s in secrets[c])
        assert not any(pair in left for pair in shares)
        assert client.upload(run.server.inbox(c), run.vectors[c]) == client._done["upload"][1]
    assert np.array_equal(run.open(), run.total(range(5)))


def test_a_state_of_another_run_or_client_is_refused(parties):
    run, other = parties(5).keys(), parties(5, seed=3).keys()
    state = run.clients[0].dump()
    for party in (run.clients[1], other.clients[0]):
        with pytest.raises(Malformed, match="stored state"):
            party.load(state)
    with pytest.raises(Malformed, match="stored state"):
        run.clients[0].load({k: v for k, v in state.items() if k != "_seed"})
    run.clients[0].load(state)
    run.share().upload().confirm().reveal()
    assert np.array_equal(run.open(), run.total(range(5)))


def test_messages_of_an_earlier_round_are_refused_in_the_next(parties):
    """Whatever clients signed in round 1, shown again in round 2 by a server or on the way."""
    before = parties(5).keys().share().upload().confirm().reveal()
    now = parties(5, identities=before.identities, ledgers=before.ledgers, round=2, seed=9)
    done = {c: client._done for c, client in before.clients.items()}
    steps = (
        ("share", now.server.accept_shares, now.keys, now.share),
        ("upload", now.server.accept_upload, None, now.upload),
        ("confirm", now.server.accept_view, None, now.confirm),
        ("reveal", now.server.accept_reveal, None, now.reveal),
    )
    with pytest.raises(Forged):
        now.server.enrol(1, done[1]["advertise"][1])
    for step, accept, first, then in steps:
        if first is not None:
            first()
        elif step == "upload":
            now.server.inbox(0)
        elif step == "confirm":
            now.uploads = now.server.uploads_message()
        else:
            now.server.views(0)
        with pytest.raises(Forged):
            accept(1, done[1][step][1])
        then()
    assert np.array_equal(now.open(), now.total(range(5)))
    # and the requests of the server: its old roster, inbox, list and signatures
    last = parties(5, identities=before.identities, ledgers=before.ledgers, round=3, seed=11)
    last.keys()
    with pytest.raises(Malformed, match="another run or round"):
        last.clients[0].share(before.roster)
    last.share()
    with pytest.raises(Forged, match="inbox"):
        last.clients[0].upload(before.server.inbox(0), last.vectors[0])
    last.upload()
    with pytest.raises(Forged, match="list of uploads"):
        last.clients[0].confirm(before.uploads)
    last.confirm()
    with pytest.raises(SplitView):
        last.clients[0].reveal(before.server.views(0))


def test_signatures_under_another_roster_do_not_count(parties):
    """A server shows one client another roster, with the same clients and other terms."""
    run = parties(7, threshold=3)
    for c in range(7):
        run.server.enrol(c, run.clients[c].advertise())
    honest = run.server.roster_message()
    other = run.signed_roster([*run.server._records.values()], {"threshold": 4})
    for c in range(7):
        shares = run.clients[c].share(other if c == 0 else honest)
        if c == 0:
            with pytest.raises(Forged, match="client 0"):
                run.server.accept_shares(0, shares)
        else:
            run.server.accept_shares(c, shares)
    run.upload(range(1, 7))
    run.confirm(range(1, 7))
    # client 0 is given an inbox, a list and the others' signatures of its own roster
    lone = run.clients[0]
    bits = wire.bitmap(range(7), run.server.roster.numbers.tolist())
    given = wire.Roster(other)
    body = bits + run.pack({0: run.entries_of(lone._done["share"][1], wire.SHARED_BYTES)[0]})
    aggregator = run.identities[AGGREGATOR_NUMBER]
    inbox = wire.signed(aggregator, "inbox", keys.inbox_context(given.context, 0), body)
    lone.upload(inbox, run.vectors[0])
    lone.confirm(bits + aggregator.sign("uploads", keys.upload_view(lone._view, bits)))
    with pytest.raises(SplitView):
        lone.reveal(run.pack(dict(list(run.server._views.items())[:6])))
    run.reveal(range(1, 7))
    assert np.array_equal(run.open(), run.total(range(1, 7)))


@pytest.mark.parametrize("form", ["above", "top"])
def test_a_copied_key_in_another_form_is_refused(parties, form):
    """X25519 ignores the top bit: the same point in other bytes passes for a key of its own."""
    run = parties(5)
    run.server.enrol(0, run.clients[0].advertise())
    copied = wire.Record.from_bytes(run.clients[0].advertise()).mask
    other = copied[:-1] + bytes([copied[-1] | 128])
    own = ExchangeKey(b"k" * 32)
    assert own.exchange(other) == own.exchange(copied)
    key = other if form == "top" else (X25519_PRIME + 9).to_bytes(32, "little")
    made = run.record(1, run.identities[1], mask=key)
    with pytest.raises(Malformed, match="canonical"):
        run.server.enrol(1, made)
    records = [wire.Record.from_bytes(run.clients[c].advertise()) for c in range(5)]
    records[1] = wire.Record.from_bytes(made)
    with pytest.raises(Malformed, match="canonical"):  # a lying server passes it on
        run.clients[2].share(run.signed_roster(records))


def test_nobody_pins_a_key_whose_secret_it_does_not_have(parties):
    """Trust on first use: a record without a signature once took a number, and its owner's key."""
    run = parties(5, directory=Directory(None))
    own = wire.Record.from_bytes(run.clients[3].advertise())
    stolen = wire.Record(4, own.mask, own.channel, own.commitment, own.identity, bytes(64))
    with pytest.raises(Forged, match="keys of client 4"):
        run.server.enrol(4, stolen.to_bytes())
    for number in (3, 4):
        with pytest.warns(TrustOnFirstUse, match=f"party {number} is taken on trust"):
            run.server.enrol(number, run.clients[number].advertise())


def test_terms_out_of_range_are_refused_by_name(parties):
    run = parties(5)
    for c in range(5):
        run.server.enrol(c, run.clients[c].advertise())
    honest = run.server.roster_message()
    run.clients[0].advertise()
    head = wire.KEY_BYTES + wire.SIGNATURE_BYTES
    size = int.from_bytes(honest[head : head + 4], "little")
    text, records = honest[head + 4 : head + 4 + size], honest[head + 4 + size :]
    for name, value in (
        ("round", 2**70),
        ("round", 1.0),
        ("length", 0),
        ("length", -1),
        ("length", True),
        ("bits", 16),
        ("bits", "NaN"),
        ("threshold", 1),
        ("quorum", None),
        ("others", [[-1]]),
        ("others", [[2**63]]),  # a ledger could not read it back
        ("others", [["a"]]),
        ("others", 7),
        ("run", 5),
        ("final", 1),
    ):
        changed = json.dumps({**json.loads(text), name: value}).encode()
        body = len(changed).to_bytes(4, "little") + changed + records
        with pytest.raises(RunRefused):
            run.clients[0].share(run.sign_roster(body))
    # a length that no vector has, and lengths that claim more than there is
    for wrong in (honest[:head] + b"\xff\xff\xff\xff" + honest[head + 4 :], honest + bytes(199)):
        with pytest.raises(RunRefused):
            run.clients[0].share(wrong)
    run.roster = honest
    run.share().upload().confirm().reveal()
    assert np.array_equal(run.open(), run.total(range(5)))


# -- what a ledger is told ------------------------------------------------------------------------


@pytest.mark.parametrize("asked", [tuple(range(2, 10)), tuple(range(1, 10))])
def test_an_aggregator_that_lists_the_wanted_sum_as_an_old_one_is_refused(asked):
    """A sum that follows from the listed ones was once taken for harmless; nobody had agreed to
    the listed ones."""
    everybody = tuple(range(10))
    ledger = ClientLedger(5, threshold=4, budget=None)
    ledger.admit(AnsweredQuery(round=1, run="a", members=everybody))
    for others in ((everybody, asked), (everybody, everybody[: 10 - len(asked)])):
        with pytest.raises(QueryRefused, match="isolate"):
            ledger.admit(AnsweredQuery(round=1, run="b", members=asked, others=others))
    ledger.admit(AnsweredQuery(round=1, run="c", members=everybody, others=(everybody,)))


def ask_without_zero(parties, folder, updates, cover=None, **ledger):
    """The sum of all in round 1, of all but client 0 in round 2: their difference, or raise.

    All from restarted clients. `updates` (2, 10, d); `cover` (10, d): other updates of all, summed
    in round 1 as well.
    """
    identities = sums = None
    asked = [(1, range(10), updates[0], ()), (2, range(1, 10), updates[1], ())]
    if cover is not None:
        asked.insert(1, (1, range(10), cover, (tuple(range(10)),)))
    for at, (number, members, vectors, others) in enumerate(asked):
        ledgers = {
            c: ClientLedger(c, threshold=4, path=folder / f"{c}.jsonl", **ledger) for c in range(10)
        }
        run = parties(
            10,
            threshold=4,
            size=600,
            round=number,
            seed=at + 1,
            others=others,
            ledgers=ledgers,
            identities=identities,
        )
        identities = run.identities
        run.vectors = dict(enumerate(vectors))
        run.keys(members).share(members).upload(members).confirm().reveal()
        sums = (*(sums or ()), run.open())
    return sums[0] - sums[-1]


def test_equal_updates_in_two_rounds_are_not_differenced(parties, tmp_path):
    """The same model under another round's number; its signature on disk tells a restarted client.

    By default, with a persistence of two thirds stated; nearly equal updates count as well.
    """
    rng = np.random.default_rng(0)
    once = rng.integers(-(2**20), 2**20, (10, 600)).astype("<i4")
    near = once + rng.integers(-(2**14), 2**14, (10, 600)).astype("<i4")
    fresh = rng.integers(-(2**20), 2**20, (10, 600)).astype("<i4")
    for name, second in (("equal", once), ("near", near)):
        folder = tmp_path / name
        folder.mkdir()
        with pytest.raises(QueryRefused, match=r"client 0, after 2 rounds of which (99|100)%"):
            ask_without_zero(parties, folder, np.stack([once, second]).view("<u4"))
    (tmp_path / "fresh").mkdir()
    ask_without_zero(parties, tmp_path / "fresh", np.stack([once, fresh]).view("<u4"))
    (tmp_path / "off").mkdir()
    both = np.stack([once, once]).view("<u4")
    opened = ask_without_zero(parties, tmp_path / "off", both, measured=False)
    assert np.array_equal(opened, both[0, 0])  # where it is given up by name


def test_another_training_in_between_does_not_hide_equal_updates(parties, tmp_path):
    """Round 1 with a model, round 1 again with another one, round 2 with the first, without 0."""
    rng = np.random.default_rng(4)
    once, other = rng.integers(-(2**20), 2**20, (2, 10, 600)).astype("<i4").view("<u4")
    shown = np.stack([once, once])
    with pytest.raises(QueryRefused, match=r"client 0, after 2 rounds of which 100%"):
        ask_without_zero(parties, tmp_path, shown, cover=other)
    (tmp_path / "off").mkdir()
    opened = ask_without_zero(parties, tmp_path / "off", shown, cover=other, measured=False)
    assert np.array_equal(opened, once[0])  # where it is given up by name


def test_permuted_units_hide_equal_updates_and_a_stated_persistence_of_one_holds(parties, tmp_path):
    """The same model with its hidden units in another order: the same updates in another order.

    No client sees that they are alike. Whoever counts on persistence as it might be at worst does.
    """
    rng = np.random.default_rng(2)
    once = rng.integers(-(2**20), 2**20, (10, 600)).astype("<i4")
    order = rng.permutation(600)
    shown = np.stack([once, once[:, order]]).view("<u4")
    for name, budget in (("default", Budget()), ("worst", Budget(persistence=1.0))):
        (tmp_path / name).mkdir()
        if name == "worst":
            with pytest.raises(QueryRefused, match="client 0, after 2 rounds of which 100%"):
                ask_without_zero(parties, tmp_path / name, shown, budget=budget)
            continue
        apart = ask_without_zero(parties, tmp_path / name, shown, budget=budget)  # not held off
        sums = shown[0].sum(axis=0, dtype="<u4"), shown[1][1:].sum(axis=0, dtype="<u4")
        assert np.array_equal(apart, sums[0] - sums[1])  # both were opened
        back = np.empty_like(sums[1])
        back[order] = sums[1]
        assert np.array_equal(sums[0] - back, shown[0][0])


def test_sketches_tell_how_alike_updates_are():
    rng, ledger = np.random.default_rng(1), ClientLedger(0, threshold=2)
    common = rng.normal(size=40_000)
    for persistence in (0.0, 0.5, 0.9, 1.0):
        drawn = [
            np.sqrt(persistence) * common + np.sqrt(1 - persistence) * rng.normal(size=40_000)
            for _ in range(2)
        ]
        ledger.begun.clear()
        for number, update in enumerate(drawn):
            sketch = sketch_of(np.rint(1e6 * update).astype("<i4").view("<u4"))
            run = str(number)
            ledger.begin(BegunStep(run=run, step="upload", request="", round=number, sketch=sketch))
        ledger.entries = [AnsweredQuery(round=0, run="0", members=(0, 1))]
        found = ledger.persistence(AnsweredQuery(round=1, run="1", members=(0, 1)))
        assert found == pytest.approx(persistence, abs=0.2 if persistence < 0.9 else 0.05)
    assert sketch_of(np.zeros(5, "<u4")) == (0,) * 256


def test_another_training_does_not_open_what_the_first_one_kept(parties):
    """Rounds count from the start again; an earlier training is over, its sums still count."""
    ledger = ClientLedger(0, threshold=4, budget=Budget(persistence=1.0))
    everybody = tuple(range(10))
    ledger.admit(AnsweredQuery(round=3, run="a", training="one", members=everybody))
    ledger.admit(AnsweredQuery(round=1, run="b", training="two", members=everybody))
    with pytest.raises(QueryRefused, match="budget"):
        ledger.admit(AnsweredQuery(round=2, run="c", training="two", members=everybody[:-1]))
    with pytest.raises(QueryRefused, match="earlier round"):
        ledger.admit(AnsweredQuery(round=4, run="d", training="one", members=everybody))


def test_a_second_list_from_an_old_state_is_refused(parties, tmp_path):
    ledgers = {c: ClientLedger(c, threshold=2) for c in range(5)}
    ledgers[0] = ClientLedger(0, threshold=2, path=tmp_path / "ledger")
    run = parties(5, ledgers=ledgers).keys().share().upload()
    state = run.clients[0].dump()
    first = run.clients[0].confirm(run.uploads)
    client = restored(
        parties, run, 0, state, ClientLedger(0, threshold=2, path=tmp_path / "ledger")
    )
    with pytest.raises(QueryRefused, match="second sum in the same run"):
        client.confirm(run.signed_uploads(range(4)))
    assert client.confirm(run.uploads) == first
