"""Allocate noise to the clients of a table, one row each."""

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
from fedaudit.arrays import Floats
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

WORTH_A_BAR = 20  # epsilons that deserve a progress bar; fewer take a few seconds
DELTA = 1e-5


@dataclass(frozen=True, kw_only=True)
class AllocationOptions:
    """How to allocate noise to the clients of a table.

    `leverage_by`: size, group, degree, betweenness, eigenvector, column:NAME, blend, or
    blend:NAME=SHARE,...; by default a blend of the named columns and edges. `coupling` and
    `classes` scale the degree by eta ln(C). `weights`: the budget counts the noise of every client
    alike ("equal", as published) or the noise in a size-weighted average ("size").
    `steps_per_round`: a number (1 by default), or "epoch" for one pass over each client's data.
    `config`: the federation that the noise is for. Its clients must have the names in the table;
    rounds, batch size, local steps and training records come from it.
    """

    rounds: int | None = None
    batch_size: int | None = None
    config: str | Path | None = None
    budget: float | None = None
    target_worst_case: float | None = None
    size_column: str | None = None
    group_column: str | None = None
    client_column: str | None = None
    edges: str | Path | None = None
    allow_disconnected: bool = False
    leverage_by: str | None = None
    coupling: float | None = None
    classes: int | None = None
    weights: Weights = "equal"
    optimise: Objective = "published"
    delta: float | None = None
    steps_per_round: int | Literal["epoch"] | None = None
    window: int | None = None
    accountant: Accountant = "pld"

    def __post_init__(self) -> None:
        if (self.budget is None) == (self.target_worst_case is None):
            raise UsageError(
                "an allocation needs a budget or a target",
                expected="either a budget or a target worst case",
                got="neither" if self.budget is None else "both",
                remedy="`budget=0.05`, or `target_worst_case=8`",
            )


@dataclass(frozen=True, kw_only=True)
class Allocated:
    """A finished allocation: the clients in the order of their rows, and the plain document."""

    clients: tuple[str, ...]
    allocation: Allocation
    document: Mapping[str, Any]
    path: Path | None


def allocate(
    source: str | Path,
    options: AllocationOptions,
    *,
    out: str | Path | None = None,
    progress: Progress = no_progress,
) -> Allocated:
    """Allocate noise to the clients of the table `source`, one row each; write files to `out`."""
    who = read_clients(
        Path(source),
        options.size_column,
        options.group_column,
        options.client_column,
        options.edges,
    )
    base = None if options.config is None else read_base(Path(options.config))
    trained = None if base is None else base.sized(who)
    if trained is not None and who.sizes is None:
        who = replace(who, sizes=trained)
    _check_clients(who, options)
    described, values = leverage_of(who, options.leverage_by, options.coupling, options.classes)
    # a budget weighted by size counts the records that clients train on
    who = who if trained is None else replace(who, sizes=trained)
    found = _solve(who, values, base, options, progress)
    document = document_of(
        who,
        found,
        described,
        source,
        options.weights,
        options.target_worst_case,
        options.window,
    )
    path = None if out is None else Path(out)
    if path is not None:
        write_files(path, document, config_for(who, found, base, options.steps_per_round or 1))
    return Allocated(clients=who.names, allocation=found, document=document, path=path)


def _check_clients(who: Clients, options: AllocationOptions) -> None:
    """Refuse a disconnected graph, and options that need sizes which are not known."""
    if who.edges is not None and not options.allow_disconnected:
        leverage.refuse_disconnected(who.edges, who.n, who.names)
    if options.weights == "size" and who.sizes is None:
        raise no_sizes("`weights=size`")
    if options.steps_per_round == "epoch" and who.sizes is None:
        raise no_sizes("`steps_per_round=epoch`")


def _solve(
    who: Clients,
    values: Floats,
    base: Base | None,
    options: AllocationOptions,
    progress: Progress,
) -> Allocation:
    """The allocation for leverages `values` (n,) under the budget, or for the target."""
    common: dict[str, Any] = {
        **_schedule(base, who, options),
        "budget_weights": shares(who.sizes) ** 2
        if options.weights == "size" and who.sizes is not None
        else None,
        "sizes": who.sizes,
        "optimise": options.optimise,
        "clients": who.names,
    }
    budget, delta = options.budget, options.delta
    if budget is None:
        assert options.target_worst_case is not None
        budget = budget_for(options.target_worst_case, values, **common)
    if delta is None and who.sizes is not None:
        delta = DELTA

    def watch(done: int, total: int) -> None:
        if total >= WORTH_A_BAR:
            progress("epsilon", done, total, "")

    return allocate_noise(
        values,
        budget=budget,
        delta=delta,
        accountant=options.accountant,
        watch=watch,
        **common,
    )


def _schedule(base: Base | None, who: Clients, options: AllocationOptions) -> dict[str, Any]:
    """Rounds, batch size and local steps (one number, or (n,)): from the config or the options."""
    rounds, batch_size = options.rounds, options.batch_size
    steps_per_round = options.steps_per_round
    if base is not None:
        rounds = base.agreed("federation.rounds", rounds, base.config.federation.rounds)
        batch_size = base.agreed("training.batch_size", batch_size, base.config.training.batch_size)
    if rounds is None or batch_size is None:
        raise UsageError(
            "an allocation needs rounds and a batch size",
            expected="`rounds` and `batch_size`, or the config of your federation",
            got="no config, and not both of them",
            remedy="`config=fedaudit.toml`, or `rounds=100` and `batch_size=32`",
        )
    steps: Any = 1 if steps_per_round is None else steps_per_round
    if steps == "epoch":
        assert who.sizes is not None  # refused before
        steps = -(-who.sizes // max(1, batch_size))
    if base is not None:
        assert who.sizes is not None  # from the config's data
        own = base.steps(who.sizes)
        if steps_per_round is not None and not (own == steps).all():
            base.agreed("training.steps or epochs", int(np.max(steps)), int(own.max()))
        steps = own
    return {"rounds": rounds, "batch_size": batch_size, "steps_per_round": steps}
