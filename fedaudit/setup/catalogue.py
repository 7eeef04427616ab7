"""Audits and protections by name. A module is imported when its class is first needed."""

from __future__ import annotations

import importlib
from typing import Any

from fedaudit.audits import AUDITS
from fedaudit.errors import ConfigError
from fedaudit.protections import PROTECTIONS

__all__ = ["AUDITS", "PROTECTIONS", "find"]


def find(table: dict[str, str], kind: str, name: str) -> Any:
    """The class with this name; an unknown name is refused with the nearest known one."""
    if name not in table:
        raise ConfigError.unknown(f"unknown {kind} {name!r}", name, table)
    module, _, attribute = table[name].partition(":")
    return getattr(importlib.import_module(module), attribute)
