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
from fedaudit.files import write_atomically
from fedaudit.protections.noise_allocation import Allocation, as_settings
from fedaudit.setup.toml import to_toml, toml_value


def config_for(
    who: Clients,
    found: Allocation,
    base: Base | None = None,
    steps_per_round: int | Literal["epoch"] = 1,
) -> str:
    """A config with one multiplier per client, by name.

    It contains the user's own config if there is one; without it, the user has to add [data].
    """
    settings = dict(as_settings(found))
    multipliers: Sequence[float] = settings.pop("noise_multiplier")  # type: ignore[assignment]
    own = {} if base is None else base.without_noise()
    protections = dict(own.get("protections", {}))
    federation = dict(own.get("federation", {"clients": who.n, "rounds": found.rounds}))
    if found.budget_weights is not None:
        federation["weighting"] = "size"  # as the budget counts
    training: dict[str, Any] = {"batch_size": found.batch_size}
    training |= {"epochs": 1} if steps_per_round == "epoch" else {"steps": steps_per_round}
    first = {k: v for k, v in own.items() if k not in ("federation", "protections", "allocation")}
    lines = [
        "# Written by `fedaudit allocate`: noise per client, on the sum of clipped gradients.",
        *_about(base),
        "# Noise is matched with clients by name and fits their present number of training",
        "# records. Multipliers are public settings: whoever reads them learns the leverage.",
        *to_toml(first).splitlines(),
        *(section({"federation": federation})),
        *([] if base else section({"training": training})),
        *section({"protections": {k: v for k, v in protections.items() if k != "dp_sgd"}}),
        *_whose(who),
        *section({"protections": {"dp_sgd": {**protections.get("dp_sgd", {}), **settings}}}),
        "noise_multiplier = [",
        *(
            f"  {toml_value(z)},  # {_comment(name)}"
            for name, z in zip(who.names, multipliers, strict=True)
        ),
        "]",
    ]
    return "\n".join(lines) + "\n"


def section(values: Mapping[str, Any]) -> list[str]:
    return to_toml(values).splitlines()


def _about(base: Base | None) -> list[str]:
    if base is None:
        return ["# No data are named: `fedaudit allocate ... --config CONFIG` puts yours in."]
    left = f", without {' and '.join(base.left_out)}" if base.left_out else ""
    return [f"# Everything else is from {_comment(str(base.path))}{left}."]


def _whose(who: Clients) -> list[str]:
    """Names of the clients in order; for a table without names, their number."""
    clients: Any = who.n if who.numbered else list(who.names)
    return section({"allocation": {"clients": clients}})


def _comment(name: str) -> str:
    """A name without characters that could end the comment."""
    return "".join(c if c.isprintable() else "?" for c in name)


def table_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """The clients as CSV, numbers with all digits."""
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
        whole = to_json(document, ensure_ascii=False) + "\n"
        write_atomically(path / "allocation.json", whole)
        write_atomically(path / "dp_sgd.toml", config)
    except OSError as error:
        raise UsageError(
            f"cannot write to {path}",
            expected="a folder that can be written",
            got=error.strerror or str(error),
            remedy="choose another folder with --out",
        ) from None
