"""P_M of Theorem 1: the chance that a protected record leaves the ball around itself.

Exact for small alphabets, otherwise by draws.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fedaudit.audits.active_membership.games.challenger import Challenge
from fedaudit.audits.active_membership.games.closest import decisions
from fedaudit.audits.active_membership.games.universe import Universe
from fedaudit.results import Estimate
from fedaudit.stats.intervals import clopper_pearson

EXACT_WORK = 2e9
"""Largest number of multiplications for an exact P_M."""


@dataclass(frozen=True, kw_only=True)
class EscapeChance:
    """P_M: the chance that a protected record leaves the ball of radius Delta around itself,
    averaged over the universe. `low` = `high` if it is exact."""

    value: float
    low: float
    high: float
    method: str


def escape_chance(
    universe: Universe,
    tau: float,
    rng: np.random.Generator,
    *,
    draws: int = 20_000,
    confidence: float = 0.95,
) -> EscapeChance:
    """P_M at radius `tau`. [ActiveMembership] Section 4.1"""
    if not universe.channel.protects:
        return EscapeChance(value=0.0, low=0.0, high=0.0, method="exact: nothing is randomised")
    exact = _exact_escape_chance(universe, tau)
    if exact is not None:
        return EscapeChance(
            value=exact, low=exact, high=exact, method="exact: law of a sum, by FFT"
        )
    each = rng.integers(0, len(universe), draws)
    one = Challenge(each[:, None], each, np.ones(draws, dtype=bool), np.arange(draws))
    away = int((~decisions(universe, one, tau, rng)).sum())
    share: Estimate = clopper_pearson(away, draws, confidence)
    return EscapeChance(
        value=share.value,
        low=share.low,
        high=share.high,
        method=f"{draws:,} draws, Clopper-Pearson at {100 * confidence:g} %",
    )


def _exact_escape_chance(universe: Universe, tau: float) -> float | None:
    """P_M from the distribution of one feature: distances add, so generating functions multiply.

    The sum wraps around a circle of length L. Tilted by e^(-theta d) with theta L = 40, wrapped
    terms have weight e^-40.
    """
    book = universe.channel.codes
    if universe.codes is None or book is None or book.transition is None:
        return None
    limit = math.ceil(tau / book.step - 1e-9)  # distances below this are inside
    if limit <= 0:
        return 1.0
    length = 1 << max(6, (4 * limit - 1).bit_length())
    k = book.alphabet
    work = float(len(universe)) * min(k, universe.features) * length + float(k) * k
    if work > EXACT_WORK:
        return None
    level = book.level(np.arange(k, dtype=np.int32)).astype(np.int64)
    apart = np.abs(level[:, None] - level)
    theta = 40.0 / length
    used, where = np.unique(universe.codes, return_inverse=True)
    spectra = np.empty((len(used), length // 2 + 1), dtype=np.complex128)
    for row, code in enumerate(used):
        tilted = book.transition[code] * np.exp(-theta * apart[code])
        law = np.bincount(apart[code] % length, weights=tilted, minlength=length)
        spectra[row] = np.fft.rfft(law)
    where = where.reshape(universe.codes.shape)
    back = np.exp(theta * np.arange(limit))
    inside = 0.0
    for own in where:
        product = np.ones(length // 2 + 1, dtype=np.complex128)
        for code, times in zip(*np.unique(own, return_counts=True), strict=True):
            product *= spectra[code] ** int(times)
        inside += float(np.fft.irfft(product, length)[:limit] @ back)
    return float(min(1.0, max(0.0, 1.0 - inside / len(universe))))
