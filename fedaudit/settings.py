"""From the words of a config to checked objects: unknown names refused with the nearest valid one.

A settings object is a frozen keyword-only dataclass. Types are checked strictly by pydantic: a
number in quotes is not a number. Values are checked by the dataclass itself, at birth.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from fedaudit.errors import ConfigError, nearest

T = TypeVar("T")


def check(cls: type[T], given: Mapping[str, Any], where: str, *, also: Iterable[str] = ()) -> T:
    """An instance of dataclass `cls` from `given`; `where` is the section's name in messages.

    `also` are keys of the section that are read elsewhere (its `kind`): proposed, never taken.
    """
    fields = [f for f in dataclasses.fields(cls) if f.init]  # type: ignore[arg-type]
    refuse_unknown(given, [f.name for f in fields], where, also=also)
    hints = typing.get_type_hints(cls)
    values = {k: _convert(v, hints[k], f"{where}.{k}") for k, v in given.items()}
    required = [
        f.name
        for f in fields
        if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    ]
    _refuse_missing(values, required, where)
    return cls(**values)


def check_arguments(
    function: Callable[..., Any], given: Mapping[str, Any], where: str, *, also: Iterable[str] = ()
) -> dict[str, Any]:
    """`given` as keyword-only arguments of `function`: names, types, nothing required missing."""
    known = _arguments(function)
    refuse_unknown(given, known, where, also=also)
    hints = typing.get_type_hints(function)
    values = {k: _convert(v, hints[k], f"{where}.{k}") for k, v in given.items()}
    _refuse_missing(
        values, [n for n, p in known.items() if p.default is inspect.Parameter.empty], where
    )
    return values


def refuse_unknown(
    given: Iterable[str], known: Iterable[str], where: str, *, also: Iterable[str] = ()
) -> None:
    """Raise for the first key of `given` that is not `known`, with the nearest that is."""
    names, valid = set(known), {*known, *also}
    for key in given:
        if key not in names:
            raise ConfigError(
                f"unknown key {where}.{key}",
                expected="a setting of this section" if valid else "a section without settings",
                got=repr(key),
                remedy=nearest(key, valid) if valid else f"remove {key!r}",
            )


def _refuse_missing(values: Mapping[str, Any], required: Iterable[str], where: str) -> None:
    missing = [name for name in required if name not in values]
    if missing:
        raise ConfigError(
            f"{where} needs {' and '.join(missing)}",
            expected=", ".join(f"{where}.{m}" for m in missing),
            got="no value",
            remedy="add it to the config",
        )


def argument_names(function: Callable[..., Any]) -> tuple[str, ...]:
    """The keyword-only arguments of a function."""
    return tuple(_arguments(function))


def _arguments(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    parameters = inspect.signature(function).parameters
    return {n: p for n, p in parameters.items() if p.kind is p.KEYWORD_ONLY}


def _convert(value: Any, hint: Any, where: str) -> Any:
    from pydantic import TypeAdapter, ValidationError

    try:
        # by way of JSON, strict mode still takes a TOML array for a tuple
        return TypeAdapter(hint).validate_json(json.dumps(value), strict=True)
    except (ValidationError, TypeError):
        remedy = f"see `fedaudit list`, or leave {where.split('.')[-1]} out for its default"
        choices = [a for a in typing.get_args(hint) if isinstance(a, str)]
        if typing.get_origin(hint) is typing.Literal and isinstance(value, str):
            remedy = nearest(value, choices)
        raise ConfigError(
            f"{where} cannot be {value!r}",
            expected=_spell(hint),
            got=f"{_TOML_TYPES.get(type(value), type(value).__name__)} {value!r}",
            remedy=remedy,
        ) from None


_TOML_TYPES = {
    str: "the text",
    bool: "the switch",
    int: "the whole number",
    float: "the number",
    list: "the list",
    dict: "the section",
}
_PLURALS = {int: "whole numbers", float: "numbers", str: "texts in quotes"}


def _spell(hint: Any) -> str:
    """A type as a person would write it."""
    origin = typing.get_origin(hint)
    if origin is typing.Literal:
        return " or ".join(repr(a) for a in typing.get_args(hint))
    if hint is float:
        return "a number"
    if hint is int:
        return "a whole number"
    if hint in (str, Path):
        return "text in quotes"
    if hint is bool:
        return "true or false"
    if hint is type(None):
        return "nothing"
    if origin in (tuple, Sequence):
        inside = [a for a in typing.get_args(hint) if a is not Ellipsis]
        many = "" if len(inside) == 1 else f"{len(inside)} "
        return f"a list of {many}{_PLURALS.get(inside[0], _spell(inside[0]))}"
    if origin in (dict, Mapping):
        return "a table of settings"
    arguments = typing.get_args(hint)
    if arguments:
        parts = dict.fromkeys(_spell(a) for a in arguments if a is not type(None))
        return " or ".join(parts)
    return str(hint)


def describe(cls: type) -> dict[str, tuple[str, str]]:
    """Setting -> (type in words, default in TOML) of a settings dataclass."""
    hints = typing.get_type_hints(cls)
    out = {}
    for f in dataclasses.fields(cls):
        if not f.init:
            continue
        if f.default is not dataclasses.MISSING:
            default = _default(f.default)
        elif f.default_factory is not dataclasses.MISSING:
            default = _default(f.default_factory())
        else:
            default = REQUIRED
        out[f.name] = (_spell(hints[f.name]), default)
    return out


def describe_arguments(function: Callable[..., Any]) -> dict[str, tuple[str, str]]:
    """The same for the keyword-only arguments of a function."""
    hints = typing.get_type_hints(function)
    return {
        name: (
            _spell(hints[name]),
            REQUIRED if p.default is inspect.Parameter.empty else _default(p.default),
        )
        for name, p in _arguments(function).items()
    }


REQUIRED = "(required)"


def _default(value: Any) -> str:
    return "" if value is None else json.dumps(value)
