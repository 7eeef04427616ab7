"""Unary reports (one bit per value): decoding, and how often decoding is right.

A report has `sampled` of k bits; bits that were not sampled are -1. The bit of the true value is
one with probability `p`, every other bit with probability `q` < p.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fedaudit.arrays import Floats
from fedaudit.protections.local_dp.mechanism import Codes, Decoder

Bits = npt.NDArray[np.int8]


def likeliest(report: Bits, rng: np.random.Generator) -> Codes:
    """The value of greatest likelihood: (..., k) bits to (...), ties at random.

    Any set bit; if there is none, any bit that was not sampled; else any value. The first set bit
    would favour low values.
    """
    # a set bit ranks 1, an unsampled one 0, a clear one -1; a number in [0, 1) breaks ties
    rank = np.where(report < 0, 0.0, 2.0 * report - 1.0)
    rank += rng.random(report.shape)
    return rank.argmax(axis=-1)


def first_set_bit(report: Bits) -> Codes:
    """The published decoder: the first set bit, 0 where there is none. Biased to low values."""
    return (report == 1).argmax(axis=-1)


def decode(report: Bits, rng: np.random.Generator, decoder: Decoder) -> Codes:
    return first_set_bit(report) if decoder == "published" else likeliest(report, rng)


def hit_probability(k: int, sampled: int, p: float, q: float) -> float:
    """Probability that `likeliest` finds the value; errors are uniform over the other k - 1.

    With N ~ Bin(d - 1, q) other set bits among the d sampled ones,
    E[1 / (1 + N)] = (1 - (1 - q)^d) / (d q).
    """
    d = sampled
    none_of_d = (1.0 - q) ** d
    share = 1.0 if q == 0.0 else -np.expm1(d * np.log1p(-q)) / (d * q)
    found = p * share
    if d == k:
        return float(found + (1.0 - p) * (1.0 - q) ** (d - 1) / k)
    return float(d / k * found + (1.0 - d / k) * none_of_d / (k - d))


def first_bit_transition(k: int, sampled: int, p: float, q: float) -> Floats:
    """Pr[first set bit | value] (k, k), 0 where there is none.

    Walks through the positions for all values at once. The state is the number of bits sampled so
    far: without replacement, the next position is sampled with probability
    (sampled - so far) / (positions left).
    """
    table = np.zeros((k, k))
    ones = np.full((k, k), q)
    np.fill_diagonal(ones, p)  # by value and position
    if sampled == k:
        clear = np.cumprod(1.0 - ones, axis=1)
        table[:, 0], table[:, 1:] = ones[:, 0], clear[:, :-1] * ones[:, 1:]
        table[:, 0] += clear[:, -1]
        return table
    state = np.zeros((k, sampled + 1))  # by value and number sampled: no bit set so far
    state[:, 0] = 1.0
    left = sampled - np.arange(sampled + 1)
    for j in range(k):
        sampled_here = state * (left / (k - j))
        table[:, j] = sampled_here.sum(axis=1) * ones[:, j]
        state -= sampled_here
        sampled_here *= 1.0 - ones[:, j, None]
        state[:, 1:] += sampled_here[:, :-1]
    table[:, 0] += state.sum(axis=1)
    return table
