"""Files that the server and the sites exchange: guesses, counts, records, canaries and keys."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedaudit.codec import to_json
from fedaudit.errors import FormatError, UsageError
from fedaudit.files import (
    Unreadable,
    read_npz,
    read_object,
    sha256_of,
    write_atomically,
    writing,
)
from fedaudit.shapes import NOTHING, Shape, at_least, misfit

GUESSES, COUNTS = "fedaudit-guesses", "fedaudit-counts"
VERSION = 1
CANARIES = "fedaudit-canaries"
LINKS, MEMBERS, COINS = "fingerprint", "two_stage_membership", "epsilon"
AT_SITES = (LINKS, MEMBERS, COINS)
"""Audits whose guesses a site can score by itself."""
KEY = "fedaudit-key"
_NOUNS = {GUESSES: "guesses", COUNTS: "counts", KEY: "a key", CANARIES: "canaries"}


def write(file: str | os.PathLike[str], raw: Mapping[str, Any]) -> None:
    path = Path(file)
    with writing(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, to_json(raw, sort_keys=True) + "\n")


def sha256(file: str | os.PathLike[str]) -> str:
    return sha256_of(file)


def read(file: str | os.PathLike[str], kind: str) -> dict[str, Any]:
    """Read a file of guesses, counts or a key, and check its shape."""
    try:
        raw = read_object(file)
        if raw.get("format") != kind:
            raise ValueError(f"not {kind}")
        if raw.get("version") != VERSION:
            raise ValueError(f"version {raw.get('version')!r}")
        if (wrong := misfit(raw, SHAPES[kind])) is not None:
            raise ValueError(f"{wrong.got}, expected {wrong.expected}")
        CHECKS[kind](raw)
    except (Unreadable, ValueError) as error:
        if isinstance(error, Unreadable) and error.absent:
            remedy = "give the path of the file that you received"
            raise error.as_error(UsageError, f"{file} could not be read", remedy) from None
        raise FormatError(
            f"{file} does not hold {_NOUNS[kind]}",
            expected=f'"format": "{kind}", version {VERSION}',
            got=(error.got if isinstance(error, Unreadable) else None) or str(error),
            remedy="send it again, as `fedaudit attack` or `fedaudit score` wrote it",
        ) from None
    return raw


def _check_guesses(raw: Mapping[str, Any]) -> None:
    for name, guess in raw["audits"].items():
        if name not in AT_SITES:
            raise ValueError(f"an audit {name!r} that sites do not score")
        wrong = misfit(guess, GUESSED[name], f"audits.{name}")
        if wrong is not None:
            raise ValueError(f"{wrong.got}, expected {wrong.expected}")
        if name == LINKS:
            _check_labels(guess)
    if not raw["audits"]:
        raise ValueError("nothing was guessed")


def _check_labels(guess: Mapping[str, Any]) -> None:
    sizes = [len(round_) for round_ in guess["messages"]]
    for labels in guess["labels"].values():
        if [len(own) for own in labels] != sizes:
            raise ValueError("labels do not fit the messages")
    if not guess["methods"] or sorted(guess["methods"]) != sorted(guess["labels"]):
        raise ValueError("methods do not fit the labels")
    if len(guess["rounds"]) != len(sizes):
        raise ValueError("rounds do not fit the messages")


def _check_key(_: Mapping[str, Any]) -> None:
    """A key needs no check beyond its shape."""


def _check_counts(raw: Mapping[str, Any]) -> None:
    for name, methods in raw["audits"].items():
        if name not in AT_SITES:
            raise ValueError(f"an audit {name!r} that sites do not score")
        for method, c in methods.items():
            wrong = misfit(c, COUNTED[name], f"audits.{name}.{method}")
            if wrong is not None:
                raise ValueError(f"{wrong.got}, expected {wrong.expected}")
            if name == COINS:
                if not c["right"] <= c["guesses"] <= c["coins"]:
                    raise ValueError(f"{c['right']} right of {c['guesses']} guesses")
                continue
            whole, part, free = (
                ("links", "found", "expected")
                if name == LINKS
                else ("members", "others", "ordered")
            )
            a, b, x = c[whole], c[part], float(c[free])
            if name == LINKS and b > a:
                raise ValueError(f"{b!r} of {a!r} links")
            if not 0 <= x <= (a if name == LINKS else a * b):
                raise ValueError(f"{free} {x!r} is out of range")


_GUESS: Shape = {"question": str, "source": str, "vantage": str, "settings": dict}
LABELS: Shape = {
    **_GUESS,
    "settings": {"clients?": (at_least(0), NOTHING)},
    "messages": [[str]],
    "labels": {str: [[int]]},
    "methods": [str],
    "rounds": [int],
}
SCORES: Shape = {**_GUESS, "statistic": str, "scores": {str: [(float, NOTHING)]}}
LINKED: Shape = {"links": at_least(0), "found": at_least(0), "expected": float}
ORDERED: Shape = {"members": at_least(0), "others": at_least(0), "ordered": float}
_DECLARED: Shape = {
    "site": str,
    "sampling_rate": float,
    "steps": at_least(1),
    "rounds": at_least(1),
    "noise_multiplier": float,
    "clip": float,
    "delta": float,
    "epsilon": float,
}
CALLS: Shape = {
    **_GUESS,
    "calls": {str: [int]},
    "declared": {str: _DECLARED},
    "noise": (str, NOTHING),
}
COIN_COUNTS: Shape = {"coins": at_least(1), "guesses": at_least(0), "right": at_least(0)}
GUESSED = {LINKS: LABELS, MEMBERS: SCORES, COINS: CALLS}
COUNTED = {LINKS: LINKED, MEMBERS: ORDERED, COINS: COIN_COUNTS}
SHAPES: dict[str, Shape] = {
    CANARIES: {
        "site": str,
        "seed": at_least(0),
        "count": at_least(2),
        "norms": [float],
        "tensors": [list],
        "clip": float,
        "sampling_rate": float,
        "rate": (float, NOTHING),
    },
    GUESSES: {
        "audits": {str: dict},
        "trace_sha256": str,
        "layout": {"tensors": list, "dtype": str},
        "federation": str,
    },
    COUNTS: {"site": str, "guesses_sha256": str, "audits": {str: {str: dict}}},
    KEY: {"asked_sha256": str, "member": [bool]},
}


def _check_canaries(raw: Mapping[str, Any]) -> None:
    for entry in raw["tensors"]:
        wrong = misfit(entry, list) or misfit(entry[:1], [str]) or misfit(entry[1:], [[int]])
        if wrong is not None or len(entry) != 2:
            raise ValueError(f"{str(entry)[:40]}, expected a name and a shape")
    if not raw["norms"] or min(raw["norms"]) <= 0 or raw["clip"] <= 0:
        raise ValueError("norms and the clip must be above 0")
    if not 0 < raw["sampling_rate"] <= 1:
        raise ValueError(f"a sampling rate of {raw['sampling_rate']}")


CHECKS = {
    GUESSES: _check_guesses,
    COUNTS: _check_counts,
    KEY: _check_key,
    CANARIES: _check_canaries,
}


def read_asked(file: str | os.PathLike[str]) -> tuple[str, Any, Any, tuple[str, ...]]:
    """Party, x, y and classes of a file that `ask` wrote."""
    try:
        raw = read_npz(file)
        party, x, y = str(raw["party"]), raw["x"], raw["y"]
        classes = tuple(str(c) for c in raw["classes"].reshape(-1))
        if x.ndim < 1 or y.ndim != 1 or len(x) != len(y) or not x.size:
            raise ValueError(f"records of shape {x.shape} and labels of shape {y.shape}")
    except (Unreadable, ValueError, KeyError) as error:
        raise FormatError(
            f"{file} does not hold records to ask about",
            expected="a file that `fedaudit ask` wrote",
            got=(error.got if isinstance(error, Unreadable) else None) or str(error),
            remedy="ask the site to send it again",
        ) from None
    return party, x, y, classes
