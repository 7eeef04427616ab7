"""Shamir's sharing: a known answer, all subsets, and nothing from one share fewer."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedaudit.errors import UsageError
from fedaudit.protections.secure_aggregation import shamir


def combine(shares, prime=shamir.PRIME):
    weights = shamir.weights_at_zero(list(shares), prime)
    return sum(w * s for w, s in zip(weights, shares.values(), strict=True)) % prime


def test_known_answer():
    """The worked example of the usual textbook: 1234 + 166 x + 94 x^2 modulo 1613."""
    shares = {x: shamir.evaluate([1234, 166, 94], x, 1613) for x in range(1, 7)}
    assert shares == {1: 1494, 2: 329, 3: 965, 4: 176, 5: 1188, 6: 775}
    for three in combinations(shares.items(), 3):
        assert combine(dict(three), 1613) == 1234


def test_the_field_is_prime_and_holds_every_key():
    p = shamir.PRIME
    assert p > 2**256
    odd, twos = p - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for base in range(2, 60):  # Miller and Rabin: a composite passes all with chance below 4^-58
        x = pow(base, odd, p)
        chain = [pow(x, 2**i, p) for i in range(twos)]
        assert x == 1 or p - 1 in chain
    assert len(p.to_bytes(shamir.SHARE_BYTES)) == shamir.SHARE_BYTES


@settings(max_examples=40, deadline=None)
@given(st.binary(min_size=32, max_size=32), st.integers(1, 7), st.integers(0, 5), st.integers())
def test_any_threshold_many_shares_restore_any_key(key, threshold, more, seed):
    random = np.random.default_rng(abs(seed)).bytes
    points = list(range(3, 3 + threshold + more))
    shares = shamir.split(int.from_bytes(key), threshold, points, random)
    assert set(shares) == set(points)
    for chosen in (points[:threshold], points[-threshold:], points):
        restored = combine({x: shares[x] for x in chosen})
        assert restored.to_bytes(32) == key


def test_fewer_shares_fit_every_secret():
    """Two of three shares over a small field: every secret is as likely as any other."""
    prime, rng = 11, np.random.default_rng(0)
    counts = np.zeros((prime, prime, 2), dtype=int)
    for which, secret in enumerate((3, 8)):
        for _ in range(6_000):
            shares = shamir.split(secret, 3, [1, 2, 3], rng.bytes, prime)
            counts[shares[1], shares[2], which] += 1
    expected = 6_000 / prime**2
    # the pair of shares is uniform, whichever the secret is
    for which in (0, 1):
        chi = ((counts[..., which] - expected) ** 2 / expected).sum()
        assert chi < 120 + 5 * np.sqrt(240)
    restored = combine(dict(list(shares.items())[:2]), prime)
    assert 0 <= restored < prime


@pytest.mark.parametrize(
    "arguments",
    [
        (shamir.PRIME, 2, [1, 2]),
        (-1, 2, [1, 2]),
        (5, 3, [1, 2]),
        (5, 0, [1, 2]),
        (5, 2, [1, 1]),
        (5, 2, [0, 1]),
    ],
)
def test_what_cannot_be_shared_is_refused(arguments):
    with pytest.raises(UsageError):
        shamir.split(*arguments, np.random.default_rng(0).bytes)
