"""The federations of this reproduction, with planted marks and updates kept in the clear.

Ten clients train a small classifier on real handwritten digits, three of them also on a canary set
each; or they fine-tune adapters on the smaller of the two tiny GPTs that come with the package,
three of them also on marked text. A fifth of a marked client's records are marked. The paper
fine-tunes a language model of 3 billion parameters: what carries over is the method and its error
rates, not the size of a score.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fedaudit.audits.attribution import Attribution
from fedaudit.audits.attribution.scoring import Marks
from fedaudit.randomness import Seed
from fedaudit.setup.config import Config, load
from fedaudit.setup.marks import PlantedMarks, plant
from fedaudit.setup.prepare import build, load_data
from fedaudit.stats import query_plans
from fedaudit.trace.memory import MemoryRecorder, MemoryTruth
from reproductions.attribution import comparison

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Played:
    """`models` (T + 1, d), `updates` (T, K, d), `marked` (K,), the owner's `marks`.

    `gradients` (T, 2, d) of the loss on the owner's marked records and on held-out ones. By round:
    `quality` (T,), the held-out accuracy or the loss per token. `seconds` of processor time a round
    that training took, with the measure of quality.
    """

    models: Floats
    updates: Floats
    marked: Mask
    marks: Marks
    planted: PlantedMarks
    gradients: Floats
    quality: tuple[float, ...]
    seconds: float

    @property
    def clients(self) -> int:
        return self.updates.shape[1]

    @property
    def rounds(self) -> int:
        return len(self.updates)

    def first(self, rounds: int) -> Played:
        """The run as it stood after so many rounds: no round knows how many are to come."""
        return replace(
            self,
            models=self.models[: rounds + 1],
            updates=self.updates[:rounds],
            gradients=self.gradients[:rounds],
            quality=self.quality[:rounds],
        )


CLASSIFIER = {
    "data": {"name": "digits"},
    "task": {"kind": "mlp", "hidden": [64]},
    "training": {"learning_rate": 0.3, "epochs": 5, "batch_size": 16},
}
TEXT = {
    "data": {"name": "docs"},
    "task": {"kind": "lora", "rank": 16, "width": 64, "depth": 2},
    # two passes over a marked client's windows, as many as in the paper
    "training": {"optimizer": "adam", "learning_rate": 0.005, "steps": 72, "batch_size": 8},
}
PROMPTS = 160


def config_of(
    *,
    seed: int,
    kind: str = "canary",
    aggregation: str = "fedit",
    clients: int = 10,
    rounds: int = 5,
    marked: int = 3,
    share: float = 0.2,
    steps: int | None = None,
    partition: Mapping[str, Any] | None = None,
    task: Mapping[str, Any] | None = None,
    data: Mapping[str, Any] | None = None,
    protections: Mapping[str, Any] | None = None,
) -> Config:
    """The config of one federation. `aggregation` and `steps` are for text; `task` changes settings
    of the model, `data` takes another set."""
    text = kind != "canary"
    raw: dict[str, Any] = copy.deepcopy(TEXT if text else CLASSIFIER)
    raw["task"] |= task or {}
    raw["data"] = dict(data or raw["data"])
    if text:
        raw["task"]["aggregation"] = aggregation
        raw["training"]["steps"] = steps or raw["training"]["steps"]
    return load(
        {
            "seed": seed,
            **raw,
            "partition": dict(partition or {"kind": "iid"}),
            "federation": {"clients": clients, "rounds": rounds},
            # with nobody marked the owner still has keys to test
            "marks": {
                "kind": kind, "clients": marked, "share": share, "spare": 0 if marked else 3
            },
            "protections": dict(protections or {}),
        }
    )  # fmt: skip


def play(
    *,
    seed: int,
    kind: str = "canary",
    aggregation: str = "fedit",
    clients: int = 10,
    rounds: int = 5,
    marked: int = 3,
    share: float = 0.2,
    steps: int | None = None,
    prompts: int = PROMPTS,
    partition: Mapping[str, Any] | None = None,
    task: Mapping[str, Any] | None = None,
    data: Mapping[str, Any] | None = None,
) -> Played:
    """Train one federation and keep everything. `aggregation`, `steps`, `prompts` are for text;
    `task` changes settings of the model, `data` takes another set."""
    config = config_of(
        seed=seed,
        kind=kind,
        aggregation=aggregation,
        clients=clients,
        rounds=rounds,
        marked=marked,
        share=share,
        steps=steps,
        partition=partition,
        task=task,
        data=data,
    )
    text = kind != "canary"
    federation, facts = build(config)
    recorder = MemoryRecorder(
        layouts=federation.layouts(),
        federation=federation.describe(),
        task=federation.task.settings,
    )
    truth = MemoryTruth(facts)
    began = time.process_time()
    federation.run(recorder, truth, keep_raw=True)
    seconds = time.process_time() - began
    trace = recorder.trace()
    server, names = trace.seen_by("server"), federation.party
    starts = []
    for number in trace.rounds:
        held = server.received(number, names[0], before=1)
        assert held is not None
        starts.append(held)
    updates = np.stack([truth.raw_updates(n)[1] for n in trace.rounds]).astype(np.float64)
    train, test = load_data(config, Seed(seed))
    planted = plant(config, federation.task, train, test, clients, Seed(seed))
    assert planted is not None
    asked = Attribution(prompts=prompts)
    marks = planted.family.marks(planted.keys, asked, Seed(seed).key("marks/null"))
    models = np.stack([*starts, server.released()]).astype(np.float64)
    return Played(
        models=models,
        updates=updates,
        marked=np.isin(names, list(facts["marked"])),
        marks=marks,
        planted=planted,
        gradients=_gradients(federation.task, models[:-1], planted, test),
        quality=tuple(truth.metrics(n)["loss" if text else "accuracy"] for n in trace.rounds),
        seconds=seconds / rounds,
    )


def _gradients(task: Any, models: Floats, planted: PlantedMarks, test: Any) -> Floats:
    """Of the mean loss on the owner's marked records (if any) and on held-out ones, (T, 2, d)."""
    import torch

    plain = task.encode(test)
    few = 200 if plain.x.dim() == 2 and not plain.x.is_floating_point() else 1000
    sets = [(plain.x[:few], plain.y[:few])]  # windows of text take long
    if planted.keys:
        drawn = [planted.family.examples(key) for key in planted.keys]
        sets.insert(0, (torch.cat([x for x, _ in drawn]), torch.cat([y for _, y in drawn])))
    out = []
    for row in models:
        each = []
        for x, y in sets:
            flat = torch.tensor(row, dtype=torch.float32, requires_grad=True)
            total = torch.zeros_like(flat)
            for low in range(0, len(x), 128):
                part = slice(low, low + 128)
                loss = task.losses(task.named(flat), x[part], y[part], None).sum() / len(x)
                total += torch.autograd.grad(loss, flat)[0]
            each.append(total.numpy())
        out.append(each if len(each) == 2 else [each[0], each[0]])
    return np.array(out, dtype=np.float64)


def plan_of(
    name: str, run: Played, rng: np.random.Generator, *, others: int = 5, repeats: int = 5
) -> comparison.Plan:
    """The published plan, fresh partitions ("safe"), or swaps of a share of clients ("swapped")."""
    if name == "published":
        return comparison.published_plan(run.clients, others, repeats, run.rounds, rng)
    if name == "safe":
        groups = query_plans.random_partitions(run.clients, others, run.rounds, rng)
    elif name == "fixed":
        groups = query_plans.fixed_groups(run.clients, others, run.rounds, rng)
    else:
        groups = query_plans.swapped_groups(run.clients, others, run.rounds, rng, fraction=0.4)
    return comparison.safe_plan(groups)


def read(plan: comparison.Plan, run: Played, *, unused: int = 999) -> comparison.Reading:
    """Attribute by one plan."""
    return comparison.read(plan, run.models[:-1], run.updates, run.marks, unused=unused)
