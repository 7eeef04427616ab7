"""Shamir's secret sharing over a prime field.

Any `threshold` shares restore the secret; fewer are uniform and independent of it.

A share is the value of a random polynomial of degree threshold - 1 at its holder's point (not 0);
the secret is its value at 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import accumulate

from fedaudit.errors import UsageError

PRIME = 2**256 + 297
"""The smallest prime above 2^256: every key of 32 bytes is an element."""

SHARE_BYTES = 33


def evaluate(coefficients: Sequence[int], at: int, prime: int = PRIME) -> int:
    """The polynomial with these coefficients, constant first, by Horner's rule.

    Points are small, so a few factors cost less than a remainder: it is taken in every eighth step.
    """
    value = 0
    for step, c in enumerate(reversed(coefficients)):
        value = value * at + c
        if step & 7 == 7:
            value %= prime
    return value % prime


def split(
    secret: int,
    threshold: int,
    points: Sequence[int],
    random: Callable[[int], bytes],
    prime: int = PRIME,
) -> dict[int, int]:
    """Point -> share, for distinct points from 1; `random(n)` gives n random bytes."""
    if not 0 <= secret < prime:
        raise UsageError(
            "a secret does not fit the field",
            expected="a number from 0 to below the prime",
            got=f"a number of {secret.bit_length()} bits",
            remedy="share a key of at most 32 bytes",
        )
    if not 1 <= threshold <= len(points):
        raise UsageError(
            "a threshold does not fit the number of shares",
            expected=f"from 1 to {len(points)}",
            got=str(threshold),
            remedy="hand out more shares, or ask for fewer",
        )
    if len(set(points)) != len(points) or not all(1 <= x < prime for x in points):
        raise UsageError(
            "the points of the shares are invalid",
            expected="distinct numbers from 1 to below the prime",
            got=", ".join(map(str, points)),
            remedy="number the holders from 1",
        )
    # 16 bytes more than the field: the remainder is uniform up to 2^-128
    width = (prime.bit_length() + 7) // 8 + 16
    coefficients = [secret]
    coefficients += [int.from_bytes(random(width)) % prime for _ in range(threshold - 1)]
    return {x: evaluate(coefficients, x, prime) for x in points}


def weights_at_zero(points: Sequence[int], prime: int = PRIME) -> list[int]:
    """Lagrange weights: their dot product with the values at `points` is the value at 0."""
    # products of small numbers are reduced once
    whole = math.prod(-x for x in points)
    below = [-x * math.prod(x - other for other in points if other != x) % prime for x in points]
    # an inversion costs as much as a hundred products: invert the product of all, then divide
    before = list(accumulate(below, lambda a, b: a * b % prime, initial=whole % prime))
    out, left = [], pow(math.prod(below), -1, prime)
    for each, earlier in zip(reversed(below), reversed(before[:-1]), strict=True):
        out.append(left * earlier % prime)
        left = left * each % prime
    return out[::-1]


@lru_cache(maxsize=8)
def cached_weights(points: tuple[int, ...]) -> list[int]:
    """`weights_at_zero`, kept for the next secret of the same holders."""
    return weights_at_zero(points)
