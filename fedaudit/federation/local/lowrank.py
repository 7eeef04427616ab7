"""Local training when products of adapters travel (FLoRA): fresh adapters in, dense products out.

Each client adds fresh adapters to the weights it received, trains them, and sends scale * B A. All
clients of one rank that received the same weights train as one batch, by the same tiers as any
other task; products are formed layer by layer where they will stand.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedaudit.errors import ConfigError
from fedaudit.federation.local.schedule import Training
from fedaudit.federation.local.trainer import ClientData, Trainer
from fedaudit.rows import tensor
from fedaudit.tasks.lora import DenseLoRA, LoRA
from fedaudit.tasks.task import Task

Indices = npt.NDArray[np.int64]


class LowRankTrainer:
    """A `Trainer` of adapters behind the interface of one that trains dense rows.

    `make` builds the trainer of a task, with whatever hooks act on its gradients. `clients` is
    how many there are: client c of copy s is number s * clients + c, and has the rank of client c.
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
        self._local: dict[int, tuple[LoRA, Trainer]] = {}

    def train(self, start: Tensor, clients: Indices, data: ClientData, round_number: int) -> Tensor:
        """Products (K, d) of `clients`, trained on weights start (d,) or a row each (K, d)."""
        out = tensor(len(clients), self.task.layout.width)
        ranks = self._ranks[clients % len(self._ranks)]
        for rank in np.unique(ranks):
            local, trainer = self._of(int(rank))
            fresh = self.task.fresh(local, round_number)
            among = np.flatnonzero(ranks == rank)
            for row, together in _alike(start, among):
                self._put(local, row)
                deltas = trainer.train(fresh, clients[together], data, round_number)
                self._products(local, deltas.add_(fresh), out, together)
        return out

    def _of(self, rank: int) -> tuple[LoRA, Trainer]:
        """Made once: which tier trains adapters of a rank is found out once."""
        if rank not in self._local:
            local = self.task.local(rank)
            self._local[rank] = (local, self._make(local))
        return self._local[rank]

    def _put(self, local: LoRA, row: Tensor) -> None:
        """Received weights under the adapters."""
        for name, weight in self.task.named(row).items():
            layer: Any = local.module.get_submodule(name.removesuffix(".weight"))
            layer.base_layer.weight.data.copy_(weight)

    def _products(self, local: LoRA, adapters: Tensor, out: Tensor, rows: Indices) -> None:
        """scale * B A of adapters (k, r) into rows of `out`, a layer at a time."""
        named = local.named(adapters)
        for e in self.task.layout.entries:
            layer = e.name.removesuffix(".weight")
            up, down = named[f"{layer}.lora_B.weight"], named[f"{layer}.lora_A.weight"]
            product = torch.bmm(up, down).mul_(local.scale)
            out[torch.from_numpy(rows), e.columns] = product.flatten(1)


def _alike(start: Tensor, among: Indices) -> list[tuple[Tensor, Indices]]:
    """Clients that received the same weights, together: (weights (d,), positions)."""
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
