"""Unary reports: one bit per value. How they are read, and how often they are read right.

A report of `sampled` of k bits (all of them, or -1 where a bit was not asked for). The bit of the
true value is one with probability `p`, any other with `q` < p.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fedaudit.protections.local_dp.mechanism import Codes, Decoder, Floats

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
    """Pr[first set bit | value] (k, k), by walking through the positions.

    The state is the number of set bits that were asked for so far, since without replacement the
    next position is asked for with probability (sampled - asked) / (positions left).
    """
    table = np.zeros((k, k))
    for v in range(k):
        clear = np.zeros(sampled + 1)  # by the number asked for: nothing set so far
        clear[0] = 1.0
        for j in range(k):
            asked = (sampled - np.arange(sampled + 1)) / (k - j)
            one = p if j == v else q
            table[v, j] = (clear * asked).sum() * one
            moved = clear * asked * (1.0 - one)
            clear = clear * (1.0 - asked)
            clear[1:] += moved[:-1]
        table[v, 0] += clear.sum()
    return table
