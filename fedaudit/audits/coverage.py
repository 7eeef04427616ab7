"""What left a client outside the declared protection?

Question: a protection covers parameters, senders or counts. What else crossed the wire?
Vantage: WIRETAP (the auditor sees the whole recording; the finding names the other observers).
Paper: none; every trace gets this bookkeeping check.
Differs: there is no paper to differ from.
Shapes: reads message tables and tensor names, never values.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from fedaudit.audits.audit import Audit, Knowledge
from fedaudit.audits.facts import GREATER, Advice, AuditFacts, Decision, Measure, Words
from fedaudit.audits.outright import need_uploads
from fedaudit.audits.planning import Aim, Recorded, SampleSize, counted, counted_headline
from fedaudit.layout import Layout
from fedaudit.protections.declared import has_fact
from fedaudit.results import AuditResult, Estimate
from fedaudit.trace import AGGREGATOR, ANONYMOUS, PUBLIC, Truth, View
from fedaudit.trace.schema import LEFT_OUT, QUERY, SHUFFLER, Message, hub_depths

# -- theory: the kinds of data that a protection can cover ----------------------------------------

INTERMEDIARIES = (SHUFFLER, AGGREGATOR)
"""Trusted receivers: names and single updates on the way to them are not a leak."""

COVERABLE = ("parameter", "buffer", "integer", "weight", "metadata", "sender", "participation")


def in_effect(declared: Mapping[str, Any], clear: Collection[str]) -> set[str]:
    """Kinds that a declared protection covers, minus those that are still visible.

    A visible name is not covered, whatever the declaration says. Noisy tensors are visible and
    covered. A secure sum makes nothing visible, so it covers nothing that still is.
    """
    shown = set(clear) if has_fact(declared, "only_sums") else set(clear) & {"sender"}
    return {*declared.get("covers", ())} - shown


# -- attack: kinds of data in the message tables --------------------------------------------------

LABELS = {
    "parameter": "parameter tensors in the clear",
    "buffer": "normalisation statistics",
    "integer": "integer buffers",
    "metadata": "fields beside the update",
}


PLAIN = {
    "parameter": "readable updates",
    "buffer": "readable buffers",
    "integer": "readable integers",
    "sender": "senders' names",
    "weight": "record numbers",
}
"""Kind of data -> what a newcomer calls it; other kinds go by their names."""


def uncovered(items: Mapping[str, tuple[str, ...]], covers: set[str]) -> tuple[str, ...]:
    """Descriptions of the items (kind -> descriptions) that no declared protection covers."""
    return tuple(line for kind in COVERABLE if kind not in covers for line in items.get(kind, ()))


@dataclass
class Sightings:
    """What clients sent: names by kind, rounds and weights by sender, kinds in the clear."""

    names: dict[str, dict[str, None]] = field(default_factory=lambda: {k: {} for k in COVERABLE})
    rounds: dict[str, set[int]] = field(default_factory=dict)
    weights: set[float] = field(default_factory=set)
    clear: set[str] = field(default_factory=set)
    messages: int = 0

    @classmethod
    def of(cls, view: View) -> Sightings:
        # every sender that is not a hub counts as a client, even if the trace does not list it
        hubs = {*hub_depths(view.federation), PUBLIC}
        seen = cls()
        for number in view.rounds:
            for m in view.messages(number):
                # a message without content records that no answer came
                if m.sender not in hubs and (m.parts or m.size):
                    seen.add(m, number, view.layouts)
        return seen

    def add(self, m: Message, number: int, layouts: Mapping[str, Layout]) -> None:
        self.messages += 1
        if m.sender != ANONYMOUS:
            self.rounds.setdefault(m.sender, set()).add(number)
        if not m.parts:
            # encrypted on this leg; beside a mask, weights and metrics may be in the clear
            if m.kind == "masked" and m.receiver not in INTERMEDIARIES and not m.noted(LEFT_OUT):
                self._beside_mask(m)
            return
        for layout in m.parts:
            for e in layouts[layout].entries:
                self.names[_kind_of(layout, e.role)].setdefault(e.name)
        if m.receiver not in INTERMEDIARIES:
            self.clear |= _visible_kinds(m, layouts)
        self.weights.add(m.weight)
        self.names["metadata"].update(dict.fromkeys(m.metadata))
        if m.sender != ANONYMOUS:
            self.names["sender"].setdefault(m.sender)

    def _beside_mask(self, m: Message) -> None:
        told = [key for key in m.metadata if key != QUERY]
        if not told and m.weight == 1.0:
            return  # a step of the protocol
        self.clear |= {"weight", "sender"} | ({"metadata"} if told else set())
        self.weights.add(m.weight)
        self.names["metadata"].update(dict.fromkeys(told))
        self.names["sender"].setdefault(m.sender)

    def items(self, every_round: set[int]) -> dict[str, tuple[str, ...]]:
        """Kind -> description of what was seen."""
        out: dict[str, tuple[str, ...]] = {}
        for kind, label in LABELS.items():
            if self.names[kind]:
                out[kind] = (f"{label}: {_listing(list(self.names[kind]))}",)
        if senders := len(self.names["sender"]):
            out["sender"] = (f"the sender's name, on the messages of {senders}",)
        if (distinct := len(self.weights)) > 1:
            out["weight"] = (
                f"aggregation weights with {distinct} distinct values (a client's size identifies "
                "it)",
            )
        if any(rounds != every_round for rounds in self.rounds.values()):
            out["participation"] = ("who took part in which round",)
        return out


# -- audit ----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class CoverageGuess:
    """`items`: kind -> descriptions. `covers`: kinds that the declared protections cover;
    `in_the_clear`: kinds that they declare but that are still visible."""

    items: dict[str, tuple[str, ...]]
    covers: tuple[str, ...]
    in_the_clear: tuple[str, ...]
    protections: tuple[str, ...]
    messages: int
    trace_sha256: str
    vantage: str


FACTS = AuditFacts(
    measures=(
        Measure(
            "kinds_outside_protection",
            GREATER,
            "kinds of data",
            "kinds of data that left a client outside every declared protection",
        ),
    ),
    decision=Decision(counts=True),
    words=Words(
        short="Anything sent unprotected?",
        learns="read unprotected data",
        measure="kinds of data that left a client outside every declared protection",
        leak="These left a client outside every declared protection: {notes}.",
        no_evidence="A declared protection covers everything that left a client.",
        advice=(Advice("declare a protection that covers them"), Advice("stop sending them")),
        against="with full protection",
        counted=("kind of data", "kinds of data"),
        counted_in="kinds",
    ),
    needs_truth=False,
    checks_declaration=True,
    gravity="metadata",
)


@dataclass(frozen=True, kw_only=True)
class Coverage(Audit):
    """List the data that left a client outside every declared protection."""

    name: ClassVar[str] = "coverage"
    question: ClassVar[str] = "What left a client outside the declared protection?"
    source: ClassVar[str] = "count over the message tables of the trace"
    facts: ClassVar[AuditFacts] = FACTS
    on_recording: ClassVar[str] = "lists what left a client outside every declared protection"
    vantage: str = "wiretap"

    @classmethod
    def samples(cls, result: AuditResult, recorded: Recorded, aim: Aim) -> list[SampleSize]:
        return [counted_headline(result)]

    @classmethod
    def samples_before(cls, aim: Aim) -> list[SampleSize]:
        return [counted(cls.name, "kinds_outside_protection")]

    def attack(self, view: View, knowledge: Knowledge, rng: np.random.Generator) -> CoverageGuess:
        seen = Sightings.of(view)
        if not seen.messages:
            need_uploads(view)
        return self.guess_from(
            seen, set(view.rounds), view.declared, view.trace_sha256, view.vantage
        )

    @staticmethod
    def guess_from(
        seen: Sightings,
        rounds: set[int],
        declarations: Sequence[Mapping[str, Any]],
        trace_sha256: str,
        vantage: str = "wiretap",
    ) -> CoverageGuess:
        """What was seen in these rounds, held against the declared protections."""
        items = seen.items(rounds)
        covers = {c for d in declarations for c in in_effect(d, seen.clear)}
        declared = {c for d in declarations for c in d.get("covers", ())}
        return CoverageGuess(
            items=items,
            covers=tuple(sorted(covers)),
            in_the_clear=tuple(sorted((declared - covers) & set(items))),
            protections=tuple(str(d.get("name", "?")) for d in declarations),
            messages=seen.messages,
            trace_sha256=trace_sha256,
            vantage=vantage,
        )

    def score(
        self, guess: CoverageGuess, truth: Truth | None, rng: np.random.Generator
    ) -> AuditResult:
        left = uncovered(guess.items, set(guess.covers))
        kinds = [PLAIN.get(k, k) for k in COVERABLE if guess.items.get(k) and k not in guess.covers]
        visible: tuple[str, ...] = ()
        if guess.in_the_clear:
            visible = (f"declared as covered, but in the clear: {', '.join(guess.in_the_clear)}",)
        return AuditResult(
            **self.about(guess, protections=list(guess.protections), kinds=kinds),
            headline="kinds_outside_protection",
            estimates={
                "kinds_outside_protection": Estimate(
                    value=float(len(left)),
                    low=float(len(left)),
                    high=float(len(left)),
                    n=guess.messages,
                    confidence=1.0,
                    baseline=0.0,
                    method="exact count over all recorded messages",
                )
            },
            detectable=1.0,  # an exact count
            notes=(*left, *visible),
        )


def _visible_kinds(m: Message, layouts: Mapping[str, Layout]) -> set[str]:
    """Kinds that a message with content shows to its receiver."""
    out: set[str] = set()
    if m.kind != "masked":  # a mask hides the tensors, not the fields beside them
        out = {_kind_of(layout, e.role) for layout in m.parts for e in layouts[layout].entries}
    out |= {"metadata"} if m.metadata else set()
    return {*out, "weight", *(["sender"] if m.sender != ANONYMOUS else [])}


def _kind_of(layout: str, role: str) -> str:
    if layout == "integers" or layout.endswith("-integers"):  # of the model, of a further record
        return "integer"
    return "buffer" if role == "buffer" else "parameter"


def _listing(names: list[str], most: int = 6) -> str:
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
