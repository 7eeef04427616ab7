"""What an app's pyproject.toml says of it. Flower need not be installed."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedaudit.errors import ConfigError


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
        raw = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"{root} is not a Flower app",
            expected="a folder with a pyproject.toml",
            got=error.strerror or str(error),
            remedy="point to the folder that `flwr run` is called with",
        ) from None
    except ValueError as error:
        raise ConfigError(
            f"{file} is not TOML", expected="a pyproject.toml", got=str(error), remedy="correct it"
        ) from None
    app = raw.get("tool", {}).get("flwr", {}).get("app")
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
