"""Contestants take turns; what is compared is the ratio of one turn, never of two minutes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any


class Clock:
    """Seconds on the wall, or of this process's own computing (--cpu)."""

    now: Callable[[], float] = staticmethod(time.perf_counter)


def seconds(work: Callable[[], Any]) -> float:
    start = Clock.now()
    work()
    return Clock.now() - start


def interleaved(
    contestants: Mapping[str, Callable[[], Any]], repeats: int, *, warm: bool = False
) -> dict[str, list[float]]:
    """Seconds of every contestant in every repetition, one after the other.

    `warm`: each works once before: imports, buffers, the choice of a tier.
    """
    for work in contestants.values() if warm else ():
        work()
    taken: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(repeats):
        for name, work in contestants.items():
            taken[name].append(seconds(work))
    return taken


def ratio(slow: Sequence[float], fast: Sequence[float], scale: float = 1.0) -> float:
    """Median over repetitions of how many times faster."""
    return statistics.median(scale * s / f for s, f in zip(slow, fast, strict=True))
