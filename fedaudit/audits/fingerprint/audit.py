"""The audit: features of a view, linkers, scores."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from annotated_types import MinLen

from fedaudit.arrays import Rows
from fedaudit.audits.amplification import notes_on_promises
from fedaudit.audits.audit import Audit, Knowledge
from fedaudit.audits.facts import AuditFacts
from fedaudit.audits.fingerprint import planning, scores
from fedaudit.audits.fingerprint.facts import FACTS
from fedaudit.audits.fingerprint.known import identifying_field, with_field_labels, with_known
from fedaudit.audits.fingerprint.linkers import LINKERS, chain, embed
from fedaudit.audits.fingerprint.null import LinkTest, link_test
from fedaudit.audits.outright import (
    RecurringField,
    RoundUpdates,
    known_clients,
    recurring_fields,
    single_updates,
)
from fedaudit.audits.planning import Aim, Recorded, SampleSize, Setting, Shape
from fedaudit.audits.rows.directions import Directions
from fedaudit.audits.rows.features import (
    collect,
    default_features,
    exact_cosines,
    exact_gram,
    linkable,
)
from fedaudit.audits.rows.linking import combined, count_clients
from fedaudit.audits.rows.traits import traits_of
from fedaudit.errors import NothingToSay
from fedaudit.layout import Layout
from fedaudit.randomness import Seed
from fedaudit.results import NO_TRUTH, AuditResult, Estimate, FamilyTest, Need
from fedaudit.settings import AtLeastTwo, EachOnce, Fraction, Whole, checked
from fedaudit.stats import clustering, intervals
from fedaudit.stats.assignment import Labels, match
from fedaudit.stats.links import links_until_sure
from fedaudit.trace import Truth, View

CLUSTERINGS = ("spectral", "kmeans")
"""Linkers by Euclidean distance: they get rows as they are normalised, the others unit rows."""
PUBLISHED = ("greedy", "spectral", "kmeans", "random")
EXACT_ROWS = 3000
"""Up to this many rows, an inconclusive sketch is followed by all methods on exact rows."""

Method = Literal["combined", "greedy", "tracking", "joint", "spectral", "kmeans", "random"]


@dataclass(frozen=True, kw_only=True)
class Linkage:
    """The attack's answer: the message of each row and its label by method, for every round.

    `named`: (round, message) -> client, for updates with a name. `recurring`: metadata fields that
    may identify the other updates. `hidden`: the number of anonymous updates. `everyone`: the
    number of all clients. `traits`: what `combined` linked by -> its strength.
    """

    rounds: tuple[int, ...]
    messages: tuple[tuple[int, ...], ...]
    labels: dict[str, tuple[tuple[int, ...], ...]]
    clients: int
    tensors: tuple[str, ...]
    columns: int
    sketch_width: int | None
    confirmed_exactly: bool
    vantage: str
    trace_sha256: str
    declared: tuple[Mapping[str, Any], ...] = ()
    named: Mapping[tuple[int, int], str] = field(default_factory=dict)
    recurring: tuple[RecurringField, ...] = ()
    hidden: int = 0
    everyone: int = 0
    traits: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
@checked("audits.fingerprint")
class Fingerprint(Audit):
    """Link anonymous updates across rounds by their content.

    `methods`: one test over all of them gives the verdict; the strongest is the headline.
    `combined` weighs everything that crosses the wire, the others compare directions of updates.
    `features`: tensor name patterns (default: feed-forward weights of the first transformer block,
    otherwise all weight matrices). `sketch`: a width, 0 for exact rows, None to decide by size.
    `clients`: their number (default: the clients to which the server sent models).
    """

    name: ClassVar[str] = "fingerprint"
    question: ClassVar[str] = "Can the server re-link shuffled updates to the same client?"
    source: ClassVar[str] = "[Fingerprint] Section 3.2"
    facts: ClassVar[AuditFacts] = FACTS
    on_recording: ClassVar[str] = (
        'the trace names senders: see the effect of a shuffler with `as_if=["shuffle"]`'
    )
    vantage: str = "server"
    methods: Annotated[tuple[Method, ...], MinLen(1), EachOnce()] = ("combined", "joint", "greedy")
    features: tuple[str, ...] = ()
    normalise: Literal["unit", "column"] = "unit"
    sketch: Whole | None = None
    clients: AtLeastTwo | None = None
    confidence: Fraction = 0.95

    # -- planning --------------------------------------------------------------------------------

    def cost(self, shape: Shape) -> float:
        return planning.cost(shape)

    def missing(self, setting: Setting) -> Need | None:
        return planning.missing(setting)

    def check_recorded(self, layout: Layout) -> None:
        planning.check_features(self.features, layout)

    @classmethod
    def samples(cls, result: AuditResult, recorded: Recorded, aim: Aim) -> list[SampleSize]:
        return [planning.samples(result, recorded, aim)]

    @classmethod
    def samples_before(cls, aim: Aim) -> list[SampleSize]:
        return [planning.LINKS.samples_before(cls.name, aim)]

    # -- attack ----------------------------------------------------------------------------------

    def attack(self, view: View, knowledge: Knowledge, rng: np.random.Generator) -> Linkage:
        patterns = self.features or default_features(view.layout)
        carried = single_updates(view, view.layout.select(patterns)[0].name)
        named = {(c.number, i): name for c in carried for i, name in c.named.items()}
        hidden = sum(len(c.hidden) for c in carried)
        everyone = max(
            len(known_clients(view) | set(named.values())),
            max(len(c.named) + len(c.hidden) for c in carried),
            self.clients or 0,
        )
        try:
            carried = linkable(carried)
        except NothingToSay:
            if not named:
                raise
            return self._read_off(view, named, hidden, everyone)
        streams = Seed(int(rng.integers(2**63)))
        features = collect(
            view,
            patterns,
            streams.generator("features"),
            normalise=self.normalise,
            sketch=self.sketch,
            carried=carried,
        )
        clients = self.clients or count_clients(view, [len(r) for r in features.rows])
        whole, directions = features.rows, Directions(features.units())
        used: dict[str, float] = {}
        # a sketch may hide a signal: repeat on exact rows
        again = features.sketch_width is not None and is_doubtful(directions, features.detectable)
        few = sum(directions.sizes) <= EXACT_ROWS
        if again and not few:
            labels = self._greedily(view, carried, features.tensors, clients, streams)
        else:
            if again:
                whole = exact_points(view, carried, features.tensors)
                directions = Directions(whole)
            labels = {}
            for m in self.methods:
                if m in LINKERS:
                    rows = whole if m in CLUSTERINGS else directions
                    labels[m] = LINKERS[m](rows, clients, streams.generator(m))
                elif few:
                    shown = features.units() if features.sketch_width is None else None
                    traits, rounds = traits_of(view, carried, directions.units, shown)
                    labels[m], used = combined(traits, rounds, clients, streams.generator(m))
        return Linkage(
            rounds=features.rounds,
            messages=tuple(features.messages),
            labels={m: tuple(tuple(own.tolist()) for own in v) for m, v in labels.items()},
            clients=clients,
            tensors=features.tensors,
            columns=features.columns,
            sketch_width=features.sketch_width,
            confirmed_exactly=again or features.sketch_width is None,
            vantage=view.vantage,
            trace_sha256=view.trace_sha256,
            declared=view.declared,
            named=named,
            recurring=recurring_fields(view, carried),
            hidden=hidden,
            everyone=everyone,
            traits=used,
        )

    def _read_off(
        self, view: View, named: Mapping[tuple[int, int], str], hidden: int, everyone: int
    ) -> Linkage:
        """The answer if updates have names and the rest cannot be linked."""
        return Linkage(
            rounds=(),
            messages=(),
            labels={},
            clients=self.clients or everyone,
            tensors=(),
            columns=0,
            sketch_width=None,
            confirmed_exactly=True,
            vantage=view.vantage,
            trace_sha256=view.trace_sha256,
            declared=view.declared,
            named=named,
            hidden=hidden,
            everyone=everyone,
        )

    def _greedily(
        self,
        view: View,
        carried: Sequence[RoundUpdates],
        tensors: Sequence[str],
        clients: int,
        streams: Seed,
    ) -> dict[str, list[Labels]]:
        """Greedy on exact cosines: it needs products of neighbouring rounds only.

        The others need all pairs of rounds, in time and memory that grow with the square of the
        rows.
        """
        sizes = [len(c.hidden) for c in carried]
        costs = [1.0 - exact_cosines(view, a, b, tensors) for a, b in pairwise(carried)]
        out = {"greedy": chain(costs, sizes, streams.generator("greedy"))}
        if "random" in self.methods:
            out["random"] = LINKERS["random"](
                [np.empty((n, 0), np.float32) for n in sizes], clients, streams.generator("random")
            )
        return out

    # -- score -----------------------------------------------------------------------------------

    def score(self, guess: Linkage, truth: Truth | None, rng: np.random.Generator) -> AuditResult:
        """Score the links of the attack and add those that are known outright."""
        by = next(iter(guess.labels), "names on the messages")
        shared = self.about(
            guess,
            methods=list(self.methods),
            features=list(guess.tensors),
            sketch=guess.sketch_width,
            clients=guess.clients,
        )
        shared["source"] = self._source(by) if guess.labels else f"{self.source}, {by}"
        found = self._score_links(guess, truth, rng, shared) if guess.labels else None
        return with_known(self, guess, found, truth, shared, rng)

    def _score_links(
        self,
        guess: Linkage,
        truth: Truth | None,
        rng: np.random.Generator,
        shared: Mapping[str, Any],
    ) -> AuditResult:
        """How well the anonymous updates were linked."""
        if truth is None:
            return AuditResult(
                **shared,
                status="blind",
                need=NO_TRUTH,
                per_client=groups_of(guess),
                notes=(
                    "the attack's guess: updates of one group come from one client; it cannot know "
                    "which one",
                    *methods_left_out(guess, self.methods),
                ),
            )
        senders = []
        for number, own in zip(guess.rounds, guess.messages, strict=True):
            known = truth.senders(number)
            senders.append([known[i] for i in own])
        _, marks = identifying_field(guess, truth, self.confidence)
        labels = {
            method: with_field_labels(guess, given, marks) if marks else given
            for method, given in guess.labels.items()
        }
        test = link_test(senders, labels, level=(1 - self.confidence) / 2, rng=rng)
        joined = {m: scores.links(senders, given) for m, given in labels.items()}
        best = joined[test.strongest]
        estimates = self._strongest(senders, labels, best, test)
        if len(labels) > 1:
            for method, given in labels.items():
                made = self._estimates(
                    senders, given, joined[method], test.chance[method], self.confidence
                )
                estimates |= {f"{name} ({method})": e for name, e in made.items()}
        suffix = {m: "" if m == test.strongest else f" ({m})" for m in labels}
        total = sum(map(len, best.found.values()))
        family = FamilyTest(
            adjusted={f"{measure}{suffix[m]}": p for (m, measure), p in test.p.items()},
            decided=f"{test.decided[1]}{suffix[test.decided[0]]}",
            level=test.level,
            method=f"max-T over linkers, senders permuted within rounds {test.draws:,} times; "
            "single clients exactly; Holm over both",
        )
        return AuditResult(
            **{**shared, "source": self._source(test.strongest)},
            headline="linkage_accuracy",
            estimates=estimates,
            test=family,
            per_client=self._per_client(best, test, truth),
            curves={
                "links by round": {
                    "round": tuple(guess.rounds[t] for t in best.by_round),
                    "correct": tuple(sum(h) for h in best.by_round.values()),
                    "possible": tuple(len(h) for h in best.by_round.values()),
                }
            },
            detectable=test.least / total if test.least <= total else math.inf,
            notes=self._notes(guess, truth, linked=family.significant),
        )

    def _source(self, linker: str) -> str:
        return f"{self.source}, {linker}" + ("" if linker in PUBLISHED else " (ours)")

    def _strongest(
        self,
        senders: Sequence[Sequence[str]],
        labels: Mapping[str, Sequence[Sequence[int]]],
        best: scores.Links,
        test: LinkTest,
    ) -> dict[str, Estimate]:
        """Estimates of the strongest linker, with intervals that hold whichever that is."""
        own, chance = labels[test.strongest], test.chance[test.strongest]
        wider = 1.0 - (1.0 - self.confidence) / len(labels)
        made = self._estimates(senders, own, best, chance, wider)
        if len(labels) == 1:
            return made
        chosen = f", for {test.strongest}, the strongest of {len(labels)} linkers (Bonferroni)"
        return {
            name: replace(e, confidence=self.confidence, method=e.method + chosen)
            for name, e in made.items()
        }

    def _estimates(
        self,
        senders: Sequence[Sequence[str]],
        labels: Sequence[Sequence[int]],
        joined: scores.Links,
        chance: Mapping[str, float],
        confidence: float,
    ) -> dict[str, Estimate]:
        names = sorted(joined.found)
        hits = np.array([sum(joined.found[n]) for n in names])
        tries = np.array([len(joined.found[n]) for n in names])
        out = {
            "linkage_accuracy": intervals.clustered_share(
                hits, tries, confidence=confidence, baseline=joined.chance
            )
        }
        if joined.made:
            out["link_precision"] = intervals.clustered_share(
                list(joined.right.values()),
                list(joined.made.values()),
                confidence=confidence,
                baseline=joined.precision_chance,
            )
        truth = [s for own in senders for s in own]
        given = [v for own in labels for v in own]
        ranges = scores.jackknife(truth, given, confidence)
        for name, value in clustering.scores(truth, given).items():
            low, high = ranges[name]
            out[name] = Estimate(
                value=value,
                low=low,
                high=high,
                n=len(names),
                confidence=confidence,
                baseline=chance[name],
                method="jackknife over clients, approximate",
            )
        return out

    def _per_client(
        self, joined: scores.Links, test: LinkTest, truth: Truth
    ) -> dict[str, dict[str, float | int | str | None]]:
        promised = truth.facts.get("guarantees", {})
        out: dict[str, dict[str, float | int | str | None]] = {}
        for name in sorted(joined.found):
            hits = joined.found[name]
            own = intervals.wilson(sum(hits), len(hits), confidence=self.confidence)
            row: dict[str, float | int | str | None] = {
                "links": len(hits),
                "found": sum(hits),
                "share": own.value,
                "low": own.low,
                "high": own.high,
                "longest_chain": scores.longest_run(hits),
                "chance": joined.chance,
                "p": test.clients[name],
                "sure_after_links": links_until_sure(
                    hits, joined.chance, self.confidence, len(joined.found)
                ),
            }
            for of_protection in promised.values():
                if name in of_protection:
                    given = of_protection[name]
                    row[f"epsilon ({given['unit']})"] = float(given["epsilon"])
            out[name] = row
        return out

    def _notes(self, guess: Linkage, truth: Truth, *, linked: bool) -> tuple[str, ...]:
        notes = [f"{guess.columns:,} numbers of {len(guess.tensors)} tensors were compared"]
        if guess.traits:
            notes.append(f"combined linked by {', '.join(guess.traits)}")
        if guess.sketch_width is not None:
            seen = 4.0 / math.sqrt(guess.sketch_width)
            looked = (
                "matched rows were below that, so linking was repeated on exact rows"
                if guess.confirmed_exactly
                else "matched rows were above that on average, after subtracting the mean"
            )
            notes.append(
                f"a sketch of {guess.sketch_width:,} numbers per row shows cosines above "
                f"{seen:.3f}; {looked}"
            )
        notes += methods_left_out(guess, self.methods)
        notes += notes_on_promises(
            truth.facts.get("guarantees", {}),
            guess.declared,
            [len(own) for own in guess.messages],
            "linked" if linked else "",
        )
        return tuple(notes)


def exact_points(view: View, carried: Sequence[RoundUpdates], tensors: Sequence[str]) -> list[Rows]:
    """Points with the exact inner products of the unit rows: linkers depend on these only."""
    sizes = [len(c.hidden) for c in carried]
    points = embed(exact_gram(view, carried, tensors)).astype(np.float32)
    return np.split(points, np.cumsum(sizes)[:-1])


def methods_left_out(guess: Linkage, asked: Sequence[str]) -> list[str]:
    """A note on requested methods without a result: which, why, and what gives the verdict."""
    missing = [m for m in asked if m not in guess.labels]
    if not missing:
        return []
    rows = sum(map(len, guess.messages))
    said = (
        f"left out: {', '.join(missing)}, which compare all pairs of rows: there are {rows:,}, "
        f"more than {EXACT_ROWS:,}"
    )
    first = next(iter(guess.labels))
    return [said + (f". The verdict is from {first}" if asked[0] != first else "")]


def groups_of(guess: Linkage) -> dict[str, dict[str, Any]]:
    """The groups of the first method, largest first: size, rounds, and messages as
    round:message of the trace."""
    labels = next(iter(guess.labels.values()))
    members: dict[int, list[tuple[int, int]]] = {}
    for number, messages, own in zip(guess.rounds, guess.messages, labels, strict=True):
        for message, label in zip(messages, own, strict=True):
            members.setdefault(label, []).append((number, int(message)))
    ordered = sorted(members.values(), key=lambda seen: (-len(seen), seen))
    return {
        f"group {i}": {
            "updates": len(seen),
            "from_round": min(t for t, _ in seen),
            "to_round": max(t for t, _ in seen),
            "messages": " ".join(f"{t}:{m}" for t, m in seen),
        }
        for i, seen in enumerate(ordered, 1)
    }


def is_doubtful(rounds: Directions, detectable: float) -> bool:
    """Whether the mean cosine of matched rows is below what the sketch can show.

    Rows are centred first, because their common part identifies no client.
    """
    values = []
    for t in range(len(rounds) - 1):
        cosines = rounds.cosines(t)
        values.append(cosines[match(-cosines)].mean())
    return float(np.mean(values)) < detectable
