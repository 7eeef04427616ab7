"""`run_rounds`: requests are answered in order, and errors reach the round that requested."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from fedaudit.federation.requests import Request, RoundLoop, run_rounds


def summed(rounds: int, seen: list[str]) -> RoundLoop:
    """A loop that adds the updates it receives and notes errors in `seen`."""
    model = torch.zeros(2)
    for number in range(1, rounds + 1):
        try:
            deltas = yield Request(model, np.arange(3), number)
        except ValueError as error:
            seen.append(f"round {number}: {error}")
            raise
        model = model + deltas.sum(0)
    return model


def test_rounds_run_to_the_last_one() -> None:
    def train(request: Request) -> Tensor:
        return torch.full((len(request.clients), 2), float(request.number))

    assert run_rounds(summed(4, []), train).tolist() == [30.0, 30.0]  # 3 * (1 + 2 + 3 + 4)


def test_a_training_error_is_raised_in_the_round_that_requested() -> None:
    def train(request: Request) -> Tensor:
        if request.number == 3:
            raise ValueError("a client is lost")
        return torch.zeros(3, 2)

    seen: list[str] = []
    with pytest.raises(ValueError, match="a client is lost"):
        run_rounds(summed(4, seen), train)
    assert seen == ["round 3: a client is lost"]
