"""What an app's pyproject.toml says of it. Flower need not be installed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedaudit.errors import ConfigError
from fedaudit.files import Unreadable, read_toml


@dataclass(frozen=True)
class Project:
    """`server` and `client` as "module:object", `config` as Flower hands it to an app: flat."""

    name: str
    server: str
    client: str
    config: dict[str, Any]


def read_project(folder: str | os.PathLike[str]) -> Project:
    """The app of a folder; ConfigError where it does not hold one."""
    root = Path(folder)
    file = root / "pyproject.toml"
    try:
        raw = read_toml(file)
    except Unreadable as error:
        what = f"{root} is not a Flower app" if error.absent else ""
        remedy = "point to the folder that `flwr run` is called with" if error.absent else None
        raise error.as_error(ConfigError, what, remedy) from None
    app: Any = raw
    for key in ("tool", "flwr", "app"):
        app = app.get(key) if isinstance(app, dict) else None
    parts = app.get("components") if isinstance(app, dict) else None
    if not isinstance(parts, dict) or not {"serverapp", "clientapp"} <= set(parts):
        raise ConfigError(
            f"{file} does not describe a Flower app",
            expected="[tool.flwr.app.components] with serverapp and clientapp",
            got=f"the tables {', '.join(raw) or 'none'}",
            remedy='serverapp = "package.server_app:app"',
        )
    for part in ("serverapp", "clientapp"):
        module = str(parts[part]).partition(":")[0].replace(".", "/")
        if not any((root / f"{module}{end}").is_file() for end in (".py", "/__init__.py")):
            raise ConfigError(
                f"the app's {part} is not there",
                expected=f"a file for {part} = {parts[part]!r}",
                got="no such file",
                remedy="correct [tool.flwr.app.components]",
            )
    name = str(raw.get("project", {}).get("name", root.name))
    config = flat(app.get("config", {}))
    return Project(name, str(parts["serverapp"]), str(parts["clientapp"]), config)


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """One level, keys joined by dots."""
    out: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            out |= flat(value, f"{prefix}{key}.")
        else:
            out[prefix + key] = value
    return out
