"""Closed forms and bounds. Scalars in, scalars out.

An advantage is Pr[yes | member] + Pr[no | non-member] - 1 = 2 success - 1:
[ActiveMembership] Eq. (1). A lower bound holds for the named adversary alone, which may do worse
than guessing. So a negative bound is not raised to zero (nor a success to one half): it is true but
vacuous, see `is_vacuous`.

Letters, in formulas as the paper has them (index X left out), in shapes as in these modules:

    formulas                                        shapes
    n       `records` of a client                   n
    |X|     `universe`: all possible records        N
    P_M     `outside`, of the mechanism M           G games, r features
    d       `alphabet`, in Theorem 4                k values of a feature
    N       `patterns` of a record (N_X), from      N, in attention.py and patterns.py
            "attention" on
    d       dimension of a pattern (d_X)            d
    M, R    largest norm of a protected pattern, of the noise
    Delta   separation of patterns; in Theorem 1 the radius of a ball
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from fedaudit.errors import ConfigError, UsageError


def success(advantage: float) -> float:
    """(1 + advantage) / 2, a share of games, hence at least 0. [ActiveMembership] Eq. (1)"""
    return max(0.0, 0.5 * (1.0 + advantage))


def is_vacuous(floor: float) -> bool:
    """Whether a lower bound on a success is at most one half, which guessing reaches."""
    return floor <= 0.5


# -- fully connected layers -----------------------------------------------------------------------


def theorem1(outside: float, records: int, universe: int) -> float:
    """Advantage >= 1 - (n + |X| - 1) / (|X| - 1) P_M. [ActiveMembership] Theorem 1, Eq. (20)

    `outside` (P_M): the chance that a protected record leaves the ball of radius Delta around
    itself, averaged over the universe. `records` (n): the client's records. `universe` (|X|): the
    records from which the target is drawn uniformly. Printed with "=", proved with ">=".
    """
    check_game(records, universe)
    return 1.0 - (records + universe - 1) / (universe - 1) * outside


def theorem2(epsilon: float, delta: float = 0.0) -> float:
    """Advantage <= (e^eps - 1) / (e^eps + 1), for any adversary.

    [ActiveMembership] Eq. (4), [ActiveMembership] Theorem 2.

    `epsilon` must be the mechanism's exact worst case for a whole record: from a false claim this
    is not a bound. Beyond the paper: (epsilon, delta) adds 2 delta / (e^eps + 1).
    """
    small = math.exp(-epsilon)
    return min(1.0, math.tanh(0.5 * epsilon) + 2.0 * delta * small / (1.0 + small))


def theorem4(epsilon: float, records: int, alphabet: int) -> float:
    """Advantage >= (e^eps - n) / (e^eps + d - 1) under GRR on d values.

    [ActiveMembership] Eqs. (68, 69), [ActiveMembership] Theorem 4.

    A record is one of d values; some of them may never occur. (p - q)(1 - q)^(n - 1) is at least
    p - n q. The adversary says yes only to the target's own value.
    """
    check_game(records, alphabet)
    return -math.expm1(math.log(records) - epsilon) * _truthful_probability(epsilon, alphabet)


def grr_advantage(epsilon: float, records: int, alphabet: int, balls: npt.ArrayLike = 1) -> float:
    """The exact advantage under GRR: (p - q) (1 - q)^(n - 1). Ours, tighter than Theorem 4.

    Some report equals the target with probability 1 - (1-p)(1-q)^(n-1) if it is among the n
    records, and 1 - (1-q)^n if it is not. `balls` (N,): the number b of values that count as the
    target, none of which is another record. Then it is the mean of (p - q) (1 - b q)^(n - 1).
    """
    check_game(records, alphabet)
    p = _truthful_probability(epsilon, alphabet)
    q = p * math.exp(-epsilon)
    b = np.asarray(balls, dtype=np.float64)
    return float((p - q) * ((1.0 - b * q) ** (records - 1)).mean())


def _truthful_probability(epsilon: float, alphabet: int) -> float:
    """p = e^eps / (e^eps + d - 1), without overflow."""
    return 1.0 / (1.0 + (alphabet - 1) * math.exp(-epsilon))


def check_game(records: int, universe: int) -> None:
    """Refuse sizes for which a game cannot draw n different records and one more."""
    if not 1 <= records < universe:
        raise ConfigError(
            "there are not enough different records for a game",
            expected=f"1 to {max(universe - 1, 1)} records per client, fewer than the universe has",
            got=f"{records} of a universe of {universe}",
            remedy="give the client fewer records, or enlarge the universe",
        )


# -- ceilings -------------------------------------------------------------------------------------


def total_variation(table: npt.ArrayLike) -> float:
    """The largest total variation between two rows of Pr[output | input] (k, m)."""
    p = np.asarray(table, dtype=np.float64)
    return max(
        (float(0.5 * np.abs(p[i + 1 :] - p[i]).sum(axis=1).max()) for i in range(len(p) - 1)),
        default=0.0,
    )


def symmetric_total_variation(hit: float, miss: float, features: int) -> float:
    """Exact total variation between two records that differ in all `features`.

    A feature is kept with probability `hit` and becomes any one other value with `miss`. The
    likelihood ratio depends on A - B alone: A features equal the first record, B the second. So
    TV = Pr[A > B] - Pr[A < B].
    """
    step = np.array([miss, max(0.0, 1.0 - hit - miss), hit])
    law = np.ones(1)
    for bit in bin(features)[2:]:  # by squaring: the law of A - B for the leading bits
        law = np.convolve(law, law)
        if bit == "1":
            law = np.convolve(law, step)
    middle = len(law) // 2
    return float(min(1.0, abs(law[middle + 1 :].sum() - law[:middle].sum())))


def hellinger_ceiling(affinity: float, features: int) -> float:
    """TV <= sqrt(1 - BC^(2 r)) for r independent features with Bhattacharyya coefficient BC."""
    if affinity <= 0.0:
        return 1.0
    return math.sqrt(-math.expm1(2.0 * features * math.log(min(affinity, 1.0))))


def ceiling(table: npt.ArrayLike, features: int) -> tuple[float, str]:
    """A ceiling on any adversary's advantage, and its source in words.

    `table` (k, m): Pr[report | value] of one feature; `features` are drawn independently. An
    adversary that knows all other records decides between two values of one record. Its advantage
    is at most the largest total variation between the reports of two records.
    """
    p = np.asarray(table, dtype=np.float64)
    if features == 1:
        return total_variation(p), "exact: largest total variation between two values"
    k = len(p)
    others = p[~np.eye(k, dtype=bool)] if p.shape == (k, k) else np.empty(0)
    hit = np.diag(p) if p.shape == (k, k) else np.empty(0)
    alike = len(others) and np.ptp(others) < 1e-12 and np.ptp(hit) < 1e-12
    if alike and hit[0] >= others[0]:
        return symmetric_ceiling(k, float(hit[0]), features)
    root = np.sqrt(p)
    affinity = float((root @ root.T).min())
    return (
        hellinger_ceiling(affinity, features),
        f"Hellinger bound over {features} independent features",
    )


def symmetric_ceiling(alphabet: int, hit: float, features: int) -> tuple[float, str]:
    """`ceiling` for a law that keeps each of `alphabet` values with `hit`; errors are uniform."""
    value = symmetric_total_variation(hit, (1.0 - hit) / (alphabet - 1), features)
    return value, f"exact: two records that differ in all {features} features"


# -- attention ------------------------------------------------------------------------------------


def needed_separation(beta: float, patterns: int, norm: float) -> float:
    """2/(beta N) + ln(2 (N-1) N beta M^2) / beta. [ActiveMembership] Eqs. (5, 21, 26)

    `patterns` (N) per record; `norm` (M) bounds the norm of a protected pattern. Differs: (5)
    prints the square outside the logarithm's argument; it belongs to M, as in (26).
    """
    inside = 2.0 * (patterns - 1) * patterns * beta * norm * norm
    return 2.0 / (beta * patterns) + math.log(inside) / beta


def smallest_beta(separation: float, patterns: int, norm: float) -> float | None:
    """The smallest beta from which on Theorem 3's condition holds at this separation.

    None if there is none, because the separation is not positive.
    """
    if not separation > 0:
        return None
    # the right side of the condition rises, then falls; its maximum is at ln(...) = 1 - 2/N
    top = math.exp(1.0 - 2.0 / patterns) / (2.0 * (patterns - 1) * patterns * norm * norm)
    if needed_separation(top, patterns, norm) <= separation:
        return 0.0
    low, high = top, top
    while needed_separation(high, patterns, norm) > separation:
        high *= 2.0
    while high - low > 1e-12 * high:
        middle = 0.5 * (low + high)
        fine = needed_separation(middle, patterns, norm) <= separation
        low, high = (low, middle) if fine else (middle, high)
    return high


def check_beta(beta: float, separation: float, patterns: int, norm: float) -> None:
    """Refuse a beta that is too small for Theorem 3, and state one that is large enough.

    [ActiveMembership] Eq. (5)
    """
    enough = smallest_beta(separation, patterns, norm)
    if enough is None:
        raise UsageError(
            "Theorem 3 holds for no beta here: a pattern is closer to another than to itself",
            expected="protected patterns with a separation above 0",
            got=f"separation {separation:.4g}",
            remedy="normalise the patterns, or embed them in more dimensions",
        )
    if not beta > 0 or beta < enough * (1.0 - 1e-9):
        raise UsageError(
            "beta is too small for Theorem 3",
            expected=f"a beta large enough for a separation of {separation:.4g}",
            got=f"beta = {beta:g}",
            remedy=f"use beta = {enough * (1.0 + 1e-6):.7g} or more"
            if enough
            else "use any beta above 0",
        )


def retrieval_error(beta: float, separation: float, patterns: int, norm: float) -> float:
    """Delta-bar = 2 M (N-1) exp(2/N - beta Delta). [ActiveMembership] Eq. (39)"""
    return 2.0 * norm * (patterns - 1) * math.exp(2.0 / patterns - beta * separation)


def projection_radius(beta: float, patterns: int, norm: float) -> float:
    """1 / (beta N M): how far a query may lie from its pattern. [ActiveMembership] Lemma 1"""
    return 1.0 / (beta * patterns * norm)


def box_radius(beta: float, error: float, spread: float, noise: float) -> float:
    """3 Delta-bar + beta m_max^2 R. [ActiveMembership] Eqs. (6, 62)

    beta m_max^2 bounds a Jacobian: [ActiveMembership] Lemma 2, Eq. (22). `spread` (m_max): largest
    distance of a protected pattern from the mean of its record; `noise` (R): its largest norm.
    """
    return 3.0 * error + beta * spread * spread * noise


def theorem3(
    near_target: float, near_other: float, in_box: float, records: int, patterns: int
) -> float:
    """Advantage >= P_proj + P_proj^(2 n N) - P_box - 1.

    [ActiveMembership] Theorem 3, Eqs. (6, 27, 66).

    `near_target`, `near_other`: the chance that a pattern has hardly any component along the target
    v (heads 1, 3), and along the direction u that heads 2 and 4 leave out: [ActiveMembership]
    Eqs. (42, 43). The paper uses one P_proj for both. `in_box` (P_box): the chance that a protected
    pattern lies in the cube around the mean. Assumes independent patterns, and independent
    components along v and u.
    """
    return near_other + (near_target * near_other) ** (records * patterns) - in_box - 1.0
