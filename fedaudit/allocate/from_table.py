"""An allocation from a table of clients, one row each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedaudit.accounting import Accountant
from fedaudit.allocate.base import Base, read_base
from fedaudit.allocate.clients import Clients, no_sizes, read_clients
from fedaudit.allocate.document import document_of
from fedaudit.allocate.files import config_for, write_files
from fedaudit.allocate.leverages import leverage_of
from fedaudit.errors import UsageError
from fedaudit.progress import Progress, no_progress
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
    rounds: int | None = None,
    batch_size: int | None = None,
    config: str | Path | None = None,
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
    steps_per_round: int | Literal["epoch"] | None = None,
    window: int | None = None,
    accountant: Accountant = "pld",
    out: str | Path | None = None,
    progress: Progress = no_progress,
) -> Allocated:
    """Allocate noise to the clients of a table, one row each.

    `leverage_by`: size, group, degree, betweenness, eigenvector, column:NAME, blend, or
    blend:NAME=SHARE,...; by default a blend of whatever was named (sizes, groups, edges).
    `weights`: what the budget counts, the noise of every client alike ("equal", as published) or
    the noise in a size-weighted average ("size"). `coupling` and `classes` scale the degree by
    eta ln(C). `steps_per_round`: a number (1 by default), or "epoch": one pass over each client's
    data. `config`: of the federation that the noise is for. Its clients must be those of the table,
    by name; rounds, batch size, local steps and training records are taken from it.
    """
    if (budget is None) == (target_worst_case is None):
        raise UsageError(
            "an allocation needs a budget or a target",
            expected="either a budget or a target worst case",
            got="neither" if budget is None else "both",
            remedy="--budget 0.05, or --target-worst-case 8",
        )
    who = read_clients(Path(source), size_column, group_column, client_column, edges)
    base = None if config is None else read_base(Path(config))
    trained = None if base is None else base.sized(who)
    if trained is not None and who.sizes is None:
        who = replace(who, sizes=trained)
    if who.edges is not None and not allow_disconnected:
        leverage.refuse_disconnected(who.edges, who.n, who.names)
    if weights == "size" and who.sizes is None:
        raise no_sizes("--weights size")
    if steps_per_round == "epoch" and who.sizes is None:
        raise no_sizes("--steps-per-round epoch")
    described, values = leverage_of(who, leverage_by, coupling, classes)
    # a budget that counts sizes counts those that clients train on
    who = who if trained is None else replace(who, sizes=trained)
    course = _course(base, who, rounds, batch_size, steps_per_round)
    common: dict[str, Any] = {
        **course,
        "budget_weights": shares(who.sizes) ** 2
        if weights == "size" and who.sizes is not None
        else None,
        "sizes": who.sizes,
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
        write_files(path, document, config_for(who, found, base, steps_per_round or 1))
    return Allocated(clients=who.names, allocation=found, document=document, path=path)


def _course(
    base: Base | None,
    who: Clients,
    rounds: int | None,
    batch_size: int | None,
    steps_per_round: int | Literal["epoch"] | None,
) -> dict[str, Any]:
    """Rounds, batch size and local steps (one number, or (n,)): the config's, or as asked for."""
    if base is not None:
        rounds = base.settled("federation.rounds", rounds, base.config.federation.rounds)
        batch_size = base.settled(
            "training.batch_size", batch_size, base.config.training.batch_size
        )
    if rounds is None or batch_size is None:
        raise UsageError(
            "an allocation needs rounds and a batch size",
            expected="--rounds and --batch, or the config of your federation",
            got="no config, and not both of them",
            remedy="--config fedaudit.toml, or --rounds 100 --batch 32",
        )
    steps: Any = 1 if steps_per_round is None else steps_per_round
    if steps == "epoch":
        assert who.sizes is not None  # refused before
        steps = -(-who.sizes // max(1, batch_size))
    if base is not None:
        assert who.sizes is not None  # those of the config's data
        own = base.steps(who.sizes)
        if steps_per_round is not None and not (own == steps).all():
            base.settled("training.steps or epochs", int(np.max(steps)), int(own.max()))
        steps = own
    return {"rounds": rounds, "batch_size": batch_size, "steps_per_round": steps}
