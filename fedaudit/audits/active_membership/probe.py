"""The adversary's hook, and how it reads what comes back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from fedaudit.arrays import Floats, Indices
from fedaudit.errors import NotObservable
from fedaudit.hooks import Hook
from fedaudit.trace import ANONYMOUS, View

if TYPE_CHECKING:
    from torch import Tensor

    from fedaudit.randomness import Seed


@dataclass(frozen=True, eq=False)
class Planting(Hook):
    """Sends planted models in place of the honest one: `rows` (w,) to all, or (K, w) to each."""

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
    """What came back in one round: `rows` (m, w) of the tensor that answers, with the sign of a
    gradient; `senders` (m,) names, or one anonymous name for all; a sum has no sender."""

    rows: Floats
    senders: tuple[str, ...]

    @property
    def named(self) -> bool:
        return bool(self.senders) and ANONYMOUS not in self.senders


def read(view: View, tensor: str, number: int = 1) -> Answer:
    """The answers of a round, from whatever this view holds: single updates, or their sum."""
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
    """How strongly rows (m, w) answer where nothing is added to them: the largest movement of any
    entry, (m,)."""
    return np.asarray(np.abs(rows).max(axis=1))


# -- beside noise ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Noise:
    """What an exact match moves a bias by, `signal`, and the deviations (K,) of the noise that is
    added to it, `spread`, client by client. Both are public: they follow from what is declared."""

    signal: float
    spread: Floats

    @property
    def of_sum(self) -> Noise:
        """The same in a sum of all clients."""
        return Noise(self.signal, np.array([np.sqrt((self.spread**2).sum())]))

    def log_ratio(self, moved: Floats, client: int | None = None) -> Floats:
        """ln Pr[moved | a match] / Pr[moved | none] of single movements (...), same shape.

        Of client number `client`; None: of any one of them, who is not known.
        """
        own = self.spread if client is None else self.spread[client : client + 1]
        # a client without noise: far narrower than the signal, but with a density
        spread, many = np.unique(np.maximum(own, 1e-3 * self.signal), return_counts=True)
        x = np.asarray(moved, dtype=np.float64)[..., None]

        def density(mean: float) -> Floats:
            each = np.log(many / spread) - 0.5 * ((x - mean) / spread) ** 2
            return np.asarray(np.logaddexp.reduce(each, axis=-1))

        return density(self.signal) - density(0.0)

    def evidence(self, moved: Floats) -> Floats:
        """ln Pr[moved | one of them is a match] / Pr[moved | none is], of movements (m, ...) that
        arrive without names: (...).

        The mean of the likelihood ratios of the rows. Above 0 a match is likelier than none, and no
        other test of the rows is right more often. The largest row alone, against the cut for a
        single one, would nearly always exceed it: noise has m tries.
        """
        each = self.log_ratio(moved)
        return np.asarray(np.logaddexp.reduce(each, axis=0) - np.log(len(each)))


def noise_of(
    declared: Sequence[Mapping[str, Any]], rate: float, records: int, clients: int
) -> Noise | None:
    """What is declared of noise, for a step at `rate` on `records`; None where there is none.

    DP-SGD: an example whose gradient is the bias alone is clipped to C, and moves the update by
    rate C / n beside noise of z times that. Noise on updates: C, and z C.
    """
    signal, noise = np.inf, np.zeros(clients)
    for d in declared:
        z, clip = d.get("noise_multiplier"), d.get("clip")
        if d.get("name") not in ("dp_sgd", "update_noise") or clip is None:
            continue
        step = rate * float(clip) / records if d["name"] == "dp_sgd" else float(clip)
        signal = min(signal, step)
        noise += (np.resize(np.asarray(z, dtype=np.float64), clients) * step) ** 2
    return Noise(float(signal), np.sqrt(noise)) if noise.any() else None


def gain_for(
    declared: Sequence[Mapping[str, Any]], classes: int, *, records: int = 1, rate: float = 1.0
) -> float:
    """A gain that brings an exact match up to the declared clipping bounds, nearly all of it in the
    bias; 1 where nothing is clipped.

    Per example: the activation is at most 1, so the last layer's own gradient has norm 2 at most.
    Of an update: the last layer's gradient is a mean over all records, a match's share of the
    bias's one of n.
    """
    gain = 1.0
    for d in declared:
        if d.get("name") not in ("dp_sgd", "update_noise") or not d.get("clip"):
            continue
        clip = float(d["clip"])
        if d["name"] == "dp_sgd":
            gain = max(gain, 32.0, (classes + 1) * clip)
        else:
            gain = max(gain, records * max(32.0, (classes + 1) * clip / rate))
    return gain
