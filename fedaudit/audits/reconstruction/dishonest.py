"""Read records from the answers to planted weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedaudit.arrays import Floats
from fedaudit.audits.reconstruction import analytic
from fedaudit.audits.reconstruction.planting import Kind
from fedaudit.audits.reconstruction.prior import Prior
from fedaudit.audits.records.seen import EVERYBODY, rows_of
from fedaudit.stats.bias_ratios import ROUNDING
from fedaudit.trace import View


@dataclass(frozen=True, kw_only=True)
class PlantedRound:
    """What a server sees of a round to which it sent planted weights.

    `weight` and `bias`: columns of the first layer in a row; `largest`: its largest planted number.
    `held`: what must live as long as the view.
    """

    kind: Kind
    view: View
    weight: slice
    bias: slice
    largest: float
    held: Any = None


def read(played: PlantedRound, prior: Prior, most: int) -> Iterator[tuple[str, Floats]]:
    """Sender (or everybody) and guessed records (G, D) of every answer, sums included."""
    rows, senders = rows_of(played.view, 1)
    bias = rows[:, played.bias]
    weight = rows[:, played.weight].reshape(*bias.shape, -1)
    if played.kind == "imprint":
        weight, bias = beside(weight), beside(bias)
    smallest = ROUNDING * float(np.finfo(np.float32).eps) * played.largest
    guesses = analytic.candidates(weight, bias, prior.low, prior.high, smallest=smallest, most=most)
    for sender, x in zip(senders, guesses, strict=True):
        yield sender if sender in prior.sizes else EVERYBODY, x


def beside(units: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Differences of neighbours among units (K, h, ...), then the units: (K, 2 h - 1, ...)."""
    return np.concatenate([units[:, :-1] - units[:, 1:], units], axis=1)
