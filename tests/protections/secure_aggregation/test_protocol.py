"""The protocol: masks cancel in the sum and nowhere else, drop-outs are repaired, secrets stay."""

from itertools import chain, combinations

import numpy as np
import pytest
from scipy import stats

from fedaudit.errors import UsageError
from fedaudit.protections.secure_aggregation import Client, Server, TooFewLeft
from fedaudit.protections.secure_aggregation.protocol import PublicKeys, _self_mask
from fedaudit.protections.secure_aggregation.ring import add_streams

RUN = b"a run of its own"


def parties(count, threshold, size, seed=0, bits=32):
    """Clients and server after keys and shares went round."""
    random = np.random.default_rng(seed).bytes
    clients = {c: Client(c, threshold=threshold, run=RUN, random=random) for c in range(count)}
    server = Server(threshold=threshold, run=RUN, size=size, bits=bits)
    for c, client in clients.items():
        server.enrol(c, client.advertise())
    sealed = {c: client.share(server.roster) for c, client in clients.items()}
    for c, theirs in server.pass_on(sealed).items():
        clients[c].receive(theirs)
    return clients, server


def vectors(count, size, seed=1, dtype=np.uint32):
    rng = np.random.default_rng(seed)
    return {c: rng.integers(0, 1000, size, dtype=dtype) for c in range(count)}


def strict_subsets(count):
    return chain.from_iterable(combinations(range(count), n) for n in range(1, count))


def p_uniform(ring):
    """p-value of uniform bytes."""
    return stats.chisquare(np.bincount(ring.view(np.uint8), minlength=256)).pvalue


def test_the_sum_is_exact():
    for bits, dtype in ((32, np.uint32), (64, np.uint64)):
        clients, server = parties(5, 3, 40, bits=bits)
        x = vectors(5, 40, dtype=dtype)
        for c, client in clients.items():
            server.accept(c, client.upload(x[c]))
        revealed = {c: client.reveal(server.uploaded) for c, client in clients.items()}
        assert np.array_equal(server.open(revealed), sum(x.values()))


def test_any_strict_subset_of_uploads_is_uniform():
    """Even when the self masks are known, as they are in the end, and with equal inputs of zero:
    whatever structure is left would show in the bytes. The full set is the check that can fail."""
    count, size = 4, 30_000
    clients, _ = parties(count, 3, size)
    zero = np.zeros(size, dtype=np.uint32)
    uploads = {c: client.upload(zero) for c, client in clients.items()}
    unmasked = {}
    for c, masked in uploads.items():
        unmasked[c] = masked.copy()
        add_streams(unmasked[c], [(_self_mask(clients[c]._seed, RUN, c), -1)])
    values = []
    for inside in strict_subsets(count):
        values.append(p_uniform(sum(uploads[c] for c in inside)))
        values.append(p_uniform(sum(unmasked[c] for c in inside)))
    assert min(values) > 1e-3
    assert stats.kstest(values, "uniform").pvalue > 1e-3
    everybody = sum(unmasked.values())
    assert not everybody.any()
    assert p_uniform(everybody) < 1e-12
    # without self masks off, even the full set tells nothing
    assert p_uniform(sum(uploads.values())) > 1e-3


def test_pairs_of_uploads_are_not_correlated():
    clients, _ = parties(4, 3, 50_000, seed=3)
    zero = np.zeros(50_000, dtype=np.uint32)
    rows = np.array([c.upload(zero) for c in clients.values()]).astype(np.float64)
    off = np.corrcoef(rows)[~np.eye(4, dtype=bool)]
    assert np.abs(off).max() < 5 / np.sqrt(50_000)


@pytest.mark.parametrize("threshold", [2, 3, 4])
def test_dropouts_up_to_the_threshold_change_nothing_in_the_sum(threshold):
    count, x = 5, vectors(5, 30)
    for gone_first in chain([()], strict_subsets(count)):
        uploading = [c for c in range(count) if c not in gone_first]
        if len(uploading) < threshold:
            continue
        expected = sum(x[c] for c in uploading)
        for gone_later in chain([()], combinations(uploading, len(uploading) - threshold)):
            clients, server = parties(count, threshold, 30)
            for c in uploading:
                server.accept(c, clients[c].upload(x[c]))
            left = [c for c in uploading if c not in gone_later]
            revealed = {c: clients[c].reveal(server.uploaded) for c in left}
            assert np.array_equal(server.open(revealed), expected)


def test_beyond_the_threshold_nothing_is_opened():
    clients, server = parties(5, 4, 10)
    x = vectors(5, 10)
    for c in range(4):
        server.accept(c, clients[c].upload(x[c]))
    shares = {c: clients[c].reveal(server.uploaded) for c in range(3)}
    with pytest.raises(TooFewLeft):
        server.open(shares)
    few, other = parties(5, 4, 10)
    for c in range(3):
        other.accept(c, few[c].upload(x[c]))
    with pytest.raises(TooFewLeft):
        few[0].reveal(other.uploaded)
    with pytest.raises(TooFewLeft):
        few[0].share({0: few[0].advertise()})
    lonely = Client(0, threshold=2, run=RUN)
    with pytest.raises(TooFewLeft):
        lonely.upload(x[0])


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


def test_neither_server_nor_client_holds_a_plaintext():
    clients, server = parties(4, 3, 64)
    x = vectors(4, 64)
    for c, client in clients.items():
        server.accept(c, client.upload(x[c]))
        assert not any(holds(server, v) for v in x.values())
        assert not holds(client, x[c])
    revealed = {c: client.reveal(server.uploaded) for c, client in clients.items()}
    total = server.open(revealed)
    assert not any(holds(server, v) for v in x.values())
    assert holds(server, total)  # the probe finds what is there
    server.left_behind = {"at": [x[2]]}
    assert holds(server, x[2])


def test_a_client_reveals_one_kind_of_share_once():
    clients, server = parties(4, 3, 5)
    x = vectors(4, 5)
    for c in range(3):
        server.accept(c, clients[c].upload(x[c]))
    shares = clients[0].reveal(server.uploaded)
    seeds = {c: pair[1] for c, pair in clients[0]._held.items()}
    keys = {c: pair[0] for c, pair in clients[0]._held.items()}
    assert shares == {0: seeds[0], 1: seeds[1], 2: seeds[2], 3: keys[3]}
    with pytest.raises(UsageError, match="already revealed"):
        clients[0].reveal({0, 1, 3})


def test_what_was_altered_or_comes_twice_is_refused():
    clients, server = parties(4, 3, 5)
    sealed = clients[1].share(server.roster)
    with pytest.raises(UsageError, match="altered"):
        clients[0].receive({1: sealed[0][:-1] + bytes([sealed[0][-1] ^ 1])})
    with pytest.raises(UsageError, match="altered"):
        clients[0].receive({2: sealed[0]})  # from another sender
    masked = clients[0].upload(np.zeros(5, dtype=np.uint32))
    server.accept(0, masked)
    for wrong in (0, 9):
        with pytest.raises(UsageError, match="cannot upload"):
            server.accept(wrong, masked)
    roster = dict(server.roster)
    with pytest.raises(UsageError, match="public keys"):
        clients[0].share({**roster, 1: roster[2]})
    with pytest.raises(UsageError, match="public keys"):
        clients[0].share({**roster, 0: PublicKeys(bytes(32), bytes(31) + b"\1")})


def test_every_run_has_masks_of_its_own():
    zero = np.zeros(2000, dtype=np.uint32)
    masks = [parties(3, 2, 2000, seed=s)[0][0].upload(zero) for s in (1, 2)]
    assert (masks[0] == masks[1]).mean() < 0.01
    again = parties(3, 2, 2000, seed=1)[0][0].upload(zero)
    assert np.array_equal(masks[0], again)  # and the same randomness gives the same
