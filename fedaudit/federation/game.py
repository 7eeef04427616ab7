"""A run as a generator: the rounds yield training requests, the caller sends updates back.

The federation yields a `Request` and waits for the updates. Its own trainer may compute them, or a
trainer that serves many federations (`federation.many`), or the nodes of another runtime.
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


Game = Generator[Request, Tensor, Tensor]
"""A run in progress: requests out, updates (n, d) in, the final model at the end."""


def drive(game: Game, train: Callable[[Request], Tensor]) -> Tensor:
    """Play a game to its end. What goes wrong in training reaches the round that asked for it."""
    try:
        request = next(game)
        while True:
            try:
                deltas = train(request)
            except BaseException as error:
                game.throw(error)
                raise
            request = game.send(deltas)
            del deltas
    except StopIteration as done:
        final: Tensor = done.value
        return final
