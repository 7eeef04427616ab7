"""An allocation from a table of clients, one row each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fedaudit.accounting import Accountant
from fedaudit.errors import UsageError
from fedaudit.experiment.allocate.clients import no_sizes, read_clients
from fedaudit.experiment.allocate.document import document_of
from fedaudit.experiment.allocate.files import config_for, write_files
from fedaudit.experiment.allocate.leverages import leverage_of
from fedaudit.experiment.reporting import Progress, quietly
from fedaudit.protections.noise_allocation import (
    Allocation,
    Objective,
    budget_for,
    leverage,
    shares,
)
from fedaudit.protections.noise_allocation import allocate as allocate_noise

Weights = Literal["equal", "size"]

WORTH_A_BAR = 20  # epsilons; fewer take a few seconds
DELTA = 1e-5


@dataclass(frozen=True, kw_only=True)
class Allocated:
    """A finished allocation: the clients in the order of their rows, and the plain document."""

    clients: tuple[str, ...]
    allocation: Allocation
    document: Mapping[str, Any]
    path: Path | None


def allocate(
    source: str | Path,
    *,
    rounds: int,
    batch_size: int,
    budget: float | None = None,
    target_worst_case: float | None = None,
    size_column: str | None = None,
    group_column: str | None = None,
    client_column: str | None = None,
    edges: str | Path | None = None,
    allow_disconnected: bool = False,
    leverage_by: str | None = None,
    coupling: float | None = None,
    classes: int | None = None,
    weights: Weights = "equal",
    optimise: Objective = "published",
    delta: float | None = None,
    steps_per_round: int | Literal["epoch"] = 1,
    window: int | None = None,
    accountant: Accountant = "pld",
    out: str | Path | None = None,
    progress: Progress = quietly,
) -> Allocated:
    """Allocate noise to the clients of a table, one row each.

    `leverage_by`: size, group, degree, betweenness, eigenvector, column:NAME, blend, or
    blend:NAME=SHARE,...; by default a blend of whatever was named (sizes, groups, edges).
    `weights`: what the budget counts, the noise of every client alike ("equal", as published) or
    the noise in a size-weighted average ("size"). `coupling` and `classes` scale the degree by
    eta ln(C). `steps_per_round`: a number, or "epoch": one pass over each client's data.
    """
    if (budget is None) == (target_worst_case is None):
        raise UsageError(
            "an allocation needs a budget or a target",
            expected="either a budget or a target worst case",
            got="neither" if budget is None else "both",
            remedy="--budget 0.05, or --target-worst-case 8",
        )
    who = read_clients(Path(source), size_column, group_column, client_column, edges)
    if who.edges is not None and not allow_disconnected:
        leverage.refuse_disconnected(who.edges, who.n, who.names)
    if weights == "size" and who.sizes is None:
        raise no_sizes("--weights size")
    if steps_per_round == "epoch" and who.sizes is None:
        raise no_sizes("--steps-per-round epoch")
    described, values = leverage_of(who, leverage_by, coupling, classes)
    steps: Any = steps_per_round
    if steps_per_round == "epoch" and who.sizes is not None:
        steps = -(-who.sizes // max(1, batch_size))
    common: dict[str, Any] = {
        "rounds": rounds,
        "batch_size": batch_size,
        "budget_weights": shares(who.sizes) ** 2
        if weights == "size" and who.sizes is not None
        else None,
        "sizes": who.sizes,
        "steps_per_round": steps,
        "optimise": optimise,
        "clients": who.names,
    }
    if budget is None:
        assert target_worst_case is not None
        budget = budget_for(target_worst_case, values, **common)
    if delta is None and who.sizes is not None:
        delta = DELTA

    def watch(done: int, total: int) -> None:
        if total >= WORTH_A_BAR:
            progress("epsilon", done, total, "")

    found = allocate_noise(
        values, budget=budget, delta=delta, accountant=accountant, watch=watch, **common
    )
    document = document_of(who, found, described, source, weights, target_worst_case, window)
    path = None if out is None else Path(out)
    if path is not None:
        write_files(path, document, config_for(who, found, steps_per_round))
    return Allocated(clients=who.names, allocation=found, document=document, path=path)
