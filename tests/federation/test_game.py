"""Two sides of a run: rounds that ask, and whoever answers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from fedaudit.federation.game import Game, Request, drive


def summed(rounds: int, seen: list[str]) -> Game:
    """Adds what it is answered; says what reached it."""
    model = torch.zeros(2)
    for number in range(1, rounds + 1):
        try:
            deltas = yield Request(model, np.arange(3), number)
        except ValueError as error:
            seen.append(f"round {number}: {error}")
            raise
        model = model + deltas.sum(0)
    return model


def test_a_game_is_played_to_its_end() -> None:
    def train(request: Request) -> Tensor:
        return torch.full((len(request.clients), 2), float(request.number))

    assert drive(summed(4, []), train).tolist() == [30.0, 30.0]  # 3 * (1 + 2 + 3 + 4)


def test_what_goes_wrong_in_training_reaches_the_round_that_asked() -> None:
    def train(request: Request) -> Tensor:
        if request.number == 3:
            raise ValueError("a client is lost")
        return torch.zeros(3, 2)

    seen: list[str] = []
    with pytest.raises(ValueError, match="a client is lost"):
        drive(summed(4, seen), train)
    assert seen == ["round 3: a client is lost"]
