"""What an allocation leaves behind: a table, a document, and a config that runs as it is."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from fedaudit.errors import UsageError
from fedaudit.experiment.allocate.clients import Clients
from fedaudit.experiment.toml import toml_value
from fedaudit.files import write_atomically
from fedaudit.protections.noise_allocation import Allocation, as_settings


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


def write_files(path: Path, document: Mapping[str, Any], config: str) -> None:
    """Write the table, the document and the config into a folder."""
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
