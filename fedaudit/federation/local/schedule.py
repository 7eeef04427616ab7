"""Which examples a client sees at which step: decided before anything is computed.

Every choice is a function of (seed, client, round, epoch or step, example), so the same batches are
drawn whatever computes them: stacked, one client after another, or on another machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from fedaudit.errors import ConfigError
from fedaudit.randomness import Seed

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Training:
    """How a client trains.

    `epochs` passes over the client's data in shuffled batches of `batch_size` (0: all of it at
    once); or `steps` batches, if given. `sampling = "poisson"` draws every example independently
    at every step, as DP-SGD's accounting assumes; a batch then varies in size, and sums are divided
    by the expected size. Optimiser state is fresh for every client and round.
    """

    optimizer: Literal["sgd", "adam"] = "sgd"
    learning_rate: float = 0.1
    momentum: float = 0.0
    weight_decay: float = 0.0
    epochs: int = 1
    steps: int | None = None
    batch_size: int = 16
    sampling: Literal["shuffle", "poisson"] = "shuffle"

    def __post_init__(self) -> None:
        for name, low in (("epochs", 1), ("batch_size", 0)):
            if getattr(self, name) < low:
                raise ConfigError(
                    f"training.{name} is too small",
                    expected=f"at least {low}",
                    got=str(getattr(self, name)),
                    remedy="give a larger number",
                )
        if self.steps is not None and self.steps < 1:
            raise ConfigError(
                "training.steps is too small",
                expected="at least 1",
                got=str(self.steps),
                remedy="leave it out to train by epochs",
            )
        if not self.learning_rate > 0 or not 0 <= self.momentum < 1 or self.weight_decay < 0:
            raise ConfigError(
                "training has a rate out of range",
                expected="learning_rate > 0, 0 <= momentum < 1, weight_decay >= 0",
                got=f"{self.learning_rate:g}, {self.momentum:g}, {self.weight_decay:g}",
                remedy="correct the value",
            )

    def steps_for(self, size: int) -> int:
        """Local steps in one round of a client with `size` examples."""
        if self.steps is not None:
            return self.steps
        return self.epochs * -(-size // (self.batch_size or size))

    def expected_batch(self, size: int) -> int:
        return min(self.batch_size or size, size)


@dataclass(frozen=True)
class Schedule:
    """The batches of several clients in one round.

    `index` (K, S, B) example numbers, `valid` (K, S, B) bool, `steps` (K,) local steps of each
    client (non-increasing), `divisor` (K, S) what a batch's sum is divided by. `order` (K,) the
    position of each row's client in the list that was asked for.
    """

    index: Indices
    valid: npt.NDArray[np.bool_]
    steps: Indices
    divisor: npt.NDArray[np.float32]
    order: Indices

    def active(self, step: int) -> int:
        """How many clients still train at `step`: a prefix, since rows are sorted by steps."""
        return int(np.searchsorted(-self.steps, -step, side="left"))


def plan(
    training: Training,
    clients: Indices,
    starts: Indices,
    sizes: Indices,
    seed: Seed,
    round_number: int,
) -> Schedule:
    """Batches for `clients` (K,), whose examples stand at starts[c] .. starts[c] + sizes[c]."""
    n, first = sizes[clients], starts[clients]
    steps = np.array([training.steps_for(int(s)) for s in n], dtype=np.int64)
    order = np.argsort(-steps, kind="stable")
    clients, n, first, steps = clients[order], n[order], first[order], steps[order]
    if training.sampling == "poisson":
        index, valid, divisor = _poisson(training, clients, n, steps, seed, round_number)
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
    largest = int(n.max())
    batch = min(training.batch_size or largest, largest)
    size = np.minimum(training.batch_size or largest, n) if training.batch_size else n
    per_epoch = -(-n // size)
    epochs = int((-(-steps // per_epoch)).max())
    k = len(clients)
    # one random word per (client, epoch, example); padding sorts to the end of each row
    words = seed.bits(
        "batches",
        round_number,
        clients[:, None, None],
        np.arange(epochs)[None, :, None],
        np.arange(largest)[None, None, :],
    )
    words[np.broadcast_to(np.arange(largest) >= n[:, None, None], words.shape)] = ~np.uint64(0)
    permuted = np.argsort(words, axis=2, kind="stable")  # (K, epochs, largest)
    s = np.arange(int(steps.max()))
    epoch, within = s // per_epoch[:, None], s % per_epoch[:, None]  # (K, S)
    slot = within[:, :, None] * size[:, None, None] + np.arange(batch)  # (K, S, B)
    valid = (slot < n[:, None, None]) & (np.arange(batch) < size[:, None, None])
    valid &= (s < steps[:, None])[:, :, None]
    epoch = np.minimum(epoch, epochs - 1)
    slot = np.minimum(slot, largest - 1)
    index = permuted[np.arange(k)[:, None, None], epoch[:, :, None], slot]
    index[~valid] = 0
    divisor = np.maximum(valid.sum(axis=2), 1).astype(np.float32)
    return index.astype(np.int64, copy=False), valid, divisor


def _poisson(
    training: Training,
    clients: Indices,
    n: Indices,
    steps: Indices,
    seed: Seed,
    round_number: int,
) -> tuple[Indices, npt.NDArray[np.bool_], npt.NDArray[np.float32]]:
    """Every example with probability q = expected batch / n, independently at every step."""
    largest, longest = int(n.max()), int(steps.max())
    expected = np.array([training.expected_batch(int(s)) for s in n], dtype=np.int64)
    uniform = seed.uniform(
        "poisson",
        round_number,
        clients[:, None, None],
        np.arange(longest)[None, :, None],
        np.arange(largest)[None, None, :],
    )
    taken = uniform < (expected / n)[:, None, None]
    taken &= np.arange(largest) < n[:, None, None]
    taken &= (np.arange(longest) < steps[:, None])[:, :, None]
    width = max(1, int(taken.sum(axis=2).max()))
    # chosen examples first: a stable sort of "not taken" keeps them in order
    index = np.argsort(~taken, axis=2, kind="stable")[:, :, :width]
    valid = np.take_along_axis(taken, index, axis=2)
    index[~valid] = 0
    divisor = np.broadcast_to(expected[:, None], (len(n), longest)).astype(np.float32)
    return index.astype(np.int64, copy=False), valid, divisor
