"""The audit: features of a view, linkers, scores."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from fedaudit.accounting import amplified_by_shuffling
from fedaudit.audits.audit import Knowledge
from fedaudit.audits.fingerprint import scores
from fedaudit.audits.fingerprint.features import (
    Features,
    collect,
    default_features,
    exact_cosines,
)
from fedaudit.audits.fingerprint.linkers import LINKERS, chain, match
from fedaudit.errors import ConfigError, NotApplicable
from fedaudit.results import AuditResult, Estimate
from fedaudit.trace import Truth, View

Method = Literal["greedy", "tracking", "joint", "spectral", "kmeans", "random"]


@dataclass(frozen=True, kw_only=True)
class Linkage:
    """The attack's answer: for every round, the message of each row and, by method, its label."""

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


@dataclass(frozen=True, kw_only=True)
class Fingerprint:
    """Link anonymous updates across rounds by their content.

    `methods`: the first gives the verdict, the others stand beside it. `features`: tensor name
    patterns (default: feed-forward weights of the first transformer block, otherwise all weight
    matrices). `sketch`: a width, 0 for exact rows, or nothing to decide by size. `clients`: how
    many there are, if the server knows better than the names it sent models to.
    """

    name: ClassVar[str] = "fingerprint"
    question: ClassVar[str] = "Can the server re-link shuffled updates to the same client?"
    source: ClassVar[str] = "[Fingerprint] Section 3.2"
    vantage: str = "server"
    methods: tuple[Method, ...] = ("greedy", "joint")
    features: tuple[str, ...] = ()
    normalise: Literal["unit", "column"] = "unit"
    sketch: int | None = None
    clients: int | None = None
    confidence: float = 0.95

    def __post_init__(self) -> None:
        if not self.methods or len(set(self.methods)) != len(self.methods):
            raise ConfigError(
                "audits.fingerprint.methods needs names, each once",
                expected=", ".join(LINKERS),
                got=str(list(self.methods)),
                remedy='methods = ["greedy"]',
            )
        for key, fine in (
            ("sketch", self.sketch is None or self.sketch >= 0),
            ("clients", self.clients is None or self.clients >= 2),
            ("confidence", 0 < self.confidence < 1),
        ):
            if not fine:
                raise ConfigError(
                    f"audits.fingerprint.{key} is out of range",
                    expected={"sketch": "0 or a width", "clients": "at least 2"}.get(
                        key, "between 0 and 1"
                    ),
                    got=str(getattr(self, key)),
                    remedy="leave it out for its default",
                )

    # -- attack ----------------------------------------------------------------------------------

    def attack(self, view: View, knowledge: Knowledge, rng: np.random.Generator) -> Linkage:
        if len(view.rounds) < 2:
            raise NotApplicable(
                "linking needs two rounds",
                expected="at least 2 recorded rounds",
                got=str(len(view.rounds)),
                remedy="run or record more rounds",
            )
        patterns = self.features or default_features(view.layout)
        features = collect(view, patterns, rng, normalise=self.normalise, sketch=self.sketch)
        clients = self.clients or roster(view, features)
        labels = {m: LINKERS[m](features.rows, clients, rng) for m in self.methods}
        confirmed = features.sketch_width is None
        if not confirmed and "greedy" in labels and is_doubtful(features):
            # what a sketch cannot see may still be there: look again, exactly
            costs = [1.0 - exact_cosines(view, t, features.tensors) for t in view.rounds[:-1]]
            labels["greedy"] = chain(costs, [len(r) for r in features.rows], rng)
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
        )

    # -- score -----------------------------------------------------------------------------------

    def score(self, guess: Linkage, truth: Truth | None, rng: np.random.Generator) -> AuditResult:
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
            "source": f"{self.source}, {self.methods[0]}",
            "trace_sha256": guess.trace_sha256,
        }
        if truth is None:
            return AuditResult(
                **shared, not_applicable="no truth: the attack guessed, and nothing was scored"
            )
        from fedaudit.stats import intervals

        senders = []
        for number, own in zip(guess.rounds, guess.messages, strict=True):
            known = truth.senders(number)
            senders.append([known[i] for i in own])
        estimates: dict[str, Estimate] = {}
        first: scores.Links | None = None
        for method, labels in guess.labels.items():
            joined = scores.links(senders, labels)
            first = first or joined
            suffix = "" if method == self.methods[0] else f" ({method})"
            estimates |= self._estimates(senders, labels, joined, guess, suffix, rng)
        assert first is not None
        tries = sum(len(h) for h in first.found.values())
        # were all links found, a client would count as one trial: can that many show anything?
        everything = intervals.wilson(
            len(first.found), len(first.found), confidence=self.confidence
        )
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
                first.chance, tries, confidence=self.confidence
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
        from fedaudit.stats import clustering, intervals

        names = sorted(joined.found)
        hits = np.array([sum(joined.found[n]) for n in names])
        tries = np.array([len(joined.found[n]) for n in names])
        out = {
            f"linkage_accuracy{suffix}": intervals.clustered_share(
                hits, tries, confidence=self.confidence, baseline=joined.chance
            )
        }
        if joined.made:
            out[f"link_precision{suffix}"] = intervals.wilson(
                joined.right,
                joined.made,
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
                method="jackknife over clients",
            )
        return out

    def _per_client(
        self, joined: scores.Links, truth: Truth
    ) -> dict[str, dict[str, float | int | str | None]]:
        from fedaudit.stats import intervals

        promised = {
            party: given
            for of_protection in truth.facts.get("guarantees", {}).values()
            for party, given in of_protection.items()
            if given["unit"] != "client"
        }
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
                "sure after": scores.rounds_until_sure(hits, joined.chance, self.confidence),
            }
            if name in promised:
                row["epsilon"] = float(promised[name]["epsilon"])
            out[name] = row
        return out

    def _notes(self, guess: Linkage, truth: Truth, accuracy: Estimate) -> tuple[str, ...]:
        notes = [f"{guess.columns:,} numbers of {len(guess.tensors)} tensors were compared"]
        if guess.sketch_width is not None:
            seen = 4.0 / math.sqrt(guess.sketch_width)
            looked = "confirmed exactly" if guess.confirmed_exactly else "well above it"
            notes.append(
                f"rows were folded to {guess.sketch_width:,} numbers, which shows cosines above "
                f"{seen:.3f}; the matches found were {looked}"
            )
        linked = accuracy.baseline is not None and accuracy.low > accuracy.baseline
        for name, given in truth.facts.get("guarantees", {}).items():
            values = [float(g["epsilon"]) for g in given.values()]
            one = next(iter(given.values()))
            notes.append(
                f"{name} spends epsilon {min(values):.3g} to {max(values):.3g} per {one['unit']} "
                f"at delta {one['delta']:g} over the whole run"
            )
            notes.append(
                amplification(max(values), one["unit"], one["delta"], guess.clients, linked)
            )
        return tuple(notes)


def amplification(epsilon: float, unit: str, delta: float, clients: int, linked: bool) -> str:
    """What shuffling would make of an epsilon, and why that may not be claimed."""
    amplified = amplified_by_shuffling(epsilon, clients, delta)
    if amplified is None:
        text = f"shuffling {clients} clients amplifies nothing at an epsilon of {epsilon:.3g}"
    else:
        text = f"amplified by shuffling, epsilon {epsilon:.3g} would read {amplified:.3g}"
    if linked:
        return text + "; that is void here: updates were linked across rounds"
    if unit != "client":
        return text + "; that needs a guarantee for a client's whole input, not for a " + unit
    return text + "; that holds only while updates cannot be linked"


def roster(view: View, features: Features) -> int:
    """How many clients there are: the server knows whom it sent models to."""
    receivers = {
        m.receiver
        for number in view.rounds
        for m in view.messages(number)
        if m.kind == "model" and m.sender == "server" and m.receiver != "public"
    }
    return max(len(receivers), max(len(r) for r in features.rows), 2)


def is_doubtful(features: Features) -> bool:
    """Whether matched rows resemble each other less than a sketch of this width can show."""
    values = []
    for a, b in itertools.pairwise(features.rows):
        cosines = a @ b.T
        rows, columns = match(-cosines)
        values.append(cosines[rows, columns].mean())
    return float(np.mean(values)) < features.detectable
