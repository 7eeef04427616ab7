"""Build a federation from a checked config, with the facts that only the truth knows.

`Prepared` holds data, assignment, task and marks of a config. A run makes one and hands it to
forecast, training and audits, so that each part is made once.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from fedaudit.data import builtin, files, prepare
from fedaudit.data import partition as partitions
from fedaudit.data.shortage import shortage
from fedaudit.errors import ConfigError, DataError, count_of
from fedaudit.federation import topology as topologies
from fedaudit.federation.engine import Federation
from fedaudit.federation.local.trainer import ClientData
from fedaudit.matching import MOST, listed, match_clients
from fedaudit.protections.dp_sgd import DPSGD
from fedaudit.protections.local_dp.protection import LocalDP
from fedaudit.randomness import Seed
from fedaudit.settings import check_arguments
from fedaudit.setup import seeds
from fedaudit.setup.canaries import plant_in_production, planted_settings, production_audit
from fedaudit.setup.config import Config
from fedaudit.setup.identity import digest, file_stamps
from fedaudit.setup.marks import PlantedMarks, documents_of, plant
from fedaudit.setup.toml import toml_value

if TYPE_CHECKING:
    from torch import Tensor

    from fedaudit.data.dataset import Dataset
    from fedaudit.data.partition import Partition
    from fedaudit.federation.topology import Topology
    from fedaudit.hooks import Hook
    from fedaudit.layout import Layout
    from fedaudit.tasks.task import Examples, Task


CLASSIFIERS = ("mlp", "cnn", "vit", "module", "sklearn")
OWNED = "by_owner"
"""The partition whose clients are named by the data."""


def load_data(config: Config, seed: Seed) -> tuple[Dataset, Dataset]:
    """Training and held-out records of a config."""
    given = dict(config.data)
    fraction = given.pop("test_fraction", None)
    standardise = given.pop("standardise", None)
    if "path" in given:
        path = given.pop("path")
        dataset = files.read(path, **check_arguments(files.read, given, "data"))
    else:
        dataset = builtin.load(given.pop("name"), seed=seed, **given)
    if fraction is None and dataset.test is None:
        fraction = 0.2
    train, test = prepare.split(dataset, test_fraction=fraction, seed=seed)
    if standardise or (standardise is None and prepare.is_table(dataset)):
        train, test = prepare.standardise(train, test)
    return train, test


def client_count(config: Config, train: Dataset) -> int:
    """The number of clients: from the config, else one per owner, else twenty."""
    if config.federation.clients is not None:
        return int(config.federation.clients)
    if config.partition["kind"] == OWNED and train.client is not None:
        return len(set(train.client))
    return 20


def _refuse_spread_persons(train: Dataset, parts: Partition) -> None:
    """Refuse persons with records at several clients: each client accounts for its own persons."""
    if train.person is None:
        return
    where: dict[str, set[int]] = {}
    for c, rows in enumerate(parts.clients):
        for i in rows:
            where.setdefault(train.person[i], set()).add(c)
    spread = sum(len(found) > 1 for found in where.values())
    if spread:
        raise DataError(
            "persons have records with several clients",
            expected='all records of a person with one client, since unit = "person"',
            got=f"{spread} of {len(where)} persons with two clients or more",
            remedy='use unit = "record", or a partition other than by_owner',
        )


def promises(federation: Federation) -> dict[str, dict[str, Any]]:
    """Protection -> client -> its guarantee over the whole run."""
    exposures = federation.exposures()
    out: dict[str, dict[str, Any]] = {}
    for hook in federation.protections:
        for c, party in enumerate(federation.party):
            given = hook.guarantee(c, exposures[c])
            if given is not None:
                out.setdefault(hook.name, {})[party] = given.to_dict()
    return out


@dataclass(frozen=True)
class Assignment:
    """The graph, the records of each client, and the organisation (n,) of each client."""

    topology: Topology
    parts: Partition
    region: npt.NDArray[np.int64] | None


def assign_records(config: Config, train: Dataset, seed: Seed) -> Assignment:
    """Assign the training records to clients, and place the clients in the graph."""
    wanted = dict(config.topology)
    count = client_count(config, train)
    kind = str(wanted.pop("kind"))
    chosen = dict(config.partition)
    split = partitions.from_settings(str(chosen.pop("kind")), chosen)
    if wanted.get("clients") is not None and split.kind == OWNED:
        # edges name clients: number the names as the partition numbers the owners
        names = split.partition(train, count, seed).names
        wanted["clients"] = match_clients(
            {name: name for name in wanted["clients"]},
            names,
            what="the edges",
            values_in="topology.clients",
            clients_in="the data",
        )
    topology = topologies.build(kind, count, seed, **wanted)
    region = None if topology.organisations is None else np.array(topology.organisations)
    parts = split.partition(train, count, seed, position=region)
    if len(parts) != count:
        raise DataError(
            "the partition yields another number of clients than federation.clients",
            expected=f"federation.clients = {count}",
            got=count_of(len(parts), "client"),
            remedy=f"set federation.clients = {len(parts)}",
        )
    if region is None and parts.organisations is not None:
        groups = sorted(set(parts.organisations))
        region = np.array([groups.index(o) for o in parts.organisations])
    return Assignment(topology, parts, region)


def protections_per_client(config: Config, parts: Partition, train: Dataset) -> tuple[Hook, ...]:
    """The protections of a config: noise per client in the order of the partition, and bounds per
    column of the data."""
    out: list[Hook] = []
    for hook in config.protections.values():
        if isinstance(hook, DPSGD) and isinstance(hook.noise_multiplier, tuple):
            hook = replace(hook, noise_multiplier=_own_noise(config, hook, parts))
        if isinstance(hook, LocalDP) and hook.bounds is not None:
            x = train.x if not isinstance(train.x, tuple) else np.zeros((1, 0))
            hook = hook.for_columns(train.columns, x)
        out.append(hook)
    return tuple(out)


def _own_noise(config: Config, hook: DPSGD, parts: Partition) -> tuple[float, ...]:
    """One multiplier per client: matched by name, or in order if clients have only numbers."""
    assert isinstance(hook.noise_multiplier, tuple)
    names = config.allocation.names
    if names:
        return match_clients(
            dict(zip(names, hook.noise_multiplier, strict=True)),
            parts.names,
            what="the allocated noise",
            values_in="allocation.clients",
            clients_in="the data" if parts.kind == OWNED else f'partition.kind = "{parts.kind}"',
        )
    if parts.kind == OWNED:
        raise ConfigError(
            "noise per client is given without the clients' names",
            expected="[allocation] clients: the name of each multiplier's client",
            got=f"{len(hook.noise_multiplier)} multipliers for {listed(parts.names)}",
            remedy="name the clients in the order of protections.dp_sgd.noise_multiplier: "
            f"[allocation] clients = {toml_value(parts.names[:MOST])}",
        )
    return hook.noise_multiplier


def check_recorded(config: Config, layout: Layout) -> None:
    """Let every audit refuse tensors that this `layout` lacks or that the run does not record."""
    recorded = layout.restrict(config.trace.tensors)
    for audit in config.audits.values():
        audit.check_recorded(recorded)


class Prepared:
    """Data, assignment, task and marks of one config, each made once, when first asked for.

    Two configs with the same data and seed share the data: `beside` is the other one's. Files that
    change after they were read are read again (`current`).
    """

    def __init__(self, config: Config, beside: Prepared | None = None) -> None:
        self.config, self.seed = config, Seed(config.seed)
        shares = beside is not None and (beside.config.data, beside.config.seed) == (
            config.data,
            config.seed,
        )
        self._beside = beside if shares else None

    @classmethod
    def of(cls, given: Config | Prepared) -> Prepared:
        return given if isinstance(given, Prepared) else cls(given)

    def current(self) -> Prepared:
        """This, or a new one if a data file was touched since it was read."""
        read = self._root.__dict__.get("_read")
        return (
            self
            if read is None or read[2] == file_stamps(self.config.data)
            else type(self)(self.config)
        )

    @property
    def _root(self) -> Prepared:
        return self if self._beside is None else self._beside._root

    @cached_property
    def _read(self) -> tuple[Dataset, Dataset, Any]:
        """Training records, held-out records, and the stamps of their files."""
        stamps = file_stamps(self.config.data)
        return *load_data(self.config, self.seed), stamps

    @property
    def train(self) -> Dataset:
        return self._root._read[0]

    @property
    def test(self) -> Dataset:
        return self._root._read[1]

    @cached_property
    def data_sha256(self) -> str:
        return digest(self.train, self.test)

    @cached_property
    def assignment(self) -> Assignment:
        return assign_records(self.config, self.train, self.seed)

    @cached_property
    def task(self) -> Task:
        """The task as it was built. Whoever changes its weights takes a `new_task`."""
        return self.new_task()

    def new_task(self) -> Task:
        return self.config.task.build(self.train, self.seed)

    @cached_property
    def marks(self) -> PlantedMarks | None:
        """Marked records that the config plants; None without any."""
        clients = client_count(self.config, self.train)
        return plant(self.config, self.task, self.train, self.test, clients, self.seed)


class SharedData:
    """The data of several runs: configs with the same data and seed share one load."""

    def __init__(self) -> None:
        self._first: list[Prepared] = []

    def beside(self, config: Config) -> Prepared:
        """What is prepared of a config, beside the first one with the same data and seed."""
        key = (config.data, config.seed)
        for n, known in enumerate(self._first):
            if (known.config.data, known.config.seed) == key:
                self._first[n] = known.current()
                return Prepared(config, beside=self._first[n])
        self._first.append(Prepared(config))
        return self._first[-1]


def build(given: Config | Prepared) -> tuple[Federation, dict[str, Any]]:
    """The federation of a config, and the facts that only the truth knows."""

    made = Prepared.of(given)
    config, seed, train, test = made.config, made.seed, made.train, made.test
    assignment = made.assignment
    topology, parts, region = assignment.topology, assignment.parts, assignment.region
    _refuse_one_class(config, train)
    rounds = replace(config.federation, clients=len(parts))
    task = made.task
    check_recorded(config, task.layout)
    units = {p.clip_unit for p in config.protections.values() if p.clip_norm is not None}
    if "person" in units:
        _refuse_spread_persons(train, parts)
    planted = made.marks
    examples, groups = _client_examples(task, train, parts, planted, units)
    federation = Federation(
        task=task,
        data=ClientData.join([(own.x, own.y) for own in examples], groups),
        rounds=rounds,
        training=config.training,
        seed=seed,
        topology=topology,
        region=region,
        protections=protections_per_client(config, parts, train),
        test=task.encode(test),
    )
    exposures = federation.exposures()
    owner = None if planted is None else documents_of(planted.family, planted.keys)
    federation = replace(
        federation,
        protections=tuple(
            p.resolved(exposures).with_documents(owner, seed) for p in federation.protections
        ),
    )
    audit = production_audit(config.audits)
    if audit is not None:
        federation = plant_in_production(federation, audit)
    facts = _facts(config, federation, train, test, assignment, [len(own) for own in examples])
    if audit is not None:
        facts["canaries"] = planted_settings(audit)
    if planted is not None:
        facts["marked"] = {federation.party[c]: key for c, key in planted.marked.items()}
    return federation, facts


def _class_count(train: Dataset) -> int:
    return max(len(train.classes), int(train.y.max()) + 1)


def _refuse_one_class(config: Config, train: Dataset) -> None:
    classes = _class_count(train)
    if classes < 2 and train.kind != "text" and config.task.kind in CLASSIFIERS:
        raise DataError(
            f"dataset {train.name!r} has only one class, so a classifier has nothing to learn",
            expected="at least two classes",
            got=f"{classes} class in {len(train)} training records",
            remedy='name another label, or use task.kind = "vae", which needs no classes',
        )


def _client_examples(
    task: Task,
    train: Dataset,
    parts: Partition,
    planted: PlantedMarks | None,
    units: Collection[str | None],
) -> tuple[list[Examples], list[Tensor] | None]:
    """Examples of every client, and the unit of privacy of each unless that is the example."""

    clients, groups = [], []
    for c in range(len(parts)):
        mine = parts.client_data(train, c)
        own = task.encode(mine)
        if planted is not None and len(own):
            own = planted.added_to(own, c)
        clients.append(own)
        if "person" in units and mine.person is not None:
            numbers = np.unique(np.array(mine.person), return_inverse=True)[1]
            # no person owns a marked record: each one is a unit of its own
            marked = numbers.max() + 1 + np.arange(int(own.record.max()) + 1 - len(mine))
            groups.append(torch.from_numpy(np.append(numbers, marked))[own.record])
        elif "record" in units and len(np.unique(own.record.numpy())) != len(own):
            groups.append(own.record)  # several examples were cut from one record
    for c, own in enumerate(clients):
        if not len(own):
            raise DataError(
                f"client {c} has no examples",
                expected="at least one example per client",
                got="0 (its documents are shorter than one window)",
                remedy="use fewer clients, or a shorter task.length",
            )
    return clients, groups if len(groups) == len(parts) else None


def _facts(
    config: Config,
    federation: Federation,
    train: Dataset,
    test: Dataset,
    assignment: Assignment,
    sizes: Sequence[int],
) -> dict[str, Any]:
    """The facts that only the truth knows; `sizes` are the examples of each client."""

    parts, region, classes = assignment.parts, assignment.region, _class_count(train)
    histograms = parts.class_histograms(train.y, classes)
    return {
        "seed": config.seed,
        "seed_drawn": config.drawn,
        "clients": {
            party: {
                "name": parts.names[c],
                "records": parts.clients[c].tolist(),
                "examples": int(sizes[c]),
                "classes": histograms[c].tolist(),
                "organisation": None if region is None else int(region[c]),
                "inverted": bool(parts.inverted[c]),
            }
            for c, party in enumerate(federation.party)
        },
        "guarantees": promises(federation),
        "held_out": len(test),
        "guessing": guessing(test.y, classes) if config.task.kind in CLASSIFIERS else {},
        "data_sha256": digest(train, test),
        "notes": [*train.notes, *parts.notes, *([] if config.drawn else [seeds.BY_HAND])],
        "shortage": asdict(shortage(train, parts, config.training.batch_size)),
        "torch": str(torch.__version__),
    }


def guessing(y: npt.NDArray[np.int64], classes: int) -> dict[str, float]:
    """Accuracy of always guessing the most common class, and loss of guessing the class shares."""
    share = np.bincount(y, minlength=classes) / len(y)
    seen = share[share > 0]
    return {"accuracy": float(share.max()), "loss": float(-(seen * np.log(seen)).sum())}
