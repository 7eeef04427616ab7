"""What a run will do, what it cannot do, and about how long it takes: told before it begins.

Audits and protections state their own costs and needs (`Audit.cost`, `Audit.missing`, facts of
`Hook`). Times come from figures measured on one core and a short product that tells how fast this
machine is now. They are for planning: a busy machine takes longer. Missing needs are told from the
config alone; an audit may still find others.
"""

from __future__ import annotations

import functools
import math
import time
from dataclasses import dataclass
from typing import Any

from fedaudit.audits.planning import Setting, Shape
from fedaudit.results import Need
from fedaudit.setup.config import Config

TRAIN = "train"


@dataclass(frozen=True)
class Stage:
    """One piece of a run: training or an audit. `missing`: the need for which it cannot be done."""

    name: str
    seconds: float
    missing: Need | None = None

    @property
    def cannot(self) -> str:
        """Why it cannot be done, in words; empty where it can."""
        return "" if self.missing is None else self.missing.what


@dataclass(frozen=True)
class Forecast:
    """The stages of a run in order.

    `records` are those that some client trains on; `notes` say what was decided about the data:
    values that were filled in, owners that take no part.
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
        """Of the whole, how much is done when `done` of `total` of a stage are."""
        whole = self.seconds or 1.0
        train = self.stages[0].seconds
        if stage == TRAIN:
            return train * done / max(total, 1) / whole
        # audits report how many of them are over
        return (train + sum(s.seconds for s in self.stages[1 : 1 + done])) / whole


def estimate_cost(config: Config) -> Forecast:
    """Look ahead: reads the data and builds the model, trains nothing.

    Most of what a config asks for and its data cannot give is refused here, for every run of a
    study, before the first of them begins.
    """
    from fedaudit.randomness import Seed
    from fedaudit.setup.marks import plant
    from fedaudit.setup.prepare import assigned, check_recorded, client_count, deal, load_data

    seed = Seed(config.seed)
    train, test = load_data(config, seed)
    clients = client_count(config, train)
    task = config.task.build(train, seed)
    check_recorded(config, task.layout)
    parts = deal(config, train, seed).parts
    records, notes = _taking_part(config, train, parts)
    for protection in assigned(config, parts):
        protection.check_clients(clients)
        if config.federation.aggregation == "fedavg":
            protection.check_round(config.federation.taking_part(clients))
    plant(config, task, train, test, clients, seed)
    shape = shape_of(config, task, train, clients, records)
    setting = setting_of(config, train, clients)
    speed = _slowness()
    stages = [Stage(TRAIN, START + speed * shape.training())]
    for name, audit in config.audits.items():
        missing = audit.missing(setting)
        stages.append(Stage(name, speed * audit.cost(shape) if missing is None else 0.0, missing))
    hooks = config.protections.values()
    if any(p.clip_norm is not None for p in hooks):
        stages.append(Stage("allocation", 0.2 * clients))  # of epsilons, beside the audits
    remarks = [text for p in hooks for text in p.remarks()]
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


def setting_of(config: Config, train: Any, clients: int) -> Setting:
    """What audits can tell their missing needs from."""
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
    )


FILLED = (
    "a number takes the column's mean, a text becomes the category (missing); both look at the "
    "records of every client, which no epsilon of a protection covers"
)
"""What filling means for privacy: the mean is computed before any client or noise comes in."""


def _taking_part(config: Config, train: Any, parts: Any) -> tuple[int, tuple[str, ...]]:
    """Training records that some client holds, and what was decided about the data.

    Clients are named: a plan is for the owner's terminal.
    """
    from fedaudit.data.shortage import shortage

    notes = list(train.notes)
    if config.data.get("missing") in ("mean", "category") and any("filled" in n for n in notes):
        notes.append(f"how they were filled: {FILLED}")
    held = sum(len(own) for own in parts.clients)
    notes += parts.notes
    notes += shortage(train, parts, config.training.batch_size).lines()
    if held < len(train):
        notes.append(
            f"federation.clients = {len(parts)} leaves owners out; held-out records are those of "
            "all owners, also of those that take no part"
        )
    return held, tuple(notes)


# -- what it takes --------------------------------------------------------------------------------

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
"""Seconds that sixty products of 256 x 256 matrices took there, on one core."""


@functools.cache
def _slowness() -> float:
    """How much slower this machine is, right now, than the one that was measured.

    On one core, as there: threads that wait for each other on a busy machine take anything from
    once to ten times as long. And once: all parts of a plan go by the same figure.
    """
    import torch

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
