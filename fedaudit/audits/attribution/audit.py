"""Which client trained on marked records, seen only through secure aggregation?

Question: a corpus owner marked records; which clients of a federation trained on them?
Vantage: SERVER, which reads sums and the ledger of its queries, together with the owner, who brings
its keys. No upload is read.
Paper: [FedAttr] Sections 4 and 5, Appendices B, D, E and H.
Differs: (1) the published threshold on Stouffer's sum is computed and reported, and decides
nothing: a difference of two z-scores is no z-score, and benign drift grows with the rounds.
Decisions rest on unused keys: exact ranks, a tail carried on beyond them, Holm over all clients and
all keys of the owner. (2) Parts of clients come from least squares over all candidates of all
rounds, so that a neighbour's mark is not taken for a client's own; for scores that are not linear
in an update they come from the updates themselves, which the published plan lets the server solve
for. (3) Any plan will do: groups of a safe plan are scored as they are, or, where scores are not
linear in an update, what the groups of all rounds say of each client is (`over_rounds`); and each
client is tested on the groups without every other one (a key is held by one client at most). What
a plan itself gives away is told by `audits.query_plan`.
(4) Text marks: fictitious knowledge is read by the likelihood of planted values among random ones,
green lists by their probability in one pass over text that was written under keys of nobody; both
also by generated text.
Shapes: sums (Q, d); candidates (R, d); scores (R, S + U) on S keys of the owner and U unused ones,
or (R, S + S U) where every key has a null of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from statistics import NormalDist
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from fedaudit.audits.attribution import calibration, estimator, over_rounds, scoring, theory
from fedaudit.audits.attribution.estimator import Candidates
from fedaudit.audits.attribution.scoring import Marks
from fedaudit.audits.audit import Knowledge, columns_for
from fedaudit.errors import ConfigError, NotApplicable, UsageError
from fedaudit.results import AuditResult, Bound, Estimate, Underpowered
from fedaudit.stats import intervals
from fedaudit.stats.query_plans import Pairs
from fedaudit.trace import Truth, View
from fedaudit.trace.ledger import Asked, asked

Floats = npt.NDArray[np.float64]
DrawPairs = Callable[[int, int, int], Sequence[Pairs]]
"""(round, participants, number of the first one) -> the pairs that the server drew."""

ScoreBy = Literal[
    "default", "margin", "loss", "mass", "reading", "generation", "likelihood", "fisher"
]

OVER_ROUNDS = "means of groups, all rounds together"
SOLVED = "updates that the sums of the published pairs determine"

AT_ONCE = 2**26
"""Numbers of candidate updates that are made and scored at a time: half a gigabyte of them."""

NUMBERS = 10**9
"""Numbers of group means and guesses that may stand in memory where all rounds are read together:
4 gigabytes."""

ENOUGH = 300
"""Null client tests below which no rate of false alarms is printed."""


@dataclass(frozen=True, kw_only=True)
class AttributionGuess:
    """`designs`, `scores` per round, (R_t, K) and (R_t, S + U); what follows from them.

    `published` (T, K, S + U) differential z-scores of [FedAttr] Eq. (7), NaN where a client was
    absent, None where no single client's update was estimated. `apart`: each key has U of its own;
    `linear`: scores are about linear in updates. `tables`: scores of what groups of all rounds say
    of each client, where these decide. `drawn`: clients, N and M of the published pairs.
    """

    names: tuple[str, ...]
    rounds: tuple[int, ...]
    keys: int
    designs: tuple[Floats, ...]
    scores: tuple[Floats, ...]
    published: Floats | None
    parts: calibration.Parts
    decision: calibration.Decision
    sequential: calibration.Sequential
    queries: tuple[int, ...]
    uploads: Floats
    reading: str
    notes: tuple[str, ...]
    trace_sha256: str
    vantage: str
    apart: bool = False
    linear: bool = True
    tables: over_rounds.Tables | None = None
    drawn: tuple[int, int, int] | None = None

    @property
    def blocks(self) -> tuple[scoring.Block, ...]:
        """Columns of keys with their unused ones."""
        return scoring.blocks(self.scores[0].shape[1], self.keys, self.apart)

    @property
    def whole(self) -> bool:
        """Whether every client was tested against every other."""
        return self.tables is None or len(self.names) * (len(self.names) - 1) <= over_rounds.PAIRS

    def named_from(self, error: float) -> Floats:
        """How far (K,) a client has to stand out to be named, in deviations of unused keys."""
        design = np.concatenate(self.designs)
        if self.tables is not None:
            return over_rounds.smallest_named(
                design, self.tables, self.keys, error, apart=self.apart
            )
        by = {"apart": self.apart, "linear": self.linear}
        scores = np.concatenate(self.scores)
        return calibration.smallest_named(design, scores, self.keys, error, **by)

    def decided(
        self, columns: npt.NDArray[np.int64], keys: int, error: float
    ) -> calibration.Decision:
        """The same decision on some of the keys alone, the first `keys` of them as the owner's."""
        design = np.concatenate(self.designs)
        if self.tables is not None:
            return over_rounds.decide(design, over_rounds.among(self.tables, columns), keys, error)
        scores = np.concatenate(self.scores)[:, columns]
        return calibration.decide(design, scores, keys, error, linear=self.linear)


@dataclass(frozen=True, kw_only=True)
class Attribution:
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

    vantage: str = "server"
    error: float = 0.05
    unused_keys: int = 999
    threshold: float = 4.0
    confidence: float = 0.95
    score_by: ScoreBy = "default"
    prompts: int = 48
    steps: int | None = None

    def __post_init__(self) -> None:
        checks = (
            ("prompts", self.prompts >= 1, "at least 1: without a prompt there is nothing to ask"),
            (
                "steps",
                self.steps is None or self.steps >= 2,
                "at least 2: more than the context of the watermark",
            ),
            ("vantage", bool(self.vantage), "the name of a party that receives sums"),
            ("error", 0 < self.error < 0.5, "between 0 and 0.5"),
            ("unused_keys", self.unused_keys >= 19, "at least 19: fewer give no p-value of 0.05"),
            ("threshold", self.threshold > 0, "above 0"),
            ("confidence", 0 < self.confidence < 1, "between 0 and 1"),
        )
        for name, fine, expected in checks:
            if not fine:
                raise ConfigError(
                    f"audits.attribution.{name} is out of range",
                    expected=expected,
                    got=repr(getattr(self, name)),
                    remedy="correct the value, or leave it out for its default",
                )

    # -- attack --------------------------------------------------------------------------------

    def attack(
        self, view: View, knowledge: Knowledge, rng: np.random.Generator
    ) -> AttributionGuess:
        marks = _marks(knowledge)
        every = [asked(view, number) for number in view.rounds]
        ledgers = [a for a in every if len(a.answered)]
        questions = sum(len(a.sums) for a in every)
        if not ledgers:
            raise NotApplicable(
                "no query was answered" if questions else f"{view.vantage} sees no sums",
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
        drawn = None if draw is None else _sizes(view, ledgers[0], draw)
        for ledger in ledgers:
            found = _candidates(view, ledger, names, draw)
            if found is None:
                continue
            candidates, queries, reading, without = found
            judged = estimator.judged(candidates, queries, marks)
            readings.add(reading if judged is candidates else SOLVED)
            lost += without
            start = _arranged(_model(view, ledger.round), columns)
            grouped = not linear and bool((candidates.target < 0).all())
            if grouped:
                kept += len(candidates)
                _check_size(kept + len(names), len(start))
            coefficients = [c.coefficients for c in dict.fromkeys((candidates, judged))]
            pieces: list[Floats] = []
            updates: list[npt.NDArray[np.float32]] = []
            for some in _updates(view, ledger, np.concatenate(coefficients), AT_ONCE):
                own = _arranged(some / weight, columns)
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
            raise _nobody(ledgers)
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
            decision = calibration.decide(design, np.concatenate(scores), many, self.error, **by)
            looks = calibration.sequential(designs, scores, many, self.error, **by)
        present = np.array([[n in a.clients and _was_in(a, n) for n in names] for a in ledgers])
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
            uploads=_uploads(ledgers, names) / np.maximum(present.sum(axis=0), 1),
            reading=", ".join(sorted(readings)),
            notes=(
                *knowledge.notes,
                *getattr(marks, "notes", ()),
                *_left_out(rounds, [a.round for a in every if len(a.sums)], lost),
            ),
            trace_sha256=view.trace_sha256,
            vantage=view.vantage,
            apart=apart,
            linear=linear,
            tables=tables,
            drawn=drawn,
        )

    # -- score ---------------------------------------------------------------------------------

    def score(
        self, guess: AttributionGuess, truth: Truth | None, rng: np.random.Generator
    ) -> AuditResult:
        clients = len(guess.names)
        flagged = guess.decision.named.flagged
        estimates: dict[str, Estimate] = {
            "clients_named": Estimate(
                value=float(flagged.sum()),
                low=float(flagged.sum()),
                high=float(clients),
                n=clients,
                confidence=1 - self.error,
                baseline=0.0,
                method=f"Holm over {clients} clients and {guess.keys} keys: so many at least",
            )
        }
        estimates |= self._on_unused(guess)
        underpowered: list[Underpowered] = []
        bounds: dict[str, Bound] = {}
        facts = None if truth is None else truth.facts.get("marked")
        marked = None
        if isinstance(facts, Mapping):
            marked = np.array([name in facts for name in guess.names])
            found, short = self._against(guess, marked)
            estimates |= found
            underpowered += short
            found, short, bounds = self._constants(guess, marked, rng)
            estimates |= found
            underpowered += short
        if guess.drawn is not None:
            bounds = {**bounds, "theorem_4_leakage": theory.leakage_bound(*guess.drawn)}
        return AuditResult(
            audit=self.name,
            question=self.question,
            vantage=guess.vantage,
            settings=asdict(self),
            headline="clients_named",
            estimates=estimates,
            underpowered=tuple(underpowered),
            bounds=bounds,
            per_client=self._per_client(guess, marked, estimates),
            curves={"by_round": _by_round(guess)},
            detectable=self._detectable(guess, marked),
            notes=(*_notes(guess, marked), *self._named_from(guess)),
            source=self.source,
            trace_sha256=guess.trace_sha256,
        )

    def _detectable(
        self, guess: AttributionGuess, marked: npt.NDArray[np.bool_] | None
    ) -> float | None:
        """One client named is a finding, where that could have happened.

        Not where clients cannot be told apart, nor where a marked one is known to have been missed;
        infinite where no score whatever would have been enough.
        """
        if guess.keys and np.isinf(guess.named_from(self.error)).all():
            return math.inf if guess.decision.askable.any() else None
        missed = marked is not None and (marked & ~guess.decision.named.flagged).any()
        return 1.0 if guess.decision.askable.all() and not missed else None

    def _named_from(self, guess: AttributionGuess) -> list[str]:
        """The smallest mark that would have been named, in words."""
        if not guess.keys:
            return []
        far = guess.named_from(self.error)
        far = far[guess.decision.askable & np.isfinite(far)]
        if not len(far):
            return [
                "no client would have been named, whatever its mark: its p-value cannot fall to "
                f"{calibration.first_step(self.error, len(guess.names), guess.keys):.2g} with "
                f"{guess.decision.p_values.unused} unused keys"
            ]
        ends = f"{far.min():.1f}" + (f" to {far.max():.1f}" if far.max() > far.min() else "")
        return [
            f"a client is named, whatever the others hold, where its mark stands out by {ends} "
            "deviations of unused keys: weaker marks may have gone unseen"
        ]

    def _above(
        self, guess: AttributionGuess, k: int, z: float, estimates: Mapping[str, Estimate]
    ) -> dict[str, float | int | str | None]:
        """Whether a client's published score is above thresholds that stay valid as rounds add up.

        By Theorem 3 with the constants of this run: after the rounds that it took part in, and
        after any number of them.
        """
        assert guess.published is not None
        if not {"drift", "noise"} <= estimates.keys():
            return {}
        rounds = int((~np.isnan(guess.published[:, k, 0])).sum())
        by = {name: estimates[name].value for name in ("drift", "noise")}
        return {
            "published_above_growing": int(
                z > theory.growing_threshold(rounds, error=self.error, **by)
            ),
            "published_above_anytime": int(
                z > theory.anytime_threshold(rounds, error=self.error, **by)
            ),
        }

    def _on_unused(self, guess: AttributionGuess) -> dict[str, Estimate]:
        """How often keys that nobody trained on alarm: client tests by the hundred.

        Half of the unused keys are tested as if they were the owner's, the other half are their
        null, at the level that Holm's first step asks for: there the tail decides. Published:
        above the threshold. Tests of one key share its probes: keys are the clusters.
        """
        out = {}
        askable = guess.decision.askable
        tested = len(guess.blocks[0].null) // 2
        if guess.whole and askable.sum() * tested >= ENOUGH:
            level = calibration.first_step(self.error, int(askable.sum()), guess.keys)
            found = [guess.decided(b.null, tested, self.error) for b in guess.blocks]
            alarms = np.concatenate([f.p_values.p[askable] <= level for f in found], axis=1)
            out["false_alarm_rate_per_test"] = intervals.clustered_share(
                alarms.sum(axis=0),
                np.full(alarms.shape[1], len(alarms)),
                self.confidence,
                baseline=level,
            )
        if guess.published is not None:
            total = scoring.stouffer_by_client(guess.published)[:, guess.keys :]
            total = total[~np.isnan(total).any(axis=1)]
            if total.size >= ENOUGH:
                out["published_false_alarm_rate_per_test"] = intervals.clustered_share(
                    (total > self.threshold).sum(axis=0),
                    np.full(total.shape[1], len(total)),
                    self.confidence,
                    baseline=NormalDist().cdf(-self.threshold),
                )
        return out

    def _against(
        self, guess: AttributionGuess, marked: npt.NDArray[np.bool_]
    ) -> tuple[dict[str, Estimate], list[Underpowered]]:
        """Detection, and false alarms where there are enough benign clients to state a rate."""
        readings = {"": guess.decision.named.flagged}
        if guess.published is not None:
            readings["published_"] = self._published_flags(guess)
        out, short = {}, []
        for label, flags in readings.items():
            if marked.any():
                out[f"{label}detected"] = intervals.wilson(
                    int(flags[marked].sum()),
                    int(marked.sum()),
                    self.confidence,
                    baseline=self.error,
                )
            benign = int((~marked).sum())
            if benign >= ENOUGH:
                out[f"{label}false_alarms"] = intervals.wilson(
                    int(flags[~marked].sum()), benign, self.confidence, baseline=self.error
                )
            else:
                what = f"{label}false_alarms: benign clients to state a rate of false alarms"
                short.append(Underpowered(what=what, have=benign, needed=ENOUGH))
        return out, short

    def _published_flags(self, guess: AttributionGuess) -> npt.NDArray[np.bool_]:
        """Above gamma for any key of the owner: the paper does not say which scores whom."""
        assert guess.published is not None
        own = scoring.stouffer_by_client(guess.published[:, :, : guess.keys])
        return np.asarray((own > self.threshold).any(axis=1))  # False for clients without any

    def _constants(
        self,
        guess: AttributionGuess,
        marked: npt.NDArray[np.bool_],
        rng: np.random.Generator,
    ) -> tuple[dict[str, Estimate], list[Underpowered], dict[str, Bound]]:
        """m, eps and nu of Assumption 1, and what Theorem 3 makes of them.

        A benign client is scored by the key that fits it best in the mean: no key is its own.
        """
        if guess.published is None or not guess.keys:
            return {}, [], {}
        own = guess.published[:, :, : guess.keys]
        estimated = ~np.isnan(own).all(axis=(0, 2))
        if not estimated.any():
            return {}, [], {}
        own, marked = own[:, estimated], marked[estimated]
        fitting = np.nanmean(own, axis=0).argmax(axis=1)
        z = np.take_along_axis(own, fitting[None, :, None], axis=2)[:, :, 0]
        found = calibration.assumption_constants(z, marked, rng, confidence=self.confidence)
        out, short = {}, []
        # beside each, what a standard normal score without any mark has
        for name, value, unmarked in (
            ("signal", found.signal, 0.0),
            ("drift", found.drift, 0.0),
            ("noise", found.noise, 1.0),
        ):
            if isinstance(value, Underpowered):
                short.append(replace(value, what=f"{name}: {value.what}"))
            else:
                out[name] = replace(value, baseline=unmarked)
        taken = (~np.isnan(z)).sum(axis=0)[~marked]
        bounds = {}
        if len(taken) and "drift" in out and "noise" in out and out["noise"].value > 0:
            bounds = self._theorem_3(int(taken.max()), out["drift"].value, out["noise"].value)
        return out, short, bounds

    def _theorem_3(self, rounds: int, drift: float, noise: float) -> dict[str, Bound]:
        """Of a benign client in so many rounds: its chance to be flagged, and two thresholds."""
        assumed = "Assumption 1 with the constants estimated on this run"
        by = {"drift": drift, "noise": noise}
        errors = theory.error_bounds(rounds, self.threshold, signal=0.0, **by)
        found = {
            "theorem_3_false_positive": (
                "published_false_alarms",
                errors.false_positive,
                f"{assumed}, {rounds} rounds that a benign client took part in; 1 says nothing",
            ),
            "growing_threshold": (
                "published_z",
                theory.growing_threshold(rounds, error=self.error, **by),
                f"{assumed}: after {rounds} rounds a benign client is above it with chance "
                f"{self.error:g} at most, by one key",
            ),
            "anytime_threshold": (
                "published_z",
                theory.anytime_threshold(rounds, error=self.error, **by),
                f"{assumed}: a benign client is ever above it, after {rounds} rounds or any other "
                f"number, with chance {self.error:g} at most, by one key",
            ),
        }
        return {
            name: Bound(
                value=value, kind="reference", of=of, source="[FedAttr] Theorem 3", assumes=assumes
            )
            for name, (of, value, assumes) in found.items()
        }

    def _per_client(
        self,
        guess: AttributionGuess,
        marked: npt.NDArray[np.bool_] | None,
        estimates: Mapping[str, Estimate],
    ) -> dict[str, dict[str, float | int | str | None]]:
        from scipy.special import stdtrit

        published = None
        if guess.published is not None:
            published = scoring.stouffer_by_client(guess.published[:, :, : guess.keys])
        blocks = guess.blocks if guess.apart else guess.blocks * max(guess.keys, 1)
        unit = np.stack([guess.parts.value[:, b.null].std(axis=1, ddof=1) for b in blocks], 1)
        centre = np.stack([guess.parts.value[:, b.null].mean(axis=1) for b in blocks], 1)
        far = guess.named_from(self.error) if guess.keys else np.full(len(guess.names), np.inf)
        out: dict[str, dict[str, float | int | str | None]] = {}
        for k, name in enumerate(guess.names):
            s = int(guess.decision.named.key[k])
            row: dict[str, float | int | str | None] = {
                "named": int(guess.decision.named.flagged[k])
            }
            row["adjusted_p"] = float(guess.decision.named.adjusted[k])
            if not guess.decision.askable[k]:
                row["adjusted_p"] = None
            if guess.parts.identifiable[k] and guess.keys and unit[k, s] > 0:
                value = (guess.parts.value[k, s] - centre[k, s]) / unit[k, s]
                row |= {"key": s, "part": float(value)}
                if guess.parts.freedom:
                    t = float(stdtrit(guess.parts.freedom, 0.5 + self.confidence / 2))
                    half = t * float(guess.parts.deviation[k, s]) / unit[k, s]
                    row |= {"low": float(value - half), "high": float(value + half)}
            if np.isfinite(far[k]):
                row["named_from"] = float(far[k])
            look = int(guess.sequential.first[k])
            row["named_after_round"] = guess.rounds[look - 1] if look else None
            row["sums_per_round"] = float(guess.uploads[k])
            if published is not None and guess.keys and not np.isnan(published[k]).any():
                row["published_z"] = float(published[k].max())
                row |= self._above(guess, k, float(published[k].max()), estimates)
            if marked is not None:
                row["marked"] = int(marked[k])
            out[name] = row
        return out


def _handed(view: View, ledger: Asked, total: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """Columns of those who were handed a model in a round: pairs were drawn for them."""
    to = {m.receiver for m in view.messages(ledger.round) if m.kind == "model"}
    found = np.flatnonzero([name in to for name in ledger.clients])
    # where downlinks were not recorded, those in the total are all that is known
    return found if total[found].sum() == total.sum() else np.flatnonzero(total)


def _marks(knowledge: Knowledge) -> Marks:
    marks: Marks | None = knowledge.extra.get("marks")
    if marks is None:
        raise NotApplicable(
            "no keys to look for marks with",
            expected="a corpus owner's keys",
            got="none",
            remedy="plant marks with [marks], or pass knowledge.extra['marks']",
        )
    return marks


def _candidates(
    view: View, ledger: Asked, names: Sequence[str], draw: DrawPairs | None
) -> tuple[Candidates, Floats, str, int] | None:
    """Candidates of a round in the columns of `names`, the answered queries (Q, K) in the same
    columns, how candidates were made, and how many are lost.

    None where the answers estimate nobody: nothing but the total, or too little beside it.
    """
    answered = ledger.answered
    position = [names.index(name) for name in ledger.clients]
    total = answered[answered.sum(axis=1).argmax()] != 0
    proper = (answered != 0).sum(axis=1) < total.sum()
    if not proper.any():
        return None
    plan = next((d.get("plan") for d in view.declared if d.get("plan") is not None), None)
    lost, made = 0, None
    if plan == "paired":
        if draw is not None:
            made, lost = _of_pairs(view, ledger, total, draw)
        reading = "estimates of the published pairs"
        if made is None:
            reading = "estimates from all subsets pooled"
            with suppress(UsageError):  # no client has subsets with it and without it
                made = estimator.pooled(answered)
        if made is None:
            return None
    else:
        only = estimator.groups(answered[proper])
        coefficients = np.zeros((len(only), len(answered)))
        coefficients[:, proper] = only.coefficients
        made, reading = replace(only, coefficients=coefficients), "means of groups"
    design, queries = np.zeros((len(made), len(names))), np.zeros((len(answered), len(names)))
    design[:, position], queries[:, position] = made.design, answered
    target = np.array([position[t] if t >= 0 else -1 for t in made.target], dtype=np.int64)
    return Candidates(made.coefficients, design, target), queries, reading, lost


def _sizes(view: View, ledger: Asked, draw: DrawPairs) -> tuple[int, int, int]:
    """Clients, N and M of the pairs that were drawn in a round."""
    answered = ledger.answered
    asked = _handed(view, ledger, answered[answered.sum(axis=1).argmax()] != 0)
    first = draw(ledger.round, len(asked), int(asked[0]))[0]
    return len(asked), int(first.exclude[0].sum()), len(first.include)


def _of_pairs(
    view: View, ledger: Asked, total: npt.NDArray[np.bool_], draw: DrawPairs
) -> tuple[Candidates | None, int]:
    """Estimates of the pairs that the server drew, and how many of them are missing.

    Pairs were drawn for everybody who was handed a model. Who dropped out is in no sum: subsets
    are read without them, and of whoever is left there is the mean over the answered subsets with
    it minus that over those without it.
    """
    asked = _handed(view, ledger, total)
    pairs = draw(ledger.round, len(asked), int(asked[0]))
    left, answered = total[asked].astype(np.uint8), ledger.answered[:, asked]
    have = {row.tobytes() for row in (answered != 0).astype(np.uint8)}
    kept = []
    for pair in pairs:
        sides = [
            np.array([row * left for row in side if (row * left).tobytes() in have])
            for side in (pair.include, pair.exclude)
        ]
        if left[pair.target] and all(map(len, sides)):
            kept.append(replace(pair, include=sides[0], exclude=sides[1]))
    if not kept:
        return None, len(pairs)
    made = estimator.published(kept, answered)
    design = made.coefficients @ ledger.answered
    return replace(made, target=asked[made.target], design=design), len(pairs) - len(kept)


def _model(view: View, number: int) -> npt.NDArray[np.float32]:
    """The model that was handed out at the beginning of a round (d,)."""
    for m in view.messages(number):
        if m.kind == "model":
            held = view.received(number, m.receiver, before=1)
            if held is not None:
                return held
    raise NotApplicable(
        f"{view.vantage} does not know the model of round {number}",
        expected="the model that was handed out",
        got="no such message",
        remedy="record downlinks, or take the view of the party that hands out models",
    )


def _arranged(rows: npt.NDArray[Any], columns: npt.NDArray[np.int64] | None) -> Floats:
    found = rows if columns is None else rows[..., columns]
    return np.asarray(found, dtype=np.float64)


def _published(z: Floats, target: npt.NDArray[np.int64], clients: int) -> Floats:
    """[FedAttr] Eq. (7) on z-scores (1 + R, S + U), the reference first: (K, S + U).

    NaN for clients without an estimate.
    """
    out = np.full((clients, z.shape[1]), np.nan)
    out[target] = scoring.differential(z[1:], z[0])
    return out


def _nobody(ledgers: Sequence[Asked]) -> NotApplicable:
    """Why no round says anything of anybody."""
    parts = sum(int(((a.queries != 0).sum(axis=1) < _most(a)).sum()) for a in ledgers)
    if not parts:
        return NotApplicable(
            "only totals were asked for: they say that somebody trained on marks, not who",
            expected="sums over subsets of the clients",
            got=f"the training aggregate alone, in {len(ledgers)} rounds",
            remedy='protections.secure_aggregation.plan = "partitions"',
        )
    given = sum(int(((a.answered != 0).sum(axis=1) < _most(a)).sum()) for a in ledgers)
    return NotApplicable(
        "the subset sums that were answered estimate no client",
        expected="sums with a client and without it",
        got=f"{given} of {parts} subset sums answered, in {len(ledgers)} rounds",
        remedy="see why they were refused, or which clients dropped out; lower the threshold",
    )


def _most(ledger: Asked) -> int:
    """Clients in the largest sum that was answered."""
    return int((ledger.answered != 0).sum(axis=1).max())


def _left_out(rounds: Sequence[int], asked_in: Sequence[int], lost: int) -> list[str]:
    """What the reading does without, in words."""
    notes = []
    without = [n for n in asked_in if n not in rounds]
    if without:
        which = ", ".join(map(str, without[:10])) + (" and more" if len(without) > 10 else "")
        notes.append(
            f"{len(without)} of {len(asked_in)} rounds are left out ({which}): no sum over a part "
            "of the clients was answered, or none that estimates anybody"
        )
    if lost:
        notes.append(
            f"{lost} estimates of the published pairs are missing: clients dropped out, or "
            "subsets went unanswered"
        )
    return notes


def _updates(view: View, ledger: Asked, coefficients: Floats, numbers: int) -> Iterator[Floats]:
    """Combinations of a round's answers, coefficients (R, Q), some rows (r, d) at a time."""
    step = max(1, numbers // view.layout.width)
    for low in range(0, len(coefficients), step):
        answers = (view.payload(ledger.round, int(i)) for i in ledger.sums[ledger.sums >= 0])
        yield estimator.combined(coefficients[low : low + step], answers, at_once=step)


def _check_size(rows: int, width: int) -> None:
    """Refuse models of which the groups of all rounds do not stand in memory together."""
    if rows * width > NUMBERS:
        raise NotApplicable(
            "the groups of all rounds together are too large",
            expected=f"at most {NUMBERS:.0e} numbers, groups and clients times parameters",
            got=f"{rows} of {width:,} numbers each",
            remedy="fewer rounds or clients, adapters instead of dense products (task.aggregation "
            '= "fedit"), or plan = "paired", which is read round by round',
        )


def _was_in(ledger: Asked, name: str) -> bool:
    return bool(ledger.answered[:, ledger.clients.index(name)].any())


def _uploads(ledgers: Sequence[Asked], names: Sequence[str]) -> Floats:
    """Sums that each client was in, over all rounds: with real masks each is an upload."""
    total = np.zeros(len(names))
    for a in ledgers:
        total[[names.index(n) for n in a.clients]] += (a.answered != 0).sum(axis=0)
    return total


def _by_round(guess: AttributionGuess) -> dict[str, tuple[float, ...]]:
    first = guess.sequential.first
    done = [int(((first > 0) & (first <= t)).sum()) for t in range(1, len(guess.rounds) + 1)]
    return {
        "round": tuple(float(r) for r in guess.rounds),
        "named_so_far": tuple(float(n) for n in done),
        "queries": tuple(float(q) for q in guess.queries),
    }


def _notes(guess: AttributionGuess, marked: npt.NDArray[np.bool_] | None) -> tuple[str, ...]:
    notes = [*guess.notes]
    who = [n for n, f in zip(guess.names, guess.decision.named.flagged, strict=True) if f]
    if who:
        notes.append("named: " + ", ".join(who[:10]) + (" and more" if len(who) > 10 else ""))
    notes.append(f"read from {guess.reading}, {len(guess.rounds)} rounds")
    unknown = int((~guess.decision.askable).sum())
    if unknown:
        notes.append(
            f"of {unknown} of {len(guess.names)} clients nothing can be said: the sums so far do "
            "not tell them from others"
        )
    if guess.published is not None:
        none = int(np.isnan(guess.published).all(axis=(0, 2)).sum())
        if none:
            notes.append(
                f"{none} clients have no published score: they took no part, or subsets with and "
                "without them went unanswered"
            )
    p, named = guess.decision.p_values, guess.decision.named
    by_tail = int((p.tail.any(axis=1) & named.flagged).sum())
    if by_tail:
        notes.append(
            f"{by_tail} of the named lie beyond all {p.unused} unused keys: their p-values rest on "
            f"a tail carried on from these, and are at most {p.floor:.2g} in any case"
        )
    if marked is not None:
        wrong = int((guess.decision.named.flagged & ~marked).sum())
        notes.append(f"{wrong} of {int((~marked).sum())} benign clients were named")
    return tuple(notes)
