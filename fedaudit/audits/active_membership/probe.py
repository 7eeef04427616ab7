"""The adversary's hook, and the reading of the answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from fedaudit.arrays import Floats, Indices
from fedaudit.errors import NotObservable
from fedaudit.hooks import AddedNoise, Hook
from fedaudit.protections.declared import noise_of
from fedaudit.trace import ANONYMOUS, View

if TYPE_CHECKING:
    from torch import Tensor

    from fedaudit.randomness import Seed


@dataclass(frozen=True, eq=False)
class Planting(Hook):
    """Sends planted models instead of the honest one: `rows` (w,) to all, or (K, w) to each."""

    name: ClassVar[str] = "planted_weights"

    rows: npt.NDArray[np.float32]

    def broadcast(
        self, model: Tensor, *, receivers: Indices, round_number: int, seed: Seed
    ) -> Tensor:
        import torch

        chosen = self.rows if self.rows.ndim == 1 else self.rows[receivers]
        return torch.from_numpy(np.ascontiguousarray(chosen))


@dataclass(frozen=True)
class Answer:
    """The answers of one round: `rows` (m, w) of the answer tensor, with the sign of a gradient.

    `senders` (m,) are names, or anonymous; empty for a sum.
    """

    rows: Floats
    senders: tuple[str, ...]

    @property
    def named(self) -> bool:
        return bool(self.senders) and ANONYMOUS not in self.senders


def read_answer(view: View, tensor: str, number: int = 1) -> Answer:
    """The answers of a round: single updates if the view has them, else their sum."""
    try:
        updates = view.updates(number, [tensor])
        return Answer(-updates.rows.astype(np.float64), updates.senders)
    except NotObservable:
        for index, message in view.indexed(number):
            if message.kind == "sum" and message.parts:
                row = view.payload(number, index, [tensor]).astype(np.float64)
                return Answer(-row[None, :], ())
        raise


def strength(rows: Floats) -> Floats:
    """Strength (m,) of noiseless answers (m, w): the largest absolute entry of each row."""
    return np.asarray(np.abs(rows).max(axis=1))


# -- with noise -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class NoiseModel:
    """Signal and noise of an answer, known from the declared protections.

    `signal`: how far an exact match moves the bias. `spread` (K,): deviation of each client's
    noise.
    """

    signal: float
    spread: Floats

    @property
    def of_sum(self) -> NoiseModel:
        """The same for a sum over all clients."""
        return NoiseModel(self.signal, np.array([np.sqrt((self.spread**2).sum())]))

    def log_ratio(self, moved: Floats, client: int | None = None) -> Floats:
        """ln Pr[moved | a match] / Pr[moved | none] of single movements (...), same shape.

        `client` is the sender's number; None: unknown.
        """
        own = self.spread if client is None else self.spread[client : client + 1]
        # a client without noise gets a narrow density
        spread, many = np.unique(np.maximum(own, 1e-3 * self.signal), return_counts=True)
        x = np.asarray(moved, dtype=np.float64)[..., None]

        def density(mean: float) -> Floats:
            each = np.log(many / spread) - 0.5 * ((x - mean) / spread) ** 2
            return np.asarray(np.logaddexp.reduce(each, axis=-1))

        return density(self.signal) - density(0.0)

    def evidence(self, moved: Floats) -> Floats:
        """ln Pr[moved | one row is a match] / Pr[moved | none is] of anonymous movements (m, ...):
        (...).

        It is the log of the mean likelihood ratio of the rows. Above 0 a match is more likely than
        none, and no other test on the rows is right more often. The largest row alone would nearly
        always exceed the cut for a single row, because noise has m tries.
        """
        each = self.log_ratio(moved)
        return np.asarray(np.logaddexp.reduce(each, axis=0) - np.log(len(each)))


def noise_model(
    declared: Sequence[Mapping[str, Any]], rate: float, records: int, clients: int
) -> NoiseModel | None:
    """Signal and noise of a step at `rate` on `records`; None without declared noise.

    Noise on steps (DP-SGD): a gradient that lies in the bias alone is clipped to C and moves the
    update by rate C / n; the noise is z times that. Noise on uploads: C, and z C.
    """
    signal, noise = np.inf, np.zeros(clients)
    for added in clipped_noise(declared, clients):
        step = rate * added.scale / records if added.place == "step" else added.scale
        signal = min(signal, step)
        noise += (np.resize(added.multiplier, clients) * step) ** 2
    return NoiseModel(float(signal), np.sqrt(noise)) if noise.any() else None


def gain_for(
    declared: Sequence[Mapping[str, Any]], classes: int, *, records: int = 1, rate: float = 1.0
) -> float:
    """The gain at which an exact match reaches the declared clipping bounds, nearly all of it in
    the bias; 1 without clipping.

    Clipping per example: the activation is at most 1, so the last layer's own gradient has norm at
    most 2. Clipping per update: the last layer's gradient is a mean over all records, and a match
    contributes one of n to the bias.
    """
    gain = 1.0
    for added in clipped_noise(declared, 1):
        if added.place == "step":
            gain = max(gain, 32.0, (classes + 1) * added.scale)
        else:
            gain = max(gain, records * max(32.0, (classes + 1) * added.scale / rate))
    return gain


def clipped_noise(declared: Sequence[Mapping[str, Any]], clients: int) -> list[AddedNoise]:
    """Noise that clients add after clipping to its scale, perhaps of multiplier 0."""
    every = [noise_of(d, clients=clients) for d in declared]
    return [n for n in every if n is not None and n.place in ("step", "upload") and n.scale]
