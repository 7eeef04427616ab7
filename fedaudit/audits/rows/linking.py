"""Links of anonymous rows from everything that crosses the wire."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fedaudit.arrays import Indices
from fedaudit.stats.assignment import Labels
from fedaudit.stats.evidence import Trait, Weighing, link, weigh
from fedaudit.trace import View


def combined(
    traits: Mapping[str, Trait], rounds: Indices, clients: int, rng: np.random.Generator
) -> tuple[list[Labels], dict[str, float]]:
    """Labels from everything that crosses the wire, and the strength of every trait used.

    If no trait tells anything, the direction alone is used.
    """
    weighing = weigh(traits, rounds, clients)
    if not weighing.traits:
        weighing = Weighing({"direction": (traits["direction"], 1.0)})
    used = {name: strength for name, (_, strength) in weighing.traits.items()}
    return link(weighing, rounds, clients, rng), used


def count_clients(view: View, sizes: Sequence[int]) -> int:
    """Number of clients: those to which the server sent models."""
    receivers = {
        m.receiver
        for number in view.rounds
        for m in view.messages(number)
        if m.kind == "model" and m.sender == "server" and m.receiver != "public"
    }
    return max(len(receivers), max(sizes), 2)
