"""What a run will do, what it cannot, and about how long it takes: said before it begins.

Times come from figures measured on one core and a short product that tells how fast this machine
is now. They are for planning: a busy machine takes longer. What cannot be done is told from the
config alone, so it names the commonest missing needs; an audit may still find others.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fedaudit.experiment.config import Config

TRAIN = "train"


@dataclass(frozen=True)
class Stage:
    """One piece of a run: training or an audit. `cannot` names the need that is missing."""

    name: str
    seconds: float
    cannot: str = ""


@dataclass(frozen=True)
class Foreseen:
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


def foresee(config: Config) -> Foreseen:
    """Look ahead: reads the data and builds the model, trains nothing.

    Most of what a config asks for and its data cannot give is refused here, for every run of a
    study, before the first of them begins.
    """
    from fedaudit.experiment.build import assigned, check_layers, client_count, deal, load_data
    from fedaudit.experiment.marks import plant
    from fedaudit.randomness import Seed

    seed = Seed(config.seed)
    train, test = load_data(config, seed)
    clients = client_count(config, train)
    task = config.task.build(train, seed)
    check_layers(config, task.layout)
    parts = deal(config, train, seed).parts
    records, notes = _taking_part(config, train, parts)
    for protection in assigned(config, parts):
        protection.check_clients(clients)
        if config.federation.aggregation == "fedavg":
            protection.check_round(config.federation.taking_part(clients))
    plant(config, task, train, test, clients, seed)
    examples = max(1, round(_examples(config, train) * records / len(train)))
    shape = Shape(
        kind=config.task.kind,
        clients=clients,
        rounds=config.federation.rounds,
        width=task.layout.width,
        # what every token passes: with adapters, the frozen model too
        weights=sum(p.numel() for p in task.module.parameters()),
        tokens=int(getattr(config.task, "length", 0)) or 1,
        examples=examples,
        epochs=_epochs(config, examples, clients),
        records=records,
        private="dp_sgd" in config.protections,
        queries=_queries(config, clients),
        hidden="shuffle" in config.protections,
    )
    speed = _slowness()
    stages = [Stage(TRAIN, START + speed * shape.training())]
    for name, audit in config.audits.items():
        missing = NEEDS.get(name, _nothing)(config, train)
        cost = COSTS.get(name, _cheap)
        stages.append(Stage(name, 0.0 if missing else speed * cost(shape, audit), missing))
    if "dp_sgd" in config.protections:
        stages.append(Stage("allocation", 0.2 * clients))  # of epsilons, beside the audits
    return Foreseen(tuple(stages), clients, records, task.layout.width, (*notes, *_refused(config)))


def _refused(config: Config) -> list[str]:
    hook = config.protections.get("secure_aggregation")
    if hook is None or hook.plan != "paired" or not hook.refuse_isolating:
        return []
    return [
        "the published pairs lay every update open: with refuse_isolating = true most of them are "
        "refused, and little can be attributed"
    ]


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

RATES = {
    "mlp": 3e9,
    "cnn": 2.5e9,
    "vit": 4e9,
    "vae": 8e9,
    "gpt": 3e10,
    "lora": 2.5e10,
    "module": 2e9,
}
"""Floating-point operations per second that training reached on one core, by kind of task."""

POSITIONS = {"cnn": 200, "vit": 16}
"""How often a weight is used for one example, where it is used more than once."""

PRIVATE = 2.5
"""How much longer a step takes with clipping per example and noise."""

QUERY = 6.5e-3
"""Seconds that one sum takes behind secure aggregation."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The sizes that times depend on."""

    kind: str
    clients: int
    rounds: int
    width: int
    weights: int
    tokens: int
    examples: int
    epochs: float
    records: int
    private: bool
    queries: int
    hidden: bool = False

    def passes(self, examples: float) -> float:
        """Seconds of a forward pass over so many examples."""
        uses = POSITIONS.get(self.kind, 1) * (self.tokens if self.kind in ("gpt", "lora") else 1)
        return 2.0 * self.weights * uses * examples / RATES.get(self.kind, 2e9)

    def training(self) -> float:
        """Seconds of all rounds: forward, backward, and what recording and averaging take."""
        learnt = 3.0 * self.passes(self.examples * self.epochs * self.rounds)
        learnt *= PRIVATE if self.private else 1.0
        around = 0.005 + 2e-9 * self.clients * self.width + QUERY * self.queries
        return learnt + self.rounds * around


def _queries(config: Config, clients: int) -> int:
    """Sums that are asked for in a round."""
    hook = config.protections.get("secure_aggregation")
    if hook is None:
        return 0
    return 2 * clients * hook.repeats if hook.plan == "paired" else clients


def _examples(config: Config, train: Any) -> int:
    if train.kind != "text":
        return len(train)
    words = sum(len(text) for text in train.x) / 5
    return max(1, int(words / max(int(getattr(config.task, "length", 40)), 1)))


def _epochs(config: Config, records: int, clients: int) -> float:
    training = config.training
    size = max(records // max(clients, 1), 1)
    return float(training.steps_for(size) * training.expected_batch(size) / size)


def _cheap(shape: Shape, audit: Any) -> float:
    return 0.1


def _linking(shape: Shape, audit: Any) -> float:
    rows = shape.clients * shape.rounds
    return 0.1 + 4e-9 * rows * shape.width + 2e-6 * rows * shape.clients


def _two_stage(shape: Shape, audit: Any) -> float:
    held = min(audit.records, shape.records / shape.clients)
    asked = 2 * held * shape.examples / shape.records * shape.clients * shape.rounds
    # of a document only some windows are looked at
    often = 0.8 if shape.kind in ("gpt", "lora") else 8.0
    if shape.hidden:
        # every anonymous row is asked about every client's candidates, twice; with names a row is
        # asked about its own, and about those of a few others
        often *= max(1.0, 2 * shape.clients / (3 + audit.references))
    checked = audit.checked_rounds * min(audit.checked_clients, shape.clients)
    return 0.5 + often * shape.passes(asked) + 0.03 * checked


def _active(shape: Shape, audit: Any) -> float:
    return 0.5 + 2e-4 * (audit.games + audit.client_games) + 0.008 * audit.recorded


def _topology(shape: Shape, audit: Any) -> float:
    learning = 0.05 * len(audit.channels) * audit.shadows / 10
    return 1.0 + 0.2 * audit.shadows * shape.training() + learning


def _attribution(shape: Shape, audit: Any) -> float:
    return 1.0 + 0.02 * shape.queries * shape.rounds


COSTS: Mapping[str, Callable[[Shape, Any], float]] = {
    "fingerprint": _linking,
    "two_stage_membership": _two_stage,
    "active_membership": _active,
    "topology_inference": _topology,
    "attribution": _attribution,
}
"""Seconds of an audit on the machine that the rates were measured on."""

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


# -- what it needs --------------------------------------------------------------------------------

SUMS = ("secure_sum", "secure_aggregation")


def _nothing(config: Config, train: Any) -> str:
    return ""


def _for_linking(config: Config, train: Any) -> str:
    hidden = [name for name in SUMS if name in config.protections]
    if hidden:
        return f"only sums leave ({hidden[0]}): no single update is left to link"
    if config.federation.rounds < 2 and "shuffle" in config.protections:
        return "linking needs two rounds"
    return ""


def _for_plan(config: Config, train: Any) -> str:
    if not {*SUMS} & {*config.protections} and "shuffle" in config.protections:
        return "no sums are asked for: add [protections.secure_aggregation]"
    return ""


def _for_attribution(config: Config, train: Any) -> str:
    if config.marks is None:
        return "no marked records: add [marks]"
    hook = config.protections.get("secure_aggregation")
    if hook is None or hook.plan == "none":
        return "no sums over parts of the clients: add [protections.secure_aggregation] with a plan"
    return ""


def _for_topology(config: Config, train: Any) -> str:
    if len(train.classes) < 2:
        return "records without classes have no class mix"
    named = "shuffle" not in config.protections
    placed = config.topology.get("kind", "star") not in ("star", "complete", "ring")
    if not named and not placed and train.organisation is None:
        return "senders are hidden, and all places are alike: an observer has nothing to go by"
    from fedaudit.experiment.build import client_count

    shadows = config.audits["topology_inference"].shadows
    if shadows < 10 or shadows * client_count(config, train) < 100:
        return "too few shadows to learn from: 10 federations and 100 clients in them at least"
    return ""


NEEDS: Mapping[str, Callable[[Config, Any], str]] = {
    "fingerprint": _for_linking,
    "query_plan": _for_plan,
    "attribution": _for_attribution,
    "active_membership": _nothing,
    "topology_inference": _for_topology,
}
