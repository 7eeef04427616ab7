"""Types of the games' arrays, and how long ones are gone through in parts."""

from __future__ import annotations

from collections.abc import Iterator

DRAWN = 1 << 14
"""Features drawn at once: their arrays stay in the cache, and below what malloc maps anew."""


def parts(count: int, step: int) -> Iterator[slice]:
    """Slices of at most `step` that together are all of `count`."""
    for low in range(0, count, step):
        yield slice(low, min(count, low + step))
