"""Rows of results as cells with intervals, and tables of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedaudit.stats.intervals import wilson


def rows_of(results: Mapping[str, Any], name: str) -> list[Any]:
    measured = results["measured"]
    keys = [f"{name}/{seed}" for seed in results["seeds"]]
    return [measured[k] for k in keys if k in measured]


def rate(rows: Sequence[Mapping[str, int]], hit: str, of: str) -> str:
    n, k = sum(r[of] for r in rows), sum(r[hit] for r in rows)
    if not n:
        return "-"
    e = wilson(k, n)
    if hit == "alarms" and n < 300:  # too few to state a rate
        return f"{k} of {n} [{100 * e.low:.0f}, {100 * e.high:.0f} %]"
    return f"{100 * e.value:.0f} % [{100 * e.low:.0f}, {100 * e.high:.0f}] ({k} of {n})"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    return [*lines, *("| " + " | ".join(r) + " |" for r in rows), ""]
