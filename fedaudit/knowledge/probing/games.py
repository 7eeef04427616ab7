"""Security games: draw all data and coins first, then play through the engine.

The audit asks `Games`, its `Table`; only the truth gets the drawn coins.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fedaudit.accounting import Exposure
from fedaudit.arrays import Bools, Floats, Indices
from fedaudit.audits.active_membership import games, patterns
from fedaudit.audits.active_membership.audit import ActiveMembership, Planted, Played
from fedaudit.audits.active_membership.games import Challenge, Universe
from fedaudit.audits.active_membership.own_model import HalfSpaces, OwnModel
from fedaudit.audits.active_membership.probe import gain_for
from fedaudit.federation.engine import Federation
from fedaudit.federation.local.schedule import Training
from fedaudit.federation.local.trainer import ClientData
from fedaudit.federation.many import run_many
from fedaudit.federation.rounds import Rounds
from fedaudit.hooks import Hook, declaration_of
from fedaudit.knowledge.probing.protections import for_clients
from fedaudit.randomness import Seed
from fedaudit.trace import MemoryRecorder

if TYPE_CHECKING:
    from torch import Tensor

    from fedaudit.audits.active_membership.adversary import Adversary


HELD_BYTES = 1 << 26
"""Size of all planted models that are trained at once; a few copies of them exist."""
MOST_NUMBERS = 1 << 31
"""Parameters of all planted models together: wider models play fewer games."""
LEAST_PLAYED = 20
MOST_MARKED = 200
"""Most games that ask which client holds a record: each needs a detector per client."""


def clients_in(parties: Mapping[str, Any]) -> int:
    """Clients of a federation in which games are played."""
    return max(2, len(parties))


def noise_by_place(protections: Sequence[Hook], clients: int) -> dict[str, Any]:
    """Noise multipliers on steps and on uploads, of all clients alike or one each."""
    every = [p.noise(p.declare(), clients=clients) for p in protections]
    found = {added.place: added.multiplier for added in every if added is not None}
    return {place: found.get(place, 0.0) for place in ("step", "upload")}


def is_noisy(noise: Mapping[str, Any]) -> bool:
    """Whether any client's steps or uploads carry noise."""
    return any(np.max(multiplier) > 0 for multiplier in noise.values())


@dataclass(frozen=True)
class GameDraws:
    """Drawn challenges with their coins, for the truth alone."""

    figure: Challenge
    own: Mapping[str, Challenge]
    recorded: Challenge
    marked: Challenge
    holder: Indices  # (M,) which client holds the target of a marked game, -1: none


@dataclass
class Games:
    """A `Table` with the records, the clients and the protections of a run.

    `raw` (N, r) and `labels` (N,): the universe's records before any protection. `parties`: party
    -> indices of its records. `protections`: of a game, the local mechanism first. `schedules`: of
    every client in the run. `own_model` and `training`: the run's, if the adversary plants in them.
    `granted`: why it cannot, where that was asked.
    """

    audit: ActiveMembership
    universe: Universe
    raw: Floats
    labels: Indices
    shape: tuple[int, ...]
    words: int
    given: patterns.Embedding | None
    records: int
    classes: int
    parties: Mapping[str, Indices]
    protections: tuple[Hook, ...]
    seed: Seed
    remarks: tuple[str, ...] = ()
    schedules: tuple[Exposure, ...] = ()
    own_model: OwnModel | None = None
    training: Training | None = None
    granted: str = ""
    mixed: bool = field(init=False)
    noisy: bool = field(init=False)
    step_noise: float = field(init=False)
    upload_noise: float = field(init=False)
    draws: GameDraws = field(init=False)

    def __post_init__(self) -> None:
        self.mixed = any("sender" in p.covers for p in self.protections)
        noise = noise_by_place(self.protections, self.clients)
        self.step_noise = float(np.min(noise["step"]))
        self.upload_noise = float(np.min(noise["upload"]))
        self.noisy = is_noisy(noise)
        self.draws = self._draw()

    @property
    def notes(self) -> tuple[str, ...]:
        if self.played < self.audit.recorded:
            few = f"only {self.played} games through the engine: the planted model is wide"
            return (*self.remarks, few)
        return self.remarks

    def _declared(self) -> list[dict[str, Any]]:
        return [declaration_of(p) for p in self.protections]

    # -- drawing -----------------------------------------------------------------------------

    def _draw(self) -> GameDraws:
        """Draw all data and coins before the adversary acts."""
        a, size = self.audit, len(self.universe)
        rng = self.seed.generator("games/deal")
        figure = (
            games.trials(size, self.records, a.trials, a.games, rng)
            if a.trials > 1
            else games.challenge(size, self.records, a.games, rng)
        )
        own = {
            party: games.against_client(size, mine, a.client_games, rng)
            for party, mine in self.parties.items()
            if a.client_games and 2 <= len(mine) < size
        }
        recorded = games.challenge(size, self.together, self.played, rng)
        whose = min(self.played, MOST_MARKED) if self.asks_whose else 0
        marked = games.challenge(size, self.records_in_sum * self.clients, whose, rng)
        at = (marked.data == marked.target[:, None]).argmax(axis=1) // self.records_in_sum
        return GameDraws(figure, own, recorded, marked, np.where(marked.member, at, -1))

    @property
    def clients(self) -> int:
        return clients_in(self.parties)

    @property
    def adversary(self) -> Planted:
        asked = self.audit.adversary
        if asked == "auto":
            return "fc" if self.own_model is None else "own_model"
        return asked

    @property
    def records_in_sum(self) -> int:
        """Records per client if all clients of a federation play one game."""
        return max(1, min(self.records, (len(self.universe) - 1) // self.clients))

    @property
    def together(self) -> int:
        """Records behind one answer of the engine."""
        return self.records_in_sum * self.clients if self.mixed else self.records

    @property
    def asks_whose(self) -> bool:
        """Whether games ask which client holds the record."""
        if self.own_model is not None:
            return self.mixed and self.clients <= self.own_model.neurons
        return self.mixed and self.adversary == "fc"

    @cached_property
    def played(self) -> int:
        """Games through the engine: `audit.recorded`, or fewer for wide planted models."""
        r = self.universe.features
        d = self.audit.dimension if self.given is None else self.given.dimension
        width = 2 * r * r if self.adversary == "fc" else 20 * d * d
        if self.own_model is not None:
            width = len(self.own_model.start)
        each = width * (self.clients if self.mixed else 1)
        return min(self.audit.recorded, max(LEAST_PLAYED, MOST_NUMBERS // each))

    @property
    def members(self) -> dict[str, Bools]:
        """The coins of all games, for the truth."""
        d = self.draws
        return {
            "figure": d.figure.member,
            **{f"own/{party}": c.member for party, c in d.own.items()},
            "recorded": d.recorded.member,
            "marked": d.holder[:, None] == np.arange(self.clients),
        }

    # -- closed form -------------------------------------------------------------------------

    def figure(self, adversary: Adversary) -> tuple[Floats, Indices]:
        played = self.draws.figure
        return adversary.scores(played, self.seed.generator("games/figure")), played.trial

    def own(self, adversary: Adversary) -> dict[str, Floats]:
        return {
            party: adversary.scores(c, self.seed.generator("games/own", i))
            for i, (party, c) in enumerate(self.draws.own.items())
        }

    # -- through the engine ------------------------------------------------------------------

    def recorded(self, adversary: Adversary, probing: ActiveMembership) -> Iterator[Played]:
        c = self.draws.recorded
        if self.mixed:
            yield from self._play_together(c, adversary, probing, mark=False)
            return
        step = self.clients * self._at_once(adversary, 1)
        for low in range(0, len(c), step):
            yield from self._play_apart(c.part(slice(low, low + step)), low, adversary, probing)

    def marked(self, adversary: Adversary, probing: ActiveMembership) -> Iterator[Played]:
        if self.asks_whose:
            yield from self._play_together(self.draws.marked, adversary, probing, mark=True)

    def _training(self, adversary: Adversary, records: int) -> Training:
        """How clients train in a game: as in the run if the server plants in the run's model."""
        if self.training is not None and isinstance(adversary, HalfSpaces):
            return self.training
        rate = adversary.rate(records, self.classes)
        return Training(learning_rate=rate, steps=1, batch_size=0)

    def schedule(self, adversary: Adversary) -> Exposure:
        """A client's steps in a game."""
        return self._exposure(self._training(adversary, self._each), self._each)

    @property
    def _each(self) -> int:
        """Records per client in a game through the engine."""
        return self.records_in_sum if self.mixed else self.records

    @staticmethod
    def _exposure(training: Training, records: int) -> Exposure:
        return Exposure(
            sampling_rate=training.expected_batch(records) / records,
            steps=training.steps_for(records),
            rounds=1,
        )

    def _at_once(self, adversary: Adversary, detectors: int) -> int:
        """Federations that are trained together."""
        width = adversary.task(classes=self.classes, detectors=detectors).layout.width
        return max(1, HELD_BYTES // (4 * width * self.clients))

    def _gain(self, adversary: Adversary, records: int) -> float:
        """Gain of the planted output for clients with `records` records."""
        rate = adversary.rate(records, self.classes)
        return gain_for(self._declared(), self.classes, records=records, rate=rate)

    def _play_apart(
        self, c: Challenge, first: int, adversary: Adversary, probing: ActiveMembership
    ) -> Iterator[Played]:
        """Every client plays a game of its own."""
        groups = [c.part(slice(low, low + self.clients)) for low in range(0, len(c), self.clients)]
        gain = self._gain(adversary, c.data.shape[1])
        setups = []
        for i, group in enumerate(groups):
            hook = probing.probe(adversary, group.target, classes=self.classes, gain=gain)
            setups.append((group.data, hook, group.target, first + i * self.clients))
        yield from self._play(setups, adversary, detectors=1)

    def _play_together(
        self, c: Challenge, adversary: Adversary, probing: ActiveMembership, *, mark: bool
    ) -> Iterator[Played]:
        """All clients of a federation play one game."""
        detectors = self.clients if mark else 1
        gain = self._gain(adversary, self.records_in_sum)
        step = self._at_once(adversary, detectors)
        for low in range(0, len(c), step):
            setups = []
            for g in range(low, min(len(c), low + step)):
                target = c.target[g : g + 1]
                hook = probing.probe(
                    adversary,
                    target,
                    classes=self.classes,
                    mark=self.clients if mark else 0,
                    gain=gain,
                )
                data = c.data[g].reshape(self.clients, -1)
                setups.append((data, hook, target, g + (1 << 20) * (1 + mark)))
            yield from self._play(setups, adversary, detectors=detectors)

    def _play(
        self,
        setups: Sequence[tuple[Indices, Hook, Indices, int]],
        adversary: Adversary,
        *,
        detectors: int,
    ) -> Iterator[Played]:
        """Run federations of (data (K, n), probe, targets, address) in one batch.

        A last group with fewer clients runs alone: federations of a batch have equal shapes.
        """

        task = adversary.task(classes=self.classes, detectors=detectors)
        n = setups[0][0].shape[1]
        rate = adversary.rate(n, self.classes)
        for size in sorted({len(data) for data, *_ in setups}, reverse=True):
            alike = [s for s in setups if len(s[0]) == size]
            training = self._training(adversary, n)
            built = [self._federation(task, s, training) for s in alike]
            recorders = [
                MemoryRecorder(
                    layouts=f.layouts(),
                    federation=f.describe(),
                    declared=[declaration_of(p) for p in f.protections],
                )
                for f in built
            ]
            run_many(built, recorders)
            for f, recorder, (data, _, target, _) in zip(built, recorders, alike, strict=True):
                shown = f.clients_data.x.double().numpy().reshape(*data.shape, -1)
                if len(target) == len(data):
                    closed = adversary.answers(shown, target)
                else:  # the closest record of all clients
                    closed = adversary.answers(shown.reshape(1, -1, shown.shape[-1]), target)
                yield Played(
                    view=recorder.trace().seen_by("server"),
                    target=target,
                    names=f.party,
                    closed=closed,
                    rate=rate,
                    records=n,
                    schedule=self._exposure(training, n),
                )

    def _federation(
        self, task: Any, setup: tuple[Indices, Hook, Indices, int], training: Training
    ) -> Federation:
        data, hook, _, address = setup

        def client(rows: Indices) -> tuple[Tensor, Tensor]:
            return torch.from_numpy(self.raw[rows]).float(), torch.from_numpy(self.labels[rows])

        return Federation(
            task=task,
            data=ClientData.join([client(rows) for rows in data]),
            rounds=Rounds(clients=len(data), rounds=1),
            training=training,
            seed=Seed(self.seed.key("games/federation", address)),
            protections=tuple(for_clients(p, len(data)) for p in self.protections),
            probe=hook,
        )
