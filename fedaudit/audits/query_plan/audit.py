"""The audit of a query plan: settings, attack on the ledger, score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from fedaudit.arrays import Floats, Rows
from fedaudit.audits.audit import Audit, Knowledge
from fedaudit.audits.facts import AuditFacts
from fedaudit.audits.outright import single_updates
from fedaudit.audits.planning import (
    Aim,
    Recorded,
    SampleSize,
    Setting,
    counted,
    counted_headline,
)
from fedaudit.audits.query_plan.facts import FACTS
from fedaudit.audits.query_plan.scalars import ScalarPlan, scalar_plan
from fedaudit.audits.query_plan.theory import (
    PlanAudit,
    align_clients,
    audit_plan,
    in_the_clear,
    solution,
)
from fedaudit.errors import NotApplicable, NothingToSay, NotObservable, TraceError, count_of
from fedaudit.results import AuditResult, Estimate, Need, Underpowered
from fedaudit.settings import Count, Fraction, Whole, checked
from fedaudit.stats import intervals, query_algebra
from fedaudit.stats.plan_design import best_guess
from fedaudit.trace import Truth, View
from fedaudit.trace.ledger import RoundQueries, round_queries

PERSISTENCE = 2 / 3
"""Share of an update that the best linear guess assumes to persist across rounds."""


@dataclass(frozen=True, kw_only=True)
class PlanGuess:
    """What the queries reveal, and the updates that the attack computed.

    `plans`: the audit of each of the `rounds`; `stacked`: of all rounds together. `uploads` (K,):
    mean number of sums per round that include a client. `solved`: (round, client, row).
    `persistent`, `guessed` (K, d): mean updates estimated across rounds. `alone`: number of single
    updates with a name; `nameless`: number of those without.
    """

    names: tuple[str, ...]
    rounds: tuple[int, ...]
    plans: tuple[PlanAudit, ...]
    stacked: PlanAudit
    uploads: tuple[float, ...]
    refused: int
    solved: tuple[tuple[int, int, Rows], ...]
    persistent: Rows | None
    guessed: Rows | None
    threshold: int
    trace_sha256: str
    vantage: str
    alone: int = 0
    nameless: int = 0
    scalars: ScalarPlan | None = None


@dataclass(frozen=True, kw_only=True)
@checked("audits.query_plan")
class QueryPlan(Audit):
    """Find the clients whose updates the requested sums determine, round by round.

    `threshold`: the smallest group that may be exposed (default: the declared threshold of secure
    aggregation, else 2). `solve`: largest number of recovered updates to compare with the truth.
    `numbers`: largest size of an estimate across rounds.
    """

    name: ClassVar[str] = "query_plan"
    question: ClassVar[str] = "What do the sums that were asked for give away together?"
    source: ClassVar[str] = "row space of the ledger's queries; [FedAttr] Section 4.1"
    facts: ClassVar[AuditFacts] = FACTS
    on_recording: ClassVar[str] = "on the sums that were asked for"
    vantage: str = "server"
    threshold: Count | None = None
    solve: Whole = 20
    numbers: Whole = 50_000_000
    confidence: Fraction = 0.95

    def missing(self, setting: Setting) -> Need | None:
        if setting.sums_by:
            return None
        if setting.recording:
            return Need(code="no_sums", what="nothing is summed by secure aggregation")
        if setting.hidden:
            what = "no sums are asked for: add [protections.secure_aggregation]"
            return Need(code="no_sums", what=what)
        return None  # updates with names are known without sums

    @classmethod
    def samples(cls, result: AuditResult, recorded: Recorded, aim: Aim) -> list[SampleSize]:
        found = counted_headline(result)
        if not result.undecided:
            return [found]
        head = result.estimates[found.measure]
        how = (
            f"the search ended undecided, {head.low:g} to {head.high:g}: use fewer queries per "
            "round, disjoint groups (`fedaudit plan design`) or another threshold; more rounds do "
            "not help"
        )
        return [replace(found, how=how)]

    @classmethod
    def samples_before(cls, aim: Aim) -> list[SampleSize]:
        return [counted(cls.name, "smallest_exposed_group")]

    def attack(self, view: View, knowledge: Knowledge, rng: np.random.Generator) -> PlanGuess:
        ledgers = [round_queries(view, number) for number in view.rounds]
        questions = sum(len(a.queries) for a in ledgers)
        ledgers_answered = [a for a in ledgers if len(a.answered)]
        alone, nameless = _single_updates(view)
        if alone:
            found = self._read_off(view, ledgers_answered, alone, questions)
            return replace(found, nameless=nameless)
        if not ledgers_answered:
            lacking = NothingToSay if questions else NotApplicable
            raise lacking(
                f"{view.vantage} sees no sums" if not questions else "no query was answered",
                code="no_answers" if questions else "no_sums",
                expected="sums through secure aggregation",
                got=f"{questions} queries without an answer" if questions else "no sum, no query",
                remedy="in a hierarchy, set audits.query_plan.vantage to a region"
                if not questions
                else "lower the threshold, or find out why they were refused",
            )
        names, matrices = align_clients(ledgers_answered)
        work = query_algebra.WORK // len(matrices)
        plans = [audit_plan(matrix, work=work) for matrix in matrices]
        return PlanGuess(
            names=names,
            rounds=tuple(a.round for a in ledgers_answered),
            plans=tuple(plans),
            stacked=audit_plan(np.concatenate(matrices)),
            uploads=tuple((sum((m != 0).sum(axis=0) for m in matrices) / len(matrices)).tolist()),
            refused=questions - sum(len(a.answered) for a in ledgers),
            solved=tuple(self._solved(view, ledgers_answered, matrices, plans, rng)),
            persistent=self._over_rounds(view, ledgers_answered, matrices, 1.0),
            guessed=self._over_rounds(view, ledgers_answered, matrices, PERSISTENCE),
            threshold=self._threshold(view),
            trace_sha256=view.trace_sha256,
            vantage=view.vantage,
            scalars=scalar_plan(view, ledgers_answered),
        )

    def _read_off(
        self,
        view: View,
        ledgers: Sequence[RoundQueries],
        alone: Mapping[int, Sequence[str]],
        questions: int,
    ) -> PlanGuess:
        """The answer if updates have names: each counts as a sum over one client."""
        named, sums = align_clients(ledgers)
        names = tuple(dict.fromkeys([*named, *(n for own in alone.values() for n in own)]))
        asked_in = {a.round: m for a, m in zip(ledgers, sums, strict=True)}
        rounds, plans, uploads = [], [], np.zeros(len(names))
        for number in sorted({*alone, *asked_in}):
            own = [names.index(n) for n in alone.get(number, ())]
            matrix = np.zeros((len(own), len(names)))
            matrix[np.arange(len(own)), own] = 1.0
            if number in asked_in:
                wide = np.zeros((len(asked_in[number]), len(names)))
                wide[:, : len(named)] = asked_in[number]
                matrix = np.concatenate([wide, matrix])
            uploads += (matrix != 0).sum(axis=0)
            rounds.append(number)
            plans.append(
                audit_plan(matrix) if number in asked_in else in_the_clear(own, len(names))
            )
        ever = [k for k, n in enumerate(names) if any(n in own for own in alone.values())]
        return PlanGuess(
            names=names,
            rounds=tuple(rounds),
            plans=tuple(plans),
            stacked=in_the_clear(ever, len(names)),
            uploads=tuple((uploads / len(rounds)).tolist()),
            refused=questions - sum(len(a.answered) for a in ledgers),
            solved=(),
            persistent=None,
            guessed=None,
            threshold=self._threshold(view),
            trace_sha256=view.trace_sha256,
            vantage=view.vantage,
            alone=sum(map(len, alone.values())),
        )

    def _threshold(self, view: View) -> int:
        if self.threshold is not None:
            return self.threshold
        declared = [d.get("threshold") for d in view.declared]
        return max([2, *(t for t in declared if isinstance(t, int) and not isinstance(t, bool))])

    def _solved(
        self,
        view: View,
        ledgers: Sequence[RoundQueries],
        matrices: Sequence[Floats],
        plans: Sequence[PlanAudit],
        rng: np.random.Generator,
    ) -> list[tuple[int, int, Rows]]:
        """Updates of a random sample of the recoverable clients."""
        open_ones = [(i, k) for i, plan in enumerate(plans) for k in plan.recoverable]
        keep = rng.permutation(len(open_ones))[: self.solve]
        chosen: dict[int, list[int]] = {}
        for at in keep:
            i, k = open_ones[at]
            chosen.setdefault(i, []).append(k)
        out = []
        for i, clients in chosen.items():
            rows = _combine_answers(view, ledgers[i : i + 1], solution(matrices[i])[clients])
            out += [(ledgers[i].round, k, row) for k, row in zip(clients, rows, strict=True)]
        return out

    def _over_rounds(
        self,
        view: View,
        ledgers: Sequence[RoundQueries],
        matrices: Sequence[Floats],
        persistence: float,
    ) -> Rows | None:
        """Every client's mean update over the rounds, estimated from all sums (K, d).

        By least squares if `persistence` is 1, else by the best linear guess.
        """
        clients = matrices[0].shape[1]
        if len(ledgers) < 2 or clients * view.layout.width > self.numbers:
            return None
        if persistence == 1:
            return _combine_answers(view, ledgers, solution(np.concatenate(matrices)))
        return _combine_answers(view, ledgers, best_guess(matrices, persistence))

    def score(self, guess: PlanGuess, truth: Truth | None, rng: np.random.Generator) -> AuditResult:
        plans, clients = guess.plans, len(guess.names)
        worst = min(range(len(plans)), key=lambda i: plans[i].min_support)
        # a bounded search in another round may have missed a smaller group: the low end covers it
        floor = min(p.min_support_floor for p in plans)
        pairs = sum(len(p.recoverable) for p in plans)
        estimates = {
            "smallest_exposed_group": _exact(
                plans[worst].min_support,
                len(plans),
                "fewest clients in any combination of a round's answers"
                + ("; search bounded by the low end" if floor < plans[worst].min_support else ""),
                baseline=guess.threshold,
                low=floor,
            ),
            "recoverable_updates": _exact(
                pairs / (clients * len(plans)),
                clients * len(plans),
                "share of clients and rounds whose update can be solved for",
                baseline=0.0,
            ),
            "rank_per_client": _exact(
                sum(p.rank for p in plans) / (clients * len(plans)),
                len(plans),
                "independent combinations over clients, mean over rounds",
                baseline=1 / clients,
            ),
            "recoverable_if_updates_persist": _exact(
                len(guess.stacked.recoverable) / clients,
                clients,
                f"share of clients, {count_of(len(plans), 'round')} stacked",
                baseline=0.0,
            ),
        }
        if guess.scalars is not None:
            estimates["smallest_group_by_scalars"] = _exact(
                guess.scalars.smallest,
                guess.scalars.rounds,
                "fewest clients whose inner products with templates a round's answers give",
                baseline=guess.threshold,
                low=guess.scalars.floor,
            )
        underpowered = []
        for name, found in self._measured(guess, truth).items():
            if isinstance(found, Underpowered):
                underpowered.append(replace(found, what=f"{name}: {found.what}", measure=name))
            else:
                estimates[name] = found
        return AuditResult(
            **self.about(guess, threshold=guess.threshold),
            known=guess.alone > 0,
            headline="smallest_exposed_group",
            greater_is_leak=False,
            estimates=estimates,
            underpowered=tuple(underpowered),
            per_client=_per_client(guess),
            curves={"by_round": _by_round(guess)},
            # a bounded search may miss groups that it did not exclude
            detectable=float(min(guess.threshold, floor) - 1),
            notes=_notes(guess, worst),
        )

    def _measured(
        self, guess: PlanGuess, truth: Truth | None
    ) -> Mapping[str, Estimate | Underpowered]:
        """Cosines between the computed and the true updates, if the truth has them.

        The baseline is the cosine between the training aggregate and an update.
        """
        if truth is None or (not guess.solved and guess.persistent is None):
            return {}
        try:
            raw = {number: truth.raw_updates(number) for number in guess.rounds}
        except TraceError:
            return {}
        out = {}
        if guess.solved:
            got, plain = [], []
            for number, k, row in guess.solved:
                parties, rows = raw[number]
                true = rows[parties.index(guess.names[k])]
                got.append(_cosine(row, true))
                plain.append(_cosine(rows.mean(axis=0), true))
            out["recovered_cosine"] = self._mean(got, float(np.mean(plain)))
        for measure, rows_of in (
            ("persistent_cosine", guess.persistent),
            ("guessed_cosine", guess.guessed),
        ):
            if rows_of is None:
                continue
            got, plain = [], []
            total = sum(rows.mean(axis=0) for _, rows in raw.values())
            for k, name in enumerate(guess.names):
                own = [rows[p.index(name)] for p, rows in raw.values() if name in p]
                if own:
                    mean = np.mean(own, axis=0)
                    got.append(_cosine(rows_of[k], mean))
                    plain.append(_cosine(total, mean))
            out[measure] = self._mean(got, float(np.mean(plain)))
        return out

    def _mean(self, cosines: Sequence[float], baseline: float) -> Estimate | Underpowered:
        found = intervals.mean(cosines, self.confidence, baseline=baseline)
        if isinstance(found, Underpowered):
            return found
        return replace(found, low=max(found.low, -1.0), high=min(found.high, 1.0))


def _single_updates(view: View) -> tuple[dict[int, list[str]], int]:
    """Round -> clients whose single update arrives with their name; and the number of single
    updates without a name."""
    try:
        carried = single_updates(view, view.layout.names[0])
    except (NotApplicable, NotObservable):
        return {}, 0
    named = {c.number: list(c.named.values()) for c in carried if c.named}
    return named, sum(len(c.hidden) for c in carried)


def _exact(
    value: float, n: int, method: str, *, baseline: float | None, low: float | None = None
) -> Estimate:
    return Estimate(
        value=float(value),
        low=float(value if low is None else low),
        high=float(value),
        n=n,
        confidence=1.0,
        baseline=baseline,
        method=method,
    )


def _combine_answers(view: View, ledgers: Sequence[RoundQueries], coefficients: Floats) -> Rows:
    """Combinations (n, d) of the answers of some rounds, with coefficients (n, Q) in order."""
    out = np.zeros((len(coefficients), view.layout.width), dtype=np.float64)
    column = 0
    for ledger in ledgers:
        for message in ledger.sums[ledger.sums >= 0]:
            weights = coefficients[:, column]
            column += 1
            used = np.flatnonzero(np.abs(weights) > 1e-12)
            if len(used):
                answer = view.payload(ledger.round, int(message)).astype(np.float64)
                out[used] += weights[used, None] * answer
    return out.astype(np.float32)


def _cosine(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> float:
    x, y = a.astype(np.float64), b.astype(np.float64)
    size = float(np.linalg.norm(x) * np.linalg.norm(y))
    return float(x @ y) / size if size else 0.0


def _per_client(guess: PlanGuess) -> dict[str, dict[str, float | int | str | None]]:
    return {
        name: {
            "part_of_row_space": max(p.share[k] for p in guess.plans),
            "rounds_recoverable": sum(k in p.recoverable for p in guess.plans),
            "part_over_all_rounds": guess.stacked.share[k],
            "uploads_per_round": guess.uploads[k],
        }
        for k, name in enumerate(guess.names)
    }


def _by_round(guess: PlanGuess) -> dict[str, tuple[float, ...]]:
    plans = guess.plans
    return {
        "round": tuple(float(r) for r in guess.rounds),
        "smallest_group": tuple(float(p.min_support) for p in plans),
        "rank": tuple(float(p.rank) for p in plans),
        "recoverable": tuple(float(len(p.recoverable)) for p in plans),
        "queries": tuple(float(p.queries) for p in plans),
    }


def _notes(guess: PlanGuess, worst: int) -> tuple[str, ...]:
    plan, clients = guess.plans[worst], len(guess.names)
    who = ", ".join(guess.names[k] for k in plan.smallest[:6])
    more = f" and {len(plan.smallest) - 6} more" if len(plan.smallest) > 6 else ""
    notes = []
    if guess.alone:
        every = guess.alone == clients * len(guess.plans)
        where = "on every message" if every else count_of(guess.alone, "time")
        if guess.nameless:
            where = f"on {guess.alone} of {guess.alone + guess.nameless} messages"
        notes.append(f"by name, {where}")
    notes += [
        f"round {guess.rounds[worst]}: {count_of(plan.queries, 'answer')} of rank {plan.rank} of "
        f"{clients}, the smallest group in a combination is {who}{more}"
    ]
    bounded = [i for i, p in enumerate(guess.plans) if p.min_support_floor < plan.min_support]
    if bounded:
        where = ", ".join(str(guess.rounds[i]) for i in bounded[:6])
        rest = f" and {len(bounded) - 6} more" if len(bounded) > 6 else ""
        floor = min(guess.plans[i].min_support_floor for i in bounded)
        notes.append(
            f"the search for the smallest group was bounded in round{'s' if bounded[1:] else ''} "
            f"{where}{rest}: at least {floor}"
        )
    together = guess.stacked
    if len(guess.plans) > 1:
        notes.append(
            f"if updates persist over the {len(guess.plans)} rounds: rank {together.rank} of "
            f"{clients}, {count_of(len(together.recoverable), 'client')} can be estimated alone"
        )
    if plan.rank > 1 and not plan.recoverable and not guess.alone:
        notes.append(
            "this is about updates: sums over parts of the clients can still name who trained on "
            "given records, which record_set_naming measures"
        )
    if guess.scalars is not None:
        notes += guess.scalars.notes
    if guess.refused:
        notes.append(f"{count_of(guess.refused, 'query', 'queries')} refused or failed")
    return tuple(notes)
