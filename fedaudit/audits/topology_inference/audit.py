"""The audit: learn from shadows, guess the target, check the null, score."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from annotated_types import Ge, MinLen

from fedaudit.arrays import Floats
from fedaudit.audits.audit import Audit, Knowledge, Shadows
from fedaudit.audits.facts import AuditFacts
from fedaudit.audits.planning import Aim, Recorded, SampleSize, Setting, Shape
from fedaudit.audits.topology_inference import (
    channels,
    features,
    planning,
    regressors,
    rewiring,
    scores,
)
from fedaudit.audits.topology_inference.channels import Channel, Corpus, FeatureTables
from fedaudit.audits.topology_inference.facts import FACTS
from fedaudit.audits.topology_inference.features import Observed, Place
from fedaudit.errors import ConfigError, NotApplicable, NotObservable
from fedaudit.results import NO_TRUTH, AuditResult, Estimate, FamilyTest, Need, Underpowered
from fedaudit.settings import Count, EachOnce, Fraction, ShareBelowOne, Whole, checked
from fedaudit.stats import intervals, query_algebra
from fedaudit.stats.max_t import MaxT
from fedaudit.trace import Truth, View

ALL_CHANNELS: tuple[Channel, ...] = ("A1", "A2-topo", "A2-org", "A2-full", "topo", "org")
ROUND_STEPS = (1, 2, 5)
"""Numbers of observed rounds: these times powers of ten."""
BAND_COVERAGE = 0.95


@dataclass(frozen=True, kw_only=True)
class Inference:
    """The attack's answer for n clients.

    `guesses`: channel -> (n,). `bands`: channel -> half width that covers 95 % of the shadows'
    clients. `learnt`: channel -> (F,) lifts on F shadow federations, each guessed by a regressor
    trained on the others; `null`: the same with p permuted. `best`: the channel with most lift on
    shadows, on which the verdict rests. `by_rounds`: observed rounds -> (F,) lifts of A1.
    `through_sums`: guess (n,) and lifts (F,) of A1 from sums only. `rewired`: what-if -> channel ->
    (F,) lifts; `change_in_words`: what-if -> the change.
    """

    clients: tuple[str, ...]
    sensitive: tuple[int, ...]
    guesses: Mapping[str, Floats]
    bands: Mapping[str, float]
    best: str
    shadow_mean: float
    shadow_variance: float
    learnt: Mapping[str, Floats]
    null: Mapping[str, Floats]
    by_rounds: Mapping[int, Floats] = field(default_factory=dict)
    through_sums: tuple[Floats, Floats] | None = None
    rewired: Mapping[str, Mapping[str, Floats]] = field(default_factory=dict)
    change_in_words: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    vantage: str = ""
    trace_sha256: str = ""


@dataclass(frozen=True, kw_only=True)
@checked("audits.topology_inference")
class TopologyInference(Audit):
    """Guess each client's share of sensitive classes from updates, position and organisation.

    `sensitive`: class numbers. `channels`: adversaries to compare. `regressor`: model that learns
    from shadows. `features`: all, or those of the paper. `shadows`: number of federations that the
    adversary trains itself. `corpus`: their records, "held_out" or a file. `prior`: how records are
    partitioned ("matched" as in the target, "dirichlet" not, "auto" matched if any adversary could
    match it). `protected`: train shadows with the target's protection. `seed` of the shadows.
    `top`: k of top-k recovery (default a tenth of the clients). `threshold`: share above which a
    client counts as high in AUROC (default the mean). `by_rounds`, `sums`: measure lift by observed
    rounds, and from sums only. `what_if`: changes to try on shadows; each trains them once more.
    """

    name: ClassVar[str] = "topology_inference"
    question: ClassVar[str] = (
        "What do parameters, position and organisation reveal of a client's class mix?"
    )
    source: ClassVar[str] = "[TopologyAwareDP] Algorithm 1, Table I"
    needs: ClassVar[tuple[str, ...]] = ("shadows",)
    facts: ClassVar[AuditFacts] = FACTS
    vantage: str = "wiretap"
    sensitive: Annotated[tuple[Whole, ...], MinLen(1), EachOnce(), "class numbers"] = (0,)
    channels: Annotated[tuple[Channel, ...], MinLen(1), EachOnce()] = ALL_CHANNELS
    regressor: regressors.Kind = "lightgbm"
    features: Literal["all", "published"] = "all"
    shadows: Annotated[int, Ge(regressors.FEWEST_FEDERATIONS)] = 60
    corpus: str = "held_out"
    prior: Literal["auto", "matched", "dirichlet"] = "auto"
    protected: bool = True
    seed: Whole = 0
    top: Count | None = None
    threshold: ShareBelowOne | None = None
    by_rounds: bool = True
    sums: bool = True
    what_if: Annotated[tuple[rewiring.WhatIf, ...], EachOnce()] = ()
    confidence: Fraction = 0.95

    # -- planning --------------------------------------------------------------------------------

    def cost(self, shape: Shape) -> float:
        return planning.cost(shape, self.shadows, len(self.channels))

    def missing(self, setting: Setting) -> Need | None:
        short = setting.lacks_corpus() if self.corpus == "held_out" else None
        return planning.missing(setting, self.shadows) or short

    @classmethod
    def samples(cls, result: AuditResult, recorded: Recorded, aim: Aim) -> list[SampleSize]:
        return [planning.samples(result, aim)]

    @classmethod
    def samples_before(cls, aim: Aim) -> list[SampleSize]:
        return [planning.samples_before(cls.name, aim)]

    # -- attack ----------------------------------------------------------------------------------

    def attack(self, view: View, knowledge: Knowledge, rng: np.random.Generator) -> Inference:
        place = Place.of(view.federation)
        shadows = knowledge.shadows
        if shadows is None:
            raise NotApplicable(
                "this audit learns from shadow federations, and there are none",
                code="no_shadows",
                expected="federations of the adversary's own, with their labels",
                got="none",
                remedy="audit a run of fedaudit, whose config says how clients train",
            )
        self._check_classes(shadows.classes)
        target, hidden = self._observe(view, place, shadows)
        wants = {part for c in self.channels for part in channels.PARTS[c]}
        parameters = target is not None and "parameters" in wants
        sums = self.sums and parameters and target is not None and target.seen == "single"
        sums = sums and "A1" in self.channels
        corpus = channels.gather(shadows, place, self.sensitive, parameters=parameters, sums=sums)
        differs = None
        if target is not None and parameters and corpus.seen != target.seen:
            differs = f"the target shows {target.seen}, the shadows {corpus.seen}"
            target = None
        missing = channels.missing_parts(place, hidden, differs)
        usable = self._usable(missing)
        noise = features.noise_column(view, place.n)
        values = None if target is None else target.values
        made = channels.tables(
            corpus if target is not None else _without_parameters(corpus),
            values,
            noise=noise,
            published=self.features == "published",
        )
        guesses, bands, learnt, null = self._learn(usable, made, corpus, rng)
        channels.check_null(null, "p was permuted across the clients of each federation")
        if not shadows.coupled:
            alone = {c: v for c, v in learnt.items() if c in ("topo", "org")}
            channels.check_null(alone, "the prior ties no class to a place")
        notes = [*shadows.notes, *knowledge.notes, *self._notes(missing, place, made, corpus)]
        through = None
        if sums and target is not None and "A1" in usable:
            through = self._through_sums(view, place, shadows, corpus, rng)
            notes.append(_solvable(place))
        by_rounds = {}
        if self.by_rounds and target is not None and "A1" in usable:
            by_rounds = self._by_rounds(corpus, len(target.values), learnt["A1"], noise, rng)
        rewired, words = self._what_if(place, shadows, usable, noise, rng)
        return Inference(
            clients=place.clients,
            sensitive=self.sensitive,
            guesses=guesses,
            bands=bands,
            best=best_channel(learnt),
            shadow_mean=corpus.mean,
            shadow_variance=corpus.variance,
            learnt=learnt,
            null=null,
            by_rounds=by_rounds,
            through_sums=through,
            rewired=rewired,
            change_in_words=words,
            notes=tuple(notes),
            vantage=view.vantage,
            trace_sha256=view.trace_sha256,
        )

    def _observe(
        self, view: View, place: Place, shadows: Shadows
    ) -> tuple[Observed | None, NotObservable | None]:
        """What the party observes of the target, or why it observes nothing."""
        try:
            return channels.observe(view, place, shadows.classes, self.sensitive), None
        except NotObservable as reason:
            return None, reason

    def _check_classes(self, classes: int) -> None:
        if classes < 2:
            raise NotApplicable(
                "the data have only one class: every client's share of it is 1",
                code="one_class",
                expected="records with labels of at least two classes",
                got=f"{classes} class",
                remedy="name a label column",
            )
        if max(self.sensitive) >= classes or len(self.sensitive) >= classes:
            raise ConfigError(
                "audits.topology_inference.sensitive does not fit the data",
                expected=f"some, not all, of the classes 0 to {classes - 1}",
                got=str(list(self.sensitive)),
                remedy="sensitive = [0]",
            )

    def _usable(self, missing: Mapping[str, str]) -> tuple[str, ...]:
        """Channels that the view offers, at least one."""
        usable = tuple(c for c in self.channels if channels.usable(c, missing))
        if not usable:
            raise NotApplicable(
                "this view shows none of the channels",
                code="no_channels",
                expected="updates with senders, different places, or organisations with several "
                "members",
                got="; ".join(f"no {part}: {why}" for part, why in missing.items()),
                remedy="other channels, or another vantage",
            )
        return usable

    def _learn(
        self,
        usable: tuple[str, ...],
        made: FeatureTables,
        corpus: Corpus,
        rng: np.random.Generator,
    ) -> tuple[dict[str, Floats], dict[str, float], dict[str, Floats], dict[str, Floats]]:
        """Guesses, bands, and lifts on shadows with their own p and with permuted p."""
        federation = corpus.row_federation()
        permuted = channels.permute_shares(corpus.p, rng)
        guesses, bands, learnt, null = {}, {}, {}, {}
        for c in usable:
            x, own = made.of(c)
            guessed = channels.cross_validated(self.regressor, x, corpus.p, rng)
            learnt[c] = scores.lifts_by_federation(guessed, corpus.p)
            bands[c] = float(np.quantile(np.abs(guessed - corpus.p), BAND_COVERAGE))
            fitted = regressors.fit(self.regressor, x, corpus.p.ravel(), federation, rng)
            guesses[c] = fitted(own)
            blind = channels.cross_validated(self.regressor, x, permuted, rng)
            null[c] = scores.lifts_by_federation(blind, permuted)
        return guesses, bands, learnt, null

    def _through_sums(
        self,
        view: View,
        place: Place,
        shadows: Shadows,
        corpus: Corpus,
        rng: np.random.Generator,
    ) -> tuple[Floats, Floats]:
        """A1 from means over neighbourhoods only: its guess (n,) and lifts (F,)."""
        seen = channels.observe(view, place, shadows.classes, self.sensitive, sums=True)
        made = channels.tables(
            corpus, seen.values, published=self.features == "published", sums=True
        )
        x, own = made.of("A1")
        guessed = channels.cross_validated(self.regressor, x, corpus.p, rng)
        fitted = regressors.fit(self.regressor, x, corpus.p.ravel(), corpus.row_federation(), rng)
        return fitted(own), scores.lifts_by_federation(guessed, corpus.p)

    def _by_rounds(
        self,
        corpus: Corpus,
        observed: int,
        whole: Floats,
        noise: Floats | None,
        rng: np.random.Generator,
    ) -> dict[int, Floats]:
        """Number of rounds t -> lifts (F,) of A1 on shadows from the first t rounds."""
        assert corpus.single is not None
        total = min(corpus.single.shape[1], observed)
        out = {}
        for t in round_grid(total):
            if t == total:
                out[t] = whole
                continue
            made = channels.tables(
                corpus, None, noise=noise, rounds=t, published=self.features == "published"
            )
            guessed = channels.cross_validated(self.regressor, made.of("A1")[0], corpus.p, rng)
            out[t] = scores.lifts_by_federation(guessed, corpus.p)
        return out

    def _what_if(
        self,
        place: Place,
        shadows: Shadows,
        usable: tuple[str, ...],
        noise: Floats | None,
        rng: np.random.Generator,
    ) -> tuple[dict[str, dict[str, Floats]], dict[str, str]]:
        """What-if -> channel -> lifts (F,) on shadows after the change, and the changes in
        words."""
        out: dict[str, dict[str, Floats]] = {}
        words: dict[str, str] = {}
        compared = [c for c in ("A2-full", "topo", "org") if c in self.channels]
        parameters = any("parameters" in channels.PARTS[c] for c in usable)
        for how in self.what_if:
            changed, words[how] = rewiring.rewire(place, how, len(shadows), rng)
            others = shadows.rewired(
                edges=[c.edges for c in changed],
                organisations=[c.organisations for c in changed],
            )
            corpus = channels.gather(others, changed, self.sensitive, parameters=parameters)
            made = channels.tables(
                corpus, None, noise=noise, published=self.features == "published"
            )
            lifts: dict[str, Floats] = {}
            for c in compared:
                if not any(part in made.shadows for part in channels.PARTS[c]):
                    continue
                guessed = channels.cross_validated(self.regressor, made.of(c)[0], corpus.p, rng)
                lifts[c] = scores.lifts_by_federation(guessed, corpus.p)
            out[how] = lifts
        return out, words

    def _notes(
        self,
        missing: Mapping[str, str],
        place: Place,
        made: FeatureTables,
        corpus: Corpus,
    ) -> list[str]:
        said = [
            f"{corpus.federations} shadow federations, {corpus.p.size:,} labelled clients; "
            f"regressor {self.regressor}, validated by federation"
        ]
        if "parameters" in made.shadows:
            which = "those of the paper" if self.features == "published" else "all"
            said.append(
                f"{made.shadows['parameters'].shape[1]} parameter features ({which}) from "
                f"{'every update' if corpus.seen == 'single' else 'sums of groups only'}"
            )
        parts = {part: why for part, why in missing.items() if part != "neighbours"}
        said += [f"no {part} channel: {why}" for part, why in parts.items()]
        if "organisation" not in missing and (alone := place.lone_members()):
            said.append(
                f"{len(alone)} of {len(set(place.organisations or ()))} organisations have one "
                "member: for "
                f"{', '.join(alone[:3])}{', ...' if len(alone) > 3 else ''} the organisation "
                "channel learns from shadows of that single place, not of a group"
            )
        pieces = place.components() if place.edges else []
        if len(pieces) > 1:
            shown = "; ".join(
                "{" + ", ".join(place.clients[i] for i in c[:3]) + (", ..." if len(c) > 3 else "")
                + "}" + f" ({len(c)})"
                for c in pieces[:5]
            )  # fmt: skip
            said.append(
                f"the graph has {len(pieces)} components: {shown}; a client that cannot reach the "
                f"root counts as {place.n} hops away"
            )
        return said

    # -- score -----------------------------------------------------------------------------------

    def score(self, guess: Inference, truth: Truth | None, rng: np.random.Generator) -> AuditResult:
        shared = self.about(guess)
        if truth is None:
            guessed, band = guess.guesses[guess.best], guess.bands[guess.best]
            return AuditResult(
                **shared,
                status="blind",
                need=NO_TRUTH,
                per_client={
                    name: {
                        f"guess ({guess.best})": float(g),
                        "from": max(0.0, float(g) - band),
                        "to": min(1.0, float(g) + band),
                    }
                    for name, g in zip(guess.clients, guessed, strict=True)
                },
                notes=guess.notes,
            )
        p = channels.share_of(truth, guess.clients, self.sensitive)
        if not np.ptp(p):
            return AuditResult(
                **shared,
                status="not_applicable",
                need=Need(
                    code="all_alike",
                    what="all clients hold the same share of the sensitive classes "
                    f"({p[0]:.3g}): there is nothing to tell apart",
                ),
                notes=guess.notes,
            )
        outcome = scores.Outcome(p=p, guesses=guess.guesses, shadow_mean=guess.shadow_mean)
        estimates, lacking = self._estimates(outcome, guess, rng)
        headline = f"explained ({guess.best})"
        test = scores.channel_test(guess.guesses, p, rng)
        seen_from = self._seen_from(test, outcome, guess.best)
        family = self._family(test, outcome)
        each = ", ".join(f"{name} {q:.2g}" for name, q in family.adjusted.items())
        notes = [*self._findings(outcome, guess), f"p-values, {family.method}: {each}"]
        notes += guess.notes
        if math.isinf(seen_from):
            estimates["shadow_explained"] = scores.over_shadows(
                guess.learnt[guess.best] / (guess.shadow_variance or 1.0),
                len(guess.learnt),
                rng=rng,
                confidence=self.confidence,
            )
            notes.insert(0, self._too_few(test, len(p), len(guess.learnt[guess.best])))
        return AuditResult(
            **shared,
            headline=headline,
            estimates={headline: estimates[headline], **estimates},  # the headline first
            test=family,
            underpowered=lacking,
            per_client=self._per_client(outcome, guess),
            curves=self._curves(guess, rng),
            detectable=seen_from,
            notes=tuple(notes),
        )

    @property
    def _level(self) -> float:
        """One-sided level of the test over channels."""
        return (1.0 - self.confidence) / 2.0

    def _family(self, test: MaxT, outcome: scores.Outcome) -> FamilyTest:
        """The test over channels. A guess that is no better than one for all decides nothing."""
        p_of = {
            f"explained ({c})": float(q) if scores.lift(g, outcome.p) > 0 else 1.0
            for (c, g), q in zip(outcome.guesses.items(), test.adjusted, strict=True)
        }
        orders = "all orders" if test.exact else f"{test.labellings - 1:,} random orders"
        return FamilyTest(
            adjusted=p_of,
            decided=min(p_of, key=p_of.__getitem__),
            level=self._level,
            method=f"max-T over channels, class mixes of the clients in {orders}",
        )

    def _seen_from(self, test: MaxT, outcome: scores.Outcome, channel: str) -> float:
        """The smallest share explained by a channel's guesses that would have been significant;
        infinite if none would."""
        g, p = outcome.guesses[channel], outcome.p
        least = float(test.critical(self._level)[list(outcome.guesses).index(channel)])
        share = (least - float(np.mean((g - p.mean()) ** 2))) / float(p.var())
        return max(share, 0.0) if share <= 1 else math.inf

    def _too_few(self, test: MaxT, clients: int, shadows: int) -> str:
        """Why this run can show nothing, and which evidence can."""
        fewest = scores.fewest_clients(self._level)
        limit = f"{100 * self._level:g} %"
        why = f"no order of the {clients} clients is rare enough at {limit}"
        if clients < fewest:
            rarest = 100 / math.factorial(clients)
            why = (
                f"{clients} clients have {math.factorial(clients)} orders, so that chance alone "
                f"reaches any value in {rarest:.1f} % of all cases, more than {limit}"
            )
        return (
            f"nothing could have been seen on this run alone: {why}. Evidence that can show it: "
            f"{fewest} clients or more, or shadow federations of the same kind (shadow_explained, "
            f"over {shadows})"
        )

    def _estimates(
        self, outcome: scores.Outcome, guess: Inference, rng: np.random.Generator
    ) -> tuple[dict[str, Estimate], tuple[Underpowered, ...]]:
        p, n = outcome.p, len(outcome.p)
        level: dict[str, Any] = {"rng": rng, "confidence": self.confidence}
        out: dict[str, Estimate] = {}
        for c, g in outcome.guesses.items():
            out[f"explained ({c})"] = scores.explained_over_clients(g, p, **level)
        for c, g in outcome.guesses.items():
            out[f"lift ({c})"] = scores.lift_over_clients(g, p, **level)
        for c, g in outcome.guesses.items():
            gain = (outcome.shadow_mean - p) ** 2 - (g - p) ** 2
            out[f"lift_over_shadow_mean ({c})"] = scores.mean_over_clients(
                gain, baseline=0.0, **level
            )
        for name, (less, more) in scores.CONTRIBUTIONS.items():
            if less in outcome.guesses and more in outcome.guesses:
                gain = (outcome.guesses[less] - p) ** 2 - (outcome.guesses[more] - p) ** 2
                out[name] = scores.mean_over_clients(gain, baseline=0.0, **level)
        constant = {"A0": np.full(n, p.mean()), "A0, shadow mean": np.full(n, outcome.shadow_mean)}
        for c, g in {**constant, **outcome.guesses}.items():
            out[f"calibration_loss ({c})"] = scores.mean_over_clients(
                (g - p) ** 2, baseline=float(p.var()), **level
            )
        k = min(self.top or max(1, round(n / 10)), n)
        threshold = float(p.mean()) if self.threshold is None else self.threshold
        lacking: dict[str, Underpowered] = {}
        for c, g in outcome.guesses.items():
            out[f"top_recovery ({k}, {c})"] = scores.top_over_clients(g, p, k, **level)
        for c, g in outcome.guesses.items():
            found = scores.auroc(g, p, threshold, self.confidence)
            if isinstance(found, Estimate):
                out[f"auroc ({c})"] = found
            else:
                lacking[found.what] = replace(found, measure="auroc")
        if guess.through_sums is not None:
            out["lift (A1, sums only)"] = scores.lift_over_clients(
                guess.through_sums[0], p, **level
            )
            out["shadow_lift (A1, sums only)"] = scores.over_federations(
                guess.through_sums[1], **level
            )
        for c, lifts in guess.learnt.items():
            out[f"shadow_lift ({c})"] = scores.over_federations(lifts, **level)
        for how, by_channel in guess.rewired.items():
            for c, lifts in by_channel.items():
                out[f"shadow_lift ({c}, {how})"] = scores.over_federations(lifts, **level)
            if "A2-full" in by_channel and "A2-full" in guess.learnt:
                change = by_channel["A2-full"] - guess.learnt["A2-full"]
                out[f"shadow_lift_change (A2-full, {how})"] = scores.over_federations(
                    change, **level
                )
        for c, lifts in guess.null.items():
            out[f"null_lift ({c})"] = scores.over_federations(
                lifts, what="shadows, p permuted", **level
            )
        return out, tuple(lacking.values())

    def _per_client(
        self, outcome: scores.Outcome, guess: Inference
    ) -> dict[str, dict[str, float | int | str | None]]:
        g, band = outcome.guesses[guess.best], guess.bands[guess.best]
        out: dict[str, dict[str, float | int | str | None]] = {}
        for i, name in enumerate(guess.clients):
            row: dict[str, float | int | str | None] = {
                "p": float(outcome.p[i]),
                f"guess ({guess.best})": float(g[i]),
                "from": float(max(0.0, g[i] - band)),
                "to": float(min(1.0, g[i] + band)),
                "mean": float(outcome.p.mean()),
                "gain": float((outcome.p.mean() - outcome.p[i]) ** 2 - (g[i] - outcome.p[i]) ** 2),
            }
            for c in ("A1", "topo", "org"):
                if c in outcome.guesses and c != guess.best:
                    row[f"guess ({c})"] = float(outcome.guesses[c][i])
            out[name] = row
        return out

    def _curves(
        self, guess: Inference, rng: np.random.Generator
    ) -> dict[str, dict[str, tuple[float, ...]]]:
        if not guess.by_rounds:
            return {}
        found = [
            scores.over_federations(v, rng=rng, confidence=self.confidence)
            for v in guess.by_rounds.values()
        ]
        scale = guess.shadow_variance or 1.0
        return {
            "explained (A1) on shadows by rounds observed": {
                "rounds": tuple(guess.by_rounds),
                "explained": tuple(e.value / scale for e in found),
                "low": tuple(e.low / scale for e in found),
                "high": tuple(e.high / scale for e in found),
            }
        }

    def _findings(self, outcome: scores.Outcome, guess: Inference) -> list[str]:
        """Notes on the results."""
        p = outcome.p
        said = [
            f"sensitive classes {', '.join(map(str, self.sensitive))}: shares from {p.min():.3g} "
            f"to {p.max():.3g} over {len(p)} clients, mean {p.mean():.3g} (shadows "
            f"{outcome.shadow_mean:.3g})",
            f"the headline is that of {guess.best}, the best channel on the adversary's own "
            "shadows; intervals resample the clients of this one run",
        ]
        said.append(
            f"null check passed: with p permuted in {len(next(iter(guess.null.values())))} shadow "
            f"federations no channel has lift (one-sided t, Holm, level {channels.ALARM:g}); the "
            f"largest mean is {max(float(v.mean()) for v in guess.null.values()):.2g}. A fault too "
            "small for this number of federations would pass"
        )
        if guess.by_rounds:
            enough = next(
                (t for t, v in guess.by_rounds.items() if _low_end(v, self.confidence) > 0),
                None,
            )
            total = max(guess.by_rounds)
            said.append(
                f"A1 has no lift on shadows after {total} rounds"
                if enough is None
                else f"A1 has lift on shadows from {enough} round{'s' if enough > 1 else ''} on"
            )
        for how, text in guess.change_in_words.items():
            said.append(f"what-if {how}: {text}")
        return said


def best_channel(learnt: Mapping[str, Floats]) -> str:
    """The channel with most lift on shadows; A2-full unless another is better by a standard error.

    The adversary chooses before it sees the target, so no correction for the choice is needed.
    """
    best = max(learnt, key=lambda c: float(learnt[c].mean()))
    if "A2-full" in learnt and best != "A2-full":
        more = learnt[best] - learnt["A2-full"]
        if float(more.mean()) <= float(more.std(ddof=1)) / np.sqrt(len(more)):
            return "A2-full"
    return best


def round_grid(total: int) -> tuple[int, ...]:
    """1, 2, 5, 10, 20, 50, ... up to `total`, and `total`."""
    found = {s * 10**e for e in range(len(str(total))) for s in ROUND_STEPS if s * 10**e <= total}
    return tuple(sorted({*found, total}))


def _low_end(values: Floats, confidence: float) -> float:
    found = intervals.mean(values, confidence)
    return found.low if isinstance(found, Estimate) else -np.inf


def _without_parameters(corpus: Corpus) -> Corpus:
    return replace(corpus, single=None, sums=None, names=(), seen="nothing")


def _solvable(place: Place) -> str:
    """A note on whether sums over neighbourhoods hide single updates."""
    groups = (place.summing_groups() > 0).astype(np.float64)
    alone = len(query_algebra.recoverable(groups))
    what = "organisations" if place.has_groups() else "closed neighbourhoods"
    if not place.edges and not place.has_groups():
        what = "everyone"
    if alone:
        return (
            f"sums over {what} hide little: a round's sums determine {alone} of {place.n} single "
            "updates; lift from sums only is that of an observer who does not solve for them"
        )
    return f"sums over {what} determine no single update"
