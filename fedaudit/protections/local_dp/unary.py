"""Unary reports: one bit per value. How they are read, and how often they are read right.

A report of `sampled` of k bits (all of them, or -1 where a bit was not asked for). The bit of the
true value is one with probability `p`, any other with `q` < p.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fedaudit.arrays import Floats
from fedaudit.protections.local_dp.mechanism import Codes, Decoder

Bits = npt.NDArray[np.int8]


def likeliest(report: Bits, rng: np.random.Generator) -> Codes:
    """The value of greatest likelihood: (..., k) bits to (...), ties by lot.

    Any set bit; if there is none, any bit that was not asked for; else any at all. Taking the
    first set bit instead would favour low values.
    """
    # A set bit counts 1, an unasked one 0 and a clear one -1; a lot within [0, 1) breaks ties.
    rank = np.where(report < 0, 0.0, 2.0 * report - 1.0)
    rank += rng.random(report.shape)
    return rank.argmax(axis=-1)


def first_set_bit(report: Bits) -> Codes:
    """The published decoder: the first set bit, 0 where there is none. Biased to low values."""
    return (report == 1).argmax(axis=-1)


def decode(report: Bits, rng: np.random.Generator, decoder: Decoder) -> Codes:
    return first_set_bit(report) if decoder == "published" else likeliest(report, rng)


def hit_probability(k: int, sampled: int, p: float, q: float) -> float:
    """How often `likeliest` finds the value; errors are uniform over the other k - 1.

    With N ~ Bin(d - 1, q) other set bits among the d that were asked for,
    E[1 / (1 + N)] = (1 - (1 - q)^d) / (d q).
    """
    d = sampled
    none_of_d = (1.0 - q) ** d
    share = 1.0 if q == 0.0 else -np.expm1(d * np.log1p(-q)) / (d * q)
    asked = p * share
    if d == k:
        return float(asked + (1.0 - p) * (1.0 - q) ** (d - 1) / k)
    return float(d / k * asked + (1.0 - d / k) * none_of_d / (k - d))


def first_bit_transition(k: int, sampled: int, p: float, q: float) -> Floats:
    """Pr[first set bit | value] (k, k), 0 where there is none.

    By walking through the positions, for all values at once. The state is the number of bits that
    were asked for so far, since without replacement the next position is asked for with probability
    (sampled - asked) / (positions left).
    """
    table = np.zeros((k, k))
    ones = np.full((k, k), q)
    np.fill_diagonal(ones, p)  # by value and position
    if sampled == k:
        clear = np.cumprod(1.0 - ones, axis=1)
        table[:, 0], table[:, 1:] = ones[:, 0], clear[:, :-1] * ones[:, 1:]
        table[:, 0] += clear[:, -1]
        return table
    state = np.zeros((k, sampled + 1))  # by value and the number asked for: nothing set so far
    state[:, 0] = 1.0
    left = sampled - np.arange(sampled + 1)
    for j in range(k):
        asked = state * (left / (k - j))
        table[:, j] = asked.sum(axis=1) * ones[:, j]
        state -= asked
        asked *= 1.0 - ones[:, j, None]
        state[:, 1:] += asked[:, :-1]
    table[:, 0] += state.sum(axis=1)
    return table
