"""Slices of long arrays that fit the cache."""

from __future__ import annotations

from collections.abc import Iterator

FEATURES_AT_ONCE = 1 << 14
"""Features drawn at once: their arrays fit the cache and stay below malloc's mmap threshold."""


def slices(count: int, step: int) -> Iterator[slice]:
    """Slices of at most `step` that cover `count`."""
    for low in range(0, count, step):
        yield slice(low, min(count, low + step))
