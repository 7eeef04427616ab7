"""How many ordinary records of a client name it, through sums that hide its update?

Question: whoever holds a few of a client's records and sees the sums of a safe plan: can it say
whose records these are? Nothing is marked: attribution through sums is dataset membership.
Vantage: a party that receives sums.
Paper: the question is that of [FedAttr] Section 4 without marks.
Differs: the test is that of `template`, on records as clients have them. Each set is tested alone,
as an owner of one key would, against sets of held-out records.
Shapes: sets of records (K, n, ...), controls (U, n, ...); rows of all rounds (R, K), (R, 1 + U).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt
from annotated_types import Gt, Lt

from fedaudit.audits.attribution import template
from fedaudit.audits.audit import Audit, Knowledge, columns_for
from fedaudit.audits.facts import GREATER, Advice, AuditFacts, Column, Measure, Words
from fedaudit.audits.planning import Aim, SampleSize, Setting, Shape
from fedaudit.errors import NotApplicable
from fedaudit.results import AuditResult, Estimate, Need
from fedaudit.settings import Count, Fraction, checked
from fedaudit.stats import intervals, query_plans
from fedaudit.trace import Truth, View
from fedaudit.trace.ledger import round_queries

FACTS = AuditFacts(
    measures=(
        Measure("set_named", GREATER, "share of sets", "sets of a client's records that name it"),
        Measure("wrongly_named", GREATER, "share of sets", "sets that name another client"),
    ),
    columns=(
        Column("set_named", GREATER, exact=True, words="1: the largest set names this client"),
        Column("from_records", words="fewest of its records that named it"),
    ),
    words=Words(
        short="Named by ordinary records?",
        learns="name the client that trained on given records",
        measure="sets of ordinary records that name their client through sums",
        leak="{value} of the sets of ordinary records name the client that trained on them, "
        "although only sums were opened.",
        no_evidence="No more sets of records name their client than the error rate allows.",
        advice=(
            Advice("repeat few partitions (plan = cycled), or open the training aggregate alone"),
            Advice("use larger groups"),
            Advice("add noise at the clients: client-level privacy hides a set of records too"),
        ),
        against="the error rate",
    ),
)

# -- attack ----------------------------------------------------------------------------------------


def whose(rows: Sequence[template.TemplateRows], error: float) -> int:
    """The client that a set (the first column) points at, -1 if none: the smallest p-value."""
    named = template.decide(rows, 1, error).named
    return int(named.adjusted.argmin()) if named.flagged.any() else -1


def one_set(
    rows: Sequence[template.TemplateRows], number: int, sets: int
) -> list[template.TemplateRows]:
    """The rows of one of `sets` sets and of the controls behind them."""
    width = rows[0].values.shape[1]
    columns = np.array([number, *range(sets, width)])
    return [template.TemplateRows(r.design, r.values[:, columns]) for r in rows]


# -- audit -----------------------------------------------------------------------------------------


class RecordSets(Protocol):
    """Sets of `sizes` records each, of unknown clients, and sets of held-out records."""

    @property
    def sizes(self) -> Sequence[int]: ...

    def templates(self, size: int) -> template.Templates:
        """Templates of the sets with `size` records, and of as many as possible of controls."""
        ...


@dataclass(frozen=True, kw_only=True)
class NamedSets:
    """The client each set points at, by its size: (sets,) each, -1 for none."""

    names: tuple[str, ...]
    found: dict[int, tuple[int, ...]]
    controls: dict[int, int]
    notes: tuple[str, ...]
    vantage: str
    trace_sha256: str


@dataclass(frozen=True, kw_only=True)
@checked("audits.record_set_naming")
class RecordSetNaming(Audit):
    """How many of a client's ordinary records name it through sums that hide its update?

    `sizes`: numbers of records in a set. `error`: chance that a set names a client wrongly.
    `records`: most clients whose records are asked about. `templates`: most sets of held-out
    records, which give the null.
    """

    name: ClassVar[str] = "record_set_naming"
    question: ClassVar[str] = "How many of a client's records name it, seen only through sums?"
    source: ClassVar[str] = "[FedAttr] Section 4"
    needs: ClassVar[tuple[str, ...]] = ("records", "record_sets")
    on_recording: ClassVar[str] = "with fedaudit audit TRACE, the records and the model"
    facts: ClassVar[AuditFacts] = FACTS

    vantage: str = "server"
    sizes: tuple[Count, ...] = (1, 4, 16)
    records: Count = 20
    error: Annotated[float, Gt(0), Lt(0.5)] = 0.05
    templates: Count = 60
    confidence: Fraction = 0.95

    def cost(self, shape: Shape) -> float:
        return 1.0 + 0.05 * shape.rounds * len(self.sizes)

    @classmethod
    def samples_before(cls, aim: Aim) -> list[SampleSize]:
        """Rounds of balanced partitions in which every two clients stand apart at least twice."""
        size = min(max(aim.threshold, 2), max(aim.clients // 2, 1))
        rng, rounds = np.random.default_rng(0), 2
        while (
            query_plans.least_separation(
                query_plans.balanced_partitions(aim.clients, size, rounds, rng)
            )
            < 2
        ):
            rounds += 1
        return [
            SampleSize(
                audit=cls.name,
                measure="set_named",
                unit="rounds",
                needed=rounds,
                how=f"{rounds} rounds of balanced partitions of {aim.clients} clients into groups "
                f"of {size}: every two clients are apart at least twice",
                rule="least separation of the plan; fewer rounds cannot tell some clients apart",
            )
        ]

    def missing(self, setting: Setting) -> Need | None:
        if setting.subset_sums:
            return None
        return Need(
            code="only_totals" if setting.sums_by else "no_sums",
            what="there are no sums over subsets of clients: add [protections.secure_aggregation] "
            "with a plan",
        )

    def attack(self, view: View, knowledge: Knowledge, rng: np.random.Generator) -> NamedSets:
        ledgers = [round_queries(view, number) for number in view.rounds]
        ledgers = [a for a in ledgers if len(a.answered)]
        if not any(len(template.centred_rows(a.answered)[1]) for a in ledgers):
            raise NotApplicable(
                f"{view.vantage} sees no sums over parts of the clients",
                code="only_totals" if ledgers else "no_sums",
                expected="sums over subsets of the clients",
                got="the training aggregate alone" if ledgers else "no sums",
                remedy='protections.secure_aggregation.plan = "cycled"; single updates are for '
                "two_stage_membership",
            )
        names = tuple(dict.fromkeys(name for a in ledgers for name in a.clients))
        sets: RecordSets = knowledge.extra["record_sets"]
        columns = None
        if knowledge.task is not None:
            columns = columns_for(knowledge.task.layout, view.layout)
        found, controls = {}, {}
        for size in sets.sizes:
            made = sets.templates(size)
            unused = int(getattr(made, "available", self.templates))
            rows = [template.template_rows(view, a, names, made, unused, columns) for a in ledgers]
            kept = [r for r in rows if r is not None]
            many = len(made.keys)
            found[size] = tuple(whose(one_set(kept, s, many), self.error) for s in range(many))
            controls[size] = unused
        return NamedSets(
            names=names,
            found=found,
            controls=controls,
            notes=knowledge.notes,
            vantage=view.vantage,
            trace_sha256=view.trace_sha256,
        )

    def score(self, guess: NamedSets, truth: Truth | None, rng: np.random.Generator) -> AuditResult:
        about = self.about(guess)
        owners = {} if truth is None else truth.members
        if not owners:
            need = Need(code="no_truth", what="nobody says whose records the sets are")
            return AuditResult(status="blind", need=need, notes=guess.notes, **about)
        whose_set = np.full(len(next(iter(owners.values()))), -1)
        for party, mine in owners.items():
            if party in guess.names:
                whose_set[np.asarray(mine)] = guess.names.index(party)
        right = {size: np.array(f) == whose_set for size, f in guess.found.items()}
        estimates: dict[str, Estimate] = {}
        for size, hits in sorted(right.items(), reverse=True):
            many, label = len(hits), f" ({size} records)"
            wrong = int(((np.array(guess.found[size]) >= 0) & ~hits).sum())
            for name, count in (("set_named", int(hits.sum())), ("wrongly_named", wrong)):
                estimates[name + label] = intervals.wilson(
                    count, many, self.confidence, baseline=self.error
                )
        largest = max(right)
        return AuditResult(
            headline=f"set_named ({largest} records)",
            estimates=estimates,
            per_client=_per_client(guess, whose_set, right),
            curves={
                "by_size": {
                    "records": tuple(float(s) for s in sorted(right)),
                    "set_named": tuple(float(right[s].mean()) for s in sorted(right)),
                }
            },
            detectable=intervals.smallest_share_above(self.error, len(whose_set), self.confidence),
            notes=(*guess.notes, *_notes(guess, right)),
            **about,
        )


def _per_client(
    guess: NamedSets, whose_set: npt.NDArray[Any], right: dict[int, npt.NDArray[np.bool_]]
) -> dict[str, dict[str, float | int | str | None]]:
    out: dict[str, dict[str, float | int | str | None]] = {}
    for number, client in enumerate(whose_set):
        if client >= 0:
            named = [size for size in sorted(right) if right[size][number]]
            out[guess.names[client]] = {
                "set_named": int(right[max(right)][number]),
                "from_records": named[0] if named else None,
            }
    return out


def _notes(guess: NamedSets, right: dict[int, npt.NDArray[np.bool_]]) -> list[str]:
    counts = ", ".join(f"{int(right[s].sum())} of {len(right[s])} with {s}" for s in sorted(right))
    least = min(guess.controls.values())
    return [
        f"sets of a client's own records that name it: {counts}",
        f"against {least} or more sets of held-out records; a client whose mix of records is "
        "unlike the held-out ones is named by that mix as well",
    ]
