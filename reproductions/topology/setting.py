"""The federation of setting C on digits, and how its runs and shadows are made.

50 clients in cliques of 20, 15, 10, 3 and 2; class mixes tied to places by eta; DP-SGD with
sigma^2 = U / n on the mean. The records are split once: every target run deals the same training
records anew and draws its own batches and noise; shadows draw from the held-out records alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from fedaudit.data import partition
from fedaudit.data.dataset import Dataset
from fedaudit.federation import topology
from fedaudit.federation.engine import Federation
from fedaudit.federation.local.trainer import ClientData
from fedaudit.hooks import Hook
from fedaudit.knowledge.shadows import ShadowFederations, of_run
from fedaudit.protections.dp_sgd import DPSGD
from fedaudit.randomness import Seed
from fedaudit.setup.config import Config, load
from fedaudit.setup.prepare import load_data
from fedaudit.trace import WIRETAP, MemoryRecorder, MemoryTruth, Trace

SPLIT = 1  # the seed of the held-out part and of the first model
SHADOWS = Seed(20_000)
SENSITIVE = (0,)
CLASSES = 10


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Sizes of everything."""

    cliques: tuple[int, ...] = (20, 15, 10, 3, 2)
    rounds: int = 20
    hidden: int = 32
    batch: int = 16
    alpha: float = 0.5
    budget: float = 0.5
    etas: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75, 1.0)
    runs: int = 6
    shadows: int = 40
    index_etas: tuple[float, ...] = (0.0, 0.5, 1.0)
    noises: tuple[float, ...] = (0.0, 1.6, 6.4, 25.6)
    utility_rounds: tuple[int, ...] = (25, 50, 100)
    budgets: tuple[float, ...] = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0)
    utility_seeds: tuple[int, ...] = (1, 2, 3)
    utility_rate: float = 0.5
    graph_seeds: int = 200
    sets: tuple[str, ...] = ("adult", "cifar10")

    @property
    def clients(self) -> int:
        return sum(self.cliques)

    @property
    def multiplier(self) -> float:
        """z = sigma |B|, sigma^2 = U / n: the noise on a sum."""
        return math.sqrt(self.budget / self.clients) * self.batch


FULL = Scale()
QUICK = Scale(
    cliques=(5, 4, 3),
    rounds=3,
    hidden=8,
    etas=(0.0, 1.0),
    runs=3,
    shadows=10,
    index_etas=(1.0,),
    noises=(0.0, 1.6),
    utility_rounds=(2, 3),
    budgets=(0.25, 1.0),
    utility_seeds=(1, 2),
    graph_seeds=5,
    sets=(),
)


def described(scale: Scale) -> dict[str, Any]:
    """The scale as it is stored beside results."""
    return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(scale).items()}


Position = Literal["region", "index"]


def config_of(
    scale: Scale, eta: float, noise: float, position: Position = "region", rate: float = 0.1
) -> Config:
    """The config of a target; `noise` is a multiplier."""
    raw: dict[str, Any] = {
        "seed": SPLIT,
        "data": {"name": "digits"},
        "partition": {
            "kind": "coupled",
            "eta": eta,
            "alpha": scale.alpha,
            "position": position,
        },
        "topology": {"kind": "hierarchical", "sizes": list(scale.cliques)},
        "task": {"kind": "mlp", "hidden": [scale.hidden]},
        "federation": {"clients": scale.clients, "rounds": scale.rounds},
        "training": {"batch_size": scale.batch, "learning_rate": rate},
    }
    if noise:
        raw["protections"] = {"dp_sgd": {"noise_multiplier": noise, "clip": 1.0}}
    return load(raw)


@lru_cache(maxsize=1)
def _digits() -> tuple[Dataset, Dataset]:
    return load_data(load({"seed": SPLIT, "data": {"name": "digits"}}), Seed(SPLIT))


def training_records() -> int:
    """How many records the clients hold together."""
    return len(_digits()[0])


def dealt(
    config: Config, seed: int, noise: Sequence[float] | None = None
) -> tuple[Federation, Any]:
    """A run of `config` with a deal, batches and noise of its own, and its class histograms; the
    split and the first model stay. `noise` gives every client a multiplier of its own."""
    train, test = _digits()
    own = Seed(10_000 + seed)
    count = int(config.federation.clients)
    shape = dict(config.topology)
    graph = topology.build(str(shape.pop("kind")), count, own, **shape)
    region = np.array(graph.organisations)
    given = dict(config.partition)
    kind = partition.from_settings(str(given.pop("kind")), given)
    parts = kind.partition(train, count, own, position=region)
    task = config.task.build(train, Seed(SPLIT))
    clients = []
    for c in range(count):
        mine = task.encode(parts.client_data(train, c))
        clients.append((mine.x, mine.y))
    hooks: tuple[Hook, ...] = tuple(config.protections.values())
    if noise is not None:
        hooks = (DPSGD(noise_multiplier=tuple(noise), clip=1.0),)
    federation = Federation(
        task=task,
        data=ClientData.join(clients),
        rounds=config.federation,
        training=config.training,
        seed=own,
        topology=graph,
        region=region,
        protections=hooks,
        test=task.encode(test),
    )
    return federation, parts.class_histograms(train.y, CLASSES)


def recorded(federation: Federation, histograms: Any) -> tuple[Trace, MemoryTruth]:
    """The run's trace and truth, in memory."""
    recorder = MemoryRecorder(
        **federation.about(),
    )
    facts = {
        "clients": {
            party: {"classes": histograms[c].tolist()} for c, party in enumerate(federation.party)
        }
    }
    truth = MemoryTruth(facts)
    replace(federation, test=None).run(recorder, truth)
    return recorder.trace(), truth


def shadows_of(
    config: Config,
    trace: Trace,
    scale: Scale,
    prior: Literal["matched", "dirichlet"] = "matched",
) -> ShadowFederations:
    """Shadows of a target, on held-out records; never a run that a cell of a table rests on."""
    return of_run(config, trace, SHADOWS, count=scale.shadows, vantage=WIRETAP, prior=prior)


def accuracy(federation: Federation) -> float:
    """Held-out accuracy after the last round."""
    final = federation.run()
    assert federation.test is not None
    return float(federation.task.metrics(final, federation.test, federation.seed)["accuracy"])


def sizes_of(federation: Federation) -> np.ndarray:
    return np.asarray(federation.clients_data.sizes)
