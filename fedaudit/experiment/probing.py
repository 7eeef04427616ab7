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
from fedaudit.audits.active_membership.channel import (
    LARGEST_ALPHABET,
    MOST_BITS,
    OPEN,
    Channel,
    Codebook,
)
from fedaudit.audits.active_membership.games import Challenge, Universe
from fedaudit.audits.active_membership.probe import gain_for
from fedaudit.data import prepare
from fedaudit.data.text import IGNORE
from fedaudit.errors import ConfigError, DataError, NotApplicable
from fedaudit.experiment.catalogue import PROTECTIONS, find
from fedaudit.hooks import Hook
from fedaudit.protections.local_dp import GRR, Discrete
from fedaudit.protections.local_dp.encoders import FloatBits, Interval, OneHot, Patches, Quantiser
from fedaudit.protections.local_dp.protection import CATEGORICAL, LocalDP
from fedaudit.protections.secure_aggregation import SecureAggregation
from fedaudit.randomness import Seed

if TYPE_CHECKING:
    from torch import Tensor

    from fedaudit.audits.active_membership.adversary import Adversary
    from fedaudit.experiment.config import Config
    from fedaudit.experiment.knowledge import Records
    from fedaudit.federation.engine import Federation
    from fedaudit.tasks.task import Examples, Task
    from fedaudit.trace import Trace

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

HELD_BYTES = 1 << 26
"""Of planted models that are trained at once; a few copies of them exist."""
MOST_NUMBERS = 1 << 31
"""Parameters of all planted models together: a wide model is played fewer times."""
LEAST_PLAYED = 20
MOST_MARKED = 200
"""Games that ask who holds a record: each takes a detector for every client."""


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
        if encoder.bits > MOST_BITS:
            return None  # played in floats
        ones = np.stack([mechanism.one_from_zero, mechanism.one_from_one])
        if local.decoder == "likelihood":
            # bits that flip more often than not are turned back
            turned = ones[1] < ones[0]
            ones[:, turned] = 1.0 - ones[:, turned]
        return Codebook(
            step=1.0 / encoder.scale, encode=lambda x: encoder.encode(x).values, ones=ones
        )
    law = _law(mechanism, encoder.alphabet, local.decoder)
    if law is None:
        return None
    return Codebook(
        step=(encoder.high - encoder.low) / (encoder.alphabet - 1),
        origin=encoder.low,
        encode=lambda x: encoder.encode(x).values,
        **law,
    )


def _law(mechanism: Any, alphabet: int, decoder: Any) -> dict[str, Any] | None:
    """The law of the code that is read back, as a `Codebook` takes it; None where it has no closed
    form (a Bloom filter) or is not written out: games are then played with the mechanism itself."""
    if getattr(mechanism, "filter_bits", None) is not None:
        return None
    discrete: Discrete = mechanism
    if alphabet <= LARGEST_ALPHABET:
        return {"table": discrete.decoded_transition(decoder=decoder)}
    if isinstance(mechanism, GRR):
        return {"symmetric": (alphabet, mechanism.truth)}
    # unary reports, read by the likeliest value: errors are uniform
    return {"symmetric": (alphabet, mechanism.hit_probability)} if decoder == "likelihood" else None


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
    words: int
    given: patterns.Embedding | None
    records: int
    classes: int
    parties: Mapping[str, Indices]
    protections: tuple[Hook, ...]
    seed: Seed
    remarks: tuple[str, ...] = ()
    mixed: bool = field(init=False)
    noisy: bool = field(init=False)
    step_noise: float = field(init=False)
    upload_noise: float = field(init=False)
    dealt: Dealt = field(init=False)

    def __post_init__(self) -> None:
        self.mixed = any("sender" in p.covers for p in self.protections)
        noise = {d["name"]: d.get("noise_multiplier", 0.0) for d in self._declared()}
        self.step_noise = float(np.min(noise.get("dp_sgd", 0.0)))
        self.upload_noise = float(np.min(noise.get("update_noise", 0.0)))
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
        whose = min(self.played, MOST_MARKED) if self.asks_whose else 0
        marked = games.challenge(size, self.records_in_sum * self.clients, whose, rng)
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
    def asks_whose(self) -> bool:
        """Whether there is a client to be told apart from the others."""
        return self.mixed and self.audit.adversary == "fc"

    @cached_property
    def played(self) -> int:
        """Games through the engine: as asked for, fewer where planted models are wide."""
        r = self.universe.features
        d = self.audit.dimension if self.given is None else self.given.dimension
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

    def _gain(self, adversary: Adversary, records: int) -> float:
        """Of the planted output, for clients with so many records."""
        rate = adversary.rate(records, self.classes)
        return gain_for(self._declared(), self.classes, records=records, rate=rate)

    def _alone(
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

    def _together(
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
    audit: ActiveMembership, config: Config | None, trace: Trace, *, words: int = 0
) -> tuple[LocalDP | None, tuple[Hook, ...], list[str]]:
    """The local mechanism of the games, all protections they are played behind, and remarks.

    Records that are tokens are randomised token by token: their alphabet is all `words`.
    """
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
        own = audit.local_dp
        if words and own.get("mechanism", "grr") in CATEGORICAL:
            own = {"alphabet": words, "low": 0.0, "high": words - 1.0, **own}
        local = settings.check(LocalDP, own, "audits.active_membership.local_dp")
        if words and (
            (local.alphabet, local.low, local.high) != (words, 0.0, words - 1.0)
            or local.decoder == "unbiased"
        ):
            raise ConfigError(
                "audits.active_membership.local_dp does not fit tokens",
                expected="grr, rappor or dbitflip on the vocabulary, read back as a token",
                got=f"{local.mechanism}, alphabet {local.alphabet}, decoder {local.decoder}",
                remedy="leave out alphabet, low, high and decoder",
            )
    if local is None:
        return None, tuple(ready), remarks
    local = replace(local)  # what it learns of its data belongs to the run, not to games
    return local, (local, *ready), remarks


@dataclass(frozen=True)
class Dealing:
    """Records of all clients and of nobody as rows of numbers: `pool` (m, r), `label` (m,) and
    `owner` (m,), in the order given; `shape` of one; `words` of the vocabulary, 0 for features."""

    pool: Floats
    label: Indices
    owner: Indices
    shape: tuple[int, ...]
    words: int
    remarks: list[str]

    @classmethod
    def of(cls, task: Task, parts: Sequence[Examples]) -> Dealing:
        """From examples of a task: features and images, or windows of tokens."""
        y = [e.y.numpy() for e in parts]
        first, words, remarks = parts[0].x, 0, []
        if first.is_floating_point():
            x = [e.x.flatten(1).double().numpy() for e in parts]
            shape = tuple(first.shape[1:])
        elif vocabulary := getattr(task, "vocabulary", None):
            # what a language model reads of a window; the last token is only predicted
            read = [e.x[:, :-1].numpy() for e in parts]
            full = [(x != IGNORE).all(axis=1) for x in read]
            x = [r[f].astype(np.float64) for r, f in zip(read, full, strict=True)]
            y = [of[f] for of, f in zip(y, full, strict=True)]
            shape, words = (first.shape[1] - 1,), len(vocabulary)
            remarks.append(f"a record is a full window of {shape[0]} of {words:,} tokens")
        else:
            raise NotApplicable(
                "games are played with records of features, or of tokens",
                expected="features or images (floating-point numbers), or a language model",
                got=f"examples of {first.dtype}",
                remedy="embed them first, and audit the embeddings as data of your own",
            )
        owner = np.concatenate([np.full(len(p), i) for i, p in enumerate(x)])
        return cls(np.concatenate(x), np.concatenate(y), owner, shape, words, remarks)


def _embedding(
    audit: ActiveMembership, task: Task, shape: tuple[int, ...], words: int
) -> patterns.Embedding | None:
    """The embedding that attention is to see, where it is not drawn at random."""
    if audit.adversary != "attention" or audit.embedding not in ("one_hot", "model"):
        return None
    if audit.embedding == "one_hot" and words:
        # one column more than tokens, which none of them uses
        size = shape[0] * words * (words + 1)
        if size > patterns.LARGEST_TABLE:
            raise NotApplicable(
                "one-hot tokens are too wide",
                expected=f"at most {patterns.LARGEST_TABLE:,} numbers in all places",
                got=f"{shape[0]} places x {words:,} tokens x {words + 1:,} dimensions",
                remedy="a smaller task.vocabulary_size, or leave embedding out",
            )
        rows = OneHot(vocabulary=words + 1).encode(np.arange(words)).astype(np.float64)
        return patterns.looked_up(np.broadcast_to(rows, (shape[0], *rows.shape)))
    if audit.embedding == "model":
        module = task.module
        weights = {n: p.detach().double().numpy() for n, p in module.named_parameters()}
        position = weights.get("position")
        if words and position is not None and "tokens.weight" in weights:
            return patterns.looked_up(weights["tokens.weight"][None] + position[:, None])
        if position is not None and len(shape) == 3 and "embed.weight" in weights:
            size = int(getattr(module, "patch", 0))
            numbers = np.arange(int(np.prod(shape))).reshape(1, *shape)
            cut = Patches(size=size).encode(numbers)[0]
            shift = position + weights["embed.bias"]
            return patterns.Embedding(cut, weights["embed.weight"].T, shift)
    raise NotApplicable(
        f'audits.active_membership.embedding = "{audit.embedding}" has nothing to take',
        expected='tokens for "one_hot"; task.kind = "vit" or "gpt" for "model"',
        got=f"a {task.settings.get('kind', 'task')} on {'tokens' if words else 'features'}",
        remedy="leave embedding out",
    )


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
    dealt = Dealing.of(task, [*encoded.values(), task.encode(records.others)])
    pool, label, owner = dealt.pool, dealt.label, dealt.owner
    rng = seed.generator("games/universe")
    if len(pool) > audit.universe:
        kept = np.sort(rng.permutation(len(pool))[: audit.universe])
        pool, label, owner = pool[kept], label[kept], owner[kept]
    local, protections, remarks = protections_of(audit, config, trace, words=dealt.words)
    remarks += dealt.remarks
    plan = {} if config is None else config.data
    standardised = plan.get("standardise", prepare.is_table(records.others))
    if standardised and audit.local_dp is not None:
        remarks.append(
            "columns are standardised by all clients' records before the audit's own mechanism "
            "sees them: its budget does not count that"
        )
    try:
        universe = Universe.of(pool, channel_of(local, pool.shape[1]))
    except DataError as error:
        if not standardised:
            raise
        raise error.advising(
            "the columns of this run are standardised, which data.standardise = false switches off"
        ) from None
    shape = dealt.shape
    given = _embedding(audit, task, shape, dealt.words)
    if universe.merged:
        remarks.append(f"{universe.merged} records equal another after encoding, and count once")
    if audit.adversary == "attention":
        if given is not None:
            cut, placed = given.cut, given.placed
        else:
            cut = patterns.cut_record(shape, 1 if dealt.words else audit.patch)
            placed = bool(dealt.words) or audit.embedding == "linear"
        free = own_patterns(universe.values[:, cut], placed=placed)
        rows = np.array([i for i, own in enumerate(free) if own], dtype=np.int64)
        if len(rows) < len(universe):
            what = "token" if dealt.words else "patch"
            remarks.append(
                f"{len(universe) - len(rows)} records have no {what} of their own, and take no part"
            )
        if len(rows) < 2:
            raise NotApplicable(
                "too few records can be asked about",
                expected=f"records with a {what} that no other has",
                got=f"{len(rows)} of {len(universe)}",
                remedy="a larger task.vocabulary_size, or leave embedding out"
                if dealt.words
                else "give more records, or choose larger patches",
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
        words=dealt.words,
        given=given,
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
