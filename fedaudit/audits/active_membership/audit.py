"""The audit: games in closed form and through the engine, with bounds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, Protocol

import numpy as np
from annotated_types import Ge

from fedaudit.accounting import Exposure
from fedaudit.arrays import Bools, Floats, Indices
from fedaudit.audits.active_membership import (
    attention,
    games,
    patterns,
    planning,
    probe,
    scores,
    theory,
)
from fedaudit.audits.active_membership.adversary import (
    Adversary,
    AttentionAdversary,
    FullyConnected,
    Threshold,
)
from fedaudit.audits.active_membership.facts import FACTS
from fedaudit.audits.active_membership.games import EscapeChance, Universe
from fedaudit.audits.active_membership.own_model import HalfSpaces, NoisyColumns, OwnModel
from fedaudit.audits.active_membership.probe import Answer, NoiseModel
from fedaudit.audits.audit import Audit, Knowledge
from fedaudit.audits.facts import AuditFacts
from fedaudit.audits.planning import Aim, Recorded, SampleSize, Setting, Shape
from fedaudit.errors import ConfigError, NotApplicable, UsageError
from fedaudit.hooks import Hook
from fedaudit.results import NO_TRUTH, AuditResult, Need
from fedaudit.settings import AtLeastTwo, Count, Fraction, Positive, Whole, checked
from fedaudit.trace import Truth, View

Planted = Literal["fc", "attention", "own_model"]

# -- the challenger -------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Played:
    """One federation with planted models.

    `view`: the server's view. `target` (g,): targets as indices into the universe, one game per
    client, or one for all if uploads arrive mixed. `names`: the clients in order. `closed` (g,):
    the closed form's scores of the same training data, to compare with the engine. `rate`,
    `records` and `schedule` describe a client's steps.
    """

    view: View
    target: Indices
    names: tuple[str, ...]
    closed: Floats
    rate: float
    records: int
    schedule: Exposure


class Challenger(Protocol):
    """The challenger plays the games and keeps data and coins secret.

    `adversary`: what is planted; never "auto".
    `universe`: the possible records, known to the server. `shape` of a record. `words`: vocabulary
    size if records are tokens, else 0. `given`: the model's own embedding, if it has one.
    `records`: records per client in a game; `together`: records behind one answer of the engine.
    `mixed`: uploads reach the server as a sum or without names. `noisy`: uploads carry noise.
    `step_noise`: the smallest noise multiplier of a client's step (0: none); `upload_noise`: the
    same for its update. `schedules`: steps, rounds and sampling rate of every client in the run
    itself; empty if they are not known. `own_model`: the run's, if the adversary plants in it.
    `granted`: why nothing of ours can be planted in the run's own model, so that games are played
    with clients that accept any architecture; empty if that is not what was asked.
    """

    universe: Universe
    shape: tuple[int, ...]
    words: int
    given: patterns.Embedding | None
    records: int
    classes: int
    mixed: bool
    noisy: bool
    step_noise: float
    upload_noise: float
    schedules: tuple[Exposure, ...]
    own_model: OwnModel | None
    granted: str

    @property
    def adversary(self) -> Planted: ...

    def schedule(self, adversary: Adversary) -> Exposure:
        """A client's steps in a game against this adversary."""
        ...

    @property
    def together(self) -> int: ...

    @property
    def notes(self) -> tuple[str, ...]: ...

    def figure(self, adversary: Adversary) -> tuple[Floats, Indices]:
        """Scores (G,) and trials (G,) of games in closed form. [ActiveMembership] Figure 12"""
        ...

    def own(self, adversary: Adversary) -> Mapping[str, Floats]:
        """Scores of games against every client with its own records: party -> scores."""
        ...

    def recorded(self, adversary: Adversary, probing: ActiveMembership) -> Iterator[Played]:
        """Games through the engine: one planted model for all clients of a federation."""
        ...

    def marked(self, adversary: Adversary, probing: ActiveMembership) -> Iterator[Played]:
        """Games through the engine: one armed detector per client."""
        ...


# -- the guess ------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Guess:
    """The attack's scores, and the inputs of the bounds.

    `figure` (G,): scores of games in closed form, with their `trial` (G,) and `cut`. `own`: party
    -> scores. `recorded` (R,): strengths of games through the engine, above 0 for yes; `agreed`
    (R,): whether the closed form decides alike. `any_architecture`: scores (G,) and cut of the same
    games if clients accept any architecture. `marked` (M, K): strengths by client. `outside`:
    P_M at `radius`. `floor`: Theorem 3; `no_floor`: why there is none.
    """

    figure: Floats
    trial: Indices
    cut: float
    own: Mapping[str, Floats]
    recorded: Floats
    agreed: Bools
    marked: Floats
    radius: float
    outside: EscapeChance | None
    floor: attention.Floor | None
    no_floor: str
    any_architecture: tuple[Floats, float] | None = None
    about: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    vantage: str = ""
    trace_sha256: str = ""


# -- the audit ------------------------------------------------------------------------------------


Games = Annotated[int, Ge(20)]


@dataclass(frozen=True, kw_only=True)
@checked("audits.active_membership")
class ActiveMembership(Audit):
    """Can a server that plants weights tell whether a record is in a client's data?

    `adversary`: "own_model" plants in the run's own model, with the clients' own local steps; "fc"
    or "attention" plant a model of their own, which clients must accept. "auto": "own_model"; where
    that cannot be played the audit is not applicable, and states what "fc" gives. `games`: games
    in closed form; `recorded`: games through the engine; `client_games`: games against every client
    with its own records. `trials` above 1 plays `games` in each trial with fixed data and targets,
    as published. `records`: records per client in a game (default: the clients' median).
    `universe`: the largest number of possible records.
    `threshold`: "tuned" on the server's own games, "theory" (tau = Delta; gamma = 2 Delta-bar), or
    "published". `local_dp`: a mechanism instead of the run's, with the settings of that protection.

    Attention only: `patch`: patch size. `dimension`: pattern dimension. `embedding`: "fourier"
    (ours) or "linear" (published); for tokens these are a row per token and place, or a token row
    plus a place row; "one_hot": one-hot tokens; "model": the embedding of the run's own vit or gpt.
    `beta`: default is searched, or from Theorem 3.
    """

    name: ClassVar[str] = "active_membership"
    question: ClassVar[str] = (
        "Can a dishonest server tell that a record is in a client's data, even under local DP?"
    )
    source: ClassVar[str] = "[ActiveMembership] Figures 11 and 12"
    needs: ClassVar[tuple[str, ...]] = ("games",)
    facts: ClassVar[AuditFacts] = FACTS
    on_recording: ClassVar[str] = (
        "with your model and records (`model`, `data`): games with a server that plants weights"
    )
    vantage: str = "server"
    adversary: Literal["auto", "fc", "attention", "own_model"] = "auto"
    threshold: Threshold = "tuned"
    games: Games = 2400
    trials: Count = 1
    recorded: Whole = 400
    client_games: Whole = 200
    simulated: Games = 1000
    records: Count | None = None
    universe: AtLeastTwo = 2000
    local_dp: dict[str, Any] | None = None
    patch: Count = 4
    dimension: AtLeastTwo = 64
    embedding: Literal["fourier", "linear", "one_hot", "model"] = "fourier"
    beta: Positive | None = None
    confidence: Fraction = 0.95

    def __post_init__(self) -> None:
        if self.beta is not None and self.adversary != "attention":
            raise ConfigError(
                "audits.active_membership.beta belongs to attention",
                expected='adversary = "attention"',
                got=repr(self.adversary),
                remedy="remove beta",
            )

    # -- planning --------------------------------------------------------------------------------

    def cost(self, shape: Shape) -> float:
        return 0.5 + 2e-4 * (self.games + self.client_games) + 0.008 * self.recorded

    def missing(self, setting: Setting) -> Need | None:
        if setting.fixed_model and self.adversary == "own_model":
            return Need(
                code="architecture_fixed",
                what=f"nothing can be planted in the run's own model ({setting.fixed_model})",
                remedy='adversary = "fc": what a server could do with any architecture',
            )
        return setting.lacks_tensors()

    @classmethod
    def samples(cls, result: AuditResult, recorded: Recorded, aim: Aim) -> list[SampleSize]:
        return planning.samples(result, aim)

    @classmethod
    def samples_before(cls, aim: Aim) -> list[SampleSize]:
        return planning.samples_before(cls.name, aim)

    # -- attack ----------------------------------------------------------------------------------

    def probe(
        self,
        adversary: Adversary,
        target: Indices,
        *,
        classes: int,
        mark: int = 0,
        gain: float = 1.0,
    ) -> Hook:
        """The hook that replaces models on their way to the clients by planted ones.

        `target` (K,): one per client; or (1,): the same for all. `mark`: the number of clients that
        get the same target, each with its own detector, so that the answers identify them.
        """
        if mark:
            same = np.repeat(target, mark)
            armed = np.arange(mark)
            rows = adversary.rows(same, classes=classes, detectors=mark, armed=armed, gain=gain)
            return probe.Planting(rows)
        rows = adversary.rows(target, classes=classes, gain=gain)
        return probe.Planting(rows[0] if len(rows) == 1 else rows)

    def prepare(self, challenger: Challenger, records: int, rng: np.random.Generator) -> Adversary:
        """The adversary, tuned to the known distribution and mechanism, for answers from `records`
        records."""
        if challenger.own_model is not None:
            return HalfSpaces(universe=challenger.universe, model=challenger.own_model)
        if challenger.adversary == "fc":
            return self._fully_connected(challenger, records, rng)
        offered: list[patterns.Embedding]
        if challenger.given is not None:
            offered = [challenger.given]
        elif challenger.words:
            offered = [
                patterns.tokens(
                    challenger.shape[0],
                    challenger.words,
                    self.dimension,
                    rng,
                    additive=self.embedding == "linear",
                )
            ]
        elif self.embedding == "linear":
            offered = [patterns.linear(challenger.shape, self.patch, self.dimension, rng)]
        else:
            offered = [
                patterns.fourier(
                    challenger.shape,
                    self.patch,
                    self.dimension,
                    challenger.universe.values,
                    rng,
                    bandwidth=b,
                )
                for b in patterns.BANDWIDTHS
            ]
        return AttentionAdversary.prepare(
            challenger.universe,
            offered[1:2] if self.threshold == "theory" and len(offered) > 1 else offered,
            records,
            rng,
            threshold=self.threshold,
            beta=self.beta,
            simulated=min(self.simulated, 200),
        )

    def _fully_connected(
        self, challenger: Challenger, records: int, rng: np.random.Generator
    ) -> FullyConnected:
        return FullyConnected.prepare(
            challenger.universe, records, rng, threshold=self.threshold, simulated=self.simulated
        )

    def attack(self, view: View, knowledge: Knowledge, rng: np.random.Generator) -> Guess:
        challenger: Challenger | None = knowledge.extra.get("games")
        if challenger is None:
            raise NotApplicable(
                "an active attack cannot be made on a recording alone",
                code="no_clients_to_play",
                expected="clients that compute gradients on planted models",
                got="a trace",
                remedy="audit a run, whose clients can be played again",
            )
        self._check_planting(view, challenger)
        adversary, planted = self._prepared(challenger, rng)
        figure, trial = challenger.figure(adversary)
        # beside a model that is not the run's, the closed form of gradients in the clear is enough
        engine = challenger.mixed or challenger.noisy or not challenger.granted
        games = challenger.recorded(planted, self) if engine else ()
        read = [self._game_strengths(p, planted) for p in games]
        marked = [self._client_strengths(p, adversary) for p in challenger.marked(adversary, self)]
        beside = None
        if challenger.own_model is not None:
            beside = self._any_architecture(challenger, rng, engine=bool(read))
        outside, floor, why = self._theory(challenger, adversary, rng)
        return Guess(
            figure=figure,
            trial=trial,
            cut=adversary.cut,
            own=challenger.own(adversary),
            recorded=np.concatenate([r[0] for r in read]) if read else np.empty(0),
            agreed=np.concatenate([r[1] for r in read]) if read else np.empty(0, dtype=bool),
            marked=np.concatenate(marked) if marked else np.empty((0, 0)),
            radius=challenger.universe.radius if isinstance(adversary, FullyConnected) else 0.0,
            outside=outside,
            floor=floor,
            no_floor=why,
            any_architecture=beside,
            about=self._game_facts(challenger, adversary),
            notes=(*knowledge.notes, *challenger.notes),
            vantage=view.vantage,
            trace_sha256=view.trace_sha256,
        )

    def _any_architecture(
        self, challenger: Challenger, rng: np.random.Generator, *, engine: bool
    ) -> tuple[Floats, float]:
        """Scores and cut of the games that the headline counts, were any architecture accepted."""
        if not (engine and (challenger.mixed or challenger.noisy)):
            other = self._fully_connected(challenger, challenger.records, rng)
            return challenger.figure(other)[0], other.cut
        other = self._fully_connected(challenger, challenger.together, rng)
        games = challenger.recorded(other, self)
        return np.concatenate([self._game_strengths(p, other)[0] for p in games]), 0.0

    def _check_planting(self, view: View, challenger: Challenger) -> None:
        """Refuse parties that send no models, and adversaries that need gradients without noise."""
        if view.vantage != "server":
            raise NotApplicable(
                f"{view.vantage} cannot plant weights",
                code="no_server",
                expected='vantage = "server": only the sender of models can plant weights',
                got=view.vantage,
                remedy="leave vantage out",
            )
        if challenger.adversary == "attention" and challenger.noisy:
            raise NotApplicable(
                f"the {challenger.adversary} adversary needs gradients without noise",
                code="noisy_uploads",
                expected="uploads without noise",
                got="noise, which makes every gradient non-zero",
                remedy='audits.active_membership.adversary = "fc"',
            )

    def _prepared(
        self, challenger: Challenger, rng: np.random.Generator
    ) -> tuple[Adversary, Adversary]:
        """The adversary of single clients, and that of whatever arrives together."""
        try:
            alone = self.prepare(challenger, challenger.records, rng)
            if challenger.together == challenger.records:
                return alone, alone
            return alone, self.prepare(challenger, challenger.together, rng)
        except UsageError as error:
            # the data do not meet the theorem's condition: not an error of the config
            raise NotApplicable(
                error.what,
                code="theory_unmet",
                expected=error.expected,
                got=error.got,
                remedy=error.remedy,
            ) from None

    def _game_strengths(self, played: Played, adversary: Adversary) -> tuple[Floats, Bools]:
        """Strengths (g,) of a federation's games, above 0 for yes, and agreement with the closed
        form (g,)."""
        answer = probe.read_answer(played.view, adversary.answer_tensor)
        noise = self._noise(played, answer, adversary)
        each = answer.rows[:, 0]
        if isinstance(adversary, HalfSpaces):
            each = adversary.columns(answer.rows, 1)[:, 0]
        if noise is None:
            each = probe.strength(answer.rows)
        if len(played.target) == len(each) and answer.named:
            where = {s: i for i, s in enumerate(answer.senders)}
            strengths = each[[where[n] for n in played.names]]
            if noise is not None:
                strengths = np.array([noise.log_ratio(x, i) for i, x in enumerate(strengths)])
        elif noise is None:
            strengths = np.array([each.max()])  # any client of the federation
        else:
            strengths = np.array([noise.evidence(each)])
        return strengths, (strengths > 0) == (played.closed > adversary.cut)

    def _client_strengths(self, played: Played, adversary: Adversary) -> Floats:
        """Strengths (1, K) by client: each client has its own neuron."""
        answer = probe.read_answer(played.view, adversary.answer_tensor)
        noise = self._noise(played, answer, adversary)
        if isinstance(adversary, HalfSpaces):
            count = len(played.names)
            if noise is not None:
                return noise.evidence(adversary.columns(answer.rows, count))[None, :]
            return adversary.by_neuron(answer.rows, count).max(axis=0)[None, :]
        if noise is None:
            return np.asarray(np.abs(answer.rows).max(axis=0)[None, :])
        return noise.evidence(answer.rows)[None, :]

    @staticmethod
    def _noise(
        played: Played, answer: Answer, adversary: Adversary
    ) -> NoiseModel | NoisyColumns | None:
        """Signal and noise of the answers; None without declared noise."""
        declared, clients = played.view.declared, len(played.names)
        noise: NoiseModel | NoisyColumns | None
        noise = probe.noise_model(declared, played.rate, played.records, clients)
        if noise is not None and isinstance(adversary, HalfSpaces):
            (added,) = probe.clipped_noise(declared, clients)
            noise = adversary.behind_noise(
                added, played.schedule, played.records, clients, played.target
            )
        return noise.of_sum if noise is not None and not answer.senders else noise

    def _theory(
        self, challenger: Challenger, adversary: Adversary, rng: np.random.Generator
    ) -> tuple[EscapeChance | None, attention.Floor | None, str]:
        """P_M for Theorem 1, or Theorem 3 at the planted beta."""
        if isinstance(adversary, FullyConnected):
            universe = challenger.universe
            radius = universe.snap(universe.radius)
            return games.escape_chance(universe, radius, rng, confidence=self.confidence), None, ""
        if isinstance(adversary, HalfSpaces):
            return None, None, ""
        assert isinstance(adversary, AttentionAdversary)
        clean, shown = adversary.sampled or adversary.sample(rng, 1 << 22)
        try:
            found = attention.floor(
                clean,
                shown,
                adversary.beta,
                records=challenger.records,
                rng=rng,
                confidence=self.confidence,
                other=adversary.other,
                measured=adversary.measured,
            )
        except UsageError as error:
            return None, None, f"Theorem 3 says nothing here: {error.what}; {error.remedy}"
        return None, found, ""

    def _game_facts(self, challenger: Challenger, adversary: Adversary) -> dict[str, Any]:
        universe = challenger.universe
        channel, book = universe.channel, universe.channel.codes
        ceiling = None
        if book is not None and book.transition is not None:
            ceiling = theory.ceiling(book.transition, universe.features)
        elif book is not None and book.symmetric is not None:
            ceiling = theory.symmetric_ceiling(*book.symmetric, universe.features)
        balls = None
        if channel.name == "grr" and universe.features == 1 and universe.codes is not None:
            balls = universe.ball_sizes(universe.snap(universe.radius)).tolist()
        return {
            "adversary": challenger.adversary,
            "mechanism": channel.name,
            "claimed_epsilon": channel.claimed_epsilon,
            "exact_epsilon": channel.exact_epsilon,
            "delta": channel.delta,
            "universe": len(adversary.universe),
            "features": universe.features,
            "records": challenger.records,
            "mixed": challenger.mixed,
            "noisy": challenger.noisy,
            "step_noise": challenger.step_noise,
            "upload_noise": challenger.upload_noise,
            "schedules": challenger.schedules,
            "played": challenger.schedule(adversary),
            "granted": challenger.granted,
            "ceiling": ceiling,
            "alphabet": None if book is None else book.alphabet,
            "balls": balls,
            "margin": isinstance(adversary, AttentionAdversary) and adversary.measured is not None,
            "tau": adversary.tau if isinstance(adversary, FullyConnected) else None,
            "beta": adversary.beta if isinstance(adversary, AttentionAdversary) else None,
            "gamma": adversary.gamma if isinstance(adversary, AttentionAdversary) else None,
        }

    # -- score -----------------------------------------------------------------------------------

    def score(self, guess: Guess, truth: Truth | None, rng: np.random.Generator) -> AuditResult:
        shared = self.about(guess)
        if truth is None or "figure" not in truth.members:
            return AuditResult(**shared, status="blind", need=NO_TRUTH)
        return scores.score_guess(self, guess, truth.members, rng, shared)
