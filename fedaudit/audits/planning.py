"""What an audit says before a run and about its own power: costs, missing needs, sample sizes.

An audit answers through its methods `cost`, `missing`, `samples` and `samples_before`
(`audits.audit.Audit`). This file holds the types they exchange, and what several audits share.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import NormalDist

from fedaudit.errors import UsageError
from fedaudit.results import AuditResult, Estimate, Need
from fedaudit.stats import power
from fedaudit.stats.intervals import check_confidence
from fedaudit.stats.roc import nonmembers_needed

# -- cost -----------------------------------------------------------------------------------------

SPEED = {
    "mlp": 3e9,
    "cnn": 2.5e9,
    "vit": 4e9,
    "vae": 8e9,
    "gpt": 3e10,
    "lora": 2.5e10,
    "module": 2e9,
}
"""Floating-point operations per second that training reached on one core, by kind of task."""

POSITIONS = {"cnn": 200, "vit": 16}
"""How often a weight is used for one example, where it is used more than once."""

TEXT = ("gpt", "lora")
"""Tasks whose examples are windows of a document."""

QUERY = 6.5e-3
"""Seconds that one sum takes behind secure aggregation."""

CHEAP = 0.1
"""Seconds of an audit that only counts."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The sizes that times depend on.

    `weights` counts what every example passes (with adapters, the frozen model too), `width` what
    is sent. `slowdown`: how much longer a training step takes under the protections. `queries`:
    secure sums per round. `hidden`: single updates arrive without names.
    """

    kind: str
    clients: int
    rounds: int
    width: int
    weights: int
    tokens: int
    examples: int
    epochs: float
    records: int
    slowdown: float = 1.0
    queries: int = 0
    hidden: bool = False

    @property
    def is_text(self) -> bool:
        return self.kind in TEXT

    def passes(self, examples: float) -> float:
        """Seconds of a forward pass over so many examples."""
        uses = POSITIONS.get(self.kind, 1) * (self.tokens if self.is_text else 1)
        return 2.0 * self.weights * uses * examples / SPEED.get(self.kind, 2e9)

    def training(self) -> float:
        """Seconds of all rounds: forward, backward, recording and averaging."""
        learnt = 3.0 * self.passes(self.examples * self.epochs * self.rounds)
        learnt *= self.slowdown
        around = 0.005 + 2e-9 * self.clients * self.width + QUERY * self.queries
        return learnt + self.rounds * around


# -- missing needs --------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What is known of a federation before it runs, as far as an audit's needs depend on it.

    `classes` of the records. `hidden`: a shuffler removes the senders' names. `sums_by` names the
    protection that lets only sums leave, empty where single updates do; `subset_sums`: sums over
    parts of the clients are asked for. `marks`: marked records are planted. `places_differ`:
    clients can be told apart by their place in the graph; `organisations`: the data name them.
    `recording`: other software runs the federation, and only its recording will be there;
    `no_tensors` says what it sends instead of tensors of one shape.
    """

    clients: int
    rounds: int
    classes: int = 2
    hidden: bool = False
    sums_by: str = ""
    subset_sums: bool = False
    marks: bool = False
    places_differ: bool = False
    organisations: bool = False
    recording: bool = False
    no_tensors: str = ""

    def lacks_tensors(self) -> Need | None:
        """The need of every audit that reads updates or plants weights."""
        if not self.no_tensors:
            return None
        return Need(code="no_tensors", what=f"the app sends {self.no_tensors}")


# -- sample sizes ---------------------------------------------------------------------------------

RATES = (0.01, 0.001)
"""False-positive rates at which membership audits state a true-positive rate."""

EFFECT = 0.05
"""Difference from chance to show where nobody says another."""


@dataclass(frozen=True, kw_only=True)
class Aim:
    """The effect to show, and how surely.

    `effect` is the difference from chance in the measure's own unit (attribution: what one mark
    adds to a score, in deviations of its noise); None takes a default per audit. `clients`,
    `threshold` (smallest group that may be exposed) and `rate` (false positives) describe a
    federation that has not run yet.
    """

    effect: float | None = None
    power: float = 0.9
    confidence: float = 0.95
    clients: int = 20
    threshold: int = 5
    rate: float | None = None

    def __post_init__(self) -> None:
        power.check_power(self.power)
        check_confidence(self.confidence)
        if self.effect is not None and not (self.effect > 0 and math.isfinite(self.effect)):
            raise UsageError(
                "an effect is how far above chance a leak would be",
                expected="a number above 0",
                got=f"{self.effect:g}",
                remedy="--effect 0.05",
            )
        if self.clients < 2:
            raise UsageError(
                "a federation has clients",
                expected="at least 2",
                got=str(self.clients),
                remedy="--clients 20",
            )
        if self.rate is not None:
            nonmembers_needed(self.rate)

    @property
    def level(self) -> tuple[float, float]:
        return self.power, self.confidence

    @property
    def rates(self) -> tuple[float, ...]:
        return RATES if self.rate is None else (self.rate,)

    def goal(self, chance: float, default: float = EFFECT) -> float:
        """The value to show above `chance`; refuses an effect beyond the end of the scale."""
        effect = default if self.effect is None else self.effect
        if chance + effect > 1.0 + 1e-12:
            raise UsageError(
                "the effect leads beyond what can be measured",
                expected=f"at most {1.0 - chance:.4g} above a chance of {chance:.4g}",
                got=f"{effect:g}",
                remedy="--effect is the difference from chance, not the value",
            )
        return min(chance + effect, 1.0)


@dataclass(frozen=True, kw_only=True)
class SampleSize:
    """How much one measure of one audit rests on, and how much it needs to show an effect.

    `have` counts `unit`s behind it now (None: no run was looked at); `seen` is the smallest value
    that these would have shown with the power asked for (None: none, or not known); `wanted` is
    the value to be shown and `needed` the units it takes (None: no number of them will do).
    `exact` measures need nothing. `how` says what to change, `rule` how it was computed.
    """

    audit: str
    measure: str
    unit: str = ""
    run: str = ""
    chance: float | None = None
    have: int | None = None
    seen: float | None = None
    wanted: float | None = None
    needed: int | None = None
    exact: bool = False
    how: str = ""
    rule: str = ""

    @property
    def enough(self) -> bool | None:
        """Whether `have` suffices; None where no run was looked at."""
        if self.exact:
            return True
        if self.have is None:
            return None
        return self.needed is not None and self.have >= self.needed


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """The run behind a result: its rounds, and the results of its other audits."""

    rounds: int
    results: Mapping[str, AuditResult] = field(default_factory=dict)


def normal_quantile(confidence: float) -> float:
    """z of a two-sided normal interval."""
    return NormalDist().inv_cdf(0.5 + confidence / 2)


def counted(audit: str, measure: str, head: Estimate | None = None) -> SampleSize:
    """Of a measure that is counted, not estimated: it needs nothing more."""
    return SampleSize(
        audit=audit,
        measure=measure,
        chance=None if head is None else head.baseline,
        have=None if head is None else head.n,
        exact=True,
        how="counted over all that was recorded: there is no chance in it",
    )


def counted_headline(result: AuditResult) -> SampleSize:
    """The same of a result's headline."""
    assert result.headline is not None
    return counted(result.audit, result.headline, result.estimates[result.headline])


def from_width(
    result: AuditResult,
    measure: str,
    aim: Aim,
    *,
    unit: str = "units",
    how: str = "more of what n counts",
    default: float = EFFECT,
) -> SampleSize:
    """From the width of the stored interval alone."""
    e = result.estimates[measure]
    baseline = e.baseline or 0.0
    sign = 1 if result.greater_is_leak else -1
    half = (e.value - e.low) if sign > 0 else (e.high - e.value)
    effect = aim.effect if aim.effect is not None else default
    if half <= 0 or e.confidence >= 1 or math.isinf(half):
        return SampleSize(
            audit=result.audit,
            measure=measure,
            unit=unit,
            chance=e.baseline,
            have=e.n,
            wanted=baseline + sign * effect,
            how="the stored interval has no width to go by: " + (how or "more clients"),
        )
    # the stored interval may be at another level than the one asked for
    at = half / normal_quantile(e.confidence) * normal_quantile(aim.confidence)
    return SampleSize(
        audit=result.audit,
        measure=measure,
        unit=unit,
        chance=e.baseline,
        have=e.n,
        seen=baseline + sign * power.detectable_effect(at, *aim.level),
        wanted=baseline + sign * effect,
        needed=power.units_for_effect(at, e.n, effect, *aim.level),
        how=how,
        rule="the stored interval's width, which shrinks as one over the root of its units",
    )


def for_rate(
    audit: str,
    measure: str,
    rate: float,
    aim: Aim,
    *,
    members: int | None = None,
    others: int | None = None,
) -> SampleSize:
    """Members and non-members for a true-positive rate at a false-positive `rate`.

    `members` and `others` asked about so far; None where no run was looked at.
    """
    wanted = aim.goal(rate, default=rate)
    needed_others = nonmembers_needed(rate)
    needed_members = power.members_for_rate(wanted, rate, *aim.level)
    now = "" if members is None or others is None else f" (now {others:,} and {members:,})"
    stated = others is not None and members is not None and others >= needed_others
    # the side that is too small decides
    short = stated and members is not None and members < needed_members
    return SampleSize(
        audit=audit,
        measure=measure,
        unit="members" if short else "non-members",
        chance=rate,
        have=members if short else others,
        seen=power.detectable_rate(rate, members, *aim.level)
        if stated and members is not None
        else None,
        wanted=wanted,
        needed=needed_members if short else needed_others,
        how=f"{needed_others:,} non-members, and {needed_members:,} members to show "
        f"{wanted:.3g}{now}",
        rule="10 expected false positives; exact binomial power of Clopper-Pearson's interval",
    )
