"""Forecast of a run: its stages, what cannot run, and about how long it takes.

Audits and protections state their own costs and needs (`Audit.cost`, `Audit.missing`, facts of
`Hook`). Times are scaled from measurements on one core by a short benchmark of this machine. They
are for planning: a busy machine takes longer. Missing needs follow from the config alone; an audit
may find others later.
"""

from __future__ import annotations

import functools
import math
import time
from dataclasses import dataclass, replace
from typing import Any

import torch

from fedaudit.audits.planning import Setting, Shape
from fedaudit.data.dataset import FILLED_OVER_ALL
from fedaudit.data.shortage import shortage
from fedaudit.knowledge.probing.own_model import refusal
from fedaudit.results import Need
from fedaudit.setup.config import Config
from fedaudit.setup.prepare import (
    Prepared,
    check_recorded,
    client_count,
    protections_per_client,
)

TRAIN = "train"


@dataclass(frozen=True)
class Stage:
    """One stage of a run: training or an audit.

    `seconds`: on this machine at present; `reference_seconds`: on the reference machine, so that a
    decision does not depend on what else runs. `missing`: the need that keeps it from running.
    """

    name: str
    seconds: float
    reference_seconds: float
    missing: Need | None = None

    @property
    def cannot(self) -> str:
        """Why the stage cannot run, in words; empty if it can."""
        return "" if self.missing is None else self.missing.what


@dataclass(frozen=True)
class Forecast:
    """The stages of a run in order.

    `records`: training records of all clients. `notes`: decisions about the data, such as filled-in
    values and owners that take no part.
    """

    stages: tuple[Stage, ...]
    clients: int
    records: int
    width: int
    notes: tuple[str, ...] = ()

    @property
    def seconds(self) -> float:
        return sum(s.seconds for s in self.stages)

    def share(self, stage: str, done: int, total: int) -> float:
        """The fraction of the whole run that is done when `done` of `total` of a stage are."""
        whole = self.seconds or 1.0
        train = self.stages[0].seconds
        if stage == TRAIN:
            return train * done / max(total, 1) / whole
        # audits report how many of them are finished
        return (train + sum(s.seconds for s in self.stages[1 : 1 + done])) / whole


def estimate_cost(given: Config | Prepared) -> Forecast:
    """Forecast a run: read the data and build the model, without training.

    This refuses most settings that do not fit the data, for every run of a study before the first
    one begins.
    """
    made = Prepared.of(given)
    config, train, task = made.config, made.train, made.task
    clients = client_count(config, train)
    check_recorded(config, task.layout)
    parts = made.assignment.parts
    records, notes = _taking_part(config, train, parts)
    for protection in protections_per_client(config, parts, train):
        protection.check_clients(clients)
        if config.federation.aggregation == "fedavg":
            protection.check_round(config.federation.taking_part(clients))
    _ = made.marks  # refuses marks that do not fit
    shape = shape_of(config, task, train, clients, records)
    setting = replace(
        setting_of(config, task, train, clients),
        held_out=len(made.test) + len(train) - sum(map(len, parts.clients)),
        largest=int(parts.sizes.max()),
    )
    speed = _slowness()
    training = shape.training()
    stages = [Stage(TRAIN, START + speed * training, START + training)]
    for name, audit in config.audits.items():
        missing = audit.missing(setting)
        cost = audit.cost(shape) if missing is None else 0.0
        stages.append(Stage(name, speed * cost, cost, missing))
    hooks = config.protections.values()
    if any(p.clip_norm is not None for p in hooks):
        stages.append(Stage("allocation", 0.2 * clients, 0.2 * clients))  # epsilons of all clients
    star = config.federation.aggregation == "fedavg"
    together = config.federation.taking_part(clients) if star else 0
    remarks = [text for p in hooks for text in p.remarks(together)]
    return Forecast(tuple(stages), clients, records, task.layout.width, (*notes, *remarks))


def shape_of(config: Config, task: Any, train: Any, clients: int, records: int) -> Shape:
    """The sizes of a federation that times depend on."""
    examples = max(1, round(_examples(config, train) * records / len(train)))
    hooks = config.protections.values()
    return Shape(
        kind=config.task.kind,
        clients=clients,
        rounds=config.federation.rounds,
        width=task.layout.width,
        weights=sum(p.numel() for p in task.module.parameters()),
        tokens=int(getattr(config.task, "length", 0)) or 1,
        examples=examples,
        epochs=_epochs(config, examples, clients),
        records=records,
        slowdown=math.prod(p.slowdown for p in hooks),
        queries=sum(p.queries(clients) for p in hooks),
        hidden=any(p.hides_senders for p in hooks),
    )


def setting_of(config: Config, task: Any, train: Any, clients: int) -> Setting:
    """The facts from which audits derive their missing needs."""
    hooks = config.protections.values()
    return Setting(
        clients=clients,
        rounds=config.federation.rounds,
        classes=len(train.classes),
        hidden=any(p.hides_senders for p in hooks),
        sums_by=next((p.name for p in hooks if p.only_sums), ""),
        subset_sums=any(p.subset_sums for p in hooks),
        marks=config.marks is not None,
        places_differ=config.topology.get("kind", "star") not in ("star", "complete", "ring"),
        organisations=train.organisation is not None,
        fixed_model=refusal(task, config.training),
    )


FILLED = (
    "numbers become the column's mean, texts the category (missing); both use the records of every "
    "client, which no epsilon covers"
)
"""What filling means for privacy: it happens before any protection."""


def _taking_part(config: Config, train: Any, parts: Any) -> tuple[int, tuple[str, ...]]:
    """Number of training records of all clients, and decisions about the data.

    Notes name clients: a plan is for the owner's terminal.
    """
    notes = list(train.notes)
    if config.data.get("missing") in ("mean", "category") and any(
        n.startswith(FILLED_OVER_ALL) for n in notes
    ):
        notes.append(f"filling: {FILLED}")
    held = sum(len(own) for own in parts.clients)
    notes += parts.notes
    notes += shortage(train, parts, config.training.batch_size).lines()
    if held < len(train):
        notes.append(
            f"federation.clients = {len(parts)} leaves some owners out; held-out records still "
            "come from all owners"
        )
    return held, tuple(notes)


# -- time -----------------------------------------------------------------------------------------

START = 2.5
"""Seconds until training begins: libraries and data."""


def _examples(config: Config, train: Any) -> int:
    if train.kind != "text":
        return len(train)
    words = sum(len(text) for text in train.x) / 5
    return max(1, int(words / max(int(getattr(config.task, "length", 40)), 1)))


def _epochs(config: Config, records: int, clients: int) -> float:
    training = config.training
    size = max(records // max(clients, 1), 1)
    return float(training.steps_for(size) * training.expected_batch(size) / size)


PRODUCT = 0.031
"""Seconds for sixty products of 256 x 256 matrices on one core of the reference machine."""


@functools.cache
def _slowness() -> float:
    """How much slower this machine is at present than the reference machine.

    Measured on one core, since threads on a busy machine may take one to ten times as long, and
    only once, so that all parts of a plan use the same figure.
    """

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        a = torch.ones(256, 256)
        best = float("inf")
        for _ in range(5):
            begin = time.perf_counter()
            for _ in range(60):
                a @ a
            best = min(best, time.perf_counter() - begin)
    finally:
        torch.set_num_threads(threads)
    return max(best / PRODUCT, 0.25)
