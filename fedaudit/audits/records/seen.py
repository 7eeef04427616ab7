"""What a view shows of a round: the models that clients received, and the senders of updates."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from fedaudit.errors import NotApplicable, NotObservable
from fedaudit.trace import PUBLIC, View
from fedaudit.trace.recorder import MODEL
from fedaudit.trace.schema import UPLINKS

EVERYBODY = ""
"""Sender of a row that may hold records of any client: shuffled, or a sum."""


class UnusableRound(NotApplicable):
    """One round cannot be surveyed; others may be."""


def sent_models(
    view: View, columns: npt.NDArray[np.int64] | None = None
) -> dict[int, npt.NDArray[np.float32]]:
    """Round -> the model sent at its beginning; after the last round, the released one.

    If clients are sent different models, the first one counts: see `one_model_for_all`.
    """
    found: dict[int, npt.NDArray[np.float32]] = {}
    for number in view.rounds:
        held = next(_initial_models(view, number), None)
        if held is None:
            raise NotApplicable(
                f"{view.vantage} sees no model that was sent in round {number}",
                code="no_model",
                expected="a model from a server at the beginning of every round",
                got="none (gossip has no server, and a recording may lack downlinks)",
                remedy="audit a federation with a server, and record downlinks",
            )
        found[number] = in_model_order(held.astype(np.float32), columns)
    with contextlib.suppress(NotObservable):
        found[len(view.rounds) + 1] = in_model_order(view.released().astype(np.float32), columns)
    return found


def one_model_for_all(view: View, number: int) -> bool:
    """Whether all receivers of a model at the beginning of a round received the same one."""
    models = _initial_models(view, number)
    first = next(models)
    return all(np.array_equal(first, other) for other in models)


def _initial_models(view: View, number: int) -> Iterator[npt.NDArray[np.float32]]:
    """The models (d,) that receivers held at the beginning of a round, one per stored row."""
    seen: set[int] = set()
    for _, m in view.indexed(number):
        row = m.parts.get(MODEL)
        if m.kind != "model" or row is None or m.receiver == PUBLIC or m.step or row in seen:
            continue
        # `m` may be a client's upload: count only what the receiver holds
        held = view.received(number, m.receiver, before=1)
        if held is not None:
            seen.add(row)
            yield held


def senders_in(view: View, number: int) -> set[str]:
    return {m.sender for _, m in view.indexed(number) if m.kind in UPLINKS}


def kinds_of(view: View, number: int, messages: Sequence[int]) -> set[str]:
    chosen = set(messages)
    return {m.kind for i, m in view.indexed(number) if i in chosen}


def known_rows(
    parties: Sequence[str], senders: Sequence[str], number: int
) -> tuple[list[int], list[int]]:
    """Rows of the senders with candidates, and the numbers of their pools."""
    known = [(j, parties.index(s)) for j, s in enumerate(senders) if s in parties]
    if len(known) < 2:
        raise UnusableRound(
            "fewer than two senders have candidate records",
            code="too_few_clients",
            expected="candidate records of at least two of a round's senders",
            got=f"{len(known)} of {len(senders)} in round {number}",
            remedy="give records of more clients, or more held-out records",
        )
    return [j for j, _ in known], [p for _, p in known]


def in_model_order(
    rows: npt.NDArray[np.float32], columns: npt.NDArray[np.int64] | None
) -> npt.NDArray[np.float32]:
    """Rows (..., d) in the model's order of tensors."""
    return rows if columns is None else rows[..., columns]


def sums_of(view: View, number: int) -> npt.NDArray[np.float32] | None:
    """The secure sums (m, d) of a round in the recorded order; None if the view shows none."""
    sums = [
        view.payload(number, i)
        for i, m in view.indexed(number)
        if m.kind == "sum" and MODEL in m.parts
    ]
    return np.stack(sums).astype(np.float32) if sums else None


def rows_of(view: View, number: int) -> tuple[npt.NDArray[np.float32], tuple[str, ...]]:
    """Updates (K, d) of a round and their senders, or the secure sums in their place."""
    try:
        updates = view.updates(number)
    except NotObservable:
        sums = sums_of(view, number)
        if sums is None:
            raise
        return sums, (EVERYBODY,) * len(sums)
    return updates.rows, updates.senders
