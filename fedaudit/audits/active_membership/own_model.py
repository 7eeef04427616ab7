"""The adversary inside the run's own model: same architecture, same local steps.

Clients that load received weights into a model of their own refuse another architecture, and they
take the local steps that they always take. This server plants within both. One neuron of the first
layer is a half-space that of all possible records only the target lies in:

    w = A (T - mean), A = (covariance + ridge)^-1; b halfway between the target's and the next value

All other neurons are so negative that their gradient is exactly zero, and the second layer has
weights 0 and biases 1. While no example lies in the half-space, no step of any length moves the
second layer's weights; the first example that does moves them. Not in the paper.

Behind DP-SGD every weight moves. A match moves one column of the second layer, in a direction that
its label decides, by the clipping bound in every step that draws it; all other records move that
column by nothing. So its likelihood ratio against the declared noise decides.

Holds for `Linear` layers with ReLU or GELU between them and without weight decay; behind DP-SGD for
plain SGD. Records that no half-space separates from the others are answered with yes too often.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from fedaudit.accounting import Exposure
from fedaudit.arrays import Floats, Indices, Rows
from fedaudit.audits.active_membership.games import Challenge, Universe
from fedaudit.hooks import AddedNoise

DEAD = 30.0
"""Distance of pre-activations below zero, at which GELU too has no gradient in 32 bits."""
MATCH = 1.0
"""Pre-activation of the target. Large ones make the local steps that follow diverge."""
LOUD = 8.0
"""The same behind DP-SGD, which bounds every step: 0.99 of a clipped gradient lie in the column."""
LARGEST = 8.0
"""Pre-activation of any record where only sums leave: clients of a secure sum refuse to encode
large updates. Records that no half-space separates then share theirs with more others."""
RIDGE = 1e-3
"""Added to the covariance, in units of its mean diagonal."""
AT_ONCE = 1 << 22


@dataclass(frozen=True, kw_only=True)
class OwnModel:
    """The run's model: `task`, weights `start` (w,), and the tensors of its first two layers as
    columns of a row. `classes`: it tells apart; `labels` (N,): of the universe's records. `rate`:
    the clients' learning rate. `silent`: where the next record is put below zero. `reach`: how far
    below zero there is a gradient; 0 for ReLU. `largest`: pre-activation that no record exceeds;
    `match`: that of the target."""

    task: Any
    start: npt.NDArray[np.float32] = field(repr=False)
    first: tuple[slice, slice]
    second: tuple[slice, slice]
    answer_tensor: str
    rate: float
    classes: int
    labels: Indices
    silent: float = DEAD
    reach: float = DEAD / 2
    largest: float = float("inf")
    match: float = MATCH

    @property
    def neurons(self) -> int:
        """Units of the first layer, each of which can hold one half-space."""
        return self.first[1].stop - self.first[1].start


def half_spaces(values: npt.ArrayLike) -> tuple[Floats, Floats, Floats]:
    """Directions (N, r), thresholds (N,) and half widths (N,) of the gap for records (N, r).

    A half width of 0 or less: the half-space of this record holds others as well.
    """
    x = np.asarray(values, dtype=np.float64)
    centred = x - x.mean(axis=0)
    spread = centred.T @ centred / len(x)
    ridge = RIDGE * max(float(np.trace(spread)) / len(spread), 1e-12)
    w = centred @ np.linalg.inv(spread + ridge * np.eye(len(spread)))
    at = x @ w.T  # (record, target)
    own = at.diagonal().copy()
    np.fill_diagonal(at, -np.inf)
    nearest = at.max(axis=0)
    return w, (own + nearest) / 2.0, (own - nearest) / 2.0


@dataclass(frozen=True)
class NoisyColumns:
    """A neuron's column of the second layer behind DP-SGD.

    `signal` (g, c): how a match moves it, of each client's own game or of one that all share.
    `spread` (K,): deviation of each client's noise in every entry.
    """

    signal: Floats
    spread: Floats

    @property
    def of_sum(self) -> NoisyColumns:
        """The same for a sum over all clients."""
        return NoisyColumns(self.signal, np.array([np.sqrt((self.spread**2).sum())]))

    def log_ratio(self, moved: Floats, client: int | None = None) -> Floats:
        """ln Pr[moved | a match] / Pr[moved | none] of columns (..., c): (...).

        `client` is the sender's number; None: unknown, taken as the one with most noise.
        """
        signal = self.signal[client or 0] if len(self.signal) > 1 else self.signal[0]
        size = float(signal @ signal)
        spread = self.spread.max() if client is None else self.spread[client]
        spread = max(float(spread), 1e-3 * math.sqrt(size))
        return np.asarray((np.asarray(moved, np.float64) @ signal - 0.5 * size) / spread**2)

    def evidence(self, moved: Floats) -> Floats:
        """The same of anonymous columns (m, ..., c), one of which may be a match: (...)."""
        each = self.log_ratio(moved)
        return np.asarray(np.logaddexp.reduce(each, axis=0) - math.log(len(each)))


@dataclass(frozen=True, kw_only=True)
class HalfSpaces:
    """Says yes if a record lies in the target's half-space."""

    universe: Universe
    model: OwnModel

    @property
    def answer_tensor(self) -> str:
        return self.model.answer_tensor

    @property
    def cut(self) -> float:
        return 0.0

    def by_neuron(self, rows: Floats, count: int) -> Floats:
        """Answers (m, w) as the strength of each of the first `count` neurons (m, count)."""
        return np.asarray(np.abs(self.columns(rows, count)).max(axis=2))

    def columns(self, rows: Floats, count: int) -> Floats:
        """Answers (m, w) as the columns of each of the first `count` neurons (m, count, c)."""
        each = rows.reshape(len(rows), -1, self.model.neurons)
        return np.moveaxis(each, 1, 2)[:, :count]

    def behind_noise(
        self, noise: AddedNoise, step: Exposure, records: int, clients: int, target: Indices
    ) -> NoisyColumns:
        """Signal and noise of clients with `records` records after the steps of a round.

        `target` (g,): of each client's game, or of the one that they share.
        """
        drawn = step.sampling_rate * records  # what a sum is divided by
        visits = step.sampling_rate * step.steps
        signal = (
            self.model.rate * visits / drawn * self._clipped(noise.scale)[self.model.labels[target]]
        )
        each = self.model.rate * noise.scale / drawn * math.sqrt(step.steps)
        return NoisyColumns(signal, each * np.resize(np.asarray(noise.multiplier), clients))

    def _clipped(self, bound: float) -> Floats:
        """The target's clipped gradient of its column, by its label (y, c)."""
        import torch

        task = self.model.task
        classes = self.model.classes
        flat = torch.from_numpy(self.rows(np.zeros(1, np.int64), classes=classes)[0])
        x = torch.from_numpy(self.universe.values[:1]).float()
        out = []
        for label in range(classes):
            at = flat.clone().requires_grad_()
            loss = task.losses(task.differentiable(at), x, torch.tensor([label]), None).sum()
            (gradient,) = torch.autograd.grad(loss, at)
            whole = gradient.double().numpy()
            column = self.columns(whole[None, self.model.second[0]], 1)[0, 0]
            out.append(column * min(1.0, bound / float(np.linalg.norm(whole))))
        return np.stack(out)

    @cached_property
    def planted(self) -> tuple[Floats, Floats, Floats]:
        """Directions (N, r), scales and biases (N,): the target lies at `match`, the next record at
        -silent. A record without a gap of its own gets a small one, or as `largest` allows."""
        w, threshold, half = half_spaces(self.universe.values)
        least = 2e-6 * np.maximum(np.abs(threshold), 1.0)
        scale = (self.model.match + self.model.silent) / np.maximum(2.0 * half, least)
        scale = np.minimum(scale, self.model.largest / np.maximum(-2.0 * half, 1e-300))
        return w, scale, self.model.match - scale * (threshold + half)

    def scores(self, played: Challenge, rng: np.random.Generator) -> Floats:
        games, n = played.data.shape
        step = max(1, AT_ONCE // (n * self.universe.features))
        out = np.empty(games)
        for low in range(0, games, step):
            part = played.data[low : low + step]
            shown = self.universe.perturbed(part.ravel(), rng).reshape(*part.shape, -1)
            out[low : low + step] = self.answers(shown, played.target[low : low + step])
        return out

    def answers(self, shown: Floats, target: Indices) -> Floats:
        w, scale, bias = (part[target] for part in self.planted)
        found = np.einsum("gnr,gr->gn", shown, w).max(axis=1)
        return np.asarray(scale * found + bias + self.model.reach)

    def task(self, *, classes: int, detectors: int = 1) -> Any:
        return self.model.task

    def rows(
        self,
        target: Indices,
        *,
        classes: int,
        detectors: int = 1,
        armed: npt.ArrayLike | None = None,
        gain: float = 1.0,
    ) -> Rows:
        """Planted models (K, w): the run's own weights but for its first two layers.

        Model k has its half-space in neuron `armed[k]` (default: the first).
        """
        neuron = np.zeros(len(target), np.int64) if armed is None else np.asarray(armed, np.int64)
        model = np.arange(len(target))
        w, scale, bias_of_target = (part[target] for part in self.planted)
        out = np.tile(self.model.start, (len(target), 1)).astype(np.float32)
        weight, bias = self.model.first
        after, its_bias = self.model.second
        out[:, weight], out[:, bias] = 0.0, -DEAD
        columns = weight.start + neuron[:, None] * w.shape[1] + np.arange(w.shape[1])
        out[model[:, None], columns] = scale[:, None] * w
        out[model, bias.start + neuron] = bias_of_target
        out[:, after], out[:, its_bias] = 0.0, 1.0
        return out

    def rate(self, records: int, classes: int) -> float:
        return self.model.rate
