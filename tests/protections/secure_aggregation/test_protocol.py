"""Five steps of every client: exact sums, uniform uploads, nothing twice, nothing out of order."""

from concurrent.futures import ThreadPoolExecutor
from itertools import chain, combinations

import numpy as np
import pytest
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from scipy import stats

from fedaudit.protections.secure_aggregation import (
    ClientLedger,
    ClientRules,
    Forged,
    Malformed,
    Neighbours,
    OtherRing,
    OutOfOrder,
    RingQuantiser,
    SplitView,
    TooFewLeft,
    wire,
)
from fedaudit.protections.secure_aggregation.keys import derive, own_mask
from fedaudit.protections.secure_aggregation.ring import add_streams


def strict_subsets(count):
    return chain.from_iterable(combinations(range(count), n) for n in range(1, count))


def p_uniform(ring):
    """p-value of uniform bytes."""
    return stats.chisquare(np.bincount(ring.view(np.uint8), minlength=256)).pvalue


def uploads(run, zero):
    """What every client uploads for a vector of zeros."""
    run.keys().share()
    return {
        c: np.frombuffer(client.upload(run.server.inbox(c), zero)[:-64], dtype=zero.dtype)
        for c, client in run.clients.items()
    }


@pytest.mark.parametrize("bits", [32, 64])
def test_the_sum_is_exact(parties, bits):
    run = parties(5, size=40, bits=bits).keys().share().upload().confirm().reveal()
    assert np.array_equal(run.open(), run.total(range(5)))
    assert np.array_equal(run.open(), run.total(range(5)))  # and the same when it is asked again


def test_keys_are_those_of_the_standard():
    """RFC 5869, as another library has it."""
    for length in (16, 32):
        info = b"fedaudit|mask|" + (3).to_bytes(8, "little") + (4).to_bytes(8, "little")
        twin = HKDF(algorithm=SHA256(), length=length, salt=b"c" * 32, info=info).derive(b"s" * 32)
        assert derive(b"s" * 32, "mask", length, b"c" * 32, 3, 4) == twin


def test_any_strict_subset_of_uploads_is_uniform(parties):
    """Even when the self masks are known, as they are in the end, and with equal inputs of zero:
    whatever structure is left would show in the bytes. The full set is the check that can fail."""
    count, size = 4, 30_000
    run = parties(count, size=size, run="5" * 32)  # masks are bound to it: the same every time
    masked = uploads(run, np.zeros(size, dtype="<u4"))
    unmasked = {}
    for c, vector in masked.items():
        unmasked[c] = vector.copy()
        client = run.clients[c]
        add_streams(unmasked[c], [(own_mask(client._seed, client._view, c), -1)])
    values = []
    for inside in strict_subsets(count):
        values.append(p_uniform(sum(masked[c] for c in inside)))
        values.append(p_uniform(sum(unmasked[c] for c in inside)))
    assert min(values) > 1e-3
    assert stats.kstest(values, "uniform").pvalue > 1e-3
    everybody = sum(unmasked.values())
    assert not everybody.any()
    assert p_uniform(everybody) < 1e-12
    # without self masks off, even the full set tells nothing
    assert p_uniform(sum(masked.values())) > 1e-3


def test_pairs_of_uploads_are_not_correlated(parties):
    size = 50_000
    masked = uploads(parties(4, size=size, seed=3), np.zeros(size, dtype="<u4"))
    rows = np.array(list(masked.values())).astype(np.float64)
    off = np.corrcoef(rows)[~np.eye(4, dtype=bool)]
    assert np.abs(off).max() < 5 / np.sqrt(size)


@pytest.mark.parametrize(("quorum", "least"), [("two_thirds", 4), ("majority", 3)])
def test_dropouts_up_to_the_quorum_change_nothing_in_the_sum(parties, quorum, least):
    count, tried = 5, 0
    for first in chain([()], strict_subsets(count)):
        sharing = [c for c in range(count) if c not in first[:1]]
        uploading = [c for c in range(count) if c not in first]
        if len(uploading) < least:
            continue
        for later in chain([()], combinations(uploading, len(uploading) - least)):
            run = parties(count, quorum=quorum, size=5).keys().share(sharing).upload(uploading)
            left = [c for c in uploading if c not in later]
            run.confirm(left).reveal(left)
            assert np.array_equal(run.open(), run.total(uploading))
            tried += 1
    assert tried > 10


def test_below_the_quorum_nothing_is_opened(parties):
    run = parties(5, threshold=3).keys().share().upload([0, 1, 2])
    with pytest.raises(TooFewLeft, match="holders"):
        run.confirm()  # four shares of five are needed
    run = parties(5, threshold=3).keys().share().upload().confirm([0, 1, 2])
    with pytest.raises(SplitView):  # and so are four signatures
        run.reveal([0])
    run = parties(5, threshold=3).keys().share().upload().confirm()
    run.reveal([0, 1, 2])
    with pytest.raises(TooFewLeft, match="to reveal shares"):
        run.open()
    with pytest.raises(TooFewLeft, match="after keys were sent"):
        parties(5, threshold=3).keys([0, 1])
    with pytest.raises(TooFewLeft, match="after the upload"):
        parties(5, threshold=3).keys().share().upload([0, 1])
    run = parties(5, threshold=3).keys().share([0, 1])
    with pytest.raises(TooFewLeft, match="after shares were sent"):
        run.upload([0])
    run = parties(5, threshold=3).keys().share([0, 1, 2])
    with pytest.raises(TooFewLeft, match="before the upload"):
        run.upload([0])  # three shares restore no secret


def reachable(thing, seen=None):
    """Everything that hangs on an object's attributes."""
    seen = set() if seen is None else seen
    if id(thing) in seen:
        return
    seen.add(id(thing))
    yield thing
    if isinstance(thing, dict):
        parts = [*thing.keys(), *thing.values()]
    elif isinstance(thing, list | tuple | set | frozenset):
        parts = list(thing)
    else:
        parts = list(vars(thing).values()) if hasattr(thing, "__dict__") else []
    for part in parts:
        yield from reachable(part, seen)


def holds(thing, vector):
    """Whether a vector, or a run of it, hangs on an object, as an array or as bytes."""
    piece = vector.tobytes()[:32]
    for part in reachable(thing):
        if isinstance(part, np.ndarray) and piece in part.tobytes():
            return True
        if isinstance(part, bytes | bytearray) and piece in bytes(part):
            return True
    return False


def test_neither_server_nor_client_holds_a_plaintext(parties):
    run = parties(4, size=64).keys().share().upload()
    for c, x in run.vectors.items():
        assert not holds(run.server, x)
        assert not holds(run.clients[c], x)
    run.confirm().reveal()
    total = run.open()
    assert not any(holds(run.server, x) for x in run.vectors.values())
    assert holds(run.server, total)  # the probe finds what is there
    run.server.left_behind = {"at": [run.vectors[2]]}
    assert holds(run.server, run.vectors[2])


def test_a_retry_gets_the_same_bytes_and_another_request_is_refused(parties):
    run = parties(5).keys().share().upload().confirm().reveal()
    inbox = run.server.inbox(0)
    client, views = run.clients[0], run.server.views(0)
    steps = {
        "advertise": client.advertise,
        "share": lambda: client.share(run.roster),
        "upload": lambda: client.upload(inbox, run.vectors[0].copy()),
        "confirm": lambda: client.confirm(run.uploads),
        "reveal": lambda: client.reveal(views),
    }
    for step, again in steps.items():
        assert again() == again() == client._done[step][1]
    other = run.vectors[0] + np.uint32(1)
    for wrong in (
        lambda: client.share(run.roster + bytes(200)),
        lambda: client.upload(inbox, other),  # the same masks on two vectors give their difference
        lambda: client.upload(run.sign_inbox(0, inbox[: -122 - 64]), run.vectors[0]),
        lambda: client.confirm(b"\xf0" + run.uploads[1:]),
        lambda: client.reveal(views[72:]),
    ):
        with pytest.raises((OutOfOrder, Malformed)):
            wrong()
    run.server.accept_upload(0, client._done["upload"][1])  # the server takes a repeat for one
    run.server.accept_reveal(0, client._done["reveal"][1])
    with pytest.raises(OutOfOrder, match="already"):
        run.server.accept_reveal(0, client._done["reveal"][1][:-42])
    assert np.array_equal(run.open(), run.total(range(5)))


def test_steps_have_an_order(parties):
    run = parties(5)
    client = run.clients[0]
    for early in (
        lambda: client.share(b""),
        lambda: client.upload(b"", run.vectors[0]),
        lambda: client.confirm(b""),
        lambda: client.reveal(b""),
        lambda: run.server.accept_shares(0, b""),
        lambda: run.server.open(),
    ):
        with pytest.raises(OutOfOrder):
            early()
    run.keys()
    with pytest.raises(OutOfOrder):
        run.server.enrol(1, b"late")
    with pytest.raises(OutOfOrder):
        client.confirm(b"")


def test_a_refused_request_changes_nothing(parties):
    """Whatever is refused first, the right message is still accepted."""
    run = parties(5).keys()
    client, roster = run.clients[0], run.roster
    for wrong in (b"", roster[:-1], roster[:-200], roster[:100], bytes(len(roster)), None, 7):
        with pytest.raises((Malformed, Forged)):
            client.share(wrong)
    run.share()
    inbox = run.server.inbox(0)
    vector = run.vectors[0]
    for wrong in (
        vector.astype(np.float32),
        vector.astype(np.float64),
        vector.astype("<u8"),
        vector.astype(">u4"),
        vector[:-1],
        vector[:1],
        vector[None],
        vector[::2].repeat(2)[::-1],
        [1, 2],
        None,
    ):
        with pytest.raises((Malformed, Forged)):
            client.upload(inbox, wrong)
    body = inbox[:-64]
    for wrong in (b"", body[:-1], body + body[1:123], b"\xff" + body[1:], b"\0" + body[1:]):
        with pytest.raises(Malformed):
            client.upload(run.sign_inbox(0, wrong), vector)
        with pytest.raises(Forged):
            client.upload(wrong + inbox[-64:], vector)
    run.upload()
    for wrong in (b"", bytes(64), run.uploads[:-1], run.uploads + b"\0", b"\xff" + run.uploads[1:]):
        with pytest.raises((Malformed, Forged)):
            client.confirm(wrong)
    run.confirm()
    views = run.server.views(0)
    for wrong in (views[:-1], views + views[:72], b"\x63" + views[1:]):
        with pytest.raises((Malformed, Forged)):
            client.reveal(wrong)
    run.reveal()
    assert np.array_equal(run.open(), run.total(range(5)))


def test_the_server_refuses_what_does_not_fit(parties):
    run = parties(5)
    server, record = run.server, run.clients[0].advertise()
    for number, message in (
        (0, b""),
        (0, record[:-1]),
        (1, record),
        (-1, record),
        (2**63, record),
        (True, record),
        (1.0, record),
        ("0", record),
        (0, "text"),
    ):
        with pytest.raises(Malformed):
            server.enrol(number, message)
    run.keys()
    shares = run.clients[0].share(run.roster)
    body = shares[:-64]
    with pytest.raises(Malformed):
        server.accept_shares(9, shares)
    for wrong in (body[:-122], body[:-1], body[122:] * 2):
        with pytest.raises(Malformed):
            server.accept_shares(0, run.sign(0, "shares", wrong))
        with pytest.raises(Forged):
            server.accept_shares(0, wrong + shares[-64:])
    run.share()
    masked = run.clients[0].upload(server.inbox(0), run.vectors[0])
    for number, message in ((0, masked[:4]), (0, masked + masked), (9, masked), (0, None)):
        with pytest.raises(Malformed):
            server.accept_upload(number, message)  # a single number would be added to all
    with pytest.raises(Malformed):
        server.inbox(9)
    run.upload().confirm()
    revealed = run.clients[0].reveal(server.views(0))
    body = revealed[:-64]
    flipped = bytearray(body)
    flipped[8] ^= 1  # the other kind of share
    for wrong in (body[:-1], body[:42] * 2, b"\x63" + body[1:], bytes(flipped)):
        with pytest.raises(Malformed):
            server.accept_reveal(0, run.sign(0, "reveal", wrong))
        with pytest.raises(Forged):
            server.accept_reveal(0, wrong + revealed[-64:])
    run.reveal()
    assert np.array_equal(run.open(), run.total(range(5)))


def test_a_run_answered_before_a_restart_is_not_joined_again(parties, tmp_path):
    ledgers = {c: ClientLedger(c, threshold=2, path=tmp_path / str(c)) for c in range(5)}
    run = parties(5, ledgers=ledgers).keys().share().upload().confirm()
    again = {c: ClientLedger(c, threshold=2, path=tmp_path / str(c)) for c in range(5)}
    late = parties(5, ledgers=again, identities=run.identities, run=run.plan.run)
    with pytest.raises(OutOfOrder, match="advertise"):
        late.keys()


def test_a_client_goes_on_in_another_process_after_every_step(parties):
    run = parties(5)

    def moved(number):
        fresh = parties(5, identities=run.identities, run=run.plan.run, seed=9).clients[number]
        fresh.load(run.clients[number].dump())
        run.clients[number] = fresh

    for step in (run.keys, run.share, run.upload, run.confirm, run.reveal):
        step()
        for number in range(5):
            moved(number)
    assert np.array_equal(run.open(), run.total(range(5)))
    assert run.clients[0].reveal(run.server.views(0)) == run.clients[0]._done["reveal"][1]


def test_every_run_has_masks_of_its_own(parties):
    zero = np.zeros(2000, dtype="<u4")
    first, second = (uploads(parties(3, size=2000, seed=s), zero) for s in (1, 2))
    assert (first[0] == second[0]).mean() < 0.01


@pytest.mark.parametrize("gone", [(), (0, 5, 17)])
def test_neighbours_give_the_same_sum_as_the_complete_graph(parties, gone):
    ask = Neighbours(colluding=0.0, dropout=0.1, security=4, completion=2)
    left = [c for c in range(20) if c not in gone]
    sums = []
    for complete in (True, False):
        run = parties(20, graph=ask, complete=complete, rules=None if complete else _rules(ask))
        run.keys().share().upload(left).confirm().reveal()
        assert run.server.graph.complete == complete
        sums.append(run.open())
    assert np.array_equal(sums[0], sums[1])
    assert np.array_equal(sums[0], run.total(left))


def _rules(ask):
    return ClientRules(threshold=2, graph=ask, all_pairs_up_to=0)


def test_a_retry_that_comes_while_a_vector_is_being_added_counts_once(parties):
    """Threads of a web server: three times the same message at once."""
    run = parties(5, size=400_000).keys().share()
    messages = {c: run.clients[c].upload(run.server.inbox(c), run.vectors[c]) for c in range(5)}
    with ThreadPoolExecutor(6) as pool:
        asked = [pool.submit(run.server.accept_upload, c, messages[c]) for c in [*messages] * 3]
    assert [a.result() for a in asked] == [None] * 15
    run.uploads = run.server.uploads_message()
    assert np.array_equal(run.confirm().reveal().open(), run.total(range(5)))


def test_a_vector_with_hidden_numbers_is_refused(parties):
    run = parties(5).keys().share()
    hidden = np.ma.masked_array(run.vectors[0], mask=[1, 0, 0, 0, 0, 0])
    with pytest.raises(Malformed, match="ring"):
        run.clients[0].upload(run.server.inbox(0), hidden)
    run.upload().confirm().reveal()
    assert np.array_equal(run.open(), run.total(range(5)))


@pytest.mark.parametrize(
    "label", ["\ud800" * 16, b"a" * 16, None, "", "a" * 15, "a" * 65, "G" * 16]
)
def test_a_label_that_is_none_is_refused_before_keys_are_made(parties, label):
    with pytest.raises(Malformed, match="label of a run"):
        parties(5, run=label).keys()


def test_a_client_takes_no_other_client_s_ledger(parties):
    with pytest.raises(Malformed, match="another client's"):
        parties(5, ledgers={c: ClientLedger(9, threshold=2) for c in range(5)})


@pytest.mark.parametrize("bound", [16.0, 8.0])
def test_a_client_with_another_ring_is_refused_before_it_masks(parties, bound):
    """Nobody sees a vector's unit: five ones summed to six."""
    run = parties(5, size=3, rules=ClientRules(threshold=2, bound=16.0))
    run.clients[4].rules = ClientRules(threshold=2, bound=bound)
    run.keys()
    if bound != 16.0:
        with pytest.raises(OtherRing, match="not this client's") as refused:
            run.clients[4].share(run.roster)
        assert (refused.value.code, refused.value.got) == ("other_ring", "up to 16")
    own = [c for c, client in run.clients.items() if client.rules.bound == 16.0]
    run.share(own)
    run.vectors = {c: run.clients[c].ring().encode(np.ones(3)) for c in own}
    total = RingQuantiser(16.0, 5).decode(run.upload(own).confirm().reveal().open())
    assert np.allclose(total, len(own), atol=1e-6)


def test_the_ring_is_in_what_everybody_signs(parties):
    """A server that shows one client another ring gives it a context that nobody else has."""
    run = parties(5).keys()
    records = list(run.server._records.values())
    other = run.signed_roster(records, {"bound": 8.0})
    assert wire.Roster(other).context != run.server._context
    with pytest.raises(OtherRing):
        run.clients[0].share(other)
    run.clients[0].rules = ClientRules(threshold=2, bound=8.0)
    message = run.clients[0].share(other)
    with pytest.raises(Forged):
        run.server.accept_shares(0, message)


@pytest.mark.parametrize("sign", [1, -1])
def test_a_vector_of_a_ring_for_fewer_clients_is_refused_where_the_sum_could_wrap(parties, sign):
    run = parties(5, size=3).keys().share()
    client, inbox = run.clients[0], run.server.inbox(0)
    with pytest.raises(Malformed, match="could wrap"):
        client.upload(inbox, RingQuantiser(16.0, 1).encode(np.full(3, sign * 16.0)))
    client.upload(inbox, client.ring().encode(np.full(3, sign * 16.0)))


@pytest.mark.parametrize("bound", [0.0, -1.0, float("inf"), float("nan"), 16, "16", None, True])
def test_a_ring_that_is_none_is_refused(parties, bound):
    run = parties(5).keys()
    terms = run.server.roster.terms
    with pytest.raises(Malformed, match="out of range"):
        wire.RunTerms(**{**vars(terms), "bound": bound})
