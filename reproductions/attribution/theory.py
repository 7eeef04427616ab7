"""Closed forms of [FedAttr] that the audit does not need: they are checked against simulation here.

Letters of the paper: K `clients`, N `others` in a subset beside the target, M `repeats`,
gamma `threshold`, m `signal`, eps `drift` of Assumption 1. The forms that the audit uses are in
`fedaudit.audits.attribution.theory`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedaudit.arrays import Floats
from fedaudit.audits.attribution.theory import Masking
from fedaudit.results import Estimate
from fedaudit.stats.intervals import wilson
from fedaudit.stats.query_plans import check_pairs, masks_enough, random_subsets

# -- the estimator: Theorems 1 and 2 ---------------------------------------------------------------


def variance_factor(clients: int, others: int, repeats: int) -> float:
    """2/M N(K-1-N)/(K-2): the estimator's variance in units of the others' ([FedAttr] Eq. (6)).

    Without rejection, the covariance of the estimate is exactly this factor times Sigma, the
    covariance of the other clients' updates (divided by K - 1). By Theorem 1 the mean of the
    estimate is the target's update, with or without rejection.
    """
    check_pairs(clients, others, repeats)
    return 2.0 / repeats * others * (clients - 1 - others) / (clients - 2)


def covariance_bound(
    updates: npt.ArrayLike, target: int, others: int, repeats: int, *, acceptance: float
) -> Floats:
    """Theorem 2 ([FedAttr] Eq. (6)): an upper bound (d, d) on the covariance of the estimate.

    `updates` (K, d); `acceptance` is the rate p_a of accepted draws, 1 without rejection.
    """
    x = np.asarray(updates, dtype=np.float64)
    rest = np.delete(x, target, axis=0)
    centred = rest - rest.mean(axis=0)
    sigma = centred.T @ centred / len(rest)
    return np.asarray(variance_factor(len(x), others, repeats) / acceptance * sigma)


def rejection_bound(clients: int, others: int, repeats: int) -> float:
    """[FedAttr] Eq. (26): 2 (2M^2 - M) exp(-N (1 - rho)^2 / (2 (2M - 1)^2)), at most 1.

    A union bound. It is 1, and so says nothing, at every published setting: measure the rate
    instead (`acceptance_rate`).
    """
    check_pairs(clients, others, repeats)
    free = 1.0 - others / (clients - 1)
    exponent = -others * free**2 / (2 * (2 * repeats - 1) ** 2)
    return min(1.0, 2 * (2 * repeats**2 - repeats) * math.exp(exponent))


def acceptance_bound(clients: int, others: int, repeats: int) -> float:
    """[FedAttr] Eq. (27): the acceptance rate is at least 1 minus Eq. (26)."""
    return 1.0 - rejection_bound(clients, others, repeats)


def acceptance_rate(
    clients: int,
    others: int,
    repeats: int,
    rng: np.random.Generator,
    *,
    draws: int = 100_000,
    confidence: float = 0.95,
) -> Estimate:
    """How often a draw of pairs is accepted, by simulation ([FedAttr] Appendix E)."""
    check_pairs(clients, others, repeats)
    block = max(1, 4_000_000 // (2 * repeats * clients))
    accepted = 0
    for start in range(0, draws, block):
        shape = (min(block, draws - start), 2, repeats)
        sums = random_subsets(shape, others, clients - 1, rng).sum(axis=2, dtype=np.int64)
        differences = sums[:, 0] - sums[:, 1]
        accepted += int(masks_enough(differences, clients, others, repeats).sum())
    return wilson(accepted, draws, confidence=confidence)


# -- errors over rounds: Theorem 3 -----------------------------------------------------------------


def valid_rounds(threshold: float, *, drift: float) -> float:
    """The last T at which Theorem 3 bounds false alarms at a fixed threshold: sqrt(T) eps < gamma.

    Infinite without drift.
    """
    return math.inf if drift == 0 else math.ceil((threshold / drift) ** 2) - 1


# -- what one release tells: Theorems 4 and 11 -----------------------------------------------------


def masking(contrast: npt.ArrayLike, target: int) -> Masking:
    """Masking of an estimate with weights `contrast` (K,) on the updates, 1 at the target."""
    alpha = np.delete(np.asarray(contrast, dtype=np.float64), target)
    c, fourth = float((alpha**2).sum()), float((alpha**4).sum())
    return Masking(c, c**2 / fourth if fourth else 0.0)


def expected_masking(clients: int, others: int, repeats: int) -> float:
    """E[c] = 2 N (1 - rho) / M before rejection: [FedAttr] Eq. (21).

    Twice the threshold aN of [FedAttr] Eqs. (5, 22, 23).
    """
    return 2 * others * (1 - others / (clients - 1)) / repeats


# -- from updates to scores: Theorem 13, Corollary 14 ----------------------------------------------


def estimator_variance(
    updates: npt.ArrayLike, target: int, others: int, repeats: int, *, acceptance: float
) -> float:
    """B, the trace of Theorem 2's bound ([FedAttr] Eq. (17))."""
    return float(
        np.trace(covariance_bound(updates, target, others, repeats, acceptance=acceptance))
    )


def score_bias(
    variance: float, *, lipschitz: float = math.inf, smoothness: float = math.inf
) -> float:
    """Theorem 13: how far the expected score is from the score of the true update.

    L sqrt(B) for an L-Lipschitz score ([FedAttr] Eq. (19)), H B / 2 for an H-Lipschitz gradient
    ([FedAttr] Eq. (20)); the smaller one if both are given.
    """
    return min(lipschitz * math.sqrt(variance), smoothness / 2 * variance)


@dataclass(frozen=True)
class Separation:
    """m and eps of Assumption 1; `holds` where m > eps."""

    signal: float
    drift: float

    @property
    def holds(self) -> bool:
        return self.signal > self.drift


def transferred(oracle: Separation, bias: float) -> Separation:
    """Corollary 14: separation of true updates' scores carries over with m0 - R and eps0 + R."""
    return Separation(oracle.signal - bias, oracle.drift + bias)
