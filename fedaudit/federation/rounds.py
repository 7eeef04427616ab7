"""Settings of the rounds, apart from the engine, so that checking a config does not load torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from fedaudit.settings import Count, Positive, ShareAboveZero, ShareBelowOne, checked


@dataclass(frozen=True, kw_only=True)
@checked("federation")
class Rounds:
    """How the federation runs.

    `clients`: number of clients (default: one per owner in the data, or 20); `participation`: share
    of clients in a round; `weighting`: uploads count equally or by number of examples; `wire`:
    clients send deltas or whole models.
    """

    clients: Count | None = None
    rounds: Count = 10
    participation: ShareAboveZero = 1.0
    weighting: Literal["equal", "size"] = "equal"
    aggregation: Literal["fedavg", "hierarchical", "gossip"] = "fedavg"
    server_learning_rate: Positive = 1.0
    server_momentum: ShareBelowOne = 0.0
    wire: Literal["delta", "model"] = "delta"

    def taking_part(self, count: int) -> int:
        """Number of clients in a round, out of `count`."""
        return max(1, math.ceil(self.participation * count - 1e-9))
