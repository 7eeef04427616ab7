"""Does an implementation spend more epsilon than it declares?

Question: is the declared epsilon kept, and how much can be measured?
Vantage: SERVER, which sees the uploads of all rounds, named, shuffled or as sums.
Paper: [OneRun]; [FDPOneRun].
Differs: canaries of all clients play in one run; the curve of [FDPOneRun] is the declared schedule
    with less noise, by privacy loss distributions, not a Gaussian stand-in; noise, sampling and
    gain are measured beside it, because a bound refutes only gross faults.
Shapes: m canaries with scores (m,), rows (n, d) per round.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
from annotated_types import MinLen

from fedaudit.accounting import Exposure
from fedaudit.arrays import Bools
from fedaudit.audits.audit import Audit, Knowledge
from fedaudit.audits.epsilon.canaries import KINDS, Kind, Promise, Rehearsal
from fedaudit.audits.epsilon.checks import compared, tail_of
from fedaudit.audits.epsilon.facts import CHECKED, FACTS
from fedaudit.audits.epsilon.instruments import checks_of
from fedaudit.audits.epsilon.observed import Sighting, noise_of_run, observe
from fedaudit.audits.epsilon.outcome import (
    at_least,
    bound_of,
    ceiling_of,
    client_rows,
    declared_bounds,
    dominating,
    share_of_declared,
)
from fedaudit.audits.epsilon.scores import guesses_on
from fedaudit.audits.outright import without_config
from fedaudit.audits.planning import Aim, SampleSize, Setting, Shape
from fedaudit.errors import ConfigError, NotApplicable
from fedaudit.results import NO_TRUTH, AuditResult, Estimate, Need
from fedaudit.settings import AtLeastTwo, Count, EachOnce, Fraction, Positive, checked
from fedaudit.stats import epsilon as statistics
from fedaudit.stats import power
from fedaudit.trace import Truth, View

ONE_RELEASE = Promise(
    exposure=Exposure(sampling_rate=1.0, steps=1, rounds=1),
    multiplier=1.0,
    clip=1.0,
    epsilon=math.inf,
    delta=1e-5,
    unit="record",
    relation="add_or_remove",
    records=1,
)
"""A single Gaussian release, for what can be shown before anything is declared."""

MIXED = (
    "uploads bear no names and clients have different noise: each is held against the least noise "
    "that any client declares, and there is no gain where their clips weigh differently"
)


@dataclass(frozen=True)
class EpsilonGuess:
    """The adversary's scores and guesses in every rehearsal, and the declarations.

    `run`: the noise in the run itself, where it can be read.
    """

    observed: tuple[Sighting, ...]
    run: Sighting | None
    vantage: str
    trace_sha256: str


@dataclass(frozen=True, kw_only=True)
@checked("audits.epsilon")
class EpsilonAudit(Audit):
    """Measure a lower bound on epsilon, and check noise, clipping and sampling.

    `mode`: a rehearsal is the same federation once more, with canaries, whose model is thrown away.
    In production the run itself holds them, of norm 1, and few: a hundred cost hardly any noise.
    `canaries`: number of coins in a rehearsal. `kinds`: "dense" canaries lie in all tensors,
    "layer" canaries within one; "record" canaries are examples that pass through the production
    kernel (mislabelled, blank, noise, a thousandfold one); "client" canaries are whole clients,
    where noise on updates or their sum is declared and none on batches. `norms`: norms of the
    others over the clip. `repeats`: rehearsals. `false_alarms`: chance that any check of a
    federation without faults contradicts.
    """

    name: ClassVar[str] = "epsilon"
    question: ClassVar[str] = "Is the declared epsilon kept, and how much was measured?"
    source: ClassVar[str] = "[FDPOneRun]"
    needs: ClassVar[tuple[str, ...]] = ("rehearsals",)
    facts = FACTS
    on_recording: ClassVar[str] = "needs a run of fedaudit: canaries are planted while it trains"

    mode: Literal["rehearsal", "production"] = "rehearsal"
    canaries: AtLeastTwo = 1000
    kinds: Annotated[tuple[Kind, ...], MinLen(1), EachOnce()] = KINDS
    norms: Annotated[tuple[Positive, ...], MinLen(1)] = (1.0, 1000.0)
    repeats: Count = 1
    confidence: Fraction = 0.95
    false_alarms: Fraction = 0.001
    vantage: str = "server"

    def __post_init__(self) -> None:
        if self.mode == "production" and (max(self.norms) > 1 or self.repeats > 1):
            raise ConfigError(
                "audits.epsilon would ruin the model that counts",
                expected="norms = [1] and repeats = 1 in production",
                got=f"norms = {list(self.norms)}, repeats = {self.repeats}",
                remedy='norms = [1], or mode = "rehearsal"',
            )

        if self.mode == "production" and not self.gradients:
            raise ConfigError(
                "audits.epsilon has no canaries for production",
                expected='"dense" or "layer" among kinds: real records and clients are not added',
                got=f"kinds = {list(self.kinds)}",
                remedy='kinds = ["dense"], or mode = "rehearsal"',
            )

    @property
    def gradients(self) -> bool:
        """Whether there are canaries among gradients, beside records and clients."""
        return bool({"dense", "layer"} & set(self.kinds))

    def cost(self, shape: Shape) -> float:
        if self.mode == "production":
            return 0.5
        return 0.5 + 1.3 * self.repeats * shape.training()

    @classmethod
    def samples_before(cls, aim: Aim) -> list[SampleSize]:
        """Canaries needed to show an epsilon (default: 1) by guesses on a tenth of the coins."""
        epsilon = 1.0 if aim.effect is None else aim.effect
        share = 1.0 / (1.0 + math.exp(-epsilon))
        canaries = 10 * power.trials_for_share(share, 0.5, *aim.level)
        most = ceiling_of(canaries, guesses_on(canaries), ONE_RELEASE, aim.confidence)
        return [
            SampleSize(
                audit=cls.name,
                measure="epsilon",
                unit="canaries",
                chance=0.0,
                wanted=epsilon,
                needed=canaries,
                how=f"canaries = {canaries:,}, if the server sees a bit of randomised response "
                "for each; a sampled and composed mechanism shows less. With every guess right, "
                f"at most {most:.2g} can be shown of a Gaussian release",
                rule="exact binomial power of the guesses, each right with e^eps / (1 + e^eps)",
            )
        ]

    def missing(self, setting: Setting) -> Need | None:
        if setting.recording:
            return Need(code="no_rehearsal", what="canaries are planted while fedaudit trains")
        return None

    def attack(self, view: View, knowledge: Knowledge, rng: np.random.Generator) -> EpsilonGuess:
        rehearsals: Sequence[Rehearsal] | None = knowledge.extra.get("rehearsals")
        if rehearsals is None:
            raise without_config("no rehearsal of the federation", "no_rehearsal")
        if any(r.view.vantage != view.vantage for r in rehearsals):
            raise NotApplicable(
                "the rehearsal was seen from elsewhere",
                code="other_vantage",
                expected=view.vantage,
                got=rehearsals[0].view.vantage,
                remedy="rehearse for this vantage",
            )
        observed = tuple(observe(r, rng) for r in rehearsals)
        run = noise_of_run(observed[0], view)
        return EpsilonGuess(observed, run, view.vantage, view.trace_sha256)

    def score(
        self, guess: EpsilonGuess, truth: Truth | None, rng: np.random.Generator
    ) -> AuditResult:
        about = self.about(guess)
        members = {} if truth is None else truth.members
        if "coins/0" not in members:
            return AuditResult(status="blind", need=NO_TRUTH, **about)
        coins = [members[f"coins/{r}"] for r in range(len(guess.observed))]
        drawn = [members[f"drawn/{r}"] for r in range(len(guess.observed))]
        weakest = dominating(guess.observed[0].rehearsal.promises)
        estimates = self._bounds(guess.observed, coins, weakest)
        epsilon = estimates["epsilon"]
        checks = checks_of(guess.observed, coins, drawn, guess.run)
        measured, bounds = compared(checks, self.false_alarms)
        tail = tail_of(checks, self.false_alarms)
        measured[CHECKED] = self._checked(guess.observed[0], coins[0], weakest, tail)
        table = client_rows(guess.observed, coins)
        least = max(p.epsilon for p in guess.observed[0].rehearsal.promises)
        bounds |= declared_bounds(weakest, least)
        declared = bounds["declared"]
        estimates["share_of_declared"] = share_of_declared(
            epsilon.low, declared.value, epsilon.n, self.confidence
        )
        first = guess.observed[0]
        guesses = int(np.count_nonzero(first.call[first.main]))
        most = ceiling_of(epsilon.n, guesses, weakest, self.confidence)
        return AuditResult(
            headline="epsilon",
            estimates={**estimates, **measured},
            bounds=bounds,
            per_client=table,
            detectable=statistics.least_shown(epsilon.n, self.confidence),
            notes=self._notes(guess, epsilon, least, weakest, most),
            **about,
        )

    def _bounds(
        self, observed: Sequence[Sighting], coins: Sequence[Bools], weakest: Promise
    ) -> dict[str, Estimate]:
        """The first rehearsal's lower bounds, and that of all rehearsals together."""
        first = observed[0]
        right, guessed = first.right(coins[0], first.main)
        m = int(first.main.sum())
        low = bound_of(m, guessed, right, weakest, self.confidence)
        any_mechanism = statistics.coins_bound(
            m, guessed, right, delta=weakest.delta, confidence=self.confidence
        )
        shape = f"{right} of {guessed} guesses on {m} coins right"
        found = {
            "epsilon": at_least(low, m, self.confidence, f"{shape}; [FDPOneRun]"),
            "epsilon_any_mechanism": at_least(
                any_mechanism, m, self.confidence, f"{shape}; [OneRun]"
            ),
        }
        record = first.rehearsal.canaries.is_record
        if record.any() and not record.all():
            right, guessed = first.right(coins[0], record)
            n = int(record.sum())
            low = bound_of(n, guessed, right, weakest, self.confidence)
            shape = f"{right} of {guessed} guesses on {n} coins right"
            found["epsilon (records)"] = at_least(low, n, self.confidence, f"{shape}; [FDPOneRun]")
        if len(observed) > 1:
            shares = [o.share_right(c) for o, c in zip(observed, coins, strict=True)]
            mean = statistics.rehearsals_bound(shares, confidence=self.confidence)
            found["epsilon_rehearsals"] = at_least(
                weakest.epsilon_of_share(mean),
                len(shares),
                self.confidence,
                "betting on the share of right guesses of each rehearsal; [Betting]",
            )
        return found

    def _checked(self, first: Sighting, coins: Bools, weakest: Promise, tail: float) -> Estimate:
        """The first rehearsal's epsilon at the error of one check."""
        right, guessed = first.right(coins, first.main)
        m = int(first.main.sum())
        low = bound_of(m, guessed, right, weakest, 1 - tail)
        return at_least(low, m, 1 - tail, "one error rate for all checks; [FDPOneRun]")

    def _notes(
        self,
        guess: EpsilonGuess,
        epsilon: Estimate,
        declared: float,
        weakest: Promise,
        most: float,
    ) -> tuple[str, ...]:
        rehearsal = guess.observed[0].rehearsal
        same = len({p.schedule for p in rehearsal.promises}) == 1
        return (
            f"declared {declared:.3g}; at least {epsilon.low:.2g} was measured "
            f"({guess.vantage}, {epsilon.n:,} canaries; at most {most:.2g} measurable)",
            f"the declaration is epsilon {declared:.4g} at delta {weakest.delta:g} for one "
            f"{weakest.unit}"
            + (
                ""
                if same
                else "; clients have different schedules, and coins are pooled under "
                "the one that protects least"
            ),
            *((MIXED,) if guess.observed[0].mixed else ()),
            *rehearsal.notes,
        )
