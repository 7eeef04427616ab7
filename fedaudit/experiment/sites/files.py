"""What travels between the server and the sites: files of guesses, counts, records and keys."""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedaudit.errors import FormatError, UsageError
from fedaudit.experiment.reporting import unwritable
from fedaudit.files import parse_json, write_atomically

GUESSES, COUNTS = "fedaudit-guesses", "fedaudit-counts"
VERSION = 1
LINKS, MEMBERS = "fingerprint", "two_stage_membership"
AT_SITES = (LINKS, MEMBERS)
"""Audits whose guesses a site can score by itself."""
KEY = "fedaudit-key"


def write(file: str | os.PathLike[str], raw: Mapping[str, Any]) -> None:
    path = Path(file)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(raw, indent=1, sort_keys=True, allow_nan=False) + "\n")
    except OSError as error:
        raise unwritable(path.parent, error) from None


def sha256(file: str | os.PathLike[str]) -> str:
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()


def read(file: str | os.PathLike[str], kind: str) -> dict[str, Any]:
    """A file of guesses or counts, with the shape that it must have."""
    try:
        raw = parse_json(Path(file).read_bytes())
        if not isinstance(raw, dict) or raw.get("format") != kind:
            raise ValueError(f"not {kind}")
        if raw.get("version") != VERSION:
            raise ValueError(f"version {raw.get('version')!r}")
        {GUESSES: _check_guesses, COUNTS: _check_counts, KEY: _check_key}[kind](raw)
    except OSError as error:
        raise UsageError(
            f"{file} could not be read",
            expected=kind,
            got=error.strerror or str(error),
            remedy="point to the file that was sent",
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FormatError(
            f"{file} holds no {kind.removeprefix('fedaudit-')}",
            expected=f'"format": "{kind}", version {VERSION}',
            got=f"{type(error).__name__}: {error}",
            remedy="send it again, as `fedaudit attack` or `fedaudit score` wrote it",
        ) from None
    return raw


def _check_guesses(raw: Mapping[str, Any]) -> None:
    for name, guess in raw["audits"].items():
        if name not in AT_SITES:
            raise ValueError(f"an audit {name!r} that sites do not score")
        if not all(isinstance(guess[k], str) for k in ("question", "source", "vantage")):
            raise ValueError("question, source and vantage are text")
        if not isinstance(guess["settings"], dict):
            raise ValueError("settings are an object")
        (_check_labels if name == LINKS else _check_scores)(guess)
    if not isinstance(raw["trace_sha256"], str) or not isinstance(raw["layout"]["tensors"], list):
        raise ValueError("no trace, or no layout")
    if not isinstance(raw["federation"], str) or not raw["audits"]:
        raise ValueError("nothing was guessed")


def _check_labels(guess: Mapping[str, Any]) -> None:
    sizes = [len(round_) for round_ in guess["messages"]]
    for labels in guess["labels"].values():
        whole = all(type(v) is int for own in labels for v in own)
        if [len(own) for own in labels] != sizes or not whole:
            raise ValueError("labels do not fit the messages")
    if not guess["methods"] or sorted(guess["methods"]) != sorted(guess["labels"]):
        raise ValueError("methods do not fit the labels")
    if len(guess["rounds"]) != len(sizes):
        raise ValueError("rounds do not fit the messages")


def _check_scores(guess: Mapping[str, Any]) -> None:
    if not isinstance(guess["statistic"], str):
        raise ValueError("a statistic has a name")
    for own in guess["scores"].values():
        if not all(v is None or type(v) in (int, float) for v in own):
            raise ValueError("scores are numbers")


def _check_key(raw: Mapping[str, Any]) -> None:
    if not isinstance(raw["asked_sha256"], str) or not all(type(m) is bool for m in raw["member"]):
        raise ValueError("a key says of every record whether it is a member")


def _check_counts(raw: Mapping[str, Any]) -> None:
    if not isinstance(raw["site"], str) or not isinstance(raw["guesses_sha256"], str):
        raise ValueError("a site has a name, guesses have a hash")
    for name, methods in raw["audits"].items():
        for c in methods.values():
            whole, part, free = (
                ("links", "found", "expected")
                if name == LINKS
                else ("members", "others", "ordered")
            )
            a, b, x = c[whole], c[part], float(c[free])
            if type(a) is not int or type(b) is not int or a < 0 or b < 0:
                raise ValueError(f"{b!r} and {a!r} are no counts")
            if name == LINKS and b > a:
                raise ValueError(f"{b!r} of {a!r} links")
            if not 0 <= x <= (a if name == LINKS else a * b):
                raise ValueError(f"{free} {x!r} is out of range")


def read_asked(file: str | os.PathLike[str]) -> tuple[str, Any, Any, tuple[str, ...]]:
    try:
        with open(file, "rb") as opened, np.load(opened, allow_pickle=False) as raw:
            party, x, y = str(raw["party"]), raw["x"], raw["y"]
            classes = tuple(str(c) for c in raw["classes"])
        if len(x) != len(y) or not len(x):
            raise ValueError(f"{len(x)} records and {len(y)} labels")
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise FormatError(
            f"{file} holds no records to ask about",
            expected="a file that `fedaudit ask` wrote",
            got=f"{type(error).__name__}: {error}",
            remedy="ask the site to send it again",
        ) from None
    return party, x, y, classes
