"""The rows that a view shows of every round, with the model that clients held before them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedaudit.audits.records.seen import (
    EVERYBODY,
    in_model_order,
    kinds_of,
    one_model_for_all,
    sent_models,
    sums_of,
)
from fedaudit.errors import NotObservable
from fedaudit.trace import ANONYMOUS, View


@dataclass(frozen=True)
class SeenRows:
    """What a view shows of one round: `rows` (K, d) in the model's order, and who sent each."""

    number: int
    rows: npt.NDArray[np.float32]
    senders: tuple[str, ...]
    start: npt.NDArray[np.float32]
    sums: bool = False
    one_model: bool = True


def seen_rows(view: View, columns: npt.NDArray[np.int64] | None) -> Iterator[SeenRows]:
    """Updates of every round; secure sums, or what the model moved by, where there are none."""
    models = sent_models(view, columns)
    for number in view.rounds:
        one_model = one_model_for_all(view, number)
        try:
            updates = view.updates(number)
        except NotObservable:
            sums = sums_of(view, number)
            if sums is not None:
                sums = in_model_order(sums, columns)
            elif number + 1 in models and one_model:
                sums = (models[number + 1] - models[number])[None]
            if sums is not None:
                everybody = (EVERYBODY,) * len(sums)
                yield SeenRows(number, sums, everybody, models[number], sums=True)
            continue
        senders = tuple(EVERYBODY if s == ANONYMOUS else s for s in updates.senders)
        rows = in_model_order(updates.rows, columns)
        if "gradient" in kinds_of(view, number, [int(i) for i in updates.messages]):
            one_model = False  # a ratio needs no scale; matching would need the server's rate
        yield SeenRows(number, rows, senders, models[number], one_model=one_model)
