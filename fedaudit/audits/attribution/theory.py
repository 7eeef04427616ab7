"""Closed forms of the paper: scalars in, scalars out; each docstring states its assumptions.

Letters of the paper: K `clients`, N `others` in a subset beside the target, M `repeats`,
T `rounds`, gamma `threshold`, m `signal`, eps `drift`, nu `noise` of Assumption 1. Forms that
only the reproduction uses are in `reproductions/attribution/theory.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedaudit.errors import UsageError
from fedaudit.results import Bound
from fedaudit.stats.query_plans import check_pairs


def _check(name: str, fine: bool, expected: str, got: object) -> None:
    if not fine:
        raise UsageError(
            f"{name} is out of range", expected=expected, got=str(got), remedy=f"change {name}"
        )


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
