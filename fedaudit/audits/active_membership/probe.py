"""The adversary's hook, and how it reads what comes back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from fedaudit.errors import NotObservable
from fedaudit.hooks import Hook, Indices
from fedaudit.trace import ANONYMOUS, View

if TYPE_CHECKING:
    from torch import Tensor

    from fedaudit.randomness import Seed

Floats = npt.NDArray[np.float64]


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
    """How strongly rows (m, w) answer: the largest gradient of any entry, (m,).

    Of a bias that nothing but members can move, only the direction that a member moves it to
    counts: noise has both.
    """
    return np.asarray(rows.max(axis=1))


def noise_cut(declared: Sequence[Mapping[str, Any]], rate: float, records: int) -> float:
    """Half of what an exact match moves the bias by, where noise is declared; else 0.

    DP-SGD: an example whose gradient is the bias alone is clipped to C, and moves the update by
    rate C / n. Noise on updates: to C. Without noise any movement is an answer.
    """
    signal, noisy = np.inf, False
    for d in declared:
        z, clip = d.get("noise_multiplier"), d.get("clip")
        if d.get("name") not in ("dp_sgd", "update_noise") or clip is None:
            continue
        most = max(z) if isinstance(z, list | tuple) else z
        noisy |= bool(most)
        step = rate * float(clip) / records if d["name"] == "dp_sgd" else float(clip)
        signal = min(signal, step)
    return 0.5 * float(signal) if noisy else 0.0


def gain_for(declared: Sequence[Mapping[str, Any]], classes: int) -> float:
    """A gain that brings an exact match's gradient up to the declared clipping bound, nearly all of
    it in the bias; 1 where nothing is clipped per example.

    The activation is at most 1, so the last layer's own gradient has norm 2 at most.
    """
    clips = [float(d["clip"]) for d in declared if d.get("name") == "dp_sgd" and d.get("clip")]
    return max(32.0, (classes + 1) * max(clips)) if clips else 1.0
