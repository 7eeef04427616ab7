"""Why work was done again, or was not: what `--explain-cache` prints.

A stored result counts only where everything that it depends on is as it was: the audit's settings
and draws, the trace (weights and order of all messages, by its hash), who held which records in
which order and what protections promised (by a keyed hash of the truth), and the code.
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
    """One stage of a run: whether its work was there already, and why it counted or did not."""

    stage: str
    reused: bool
    why: str


Explain = Callable[[Reuse], None]


def no_explain(_: Reuse) -> None:
    """Default explanation callback: does nothing."""


def truth_digest(truth: Truth) -> str:
    """Every file of the truth, and facts that were handed over besides, as a keyed hash."""
    return keyed(truth.path, json.dumps([truth.sha256, truth.facts], sort_keys=True, default=str))


def keyed(folder: Path, text: str) -> str:
    """A hash that only the owner of the key in `folder` can make, which is private.

    A plain hash of records, or of what a small seed deals out, would confirm guesses.
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
            return secrets.token_hex(16)  # read only: equal to nothing, so nothing is reused
    return hmac.new(key.encode(), text.encode(), hashlib.sha256).hexdigest()[:32]


WORDS = {
    "settings": "the audit's settings",
    "files": "a file that the audit's settings name",
    "code": "the code of fedaudit",
    "fedaudit": "the version of fedaudit",
    "seed": "the seed of the audit's draws",
    "scored": "whether there is a truth to score by",
    "promised": "what protections promised",
    "truth": "the truth: who sent what, who held which records, or what was promised",
    "records": "the records or the model that were given",
}


def differing(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """In words, what a stored result depended on that is another now."""
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
