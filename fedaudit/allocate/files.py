"""Files of an allocation: a table, a document, and a config for `fedaudit run`."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from fedaudit.allocate.base import Base
from fedaudit.allocate.clients import Clients
from fedaudit.codec import to_json
from fedaudit.errors import UsageError
from fedaudit.files import write_atomically, writing
from fedaudit.protections.noise_allocation import Allocation, as_settings
from fedaudit.setup.toml import one_line, update_toml


def config_for(
    who: Clients,
    found: Allocation,
    base: Base | None = None,
    steps_per_round: int | Literal["epoch"] = 1,
) -> str:
    """A config with one multiplier per client, by name.

    It contains the user's own config if there is one; without it, the user has to add [data].
    """
    own = {} if base is None else base.without_noise()
    federation = dict(own.get("federation", {"clients": who.n, "rounds": found.rounds}))
    if found.budget_weights is not None:
        federation["weighting"] = "size"  # as the budget counts
    training: dict[str, Any] = {"batch_size": found.batch_size}
    training |= {"epochs": 1} if steps_per_round == "epoch" else {"steps": steps_per_round}
    protections = dict(own.get("protections", {}))
    protections["dp_sgd"] = {**protections.get("dp_sgd", {}), **as_settings(found)}
    values = {
        **own,
        "federation": federation,
        **({} if base else {"training": training}),
        # names of the clients in order; for a table without names, their number
        "allocation": {"clients": who.n if who.numbered else list(who.names)},
        "protections": protections,
    }
    noise = {"protections.dp_sgd.noise_multiplier": who.names}
    lines = [
        "Written by `fedaudit allocate`: noise per client, on the sum of clipped gradients.",
        _about(base),
        "Noise is matched with clients by name and fits their present number of training",
        "records. Multipliers are public settings: whoever reads them learns the leverage.",
    ]
    noted = "".join(f"# {line}\n" for line in lines)
    return noted + "\n" + update_toml("" if base is None else base.text, values, noise).lstrip()


def _about(base: Base | None) -> str:
    if base is None:
        return "No data are named: `fedaudit allocate` puts yours in, given its config."
    left = f", without {' and '.join(base.left_out)}" if base.left_out else ""
    return f"Everything else is from {one_line(str(base.path))}{left}."


def table_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """The clients as CSV, numbers with all digits."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def write_files(path: Path, document: Mapping[str, Any], config: str) -> None:
    """Write the table, the document and the config into a folder."""
    with writing(path, UsageError):
        path.mkdir(parents=True, exist_ok=True)
        write_atomically(path / "allocation.csv", table_text(document["clients"]))
        whole = to_json(document, ensure_ascii=False) + "\n"
        write_atomically(path / "allocation.json", whole)
        write_atomically(path / "dp_sgd.toml", config)
