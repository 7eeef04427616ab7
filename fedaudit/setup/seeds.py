"""Where a run's seed comes from: given by hand, kept from an earlier start, or drawn.

Whoever has the seed can redraw every random number of a run. A drawn one has 64 bits, is kept in
`truth/` alone, and is taken up again where a run goes on in the same folder.
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
    """A seed that nobody guesses."""
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
        seed = facts.get("seed")  # where it is lost too, that is said where the run goes on
    return (seed, facts.get("seed_drawn") is True) if is_seed(seed) else None


def kept(folder: Path) -> int:
    """The seed that a sweep or search counts up from: drawn once, and kept in its own truth/."""
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
            f"{file} holds no seed",
            expected='{"seed": a whole number below 2^64}',
            got=repr(seed)[:60],
            remedy="remove the file: another seed is drawn, and finished cells are run again",
        )
    return seed
