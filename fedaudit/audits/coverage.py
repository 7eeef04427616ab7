"""What left a client outside the declared protection?

Question: a protection covers parameters, senders or counts. What else crossed the wire?
Vantage: WIRETAP (the auditor of a recording sees all of it; the finding names who else would).
Paper: none; a bookkeeping check that every trace gets.
Differs: nothing to differ from.
Shapes: works on message tables and tensor names, never on values.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np

from fedaudit.audits.audit import Audit, Knowledge
from fedaudit.audits.facts import GREATER, Advice, AuditFacts, Decision, Measure, Words
from fedaudit.audits.outright import need_uploads
from fedaudit.audits.planning import Aim, Recorded, SampleSize, counted, counted_headline
from fedaudit.layout import Layout
from fedaudit.results import AuditResult, Estimate
from fedaudit.trace import AGGREGATOR, ANONYMOUS, PUBLIC, Truth, View
from fedaudit.trace.schema import SHUFFLER, Message, hub_depths

# -- theory: what a protection can cover ----------------------------------------------------------

MIDDLE = (SHUFFLER, AGGREGATOR)
"""Who receives what others do not: names and single updates on the way there are no leak."""
COVERABLE = ("parameter", "buffer", "integer", "weight", "metadata", "sender", "participation")


SUMS = ("securesum", "secureaggregation", "secagg")
"""Protections of which nothing of a single client leaves, as their names begin."""


def in_effect(declared: Mapping[str, Any], clear: Collection[str]) -> set[str]:
    """What a declared protection covers, without what stands in the clear though it should not.

    A name in the clear is a name, whatever was declared. Noise leaves tensors in the clear, and
    covers them; a secure sum leaves nothing, and covers nothing that still shows.
    """
    name = "".join(c for c in str(declared.get("name", "")).lower() if c.isalnum())
    shown = set(clear) if name.startswith(SUMS) else set(clear) & {"sender"}
    return {*declared.get("covers", ())} - shown


# -- attack: items from a table -------------------------------------------------------------------


def uncovered(items: Mapping[str, tuple[str, ...]], covers: set[str]) -> tuple[str, ...]:
    """Items (kind -> descriptions) whose kind no declared protection covers."""
    return tuple(line for kind in COVERABLE if kind not in covers for line in items.get(kind, ()))


# -- audit ----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class CoverageGuess:
    """`covers`: what declared protections cover; `void`: what they do not, though they say so."""

    items: dict[str, tuple[str, ...]]
    covers: tuple[str, ...]
    void: tuple[str, ...]
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
        measure="kinds of data that left a client outside every declared protection",
        leak="Outside every declared protection left: {notes}.",
        no_evidence="Everything that left a client falls under a declared protection.",
        advice=(Advice("declare a protection that covers them"), Advice("stop sending them")),
        against="with full protection",
        counted=("kind of data", "kinds of data"),
    ),
    needs_truth=False,
)


@dataclass(frozen=True, kw_only=True)
class Coverage(Audit):
    """What left a client outside the declared protection, by name."""

    name: ClassVar[str] = "coverage"
    question: ClassVar[str] = "What left a client outside the declared protection?"
    source: ClassVar[str] = "count over the message tables of the trace"
    facts: ClassVar[AuditFacts] = FACTS
    on_recording: ClassVar[str] = "what left a client outside of every declared protection"
    vantage: str = "wiretap"

    @classmethod
    def samples(cls, result: AuditResult, recorded: Recorded, aim: Aim) -> list[SampleSize]:
        return [counted_headline(result)]

    @classmethod
    def samples_before(cls, aim: Aim) -> list[SampleSize]:
        return [counted(cls.name, "kinds_outside_protection")]

    def attack(self, view: View, knowledge: Knowledge, rng: np.random.Generator) -> CoverageGuess:
        # whoever is no known middleman is a client, listed or not: nobody's message is left out
        hubs = {*hub_depths(view.federation), PUBLIC}
        layouts = view.layouts
        kinds: dict[str, dict[str, None]] = {k: {} for k in COVERABLE}
        presence: dict[str, set[int]] = {}
        weights: dict[str, set[float]] = {}
        clear: set[str] = set()
        count = 0
        for number in view.rounds:
            for m in view.messages(number):
                if m.sender in hubs or not (m.parts or m.size):
                    continue  # a message of no content stands for an answer that did not come
                count += 1
                if m.sender != ANONYMOUS:
                    presence.setdefault(m.sender, set()).add(number)
                if not m.parts:
                    continue  # sealed on this leg: only its size shows
                for layout in m.parts:
                    for e in layouts[layout].entries:
                        kinds[_kind_of(layout, e.role)].setdefault(e.name)
                if m.receiver not in MIDDLE:
                    clear |= _shown(m, layouts)
                weights.setdefault(m.sender, set()).add(m.weight)
                for key in m.metadata:
                    kinds["metadata"].setdefault(key)
                if m.sender != ANONYMOUS:
                    kinds["sender"].setdefault(m.sender)
        if not count:
            need_uploads(view)
        items: dict[str, tuple[str, ...]] = {}
        for kind, label in (
            ("parameter", "parameter tensors in the clear"),
            ("buffer", "normalisation statistics"),
            ("integer", "integer buffers"),
            ("metadata", "fields beside the update"),
        ):
            if kinds[kind]:
                items[kind] = (f"{label}: {_listing(list(kinds[kind]))}",)
        if kinds["sender"]:
            items["sender"] = (f"the sender's name, on the messages of {len(kinds['sender'])}",)
        distinct = {w for seen in weights.values() for w in seen}
        if len(distinct) > 1:
            items["weight"] = (
                f"aggregation weights with {len(distinct)} distinct values (a client's size tells "
                "it apart)",
            )
        everywhere = set(view.rounds)
        if any(rounds != everywhere for rounds in presence.values()):
            items["participation"] = ("who took part in which round",)
        covers = {c for d in view.declared for c in in_effect(d, clear)}
        said = {c for d in view.declared for c in d.get("covers", ())}
        return CoverageGuess(
            items=items,
            covers=tuple(sorted(covers)),
            void=tuple(sorted((said - covers) & set(items))),
            protections=tuple(str(d.get("name", "?")) for d in view.declared),
            messages=count,
            trace_sha256=view.trace_sha256,
            vantage=view.vantage,
        )

    def score(
        self, guess: CoverageGuess, truth: Truth | None, rng: np.random.Generator
    ) -> AuditResult:
        left = uncovered(guess.items, set(guess.covers))
        void = tuple(
            f"declared to be covered, and in the clear all the same: {', '.join(guess.void)}"
            for _ in guess.void[:1]
        )
        settings: dict[str, Any] = asdict(self)
        settings["protections"] = list(guess.protections)
        return AuditResult(
            audit=self.name,
            question=self.question,
            vantage=guess.vantage,
            settings=settings,
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
            detectable=1.0,  # a count misses nothing
            notes=(*left, *void),
            source=self.source,
            trace_sha256=guess.trace_sha256,
        )


def _shown(m: Message, layouts: Mapping[str, Layout]) -> set[str]:
    """Kinds that one message with content shows to whoever receives it."""
    out: set[str] = set()
    if m.kind != "masked":  # a mask hides what it lies on, whatever crosses beside it
        out = {_kind_of(layout, e.role) for layout in m.parts for e in layouts[layout].entries}
    out |= {"metadata"} if m.metadata else set()
    return {*out, "weight", *(["sender"] if m.sender != ANONYMOUS else [])}


def _kind_of(layout: str, role: str) -> str:
    if layout == "integers":
        return "integer"
    return "buffer" if role == "buffer" else "parameter"


def _listing(names: list[str], most: int = 6) -> str:
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
