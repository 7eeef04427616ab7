"""Protections before and during local training: on data, gradients and steps.

Protections of uploads and sums act in the rounds (`federation.engine`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from fedaudit.arrays import Indices
from fedaudit.errors import ConfigError
from fedaudit.federation.local.lowrank import LowRankTrainer
from fedaudit.federation.local.schedule import Training
from fedaudit.federation.local.trainer import ClientData, Trainer, no_persons
from fedaudit.hooks import Hook
from fedaudit.randomness import Seed
from fedaudit.tasks.lora import DenseLoRA
from fedaudit.tasks.task import Task


def protected_data(data: ClientData, protections: Sequence[Hook], seed: Seed) -> ClientData:
    """The clients' data after every protection that acts on data."""
    hooks = [p for p in protections if p.acts_at("data")]
    if not hooks:
        return data
    parts = []
    for c, size in enumerate(data.sizes):
        x, y = (t.clone() for t in data.of(c))  # a hook may write in place
        for hook in hooks:
            x, y = hook.data(x, y, client=c, seed=seed)
        if data.person is not None and len(x) != size:
            raise ConfigError(
                "a data protection changed the number of examples, but clipping is per person",
                expected=f"{size} examples of client {c}",
                got=str(len(x)),
                remedy='use unit = "record", or a protection that keeps every example',
            )
        parts.append((x, y))
    return replace(ClientData.join(parts), person=data.person)


def protected_trainer(
    task: Task,
    training: Training,
    protections: Sequence[Hook],
    seed: Seed,
    *,
    clients: int,
    copies: int,
    persons: bool,
    tier: str,
) -> Trainer | LowRankTrainer:
    """The trainer of `clients` clients, or of `copies` copies of them with the same protections.

    `persons`: whether the data name a person for every example.
    """
    hooks = [p.repeated(copies) if copies > 1 else p for p in protections]
    clips = [p.clip_norm for p in hooks if p.clip_norm is not None]
    units = {p.clip_unit for p in hooks if p.clip_norm is not None}
    if "person" in units and not persons:
        raise no_persons()
    grouped = persons and bool(units - {"example"})
    for protection in protections:
        protection.check_clients(clients)
    each = [p for p in hooks if p.acts_at("gradient")]
    steps = [p for p in hooks if p.acts_at("step")]
    for p in hooks:
        if p.sampling is not None and p.sampling != training.sampling:
            training = replace(training, sampling=p.sampling)

    def step(sums: Tensor, *, clients: Indices, round_number: int, step: int) -> None:
        for hook in steps:
            hook.step(sums, clients=clients, round_number=round_number, step=step, seed=seed)

    def trainer(task: Task) -> Trainer:
        own = [p.for_layout(task.layout) for p in each]

        def gradient(g: Tensor) -> Tensor:
            for hook in own:
                g = hook.gradient(g)
            return g

        return Trainer(
            task,
            training,
            seed,
            clip=min(clips) if clips else None,
            clip_unit="person" if grouped else "record",
            gradient=gradient if each else None,
            step=step if steps else None,
            tier=tier,
        )

    if isinstance(task, DenseLoRA):
        return LowRankTrainer(task, clients, trainer)
    return trainer(task)
