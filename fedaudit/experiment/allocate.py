"""`fedaudit allocate`: from a table of clients to noise for each, and the files that carry it on.

OUT/allocation.csv    a row per client
OUT/allocation.json   the same with settings, bounds and what they assume
OUT/dp_sgd.toml       a config whose `dp_sgd` section holds one noise multiplier per client
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from fedaudit import __version__
from fedaudit.accounting import Accountant
from fedaudit.data.files.cells import NUMBER, is_missing
from fedaudit.data.files.table import Table, read_table
from fedaudit.errors import DataError, FedauditError, UsageError, nearest
from fedaudit.experiment.config import Config, toml_value
from fedaudit.experiment.reporting import Progress, quietly
from fedaudit.experiment.reuse import code_sha256
from fedaudit.protections.noise_allocation import (
    LOW_MULTIPLIER,
    Allocation,
    Objective,
    as_settings,
    budget_for,
    leverage,
    shares,
)
from fedaudit.protections.noise_allocation import allocate as allocate_noise
from fedaudit.protections.noise_allocation.bounds import LEAST_MULTIPLIER
from fedaudit.randomness import Seed
from fedaudit.report.allocation import statements
from fedaudit.trace import Truth
from fedaudit.trace.store import write_atomically

Floats = npt.NDArray[np.float64]
Weights = Literal["equal", "size"]

KINDS = ("size", "group", "degree", "betweenness", "eigenvector")
WORTH_A_BAR = 20  # epsilons; fewer take a few seconds
DELTA = 1e-5


@dataclass(frozen=True)
class Clients:
    """Who takes part: names, and what the table and the edge list say about them."""

    names: tuple[str, ...]
    numbered: bool
    sizes: npt.NDArray[np.int64] | None
    groups: tuple[str, ...] | None
    edges: tuple[tuple[int, int], ...] | None
    table: Table | None = None

    @property
    def n(self) -> int:
        return len(self.names)


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
    who = _read(Path(source), size_column, group_column, client_column, edges)
    if who.edges is not None and not allow_disconnected:
        leverage.refuse_disconnected(who.edges, who.n, who.names)
    if weights == "size" and who.sizes is None:
        raise _no_sizes("--weights size")
    if steps_per_round == "epoch" and who.sizes is None:
        raise _no_sizes("--steps-per-round epoch")
    described, values = _leverage(who, leverage_by, coupling, classes)
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
    document = _document(who, found, described, source, weights, target_worst_case, window)
    path = None if out is None else Path(out)
    if path is not None:
        _write(path, document, config_for(who, found, steps_per_round))
    return Allocated(clients=who.names, allocation=found, document=document, path=path)


def of_run(config: Config, truth: Truth) -> dict[str, Any] | None:
    """What noise per client would do for a run whose clients all have the same, as a document.

    At the budget of the run: the same noise in all, dealt out by size and organisation. None where
    the run has no such noise, or every client the same leverage.
    """
    hook = config.protections.get("dp_sgd")
    if hook is None or not isinstance(hook.noise_multiplier, float) or hook.epsilon is not None:
        return None
    if hook.unit == "person" or config.federation.participation < 1:
        return None  # other steps and rates than these count
    told = truth.clients
    batch = config.training.batch_size
    organisations = [about.get("organisation") for about in told.values()]
    groups: tuple[str, ...] | None = None
    if None not in organisations and 1 < len(set(organisations)) < len(organisations):
        groups = tuple(f"group {o}" for o in organisations)  # else it tells nobody apart
    sizes = np.array([about["examples"] for about in told.values()])
    if not hook.noise_multiplier > 0 or batch is None or batch > sizes.min() or len(sizes) < 2:
        return None
    who = Clients(names=tuple(told), numbered=False, sizes=sizes, groups=groups, edges=None)
    described, values = _leverage(who, None, None, None)
    if np.ptp(values) == 0:
        return None
    found = allocate_noise(
        values,
        rounds=config.federation.rounds,
        batch_size=batch,
        budget=len(sizes) * (hook.noise_multiplier / batch) ** 2,
        sizes=sizes,
        delta=hook.delta,
        steps_per_round=config.training.steps_of(sizes),
        clients=who.names,
    )
    return _document(who, found, described, "the run", "equal", None, None, unit=hook.unit)


def keep_allocation(config: Config, truth: Truth, file: Path) -> None:
    """Write what `of_run` finds, once: the same run has the same allocation.

    It is an extra beside the audits: where it cannot be worked out, there is none.
    """
    key = hashlib.sha256(
        json.dumps([config.raw, truth.clients, code_sha256()], sort_keys=True).encode()
    ).hexdigest()
    kept = truth.path / f"{file.name}.key"
    try:
        if file.is_file() and kept.read_text(encoding="ascii") == key:
            return
    except OSError:
        pass
    try:
        found = of_run(config, truth)
    except FedauditError:
        found = None
    if found is None:
        file.unlink(missing_ok=True)
        return
    write_atomically(file, json.dumps(found, indent=1, allow_nan=False) + "\n")
    write_atomically(kept, key)


# -- the table -------------------------------------------------------------------------------------


def _read(
    path: Path,
    size_column: str | None,
    group_column: str | None,
    client_column: str | None,
    edges: str | Path | None,
) -> Clients:
    table = read_table(path)
    sizes = groups = None
    if size_column is not None:
        sizes = np.array(_numbers(table, size_column, whole=True)).astype(np.int64)
    if group_column is not None:
        groups = tuple(_texts(table, group_column))
    taken = {size_column, group_column}
    names, numbered = _names(table, client_column, taken)
    pairs = None
    if edges is not None:
        from fedaudit.federation.topology import edge_list

        # names as in the table; a table without names counts its rows from 0
        known = None if numbered else names
        pairs = edge_list(len(names), Seed(0), path=edges, clients=known).edges
    return Clients(names, numbered, sizes, groups, pairs, table)


def _names(
    table: Table, client_column: str | None, taken: set[str | None]
) -> tuple[tuple[str, ...], bool]:
    """Names of the clients, and whether they are mere numbers of rows."""
    rows = len(table.lines)
    if client_column is None:
        # a column of that name, else the first one of words in which no word comes twice
        usual = [c for c in table.columns if c.lower() in ("client", "site", "name", "id")]
        words = [
            c
            for c, cells in table.columns.items()
            if c not in taken
            and len(set(cells)) == rows
            and not any(is_missing(v) or NUMBER.fullmatch(v) for v in cells)
        ]
        found = [c for c in usual if c not in taken] or words
        if not found:
            width = len(str(rows - 1))
            return tuple(f"client-{i:0{width}d}" for i in range(rows)), True
        client_column = found[0]
    names = tuple(_texts(table, client_column))
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        at = [line for line, name in zip(table.lines, names, strict=True) if name == twice[0]]
        raise DataError(
            f"{table.path}: client {twice[0]!r} has several rows",
            expected=f"one row per client in column {client_column!r}",
            got="lines " + ", ".join(map(str, at[:5])),
            remedy="merge the rows, or name another column with --client-column",
        )
    return names, False


def _cells(table: Table, column: str) -> list[str]:
    if column not in table.columns:
        raise DataError(
            f"{table.path} has no column {column!r}",
            expected="a column of the table",
            got=repr(column),
            remedy=nearest(column, table.columns),
        )
    return list(table.columns[column])


def _texts(table: Table, column: str) -> list[str]:
    cells = _cells(table, column)
    for line, cell in zip(table.lines, cells, strict=True):
        if is_missing(cell):
            raise DataError(
                f"{table.path}, line {line}: column {column!r} is empty",
                expected="a name for every client",
                got=repr(cell),
                remedy="fill it in",
            )
    return cells


def _numbers(table: Table, column: str, *, whole: bool = False) -> list[float]:
    out = []
    for line, cell in zip(table.lines, _cells(table, column), strict=True):
        value = float(cell) if NUMBER.fullmatch(cell) else math.nan
        least = 1 if whole else 0
        if not least <= value < math.inf or (whole and value != int(value)):
            raise DataError(
                f"{table.path}, line {line}: column {column!r} cannot be used",
                expected="a whole number of records, at least 1"
                if whole
                else "a finite number of 0 or more",
                got=repr(cell),
                remedy="correct the value (digits and a decimal point only), or name another "
                "column",
            )
        out.append(value)
    return out


def _no_sizes(what: str) -> UsageError:
    return UsageError(
        f"{what} needs the sizes of the clients",
        expected="a column with the number of training records",
        got="no --size-column",
        remedy="--size-column NAME",
    )


# -- leverage --------------------------------------------------------------------------------------


def _leverage(
    who: Clients, by: str | None, coupling: float | None, classes: int | None
) -> tuple[str, Floats]:
    """What the leverage was made of, in words, and its values (n,)."""
    there = [
        kind
        for kind, given in (("size", who.sizes), ("group", who.groups), ("degree", who.edges))
        if given is not None
    ]
    if by is None or by == "blend":
        if not there:
            raise UsageError(
                "an allocation needs a leverage",
                expected="sizes, groups, edges or a column of your own",
                got="none of them",
                remedy="--size-column NAME, --group-column NAME, --edges FILE or "
                "--leverage column:NAME",
            )
        chosen = dict.fromkeys(there, 1.0)
    elif by.startswith("blend:"):
        chosen = _shares(by.removeprefix("blend:"))
    else:
        chosen = {by: 1.0}
    if (coupling is None) != (classes is None):
        raise UsageError(
            "a coupling needs both eta and the number of classes",
            expected="--coupling and --classes",
            got="one of them",
            remedy="--coupling 0.5 --classes 10",
        )
    if coupling is not None and list(chosen) != ["degree"]:
        raise UsageError(
            "a coupling scales the degree",
            expected="--leverage degree",
            got=", ".join(chosen),
            remedy="leave --coupling out, or use --leverage degree",
        )
    if coupling is not None and classes is not None:
        edges = _needed(who.edges, "degree")
        degree = leverage.degree_of(edges, who.n)
        words = f"{coupling:g} ln({classes}) degree / mean"
        return words, leverage.coupled(degree, coupling=coupling, classes=classes)
    parts = {kind: _one(who, kind) for kind in chosen}
    if len(parts) == 1:
        (kind,) = parts
        scaled = "as it is" if kind.startswith("column:") else "to unit mean"
        return f"{kind}, {scaled}", parts[kind]
    total = sum(chosen.values())
    words = " + ".join(f"{share / total:.3g} {kind}" for kind, share in chosen.items())
    return f"{words}, each to unit mean", leverage.blend(parts, chosen)


def _shares(text: str) -> dict[str, float]:
    out: dict[str, float] = {}
    for part in text.split(","):
        kind, equals, share = part.rpartition("=")
        if not equals or not NUMBER.fullmatch(share.strip()) or kind.strip() in out:
            raise UsageError(
                "this blend cannot be read",
                expected="blend:NAME=SHARE,NAME=SHARE with every name once",
                got=repr(part),
                remedy="for example --leverage blend:size=2,group=1",
            )
        out[kind.strip()] = float(share)
    return out


def _one(who: Clients, kind: str) -> Floats:
    if kind == "size":
        if who.sizes is None:
            raise _no_sizes("this leverage")
        return leverage.from_size(who.sizes)
    if kind == "group":
        if who.groups is None:
            raise UsageError(
                "this leverage needs groups",
                expected="a column of organisations or regions",
                got="no --group-column",
                remedy="--group-column NAME",
            )
        return leverage.from_groups(who.groups)
    if kind == "degree":
        return leverage.from_degree(leverage.degree_of(_needed(who.edges, kind), who.n))
    if kind == "betweenness":
        return leverage.from_betweenness(_needed(who.edges, kind), who.n)
    if kind == "eigenvector":
        return leverage.from_eigenvector(_needed(who.edges, kind), who.n, who.names)
    if kind.startswith("column:"):
        if who.table is None:
            raise UsageError(
                "a column was named, and there is no table",
                expected=", ".join(KINDS),
                got=kind,
                remedy="leave --leverage out",
            )
        values = _numbers(who.table, kind.removeprefix("column:"))
        return leverage.own(values, who.names)
    raise UsageError(
        f"there is no leverage {kind!r}",
        expected="size, group, degree, betweenness, eigenvector, column:NAME or blend",
        got=repr(kind),
        remedy=nearest(kind, (*KINDS, "column:NAME", "blend")),
    )


def _needed(edges: tuple[tuple[int, int], ...] | None, kind: str) -> tuple[tuple[int, int], ...]:
    if edges is None:
        raise UsageError(
            f"the leverage {kind!r} needs a graph",
            expected="an edge list: two clients a line",
            got="no --edges",
            remedy="--edges FILE",
        )
    return edges


# -- what is written -------------------------------------------------------------------------------


def _document(
    who: Clients,
    found: Allocation,
    described: str,
    source: str | Path,
    weights: str,
    target: float | None,
    window: int | None,
    unit: str = "record",
) -> dict[str, Any]:
    """Everything as plain values: what the files hold and the report is made from."""
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
    """The worst client's bounds if keys change after `window` rounds, with the noise as it is."""
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


def config_for(who: Clients, found: Allocation, steps_per_round: int | Literal["epoch"] = 1) -> str:
    """A config with one multiplier per client: its `dp_sgd` section can be copied elsewhere.

    Clients are listed in the order of their names, as the partition `by_owner` numbers them.
    """
    order = list(range(who.n))
    if not who.numbered:
        order.sort(key=lambda i: who.names[i])
    settings = dict(as_settings(found, order))
    multipliers: Sequence[float] = settings.pop("noise_multiplier")  # type: ignore[assignment]
    steps = "epochs = 1" if steps_per_round == "epoch" else f"steps = {steps_per_round}"
    lines = [
        "# Written by `fedaudit allocate`: noise per client, on the sum of clipped gradients.",
        "# `fedaudit run` takes this file as it is; add [data] and [partition] for your own data.",
        '# Multipliers stand in the order of the clients\' names, as partition.kind = "by_owner"',
        "# numbers them, and fit clients with as many training records as the table said. They are",
        "# public settings: whoever reads them learns the leverage.",
        *_whose(who, order),
        "",
        "[federation]",
        f"clients = {who.n}",
        f"rounds = {found.rounds}",
        *(
            ['weighting = "size"  # what the budget counts']
            if found.budget_weights is not None
            else []
        ),
        "",
        "[training]",
        f"batch_size = {found.batch_size}",
        steps,
        "",
        "[protections.dp_sgd]",
        *(f"{key} = {toml_value(value)}" for key, value in settings.items()),
        "noise_multiplier = [",
        *(
            f"  {toml_value(z)},  # {_comment(who.names[i])}"
            for i, z in zip(order, multipliers, strict=True)
        ),
        "]",
    ]
    return "\n".join(lines) + "\n"


def _whose(who: Clients, order: Sequence[int]) -> list[str]:
    """The names behind the multipliers as data, for software that goes by name. A table without
    names numbers its rows, and there is nothing to mistake."""
    if who.numbered:
        return []
    names = toml_value([who.names[i] for i in order])
    return ["", "[allocation]", f"clients = {names}  # whose multiplier stands where"]


def _comment(name: str) -> str:
    """A name that cannot end its comment."""
    return "".join(c if c.isprintable() else "?" for c in name)


def table_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """The clients as CSV, numbers with all their digits."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _write(path: Path, document: Mapping[str, Any], config: str) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
        write_atomically(path / "allocation.csv", table_text(document["clients"]))
        whole = json.dumps(document, indent=1, allow_nan=False, ensure_ascii=False) + "\n"
        write_atomically(path / "allocation.json", whole)
        write_atomically(path / "dp_sgd.toml", config)
    except OSError as error:
        raise UsageError(
            f"cannot write to {path}",
            expected="a folder that can be written",
            got=error.strerror or str(error),
            remedy="choose another folder with --out",
        ) from None
