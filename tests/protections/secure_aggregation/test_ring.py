"""Numbers in the ring: errors within the bound, overflow refused, masks as the cipher says."""

import math

import numpy as np
import pytest

from fedaudit.errors import UsageError
from fedaudit.protections.secure_aggregation import ring
from fedaudit.protections.secure_aggregation.ring import (
    CHUNK,
    RingOverflow,
    RingQuantiser,
    add_streams,
    ring_dtype,
    subset_sum,
)


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("clients", [1, 2, 10, 1000])
@pytest.mark.parametrize("bound", [1e-3, 1.0, 16.0, 3e4])
def test_the_largest_sum_does_not_wrap_and_errors_stay_below_half_a_step(bits, clients, bound):
    q = RingQuantiser(bound, clients, bits)
    assert math.frexp(q.step)[0] == 0.5  # a power of two
    extremes = np.array([bound, -bound, 0.0, bound / 3, -bound / 7])
    one = q.encode(extremes)
    total = one * np.array(clients, dtype=one.dtype)  # modulo 2^b, as the server adds
    error = np.abs(q.decode(total) - clients * extremes)
    assert (error <= q.error(clients)).all()
    assert q.error(clients) == clients * q.step / 2
    # half the step would not hold that many
    assert bound / (q.step / 2) > q.largest


def test_random_sums_are_within_the_bound_that_is_reported():
    rng = np.random.default_rng(0)
    for bits in (32, 64):
        q = RingQuantiser(8.0, 7, bits)
        x = rng.uniform(-8, 8, (7, 5000))
        total = subset_sum([q.encode(row) for row in x])
        assert np.abs(q.decode(total) - x.sum(axis=0)).max() <= q.error(7)
        assert np.array_equal(q.decode(total), q.integers(x).sum(axis=0) * q.step)


@pytest.mark.parametrize("wrong", [16.1, -17.0, np.inf, -np.inf, np.nan])
def test_overflow_is_refused_and_never_wrapped(wrong):
    q = RingQuantiser(16.0, 10)
    with pytest.raises(RingOverflow, match="does not fit the ring"):
        q.encode([0.0, wrong, 1.0])


@pytest.mark.parametrize("arguments", [(0.0, 2), (np.inf, 2), (1.0, 0), (1.0, 2, 16)])
def test_rings_that_make_no_sense_are_refused(arguments):
    with pytest.raises(UsageError):
        RingQuantiser(*arguments)
    with pytest.raises(RingOverflow, match="too small"):
        _ = RingQuantiser(1.0, 2**31).step


@pytest.mark.parametrize("bits", [32, 64])
def test_streams_equal_the_cipher_in_one_piece(bits):
    """A slow twin: the whole stream at once, added in Python's own integers."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    dtype = ring_dtype(bits)
    size = CHUNK // dtype.itemsize + 13  # more than one piece
    rng = np.random.default_rng(1)
    start = rng.integers(0, 2**bits, size, dtype=dtype)
    keys = [(rng.bytes(16), 1), (rng.bytes(16), -1), (rng.bytes(16), 1)]
    expected = [int(v) for v in start]
    for key, sign in keys:
        stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
        mask = np.frombuffer(stream.update(bytes(size * dtype.itemsize)), dtype=dtype)
        expected = [(a + sign * int(b)) % 2**bits for a, b in zip(expected, mask, strict=True)]
    got = start.copy()
    add_streams(got, keys)
    assert got.tolist() == expected
    add_streams(got, [(key, -sign) for key, sign in keys])
    assert np.array_equal(got, start)


def test_a_sum_at_hand_can_be_made_in_a_place_that_exists():
    rows = [np.arange(5, dtype=np.uint32) * k for k in (1, 2, 3)]
    room = np.zeros(5, dtype=np.uint32)
    assert subset_sum(rows, room) is room
    assert room.tolist() == [0, 6, 12, 18, 24]
    assert subset_sum(rows[:1]).tolist() == rows[0].tolist()


@pytest.mark.parametrize("bits", [32, 64])
def test_what_is_quantised_piece_by_piece_is_the_whole(bits, monkeypatch):
    values = np.random.default_rng(3).uniform(-1, 1, size=1000)
    quantiser = RingQuantiser(1.0, 10, bits)
    whole = quantiser.encode(values)
    monkeypatch.setattr(ring, "QUANTISED", 64)
    place = np.empty(1000, ring.ring_dtype(bits))
    assert quantiser.encode(values, out=place) is place
    np.testing.assert_array_equal(place, whole)
