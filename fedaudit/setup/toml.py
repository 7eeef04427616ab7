"""Read, merge, override and write the plain values of TOML files."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedaudit.errors import ConfigError
from fedaudit.files import Unreadable, is_text, parse_toml, read_toml


def overlaid(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`over` laid over `under` key by key; `false` in place of a section removes it."""
    out = copy.deepcopy(dict(under))
    for key, value in over.items():
        if isinstance(value, Mapping):
            beneath = out.get(key)
            out[key] = overlaid(beneath if isinstance(beneath, Mapping) else {}, value)
        elif value is False and isinstance(out.get(key), Mapping):
            del out[key]
        else:
            out[key] = copy.deepcopy(value)
    return out


def read(path: Path) -> dict[str, Any]:
    """The plain values of a config file, its paths relative to its folder made absolute. The folder
    of a run means the settings of that run.

    An empty file is refused: it is probably a mistake.
    """
    if (path / "config.toml").is_file():
        path = path / "config.toml"
    try:
        found = read_toml(path)
    except Unreadable as error:
        if error.absent:
            what, remedy = f"there is no config {path}", "write one with `fedaudit init`"
            raise error.as_error(ConfigError, what, remedy) from None
        if not error.empty:
            raise error.as_error(ConfigError, remedy="correct it, or write a new one") from None
        found = {}
    if not found:
        raise ConfigError(
            f"{path} is empty",
            expected="at least one setting",
            got="none",
            remedy="write one with `fedaudit init`, or run without a config for the built-in one",
        )
    return located(_with_held_back(found, path.parent), path.parent)


def _with_held_back(found: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The public settings of a run, with the folders and client names that only its truth holds;
    any other config, and a run without its truth, as they are."""
    private = folder / "truth" / "config.toml"
    if not private.is_file():
        return found
    own = read_toml(private)
    out = dict(found)
    for at in HELD_BACK:
        section, key = at.split(".")
        value = own.get(section, {}).get(key)
        if value and isinstance(out.get(section), dict):
            out[section] = {**out[section], key: value}
    return out


PATHS = ("data.path", "data.labels", "topology.path", "task.model")
"""Settings that name files: relative to the folder of the config that they stand in."""
HELD_BACK = (*PATHS, "topology.clients")
"""Settings that a run publishes without folders, or not at all (`Config.public`)."""


def located(found: Mapping[str, Any], folder: Path, at: str = "") -> dict[str, Any]:
    """Values with absolute paths, also inside the variants of [compare] and [thorough]."""
    out = {}
    for key, value in found.items():
        here = f"{at}.{key}" if at else key
        if isinstance(value, dict):
            value = located(value, folder, here)
        elif here.endswith(PATHS) and isinstance(value, str) and value:
            beside = os.path.abspath(folder / value)
            # a model may also be the name of one that was fetched
            if not here.endswith("task.model") or os.path.exists(beside):
                value = beside
        out[key] = value
    return out


NAMING = ("data.name", "data.path", "partition.kind", "task.kind", "topology.kind")


def parse_override(text: str) -> tuple[str, Any]:
    """Split `section.key=value` into a key and a TOML value."""
    key, equals, value = text.partition("=")
    if not equals or not all(key.strip().split(".")):
        raise ConfigError(
            "a setting needs a key and a value",
            expected="section.key=value",
            got=repr(text),
            remedy="for example federation.clients=10",
        )
    try:
        return key.strip(), parse_toml(f"v = {value}")["v"]
    except ValueError:
        return key.strip(), value.strip()  # a bare word is text


def override(raw: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key in place. Naming another kind drops the settings of the former one."""
    here = raw
    *path, last = key.split(".")
    for part in path:
        here = here.setdefault(part, {})
        if not isinstance(here, dict):
            raise ConfigError(
                f"{key} does not name a setting",
                expected="section.key",
                got=repr(key),
                remedy=f"{part} is a value, not a section",
            )
    if key in NAMING and here.get(last) != value:
        keep = ("test_fraction", "standardise") if path == ["data"] else ()
        kept = {k: v for k, v in here.items() if k in keep}
        here.clear()
        here.update(kept)
    here[last] = value


def to_toml(values: Mapping[str, Any]) -> str:
    """Plain values as TOML: scalars first, then sections. Settings without a value are left out."""
    import tomlkit

    return tomlkit.dumps(_writable(values))


def update_toml(
    text: str, values: Mapping[str, Any], item_comments: Mapping[str, Sequence[str]] | None = None
) -> str:
    """TOML text with other values. Settings that stay keep their place and their comments.

    `item_comments`: the dotted key of a list -> a comment per item, which gets its own line.
    """
    import tomlkit

    document = tomlkit.parse(text)
    _update(document, _writable(values))
    for key, comments in (item_comments or {}).items():
        here: Any = document
        *path, last = key.split(".")
        for part in path:
            here = here[part]
        lines = tomlkit.array()
        for item, comment in zip(here[last], comments, strict=True):
            lines.add_line(item, indent="  ", comment=one_line(comment))
        lines.add_line(indent="")
        here[last] = lines
    return tomlkit.dumps(document)


def one_line(text: str) -> str:
    """Text without characters that could end a comment."""
    return "".join(c if c.isprintable() else "?" for c in text)


def _update(table: Any, values: Mapping[str, Any]) -> None:
    for key in [k for k in table if k not in values]:
        del table[key]
    for key, value in values.items():
        if isinstance(value, dict) and isinstance(table.get(key), Mapping):
            _update(table[key], value)
        elif key not in table or table[key] != value:
            table[key] = value


def toml_value(value: Any) -> str:
    """A plain value as TOML writes it."""
    import tomlkit

    return tomlkit.item(_writable(value)).as_string()


def _writable(value: Any) -> Any:
    """The value in types that TOML has; text that is not UTF-8 is refused."""
    if isinstance(value, Mapping):
        return {k: _writable(v) for k, v in value.items() if v is not None}
    if isinstance(value, list | tuple):
        return [_writable(v) for v in value]
    if isinstance(value, str) and not is_text(value):
        raise ConfigError(
            "a value cannot be written into a config",
            expected="UTF-8 text",
            got=ascii(value),
            remedy="rename the file or client that it names",
        )
    return value
