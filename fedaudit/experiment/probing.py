"""Security games with the clients of a run: the challenger's side of active membership.

Every game is played anew: a client (or a whole federation, where uploads arrive mixed) receives a
planted model through the engine, takes one full-batch step on records that were dealt for this
game, and its upload passes the run's own protections. Data and coins are drawn here and stay here:
the audit sees what the server sees, the truth is told the coins.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fedaudit import settings
from fedaudit.audits.active_membership import games, patterns
from fedaudit.audits.active_membership.adversary import own_patterns
from fedaudit.audits.active_membership.audit import ActiveMembership, Played
from fedaudit.audits.active_membership.channel import OPEN, Channel, Codebook
from fedaudit.audits.active_membership.games import Challenge, Universe
from fedaudit.audits.active_membership.probe import gain_for
from fedaudit.errors import ConfigError, NotApplicable
from fedaudit.experiment.catalogue import PROTECTIONS, find
from fedaudit.hooks import Hook
from fedaudit.protections.local_dp import Discrete
from fedaudit.protections.local_dp.encoders import FloatBits, Interval, Quantiser
from fedaudit.protections.local_dp.protection import LocalDP
from fedaudit.protections.secure_aggregation import SecureAggregation
from fedaudit.randomness import Seed

if TYPE_CHECKING:
    from torch import Tensor

    from fedaudit.audits.active_membership.adversary import Adversary
    from fedaudit.experiment.config import Config
    from fedaudit.experiment.knowledge import Records
    from fedaudit.federation.engine import Federation
    from fedaudit.trace import Trace

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

HELD_BYTES = 1 << 26
"""Of planted models that are trained at once; a few copies of them exist."""
MOST_NUMBERS = 1 << 31
"""Parameters of all planted models together: a wide model is played fewer times."""
LEAST_PLAYED = 20


# -- the mechanism as the server knows it ---------------------------------------------------------


def channel_of(local: LocalDP | None, features: int) -> Channel:
    """A local mechanism as the audit takes it: a function of records, and the law of a feature."""
    if local is None:
        return OPEN
    encoder, mechanism = local.encoder(), local.of(features)

    def perturb(x: Floats, rng: np.random.Generator) -> Floats:
        return local.randomise(x, rng)[0]

    def clean(x: Floats) -> Floats:
        return np.asarray(encoder.decode(encoder.encode(x).values), dtype=np.float64)

    return Channel(
        name=local.mechanism,
        perturb=perturb,
        clean=clean,
        codes=_codebook(local, mechanism, encoder),
        claimed_epsilon=float(mechanism.claimed_epsilon),
        exact_epsilon=float(mechanism.worst_case_epsilon()),
        delta=float(mechanism.delta),
    )


def _codebook(
    local: LocalDP, mechanism: Any, encoder: FloatBits | Quantiser | Interval
) -> Codebook | None:
    """The law of what is trained on, where a feature is read back as one of its codes."""
    if isinstance(encoder, Interval) or local.decoder == "unbiased":
        return None
    if isinstance(encoder, FloatBits):
        ones = np.stack([mechanism.one_from_zero, mechanism.one_from_one])
        if local.decoder == "likelihood":
            # bits that flip more often than not are turned back
            turned = ones[1] < ones[0]
            ones[:, turned] = 1.0 - ones[:, turned]
        return Codebook(
            step=1.0 / encoder.scale, encode=lambda x: encoder.encode(x).values, ones=ones
        )
    discrete: Discrete = mechanism
    return Codebook(
        step=(encoder.high - encoder.low) / (encoder.alphabet - 1),
        origin=encoder.low,
        encode=lambda x: encoder.encode(x).values,
        table=discrete.decoded_transition(decoder=local.decoder),
    )


# -- the table ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Dealt:
    """Challenges with their bits: what only the truth is told."""

    figure: Challenge
    own: Mapping[str, Challenge]
    recorded: Challenge
    marked: Challenge
    holder: Indices  # (M,) which client holds the target of a marked game, -1: none


@dataclass
class Games:
    """A `Table` with the records, the clients and the protections of a run.

    `raw` (N, r) and `labels` (N,) of the universe's records, before any protection; `parties` ->
    numbers of their records; `protections` of a game, the local mechanism first.
    """

    audit: ActiveMembership
    universe: Universe
    raw: Floats
    labels: Indices
    shape: tuple[int, ...]
    records: int
    classes: int
    parties: Mapping[str, Indices]
    protections: tuple[Hook, ...]
    seed: Seed
    remarks: tuple[str, ...] = ()
    mixed: bool = field(init=False)
    noisy: bool = field(init=False)
    step_noise: float = field(init=False)
    dealt: Dealt = field(init=False)

    def __post_init__(self) -> None:
        self.mixed = any("sender" in p.covers for p in self.protections)
        noise = {d["name"]: d.get("noise_multiplier", 0.0) for d in self._declared()}
        self.step_noise = float(np.min(noise.get("dp_sgd", 0.0)))
        self.noisy = any(np.max(noise.get(name, 0.0)) > 0 for name in ("dp_sgd", "update_noise"))
        self.dealt = self._deal()

    @property
    def notes(self) -> tuple[str, ...]:
        if self.played < self.audit.recorded:
            few = f"{self.played} games through the engine: the planted model is wide"
            return (*self.remarks, few)
        return self.remarks

    def _declared(self) -> list[dict[str, Any]]:
        return [p.declare() for p in self.protections]

    # -- dealing -----------------------------------------------------------------------------

    def _deal(self) -> Dealt:
        """All data and coins, before the adversary does anything."""
        a, size = self.audit, len(self.universe)
        rng = self.seed.generator("games/deal")
        figure = (
            games.trials(size, self.records, a.trials, a.games, rng)
            if a.trials > 1
            else games.challenge(size, self.records, a.games, rng)
        )
        own = {
            party: games.on_client(size, mine, a.client_games, rng)
            for party, mine in self.parties.items()
            if a.client_games and 2 <= len(mine) < size
        }
        recorded = games.challenge(size, self.together, self.played, rng)
        marked = games.challenge(
            size, self.records_in_sum * self.clients, self.played if self.asks_whose else 0, rng
        )
        at = (marked.data == marked.target[:, None]).argmax(axis=1) // self.records_in_sum
        return Dealt(figure, own, recorded, marked, np.where(marked.member, at, -1))

    @property
    def clients(self) -> int:
        return max(2, len(self.parties))

    @property
    def records_in_sum(self) -> int:
        """Records of each client where all clients of a federation play one game."""
        return max(1, min(self.records, (len(self.universe) - 1) // self.clients))

    @property
    def together(self) -> int:
        """Records behind one answer through the engine."""
        return self.records_in_sum * self.clients if self.mixed else self.records

    @property
    def gain(self) -> float:
        return gain_for(self._declared(), self.classes)

    @property
    def asks_whose(self) -> bool:
        """Whether there is a client to be told apart from the others."""
        return self.mixed and self.audit.adversary == "fc"

    @cached_property
    def played(self) -> int:
        """Games through the engine: as asked for, fewer where planted models are wide."""
        r, d = self.universe.features, self.audit.dimension
        width = 2 * r * r if self.audit.adversary == "fc" else 20 * d * d
        each = width * (self.clients if self.mixed else 1)
        return min(self.audit.recorded, max(LEAST_PLAYED, MOST_NUMBERS // each))

    @property
    def members(self) -> dict[str, Mask]:
        """The coins, for the truth."""
        d = self.dealt
        return {
            "figure": d.figure.member,
            **{f"own/{party}": c.member for party, c in d.own.items()},
            "recorded": d.recorded.member,
            "marked": d.holder[:, None] == np.arange(self.clients),
        }

    # -- closed form -------------------------------------------------------------------------

    def figure(self, adversary: Adversary) -> tuple[Floats, Indices]:
        played = self.dealt.figure
        return adversary.scores(played, self.seed.generator("games/figure")), played.trial

    def own(self, adversary: Adversary) -> dict[str, Floats]:
        return {
            party: adversary.scores(c, self.seed.generator("games/own", i))
            for i, (party, c) in enumerate(self.dealt.own.items())
        }

    # -- through the engine ------------------------------------------------------------------

    def recorded(self, adversary: Adversary, probing: ActiveMembership) -> Iterator[Played]:
        c = self.dealt.recorded
        if self.mixed:
            yield from self._together(c, adversary, probing, mark=False)
            return
        step = self.clients * self._at_once(adversary, 1)
        for low in range(0, len(c), step):
            yield from self._alone(c.part(slice(low, low + step)), low, adversary, probing)

    def marked(self, adversary: Adversary, probing: ActiveMembership) -> Iterator[Played]:
        if self.asks_whose:
            yield from self._together(self.dealt.marked, adversary, probing, mark=True)

    def _at_once(self, adversary: Adversary, detectors: int) -> int:
        """Federations that are trained together."""
        width = adversary.task(classes=self.classes, detectors=detectors).layout.width
        return max(1, HELD_BYTES // (4 * width * self.clients))

    def _alone(
        self, c: Challenge, first: int, adversary: Adversary, probing: ActiveMembership
    ) -> Iterator[Played]:
        """Every client plays a game of its own."""
        groups = [c.part(slice(low, low + self.clients)) for low in range(0, len(c), self.clients)]
        setups = []
        for i, group in enumerate(groups):
            hook = probing.probe(adversary, group.target, classes=self.classes, gain=self.gain)
            setups.append((group.data, hook, group.target, first + i * self.clients))
        yield from self._play(setups, adversary, detectors=1)

    def _together(
        self, c: Challenge, adversary: Adversary, probing: ActiveMembership, *, mark: bool
    ) -> Iterator[Played]:
        """All clients of a federation play one game."""
        detectors = self.clients if mark else 1
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
                    gain=self.gain,
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
        """Run federations of (data (K, n), probe, targets, address) in step with each other.

        A last group of fewer clients runs by itself: federations of one batch are alike.
        """
        from fedaudit.federation.many import run_many
        from fedaudit.trace import MemoryRecorder

        task = adversary.task(classes=self.classes, detectors=detectors)
        n = setups[0][0].shape[1]
        rate = adversary.rate(n, self.classes)
        for size in sorted({len(data) for data, *_ in setups}, reverse=True):
            alike = [s for s in setups if len(s[0]) == size]
            built = [self._federation(task, s, rate) for s in alike]
            recorders = [
                MemoryRecorder(
                    layouts=f.layouts(),
                    federation=f.describe(),
                    declared=[p.declare() for p in f.protections],
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
                )

    def _federation(
        self, task: Any, setup: tuple[Indices, Hook, Indices, int], rate: float
    ) -> Federation:
        import torch

        from fedaudit.federation.engine import Federation
        from fedaudit.federation.local.schedule import Training
        from fedaudit.federation.local.trainer import ClientData
        from fedaudit.federation.rounds import Rounds

        data, hook, _, address = setup

        def client(rows: Indices) -> tuple[Tensor, Tensor]:
            return torch.from_numpy(self.raw[rows]).float(), torch.from_numpy(self.labels[rows])

        return Federation(
            task=task,
            data=ClientData.join([client(rows) for rows in data]),
            rounds=Rounds(clients=len(data), rounds=1),
            training=Training(learning_rate=rate, steps=1, batch_size=0),
            seed=Seed(self.seed.key("games/federation", address)),
            protections=tuple(for_clients(p, len(data)) for p in self.protections),
            probe=hook,
        )


def for_clients(hook: Hook, count: int) -> Hook:
    """A protection with settings for every client, cut or repeated to `count` of them."""
    changed = {}
    for f in fields(hook):  # type: ignore[arg-type]
        value = getattr(hook, f.name)
        if f.init and isinstance(value, tuple) and len(value) > 1:
            changed[f.name] = tuple(value[i % len(value)] for i in range(count))
    return replace(hook, **changed)  # type: ignore[type-var]


# -- from a run to a table ------------------------------------------------------------------------


def protections_of(
    audit: ActiveMembership, config: Config | None, trace: Trace
) -> tuple[LocalDP | None, tuple[Hook, ...], list[str]]:
    """The local mechanism of the games, all protections they are played behind, and remarks."""
    remarks = []
    hooks = () if config is None else tuple(config.protections.values())
    declared = {d.get("name"): d for d in trace.manifest.declared}
    ready = []
    local: LocalDP | None = None
    for hook in hooks:
        if isinstance(hook, LocalDP):
            local = hook
        elif getattr(hook, "epsilon", None) is not None:
            # a target epsilon was turned into noise for the whole run: take that noise
            z = declared.get(hook.name, {}).get("noise_multiplier", 1.0)
            z = tuple(z) if isinstance(z, list) else z
            ready.append(replace(hook, noise_multiplier=z, epsilon=None))
        else:
            ready.append(hook)
    for d in trace.manifest.declared:
        if "applied" in d and d.get("name") in PROTECTIONS:
            # what if it had stood before the server: games are played behind it too
            cls = find(PROTECTIONS, "protection", str(d["name"]))
            ready.append(cls(**{f.name: d[f.name] for f in fields(cls) if f.init and f.name in d}))
            remarks.append(f"games are played behind {d['name']}, as if it had been there")
    for i, hook in enumerate(ready):
        if isinstance(hook, SecureAggregation):
            ready[i] = replace(hook, masks="skipped", plan="none", dropout=0.0)
            remarks.append("in games secure aggregation gives its sums without drawing masks")
        if getattr(hook, "unit", None) == "person":
            ready[i] = replace(hook, unit="record")
            remarks.append(f"in games {hook.name} clips records: a target is one record")
    if audit.local_dp is not None:
        if local is not None:
            remarks.append("games use the audit's own local mechanism in place of the run's")
        local = settings.check(LocalDP, audit.local_dp, "audits.active_membership.local_dp")
    if local is None:
        return None, tuple(ready), remarks
    local = replace(local)  # what it learns of its data belongs to the run, not to games
    return local, (local, *ready), remarks


def table(
    audit: ActiveMembership, records: Records, trace: Trace, config: Config | None, seed: Seed
) -> Games:
    """Everything that is needed to play games with the clients of a run."""
    if config is not None and config.federation.aggregation == "gossip":
        raise NotApplicable(
            "nobody sends models to all clients",
            expected="a server that can plant weights",
            got='aggregation = "gossip"',
            remedy='audit a federation with a server: aggregation = "fedavg"',
        )
    task = records.task
    encoded = {party: task.encode(data) for party, data in records.own.items()}
    others = task.encode(records.others)
    first = next(iter(encoded.values())).x if encoded else others.x
    if not first.is_floating_point():
        raise NotApplicable(
            "games are played with records of features",
            expected="features or images (floating-point numbers)",
            got=f"examples of {first.dtype}",
            remedy="embed texts first, and audit the embeddings as data of your own",
        )
    parts = [e.x.flatten(1).double().numpy() for e in (*encoded.values(), others)]
    pool = np.concatenate(parts)
    label = np.concatenate([e.y.numpy() for e in (*encoded.values(), others)])
    owner = np.concatenate([np.full(len(p), i) for i, p in enumerate(parts)])
    rng = seed.generator("games/universe")
    if len(pool) > audit.universe:
        kept = np.sort(rng.permutation(len(pool))[: audit.universe])
        pool, label, owner = pool[kept], label[kept], owner[kept]
    local, protections, remarks = protections_of(audit, config, trace)
    universe = Universe.of(pool, channel_of(local, pool.shape[1]))
    shape = tuple(first.shape[1:])
    if universe.merged:
        remarks.append(f"{universe.merged} records equal another after encoding, and count once")
    if audit.adversary == "attention":
        cut = patterns.cut_record(shape, audit.patch)
        free = own_patterns(universe.values[:, cut], placed=audit.embedding == "linear")
        rows = np.array([i for i, own in enumerate(free) if own], dtype=np.int64)
        if len(rows) < len(universe):
            remarks.append(
                f"{len(universe) - len(rows)} records have no patch of their own, and take no part"
            )
        universe = universe.restricted(rows)
    # numbers of the parties' records: those that are equal to others share a number
    first_of, number = _numbers(universe, pool)
    parties = {
        party: np.unique(number[(owner == i) & (number >= 0)]) for i, party in enumerate(encoded)
    }
    sizes = [len(rows) for rows in parties.values()]
    n = audit.records or max(1, int(np.median(sizes)) if sizes else 1)
    if not 1 <= n < len(universe):
        raise ConfigError(
            "audits.active_membership.records does not fit the universe",
            expected=f"1 to {len(universe) - 1} records per client",
            got=str(n),
            remedy="ask for fewer records, or a larger universe",
        )
    return Games(
        audit=audit,
        universe=universe,
        raw=pool[first_of],
        labels=label[first_of],
        shape=shape,
        records=n,
        classes=max(2, int(label.max()) + 1),
        parties=parties,
        protections=protections,
        seed=seed,
        remarks=tuple(remarks),
    )


def _numbers(universe: Universe, pool: Floats) -> tuple[Indices, Indices]:
    """The first record (N,) of `pool` that has each number of the universe, and the number (m,) of
    every record of `pool`, -1 for those that are not in it."""
    clean = np.ascontiguousarray(universe.channel.clean(pool) + 0.0)
    known = {row.tobytes(): i for i, row in enumerate(universe.values)}
    number = np.array([known.get(row.tobytes(), -1) for row in clean])
    first = np.empty(len(universe), dtype=np.int64)
    inside = np.flatnonzero(number >= 0)[::-1]
    first[number[inside]] = inside  # the last assignment is the first record
    return first, number
