"""Local training for FLoRA: clients start from fresh adapters and send dense products.

Each client adds fresh adapters to the weights it received, trains them, and sends scale * B A. All
clients of one rank that received the same weights train as one batch, with the same tiers as any
other task. Products are written layer by layer into the output rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedaudit.arrays import Indices
from fedaudit.errors import ConfigError
from fedaudit.federation.local.schedule import Training
from fedaudit.federation.local.trainer import ClientData, Trainer
from fedaudit.rows import empty_rows
from fedaudit.tasks.lora import AdapterLoRA, DenseLoRA
from fedaudit.tasks.task import Task


class LowRankTrainer:
    """Trains adapters behind the interface of a `Trainer` of dense rows.

    `make` builds the trainer of a task, with its gradient hooks. `clients` is their number: client
    c of copy s is number s * clients + c, and has the rank of client c.
    """

    def __init__(self, task: DenseLoRA, clients: int, make: Callable[[Task], Trainer]) -> None:
        self.task, self._make = task, make
        if task.ranks and len(task.ranks) != clients:
            raise ConfigError(
                "task.ranks does not fit the clients",
                expected=f"{clients} ranks, one per client",
                got=str(len(task.ranks)),
                remedy="leave task.ranks out to give all clients task.rank",
            )
        self._ranks = np.array(task.ranks or [task.rank] * clients)
        self.training: Training = make(task).training
        self._local: dict[int, tuple[AdapterLoRA, Trainer]] = {}

    def train(self, start: Tensor, clients: Indices, data: ClientData, round_number: int) -> Tensor:
        """Products (K, d) of `clients`, trained on weights start (d,) or a row each (K, d)."""
        out = empty_rows(len(clients), self.task.layout.width)
        ranks = self._ranks[clients % len(self._ranks)]
        for rank in np.unique(ranks):
            local, trainer = self._for_rank(int(rank))
            fresh = self.task.fresh(local, round_number)
            among = np.flatnonzero(ranks == rank)
            for row, together in _by_start(start, among):
                self._load(local, row)
                deltas = trainer.train(fresh, clients[together], data, round_number)
                self._write_products(local, deltas.add_(fresh), out, together)
        return out

    def replay_draws(self, clients: Indices, data: ClientData, round_number: int) -> None:
        """Note which steps draw which canaries, without training."""
        self._make(self.task).replay_draws(clients, data, round_number)

    def _for_rank(self, rank: int) -> tuple[AdapterLoRA, Trainer]:
        """Task and trainer of one rank, made once: choosing the tier takes time."""
        if rank not in self._local:
            local = self.task.local(rank)
            self._local[rank] = (local, self._make(local))
        return self._local[rank]

    def _load(self, local: AdapterLoRA, row: Tensor) -> None:
        """Load the received weights under the adapters."""
        for name, weight in self.task.named(row).items():
            layer: Any = local.module.get_submodule(name.removesuffix(".weight"))
            layer.base_layer.weight.data.copy_(weight)

    def _write_products(
        self, local: AdapterLoRA, adapters: Tensor, out: Tensor, rows: Indices
    ) -> None:
        """Write scale * B A of adapters (k, r) into rows of `out`, one layer at a time."""
        named = local.named(adapters)
        for e in self.task.layout.entries:
            layer = e.name.removesuffix(".weight")
            up, down = named[f"{layer}.lora_B.weight"], named[f"{layer}.lora_A.weight"]
            product = torch.bmm(up, down).mul_(local.scale)
            out[torch.from_numpy(rows), e.columns] = product.flatten(1)


def _by_start(start: Tensor, among: Indices) -> list[tuple[Tensor, Indices]]:
    """Group clients by the weights they received: (weights (d,), positions)."""
    if start.dim() == 1:
        return [(start, among)]
    groups: list[tuple[Tensor, list[int]]] = []
    for i in among:
        for row, inside in groups:
            if torch.equal(row, start[i]):
                inside.append(int(i))
                break
        else:
            groups.append((start[i], [int(i)]))
    return [(row, np.array(inside)) for row, inside in groups]
