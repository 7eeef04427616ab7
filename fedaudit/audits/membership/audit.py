"""The audit: statistics of every record from the target and its shadows, and their scores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, ClassVar

import numpy as np
from annotated_types import Ge

from fedaudit.arrays import Bools, Floats, Indices
from fedaudit.audits.audit import Audit, Knowledge, columns_for
from fedaudit.audits.facts import AuditFacts
from fedaudit.audits.membership import attack, scores
from fedaudit.audits.membership.facts import FACTS, GROUP, HEADLINE, READINGS
from fedaudit.audits.membership.observed import FederationScores, Look
from fedaudit.audits.outright import need_rounds
from fedaudit.audits.planning import Aim, SampleSize, Setting, Shape, auc_before
from fedaudit.audits.records.ceilings import noisy_at_clients
from fedaudit.audits.records.pools import flatten_pools, pad_pools
from fedaudit.audits.records.readings import readings_test
from fedaudit.errors import NotApplicable
from fedaudit.results import NO_TRUTH, AuditResult, Estimate, Need
from fedaudit.settings import AtLeastTwo, Count, Fraction, Whole, checked
from fedaudit.trace import Truth, View

if TYPE_CHECKING:
    from fedaudit.audits.audit import Shadows
    from fedaudit.tasks.task import Task

FEWEST_SHADOWS = 8


@dataclass(frozen=True)
class MembershipEvidence:
    """One statistic (P, n) per reading of `READINGS`, greater means member, the headline first.

    `present` (P, n): candidates that count; `classes` (P, n). `groups`: name -> its candidates
    (P, n). `noisy`: protections that add noise before anything reaches this vantage.
    """

    parties: tuple[str, ...]
    statistics: Mapping[str, Floats]
    present: Bools
    classes: Indices
    groups: Mapping[str, Bools]
    noisy: tuple[str, ...]
    notes: tuple[str, ...]
    vantage: str
    trace_sha256: str


@dataclass(frozen=True, kw_only=True)
@checked("audits.membership")
class Membership(Audit):
    """LiRA and RMIA with shadow federations.

    `records`: most members per client that are candidates, with as many matched others (half of
    the held-out records at most; the other half is the adversary's own). `shadows`: federations
    that the adversary trains. `online`: each trains on a random half of the candidates; else on
    none. `population`: records that RMIA compares with. `offline_a`: its correction for shadows
    that never saw a record. `corpus`: the adversary's records, "held_out" or a file.
    `group`: "class" or a column of a table, whose groups are scored apart. `noise_draws`: draws of
    a score's own random numbers. `seed` of the shadows.
    """

    name: ClassVar[str] = "membership"
    question: ClassVar[str] = "Was this record used to train the model?"
    source: ClassVar[str] = "[LiRA] Algorithm 1; RMIA (Zarifzadeh et al. 2024)"
    needs: ClassVar[tuple[str, ...]] = ("shadow_records",)
    facts: ClassVar[AuditFacts] = FACTS
    on_recording: ClassVar[str] = "of a run of fedaudit, whose config says how clients train"
    vantage: str = "server"
    records: AtLeastTwo = 32
    shadows: Annotated[int, Ge(FEWEST_SHADOWS)] = 64
    online: bool = True
    population: Count = 1000
    offline_a: Fraction = 0.3
    corpus: str = "held_out"
    group: str = ""
    noise_draws: Count = 4
    seed: Whole = 0
    confidence: Fraction = 0.95

    # -- planning --------------------------------------------------------------------------------

    def cost(self, shape: Shape) -> float:
        held = 2 * min(self.records, shape.records / shape.clients) * shape.clients
        scored = held * (shape.rounds + 3) * shape.examples / shape.records
        scored += self.population
        return 1.0 + self.shadows * (0.2 * shape.training() + 2 * shape.passes(scored))

    @classmethod
    def samples_before(cls, aim: Aim) -> list[SampleSize]:
        return [auc_before(cls.name, HEADLINE, aim)]

    def missing(self, setting: Setting) -> Need | None:
        if setting.recording:
            return Need(
                code="no_shadows",
                what="it trains the federation again, and a recording does not say how clients "
                "train",
                remedy="describe the federation in a fedaudit config",
            )
        # the other half of the held-out records are the non-members that it asks about
        short = setting.lacks_corpus(0.5) if self.corpus == "held_out" else None
        return setting.lacks_tensors() or short

    # -- attack ----------------------------------------------------------------------------------

    def attack(
        self, view: View, knowledge: Knowledge, rng: np.random.Generator
    ) -> MembershipEvidence:
        task, shadows = _require(view, knowledge)
        parties = tuple(knowledge.candidates)
        pools, present = pad_pools(
            [knowledge.candidates[p] for p in parties], task, self.noise_draws, rng
        )
        known, _ = pad_pools([knowledge.extra["population"]], task, self.noise_draws, rng)
        columns = columns_for(task.layout, view.layout)
        look = Look(task, pools, flatten_pools(known), parties, columns)
        target = look.at(view)
        # shadows are recorded by fedaudit itself, in the model's order of tensors
        found = list(shadows.each(Look(task, pools, look.population, parties)))
        statistics = self._statistics(target, found, pools.y.numpy())
        kept = {n: np.where(present, s, np.nan) for n, s in statistics.items()}
        return MembershipEvidence(
            parties=parties,
            statistics={n: s for n, s in kept.items() if np.isfinite(s).any()},
            present=present,
            classes=pools.y.numpy(),
            groups=_padded_groups(parties, knowledge, present.shape),
            noisy=noisy_at_clients(view, len(parties)),
            notes=(
                *knowledge.notes,
                f"{len(found)} shadow federations, "
                + ("half of the candidates in each" if self.online else "no candidate in any"),
            ),
            vantage=view.vantage,
            trace_sha256=view.trace_sha256,
        )

    def _statistics(
        self, target: FederationScores, shadows: list[FederationScores], classes: Indices
    ) -> dict[str, Floats]:
        """All readings in the order of `READINGS`; all NaN where a view does not allow one."""
        inside = np.stack([s.inside for s in shadows if s.inside is not None])
        told = inside if self.online else None
        rounds = min(len(target.models), *(len(s.models) for s in shadows))

        def over_rounds(of: str) -> Floats:
            each = [
                attack.lira(
                    getattr(target, of)[t], np.stack([getattr(s, of)[t] for s in shadows]), told
                )
                for t in range(rounds)
            ]
            return attack.summed(np.stack(each))

        out = {
            "own_updates": over_rounds("own"),
            "unnamed_rows": over_rounds("unnamed"),
            "all_models": over_rounds("models"),
            "lira": attack.lira(target.last, np.stack([s.last for s in shadows]), told),
            "rmia": attack.rmia(
                target.final,
                np.stack([s.final for s in shadows]),
                target.population,
                np.stack([s.population for s in shadows]),
                offline_a=None if self.online else self.offline_a,
            ),
            "loss": target.final,
        }
        assert list(out) == list(READINGS)
        return out

    # -- score -----------------------------------------------------------------------------------

    def score(
        self, guess: MembershipEvidence, truth: Truth | None, rng: np.random.Generator
    ) -> AuditResult:
        said = [f"{n}: {READINGS[n]}" for n in guess.statistics]
        shared = {**self.about(guess), "notes": (*said, *guess.notes)}
        if truth is None or not any(p in truth.members for p in guess.parties):
            return AuditResult(**shared, status="blind", need=NO_TRUTH)
        member = np.zeros_like(guess.present)
        for i, party in enumerate(guess.parties):
            own = truth.members[party]
            member[i, : len(own)] = own
        asked = scores.AskedCandidates(member, guess.present, guess.classes, self.confidence)
        estimates, short = scores.estimates_of(guess.statistics, asked)
        first, head = next(iter(guess.statistics.items()))
        apart = {f"{GROUP} ({n})": np.where(g, head, np.nan) for n, g in guess.groups.items()}
        for measure, statistic in apart.items():
            of_group = scores.area(statistic, asked)
            if isinstance(of_group, Estimate):
                estimates[measure] = of_group
            else:
                short.append(replace(of_group, measure=measure))
        if HEADLINE not in estimates:
            return AuditResult(
                **shared,
                status="nothing_to_say",
                need=Need(code="underpowered", what=f"{short[0]}"),
                underpowered=tuple(short),
            )
        measures = {scores.measure_of(n, first): s for n, s in guess.statistics.items()} | apart
        readings = {m: s for m, s in measures.items() if m in estimates}
        tested = readings_test(readings, member, guess.present, guess.classes, self.confidence, rng)
        return AuditResult(
            **shared,
            headline=HEADLINE,
            estimates=estimates,
            test=tested.test,
            underpowered=tuple(short),
            bounds=scores.ceilings(guess.noisy, truth, estimates),
            per_client=scores.per_client(guess.parties, head, asked, tested.clients),
            curves=scores.with_ceilings(scores.curves(head, asked), guess.noisy, truth)
            | scores.most_exposed(head, asked),
            detectable=tested.detectable,
        )


def _padded_groups(
    parties: tuple[str, ...], knowledge: Knowledge, shape: tuple[int, ...]
) -> dict[str, Bools]:
    """Name of a group -> its candidates (P, n); none without groups."""
    names, of = knowledge.extra.get("groups", ((), {}))
    number = np.full(shape, -1)
    for i, party in enumerate(parties):
        own = of.get(party, np.zeros(0, dtype=np.int64))
        number[i, : len(own)] = own
    return {name: number == g for g, name in enumerate(names)}


def _require(view: View, knowledge: Knowledge) -> tuple[Task, Shadows]:
    """The adversary's task and shadows; raises if there are no rounds or no shadows."""
    need_rounds(view)
    if knowledge.task is None or knowledge.shadows is None or not knowledge.candidates:
        raise NotApplicable(
            "membership is told by training the federation again",
            code="no_shadows",
            expected="the model, candidate records and shadow federations",
            got="not all of them",
            remedy="audit a run of fedaudit",
        )
    return knowledge.task, knowledge.shadows
