"""The audit: features of a view, linkers, scores."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from annotated_types import MinLen

from fedaudit.accounting import Shuffled, shuffled
from fedaudit.audits.audit import Audit, Knowledge
from fedaudit.audits.facts import AuditFacts
from fedaudit.audits.fingerprint import planning, scores
from fedaudit.audits.fingerprint.directions import Directions
from fedaudit.audits.fingerprint.facts import FACTS
from fedaudit.audits.fingerprint.features import (
    Features,
    collect,
    default_features,
    exact_cosines,
    exact_gram,
    linkable,
)
from fedaudit.audits.fingerprint.known import identifying_field, with_field_labels, with_known
from fedaudit.audits.fingerprint.linkers import LINKERS, Labels, chain, embed, match
from fedaudit.audits.outright import (
    RecurringField,
    RoundUpdates,
    known_clients,
    recurring_fields,
    single_updates,
)
from fedaudit.audits.planning import Aim, Recorded, SampleSize, Setting, Shape
from fedaudit.errors import NothingToSay
from fedaudit.layout import Layout
from fedaudit.results import NO_TRUTH, AuditResult, Estimate, Need
from fedaudit.settings import AtLeastTwo, EachOnce, Fraction, Whole, checked
from fedaudit.stats import clustering, intervals
from fedaudit.trace import Truth, View

PUBLISHED = ("greedy", "spectral", "kmeans", "random")
EXACT_ROWS = 3000
"""Up to this many rows, an inconclusive sketch is followed by all methods on exact rows."""

Method = Literal["greedy", "tracking", "joint", "spectral", "kmeans", "random"]


@dataclass(frozen=True, kw_only=True)
class Linkage:
    """The attack's answer: the message of each row and its label by method, for every round.

    `named`: (round, message) -> client, for updates with a name. `recurring`: metadata fields that
    may identify the other updates. `hidden`: the number of anonymous updates. `everyone`: the
    number of all clients.
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


@dataclass(frozen=True, kw_only=True)
@checked("audits.fingerprint")
class Fingerprint(Audit):
    """Link anonymous updates across rounds by their content.

    `methods`: the first gives the verdict, the others are reported beside it. `features`: tensor
    name patterns (default: feed-forward weights of the first transformer block, otherwise all
    weight matrices). `sketch`: a width, 0 for exact rows, None to decide by size. `clients`: their
    number (default: the clients to which the server sent models).
    """

    name: ClassVar[str] = "fingerprint"
    question: ClassVar[str] = "Can the server re-link shuffled updates to the same client?"
    source: ClassVar[str] = "[Fingerprint] Section 3.2"
    facts: ClassVar[AuditFacts] = FACTS
    on_recording: ClassVar[str] = (
        "the trace names senders: see the effect of a shuffler with --as shuffle"
    )
    vantage: str = "server"
    methods: Annotated[tuple[Method, ...], MinLen(1), EachOnce()] = ("joint", "greedy")
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
        return [planning.samples_before(cls.name, aim)]

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
        features = collect(
            view, patterns, rng, normalise=self.normalise, sketch=self.sketch, carried=carried
        )
        clients = self.clients or count_clients(view, features)
        # overwrites features.rows, so that rows are stored once
        rounds = Directions(features.rows, overwrite=True)
        labels: dict[str, list[Labels]] = {
            m: LINKERS[m](rounds, clients, rng) for m in self.methods
        }
        confirmed = features.sketch_width is None
        if not confirmed and is_doubtful(rounds, features.detectable):
            # the sketch may hide a signal: repeat on exact rows
            del rounds
            labels = self._exactly(view, carried, features.tensors, clients, rng)
            confirmed = True
        return Linkage(
            rounds=features.rounds,
            messages=tuple(features.messages),
            labels={m: tuple(tuple(own.tolist()) for own in v) for m, v in labels.items()},
            clients=clients,
            tensors=features.tensors,
            columns=features.columns,
            sketch_width=features.sketch_width,
            confirmed_exactly=confirmed,
            vantage=view.vantage,
            trace_sha256=view.trace_sha256,
            declared=view.declared,
            named=named,
            recurring=recurring_fields(view, carried),
            hidden=hidden,
            everyone=everyone,
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

    def _exactly(
        self,
        view: View,
        carried: Sequence[RoundUpdates],
        tensors: Sequence[str],
        clients: int,
        rng: np.random.Generator,
    ) -> dict[str, list[Labels]]:
        """All methods on exact cosines if there are few rows, otherwise greedy alone.

        Linkers depend on inner products only, so points with the exact products replace the rows.
        Greedy needs products of neighbouring rounds only. The others need all pairs of rounds, in
        time and memory that grow with the square of the rows.
        """
        sizes = [len(c.hidden) for c in carried]
        if sum(sizes) <= EXACT_ROWS:
            points = embed(exact_gram(view, carried, tensors)).astype(np.float32)
            rows = Directions(np.split(points, np.cumsum(sizes)[:-1]), overwrite=True)
            return {m: LINKERS[m](rows, clients, rng) for m in self.methods}
        costs = [1.0 - exact_cosines(view, a, b, tensors) for a, b in pairwise(carried)]
        out = {"greedy": chain(costs, sizes, rng)}
        if "random" in self.methods:
            out["random"] = LINKERS["random"](
                [np.empty((n, 0), np.float32) for n in sizes], clients, rng
            )
        return out

    # -- score -----------------------------------------------------------------------------------

    def score(self, guess: Linkage, truth: Truth | None, rng: np.random.Generator) -> AuditResult:
        """Score the links of the attack and add those that are known outright."""
        by = next(iter(guess.labels), "names on the messages")
        shared: dict[str, Any] = {
            "audit": self.name,
            "question": self.question,
            "vantage": guess.vantage,
            "settings": {
                **asdict(self),
                "methods": list(self.methods),
                "features": list(guess.tensors),
                "sketch": guess.sketch_width,
                "clients": guess.clients,
            },
            "source": f"{self.source}, {by}"
            + ("" if by in PUBLISHED or not guess.labels else " (ours)"),
            "trace_sha256": guess.trace_sha256,
        }
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
        estimates: dict[str, Estimate] = {}
        first: scores.Links | None = None
        _, marks = identifying_field(guess, truth, self.confidence)
        for method, given in guess.labels.items():
            labels = with_field_labels(guess, given, marks) if marks else given
            joined = scores.links(senders, labels)
            suffix = "" if first is None else f" ({method})"
            first = first or joined
            estimates |= self._estimates(senders, labels, joined, guess, suffix, rng)
        assert first is not None
        hits = [sum(h) for h in first.found.values()]
        tries = [len(h) for h in first.found.values()]
        # if all links were found, each client would count as one trial: is that enough?
        everything = intervals.wilson(len(tries), len(tries), confidence=self.confidence)
        effective = max(1, int(sum(tries) / intervals.design_effect(hits, tries)))
        return AuditResult(
            **shared,
            headline="linkage_accuracy",
            estimates=estimates,
            per_client=self._per_client(first, truth),
            curves={
                "links by round": {
                    "round": tuple(guess.rounds[t] for t in first.by_round),
                    "correct": tuple(sum(h) for h in first.by_round.values()),
                    "possible": tuple(len(h) for h in first.by_round.values()),
                }
            },
            detectable=intervals.smallest_share_above(
                first.chance, effective, confidence=self.confidence
            )
            if everything.low > first.chance
            else None,
            notes=self._notes(guess, truth, estimates["linkage_accuracy"]),
        )

    def _estimates(
        self,
        senders: Sequence[Sequence[str]],
        labels: Sequence[Sequence[int]],
        joined: scores.Links,
        guess: Linkage,
        suffix: str,
        rng: np.random.Generator,
    ) -> dict[str, Estimate]:
        names = sorted(joined.found)
        hits = np.array([sum(joined.found[n]) for n in names])
        tries = np.array([len(joined.found[n]) for n in names])
        out = {
            f"linkage_accuracy{suffix}": intervals.clustered_share(
                hits, tries, confidence=self.confidence, baseline=joined.chance
            )
        }
        if joined.made:
            out[f"link_precision{suffix}"] = intervals.clustered_share(
                list(joined.right.values()),
                list(joined.made.values()),
                confidence=self.confidence,
                baseline=joined.precision_chance,
            )
        truth = [s for own in senders for s in own]
        given = [v for own in labels for v in own]
        rounds = [t for t, own in zip(guess.rounds, senders, strict=True) for _ in own]
        random = clustering.chance(
            truth,
            rounds,
            clusters=max(len(set(given)), max(len(own) for own in senders)),
            rng=rng,
            confidence=self.confidence,
            draws=200 if len(truth) > 2000 else 1000,
        )
        ranges = scores.jackknife(truth, given, self.confidence)
        for name, value in clustering.scores(truth, given).items():
            low, high = ranges[name]
            out[f"{name}{suffix}"] = Estimate(
                value=value,
                low=low,
                high=high,
                n=len(names),
                confidence=self.confidence,
                baseline=random[name].value,
                method="jackknife over clients, approximate",
            )
        return out

    def _per_client(
        self, joined: scores.Links, truth: Truth
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
                "longest chain": scores.longest_run(hits),
                "chance": joined.chance,
                "sure after links": scores.links_until_sure(
                    hits, joined.chance, self.confidence, len(joined.found)
                ),
            }
            for of_protection in promised.values():
                if name in of_protection:
                    given = of_protection[name]
                    row[f"epsilon ({given['unit']})"] = float(given["epsilon"])
            out[name] = row
        return out

    def _notes(self, guess: Linkage, truth: Truth, accuracy: Estimate) -> tuple[str, ...]:
        notes = [f"{guess.columns:,} numbers of {len(guess.tensors)} tensors were compared"]
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
        linked = accuracy.baseline is not None and accuracy.low > accuracy.baseline
        for name, given in truth.facts.get("guarantees", {}).items():
            values = [float(g["epsilon"]) for g in given.values()]
            one = next(iter(given.values()))
            notes.append(
                f"{name} spends epsilon {min(values):.3g} to {max(values):.3g} per {one['unit']} "
                f"at delta {one['delta']:g} over the whole run"
            )
            notes.append(amplification(one["unit"], linked, shuffled_reports(guess, name, one)))
        return tuple(notes)


def methods_left_out(guess: Linkage, asked: Sequence[str]) -> list[str]:
    """A note on requested methods without a result: which, why, and what gives the verdict."""
    missing = [m for m in asked if m not in guess.labels]
    if not missing:
        return []
    rows = sum(map(len, guess.messages))
    said = (
        f"left out: {', '.join(missing)}. With {rows:,} rows (more than {EXACT_ROWS:,}) only "
        "greedy, which compares neighbouring rounds, was repeated exactly: the other methods "
        "compare all pairs of rows"
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
            "from round": min(t for t, _ in seen),
            "to round": max(t for t, _ in seen),
            "messages (round:number)": " ".join(f"{t}:{m}" for t, m in seen),
        }
        for i, seen in enumerate(ordered, 1)
    }


def shuffled_reports(guess: Linkage, name: str, given: Mapping[str, Any]) -> Shuffled | None:
    """Privacy amplification by shuffling, if every upload is a locally private report.

    None unless the noise is known and the guarantee covers replacing a client's **whole** data. A
    guarantee per record covers neighbours that differ in one record, but clients differ in more.
    """
    declared = next((d for d in guess.declared if d.get("name") == name), {})
    if given["unit"] != "client" or given.get("relation") != "replace":
        return None
    multiplier = declared.get("noise_multiplier", 0.0)
    if not isinstance(multiplier, int | float) or multiplier == 0:
        return None  # the theorem needs equal noise for all reports
    reports = min(len(own) for own in guess.messages)
    # replacing the data moves a clipped update by at most twice its bound
    return shuffled(multiplier / 2, len(guess.rounds), reports, float(given["delta"]))


def amplification(unit: str, linked: bool, reports: Shuffled | None = None) -> str:
    """A note on epsilon with amplification by shuffling, or why it does not apply."""
    text = "these epsilons are without amplification by shuffling"
    source = "Feldman, McMillan and Talwar 2021, Theorem 3.8"
    figure = ""
    if reports is not None and reports.epsilon is not None:
        figure = f", which would make it {reports.epsilon:.3g} ({source}, for reference)"
        if not reports.gains:
            figure = f", which gains nothing here ({source})"
    if linked:
        return text + figure + ": it is void, since updates were linked across rounds"
    if unit != "client":
        return text + f": it needs a guarantee for a client's whole input, not for a {unit}"
    if reports is not None and reports.epsilon is None:
        return (
            f"{text}: it does not apply, since one report costs {reports.local_epsilon:.3g} and "
            f"{reports.clients} reports amplify up to {reports.largest:.3g} ({source})"
        )
    return text + figure + ": it holds only while updates cannot be linked"


def count_clients(view: View, features: Features) -> int:
    """Number of clients: those to which the server sent models."""
    receivers = {
        m.receiver
        for number in view.rounds
        for m in view.messages(number)
        if m.kind == "model" and m.sender == "server" and m.receiver != "public"
    }
    return max(len(receivers), max(len(r) for r in features.rows), 2)


def is_doubtful(rounds: Directions, detectable: float) -> bool:
    """Whether the mean cosine of matched rows is below what the sketch can show.

    Rows are centred first, because their common part identifies nobody.
    """
    values = []
    for t in range(len(rounds) - 1):
        cosines = rounds.cosines(t)
        values.append(cosines[match(-cosines)].mean())
    return float(np.mean(values)) < detectable
