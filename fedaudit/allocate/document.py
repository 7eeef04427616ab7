"""An allocation as plain values, for its files and the report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedaudit import __version__
from fedaudit.allocate.clients import Clients
from fedaudit.allocate.page import statements
from fedaudit.protections.noise_allocation import LOW_MULTIPLIER, Allocation, leverage
from fedaudit.protections.noise_allocation.bounds import LEAST_MULTIPLIER


def document_of(
    who: Clients,
    found: Allocation,
    described: str,
    source: str | Path,
    weights: str,
    target: float | None,
    window: int | None,
    unit: str = "record",
) -> dict[str, Any]:
    """The allocation with settings, bounds and statements as plain values."""
    before, after = found.uniform_bounds(), found.bounds()
    vacuous = after.vacuous
    columns: dict[str, Any] = {
        "client": list(who.names),
        "records": None if who.sizes is None else who.sizes.tolist(),
        "group": None if who.groups is None else list(who.groups),
        "leverage": found.leverage.tolist(),
        "sigma": np.sqrt(found.sigma_squared).tolist(),
        "noise_multiplier": found.noise_multiplier.tolist(),
        "uniform_noise_multiplier": [found.uniform_noise_multiplier] * who.n,
        "epsilon": None if found.epsilon is None else found.epsilon.tolist(),
        "uniform_epsilon": None
        if found.uniform_epsilon is None
        else found.uniform_epsilon.tolist(),
        "published_before": before.published.tolist(),
        "published_after": after.published.tolist(),
        "dataset_before": before.dataset.tolist(),
        "dataset_after": after.dataset.tolist(),
        "most_there_is": None if after.cap is None else after.cap.tolist(),
        "vacuous": None if vacuous is None else vacuous.tolist(),
    }
    kept = {name: values for name, values in columns.items() if values is not None}
    rows = [dict(zip(kept, row, strict=True)) for row in zip(*kept.values(), strict=True)]
    worse = set(found.worse.tolist())
    for i, row in enumerate(rows):
        row["less_noise_than_uniform"] = i in worse
    document: dict[str, Any] = {
        "fedaudit": __version__,
        "source": str(source),
        "leverage": described,
        "objective": found.objective,
        "rounds": found.rounds,
        "batch_size": found.batch_size,
        "steps_per_round": sorted(set(found.steps_per_round.tolist())),
        "budget": found.budget,
        "budget_counts": weights,
        "target_worst_case": target,
        "delta": found.delta,
        "accountant": found.accountant,
        "unit": unit,
        "epsilon_rounded": found.epsilon_rounded,
        "least_amplified_multiplier": LEAST_MULTIPLIER,
        "low_multiplier": LOW_MULTIPLIER,
        "worst_case": found.worst_case,
        "uniform_worst_case": found.uniform_worst_case,
        "gap": found.gap,
        "residual": found.residual,
        "scales": [
            {"scale": scale, "worst_case": k, "uniform_worst_case": uniform}
            for scale, (k, uniform) in found.at_scales().items()
        ],
        "model_noise": _model_noise(who, found),
        "window": None if window is None else _windowed(who, found, window),
        "lone_members": []
        if who.groups is None
        else [who.names[i] for i in leverage.lone_members(who.groups)],
        "clients": rows,
    }
    document["statements"] = [{"about": a, "text": t} for a, t in statements(document)]
    return document


def _model_noise(who: Clients, found: Allocation) -> dict[str, dict[str, float]]:
    averages: dict[str, npt.ArrayLike] = {"equal": np.ones(who.n)}
    if who.sizes is not None:
        averages["size"] = who.sizes
    out = {}
    for name, p in averages.items():
        allocated, uniform = found.model_noise(p)
        out[name] = {"allocated": allocated, "uniform": uniform, "ratio": allocated / uniform}
    return out


def _windowed(who: Clients, found: Allocation, window: int) -> dict[str, Any]:
    """The worst client's bounds if keys change after `window` rounds, with this noise."""
    p = np.ones(who.n) if who.sizes is None else who.sizes
    seen = found.windowed(window, model_weights=p)
    return {
        "rounds": seen.rounds_seen,
        "published": float(seen.published.max()),
        "dataset": float(seen.dataset.max()),
        "dataset_through_models": float(seen.models.max()),
        "dataset_without_window": float(found.bounds().dataset.max()),
        "vacuous": None if seen.cap is None else int((seen.dataset >= seen.cap).sum()),
        "average": "equal" if who.sizes is None else "size",
    }
