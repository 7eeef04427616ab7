"""How a federation is run: settings alone, so that a config is checked without loading torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from fedaudit.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Rounds:
    """How the federation is run.

    `clients` is how many there are (default: one per owner in the data, or 20); `participation`
    is the share of clients that take part in a round; `weighting` of uploads by
    number of examples or equal; `wire` says whether clients send deltas or whole models.
    """

    clients: int | None = None
    rounds: int = 10
    participation: float = 1.0
    weighting: Literal["equal", "size"] = "equal"
    aggregation: Literal["fedavg", "hierarchical", "gossip"] = "fedavg"
    server_learning_rate: float = 1.0
    server_momentum: float = 0.0
    wire: Literal["delta", "model"] = "delta"

    def __post_init__(self) -> None:
        checks = (
            ("clients", self.clients is None or self.clients >= 1, "at least 1"),
            ("rounds", self.rounds >= 1, "at least 1"),
            ("participation", 0 < self.participation <= 1, "above 0, at most 1"),
            ("server_learning_rate", self.server_learning_rate > 0, "above 0"),
            ("server_momentum", 0 <= self.server_momentum < 1, "from 0 to below 1"),
        )
        for name, fine, expected in checks:
            if not fine:
                raise ConfigError(
                    f"federation.{name} is out of range",
                    expected=expected,
                    got=str(getattr(self, name)),
                    remedy="correct the value",
                )

    def taking_part(self, count: int) -> int:
        """How many of `count` clients take part in a round."""
        return max(1, math.ceil(self.participation * count - 1e-9))
