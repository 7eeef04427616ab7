"""A run as a generator: every round yields a training request, the caller sends updates back.

The federation's own trainer may compute the updates, or a trainer that serves many federations
(`federation.many`), or the nodes of another runtime.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass

from torch import Tensor

from fedaudit.arrays import Indices


@dataclass(frozen=True)
class Request:
    """One round's training request: start from `sent` (d,), or from one row each (n, d)."""

    sent: Tensor
    clients: Indices
    number: int


RoundLoop = Generator[Request, Tensor, Tensor]
"""A run in progress: requests out, updates (n, d) in, the final model at the end."""


def run_rounds(rounds: RoundLoop, train: Callable[[Request], Tensor]) -> Tensor:
    """Answer every request of a run; returns the final model (d,).

    An error in training is raised inside the round that requested it, so that it can clean up.
    """
    try:
        request = next(rounds)
        while True:
            try:
                deltas = train(request)
            except BaseException as error:
                rounds.throw(error)
                raise
            request = rounds.send(deltas)
            del deltas
    except StopIteration as done:
        final: Tensor = done.value
        return final
