"""The batches of every client and step, chosen before training.

Every choice is a function of (seed, client, round, epoch or step, example), so batches are the same
for every tier: stacked, one client after another, or on another machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from fedaudit.arrays import Indices
from fedaudit.errors import ConfigError
from fedaudit.randomness import Seed
from fedaudit.settings import Count, NonNegative, Positive, ShareBelowOne, Whole, checked

DRAWN_AT_ONCE = 1 << 21  # random words of a Poisson plan held in memory at once


@dataclass(frozen=True, kw_only=True)
@checked("training")
class Training:
    """Settings of local training.

    `epochs`: passes over the client's data in shuffled batches of `batch_size` (0: all of it at
    once). `steps`: number of batches instead. `sampling = "poisson"` draws every example
    independently at every step, as DP-SGD's accounting assumes; batches then vary in size, and
    sums are divided by the expected size. Optimiser state is fresh for every client and round.
    """

    optimizer: Literal["sgd", "adam"] = "sgd"
    learning_rate: Positive = 0.1
    momentum: ShareBelowOne = 0.0
    weight_decay: NonNegative = 0.0
    epochs: Count = 1
    steps: Count | None = None
    batch_size: Whole = 16
    sampling: Literal["shuffle", "poisson"] = "shuffle"

    def __post_init__(self) -> None:
        if self.optimizer == "adam" and self.momentum:
            raise ConfigError(
                "training.momentum belongs to SGD",
                expected="momentum = 0 with adam, whose own is fixed at 0.9",
                got=f"{self.momentum:g}",
                remedy='remove it, or set optimizer = "sgd"',
            )

    def steps_for(self, size: int) -> int:
        """Local steps in one round of a client with `size` examples."""
        if self.steps is not None:
            return self.steps
        return self.epochs * -(-size // (self.batch_size or size))

    def steps_of(self, sizes: Indices) -> Indices:
        """`steps_for` of every client, (K,) to (K,)."""
        different, which = np.unique(sizes, return_inverse=True)
        each = np.array([self.steps_for(int(s)) for s in different], dtype=np.int64)
        return each[which]

    def expected_batch(self, size: int) -> int:
        return min(self.batch_size or size, size)


@dataclass(frozen=True)
class Schedule:
    """The batches of several clients in one round.

    `index` (K, S, B) example numbers, `valid` (K, S, B) bool, `steps` (K,) local steps of each
    client (non-increasing), `divisor` (K, S) of each batch sum. `order` (K,) the position of each
    row's client in the requested list.
    """

    index: Indices
    valid: npt.NDArray[np.bool_]
    steps: Indices
    divisor: npt.NDArray[np.float32]
    order: Indices

    def active(self, step: int) -> int:
        """Clients that still train at `step`: a prefix, since rows are sorted by steps."""
        return int(np.searchsorted(-self.steps, -step, side="left"))

    def part(self, rows: slice) -> Schedule:
        """The batches of some clients, cut to the most steps any of them takes."""
        steps = self.steps[rows]
        s = slice(0, int(steps.max()))
        valid = self.valid[rows, s]
        b = slice(0, max(1, int(valid.sum(axis=2).max())))
        return Schedule(
            self.index[rows, s, b],
            valid[:, :, b],
            steps,
            self.divisor[rows, s],
            np.arange(len(steps)),
        )


def plan(
    training: Training,
    clients: Indices,
    starts: Indices,
    sizes: Indices,
    seed: Seed,
    round_number: int,
    person: Indices | None = None,
    extra: Indices | None = None,
) -> Schedule:
    """Batches for `clients` (K,), whose examples stand at starts[c] .. starts[c] + sizes[c].

    With `person` (N,), Poisson sampling draws all examples of a person together. `extra`: canaries
    of every client, which stand after its examples. Poisson sampling draws each of them as it draws
    an example; the rate and the divisor stay those of the real ones.
    """
    n, first = sizes[clients], starts[clients]
    steps = training.steps_of(n)
    # sort by steps, then by size, so that a block needs little padding
    order = np.lexsort((-n, -steps))
    clients, n, first, steps = clients[order], n[order], first[order], steps[order]
    if training.sampling == "poisson":
        pool = n if extra is None else n + extra[clients]
        unit = np.broadcast_to(np.arange(int(pool.max())), (len(n), int(pool.max())))
        if person is not None:
            unit = np.zeros_like(unit)
            for row, (low, size) in enumerate(zip(first, pool, strict=True)):
                unit[row, :size] = person[low : low + size]
        index, valid, divisor = _poisson(
            training, clients, n, pool, steps, seed, round_number, unit
        )
    else:
        index, valid, divisor = _shuffled(training, clients, n, steps, seed, round_number)
    index += first[:, None, None]
    return Schedule(index, valid, steps, divisor, order)


def _shuffled(
    training: Training,
    clients: Indices,
    n: Indices,
    steps: Indices,
    seed: Seed,
    round_number: int,
) -> tuple[Indices, npt.NDArray[np.bool_], npt.NDArray[np.float32]]:
    """Batches without replacement within an epoch; the last of an epoch may be smaller."""
    size = np.minimum(training.batch_size, n) if training.batch_size else n
    per_epoch = -(-n // size)
    batch, s = int(size.max()), np.arange(int(steps.max()))
    index = np.zeros((len(n), len(s), batch), dtype=np.int64)
    within = s % per_epoch[:, None]  # (K, S) which batch of its epoch a step takes
    slot = within[:, :, None] * size[:, None, None] + np.arange(batch)  # (K, S, B)
    valid = (slot < n[:, None, None]) & (np.arange(batch) < size[:, None, None])
    valid &= (s < steps[:, None])[:, :, None]
    # group clients of similar size: one table for small clients (many epochs) and large clients
    # (long epochs) would be mostly padding
    powers = np.frexp(n)[1]
    for power in np.unique(powers):
        rows = np.flatnonzero(powers == power)
        largest, epochs = int(n[rows].max()), int((-(-steps[rows] // per_epoch[rows])).max())
        # one random word per (client, epoch, example); padding sorts to the end of each row
        words = seed.bits(
            "batches",
            round_number,
            clients[rows, None, None],
            np.arange(epochs)[None, :, None],
            np.arange(largest)[None, None, :],
        )
        padding = np.arange(largest) >= n[rows, None, None]
        words[np.broadcast_to(padding, words.shape)] = ~np.uint64(0)
        permuted = np.argsort(words, axis=2, kind="stable")  # (rows, epochs, largest)
        epoch = np.minimum(s // per_epoch[rows, None], epochs - 1)
        index[rows] = permuted[
            np.arange(len(rows))[:, None, None],
            epoch[:, :, None],
            np.minimum(slot[rows], largest - 1),
        ]
    index[~valid] = 0
    divisor = np.maximum(valid.sum(axis=2), 1).astype(np.float32)
    return index, valid, divisor


def _poisson(
    training: Training,
    clients: Indices,
    n: Indices,
    pool: Indices,
    steps: Indices,
    seed: Seed,
    round_number: int,
    unit: Indices,
) -> tuple[Indices, npt.NDArray[np.bool_], npt.NDArray[np.float32]]:
    """Draw every unit with probability q = expected batch / n, independently at every step.

    `pool` (K,): examples to draw from, more than n if there are canaries. `unit` (K, largest): the
    sampling unit of each example, a person or the example itself.
    """
    k, largest, longest = len(n), int(pool.max()), int(steps.max())
    expected = np.minimum(training.batch_size or n, n)
    rate = np.where(np.arange(largest) < pool[:, None], (expected / n)[:, None], 0.0)
    found, count = [], np.zeros((k, longest), dtype=np.int64)
    # every step draws for every example: do a few steps at a time to bound memory
    stride = max(1, DRAWN_AT_ONCE // (k * largest))
    for low in range(0, longest, stride):
        s = np.arange(low, min(low + stride, longest))
        uniform = seed.uniform(
            "poisson", round_number, clients[:, None, None], s[None, :, None], unit[:, None, :]
        )
        drawn = (uniform < rate[:, None, :]) & (s < steps[:, None])[:, :, None]
        count[:, s] = drawn.sum(axis=2)
        at_client, at_step, example = np.nonzero(drawn)  # sorted, the example last
        found.append((at_client, at_step + low, example))
    at_client, at_step, example = (np.concatenate(column) for column in zip(*found, strict=True))
    index = np.zeros((k, longest, max(1, int(count.max()))), dtype=np.int64)
    valid = np.arange(index.shape[2]) < count[:, :, None]
    by_batch = np.lexsort((example, at_step, at_client))
    index[valid] = example[by_batch]
    divisor = np.broadcast_to(expected[:, None], (k, longest)).astype(np.float32)
    return index, valid, divisor
