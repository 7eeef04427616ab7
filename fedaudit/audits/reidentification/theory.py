"""Chance of naming a row, and the ceiling that differential privacy sets."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from fedaudit.accounting import gaussian_delta

EPSILONS = np.concatenate([[0.0], np.geomspace(1e-3, 50.0, 400)])
"""Where the ceiling is minimised: any point gives a valid one."""


def chance(asked: Sequence[int], rows: Sequence[int]) -> float:
    """Share of rows named correctly by names in random order, for `asked` clients in each round."""
    return sum(k / p for k, p in zip(rows, asked, strict=True)) / sum(rows)


def ceiling(rows: int, delta: Callable[[float], float]) -> float:
    """The largest expected share of `rows` anonymous rows that any attack names correctly.

    min over epsilon of (e^epsilon + (K - 1) delta(epsilon)) / (K - 1 + e^epsilon), where swapping
    the data of any two clients changes the law of a round's rows by at most (epsilon,
    delta(epsilon)).

    Proof: let row i be of client c, and swap c with the client of a random row k. Naming row i as c
    becomes at most e^epsilon times as likely plus delta, and in the swapped round c sent row k.
    Summed over k the chances to name row i as the true sender of row k are at most 1. So the share
    p meets p <= p / K + e^epsilon (1 - p) / K + delta (K - 1) / K. Assumes that the senders of a
    round are in uniformly random order, independently of all other rounds, and that clients have
    no state between rounds besides their data. Whoever knows all of that data learns nothing about
    the order in one round from others. So one round counts, however many there are.
    """
    best = 1.0
    for e in EPSILONS:
        grown = math.exp(float(e))
        best = min(best, (grown + (rows - 1) * delta(float(e))) / (rows - 1 + grown))
    return best


def swapped_gaussians(noise_multiplier: float) -> Callable[[float], float]:
    """delta(epsilon) of swapping two clients whose clipped updates have noise `noise_multiplier` C.

    Each update moves by at most 2 C, so both together by 2 sqrt(2) C.
    """
    if noise_multiplier <= 0:
        return lambda _: 1.0
    return lambda e: gaussian_delta(e, noise_multiplier / (2.0 * math.sqrt(2.0)))


def swapped(epsilon: float, delta: float) -> Callable[[float], float]:
    """The same from a guarantee for replacing one client's whole data: two replacements in turn."""
    if math.isinf(epsilon):
        return lambda _: 1.0
    return lambda e: min(1.0, (1.0 + math.exp(epsilon)) * delta) if e >= 2.0 * epsilon else 1.0
