"""Read the pyproject.toml of a Flower app. Flower need not be installed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedaudit.errors import ConfigError
from fedaudit.files import Unreadable, read_toml
from fedaudit.shapes import Shape, misfit

APP: Shape = {
    "project?": {"name?": str},
    "tool": {
        "flwr": {"app": {"components": {"serverapp": str, "clientapp": str}, "config?": dict}}
    },
}
"""The part of a pyproject.toml that describes an app."""


@dataclass(frozen=True)
class Project:
    """`server` and `client` as "module:object"; `config` flat, as Flower passes it to an app."""

    name: str
    server: str
    client: str
    config: dict[str, Any]


def read_project(folder: str | os.PathLike[str]) -> Project:
    """The app in a folder; a ConfigError if there is none."""
    root = Path(folder)
    file = root / "pyproject.toml"
    try:
        raw = read_toml(file)
    except Unreadable as error:
        what = f"{root} is not a Flower app" if error.absent else ""
        remedy = "give the folder that you pass to `flwr run`" if error.absent else None
        raise error.as_error(ConfigError, what, remedy) from None
    if (wrong := misfit(raw, APP)) is not None:
        raise ConfigError(
            f"{file} does not describe a Flower app",
            expected="[tool.flwr.app.components] with serverapp and clientapp",
            got=f"{wrong.got}; expected {wrong.expected}",
            remedy='serverapp = "package.server_app:app"',
        )
    app = raw["tool"]["flwr"]["app"]
    parts = app["components"]
    for part in ("serverapp", "clientapp"):
        if not is_dotted(parts[part]) or not _source_of(root, parts[part]):
            raise ConfigError(
                f"the app's {part} does not exist",
                expected=f"a file for {part} = {parts[part][:80]!r}",
                got="no such file",
                remedy="correct [tool.flwr.app.components]",
            )
    name = raw.get("project", {}).get("name", root.name)
    config = flat(app.get("config", {}))
    return Project(name, parts["serverapp"], parts["clientapp"], config)


def _source_of(root: Path, where: str) -> bool:
    """Whether the module of "package.module:object" exists below `root`."""
    module = root / Path(*where.partition(":")[0].split("."))
    return module.with_suffix(".py").is_file() or (module / "__init__.py").is_file()


def is_dotted(name: str) -> bool:
    """Whether this is "package.module:object", short enough for a file name."""
    module = name.partition(":")[0]
    return len(module) < 200 and all(part.isidentifier() for part in module.split("."))


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The config on one level, keys joined by dots."""
    out: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            out |= flat(value, f"{prefix}{key}.")
        else:
            out[prefix + key] = value
    return out
