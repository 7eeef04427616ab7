"""Reuse of stored results, and its reasons, which `--explain-cache` prints.

A stored result counts only if nothing that it depends on has changed: the audit's settings and
random draws, the trace (by its hash), the truth with records and guarantees (by a keyed hash), and
the code.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedaudit.files import Unreadable, make_folder, read_text, write_atomically
from fedaudit.trace import Truth

KEY = "cache-key"


@dataclass(frozen=True)
class Reuse:
    """One stage of a run: whether its stored work was reused, and why."""

    stage: str
    reused: bool
    why: str


Explain = Callable[[Reuse], None]


def no_explain(_: Reuse) -> None:
    """Default explanation callback: does nothing."""


def truth_digest(truth: Truth) -> str:
    """Keyed hash of every file of the truth and of facts that were handed over."""
    return keyed(truth.path, json.dumps([truth.sha256, truth.facts], sort_keys=True, default=str))


def keyed(folder: Path, text: str) -> str:
    """A hash that only the owner of the private key in `folder` can compute.

    A plain hash of records, or of draws from a small seed, would confirm guesses.
    """
    file = folder / KEY
    try:
        key = read_text(file, limit=1024, encoding="ascii", empty=False)
    except Unreadable:
        key = secrets.token_hex(16)
        try:
            make_folder(folder, private=True)
            write_atomically(file, key, private=True)
        except OSError:
            return secrets.token_hex(16)  # read-only folder: a random value, so nothing is reused
    return hmac.new(key.encode(), text.encode(), hashlib.sha256).hexdigest()[:32]


WORDS = {
    "settings": "the audit's settings",
    "files": "a file named in the audit's settings",
    "code": "the code of fedaudit",
    "fedaudit": "the version of fedaudit",
    "seed": "the seed of the audit's draws",
    "scored": "whether there is a truth to score against",
    "promised": "the guarantees",
    "truth": "the truth: senders, records of clients, or guarantees",
    "records": "the given records or model",
}


def differing(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """In words, what has changed among the things that a stored result depends on."""
    out = []
    for key in dict.fromkeys([*now, *before]):
        if before.get(key) == now.get(key):
            continue
        words = WORDS.get(key, key)
        if key == "settings" and isinstance(before.get(key), Mapping):
            old, new = before[key], now.get(key, {})
            changed = [k for k in dict.fromkeys([*old, *new]) if old.get(k) != new.get(k)]
            words += f" ({', '.join(changed)})"
        out.append(words)
    return ", ".join(out)
