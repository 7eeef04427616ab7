"""From the words of a config to checked objects: unknown names refused with the nearest valid one.

A settings object is a frozen keyword-only dataclass. Types are checked strictly by pydantic: a
number in quotes is not a number. Values are checked by the dataclass itself, at birth.
"""

from __future__ import annotations

import dataclasses
import json
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from fedaudit.errors import ConfigError, nearest

T = TypeVar("T")


def check(cls: type[T], given: Mapping[str, Any], where: str) -> T:
    """An instance of dataclass `cls` from `given`; `where` is the section's name in messages."""
    known = {f.name for f in dataclasses.fields(cls) if f.init}  # type: ignore[arg-type]
    for key in given:
        if key not in known:
            raise ConfigError(
                f"unknown key {where}.{key}",
                expected="a setting of this section" if known else "a section without settings",
                got=repr(key),
                remedy=nearest(key, known) if known else f"remove {key!r}",
            )
    hints = typing.get_type_hints(cls)
    values = {k: _convert(v, hints[k], f"{where}.{k}") for k, v in given.items()}
    missing = [
        f.name
        for f in dataclasses.fields(cls)  # type: ignore[arg-type]
        if f.init
        and f.name not in values
        and f.default is dataclasses.MISSING
        and f.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise ConfigError(
            f"{where} needs {' and '.join(missing)}",
            expected=", ".join(f"{where}.{m}" for m in missing),
            got="no value",
            remedy="add it to the config",
        )
    return cls(**values)


def _convert(value: Any, hint: Any, where: str) -> Any:
    from pydantic import TypeAdapter, ValidationError

    try:
        # by way of JSON, strict mode still takes a TOML array for a tuple
        return TypeAdapter(hint).validate_json(json.dumps(value), strict=True)
    except (ValidationError, TypeError) as error:
        detail = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
        raise ConfigError(
            f"{where} cannot be {value!r}",
            expected=_spell(hint),
            got=f"{type(value).__name__} {value!r} ({detail})",
            remedy=f"see `fedaudit list`, or leave {where.split('.')[-1]} out for its default",
        ) from None


def _spell(hint: Any) -> str:
    """A type as a person would write it."""
    origin = typing.get_origin(hint)
    if origin is typing.Literal:
        return " or ".join(repr(a) for a in typing.get_args(hint))
    if hint is float:
        return "a number"
    if hint is int:
        return "a whole number"
    if hint is str:
        return "text in quotes"
    if hint is bool:
        return "true or false"
    if hint is type(None):
        return "nothing"
    if origin is tuple:
        return f"a list of {_spell(typing.get_args(hint)[0])}"
    arguments = typing.get_args(hint)
    if arguments:
        return " or ".join(_spell(a) for a in arguments if a is not type(None))
    return str(hint)


def describe(cls: type) -> dict[str, tuple[str, str]]:
    """Setting -> (type in words, default in TOML) of a settings dataclass."""
    hints = typing.get_type_hints(cls)
    out = {}
    for f in dataclasses.fields(cls):
        if not f.init:
            continue
        if f.default is not dataclasses.MISSING:
            default = "" if f.default is None else json.dumps(f.default)
        elif f.default_factory is not dataclasses.MISSING:
            default = json.dumps(f.default_factory())
        else:
            default = "(required)"
        out[f.name] = (_spell(hints[f.name]), default)
    return out
