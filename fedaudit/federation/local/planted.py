"""Canaries among a client's examples: drawn by the production sampler, then clipped and summed.

A canary is one more example of a client. A record canary is an ordinary record that passes through
the kernel. A gradient canary has no record: where its example is drawn, its own gradient stands,
and the kernel gives that example weight 0. It is a vector on few columns, so that thousands of
them cost little; a bound on norms and a sum over a batch act on the few columns as on all.

The number of examples by which batches and sums are set stays that of the real records.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from fedaudit.arrays import Floats, Indices
from fedaudit.federation.local.trainer import ClientData


@dataclass(frozen=True)
class PlantedExamples:
    """Examples of a pool that are canaries.

    `number` (N,): canary of each pool row, -1 for real examples. `columns` (m, s) and `values`
    (m, s): gradient of each canary, 0 where it has fewer columns; a canary without any value is a
    record. `extra` (K,): canaries of each client, which stand after its `sizes` real examples.
    `draws`: which canaries were drawn: (round, step, client, canary) in order. `batches`: size of
    every batch: (round, step, client, examples, expected examples).
    """

    number: Tensor
    columns: Tensor
    values: Tensor
    extra: Indices
    draws: list[Indices] = field(default_factory=list)
    batches: list[Indices] = field(default_factory=list)

    def log(
        self, rows: Tensor, weight: Tensor, expected: Floats, at: tuple[int, int], clients: Indices
    ) -> None:
        """Note the batches (K, B) of a step; `expected` (K,) examples."""
        number = torch.where(weight > 0, self.number[rows], -1)
        k, b = torch.nonzero(number >= 0, as_tuple=True)
        draws = np.empty((len(k), 4), dtype=np.int64)
        draws[:, :2] = at
        draws[:, 2] = clients[k.numpy()]
        draws[:, 3] = number[k, b].numpy()
        self.draws.append(draws)
        sizes = np.empty((len(clients), 5), dtype=np.int64)
        sizes[:, :2] = at
        sizes[:, 2] = clients
        sizes[:, 3] = (weight > 0).sum(dim=1).numpy()
        sizes[:, 4] = np.rint(expected)
        self.batches.append(sizes)

    @cached_property
    def _gradient(self) -> Tensor:
        """Which canaries are gradients, (m,)."""
        return (self.values != 0).any(dim=1)

    def has_gradient(self, rows: Tensor) -> Tensor:
        """Which pool rows are gradient canaries, (K, B) bool."""
        number = self.number[rows]
        return (number >= 0) & self._gradient[number.clamp_min(0)]

    def drawn(self, rows: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Gradient canaries of a step: their columns and values (K, b, s), and weights (K, b)."""
        chosen = self.has_gradient(rows) & (weight > 0)
        most = max(1, int(chosen.sum(dim=1).max()))
        first = torch.argsort(chosen.int(), dim=1, descending=True, stable=True)[:, :most]
        number = self.number[rows].gather(1, first).clamp_min(0)
        w = torch.where(chosen, weight, 0.0).gather(1, first)
        return self.columns[number], self.values[number], w


def planted_in(
    data: ClientData,
    client: Indices,
    columns: Tensor,
    values: Tensor,
    records: dict[int, tuple[Tensor, Tensor]],
) -> ClientData:
    """Client data with canaries, each after its client's real examples.

    `client` (m,): the client of each canary, -1 for one that is left out. `records`: canary ->
    its example (x, y); the others are gradient canaries.
    """
    x, y, number = [], [], []
    count = len(data.sizes)
    for c in range(count):
        own_x, own_y = data.of(c)
        mine = np.flatnonzero(client == c)
        blank_x, blank_y = torch.zeros_like(own_x[:1]), torch.zeros_like(own_y[:1])
        given = [records.get(int(i)) for i in mine]
        x += [own_x, *(blank_x if g is None else g[0].unsqueeze(0) for g in given)]
        y += [own_y, *(blank_y if g is None else g[1].reshape(1) for g in given)]
        number += [np.full(len(own_x), -1), mine]
    extra = np.bincount(client[client >= 0], minlength=count).astype(np.int64)
    whole = data.sizes + extra
    rows = torch.from_numpy(np.concatenate(number).astype(np.int64))
    person = data.person
    if person is not None:  # every canary is a person of its own
        own, person = person, torch.where(rows >= 0, rows + int(person.max()) + 1, 0)
        person[rows < 0] = own
    return replace(
        data,
        x=torch.cat(x),
        y=torch.cat(y),
        starts=np.cumsum(whole) - whole,
        person=person,
        planted=PlantedExamples(rows, columns, values, extra),
    )
