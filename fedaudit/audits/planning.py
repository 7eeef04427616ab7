"""Planning of audits: cost, missing needs, sample sizes.

An audit answers through its methods `cost`, `missing`, `samples` and `samples_before`
(`audits.audit.Audit`). This file has their types, and the functions that several audits share.
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
    "sklearn": 2e9,
}
"""Measured training speed on one core by task kind: floating-point operations per second."""

POSITIONS = {"cnn": 200, "vit": 16}
"""Uses of one weight per example, for tasks that share weights across positions."""

TEXT = ("gpt", "lora")
"""Tasks on text: an example is a window of a document."""

QUERY = 6.5e-3
"""Seconds per secure sum."""

CHEAP = 0.1
"""Seconds for an audit that only counts."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The sizes of a federation that determine run times.

    `weights`: parameters in a forward pass, frozen ones included; `width`: parameters sent.
    `slowdown`: factor by which the protections slow down a training step. `queries`: secure sums
    per round. `hidden`: updates arrive without names.
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
        """Seconds of a forward pass over `examples`."""
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
    """A federation before it runs: the facts on which the needs of audits depend.

    `classes`: number of classes. `hidden`: a shuffler removes sender names. `sums_by`: the
    protection that releases sums only; empty if single updates leave. `subset_sums`: the server
    asks for sums over subsets of clients. `marks`: marked records are planted. `places_differ`:
    clients differ by their place in the graph. `organisations`: the data name organisations.
    `recording`: other software runs the federation, and only its recording will exist.
    `no_tensors`: what that software sends instead of tensors of one shape. `fixed_model`: why
    nothing can be planted in the model. `held_out`: records that no client trains on; `largest`:
    records of the largest client, 0 if not known.
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
    fixed_model: str = ""
    held_out: int = 0
    largest: int = 0

    def lacks_corpus(self, part: float = 1.0) -> Need | None:
        """The need of audits whose shadows draw from a `part` of the held-out records."""
        free = int(self.held_out * part)
        if free >= self.largest:
            return None
        return Need(
            code="too_few_records",
            what=f"its shadows draw from {free} held-out records, fewer than the largest client's "
            f"{self.largest}",
            remedy="hold out more with data.test_fraction, or name a file as the audit's corpus",
        )

    def lacks_tensors(self) -> Need | None:
        """The need of audits that read updates or plant weights, if no tensors are sent."""
        if not self.no_tensors:
            return None
        return Need(code="no_tensors", what=f"the app sends {self.no_tensors}")

    def lacks_updates(self, wanted: str) -> Need | None:
        """The need of audits that read single updates, if only sums leave.

        `wanted`: what they read and why, such as "update to link".
        """
        if not self.sums_by:
            return None
        why = f"only sums leave ({self.sums_by}): there is no single {wanted}"
        return Need(
            code="no_single_updates", what="the server sees sums only" if self.recording else why
        )


# -- sample sizes ---------------------------------------------------------------------------------

RATES = (0.01, 0.001)
"""False-positive rates at which membership audits state a true-positive rate."""

EFFECT = 0.05
"""Default effect to show: the difference from chance."""


@dataclass(frozen=True, kw_only=True)
class Aim:
    """The effect to show, with its power and confidence.

    `effect` is the difference from chance in the measure's own unit (attribution: the gain of a
    score per mark, in noise deviations); None takes the audit's default. `clients`, `threshold`
    (smallest group that may be exposed) and `rate` (false positives) describe a federation that has
    not run yet.
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
                remedy="`effect=0.05`",
            )
        if self.clients < 2:
            raise UsageError(
                "too few clients",
                expected="at least 2",
                got=str(self.clients),
                remedy="`clients=20`",
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
        """The value to show, `chance` plus the effect; refuses a value above 1."""
        effect = default if self.effect is None else self.effect
        if chance + effect > 1.0 + 1e-12:
            raise UsageError(
                "the effect is beyond what can be measured",
                expected=f"at most {1.0 - chance:.4g} above a chance of {chance:.4g}",
                got=f"{effect:g}",
                remedy="`effect` is the difference from chance, not the value",
            )
        return min(chance + effect, 1.0)


@dataclass(frozen=True, kw_only=True)
class SampleSize:
    """Sample size of one measure of one audit: present and needed.

    `have` is the present number of `unit`s (None: no run yet). `seen` is the smallest value they
    detect at the requested power (None: none, or unknown). `wanted` is the value to show; `needed`
    is the number of units for it (None: no number is enough). `exact` measures need no sample.
    `how` says what to change; `rule` says how the numbers are computed.
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
        """Whether `have` suffices; None without a run."""
        if self.exact:
            return True
        if self.have is None:
            return None
        return self.needed is not None and self.have >= self.needed


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """The run behind a result: its rounds, and the results of its other audits.

    `threshold`: the smallest group that its sums may expose, if an audit of them states it.
    """

    rounds: int
    threshold: int | None = None
    results: Mapping[str, AuditResult] = field(default_factory=dict)


def normal_quantile(confidence: float) -> float:
    """z of a two-sided normal interval."""
    return NormalDist().inv_cdf(0.5 + confidence / 2)


def counted(audit: str, measure: str, head: Estimate | None = None) -> SampleSize:
    """Sample size of an exact count: it needs no sample."""
    return SampleSize(
        audit=audit,
        measure=measure,
        chance=None if head is None else head.baseline,
        have=None if head is None else head.n,
        exact=True,
        how="counted over the whole recording: there is no chance in it",
    )


def counted_headline(result: AuditResult) -> SampleSize:
    """The same for the headline of a result."""
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
    """Sample size from the width of the stored interval alone."""
    e = result.estimates[measure]
    baseline = e.baseline or 0.0
    sign = 1 if result.greater_is_leak else -1
    if sign > 0 and max(baseline, e.high) <= 1:
        aim.goal(baseline, default=min(default, 1.0 - baseline))  # refuses what no share reaches
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
            how="the stored interval has no width to extrapolate from: " + (how or "more clients"),
        )
    # the stored interval may have another confidence level than the aim
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
        rule="width of the stored interval, which shrinks with the square root of its units",
    )


AUC_RULE = "normal approximation of the AUC, Hanley and McNeil"


def auc_before(audit: str, measure: str, aim: Aim) -> SampleSize:
    """Members needed for the AUC of an audit that has not run, with as many others."""
    auc = aim.goal(0.5)
    members = power.records_for_auc(auc, *aim.level)
    return SampleSize(
        audit=audit,
        measure=measure,
        unit="members",
        chance=0.5,
        wanted=auc,
        needed=members,
        how=f"ask about {members:,} members and as many others, over all clients",
        rule=AUC_RULE,
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
    """Members and non-members needed for a true-positive rate at a false-positive `rate`.

    `members` and `others` are the present numbers; None without a run.
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
