"""The audit: guesses from every row that the view shows, and their scores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

import numpy as np

from fedaudit.arrays import Bools, Floats, Indices
from fedaudit.audits.audit import Audit, Knowledge, columns_for
from fedaudit.audits.facts import AuditFacts
from fedaudit.audits.outright import need_rounds
from fedaudit.audits.planning import Aim, SampleSize, Setting, Shape
from fedaudit.audits.reconstruction import analytic, dishonest, images, scores, theory, tokens
from fedaudit.audits.reconstruction.facts import (
    ADJUSTED_P,
    ALL_TOKENS,
    CLOSEST,
    CONSTANT,
    DISHONEST,
    EXACT,
    FACTS,
    PLACED,
    PSNR,
    REBUILT,
    RIGHT,
    RUN,
    SSIM,
    TOKENS,
)
from fedaudit.audits.reconstruction.layers import LinearEnds, linear_ends
from fedaudit.audits.reconstruction.pairs import RebuiltPairs, closest_pairs
from fedaudit.audits.reconstruction.planting import Kind
from fedaudit.audits.reconstruction.prior import Prior
from fedaudit.audits.reconstruction.rows import SeenRows, seen_rows
from fedaudit.audits.reconstruction.tokens import TokenGuesses
from fedaudit.audits.records.ceilings import noisy_at_clients
from fedaudit.audits.records.seen import EVERYBODY
from fedaudit.errors import NotApplicable
from fedaudit.randomness import Seed
from fedaudit.results import NO_TRUTH, AuditResult, Estimate, Need
from fedaudit.settings import AtLeastTwo, Count, Fraction, NonNegative, Positive, Whole, checked
from fedaudit.stats.bias_ratios import ROUNDING
from fedaudit.stats.intervals import clopper_pearson
from fedaudit.trace import Truth, View

if TYPE_CHECKING:
    from fedaudit.tasks.task import Task

SHOWN = 48
"""Records that a private page shows at most."""

Way = Literal["unit", "separated", "matched", "planted"]
"""How a guess was found: one unit of the first layer, all of its units together, gradient matching,
or planted weights."""


@dataclass(frozen=True)
class Guesses:
    """Guessed records `x` (G, D): `sender` (G,) of the row behind each ("" if unknown),
    `round` (G,), `way` (G,) in which it was found. `labels`: sender -> counts of classes. `noisy`:
    protections that add noise before anything reaches this vantage. `dishonest`: whether a server
    planted weights besides."""

    x: Floats
    sender: tuple[str, ...]
    round: Indices
    way: tuple[Way, ...]
    dishonest: bool
    labels: Mapping[str, Indices]
    prior: Prior
    noisy: tuple[str, ...]
    notes: tuple[str, ...]
    vantage: str
    trace_sha256: str

    @property
    def parties(self) -> tuple[str, ...]:
        return tuple(self.prior.sizes)

    def about(self, party: str) -> Bools:
        """Which guesses (G,) may be records of this client."""
        return np.array([s in (party, EVERYBODY) for s in self.sender], dtype=bool)

    @property
    def planted(self) -> Bools:
        """Which guesses (G,) answer planted weights."""
        return np.array([w == "planted" for w in self.way], dtype=bool)

    def only(self, rows: Bools) -> Guesses:
        """Some of the guesses, by a mask (G,)."""
        kept = np.flatnonzero(rows)
        return replace(
            self,
            x=self.x[kept],
            sender=tuple(self.sender[i] for i in kept),
            round=self.round[kept],
            way=tuple(self.way[i] for i in kept),
        )


@dataclass
class _Found:
    """Guesses collected so far."""

    x: list[Floats] = field(default_factory=list)
    sender: list[str] = field(default_factory=list)
    round: list[int] = field(default_factory=list)
    way: list[Way] = field(default_factory=list)
    labels: dict[str, Indices] = field(default_factory=dict)

    def add(self, x: Floats, sender: str, number: int, way: Way) -> None:
        self.x.append(x)
        self.sender += [sender] * len(x)
        self.round += [number] * len(x)
        self.way += [way] * len(x)


@dataclass(frozen=True, kw_only=True)
@checked("audits.reconstruction")
class Reconstruction(Audit):
    """Rebuild training records from updates, anonymous rows or changes of the model.

    `records`: most records per client to look for, with as many that nobody trained on.
    `guesses`: most guesses per row and round from the first layer. `tolerance`: a record counts as
    rebuilt if a guess is closer than this, in median distances of two records. `matched_rounds`:
    first rounds in which gradient matching tries `matched_clients` clients of at most
    `matched_size` examples (0: never); `steps`, `restarts` and `variation` (weight of an image's
    total variation) of its search. `dishonest`: weights that a server plants in round 1 of the same
    federation, played again.
    """

    name: ClassVar[str] = "reconstruction"
    question: ClassVar[str] = "Can a record be rebuilt from what was sent?"
    source: ClassVar[str] = "[Geiping] Eq. (4), Proposition 3.1"
    needs: ClassVar[tuple[str, ...]] = ("prior",)
    facts: ClassVar[AuditFacts] = FACTS
    on_recording: ClassVar[str] = "with your model and records (`model`, `data`)"
    vantage: str = "server"
    records: AtLeastTwo = 64
    guesses: Count = 256
    tolerance: Positive = 0.25
    matched_rounds: Whole = 1
    matched_size: Count = 8
    matched_clients: Count = 10
    steps: Count = 400
    restarts: Count = 2
    variation: NonNegative = 1e-4
    dishonest: Literal["both", "imprint", "trap", "none"] = "both"
    confidence: Fraction = 0.95

    @property
    def kinds_planted(self) -> tuple[Kind, ...]:
        if self.dishonest == "both":
            return get_args(Kind)
        return () if self.dishonest == "none" else (self.dishonest,)

    # -- planning --------------------------------------------------------------------------------

    def cost(self, shape: Shape) -> float:
        rows = shape.clients * shape.rounds
        search = 0.0
        if self.matched_rounds and shape.examples <= self.matched_size * shape.clients:
            share = min(1.0, self.matched_clients / shape.clients)
            # separating the records of a client by the first layer takes half a second at most
            search += 0.5 * min(self.matched_clients, shape.clients)
            each = 0.01 + 10.0 * self.restarts * shape.passes(share * shape.examples)
            search += self.matched_rounds * self.steps * each
        replayed = len(self.kinds_planted) * shape.training() / shape.rounds
        each = 2e-9 + 2e-10 * self.guesses
        return 0.3 + rows * shape.width * each + search + replayed

    def missing(self, setting: Setting) -> Need | None:
        return setting.lacks_tensors()

    @classmethod
    def samples_before(cls, aim: Aim) -> list[SampleSize]:
        share = aim.goal(0.0)
        records = theory.records_to_show(share, *aim.level)
        return [
            SampleSize(
                audit=cls.name,
                measure=REBUILT,
                unit="records",
                chance=0.0,
                wanted=share,
                needed=records,
                how=f"{records:,} training records asked about, and as many that nobody trained on",
                rule="exact binomial power, if no record is hit that nobody trained on",
            )
        ]

    # -- attack ----------------------------------------------------------------------------------

    def attack(
        self, view: View, knowledge: Knowledge, rng: np.random.Generator
    ) -> Guesses | TokenGuesses:
        task, prior = _require(view, knowledge)
        streams = Seed(int(rng.integers(2**63)))
        table = tokens.require_table(task, prior) if prior.discrete else None
        seen = list(seen_rows(view, columns_for(task.layout, view.layout)))
        if not seen:
            raise NotApplicable(
                f"{view.vantage} sees neither updates nor what a model moved by",
                code="no_single_updates_or_models",
                expected="updates, or the models of two rounds",
                got="neither",
                remedy="audit the view of a party that receives models",
            )
        about: dict[str, Any] = {
            "noisy": noisy_at_clients(view, len(prior.sizes)),
            "vantage": view.vantage,
            "trace_sha256": view.trace_sha256,
        }
        if table is not None:
            length = int(prior.shape[0]) - (not table.last_is_read)
            used, placed, sender, rounds = tokens.guessed_tokens(
                seen, task, table, tuple(prior.sizes), length
            )
            return TokenGuesses(
                used=np.stack(used),
                placed=np.stack(placed),
                sender=tuple(sender),
                round=np.array(rounds, dtype=np.int64),
                sizes=dict(prior.sizes),
                last_is_read=table.last_is_read,
                notes=(*knowledge.notes, *_said(seen, 0)),
                **about,
            )
        ends = _ends(task, prior)
        found, notes = _Found(), list(knowledge.notes)
        if ends.first is not None:
            for one in seen:
                self._from_units(one, task, ends.first, prior, found)
        else:
            notes.append("no linear layer with a bias sees the record: dW / db gives nothing")
        try:
            tried = self._by_matching(seen, task, ends, prior, streams, found)
        except NotApplicable as error:
            if ends.first is None:
                raise
            tried = 0
            notes.append(f"no gradient matching: {error.what}")
        planted = knowledge.extra.get("planted", ())
        for played in planted:
            for name, x in dishonest.read(played, prior, self.guesses):
                found.add(x, name, 1, "planted")
        if ends.first is None and not tried:
            raise NotApplicable(
                "neither way of rebuilding applies to this model",
                code="no_input_layer",
                expected="a linear layer with a bias that sees the record, or clients of at most "
                f"{self.matched_size} examples",
                got="neither of them",
                remedy="raise audits.reconstruction.matched_size, which costs time",
            )
        width = prior.low.size
        return Guesses(
            x=np.concatenate([np.zeros((0, width)), *found.x]),
            sender=tuple(found.sender),
            round=np.array(found.round, dtype=np.int64),
            way=tuple(found.way),
            dishonest=bool(planted),
            labels=found.labels,
            prior=prior,
            notes=(*notes, *_said(seen, tried)),
            **about,
        )

    def _from_units(
        self, one: SeenRows, task: Task, first: tuple[str, str], prior: Prior, found: _Found
    ) -> None:
        """Guesses of the first layer's units. [Geiping] Proposition 3.1"""
        at = {e.name: e for e in task.layout.entries}
        weight, bias = (at[name] for name in first)
        dw = one.rows[:, weight.offset : weight.offset + weight.size]
        db = one.rows[:, bias.offset : bias.offset + bias.size]
        step = float(np.finfo(np.float32).eps) * float(np.abs(one.start).max())
        for sender, x in zip(
            one.senders,
            analytic.candidates(
                dw.reshape(len(dw), *weight.shape),
                db,
                prior.low,
                prior.high,
                smallest=ROUNDING * step,
                most=self.guesses,
            ),
            strict=True,
        ):
            known = sender if sender in prior.sizes else EVERYBODY
            found.add(x, known, one.number, "unit")

    def _by_matching(
        self,
        seen: list[SeenRows],
        task: Task,
        ends: LinearEnds,
        prior: Prior,
        streams: Seed,
        found: _Found,
    ) -> int:
        """Gradient matching of small clients in the first rounds; returns the rows it tried."""
        from fedaudit.audits.reconstruction import small_clients

        if ends == LinearEnds() or task.noise_shape() is not None:
            return 0
        tried = 0
        for one in seen[: self.matched_rounds]:
            if one.sums or not one.one_model:
                continue
            for sender, x, way in small_clients.rebuild(
                task,
                one,
                ends,
                prior,
                self,
                streams.generator("matching", one.number),
                found.labels,
            ):
                found.add(x, sender, one.number, way)
                tried += way == "matched"
        return tried

    # -- score -----------------------------------------------------------------------------------

    def score(
        self, guess: Guesses | TokenGuesses, truth: Truth | None, rng: np.random.Generator
    ) -> AuditResult:
        shared: dict[str, Any] = {
            "audit": self.name,
            "question": self.question,
            "vantage": guess.vantage,
            "settings": asdict(self),
            "source": self.source,
            "trace_sha256": guess.trace_sha256,
            "notes": guess.notes,
        }
        parties = [p for p in guess.parties if truth is not None and p in truth.records]
        if truth is None or not parties:
            return AuditResult(
                **shared,
                status="blind",
                need=NO_TRUTH,
                per_client={p: {"guesses": int(guess.about(p).sum())} for p in guess.parties},
            )
        asked = scores.asked_of(
            [truth.records[p] for p in parties], [truth.members[p] for p in parties]
        )
        if isinstance(guess, TokenGuesses):
            return AuditResult(**shared, **self._score_tokens(guess, truth, parties, asked, rng))
        usual = scores.usual_distance(asked.x, rng)
        honest = guess.only(~guess.planted)
        hit, closest, nearest = _distances(honest, parties, asked, usual)
        hits = {REBUILT: hit < self.tolerance, EXACT: hit < scores.EXACT_WITHIN}
        if guess.dishonest:
            hits[DISHONEST] = (
                _distances(guess.only(guess.planted), parties, asked, usual)[0] < self.tolerance
            )
        estimates = {n: scores.share_of(h, asked, self.confidence) for n, h in hits.items()}
        likeness = {**_likeness(guess.prior, nearest, asked), CLOSEST: closest}
        for name, values in likeness.items():
            share = name in (RIGHT, CONSTANT)
            mean = scores.mean_of(values, asked, self.confidence, rng, share=share)
            if isinstance(mean, Estimate):
                estimates[name] = mean
        tested = scores.hit_test(hits, asked, len(parties), self.confidence, rng)
        best = [float(closest[asked.of(i)].min()) for i in range(len(parties))]
        return AuditResult(
            **shared,
            headline=REBUILT,
            estimates=estimates,
            test=tested.test,
            bounds={
                name: bound
                for of in (REBUILT, DISHONEST)
                if of in hits
                for name, bound in scores.ceilings(
                    guess.noisy, truth, of, hits[of], asked, self.confidence
                ).items()
            },
            detectable=tested.detectable,
            per_client={
                p: {
                    **self._client(i, p, honest, asked, hits[REBUILT], tested.clients[i]),
                    "closest": best[i] if np.isfinite(best[i]) else None,
                    "labels_right": _labels_right(guess.labels.get(p), truth, p),
                }
                for i, p in enumerate(parties)
            },
            curves=_by_round(honest, parties, asked, usual, self.tolerance)
            | _by_column(guess.prior, nearest, asked)
            | _by_distance(hit, asked),
        )

    def pairs(
        self, guess: Guesses | TokenGuesses, truth: Truth, rng: np.random.Generator
    ) -> RebuiltPairs | None:
        """Training records beside their nearest guesses; None for texts, whose words have no
        picture. For a private page: `score` keeps no record."""
        parties = [p for p in guess.parties if p in truth.records]
        if isinstance(guess, TokenGuesses) or not parties:
            return None
        asked = scores.asked_of(
            [truth.records[p] for p in parties], [truth.members[p] for p in parties]
        )
        usual = scores.usual_distance(asked.x, rng)
        _, closest, nearest = _distances(guess, parties, asked, usual)
        return closest_pairs(
            nearest,
            closest,
            asked,
            parties,
            ranges=(guess.prior.low, guess.prior.high),
            shape=guess.prior.shape,
            most=SHOWN,
        )

    def _score_tokens(
        self,
        guess: TokenGuesses,
        truth: Truth,
        parties: list[str],
        asked: scores.Asked,
        rng: np.random.Generator,
    ) -> dict[str, Any]:
        """The scored part of a result about texts."""
        x = asked.x.astype(np.int64)
        share, whole = tokens.found_share(guess, parties, x, asked.owner)
        readings: dict[str, Bools | Floats] = {ALL_TOKENS: whole, TOKENS: share}
        estimates = {ALL_TOKENS: scores.share_of(whole, asked, self.confidence)}
        run = tokens.longest_run(guess, parties, x, asked.owner)
        placed = tokens.placed_share(guess, parties, x, asked.owner)
        for name, values in ((TOKENS, share), (RUN, run), (PLACED, placed)):
            mean = scores.mean_of(values, asked, self.confidence, rng, share=True)
            if isinstance(mean, Estimate):
                estimates[name] = mean
        tested = scores.hit_test(readings, asked, len(parties), self.confidence, rng)
        return {
            "headline": ALL_TOKENS,
            "estimates": estimates,
            "test": tested.test,
            "bounds": scores.ceilings(
                guess.noisy, truth, ALL_TOKENS, whole, asked, self.confidence
            ),
            "detectable": tested.detectable,
            "per_client": {
                p: {
                    **self._client(i, p, guess, asked, whole, tested.clients[i]),
                    **tokens.client_columns(guess, p, x[asked.of(i)]),
                }
                for i, p in enumerate(parties)
            },
        }

    def _client(
        self,
        number: int,
        party: str,
        guess: Guesses | TokenGuesses,
        asked: scores.Asked,
        hits: Bools,
        p: float,
    ) -> dict[str, Any]:
        mine, twins = asked.of(number), asked.of(number, member=False)
        share = clopper_pearson(int(hits[mine].sum()), int(mine.sum()), self.confidence)
        return {
            "share": share.value,
            "low": share.low,
            "high": share.high,
            "chance": float(hits[twins].mean()) if twins.any() else None,
            "rebuilt": int(hits[mine].sum()),
            "asked": int(mine.sum()),
            "guesses": int(guess.about(party).sum()),
            ADJUSTED_P: float(p),
        }


def _require(view: View, knowledge: Knowledge) -> tuple[Task, Prior]:
    """The adversary's task and prior; raises if there are no rounds or no numbers to rebuild."""
    need_rounds(view)
    prior = knowledge.extra.get("prior")
    if knowledge.task is None or prior is None:
        raise NotApplicable(
            "rebuilding records needs the model and records to compare with",
            code="no_records",
            expected="the model and records",
            got="neither of them",
            remedy="audit a run, or give `data` and `model`",
        )
    return knowledge.task, prior


def _ends(task: Task, prior: Prior) -> LinearEnds:
    """The linear layers at both ends of the model, seen with one random record."""
    import torch

    x = np.random.default_rng(0).uniform(prior.low, prior.high).astype(np.float32)
    record = torch.from_numpy(x).view(1, *prior.shape)
    try:
        return linear_ends(task, record, torch.zeros(1, dtype=torch.int64))
    except (RuntimeError, ValueError, IndexError) as error:
        raise NotApplicable(
            "the model does not take these records",
            code="other_records",
            expected="records of the shape that the model was trained on",
            got=f"shape {prior.shape}: {str(error).splitlines()[0]}",
            remedy="give the records that clients trained on, or their model",
        ) from None


def _distances(
    guess: Guesses, parties: list[str], asked: scores.Asked, usual: float
) -> tuple[Floats, Floats, Floats]:
    """Per asked record (n,): distance of a guess that hits it, of any guess, and the nearest guess
    (n, D), NaN without guesses."""
    hit, closest = np.full(len(asked.x), np.inf), np.full(len(asked.x), np.inf)
    nearest = np.full(asked.x.shape, np.nan)
    everybody = np.array([s == EVERYBODY for s in guess.sender], dtype=bool)
    groups = [(everybody, np.arange(len(asked.x)))]
    groups += [
        (guess.about(p) & ~everybody, np.flatnonzero(asked.owner == i))
        for i, p in enumerate(parties)
    ]
    for which, rows in groups:
        if not which.any():
            continue
        x = guess.x[which]
        found = scores.nearest(x, asked.x[rows], usual)
        hit[rows] = np.minimum(hit[rows], found.hit)
        better = found.any < closest[rows]
        nearest[rows[better]] = x[found.guess[better]]
        closest[rows] = np.minimum(closest[rows], found.any)
    return hit, closest, nearest


def _likeness(prior: Prior, nearest: Floats, asked: scores.Asked) -> dict[str, Floats]:
    """How like each asked record (n,) its nearest guess (n, D) is, by the kind of data; NaN without
    guesses."""
    constant = np.broadcast_to(prior.best_constant, asked.x.shape)
    out = {
        RIGHT: scores.right_columns(nearest, asked.x, prior.low, prior.high),
        CONSTANT: scores.right_columns(constant, asked.x, prior.low, prior.high),
    }
    guessed = np.isfinite(nearest).all(axis=1)
    out[RIGHT] = np.where(guessed, out[RIGHT], np.nan)
    if len(prior.shape) == 3 and guessed.any():
        span = max(float((prior.high - prior.low).max()), 1e-12)
        pair = [v[guessed].reshape(-1, *prior.shape) for v in (nearest, asked.x)]
        for name, of in ((PSNR, images.psnr), (SSIM, images.ssim)):
            out[name] = np.full(len(asked.x), np.nan)
            out[name][guessed] = of(pair[0], pair[1], span)
    return out


def _by_column(
    prior: Prior, nearest: Floats, asked: scores.Asked
) -> dict[str, dict[str, tuple[float, ...]]]:
    """Share of records of a table whose nearest guess has a column right, column by column."""
    guessed = np.isfinite(nearest).all(axis=1)
    if len(prior.shape) != 1 or not (guessed & asked.member).any():
        return {}
    constant = np.broadcast_to(prior.best_constant, asked.x.shape)

    def right(x: Floats, rows: Bools) -> tuple[float, ...]:
        if not rows.any():
            return (0.0,) * asked.x.shape[1]
        within = scores.COLUMN_WITHIN * np.maximum(prior.high - prior.low, 1e-12)
        return tuple((np.abs(x - asked.x)[rows] <= within).mean(axis=0).tolist())

    return {
        "columns right": {
            "column": tuple(map(float, range(1, asked.x.shape[1] + 1))),
            "trained on": right(nearest, guessed & asked.member),
            "trained on by nobody": right(nearest, guessed & ~asked.member),
            "one constant": right(constant, asked.member),
        }
    }


def _by_distance(hit: Floats, asked: scores.Asked) -> dict[str, dict[str, tuple[float, ...]]]:
    """Share of records to which a guess comes within each distance, members and others."""
    if not np.isfinite(hit).any():
        return {}
    grid = np.linspace(0.0, 1.0, 41)
    within = hit[:, None] <= grid
    return {
        "records by distance": {
            "usual distances": tuple(grid.tolist()),
            "trained on": tuple(within[asked.member].mean(axis=0).tolist()),
            "trained on by nobody": tuple(within[~asked.member].mean(axis=0).tolist()),
        }
    }


def _labels_right(counts: Indices | None, truth: Truth, party: str) -> float | None:
    """Share of a client's examples in both its counted classes (C,) and the true ones."""
    known = truth.facts.get("clients", {}).get(party, {}).get("classes")
    if counts is None or known is None or len(known) != len(counts) or not sum(known):
        return None
    return float(np.minimum(counts, known).sum() / sum(known))


def _by_round(
    guess: Guesses, parties: list[str], asked: scores.Asked, usual: float, tolerance: float
) -> dict[str, dict[str, tuple[float, ...]]]:
    """Share of records rebuilt from the rounds up to each, members and others."""
    numbers = sorted({int(t) for t in guess.round})
    if len(numbers) < 2:
        return {}
    member, other, best = [], [], np.full(len(asked.x), np.inf)
    for t in numbers:
        best = np.minimum(best, _distances(guess.only(guess.round == t), parties, asked, usual)[0])
        member.append(float((best[asked.member] < tolerance).mean()))
        other.append(float((best[~asked.member] < tolerance).mean()))
    return {
        "records rebuilt by round": {
            "round": tuple(map(float, numbers)),
            "trained on": tuple(member),
            "trained on by nobody": tuple(other),
        }
    }


def _said(seen: list[SeenRows], tried: int) -> tuple[str, ...]:
    """Notes on the data behind the guesses."""
    sums = sum(one.sums for one in seen)
    out = [f"gradient matching: {tried} updates of small clients"] if tried else []
    if sums:
        out.append(
            f"no single updates in {sums} of {len(seen)} rounds: what the model moved by counts"
        )
    if any(EVERYBODY in one.senders and not one.sums for one in seen):
        out.append("senders are hidden: a guess may be anybody's record")
    return tuple(out)
