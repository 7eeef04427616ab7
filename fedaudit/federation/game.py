"""A run as a game of two sides: the rounds ask, and whoever trains the clients answers.

The federation hands out a `Request` and waits for the updates. Its own trainer may answer, one
that serves many federations at once (`federation.many`), or the nodes of another runtime.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import Tensor

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Request:
    """What clients are asked in one round: train from `sent` (d,), or from a row (n, d) each."""

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
