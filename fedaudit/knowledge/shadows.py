"""Shadow federations: the adversary trains them itself to learn how a class mix shows in updates.

A shadow has the task, rounds, training, protections, graph and organisations of the target (an
observer of the wire knows them all). It starts from the model that the target's clients first
received, and trains on records that no client of the target trained on. It uses nothing of the
target's seed, records or labels.

**The corpus** is the held-out part of the run's data with the records that no client got, or a file
of the adversary's own. It is usually smaller than the target's data, so every shadow draws with
replacement as many records as the target's clients hold together. Within a shadow, a record may
occur at two clients, or twice at one.

**The prior** is how a shadow assigns these records to clients: like the target (matched), or by
Dirichlet shares (mismatched: for an adversary who does not know how places and classes relate).

**Planted candidates** (membership audits): in every shadow a client holds a random half of its
candidates, and records of a random half of the corpus with the class mix of all its candidates, as
many as in the target. `truth.members` of the shadow says which candidates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from fedaudit.arrays import Bools, Indices
from fedaudit.audits.audit import Candidates, columns_for
from fedaudit.data import files, prepare
from fedaudit.data import partition as partitions
from fedaudit.errors import DataError, FedauditError, NotApplicable, NothingToSay
from fedaudit.federation.engine import Federation
from fedaudit.federation.local.trainer import ClientData
from fedaudit.federation.many import run_many
from fedaudit.federation.topology import Topology
from fedaudit.hooks import Hook, declaration_of
from fedaudit.knowledge.records import require_unchanged_data
from fedaudit.protections.dp_sgd import DPSGD
from fedaudit.protections.local_dp.protection import LocalDP
from fedaudit.randomness import Seed
from fedaudit.settings import argument_names
from fedaudit.setup.config import Config
from fedaudit.setup.prepare import Prepared
from fedaudit.trace import WIRETAP, MemoryRecorder, MemoryTruth, Trace, Truth, View
from fedaudit.trace.recorder import MODEL
from fedaudit.workers import JobFailed, current_workers, fan_out

if TYPE_CHECKING:
    from torch import Tensor

    from fedaudit.data.dataset import Dataset
    from fedaudit.tasks.task import Task

Prior = Literal["auto", "matched", "dirichlet"]

AT_ONCE_BYTES = 256 << 20
"""Memory for recorded updates of shadows that are trained together."""
MOST_AT_ONCE = 32
FEWEST_OF_A_CLASS = 5
UNKNOWABLE = ("by_owner",)
"""Partitions that an adversary cannot repeat: the target's own records define the owners."""


@dataclass(frozen=True, kw_only=True)
class Planted:
    """One party's records in a shadow: its candidates `pool`, and the number of its examples, which
    federations treat as public. `inverted`: it trains on 1 - x."""

    pool: Candidates
    size: int
    inverted: bool = False


@dataclass(frozen=True, kw_only=True)
class ShadowFederations:
    """`count` federations, trained during iteration and dropped after use.

    Each pass trains the same federations again, in blocks, so that memory does not grow with
    `count`. `edges` and `organisations` hold one entry per federation. `position` (n,) are the
    organisations by which the prior ties classes to places; rewiring does not change them.
    `planted`: party -> what replaces its records; `online`: half of its candidates among them.
    """

    task: Task
    corpus: Dataset
    records: int
    config: Config
    protections: tuple[Hook, ...]
    clients: tuple[str, ...]
    edges: tuple[tuple[tuple[int, int], ...], ...]
    organisations: tuple[tuple[int, ...] | None, ...]
    position: tuple[int, ...] | None
    partition: Any
    count: int
    vantage: str
    seed: Seed
    topology: str
    prior: str
    coupled: bool
    classes: int
    planted: Mapping[str, Planted] = field(default_factory=dict)
    online: bool = True
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return self.count

    def rewired(
        self,
        *,
        edges: Sequence[Sequence[tuple[int, int]]],
        organisations: Sequence[Sequence[int] | None],
    ) -> ShadowFederations:
        """The same clients with the same records, under other edges or organisations."""
        return replace(
            self,
            edges=tuple(tuple(sorted(e)) for e in edges),
            organisations=tuple(None if o is None else tuple(o) for o in organisations),
        )

    def __iter__(self) -> Iterator[tuple[View, Truth]]:
        for together in self._blocks():
            yield from self._trained(together)

    def each(self, look: Callable[[int, View, Truth], Any]) -> Iterator[Any]:
        """look(number, view, truth) for every shadow, in parallel if the command has `--workers`.

        Blocks are the same for any number of workers, and so are the results.
        """
        workers = current_workers()
        blocks = self._blocks()
        if workers is None:
            for together in blocks:
                yield from _looked_at(self, look, together)
            return
        jobs = {i: (self, look, together) for i, together in enumerate(blocks)}
        found: dict[int, list[Any]] = {}
        with closing(fan_out(_looked_at, jobs, workers)) as outcomes:
            for i, outcome in outcomes:
                if isinstance(outcome, JobFailed):
                    raise FedauditError(
                        "a worker could not train its shadow federations",
                        expected=f"{len(jobs[i][2])} federations from one worker",
                        got=outcome.why,
                        remedy="leave `workers` out: this process then trains all of them",
                    )
                found[i] = outcome
        for i in range(len(blocks)):
            yield from found[i]

    def _blocks(self) -> list[range]:
        """Numbers of the shadows that are trained as one computation."""
        block = self._at_once()
        ends = range(block, self.count + block, block)
        return [range(end - block, min(end, self.count)) for end in ends]

    def _trained(self, numbers: range) -> Iterator[tuple[View, Truth]]:
        made = [self._one(s) for s in numbers]
        federations = [f for f, _ in made]
        declared = [declaration_of(p) for p in self.protections]
        recorders = [
            MemoryRecorder(
                layouts=f.layouts(),
                federation={**f.describe(), "topology": self.topology},
                declared=declared,
                task=f.task.settings,
            )
            for f in federations
        ]
        truths = [truth for _, truth in made]
        run_many(federations, recorders, truths)
        del made, federations
        while recorders:
            # pop: memory is freed as soon as the caller asks for the next one
            yield recorders.pop(0).trace().seen_by(*self.vantage.split("+")), truths.pop(0)

    def _at_once(self) -> int:
        rounds = self.config.federation.rounds
        each = 4 * self.task.layout.width * (len(self.clients) + 2) * rounds
        return int(min(MOST_AT_ONCE, max(1, AT_ONCE_BYTES // each)))

    def _one(self, number: int) -> tuple[Federation, MemoryTruth]:
        """Shadow `number`, and its true labels, which the adversary knows."""

        seed = Seed(self.seed.key("shadow", number))
        sample, origin = self._sample(seed)
        position = None if self.position is None else np.array(self.position)
        parts = self.partition.partition(sample, len(self.clients), seed, position=position)
        clients, groups = self._encoded(sample, origin, parts)
        members = self._plant(clients, groups, seed)
        groups_of = self.organisations[number]
        region = None if groups_of is None else np.array(groups_of)
        federation = Federation(
            task=self.task,
            data=ClientData.join(clients, groups),
            rounds=replace(self.config.federation, clients=len(self.clients)),
            training=self.config.training,
            seed=seed,
            topology=Topology(
                kind=self.topology,
                n=len(self.clients),
                edges=self.edges[number],
                organisations=groups_of,
            ),
            region=region,
            protections=self.protections,
            party=self.clients,
        )
        histograms = parts.class_histograms(sample.y, self.classes)
        facts = {
            "clients": {
                party: {
                    "classes": histograms[c].tolist(),
                    "organisation": None if region is None else int(region[c]),
                }
                for c, party in enumerate(self.clients)
            }
        }
        truth = MemoryTruth(facts)
        truth.members = members
        return federation, truth

    def _plant(
        self, clients: list[tuple[Tensor, Tensor]], groups: list[Tensor] | None, seed: Seed
    ) -> dict[str, Bools]:
        """Give each planted party half of its candidates, and records of the corpus with the class
        mix of its candidates; party -> which candidates."""

        if not self.planted:
            return {}
        rng = seed.generator("shadow/planted")
        x, y, first, length = self._examples()
        half = rng.permutation(len(self.corpus))[: (len(self.corpus) + 1) // 2]
        rows = np.concatenate([np.arange(first[r], first[r] + length[r]) for r in half])
        by_class = {int(c): rows[y[rows].numpy() == c] for c in np.unique(y[rows].numpy())}
        members = {}
        for party, plan in self.planted.items():
            pool, c = plan.pool, self.clients.index(party)
            count = min(len(pool) // 2, plan.size) if self.online else 0
            chosen = rng.permutation(len(pool))[:count]
            wanted = rng.choice(pool.y.numpy(), size=plan.size - count).tolist()
            drawn = torch.tensor(
                [int(rng.choice(by_class.get(k, rows))) for k in wanted], dtype=torch.int64
            )
            own = 1.0 - x[drawn] if plan.inverted else x[drawn]
            at = torch.from_numpy(chosen)
            clients[c] = (torch.cat([pool.x[at], own]), torch.cat([pool.y[at], y[drawn]]))
            if groups is not None:  # every drawn example is a unit of its own
                groups[c] = torch.arange(plan.size)
            members[party] = np.isin(np.arange(len(pool)), chosen)
        return members

    def _sample(self, seed: Seed) -> tuple[Dataset, Indices]:
        """As many records as the target has, and their indices in the corpus.

        If the corpus names persons, whole persons are drawn; one drawn twice becomes two persons.
        """
        rng = seed.generator("shadow/records")
        if self.corpus.person is None:
            rows = np.sort(rng.integers(0, len(self.corpus), size=self.records))
            return self.corpus.take(rows), rows
        unit = prepare.units(self.corpus)
        order, sizes = np.argsort(unit, kind="stable"), np.bincount(unit)
        starts = np.cumsum(sizes) - sizes
        drawn: list[Indices] = []
        names: list[str] = []
        while sum(map(len, drawn)) < self.records:
            u = int(rng.integers(len(sizes)))
            drawn.append(order[starts[u] : starts[u] + sizes[u]])
            names += [f"{len(drawn)}"] * int(sizes[u])
        rows = np.concatenate(drawn)
        return replace(self.corpus.take(rows), person=tuple(names)), rows

    def _encoded(
        self, sample: Dataset, origin: Indices, parts: Any
    ) -> tuple[list[tuple[Tensor, Tensor]], list[Tensor] | None]:
        """Examples of every client, and the unit of privacy of each unless that is the example."""

        x, y, first, length = self._examples()
        units = {p.clip_unit for p in self.protections if p.clip_norm is not None}
        clients, groups = [], []
        for c, rows in enumerate(parts.clients):
            mine = origin[rows]
            ids = np.concatenate([np.arange(first[r], first[r] + length[r]) for r in mine])
            if not len(ids):
                raise DataError(
                    f"shadow client {c} has no examples",
                    expected="at least one example per client",
                    got="0 (its documents are shorter than one window)",
                    remedy="a larger shadow corpus, or fewer clients",
                )
            index = torch.from_numpy(ids)
            clients.append((1.0 - x[index] if parts.inverted[c] else x[index], y[index]))
            if "person" in units and sample.person is not None:
                number = np.unique([sample.person[r] for r in rows], return_inverse=True)[1]
                groups.append(torch.from_numpy(np.repeat(number, length[mine])))
            elif "record" in units and len(ids) != len(rows):
                groups.append(torch.from_numpy(np.repeat(np.arange(len(rows)), length[mine])))
        return clients, groups if len(groups) == len(clients) else None

    def _examples(self) -> tuple[Tensor, Tensor, Indices, Indices]:
        """x and y of the corpus, and for every record its first example and its number of them."""
        if "_encoded_corpus" not in self.__dict__:
            own = self.task.encode(self.corpus)
            order = torch.argsort(own.record, stable=True)
            length = np.bincount(own.record.numpy(), minlength=len(self.corpus)).astype(np.int64)
            found = (own.x[order], own.y[order], np.cumsum(length) - length, length)
            self.__dict__["_encoded_corpus"] = found  # a cache, although the dataclass is frozen
        cached: tuple[Tensor, Tensor, Indices, Indices] = self.__dict__["_encoded_corpus"]
        return cached


def _looked_at(
    shadows: ShadowFederations, look: Callable[[int, View, Truth], Any], numbers: range
) -> list[Any]:
    trained = shadows._trained(numbers)
    return [
        look(number, view, truth) for number, (view, truth) in zip(numbers, trained, strict=True)
    ]


# -- from a run to its shadows ---------------------------------------------------------------------


def of_run(
    target: Config | Prepared,
    trace: Trace,
    seed: Seed,
    *,
    count: int,
    vantage: str,
    prior: Prior = "auto",
    protected: bool = True,
    corpus: str = "held_out",
    data_sha256: str | None = None,
    reserved: Dataset | None = None,
) -> ShadowFederations:
    """The shadows of a recorded run, from its config and trace alone: none of its records.

    `reserved`: held-out records that no shadow draws either.
    """
    made = Prepared.of(target)
    require_unchanged_data(made, data_sha256)
    config, train, test = made.config, made.train, made.test
    assignment, task = made.assignment, made.new_task()  # its weights are set below
    columns = columns_for(task.layout, trace.layout)
    notes = []
    given = np.concatenate(assignment.parts.clients)
    if corpus == "held_out":
        theirs = _unused_records(train, given, test, reserved)
        notes.append(
            f"each shadow draws {len(given):,} records with replacement from {len(theirs):,} "
            "that no client trained on"
        )
    else:
        theirs = _own_file(config, corpus, train)
        notes.append(f"each shadow draws {len(given):,} records with replacement from {corpus}")
    classes = max(len(train.classes), int(train.y.max()) + 1)
    about = trace.manifest.federation
    clients = tuple(str(c) for c in about["clients"])
    largest = int(assignment.parts.sizes.max())
    check_corpus(theirs, classes=classes, largest=largest)
    start_from(task, trace, columns)
    groups = about.get("organisations")
    organisations = None if groups is None else tuple(int(g) for g in groups)
    partition, name, coupled, prior_note = choose_prior(config, prior)
    hooks = [as_declared(h, trace) for h in config.protections.values()] if protected else []
    if not protected and config.protections:
        without = ", ".join(config.protections)
        notes.append(f"MISMATCH by choice: shadows run without {without}, which the target has")
    return ShadowFederations(
        task=task,
        corpus=theirs,
        records=len(given),
        config=config,
        protections=tuple(hooks),
        clients=clients,
        edges=(tuple((int(i), int(j)) for i, j in about.get("edges") or ()),) * count,
        organisations=(organisations,) * count,
        position=organisations,
        partition=partition,
        count=count,
        vantage=vantage,
        seed=seed,
        topology=str(about.get("topology", "star")),
        prior=name,
        coupled=coupled,
        classes=classes,
        notes=(*notes, prior_note),
    )


def _unused_records(
    train: Dataset, given: Indices, test: Dataset, reserved: Dataset | None = None
) -> Dataset:
    """Held-out records and those that no client got, without their owners.

    A held-out record that equals one of the target's (typed twice) or a reserved one is left out.
    """
    rest = np.setdiff1d(np.arange(len(train)), given)
    trained = set(_keys(train.take(given)))
    if reserved is not None:
        trained |= set(_keys(reserved))
        if len(rest):
            free = [key not in trained for key in _keys(train.take(rest))]
            rest = rest[np.array(free, dtype=bool)]
    fresh = [i for i, key in enumerate(_keys(test)) if key not in trained]
    if not fresh:
        raise NotApplicable(
            "all held-out records are also records of a client",
            code="no_held_out_records",
            expected="records that no client trained on",
            got=f"{len(test)} held-out records, all of which a client trained on",
            remedy="hold out other records, or name a file as the audit's corpus",
        )
    test = test.take(fresh)
    person = None
    if test.person is not None and train.person is not None:
        person = (*test.person, *(train.person[i] for i in rest))
    if isinstance(test.x, tuple) or isinstance(train.x, tuple):
        assert isinstance(test.x, tuple)
        assert isinstance(train.x, tuple)
        x: Any = (*test.x, *(train.x[i] for i in rest))
    else:
        x = np.concatenate([test.x, train.x[rest]])
    y = np.concatenate([test.y, train.y[rest]])
    return replace(test, x=x, y=y, person=person, client=None, organisation=None, test=None)


def _keys(data: Dataset) -> list[Any]:
    """A hashable key per record, equal for equal records."""
    if isinstance(data.x, tuple):
        return list(data.x)
    return [row.tobytes() for row in np.ascontiguousarray(data.x).reshape(len(data), -1)]


def _own_file(config: Config, path: str, train: Dataset) -> Dataset:
    """The adversary's own file, read with the column names of the run's file."""
    known = set(argument_names(files.read))
    asked = {k: v for k, v in config.data.items() if k in known}
    found = files.read(path, **asked)
    if found.kind != train.kind or len(found.classes) != len(train.classes):
        raise DataError(
            f"{path} does not fit the run's data",
            expected=f"{train.kind} with {len(train.classes)} classes",
            got=f"{found.kind} with {len(found.classes)} classes",
            remedy="a file with the columns and classes of the run's data",
        )
    if config.data.get("standardise", prepare.is_table(found)):
        found = prepare.standardise(found, found)[0]
    return replace(found, client=None, organisation=None, test=None)


def check_corpus(corpus: Dataset, *, classes: int, largest: int) -> None:
    """Refuse a corpus that is too small to represent the target's data."""
    need = max(classes * FEWEST_OF_A_CLASS, largest)
    counts = np.bincount(corpus.y, minlength=classes)
    rarest = int(counts.argmin())
    if len(corpus) < need or counts[rarest] < FEWEST_OF_A_CLASS:
        raise NothingToSay(
            "the shadow corpus is too small",
            code="too_few_records",
            expected=f"{need} records or more, at least {FEWEST_OF_A_CLASS} of every class (the "
            f"target's largest client holds {largest})",
            got=f"{len(corpus)} records, {counts[rarest]} of class {rarest}",
            remedy="hold out more with data.test_fraction, or name a file as the audit's corpus",
        )


def choose_prior(config: Config, prior: Prior) -> tuple[Any, str, bool, str]:
    """The partition of the shadows, its name, whether it ties classes to places, and a note."""
    given = dict(config.partition)
    kind = str(given.pop("kind"))
    if prior == "matched" and kind in UNKNOWABLE:
        raise NotApplicable(
            "an adversary cannot repeat how these clients got their records",
            code="no_prior",
            expected='a random partition, which prior = "matched" can repeat',
            got=f"partition.kind = {kind!r}",
            remedy='prior = "dirichlet"',
        )
    if prior == "dirichlet" or kind in UNKNOWABLE:
        chosen: Any = partitions.Dirichlet()
        note = f"MISMATCHED prior: shadows use Dirichlet shares, the target {kind!r}"
        return chosen, "dirichlet", False, note
    chosen = partitions.from_settings(kind, given)
    coupled = kind == "by_label" or (kind == "coupled" and chosen.eta > 0)
    shown = [f"{k} = {v}" for k, v in given.items()]
    note = f"matched prior: shadows are partitioned as the target ({', '.join([kind, *shown])})"
    return chosen, f"matched ({kind})", coupled, note


def as_declared(hook: Hook, trace: Trace) -> Hook:
    """A protection with the noise that the trace declares, in the order of its clients.

    This matters if the config gives a target epsilon, noise per client name, or bounds by column.
    """
    if isinstance(hook, LocalDP):
        named = (d for d in trace.manifest.declared if d.get("name") == hook.name)
        return hook.as_declared(next(named, {}))
    if not isinstance(hook, DPSGD):
        return hook
    if hook.epsilon is None and not isinstance(hook.noise_multiplier, tuple):
        return hook
    declared = next(d for d in trace.manifest.declared if d.get("name") == hook.name)
    z = declared["noise_multiplier"]
    many = tuple(float(v) for v in z) if isinstance(z, list | tuple) else float(z)
    return replace(hook, noise_multiplier=many, epsilon=None)


def start_from(task: Task, trace: Trace, columns: Indices | None) -> None:
    """Set the task's initial weights to the model that the target's clients first received."""

    for i, m in enumerate(trace.messages(1)):
        if m.kind == "model" and m.step == 0 and MODEL in m.parts:
            row = np.array(trace.seen_by(WIRETAP).payload(1, i), dtype=np.float32)
            break
    else:
        return  # a gossip trace may contain no model: the task's own initial weights serve as well
    flat = torch.from_numpy(row if columns is None else row[columns])
    own = {**dict(task.module.named_parameters()), **dict(task.module.named_buffers())}
    with torch.no_grad():
        for name, values in task.named(flat).items():
            own[name].copy_(values)
