"""Which client trained on marked records, seen only through secure aggregation?

Question: a corpus owner marked records; which clients of a federation trained on them?
Vantage: SERVER, which reads sums and the ledger of its queries, together with the owner, who brings
its keys. No upload is read.
Paper: [FedAttr] Sections 4 and 5, Appendices B, D, E and H.
Differs: (1) the published threshold on Stouffer's sum is computed and reported, and decides
nothing: a difference of two z-scores is no z-score, and benign drift grows with the rounds.
Decisions rest on unused keys: exact ranks, a tail carried on beyond them, Holm over all clients and
all keys of the owner. (2) On the published plan the updates themselves are scored, which it lets
the server solve for; where it does not, parts of clients come from least squares over all estimates
of all rounds. Where scores are about linear in updates, each client is held against the others of
the same rounds as well. (3) Any plan will do: groups of a safe plan are scored as they are, or,
where scores are not linear in an update, what the groups of all rounds say of each client is
(`over_rounds`); and each client is tested on the groups without every other one (a key is held by
one client at most). What a plan itself gives away is told by `audits.query_plan`. (4) Text marks:
fictitious knowledge is read by the likelihood of planted values among random ones, green lists by
their probability in one pass over text that was written under keys of nobody; both also by
generated text.
Shapes: sums (Q, d); candidates (R, d); scores (R, S + U) on S keys of the owner and U unused ones,
or (R, S + S U) where every key has a null of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
import numpy.typing as npt
from annotated_types import Ge, Gt, Lt, MinLen

from fedaudit.arrays import Floats
from fedaudit.audits.attribution import calibration, estimator, over_rounds, planning, scoring
from fedaudit.audits.attribution.answers import (
    DrawPairs,
    arranged,
    candidates_of,
    check_size,
    drawn_sizes,
    left_out,
    model_of,
    nobody,
    updates_of,
    uploads_of,
    was_in,
)
from fedaudit.audits.attribution.facts import FACTS
from fedaudit.audits.attribution.guess import AttributionGuess
from fedaudit.audits.attribution.scores import scored
from fedaudit.audits.attribution.scoring import Marks
from fedaudit.audits.audit import Audit, Knowledge, columns_for
from fedaudit.audits.facts import AuditFacts
from fedaudit.audits.planning import Aim, Recorded, SampleSize, Setting, Shape
from fedaudit.errors import NotApplicable, NothingToSay
from fedaudit.results import AuditResult, Need
from fedaudit.settings import Count, Fraction, Positive, checked
from fedaudit.trace import Truth, View
from fedaudit.trace.ledger import round_queries

ScoreBy = Literal[
    "default", "margin", "loss", "mass", "reading", "generation", "likelihood", "fisher"
]

OVER_ROUNDS = "means of groups, all rounds together"
SOLVED = "updates that the sums of the published pairs determine"

AT_ONCE = 2**26
"""Numbers of candidate updates that are made and scored at a time: half a gigabyte of them."""


@dataclass(frozen=True, kw_only=True)
@checked("audits.attribution")
class Attribution(Audit):
    """Which clients trained on a corpus owner's marked records, from secure sums alone.

    `error` is the chance that any client is named wrongly; `unused_keys` the null; `threshold` the
    published one (gamma), reported beside it. `confidence` of intervals. `score_by` says how a
    mark is read: "margin" or "loss" of canaries, "mass", "reading" or "generation" of green lists,
    "likelihood", "generation" or "fisher" of fictitious knowledge; "default" is the first of these,
    or "reading" for green lists of a large vocabulary. Models are asked with `prompts`: texts under
    keys of nobody for green lists (held-out ones where they are continued), questions about each
    entity; generated are `steps` tokens (24 of a green text, 12 behind a question if not given).
    """

    name: ClassVar[str] = "attribution"
    question: ClassVar[str] = "Which client trained on marked records, seen only through sums?"
    source: ClassVar[str] = "[FedAttr] Section 4"
    needs: ClassVar[tuple[str, ...]] = ("marks",)
    facts: ClassVar[AuditFacts] = FACTS

    vantage: Annotated[str, MinLen(1), "a party that receives sums"] = "server"
    error: Annotated[float, Gt(0), Lt(0.5)] = 0.05
    unused_keys: Annotated[
        int, Ge(29), "a third may tell the noise, and fewer ranks give no p-value of 0.05"
    ] = 999
    threshold: Positive = 4.0
    confidence: Fraction = 0.95
    score_by: ScoreBy = "default"
    prompts: Count = 48
    steps: Annotated[int, Ge(2), "more than the context of the watermark"] | None = None

    # -- planning ------------------------------------------------------------------------------

    def cost(self, shape: Shape) -> float:
        return 1.0 + 0.02 * shape.queries * shape.rounds

    def missing(self, setting: Setting) -> Need | None:
        return planning.missing(setting)

    @classmethod
    def samples(cls, result: AuditResult, recorded: Recorded, aim: Aim) -> list[SampleSize]:
        return [planning.samples(result, recorded, aim)]

    @classmethod
    def samples_before(cls, aim: Aim) -> list[SampleSize]:
        return [planning.samples_before(cls.name, aim)]

    # -- attack --------------------------------------------------------------------------------

    def attack(
        self, view: View, knowledge: Knowledge, rng: np.random.Generator
    ) -> AttributionGuess:
        marks = _marks(knowledge)
        every = [round_queries(view, number) for number in view.rounds]
        ledgers = [a for a in every if len(a.answered)]
        questions = sum(len(a.sums) for a in every)
        if not ledgers:
            lacking = NothingToSay if questions else NotApplicable
            raise lacking(
                "no query was answered" if questions else f"{view.vantage} sees no sums",
                code="no_answers" if questions else "no_sums",
                expected="sums through secure aggregation, and their ledger",
                got=f"{questions} queries, all refused or failed" if questions else "none",
                remedy="lower the threshold, or see why clients dropped out"
                if questions
                else "run with [protections.secure_aggregation]",
            )
        names = tuple(dict.fromkeys(name for a in ledgers for name in a.clients))
        columns = None
        if knowledge.task is not None:
            columns = columns_for(knowledge.task.layout, view.layout)
        weight = float(knowledge.extra.get("mean_weight", 1.0))
        draw: DrawPairs | None = knowledge.extra.get("pairs")
        many, apart = len(marks.keys), bool(getattr(marks, "apart", False))
        linear = bool(getattr(marks, "linear", True))
        rounds, designs, scores, singles, readings, lost = [], [], [], [], set(), 0
        starts, means, kept = [], [], 0
        drawn = None if draw is None else drawn_sizes(view, ledgers[0], draw)
        for ledger in ledgers:
            found = candidates_of(view, ledger, names, draw)
            if found is None:
                continue
            candidates, queries, reading, without = found
            judged = estimator.judged(candidates, queries)
            if judged is not candidates:
                reading = f"{SOLVED} (published scores: {reading})"
            readings.add(reading)
            lost += without
            start = arranged(model_of(view, ledger.round), columns)
            grouped = not linear and bool((candidates.target < 0).all())
            if grouped:
                kept += len(candidates)
                check_size(kept + len(names), len(start))
            coefficients = [c.coefficients for c in dict.fromkeys((candidates, judged))]
            pieces: list[Floats] = []
            updates: list[npt.NDArray[np.float32]] = []
            for some in updates_of(view, ledger, np.concatenate(coefficients), AT_ONCE):
                own = arranged(some / weight, columns)
                # the model itself is scored with the first of them
                first = [] if pieces else [start[None]]
                pieces.append(marks.statistics(np.vstack([*first, start + own]), self.unused_keys))
                if grouped:
                    updates.append(own.astype(np.float32))
            raw = np.concatenate(pieces)
            rounds.append(ledger.round)
            designs.append(judged.design)
            scores.append(scoring.differential(raw[-len(judged) :], raw[0]))
            if grouped:
                starts.append(start)
                means.append(np.concatenate(updates))
            if (candidates.target >= 0).all():
                estimated = raw[: 1 + len(candidates)]
                z = estimated
                if not getattr(marks, "standard", False):
                    z = scoring.standardised(estimated, many, apart=apart, every=True)
                singles.append(_published(z, candidates.target, len(names)))
        if not rounds:
            raise nobody(ledgers)
        design = np.concatenate(designs)
        parts = calibration.regress(design, np.concatenate(scores))
        tables = None
        if len(means) == len(rounds):
            readings = {OVER_ROUNDS}
            tables = over_rounds.tables(
                design, np.concatenate(means), starts[-1], marks, self.unused_keys, error=self.error
            )
            decision = over_rounds.decide(design, tables, many, self.error, apart=apart)
            looks = over_rounds.looks(
                designs, means, starts, marks, self.unused_keys, self.error, tables
            )
        else:
            by = {"apart": apart, "linear": linear}
            turn = calibration.turns(designs)
            decision = calibration.decide(
                design, np.concatenate(scores), many, self.error, **by, turn=turn
            )
            looks = calibration.sequential(designs, scores, many, self.error, **by)
        present = np.array([[n in a.clients and was_in(a, n) for n in names] for a in ledgers])
        return AttributionGuess(
            names=names,
            rounds=tuple(rounds),
            keys=many,
            designs=tuple(designs),
            scores=tuple(scores),
            published=np.stack(singles) if len(singles) == len(rounds) else None,
            parts=parts,
            decision=decision,
            sequential=looks,
            queries=tuple(len(a.answered) for a in ledgers if a.round in rounds),
            uploads=uploads_of(ledgers, names) / np.maximum(present.sum(axis=0), 1),
            reading=", ".join(sorted(readings)),
            notes=(
                *knowledge.notes,
                *getattr(marks, "notes", ()),
                *left_out(rounds, [a.round for a in every if len(a.sums)], lost),
            ),
            trace_sha256=view.trace_sha256,
            vantage=view.vantage,
            apart=apart,
            linear=linear,
            tables=tables,
            drawn=drawn,
        )

    def score(
        self, guess: AttributionGuess, truth: Truth | None, rng: np.random.Generator
    ) -> AuditResult:
        return scored(self, guess, truth)


def _marks(knowledge: Knowledge) -> Marks:
    marks: Marks | None = knowledge.extra.get("marks")
    if marks is None:
        raise NotApplicable(
            "no keys to look for marks with",
            code="no_keys",
            expected="a corpus owner's keys",
            got="none",
            remedy="plant marks with [marks], or pass knowledge.extra['marks']",
        )
    return marks


def _published(z: Floats, target: npt.NDArray[np.int64], clients: int) -> Floats:
    """[FedAttr] Eq. (7) on z-scores (1 + R, S + U), the reference first: (K, S + U).

    NaN for clients without an estimate.
    """
    out = np.full((clients, z.shape[1]), np.nan)
    out[target] = scoring.differential(z[1:], z[0])
    return out
