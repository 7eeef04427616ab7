"""Closed forms of the paper: scalars in, scalars out; each docstring states its assumptions.

Letters of the paper: K `clients`, N `others` in a subset beside the target, M `repeats`,
T `rounds`, gamma `threshold`, m `signal`, eps `drift`, nu `noise` of Assumption 1. Forms that
only the reproduction uses are in `reproductions/attribution/theory.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedaudit.results import Bound
from fedaudit.settings import Count, Fraction, NonNegative, Positive, require
from fedaudit.stats.query_plans import check_pairs

# -- errors over rounds: Theorem 3 -----------------------------------------------------------------


@dataclass(frozen=True)
class ErrorBounds:
    """Bounds on the chance to flag a benign client and to miss a marked one."""

    false_positive: float
    false_negative: float


def error_bounds(
    rounds: int, threshold: float, *, signal: float, drift: float, noise: float
) -> ErrorBounds:
    """Theorem 3 ([FedAttr] Eq. (9)), under Assumption 1.

    Outside sqrt(T) eps < gamma < sqrt(T) m the theorem is void, and the bound is 1. With the
    paper's own constants (m 3.3, eps 1.2, nu 0.85, gamma 4) the false-positive bound is 0.30 at
    T = 5 and void from T = 12 on: benign drift grows as sqrt(T), a fixed threshold does not.
    """
    require(Count, rounds=rounds)
    require(Positive, noise=noise)
    require(NonNegative, drift=drift)
    grown = math.sqrt(rounds)

    def tail(margin: float) -> float:
        return math.exp(-(margin**2) / (2 * noise**2)) if margin > 0 else 1.0

    return ErrorBounds(tail(threshold - grown * drift), tail(grown * signal - threshold))


def growing_threshold(rounds: int, *, drift: float, noise: float, error: float) -> float:
    """The threshold at which Theorem 3 gives `error` for benign clients, at any fixed T.

    gamma_T = sqrt(T) eps + nu sqrt(2 ln(1 / error)).
    """
    require(Fraction, error=error)
    return math.sqrt(rounds) * drift + noise * math.sqrt(2 * math.log(1 / error))


def anytime_threshold(
    rounds: int, *, drift: float, noise: float, error: float, tuned_to: float = 5.0
) -> float:
    """A threshold that a benign client ever crosses, at any round, with probability `error` at
    most.

    Under Assumption 1 S_T - T eps is at most a nu-sub-Gaussian sum; Robbins' mixture over slopes
    with variance 1 / (nu^2 rho) bounds all rounds at once by Ville's inequality:
    S_T - T eps < nu sqrt((T + rho) (2 ln(1/error) + ln(1 + T/rho))). `tuned_to` is rho: about the
    round at which the boundary is closest to that of a fixed T. The paper stops when the margin
    suffices (Appendix H.4); a fixed threshold is not valid for that.
    """
    require(Fraction, error=error)
    require(Positive, tuned_to=tuned_to)
    inside = 2 * math.log(1 / error) + math.log1p(rounds / tuned_to)
    return math.sqrt(rounds) * drift + noise * math.sqrt((1 + tuned_to / rounds) * inside)


# -- leakage of one release: Theorems 4 and 11 -----------------------------------------------------


@dataclass(frozen=True)
class Masking:
    """c = sum alpha^2 over the others, and M_eff = c^2 / sum alpha^4 ([FedAttr] Eq. (5))."""

    strength: float
    effective: float


RELEASE = (
    "one estimate seen alone, and i.i.d. updates with independent whitened coordinates; leaves out "
    "a term C_xi d / M_eff of unspecified constant, which is 0 for Gaussian updates"
)


def leakage(masked: Masking, *, dimensions: float = 1.0) -> float:
    """Theorem 11, Gaussian term: d/2 ln(1 + 1/c) nats; infinite if nothing masks the target.

    The paper does not specify the constant of the second term, C_xi d / M_eff. For Gaussian updates
    this term is zero, and the Gaussian term is the mutual information itself.
    """
    if masked.strength == 0:
        return math.inf
    return dimensions / 2 * math.log1p(1 / masked.strength)


def leakage_bound(clients: int, others: int, repeats: int, *, dimensions: float = 1.0) -> Bound:
    """Theorem 4, Gaussian term, at the weakest accepted masking: c = aN.

    Conditional: see `assumes`. Covers one release only; all releases of a round together reveal
    every update (`audits.query_plan`).
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
