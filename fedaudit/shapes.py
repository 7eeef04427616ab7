"""Types in fedaudit's own files: one shape per kind of file, and one function to compare.

A shape is written as the value looks:

    str, int, float, bool       that type; a float may be whole, an int is never a bool
    None                        anything
    (str, int)                  one of several; `NOTHING` stands for null
    [str]                       a list of it
    {str: int}                  an object with any keys
    {"a": str, "b?": int}       an object with these keys, `?`: may be absent; others are free
    a function                  a custom check: returns what was expected, or None if it fits
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Shape = Any
NOTHING = type(None)


@dataclass(frozen=True)
class Misfit:
    """A value that does not fit: what was expected, what was found."""

    expected: str
    got: str


def misfit(value: Any, shape: Shape, where: str = "") -> Misfit | None:
    """The first place where a value does not fit its shape, or None."""
    if shape is None:
        return None
    if isinstance(shape, tuple):
        found = [misfit(value, one, where) for one in shape]
        if None in found:
            return None
        return _wrong(" or ".join(map(_spelled, shape)), value, where)
    if isinstance(shape, list):
        if not isinstance(value, list):
            return _wrong(_spelled(shape), value, where)
        if isinstance(shape[0], type) and all(type(v) is shape[0] for v in value):
            return None  # long lists of numbers
        return _first((v, shape[0], f"{where}[{i}]") for i, v in enumerate(value))
    if isinstance(shape, dict):
        return _object(value, shape, where)
    if isinstance(shape, type):
        return None if _is(value, shape) else _wrong(_spelled(shape), value, where)
    expected = shape(value)
    return None if expected is None else _wrong(expected, value, where)


def _object(value: Any, shape: dict[Any, Shape], where: str) -> Misfit | None:
    if not isinstance(value, dict):
        return _wrong("an object", value, where)
    if str in shape:
        return _first((v, shape[str], _at(where, k)) for k, v in value.items())
    for name, inner in shape.items():
        key = name.removesuffix("?")
        if key not in value:
            if key == name:
                return Misfit(f"{_at(where, key)}: {_spelled(inner)}", "no such key")
        elif (wrong := misfit(value[key], inner, _at(where, key))) is not None:
            return wrong
    return None


def _first(parts: Any) -> Misfit | None:
    return next((w for v, s, at in parts if (w := misfit(v, s, at)) is not None), None)


def _at(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key


def _is(value: Any, kind: type) -> bool:
    if kind is float:
        return type(value) in (int, float)
    return type(value) is kind


_WORDS = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    dict: "an object",
    list: "a list",
    NOTHING: "null",
}


def _spelled(shape: Shape) -> str:
    if shape is None:
        return "a value"
    if isinstance(shape, list):
        return "a list"
    if isinstance(shape, dict):
        return "an object"
    if isinstance(shape, tuple):
        return " or ".join(map(_spelled, shape))
    if isinstance(shape, type):
        return _WORDS[shape]
    return str(shape(_NONE_OF_THEM))


_NONE_OF_THEM = object()


def _wrong(expected: str, value: Any, where: str) -> Misfit:
    shown = repr(value)
    short = shown if len(shown) <= 60 else shown[:57] + "..."
    at = f"{where}: " if where else ""
    return Misfit(f"{at}{expected}", f"{_WORDS.get(type(value), type(value).__name__)}, {short}")


def at_least(low: int) -> Callable[[Any], str | None]:
    """A whole number from `low`."""

    def check(value: Any) -> str | None:
        fits = type(value) is int and value >= low
        return None if fits else f"a whole number of at least {low}"

    return check


def one_of(*words: str) -> Callable[[Any], str | None]:
    """One of some texts."""

    def check(value: Any) -> str | None:
        fits = isinstance(value, str) and value in words
        return None if fits else "one of " + ", ".join(words)

    return check


def budget(value: Any) -> str | None:
    """An epsilon: a number from 0, or the text "inf"."""
    fits = value == "inf" or (type(value) in (int, float) and 0 <= value < math.inf)
    return None if fits else 'an epsilon: a number from 0, or "inf"'


# -- the files -----------------------------------------------------------------------------------

GUARANTEE: Shape = {
    "epsilon": budget,
    "delta": float,
    "unit": one_of("record", "person", "client", "example"),
    "relation?": str,
    "trust?": str,
    "covers?": str,
    "suspect?": str,
    "by?": str,
    "noise_multiplier?": float,
    "exposure?": {"sampling_rate": float, "steps": int, "rounds": int},
}
GUARANTEES: Shape = {str: {str: GUARANTEE}}
"""Protection -> client -> guarantee."""

TRUTH: Shape = {
    "seed?": int,
    "clients?": {
        str: {
            "name?": (str, NOTHING),
            "records?": [int],
            "examples?": at_least(0),
            "classes?": [float],
            "organisation?": (int, NOTHING),
            "inverted?": bool,
        }
    },
    "guarantees?": GUARANTEES,
    "held_out?": at_least(0),
    "guessing?": {str: float},
    "data_sha256?": str,
    "notes?": [str],
    "torch?": str,
    "marked?": {str: int},
    "replay?": dict,
}
TRUTH_ROUND: Shape = {"senders": {str: str}, "clients": [str], "metrics": {str: float}}

FETCHED: Shape = {
    "fedaudit_data": int,
    "package_sha256": str,
    "records?": at_least(0),
    "lines?": at_least(0),
    "classes?": [str],
    "columns?": [str],
}
"""Description inside a fetched data set."""

RUN: Shape = {"config_sha256": str, "fedaudit?": str}
SEAL: Shape = {
    "format": one_of("fedaudit-seal"),
    "version": at_least(1),
    "parts": {str: {str: str}},
    "gone?": {str: {"why?": str, "on?": str}},
    "truth?": str,
    "salt?": str,
}
IDENTITY: Shape = {"data?": {str: dict}, "files?": {str: str}, "code?": dict}
STUDY: Shape = {
    "runs": [{"federation": str, "variant?": str, "path": str, "config_sha256?": str}],
    "fedaudit?": str,
}
AUDITED: Shape = {
    "trace?": str,
    "truth?": str,
    "done_by?": [{"command": str, "audits": [str]}],
}
_ALLOCATED = (
    "leverage",
    "noise_multiplier",
    "uniform_noise_multiplier",
    "epsilon",
    "uniform_epsilon",
    "published_before",
    "published_after",
)

CONFIG: Shape = {
    f"{section}?": dict
    for section in ("data", "partition", "topology", "task", "federation", "training", "trace")
}
CONFIG |= {f"{section}?": {str: dict} for section in ("protections", "audits")}
AUDIT_RESULT: Shape = {
    "audit": str,
    "question": str,
    "vantage": str,
    "settings?": dict,
    "headline?": (str, NOTHING),
    "greater_is_leak?": bool,
    "estimates?": {str: dict},
    "test?": (dict, NOTHING),
    "underpowered?": [dict],
    "bounds?": {str: dict},
    "per_client?": {str: {str: (float, str, bool, NOTHING)}},
    "curves?": {str: {str: [(float, str)]}},
    "notes?": [str],
}
RESULT: Shape = {"asked": {"records?": {"data_sha256?": str}}, "result": dict}
ALLOCATION: Shape = {
    "clients": [{"client": str, **{f"{k}?": (float, budget) for k in _ALLOCATED}}],
    "statements": [{"about": str, "text": str}],
}
REMAINS: Shape = {
    "federation": str,
    "summary": {str: str},
    "guarantees": GUARANTEES,
    "evidence": {str: str},
    "clients": [str],
    "notices": [str],
    "trust": {str: str},
    "arrived": (int, NOTHING),
    "expected": (int, NOTHING),
    "data_notes?": [str],
    "utility?": {
        str: {
            **dict.fromkeys(("value", "low", "high", "confidence"), float),
            "n": int,
            "baseline?": (float, NOTHING),
            "method?": str,
            "one_sided?": bool,
        }
    },
}
PROMISED: Shape = {"trace_sha256": str, "guarantees": GUARANTEES}
CELL: Shape = {
    "fedaudit": str,
    "cell?": str,
    "code": str,
    "own_code": {str: str},
    "measured": {str: [(float, str, NOTHING)]},
}
LOCK: Shape = {"pid": at_least(1), "began?": (int, NOTHING), "host?": (str, NOTHING)}
