"""Turn noise into epsilon with an established accountant, and state what the epsilon means.

An epsilon means nothing without its unit (record, person, client), neighbouring relation and
trusted party: `Guarantee` keeps them together. Two accountants compose schedules of
Poisson-subsampled Gaussian steps: dp-accounting's privacy loss distributions ("pld", the default,
tight and rounded upwards), and Renyi divergences ("rdp", which most papers report).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property, lru_cache
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from annotated_types import Gt, Lt

from fedaudit.codec import json_number
from fedaudit.errors import ConfigError, UsageError
from fedaudit.multipliers import joint_multiplier as joint_multiplier
from fedaudit.settings import Positive, require

Unit = Literal["record", "person", "client", "example"]
Relation = Literal["add_or_remove", "replace", "zero_out"]
Accountant = Literal["pld", "rdp"]

ORDERS = np.array([1 + i / 10 for i in range(1, 100)] + list(range(12, 64)), dtype=np.float64)
"""Renyi orders of the published figures: 1.1 to 10.9 in steps of 0.1, then 12 to 63."""

_LARGEST_LOSS = 700.0
"""Epsilons from here on promise nothing: e^epsilon overflows soon after."""

FINE = 0.3
"""Noise multipliers below it have privacy losses too large for a fine grid."""
_DISCRETISATION = 1e-3  # of privacy losses; rounds upwards, so a coarser grid stays valid


@dataclass(frozen=True, kw_only=True)
class Guarantee:
    """(epsilon, delta)-differential privacy of `unit` under `relation`, if `trust` is honest.

    `covers` describes the composition (steps, rounds); `by` names the accountant. Of composed
    Gaussian steps, `noise_multiplier` and `exposure` give the whole curve, of which (epsilon,
    delta) is one point.
    """

    epsilon: float
    delta: float
    unit: Unit
    relation: Relation = "add_or_remove"
    trust: str = ""
    covers: str = ""
    by: str = "pld"
    noise_multiplier: float | None = None
    exposure: Exposure | None = None

    def to_dict(self) -> dict[str, Any]:
        raw = {k: v for k, v in asdict(self).items() if v is not None}
        raw["epsilon"] = json_number(self.epsilon)
        return raw

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Guarantee:
        values = {f.name: raw[f.name] for f in fields(cls) if f.name in raw}
        values["epsilon"] = float(values["epsilon"])
        if isinstance(values.get("exposure"), Mapping):
            values["exposure"] = Exposure(**values["exposure"])
        return cls(**values)

    def curve(self) -> PrivacyCurve:
        """The trade-off curve: of the whole composition if it is known, else of one point."""
        if self.exposure is not None and self.noise_multiplier is not None:
            return privacy_curve(self.exposure, self.noise_multiplier, relation=self.relation)
        return PrivacyCurve.of_point(self.epsilon, self.delta)


@dataclass(frozen=True, kw_only=True)
class Exposure:
    """How often a client's data was used: `steps` noisy steps in each of `rounds` rounds.

    Each step includes a unit with probability `sampling_rate` (1: always).
    """

    sampling_rate: float
    steps: int
    rounds: int

    @property
    def total(self) -> int:
        return self.steps * self.rounds

    @property
    def one_release_per_round(self) -> Exposure:
        """Exposure to noise on a whole update or sum: one release per round, no sampling."""
        return Exposure(sampling_rate=1.0, steps=1, rounds=self.rounds)


Delta = Annotated[float, Gt(0), Lt(1), "choose one smaller than 1 / records"]


def check_delta(delta: float) -> float:
    require(Delta, ConfigError, delta=delta, remedy="delta = 1e-5")
    return delta


def check_one_noise(
    protection: str, noise_multiplier: object, target: float | None, default: float = 1.0
) -> None:
    """Refuse a target epsilon together with a noise multiplier other than the default."""
    if target is not None and noise_multiplier != default:
        raise ConfigError(
            f"protections.{protection} has two settings for the noise",
            expected="either noise_multiplier or epsilon",
            got=f"{noise_multiplier} and {target}",
            remedy="remove one of them",
        )


# -- Renyi divergence of one subsampled Gaussian step ---------------------------------------------


@lru_cache(maxsize=512)
def _renyi(sampling_rate: float, noise_multiplier: float) -> tuple[float, ...]:
    q, z, a = sampling_rate, noise_multiplier, ORDERS
    if q == 1.0:
        return tuple(a / (2 * z * z))
    # log E_{x ~ N(0, z^2)} [(1 - q + q exp((2x - 1) / (2 z^2)))^a] by quadrature on a grid that
    # covers the largest order's mode (near x = a) with 14 standard deviations to spare. The usual
    # series does not converge at orders close to 1, which are the ones that matter for small z.
    x = np.linspace(-14 * z - 1, a.max() + 14 * z + 1, 20001)
    ratio = np.logaddexp(np.log1p(-q), np.log(q) + (2 * x - 1) / (2 * z * z))
    density = -x * x / (2 * z * z) - math.log(z) - 0.5 * math.log(2 * math.pi)
    f = a[:, None] * ratio + density
    top = f.max(axis=1)
    log_mean = top + np.log(np.exp(f - top[:, None]).sum(axis=1)) + math.log(x[1] - x[0])
    return tuple(log_mean / (a - 1))


def renyi(sampling_rate: float, noise_multiplier: float) -> npt.NDArray[np.float64]:
    """Renyi divergence of one Poisson-subsampled Gaussian step at every order of ORDERS."""
    return np.array(_renyi(float(sampling_rate), float(noise_multiplier)))


def epsilon_from_renyi(divergence: npt.NDArray[np.float64], delta: float) -> float:
    """The smallest epsilon over the orders: rdp - (ln delta + ln a)/(a - 1) + ln((a - 1)/a)."""
    a = ORDERS
    values = divergence - (math.log(delta) + np.log(a)) / (a - 1) + np.log((a - 1) / a)
    return max(0.0, float(values.min()))


# -- schedules ------------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def _epsilon(q: float, z: float, steps: int, delta: float, by: str) -> float:
    if z == 0:
        return math.inf
    if steps == 0 or q == 0:
        return 0.0
    if by == "rdp":
        return epsilon_from_renyi(steps * renyi(q, z), delta)
    if q == 1 and z < FINE:
        # all steps are one Gaussian, exactly; a grid of so large losses takes gigabytes
        nothing = np.zeros(1)
        return PrivacyCurve(nothing, nothing, math.sqrt(steps) / z).epsilon_at(delta)
    import dp_accounting
    from dp_accounting import pld

    one: Any = dp_accounting.GaussianDpEvent(z)
    if q < 1:
        one = dp_accounting.PoissonSampledDpEvent(q, one)
    accountant = pld.PLDAccountant(value_discretization_interval=_interval(z))
    accountant.compose(dp_accounting.SelfComposedDpEvent(one, steps))
    return float(accountant.get_epsilon(delta))


def _interval(noise_multiplier: float) -> float:
    """Grid of privacy losses: coarser for a tiny multiplier, whose loss range is huge."""
    return _DISCRETISATION if noise_multiplier >= FINE else 0.05


def epsilon(
    exposure: Exposure, noise_multiplier: float, delta: float, *, by: Accountant = "pld"
) -> float:
    """Epsilon at `delta` over all steps of all rounds; infinite without noise."""
    check_delta(delta)
    if noise_multiplier < 0 or not 0 <= exposure.sampling_rate <= 1:
        raise UsageError(
            "the accountant cannot compose this schedule",
            expected="noise_multiplier >= 0 and a sampling rate in [0, 1]",
            got=f"{noise_multiplier:g} and {exposure.sampling_rate:g}",
            remedy="correct the values",
        )
    return _epsilon(
        float(exposure.sampling_rate), float(noise_multiplier), int(exposure.total), delta, by
    )


# -- what an adversary can reach ------------------------------------------------------------------


def total_variation(
    exposure: Exposure, noise_multiplier: float, *, relation: Relation = "replace"
) -> float:
    """Largest total variation between all releases of two neighbouring datasets; 1 without noise.

    Every adversary that sees all steps, and knows everything but the one unit, is right with
    probability at most (1 + TV) / 2 when a fair coin decides which dataset was used. Noise is
    `noise_multiplier` x clip on a sum: adding or removing a unit moves the sum by the clip,
    replacing it by twice that.
    """
    shift = _gaussian_shift(exposure, noise_multiplier, relation)
    if shift is not None:
        from scipy.special import ndtr

        return float(2 * ndtr(shift / 2) - 1)
    losses = _privacy_losses(exposure, noise_multiplier, relation)
    return min(1.0, float(losses.get_delta_for_epsilon(0.0)))


def success_ceiling(
    exposure: Exposure, noise_multiplier: float, *, relation: Relation = "replace"
) -> float:
    """(1 + TV) / 2: the most games with a fair coin that any adversary can win."""
    return 0.5 * (1 + total_variation(exposure, noise_multiplier, relation=relation))


def trade_off(
    exposure: Exposure,
    noise_multiplier: float,
    rates: npt.ArrayLike,
    *,
    relation: Relation = "replace",
) -> npt.NDArray[np.float64]:
    """Largest true-positive rate at each false-positive rate of `rates` (m,): (m,).

    One Gaussian, or several composed: Phi(Phi^-1(f) + mu). With sampling:
    min over epsilon of e^epsilon f + delta(epsilon), with the delta of the composed losses.
    """
    f = np.asarray(rates, dtype=np.float64)
    shift = _gaussian_shift(exposure, noise_multiplier, relation)
    if shift is not None:
        from scipy.special import ndtr, ndtri

        if math.isinf(shift):
            return np.ones_like(f)
        return np.asarray(ndtr(ndtri(f) + shift))
    losses = _privacy_losses(exposure, noise_multiplier, relation)
    at = np.linspace(-40.0, 40.0, 3201)  # the minimum over a grid is still an upper bound
    delta = np.array([losses.get_delta_for_epsilon(float(e)) for e in at])
    return np.asarray(np.minimum(1.0, (np.exp(at) * f[..., None] + delta).min(axis=-1)))


@dataclass(frozen=True)
class PrivacyCurve:
    """The trade-off curve of a composed schedule: its deltas (n,) on a grid of epsilons (n,).

    `shift` is set if all steps together are one Gaussian mechanism: the curve is then exact.
    Otherwise deltas are rounded upwards, so that the curve claims no privacy that is not there.
    """

    epsilons: npt.NDArray[np.float64]
    deltas: npt.NDArray[np.float64]
    shift: float | None = None

    @classmethod
    def of_point(cls, epsilon: float, delta: float) -> PrivacyCurve:
        """The curve of (epsilon, delta) alone, in both directions."""
        e = min(epsilon, _LARGEST_LOSS)
        given = delta if e == epsilon else 1.0
        return cls(np.array([-e, e]), np.array([1 - math.exp(-e) * (1 - given), given]))

    @classmethod
    def weakest(cls, curves: Sequence[PrivacyCurve]) -> PrivacyCurve:
        """A curve that lies above all of these: it bounds units pooled under any of them."""
        shifts = [c.shift for c in curves]
        if len({id(c) for c in curves}) == 1:
            return curves[0]
        if None not in shifts:
            return cls(np.zeros(1), np.zeros(1), max(s for s in shifts if s is not None))
        grids = [c.epsilons for c in curves if c.shift is None]
        grid = np.unique(np.concatenate(grids))
        return cls(grid, np.max([c.deltas_at(grid) for c in curves], axis=0))

    def deltas_at(self, epsilons: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Deltas (m,) at other epsilons (m,), rounded upwards: delta is convex in e^epsilon."""
        if self.shift is not None:
            if self.shift == 0 or math.isinf(self.shift):
                none = np.maximum(0.0, 1 - np.exp(epsilons))
                return none if self.shift == 0 else np.ones_like(epsilons)
            from scipy.special import ndtr

            half, other = self.shift / 2, epsilons / self.shift
            exact = ndtr(half - other) - np.exp(epsilons) * ndtr(-half - other)
            return np.asarray(np.clip(exact, 0.0, 1.0))
        between = np.interp(np.exp(epsilons), np.exp(self.epsilons), self.deltas)
        return np.asarray(np.where(epsilons < self.epsilons[0], 1.0, between))

    def most_true(self, false_positive: float) -> float:
        """The largest true-positive rate that is possible at a false-positive rate."""
        f = min(max(false_positive, 0.0), 1.0)
        if self.shift is not None:
            from scipy.special import ndtr, ndtri

            return 1.0 if math.isinf(self.shift) else float(ndtr(ndtri(f) + self.shift))
        return max(f, min(1.0, float((np.exp(self.epsilons) * f + self.deltas).min())))

    @cached_property
    def area(self) -> float:
        """The largest area under an ROC curve, rounded upwards by at most 0.001."""
        if self.shift is not None:
            from scipy.special import ndtr

            return float(ndtr(self.shift / math.sqrt(2.0)))
        rates = np.concatenate([[0.0], np.logspace(-6, -2, 200), np.linspace(0.011, 1.0, 990)])
        heights = np.array([self.most_true(float(f)) for f in rates[1:]])
        return float(heights @ np.diff(rates))  # the curve grows: right ends bound it

    @cached_property
    def total_variation(self) -> float:
        """Delta at epsilon 0: no adversary guesses a fair coin correctly more often than
        (1 + TV) / 2."""
        if self.shift is not None:
            from scipy.special import ndtr

            return float(2 * ndtr(self.shift / 2) - 1)
        return min(1.0, float(self.deltas_at(np.zeros(1))[0]))

    @cached_property
    def _pieces(self) -> tuple[list[float], list[float], list[float]]:
        """Upper envelope of the lines e^-epsilon (x - delta): starts, slopes, values at x = 0."""
        slope = np.exp(-self.epsilons[::-1])  # grows along the envelope
        at_zero = -slope * self.deltas[::-1]
        starts, slopes, zeros = [-math.inf], [float(slope[0])], [float(at_zero[0])]
        for a, b in zip(slope[1:], at_zero[1:], strict=True):
            while True:
                if a <= slopes[-1]:
                    break
                crossing = (zeros[-1] - b) / (a - slopes[-1])
                if crossing > starts[-1]:
                    starts.append(float(crossing))
                    slopes.append(float(a))
                    zeros.append(float(b))
                    break
                starts.pop(), slopes.pop(), zeros.pop()
        return starts, slopes, zeros

    def least_false(self, true_positive: float) -> float:
        """The smallest false-positive rate at which a true-positive rate is possible."""
        if true_positive <= 0.0:
            return 0.0
        if self.shift is not None:
            from scipy.special import ndtr, ndtri

            return float(ndtr(ndtri(min(true_positive, 1.0)) - self.shift))
        starts, slopes, zeros = self._pieces
        i = bisect_right(starts, true_positive) - 1
        return max(0.0, slopes[i] * true_positive + zeros[i])

    def epsilon_at(self, delta: float, *, below: bool = False) -> float:
        """The smallest epsilon of the grid's curve at `delta`.

        Rounded upwards, as a promise has to be; `below`: downwards, as a lower bound has to be.
        """
        if self.shift is not None:
            if self.shift == 0 or math.isinf(self.shift):
                return self.shift
            low, high = 0.0, 1.0
            while gaussian_delta(high, 1 / self.shift) > delta:
                low, high = high, 2 * high
            while high - low > 1e-9:
                middle = 0.5 * (low + high)
                fits = gaussian_delta(middle, 1 / self.shift) <= delta
                low, high = (low, middle) if fits else (middle, high)
            return low if below else high
        met = np.flatnonzero((self.epsilons >= 0) & (self.deltas <= delta))
        if below:  # at the point before, delta is exceeded
            before = int(met[0]) - 1 if len(met) else len(self.epsilons) - 1
            return max(0.0, float(self.epsilons[before])) if before >= 0 else 0.0
        return float(self.epsilons[met[0]]) if len(met) else math.inf


def privacy_curve(
    exposure: Exposure, noise_multiplier: float, *, relation: Relation = "add_or_remove"
) -> PrivacyCurve:
    """The trade-off curve of all steps of all rounds of a schedule.

    On a grid ten times as coarse as that of `epsilon`, with the same rounding: a curve is one of
    dozens in a search. Much noise has small losses, and the grid follows them.
    """
    shift = _gaussian_shift(exposure, noise_multiplier, relation)
    if shift is not None:
        return PrivacyCurve(np.zeros(1), np.zeros(1), shift)
    return _curve(float(exposure.sampling_rate), float(noise_multiplier), exposure.total, relation)


_CURVE_POINTS = 200


@lru_cache(maxsize=256)
def _curve(q: float, z: float, steps: int, relation: Relation) -> PrivacyCurve:
    losses = _composed_losses(q, z, steps, relation, 10 / max(1.0, z))
    most = max(1.0, min(200.0, float(losses.get_epsilon_for_delta(1e-12))))
    positive = np.linspace(0.0, most, _CURVE_POINTS)
    delta = np.minimum(1.0, np.asarray(losses.get_delta_for_epsilon(positive)))
    # the other half by symmetry: adding and removing swap the two kinds of error
    negative = 1 - np.exp(-positive[1:]) * (1 - delta[1:])
    return PrivacyCurve(
        np.concatenate([-positive[:0:-1], positive]), np.concatenate([negative[::-1], delta])
    )


def _gaussian_shift(exposure: Exposure, z: float, relation: Relation) -> float | None:
    """Distance of the means in deviations if all steps together are one Gaussian; else None.

    Composing T Gaussian mechanisms of shift mu gives one of shift mu sqrt(T), exactly.
    """
    q, steps = exposure.sampling_rate, exposure.total
    if z < 0 or not 0 <= q <= 1:
        raise UsageError(
            "no bound for this schedule",
            expected="noise_multiplier >= 0 and a sampling rate in [0, 1]",
            got=f"{z:g} and {q:g}",
            remedy="correct the values",
        )
    if steps == 0 or q == 0:
        return 0.0
    moved = 2.0 if relation == "replace" else 1.0
    # practically no noise; the accountant would run out of memory
    if z == 0 or (q < 1 and steps * q * moved**2 > 2 * z * z * NO_PROMISE):
        return math.inf
    return moved * math.sqrt(steps) / z if q == 1 else None


def _privacy_losses(exposure: Exposure, z: float, relation: Relation) -> Any:
    """The composed privacy loss distribution, rounded upwards."""
    return _composed_losses(float(exposure.sampling_rate), float(z), exposure.total, relation)


@lru_cache(maxsize=64)
def _composed_losses(q: float, z: float, steps: int, relation: str, coarser: float = 1.0) -> Any:
    from dp_accounting import NeighboringRelation
    from dp_accounting.pld import privacy_loss_distribution

    known = {
        "replace": NeighboringRelation.REPLACE_ONE,
        "add_or_remove": NeighboringRelation.ADD_OR_REMOVE_ONE,
        "zero_out": NeighboringRelation.REPLACE_SPECIAL,
    }
    one = privacy_loss_distribution.from_gaussian_mechanism(
        z,
        sampling_prob=q,
        value_discretization_interval=coarser * _interval(z),
        neighboring_relation=known[relation],
    )
    return one.self_compose(steps)


def calibrate(target: float, exposure: Exposure, delta: float, *, by: Accountant = "pld") -> float:
    """The smallest noise multiplier (to 0.1 %) whose epsilon is at most `target`."""
    require(Positive, ConfigError, epsilon=target, remedy="epsilon = 8")
    return smallest_multiplier(lambda z: epsilon(exposure, z, delta, by=by) <= target)


def gaussian_delta(at: float, noise_multiplier: float) -> float:
    """Delta of one Gaussian mechanism at epsilon `at` (Balle and Wang 2018, Theorem 8)."""
    from scipy.special import log_ndtr

    if math.isinf(at):
        return 0.0
    half, shift = 1 / (2 * noise_multiplier), at * noise_multiplier
    both = log_ndtr(half - shift), at + log_ndtr(-half - shift)
    return max(0.0, float(np.exp(both[0]) - np.exp(both[1])))


def smallest_multiplier(meets: Callable[[float], bool]) -> float:
    """The smallest z > 0 that meets a monotone condition, by bisection of its logarithm."""
    low, high = 0.05, 1.0
    while not meets(high):
        low, high = high, high * 2
        if high > 1e5:
            raise ConfigError(
                "no noise meets this target",
                expected="a larger epsilon, fewer steps or a larger delta",
                got="a noise multiplier above 100,000",
                remedy="relax the target",
            )
    while high / low > 1.001:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if meets(middle) else (middle, high)
    return high


# -- noisy means -----------------------------------------------------------------------------------


def effective_multiplier(noise_multiplier: float, weights: Sequence[float]) -> float:
    """Noise multiplier of a weighted mean with `weights` (n,): z (1/n) / max share."""
    total = float(sum(weights))
    if not weights or total <= 0:
        return noise_multiplier
    return noise_multiplier * total / (len(weights) * max(weights))


def composed_multiplier(multipliers: Sequence[float]) -> float:
    """Multiplier of one Gaussian mechanism equal to several: (sum z^-2)^(-1/2); none: infinite.

    Exact, even if later mechanisms are chosen after seeing earlier outputs.
    """
    if any(z == 0 for z in multipliers):
        return 0.0
    cost = sum(z**-2 for z in multipliers)
    return float(cost**-0.5) if cost else math.inf


# -- amplification by shuffling -------------------------------------------------------------------


def amplified_by_shuffling(
    local_epsilon: float, clients: int, delta: float, local_delta: float = 0.0
) -> tuple[float, float] | None:
    """Central (epsilon, delta) of one shuffle of n locally private reports, or None.

    Feldman, McMillan and Talwar (2021), Theorems 3.1 and 3.8, if epsilon_0 <= ln(n/(16 ln(2/d))).
    Assumes a local guarantee for replacing a client's **whole** input, in one round of n reports.
    Void if reports can be linked to clients across rounds; the fingerprint audit tests that.
    """
    check_delta(delta)
    e0, n = local_epsilon, clients
    if n < 1 or e0 > largest_amplified(n, delta):
        return None
    grown = math.exp(e0)
    inner = 8 * math.sqrt(grown * math.log(4 / delta)) / math.sqrt(n) + 8 * grown / n
    central = min(e0, math.log1p((grown - 1) / (grown + 1) * inner))
    spent = delta + (math.exp(central) + 1) * (1 + math.exp(-e0) / 2) * n * local_delta
    return central, spent


def largest_amplified(clients: int, delta: float) -> float:
    """Largest local epsilon that n shuffled reports amplify: ln(n / (16 ln(2/delta)))."""
    return math.log(max(clients / (16 * math.log(2 / delta)), 1e-300))


@dataclass(frozen=True, kw_only=True)
class Shuffled:
    """Effect of shuffling on rounds of locally private reports.

    `epsilon` covers all rounds; `gains` says whether it beats the unshuffled one. It is None if
    the theorem does not apply: one report costs `local_epsilon`, and the `clients` of a round
    amplify up to `largest`.
    """

    epsilon: float | None
    gains: bool
    local_epsilon: float
    largest: float
    clients: int


def shuffled(noise_multiplier: float, rounds: int, clients: int, delta: float) -> Shuffled:
    """Epsilon at `delta` of `rounds` shuffles of n Gaussian reports, each of a client's whole data.

    `noise_multiplier` is the noise over the largest change from replacing that data. Half of
    `delta` is split over the rounds, half of each share for the theorem and half for the Gaussian's
    tails. Privacy losses compose the rounds. Void if reports can be linked across rounds.
    """
    check_delta(delta)
    per_round = delta / (2 * rounds)
    largest = largest_amplified(clients, per_round / 2)

    def fits(local: float) -> bool:
        """Whether the tails fit their half: (e^eps0 + 1)(1 + 1/2) n delta_0, Theorem 3.8."""
        tail = gaussian_delta(local, noise_multiplier)
        grown = math.log(1.5 * clients) + float(np.logaddexp(local, 0.0))
        return tail == 0 or grown + math.log(tail) <= math.log(per_round / 2)

    # with less noise, the epsilon of one report is meaningless
    one = smallest_multiplier(fits) if noise_multiplier >= 0.01 else math.inf
    found = amplified_by_shuffling(
        one, clients, per_round / 2, gaussian_delta(one, noise_multiplier)
    )
    whole, gains = None, False
    if found is not None:
        from dp_accounting.pld import common, privacy_loss_distribution

        losses = privacy_loss_distribution.from_privacy_parameters(
            common.DifferentialPrivacyParameters(*found),
            value_discretization_interval=_DISCRETISATION,
        )
        whole = float(losses.self_compose(rounds).get_epsilon_for_delta(delta))
        # shuffling does not undo noise: epsilon never exceeds the unshuffled one
        plain = Exposure(sampling_rate=1.0, steps=1, rounds=rounds)
        without = epsilon(plain, noise_multiplier, delta)
        whole, gains = min(whole, without), whole < without
    return Shuffled(
        epsilon=whole,
        gains=gains,
        local_epsilon=one,
        largest=max(0.0, largest),
        clients=clients,
    )


# -- foreign accountants --------------------------------------------------------------------------


NO_PROMISE = 20_000.0
"""Expected privacy loss, in nats, above which a history counts as noiseless."""


def opacus_history(state: Mapping[str, Any]) -> list[tuple[float, float, int]]:
    """(noise multiplier, sampling rate, steps) of `PrivacyEngine.accountant.state_dict()`."""
    try:
        history = [(float(z), float(q), int(n)) for z, q, n in state["history"]]
        if not all(0 <= z < math.inf and 0 <= q <= 1 and n >= 0 for z, q, n in history):
            raise ValueError("out of range")
    except (KeyError, TypeError, ValueError, OverflowError):
        raise UsageError(
            "this is not the state of an Opacus accountant",
            expected='a mapping with "history": [(noise_multiplier, sample_rate, steps), ...], '
            "a rate between 0 and 1",
            got=repr(state)[:80],
            remedy="pass privacy_engine.accountant.state_dict()",
        ) from None
    return history


def history_of(accountant: Any) -> list[tuple[float, float, int]]:
    """(noise multiplier, sampling rate, steps) that an accountant counted.

    Of Opacus, or of dp-accounting: an accountant, or an event made of Gaussian releases of Poisson
    samples.
    """
    if hasattr(accountant, "state_dict"):
        return opacus_history(accountant.state_dict())
    return _event_history(getattr(accountant, "ledger", accountant), 1)


def _event_history(event: Any, times: int) -> list[tuple[float, float, int]]:
    import dp_accounting

    if isinstance(event, dp_accounting.ComposedDpEvent):
        return [step for part in event.events for step in _event_history(part, times)]
    if isinstance(event, dp_accounting.SelfComposedDpEvent):
        return _event_history(event.event, times * int(event.count))
    if isinstance(event, dp_accounting.NoOpDpEvent):
        return []
    rate = 1.0
    if isinstance(event, dp_accounting.PoissonSampledDpEvent):
        rate, event = float(event.sampling_probability), event.event
    if not isinstance(event, dp_accounting.GaussianDpEvent):
        raise UsageError(
            "this accountant counts releases that are no noisy sums of Poisson samples",
            expected="an Opacus accountant, or dp-accounting's GaussianDpEvent, sampled by "
            "PoissonSampledDpEvent or not, composed",
            got=type(event).__name__,
            remedy="declare the history in these events, if they describe what was done",
        )
    return [(float(event.noise_multiplier), rate, times)]


def from_opacus(state: Mapping[str, Any], delta: float, *, unit: Unit = "record") -> Guarantee:
    """A guarantee from `PrivacyEngine.accountant.state_dict()` of a user's own Opacus loop.

    Composes the history (noise multiplier, sampling rate, steps) again, by privacy losses.
    """
    check_delta(delta)
    history = opacus_history(state)
    spent = [(z, q, n) for z, q, n in history if n and q]
    value = 0.0
    if any(z == 0 or n * q > 2 * z * z * NO_PROMISE for z, q, n in spent):
        value = math.inf  # practically no noise; an accountant would run out of memory
    elif spent:
        import dp_accounting
        from dp_accounting import pld

        accountant = pld.PLDAccountant(
            value_discretization_interval=_interval(min(z for z, _, _ in spent))
        )
        for z, q, n in spent:
            one: Any = dp_accounting.GaussianDpEvent(z)
            if q < 1:
                one = dp_accounting.PoissonSampledDpEvent(q, one)
            accountant.compose(dp_accounting.SelfComposedDpEvent(one, n))
        value = float(accountant.get_epsilon(delta))
    steps = sum(n for _, _, n in history)
    return Guarantee(
        epsilon=value,
        delta=delta,
        unit=unit,
        trust="the client's own code",
        covers=f"{steps} steps recorded by Opacus",
    )
