"""What an adversary knows of records before it sees any: ranges, sizes, how clients train."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedaudit.arrays import Floats
from fedaudit.audits.reconstruction.prior import Prior
from fedaudit.audits.reconstruction.scores import COLUMN_WITHIN
from fedaudit.knowledge.records import Records

if TYPE_CHECKING:
    from fedaudit.federation.local.schedule import Training


def prior_of(records: Records, training: Training | None) -> Prior:
    """Ranges of held-out records; sizes and training settings as public as the model."""
    others = records.task.encode(records.others)
    discrete = not others.x.is_floating_point()
    x = others.x.reshape(len(others), -1).numpy().astype(np.float64)
    sizes = {party: len(records.task.encode(data)) for party, data in records.own.items()}
    low, high = x.min(axis=0), x.max(axis=0)
    return Prior(
        low=low,
        high=high,
        constant=None if discrete else most_often_right(x, COLUMN_WITHIN * (high - low)),
        middle=np.median(x, axis=0),
        shape=tuple(others.x.shape[1:]),
        sizes=sizes,
        learning_rate=None if training is None else training.learning_rate,
        epochs=1 if training is None else training.epochs,
        batch_size=None if training is None else training.batch_size,
        discrete=discrete,
    )


def most_often_right(x: Floats, within: Floats) -> Floats:
    """The value (D,) of each column that lies `within` (D,) of most of x (n, D); of several the
    smallest. For categories it is the mode."""
    ordered = np.sort(x, axis=0)
    out = np.empty(x.shape[1])
    for d, column in enumerate(ordered.T):
        last = np.searchsorted(column, column + 2 * within[d], side="right")
        first = int((last - np.arange(len(column))).argmax())
        out[d] = 0.5 * (column[first] + column[last[first] - 1])
    return out
