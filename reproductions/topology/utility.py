"""Does allocated noise cost accuracy? Pairs of runs at equal budget and seed, and TOST."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedaudit.federation.topology import hierarchical
from fedaudit.protections.noise_allocation import allocate
from fedaudit.protections.noise_allocation import leverage as proxies
from fedaudit.randomness import Seed
from fedaudit.results import Underpowered
from reproductions.topology import equivalence, setting
from reproductions.topology.setting import CLASSES, Scale

MARGIN = 0.5  # percentage points
ETA = 0.5


def pair(scale: Scale, rounds: int, budget: float, seed: int) -> dict[str, float]:
    """Accuracy in per cent with uniform and with allocated noise: same deal, batches, model and
    random numbers of the noise; only its size differs."""
    graph = hierarchical(scale.clients, Seed(1), sizes=scale.cliques, joined="none")
    found = allocate(
        proxies.coupled(graph.degree, coupling=ETA, classes=CLASSES),
        rounds=rounds,
        batch_size=scale.batch,
        budget=budget,
    )
    scale = replace(scale, rounds=rounds)
    config = setting.config_of(scale, ETA, 1.0, rate=scale.utility_rate)
    out: dict[str, float] = {"gap": float(found.gap)}
    for name, noise in (
        ("uniform", np.full(scale.clients, found.uniform_noise_multiplier)),
        ("allocated", found.noise_multiplier),
    ):
        federation, _ = setting.dealt(config, seed, noise.tolist())
        if setting.sizes_of(federation).min() < scale.batch:
            raise ValueError("a batch is larger than the smallest client")
        out[name] = 100.0 * setting.accuracy(federation)
    return out


def row(pairs: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """One row of table II: mean absolute difference, 95 % interval, both tests."""
    a = np.array([p["allocated"] for p in pairs])
    b = np.array([p["uniform"] for p in pairs])
    tested = equivalence.paired(a, b, MARGIN)
    assert not isinstance(tested, Underpowered)
    wide = equivalence.paired(a, b, MARGIN, confidence=0.975)  # its interval is one of 95 %
    assert not isinstance(wide, Underpowered)
    return {
        "mean absolute": float(np.abs(a - b).mean()),
        "difference": float((a - b).mean()),
        "low": wide.difference.low,
        "high": wide.difference.high,
        "t": tested.difference_p_value,
        "tost": tested.p_value,
        "equivalent": bool(tested.equivalent),
        "n": len(a),
        "accuracy": float(np.concatenate([a, b]).mean()),
    }
