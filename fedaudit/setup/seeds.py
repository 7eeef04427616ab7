"""The seed of a run: given by hand, stored by an earlier start, or drawn.

Anyone with the seed can redraw every random number of a run. A drawn seed has 64 bits and is stored
in `truth/` alone. A run that resumes in the same folder uses it again.
"""

from __future__ import annotations

import json
import secrets
from pathlib import Path
from typing import Any, TypeGuard

from fedaudit.errors import FormatError
from fedaudit.files import Unreadable, make_folder, read_object, read_toml, write_atomically

BITS = 64
SEEDS = 2**BITS
KEPT = "seed.json"

BY_HAND = (
    "the seed was given by hand: whoever guesses it can redraw the noise, the flips and the "
    "shuffle; do not publish this trace"
)


def draw() -> int:
    """A seed that cannot be guessed."""
    return secrets.randbits(BITS)


def is_seed(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < SEEDS


def stored(run: Path) -> tuple[int, bool] | None:
    """The seed of a run that has recorded something, and whether it was drawn; else None."""
    if not any((run / "trace").glob("round-*")):
        return None
    try:
        facts = read_object(run / "truth" / "truth.json")
    except Unreadable:
        facts = {}
    try:
        seed = read_toml(run / "truth" / "config.toml").get("seed")
    except Unreadable:
        seed = facts.get("seed")  # if it is lost too, resuming the run reports it
    return (seed, facts.get("seed_drawn") is True) if is_seed(seed) else None


def base_seed(folder: Path) -> int:
    """The seed that a sweep or search counts up from: drawn once, stored in its own truth/."""
    file = folder / "truth" / KEPT
    try:
        seed = read_object(file).get("seed")
    except Unreadable as error:
        if not (error.absent or error.empty):
            raise
        seed = draw()
        make_folder(file.parent, private=True)
        write_atomically(file, json.dumps({"seed": seed}) + "\n", private=True)
    if not is_seed(seed):
        raise FormatError(
            f"{file} does not hold a seed",
            expected='{"seed": a whole number below 2^64}',
            got=repr(seed)[:60],
            remedy="remove the file: fedaudit draws another seed and reruns finished cells",
        )
    return seed
