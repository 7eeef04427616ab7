"""What a view shows of a round: the models that were sent, and whose updates are whose."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from fedaudit.errors import NotApplicable, NotObservable
from fedaudit.trace import PUBLIC, View
from fedaudit.trace.recorder import MODEL
from fedaudit.trace.schema import UPLINKS


class Unusable(NotApplicable):
    """One round that cannot be surveyed; the others may be."""


def sent_models(
    view: View, columns: npt.NDArray[np.int64] | None = None
) -> dict[int, npt.NDArray[np.float32]]:
    """Round -> the model that was sent at its beginning; after the last round, the released one.

    Where clients are sent different models it is the first one's: see `one_model_for_all`.
    """
    found: dict[int, npt.NDArray[np.float32]] = {}
    for number in view.rounds:
        held = next(_held(view, number), None)
        if held is None:
            raise NotApplicable(
                f"{view.vantage} sees no model that was sent in round {number}",
                code="no_model",
                expected="a model from a server at the beginning of every round",
                got="none (gossip has no server, and a recording may lack downlinks)",
                remedy="audit a federation with a server, and record downlinks",
            )
        found[number] = arranged(held.astype(np.float32), columns)
    with contextlib.suppress(NotObservable):
        found[len(view.rounds) + 1] = arranged(view.released().astype(np.float32), columns)
    return found


def one_model_for_all(view: View, number: int) -> bool:
    """Whether everybody who was sent a model at the beginning of a round was sent the same."""
    models = _held(view, number)
    first = next(models)
    return all(np.array_equal(first, other) for other in models)


def _held(view: View, number: int) -> Iterator[npt.NDArray[np.float32]]:
    """The models (d,) that receivers held at the beginning of a round, one per stored row."""
    seen: set[int] = set()
    for _, m in view.indexed(number):
        row = m.parts.get(MODEL)
        if m.kind != "model" or row is None or m.receiver == PUBLIC or m.step or row in seen:
            continue
        # a client that sends its model up hands nothing down: what counts is what is held
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
    """Rows of those senders who have candidates, and the numbers of their pools."""
    known = [(j, parties.index(s)) for j, s in enumerate(senders) if s in parties]
    if len(known) < 2:
        raise Unusable(
            "fewer than two senders have records to be asked about",
            code="too_few_clients",
            expected="candidate records of at least two of a round's senders",
            got=f"{len(known)} of {len(senders)} in round {number}",
            remedy="give records of more clients, or more held-out records",
        )
    return [j for j, _ in known], [p for _, p in known]


def arranged(
    rows: npt.NDArray[np.float32], columns: npt.NDArray[np.int64] | None
) -> npt.NDArray[np.float32]:
    """Rows (..., d) in the model's order of tensors."""
    return rows if columns is None else rows[..., columns]
