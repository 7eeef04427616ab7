"""The facts behind a declaration.

A trace holds declarations, not hooks, and other software declares protections too. A declaration
has the facts that it states (`Hook.declare` of a user's own protection does) and those of the
class with its name. This is the one module of this room that audits import.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from fedaudit.hooks import STATED, AddedNoise, Hook
from fedaudit.protections import PROTECTIONS


def class_of(declared: Mapping[str, Any]) -> type[Hook]:
    """The class of a declared protection; `Hook` if none has its name."""
    return _class_named(str(declared.get("name", "")))


def has_fact(declared: Mapping[str, Any], fact: str) -> bool:
    """Whether a declared protection has one of the facts `hooks.STATED`."""
    assert fact in STATED
    return bool(declared.get(fact, getattr(class_of(declared), fact)))


def noise_of(declared: Mapping[str, Any], *, clients: int) -> AddedNoise | None:
    """The noise that a declared protection adds, in a round of `clients`."""
    return class_of(declared).noise(declared, clients=clients)


def trusted_of(declared: Mapping[str, Any], *, clients: int) -> str:
    """Who must be honest for a declared protection to hold among so many clients."""
    return class_of(declared).trusted(declared, clients=clients)


def in_force(declared: Iterable[Mapping[str, Any]]) -> set[str]:
    """Names and facts of declared protections; noise is a fact too, as in "noise_at_step"."""
    found: set[str] = set()
    for d in declared:
        found |= {str(d.get("name", "?")), *(fact for fact in STATED if has_fact(d, fact))}
        if (added := noise_of(d, clients=2)) is not None:
            found.add(f"noise_at_{added.place}")
    return found


@cache
def _class_named(name: str) -> type[Hook]:
    if name in PROTECTIONS:
        return _load(name)
    # "SecAgg+", "Secure-Aggregation"
    letters = "".join(c for c in name.lower() if c.isalnum())
    for cls in map(_load, PROTECTIONS):
        if letters.startswith(cls.other_names or ("\0",)):
            return cls
    return Hook


def _load(name: str) -> type[Hook]:
    module, _, attribute = PROTECTIONS[name].partition(":")
    found: type[Hook] = getattr(importlib.import_module(module), attribute)
    return found
