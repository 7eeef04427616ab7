"""The federation of this reproduction: digits, planted canaries, updates kept in the clear.

Ten clients train a small classifier on real handwritten digits; three of them also on a canary set
each, a fifth of their records. The paper fine-tunes a language model of 3 billion parameters: what
carries over is the method and its error rates, not the size of a score.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedaudit.audits.attribution import comparison
from fedaudit.experiment.build import build, load_data, plan_marks
from fedaudit.experiment.config import load
from fedaudit.experiment.knowledge import logits_of
from fedaudit.randomness import Seed
from fedaudit.stats import query_plans
from fedaudit.trace.memory import MemoryRecorder, MemoryTruth
from fedaudit.watermarks.canary import CanaryMarks

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Played:
    """`models` (T + 1, d), `updates` (T, K, d), `marked` (K,), the owner's `marks`.

    `gradients` (T, 2, d) of the loss on the owner's canaries and on held-out records.
    """

    models: Floats
    updates: Floats
    marked: Mask
    marks: CanaryMarks
    gradients: Floats
    accuracy: float

    @property
    def clients(self) -> int:
        return self.updates.shape[1]

    @property
    def rounds(self) -> int:
        return len(self.updates)


def play(
    *,
    seed: int,
    clients: int = 10,
    rounds: int = 5,
    marked: int = 3,
    share: float = 0.2,
    partition: Mapping[str, Any] | None = None,
) -> Played:
    """Train one federation and keep everything."""
    config = load(
        {
            "seed": seed,
            "data": {"name": "digits"},
            "partition": dict(partition or {"kind": "iid"}),
            "task": {"kind": "mlp", "hidden": [64]},
            "federation": {"clients": clients, "rounds": rounds},
            "training": {"learning_rate": 0.3, "epochs": 5, "batch_size": 16},
            # with nobody marked the owner still has keys to test
            "marks": {"clients": marked, "share": share, "spare": 0 if marked else 3},
        }
    )
    federation, facts = build(config)
    recorder = MemoryRecorder(
        layouts=federation.layouts(),
        federation=federation.describe(),
        task=federation.task.settings,
    )
    truth = MemoryTruth(facts)
    federation.run(recorder, truth, keep_raw=True)
    trace = recorder.trace()
    server, names = trace.seen_by("server"), federation.party
    starts = []
    for number in trace.rounds:
        held = server.received(number, names[0], before=1)
        assert held is not None
        starts.append(held)
    updates = np.stack([truth.raw_updates(n)[1] for n in trace.rounds]).astype(np.float64)
    train, test = load_data(config, Seed(seed))
    _, canaries = plan_marks(config, train, test, clients, Seed(seed))
    assert canaries is not None
    marks = CanaryMarks(
        canaries=canaries,
        keys=tuple(sorted(config.marks.owner_keys(Seed(seed)))),
        logits=logits_of(federation.task),
        null_seed=Seed(seed).key("marks/null"),
    )
    models = np.stack([*starts, server.released()]).astype(np.float64)
    return Played(
        models=models,
        updates=updates,
        marked=np.isin(names, list(facts["marked"])),
        marks=marks,
        gradients=_gradients(federation.task, models[:-1], marks, test),
        accuracy=truth.metrics(rounds)["accuracy"],
    )


def _gradients(task: Any, models: Floats, marks: CanaryMarks, test: Any) -> Floats:
    """Of the mean loss on the owner's canaries (if any) and on held-out records, at each model."""
    import torch

    plain = task.encode(test)
    sets = [(plain.x, plain.y)]
    if marks.keys:
        x, y = marks.canaries.draw_all(marks.keys)
        sets.insert(0, (torch.from_numpy(x), torch.from_numpy(y)))
    out = []
    for row in models:
        each = []
        for x, y in sets:
            flat = torch.tensor(row, dtype=torch.float32, requires_grad=True)
            task.losses(task.named(flat), x, y, None).mean().backward()
            assert flat.grad is not None
            each.append(flat.grad.numpy())
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
