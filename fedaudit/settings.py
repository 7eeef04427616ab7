"""Build checked settings objects from a config; refuse unknown names with the nearest valid one.

A settings object is a frozen keyword-only dataclass. Pydantic checks the types of a config
strictly: a number in quotes is not a number. `@checked` checks the values whenever an object is
made: a field's type states the allowed range.

    @dataclass(frozen=True, kw_only=True)
    @checked("training")
    class Training:
        learning_rate: Positive = 0.1
        steps: Count | None = None
        threshold: Annotated[int, Ge(2), "a sum over one client hides nothing"] = 5

`require` checks single values, such as function arguments. A text in `Annotated` says why.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import math
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from numbers import Integral, Real
from pathlib import Path
from typing import Annotated, Any, TypeVar

from annotated_types import Ge, Gt, Le, Lt, MinLen

from fedaudit.errors import ConfigError, FedauditError, UsageError, nearest

T = TypeVar("T")
Test = Callable[[Any], bool]


@dataclasses.dataclass(frozen=True)
class EachOnce:
    """Constraint of a list: no value appears twice."""


Positive = Annotated[float, Gt(0)]
PositiveFinite = Annotated[float, Gt(0), Lt(math.inf)]
NonNegative = Annotated[float, Ge(0)]
Fraction = Annotated[float, Gt(0), Lt(1)]
Share = Annotated[float, Ge(0), Le(1)]
ShareAboveZero = Annotated[float, Gt(0), Le(1)]
ShareBelowOne = Annotated[float, Ge(0), Lt(1)]
Whole = Annotated[int, Ge(0)]
Count = Annotated[int, Ge(1)]
AtLeastTwo = Annotated[int, Ge(2)]
SeedNumber = Annotated[int, Ge(0), Lt(2**64)]


def check(cls: type[T], given: Mapping[str, Any], where: str, *, also: Iterable[str] = ()) -> T:
    """Build dataclass `cls` from `given`; `where` is the section's name in messages.

    `also` lists keys that other code reads (the section's `kind`): messages suggest them, this
    function does not accept them.
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
    """Check names and types of `given` against the keyword-only arguments of `function`."""
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
    """Raise for the first unknown key of `given` and name the nearest known one."""
    names, valid = set(known), {*known, *also}
    for key in given:
        if key not in names:
            raise ConfigError.unknown(f"unknown key {where}.{key}", key, valid)


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
        # through JSON, strict mode still accepts a TOML array as a tuple
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


# -- values ---------------------------------------------------------------------------------------


_CHECKED = "_fields_are_checked"


def checked(
    where: str, *, error: type[FedauditError] = ConfigError
) -> Callable[[type[T]], type[T]]:
    """Check a new object's own fields against their types, before its `__post_init__`.

    Write it below `@dataclass`. `where` is the section's name in messages. Only fields with a
    constraint or a `Literal` type are checked: those of the class, and of its bases unless
    these check them already.
    """

    def decorate(cls: type[T]) -> type[T]:
        bases = [base for base in cls.__mro__ if not vars(base).get(_CHECKED)]
        own = {name for base in bases for name in inspect.get_annotations(base)}
        then = getattr(cls, "__post_init__", None)
        rules: list[tuple[str, Any, Test]] | None = None

        def __post_init__(self: Any) -> None:
            nonlocal rules
            if rules is None:  # at the first object: by then every name in the types is defined
                hints = typing.get_type_hints(cls, include_extras=True)
                found = ((name, hints[name]) for name in hints if name in own)
                rules = [(name, hint, test) for name, hint in found if (test := _test(hint))]
            for name, hint, test in rules:
                if not test(value := getattr(self, name)):
                    default = type(self).__dataclass_fields__[name].default
                    raise _refusal(error, f"{where}.{name}", value, hint, _advice(name, default))
            if then is not None:
                then(self)

        cls.__post_init__ = __post_init__  # type: ignore[attr-defined]
        setattr(cls, _CHECKED, True)
        return cls

    return decorate


def require(
    hint: Any,
    error: type[FedauditError] = UsageError,
    /,
    *,
    remedy: str | None = None,
    **values: Any,
) -> None:
    """Raise `error` for the first of `values` outside the constrained type `hint`."""
    test = _test(hint)
    assert test is not None, f"{hint} has no constraint"
    for name, value in values.items():
        if not test(value):
            raise _refusal(error, name, value, hint, remedy)


def _refusal(
    error: type[FedauditError], name: str, value: Any, hint: Any, remedy: str | None
) -> FedauditError:
    choices = typing.get_args(hint) if typing.get_origin(hint) is typing.Literal else ()
    if choices and isinstance(value, str):
        remedy = nearest(value, [str(c) for c in choices])
    return error(f"{name} is out of range", expected=_spell(hint), got=repr(value), remedy=remedy)


def _advice(name: str, default: Any) -> str:
    """The remedy for a refused value: its default where there is one."""
    if default is dataclasses.MISSING:
        return f"correct {name}"
    return f"leave {name} out" if default is None else f"{name} = {json.dumps(default)}"


@cache
def _test(hint: Any) -> Test | None:
    """Test of a value against a type; None for a type without constraint or choice."""
    origin, inside = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return lambda value: value in inside
    if origin is Annotated:
        return _within(inside[0], inside[1:])
    if origin in (typing.Union, types.UnionType):
        if not any(_test(a) for a in inside):
            return None
        tests = [_test(a) or _of_type(a) for a in inside]
        return lambda value: any(test(value) for test in tests)
    if origin in (tuple, Sequence) and len([a for a in inside if a is not ...]) == 1:
        each = _test(inside[0])
        return each and (lambda value: isinstance(value, tuple | list) and all(map(each, value)))
    return None


def _of_type(hint: Any) -> Test:
    """Test of a plain type, for an unconstrained member of a union."""
    kind = typing.get_origin(hint) or hint
    if kind is float:
        return _is_number
    if kind is int:
        return _is_whole
    return lambda value: isinstance(value, kind)


def _within(base: Any, limits: Sequence[Any]) -> Test:
    tests = [_test(base) or _of_type(base)]
    tests += [_HOLDS[type(m)](m) for m in limits if type(m) in _HOLDS]  # a text is no limit

    def test(value: Any) -> bool:
        return all(holds(value) for holds in tests)

    return test


_HOLDS: dict[type, Callable[[Any], Test]] = {  # NaN fails every comparison
    Gt: lambda m: lambda value: value > m.gt,
    Ge: lambda m: lambda value: value >= m.ge,
    Lt: lambda m: lambda value: value < m.lt,
    Le: lambda m: lambda value: value <= m.le,
    MinLen: lambda m: lambda value: len(value) >= m.min_length,
    EachOnce: lambda _: lambda value: len(set(value)) == len(value),
}


def _is_number(value: Any) -> bool:
    return type(value) is float or (isinstance(value, Real) and not isinstance(value, bool))


def _is_whole(value: Any) -> bool:
    return type(value) is int or (isinstance(value, Integral) and not isinstance(value, bool))


# -- words ----------------------------------------------------------------------------------------

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
    """Describe a type in words."""
    origin = typing.get_origin(hint)
    if origin is typing.Literal:
        return " or ".join(repr(a) for a in typing.get_args(hint))
    if origin is Annotated:
        base, *limits = typing.get_args(hint)
        return _limited(_spell(base), limits)
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
        return f"a list of {many}{_plural(inside[0])}"
    if origin in (dict, Mapping):
        return "a table of settings"
    arguments = typing.get_args(hint)
    if arguments:
        parts = dict.fromkeys(_spell(a) for a in arguments if a is not type(None))
        return " or ".join(parts)
    return str(hint)


def _plural(hint: Any) -> str:
    if typing.get_origin(hint) is Annotated:
        base, *limits = typing.get_args(hint)
        return _limited(_plural(base), limits)
    return _PLURALS.get(hint, _spell(hint))


def _limited(words: str, limits: Sequence[Any]) -> str:
    """`words` with their limits: "a number" -> "a finite number above 0"."""
    at = {type(m): _power(dataclasses.astuple(m)[0]) for m in limits if type(m) in _WORDS}
    if {at.get(Gt), at.get(Lt)} & {"-inf", "inf"}:
        words = words.replace("number", "finite number")
        at = {kind: end for kind, end in at.items() if "inf" not in end}
    if Ge in at and at.keys() & {Lt, Le}:
        ends = f"from {at[Ge]} to {at[Le] if Le in at else 'below ' + at[Lt]}"
    else:
        ends = " and ".join(f"{word} {at[kind]}" for kind, word in _WORDS.items() if kind in at)
        ends = ends if Gt in at or Lt in at else ends and f"of {ends}"
    words = f"{words} {ends}".rstrip()
    for m in limits:
        if isinstance(m, MinLen):
            words += f", at least {m.min_length} of them"
        elif isinstance(m, EachOnce):
            words += ", each once"
        elif isinstance(m, str):
            words += f": {m}"
    return words


_WORDS = {Gt: "above", Ge: "at least", Lt: "below", Le: "at most"}


def _power(end: float) -> str:
    return "2^64" if end == 2**64 else f"{end:g}" if isinstance(end, float) else str(end)


def describe(cls: type) -> dict[str, tuple[str, str]]:
    """Map each setting of a dataclass to (type in words, default in TOML)."""
    hints = typing.get_type_hints(cls, include_extras=True)
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
