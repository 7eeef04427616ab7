"""Which client trained on marked records, seen only through secure aggregation?

Question: a corpus owner marked records; which clients of a federation trained on them?
Vantage: SERVER, which reads sums and the ledger of its queries, together with the owner, who brings
its keys. The audit reads no upload.
Paper: [FedAttr] Sections 4 and 5, Appendices B, D, E and H.
Differs:
(0) On a safe plan the owner's documents are read as gradients, not as scores of models: see
`template`. The rest is about scores, which the published plan allows.
(1) The published threshold on Stouffer's sum is reported but decides nothing: a difference of two
z-scores is not a z-score, and benign drift grows with the rounds. Decisions rest on unused keys:
exact ranks, an extrapolated tail beyond them, and Holm over all clients and keys of the owner.
(2) The published plan lets the server solve for updates: these are scored. Where it does not,
least squares over the estimates of all rounds gives each client's part. If scores are about linear
in updates, each client is also compared with the others of the same rounds.
(3) Any plan works. Where scores are asked for, groups of a safe plan are scored as they are; if
scores are not linear in an update, the audit first estimates each client's update from the groups
of all rounds (`over_rounds`). One client at most holds a key, so each client is tested on the
groups without every other client in turn. `audits.query_plan` measures what a plan itself reveals.
(4) Where clients release inner products instead of sums of updates, these are read: the same
statistic, without gradients taken here.
(5) Text marks: fictitious knowledge is read by the likelihood of planted values among random ones.
Green lists are read by their probability in one pass over text written under unused keys. Both are
also read by generated text.
Shapes: sums (Q, d); candidates (R, d); scores (R, S + U) on S keys of the owner and U unused ones,
or (R, S + S U) if every key has a separate null.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from annotated_types import Ge, Gt, Lt, MinLen

from fedaudit.arrays import Indices
from fedaudit.audits.attribution import calibration, over_rounds, planning, template
from fedaudit.audits.attribution.answers import (
    DrawPairs,
    drawn_sizes,
    no_estimates,
    omission_notes,
    took_part,
    uploads_of,
)
from fedaudit.audits.attribution.calibration import NamingDecision, Sequential
from fedaudit.audits.attribution.candidate_scores import CandidateScorer, RoundScores
from fedaudit.audits.attribution.facts import FACTS
from fedaudit.audits.attribution.guess import AttributionGuess
from fedaudit.audits.attribution.over_rounds import ScoreTables
from fedaudit.audits.attribution.scores import score_guess
from fedaudit.audits.attribution.scoring import Marks
from fedaudit.audits.attribution.template import Templates
from fedaudit.audits.audit import Audit, Knowledge, columns_for
from fedaudit.audits.facts import AuditFacts
from fedaudit.audits.planning import Aim, Recorded, SampleSize, Setting, Shape
from fedaudit.errors import NotApplicable, NothingToSay
from fedaudit.results import AuditResult, Need
from fedaudit.settings import Count, Fraction, Positive, checked
from fedaudit.trace import Truth, View
from fedaudit.trace.ledger import RoundQueries, round_queries, scalar_queries
from fedaudit.trace.schema import SCALARS

ScoreBy = Literal[
    "default",
    "template",
    "margin",
    "loss",
    "mass",
    "reading",
    "generation",
    "likelihood",
    "fisher",
]

OVER_ROUNDS = "means of groups, all rounds together"
TEMPLATES = "inner products of sums with gradients on the owner's documents"
SCALAR_PRODUCTS = "inner products that clients computed themselves, summed securely over groups"


@dataclass(frozen=True, kw_only=True)
class _Ledgers:
    """The answered sums of all rounds: `names` (K,) of clients, rounds with queries (`asked_in`),
    recorded `columns` in the model's order, if it differs."""

    names: tuple[str, ...]
    ledgers: Sequence[RoundQueries]
    asked_in: Sequence[int]
    columns: Indices | None

    def about(self, view: View, rounds: Sequence[int]) -> dict[str, Any]:
        """Fields of a guess that do not depend on how marks are read."""
        present = [[n in a.clients and took_part(a, n) for n in self.names] for a in self.ledgers]
        each = np.maximum(np.array(present).sum(axis=0), 1)
        return {
            "names": self.names,
            "rounds": tuple(rounds),
            "queries": tuple(len(a.answered) for a in self.ledgers if a.round in rounds),
            "uploads": uploads_of(self.ledgers, self.names) / each,
            "trace_sha256": view.trace_sha256,
            "vantage": view.vantage,
        }


@dataclass(frozen=True, kw_only=True)
@checked("audits.attribution")
class Attribution(Audit):
    """Which clients trained on a corpus owner's marked records, from secure sums alone.

    `error`: chance that any client is named wrongly. `threshold`: the published gamma, only
    reported. `confidence`: of intervals. `score_by`: how a mark is read. "template": by gradients
    on the documents of each key; by models' scores: "margin" or "loss" of canaries; "mass",
    "reading" or "generation" of green lists; "likelihood", "generation" or "fisher" of fictitious
    knowledge. "default" is "template" where sums determine no single update, otherwise the first
    score ("reading" for green lists of a large vocabulary). `unused_keys`: keys that give the null
    of scores, `templates`: those that give the null of templates; `windows`: most records of a key
    in a template. `prompts`: texts for green lists (under
    unused keys, or held-out where the model continues them), or questions about each entity.
    `steps`: generated tokens (default 24 of a green text, 12 after a question).
    """

    name: ClassVar[str] = "attribution"
    question: ClassVar[str] = "Which client trained on marked records, seen only through sums?"
    source: ClassVar[str] = "[FedAttr] Section 4"
    needs: ClassVar[tuple[str, ...]] = ("marks",)
    facts: ClassVar[AuditFacts] = FACTS

    vantage: Annotated[str, MinLen(1), "a party that receives sums"] = "server"
    error: Annotated[float, Gt(0), Lt(0.5)] = 0.05
    unused_keys: Annotated[
        int, Ge(29), "a third may measure the noise, and fewer ranks give no p-value of 0.05"
    ] = 999
    threshold: Positive = 4.0
    confidence: Fraction = 0.95
    score_by: ScoreBy = "default"
    templates: Annotated[
        int, Ge(template.FEWEST_UNUSED), "fewer give no mean and deviation of unused keys"
    ] = 60
    windows: Count = 48
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

    def reads_templates(self, view: View) -> bool:
        """Whether documents are read as gradients: as asked, by default where a plan is safe."""
        if self.score_by != "default":
            return self.score_by == "template"
        ledgers = [round_queries(view, number) for number in view.rounds]
        return template.is_safe([a for a in ledgers if len(a.answered)])

    def attack(
        self, view: View, knowledge: Knowledge, rng: np.random.Generator
    ) -> AttributionGuess:
        by_scalars = SCALARS in view.layouts
        marks: Any = None if by_scalars else _marks(knowledge)
        read = scalar_queries if by_scalars else round_queries
        every = [read(view, number) for number in view.rounds]
        ledgers = [a for a in every if len(a.answered)]
        if not ledgers:
            raise _no_answers(view, sum(len(a.sums) for a in every))
        names = tuple(dict.fromkeys(name for a in ledgers for name in a.clients))
        found = _Ledgers(
            names=names,
            ledgers=ledgers,
            asked_in=[a.round for a in every if len(a.sums)],
            columns=None
            if knowledge.task is None
            else columns_for(knowledge.task.layout, view.layout),
        )
        if by_scalars:
            return self._by_scalars(view, knowledge, found)
        if "templates" in knowledge.extra:
            return self._by_templates(view, knowledge, knowledge.extra["templates"], found)
        return self._by_scores(view, knowledge, marks, found)

    def _by_templates(
        self, view: View, knowledge: Knowledge, templates: Templates, found: _Ledgers
    ) -> AttributionGuess:
        unused = min(self.templates, getattr(templates, "available", None) or self.templates)
        rows = {
            a.round: template.template_rows(view, a, found.names, templates, unused, found.columns)
            for a in found.ledgers
        }
        keys, notes = len(templates.keys), getattr(templates, "notes", ())
        return self._from_rows(view, found, rows, keys, TEMPLATES, (*knowledge.notes, *notes))

    def _by_scalars(self, view: View, knowledge: Knowledge, found: _Ledgers) -> AttributionGuess:
        keys = sum(name.startswith("key-") for name in view.layouts[SCALARS].names)
        rows = {a.round: template.scalar_rows(view, a, found.names, keys) for a in found.ledgers}
        return self._from_rows(view, found, rows, keys, SCALAR_PRODUCTS, knowledge.notes)

    def _from_rows(
        self,
        view: View,
        found: _Ledgers,
        by_round: Mapping[int, template.TemplateRows | None],
        keys: int,
        reading: str,
        notes: Sequence[str],
    ) -> AttributionGuess:
        """The decision from the rows of all rounds that distinguish a client from others."""
        rows = {number: row for number, row in by_round.items() if row is not None}
        if not rows:
            raise no_estimates(found.ledgers)
        each = [*rows.values()]
        decision = template.decide(each, keys, self.error)
        return AttributionGuess(
            **found.about(view, [*rows]),
            keys=keys,
            designs=tuple(r.design for r in each),
            scores=tuple(r.values for r in each),
            published=None,
            parts=template.parts(each, keys),
            decision=decision,
            sequential=template.sequential(each, keys, self.error),
            reading=reading,
            notes=(
                *notes,
                *omission_notes([*rows], found.asked_in, 0),
                template.tail_note(decision, keys, self.error),
                *_seldom(found),
            ),
            by_template=True,
        )

    def _by_scores(
        self, view: View, knowledge: Knowledge, marks: Marks, found: _Ledgers
    ) -> AttributionGuess:
        ledgers, names = found.ledgers, found.names
        draw: DrawPairs | None = knowledge.extra.get("pairs")
        drawn = None if draw is None else drawn_sizes(view, ledgers[0], draw)
        scorer = CandidateScorer(
            view=view,
            names=names,
            marks=marks,
            unused_keys=self.unused_keys,
            draw=draw,
            columns=found.columns,
            weight=float(knowledge.extra.get("mean_weight", 1.0)),
        )
        scored = _score_rounds(scorer, ledgers)
        if not scored:
            raise no_estimates(ledgers)
        rounds = [s.number for s in scored]
        tables, decision, looks = self._decide(scored, marks)
        design = np.concatenate([s.design for s in scored])
        published = [s.published for s in scored if s.published is not None]
        readings = {s.reading for s in scored} if tables is None else {OVER_ROUNDS}
        return AttributionGuess(
            **found.about(view, rounds),
            keys=len(marks.keys),
            designs=tuple(s.design for s in scored),
            scores=tuple(s.scores for s in scored),
            published=np.stack(published) if len(published) == len(rounds) else None,
            parts=calibration.regress(design, np.concatenate([s.scores for s in scored])),
            decision=decision,
            sequential=looks,
            reading=", ".join(sorted(readings)),
            notes=(
                *knowledge.notes,
                *getattr(marks, "notes", ()),
                *omission_notes(rounds, found.asked_in, sum(s.lost for s in scored)),
            ),
            apart=bool(getattr(marks, "apart", False)),
            linear=bool(getattr(marks, "linear", True)),
            tables=tables,
            drawn=drawn,
        )

    def _decide(
        self, scored: Sequence[RoundScores], marks: Marks
    ) -> tuple[ScoreTables | None, NamingDecision, Sequential]:
        """Score tables of all rounds together (None: round by round), the decision, and the
        looks."""
        keys, apart = len(marks.keys), bool(getattr(marks, "apart", False))
        designs = [s.design for s in scored]
        design = np.concatenate(designs)
        means = [s.means for s in scored if s.means is not None]
        starts = [s.start for s in scored if s.start is not None]
        if len(means) == len(scored):
            tables = over_rounds.tables(
                design, np.concatenate(means), starts[-1], marks, self.unused_keys, error=self.error
            )
            decision = over_rounds.decide(design, tables, keys, self.error, apart=apart)
            looks = over_rounds.sequential(
                designs, means, starts, marks, self.unused_keys, self.error, tables
            )
            return tables, decision, looks
        scores = [s.scores for s in scored]
        by = {"apart": apart, "linear": bool(getattr(marks, "linear", True))}
        row_rounds = calibration.rounds_of_rows(designs)
        decision = calibration.decide(
            design, np.concatenate(scores), keys, self.error, **by, row_rounds=row_rounds
        )
        return None, decision, calibration.sequential(designs, scores, keys, self.error, **by)

    def score(
        self, guess: AttributionGuess, truth: Truth | None, rng: np.random.Generator
    ) -> AuditResult:
        return score_guess(self, guess, truth)


def _seldom(found: _Ledgers) -> list[str]:
    """A note on clients that are in the sums of fewer than half of the rounds."""
    there = [sum(n in a.clients and took_part(a, n) for a in found.ledgers) for n in found.names]
    few = sum(2 * count < len(found.ledgers) for count in there)
    return [
        f"{few} clients are in the sums of fewer than half of the rounds: little can be said of "
        "them"
    ] * bool(few)


def _marks(knowledge: Knowledge) -> Any:
    """The owner's marks, or templates of them where these are read."""
    marks = knowledge.extra.get("templates", knowledge.extra.get("marks"))
    if marks is None:
        raise NotApplicable(
            "looking for marks needs the owner's keys",
            code="no_keys",
            expected="a corpus owner's keys",
            got="none",
            remedy="plant marks with [marks], or pass knowledge.extra['marks']",
        )
    return marks


def _score_rounds(scorer: CandidateScorer, ledgers: Sequence[RoundQueries]) -> list[RoundScores]:
    """Scores of every round whose answers estimate a client."""
    out: list[RoundScores] = []
    for ledger in ledgers:
        kept = sum(len(s.means) for s in out if s.means is not None)
        found = scorer.score(ledger, kept)
        if found is not None:
            out.append(found)
    return out


def _no_answers(view: View, questions: int) -> NotApplicable:
    """The reason why a view has no answered sums."""
    if questions:
        return NothingToSay(
            "no query was answered",
            code="no_answers",
            expected="sums through secure aggregation, and their ledger",
            got=f"{questions} queries, all refused or failed",
            remedy="lower the threshold, or see why clients dropped out",
        )
    return NotApplicable(
        f"{view.vantage} sees no sums",
        code="no_sums",
        expected="sums through secure aggregation, and their ledger",
        got="none",
        remedy="run with [protections.secure_aggregation]",
    )
