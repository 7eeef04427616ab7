"""Text of the command line, as objects for the public functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedaudit import settings
from fedaudit.errors import UsageError
from fedaudit.files import parse_toml
from fedaudit.hooks import Hook
from fedaudit.setup.catalogue import PROTECTIONS, find
from fedaudit.setup.toml import override, parse_override


def parse_protection(text: str) -> Hook:
    """A protection from `--as NAME` or `--as NAME:key=value,key=value`."""
    name, _, rest = text.partition(":")
    try:
        given = parse_toml(rest.replace(",", "\n")) if rest else {}
    except ValueError:
        raise UsageError(
            "--as could not be read",
            expected="NAME or NAME:key=value,key=value",
            got=repr(text),
            remedy="for example --as shuffle, or --as clip:bound=1.0",
        ) from None
    hook: Hook = settings.check(find(PROTECTIONS, "protection", name), given, f"protections.{name}")
    return hook


def parse_audit_settings(texts: Sequence[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings by audit, and those of `--data`, from `--set SECTION.KEY=VALUE`."""
    raw: dict[str, Any] = {}
    for text in texts:
        key, value = parse_override(text)
        if len(key.split(".")) != {"audits": 3, "data": 2}.get(key.partition(".")[0]):
            raise UsageError(
                f"--set {key} is not a setting of an audit of a stored trace",
                expected="audits.NAME.KEY=VALUE or data.KEY=VALUE",
                got=repr(text),
                remedy="how a run trains is set with `fedaudit run --set`",
            )
        override(raw, key, value)
    return raw.get("audits", {}), raw.get("data", {})
