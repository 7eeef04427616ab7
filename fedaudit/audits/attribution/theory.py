"""Closed forms of the paper: scalars in, scalars out, what each assumes beside it.

Letters of the paper: K `clients`, N `others` in a subset beside the target, M `repeats`,
T `rounds`, gamma `threshold`, m `signal`, eps `drift`, nu `noise` of Assumption 1. Acceptance rates
and E[c] are in `stats.query_plans`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedaudit.errors import UsageError
from fedaudit.results import Bound
from fedaudit.stats.query_plans import check_pairs

Floats = npt.NDArray[np.float64]


def _check(name: str, fine: bool, expected: str, got: object) -> None:
    if not fine:
        raise UsageError(
            f"{name} is out of range", expected=expected, got=str(got), remedy=f"change {name}"
        )


# -- the estimator: Theorems 1 and 2 ---------------------------------------------------------------


def variance_factor(clients: int, others: int, repeats: int) -> float:
    """2/M N(K-1-N)/(K-2): the estimator's variance in units of the others' ([FedAttr] Eq. (6)).

    Without rejection this is the covariance exactly, times Sigma of the other updates around their
    mean over K - 1; Theorem 1 says that the mean is the target's update, with rejection or without.
    """
    check_pairs(clients, others, repeats)
    return 2.0 / repeats * others * (clients - 1 - others) / (clients - 2)


def covariance_bound(
    updates: npt.ArrayLike, target: int, others: int, repeats: int, *, acceptance: float
) -> Floats:
    """Theorem 2 ([FedAttr] Eq. (6)): what the estimate's covariance (d, d) is below, as a matrix.

    `updates` (K, d); `acceptance` the rate p_a of accepted draws, 1 without rejection.
    """
    x = np.asarray(updates, dtype=np.float64)
    _check("acceptance", 0 < acceptance <= 1, "above 0, up to 1", acceptance)
    rest = np.delete(x, target, axis=0)
    centred = rest - rest.mean(axis=0)
    sigma = centred.T @ centred / len(rest)
    return np.asarray(variance_factor(len(x), others, repeats) / acceptance * sigma)


def rejection_bound(clients: int, others: int, repeats: int) -> float:
    """[FedAttr] Eq. (26): 2 (2M^2 - M) exp(-N (1 - rho)^2 / (2 (2M - 1)^2)), at most 1.

    A union bound: 1 (void) at every published setting. Measure the rate instead
    (`stats.query_plans.acceptance_rate`).
    """
    check_pairs(clients, others, repeats)
    free = 1.0 - others / (clients - 1)
    exponent = -others * free**2 / (2 * (2 * repeats - 1) ** 2)
    return min(1.0, 2 * (2 * repeats**2 - repeats) * math.exp(exponent))


def acceptance_bound(clients: int, others: int, repeats: int) -> float:
    """[FedAttr] Eq. (27): the acceptance rate is at least 1 minus Eq. (26)."""
    return 1.0 - rejection_bound(clients, others, repeats)


# -- errors over rounds: Theorem 3 -----------------------------------------------------------------


@dataclass(frozen=True)
class ErrorBounds:
    """Bounds on a benign client being flagged and on a marked one being missed; 1 says nothing."""

    false_positive: float
    false_negative: float


def error_bounds(
    rounds: int, threshold: float, *, signal: float, drift: float, noise: float
) -> ErrorBounds:
    """Theorem 3 ([FedAttr] Eq. (9)), under Assumption 1.

    Outside sqrt(T) eps < gamma < sqrt(T) m the theorem is void, and the bound is 1. With the
    paper's own constants (m 3.3, eps 1.2, nu 0.85, gamma 4) the first is 0.30 at T = 5, and void
    from T = 12 on: benign drift grows as sqrt(T), a fixed threshold does not.
    """
    _check("rounds", rounds >= 1, "at least 1", rounds)
    _check("noise", noise > 0, "above 0", noise)
    _check("drift", drift >= 0, "at least 0", drift)
    grown = math.sqrt(rounds)

    def tail(margin: float) -> float:
        return math.exp(-(margin**2) / (2 * noise**2)) if margin > 0 else 1.0

    return ErrorBounds(tail(threshold - grown * drift), tail(grown * signal - threshold))


def valid_rounds(threshold: float, *, drift: float) -> float:
    """The last T at which a fixed threshold says anything of benign clients: sqrt(T) eps < gamma.

    Infinite without drift.
    """
    if drift == 0:
        return math.inf
    squared = (threshold / drift) ** 2
    return math.ceil(squared) - 1


def growing_threshold(rounds: int, *, drift: float, noise: float, error: float) -> float:
    """The threshold at which Theorem 3 gives `error` for benign clients, at any fixed T.

    gamma_T = sqrt(T) eps + nu sqrt(2 ln(1 / error)).
    """
    _check("error", 0 < error < 1, "between 0 and 1", error)
    return math.sqrt(rounds) * drift + noise * math.sqrt(2 * math.log(1 / error))


def anytime_threshold(
    rounds: int, *, drift: float, noise: float, error: float, tuned_to: float = 5.0
) -> float:
    """A threshold that a benign client crosses at no round at all, but with probability `error`.

    Under Assumption 1 S_T - T eps is at most a nu-sub-Gaussian sum; Robbins' mixture over slopes
    with variance 1 / (nu^2 rho) bounds all rounds at once by Ville's inequality:
    S_T - T eps < nu sqrt((T + rho) (2 ln(1/error) + ln(1 + T/rho))). `tuned_to` is rho: about the
    round at which the boundary is closest to that of a fixed T. The paper proposes to stop when
    the margin suffices (Appendix H.4), which a fixed threshold does not allow.
    """
    _check("error", 0 < error < 1, "between 0 and 1", error)
    _check("tuned_to", tuned_to > 0, "above 0", tuned_to)
    inside = 2 * math.log(1 / error) + math.log1p(rounds / tuned_to)
    return math.sqrt(rounds) * drift + noise * math.sqrt((1 + tuned_to / rounds) * inside)


# -- what one release tells: Theorems 4 and 11 -----------------------------------------------------


@dataclass(frozen=True)
class Masking:
    """c = sum alpha^2 over the others, and M_eff = c^2 / sum alpha^4 ([FedAttr] Eq. (5))."""

    strength: float
    effective: float


def masking(contrast: npt.ArrayLike, target: int) -> Masking:
    """Of one estimate with weights `contrast` (K,) on all clients' updates, 1 at the target."""
    alpha = np.delete(np.asarray(contrast, dtype=np.float64), target)
    c, fourth = float((alpha**2).sum()), float((alpha**4).sum())
    return Masking(c, c**2 / fourth if fourth else 0.0)


RELEASE = (
    "one estimate seen alone, i.i.d. updates with independent whitened coordinates, and a further "
    "term C_xi d / M_eff of unspecified constant left out: with Gaussian updates it is 0"
)


def leakage(masked: Masking, *, dimensions: float = 1.0) -> float:
    """Theorem 11, Gaussian term: d/2 ln(1 + 1/c) nats; infinite if nothing masks the target.

    The theorem's second term, C_xi d / M_eff, has a constant that is nowhere specified. For
    Gaussian updates it is zero, and the Gaussian term is the mutual information itself.
    """
    if masked.strength == 0:
        return math.inf
    return dimensions / 2 * math.log1p(1 / masked.strength)


def leakage_bound(clients: int, others: int, repeats: int, *, dimensions: float = 1.0) -> Bound:
    """Theorem 4, Gaussian term, at the weakest masking that is accepted: c = aN.

    Conditional: see `assumes`. It speaks of one release; all releases of a round together give
    every update away (`audits.query_plan`).
    """
    check_pairs(clients, others, repeats)
    weakest = (1 - others / (clients - 1)) / repeats * others
    return Bound(
        value=leakage(Masking(weakest, weakest), dimensions=dimensions),
        kind="reference",
        of="leakage_of_one_release",
        source="[FedAttr] Theorem 4",
        assumes=RELEASE,
    )


# -- from updates to scores: Theorem 13, Corollary 14 ----------------------------------------------


def estimator_variance(
    updates: npt.ArrayLike, target: int, others: int, repeats: int, *, acceptance: float
) -> float:
    """B = tr of Theorem 2's bound ([FedAttr] Eq. (17))."""
    return float(
        np.trace(covariance_bound(updates, target, others, repeats, acceptance=acceptance))
    )


def score_bias(
    variance: float, *, lipschitz: float | None = None, smoothness: float | None = None
) -> float:
    """Theorem 13: how far the expected score is from the score of the true update.

    L sqrt(B) for an L-Lipschitz score ([FedAttr] Eq. (19)), H B / 2 for an H-Lipschitz gradient
    ([FedAttr] Eq. (20)); the smaller one if both are given.
    """
    _check("variance", variance >= 0, "at least 0", variance)
    bounds = []
    if lipschitz is not None:
        bounds.append(lipschitz * math.sqrt(variance))
    if smoothness is not None:
        bounds.append(smoothness / 2 * variance)
    if not bounds:
        raise UsageError(
            "a bound on the score's error needs its regularity",
            expected="a Lipschitz constant of the score, or of its gradient",
            got="neither",
            remedy="pass lipschitz or smoothness",
        )
    return min(bounds)


@dataclass(frozen=True)
class Separation:
    """Assumption 1's m and eps; `holds` where m > eps."""

    signal: float
    drift: float

    @property
    def holds(self) -> bool:
        return self.signal > self.drift


def transferred(oracle: Separation, bias: float) -> Separation:
    """Corollary 14: separation of true updates' scores carries over with m0 - R and eps0 + R."""
    _check("bias", bias >= 0, "at least 0", bias)
    return Separation(oracle.signal - bias, oracle.drift + bias)
