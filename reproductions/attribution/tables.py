"""Rows of results as cells with intervals, and tables of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fedaudit.stats.intervals import wilson
from reproductions.attribution.cells import Cell


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


def swept(results: Mapping[str, Any], cells: Iterable[Cell]) -> list[str]:
    """A table of the cells that were measured; nothing without any."""
    rows = []
    for cell in cells:
        runs = rows_of(results, cell.name)
        if not runs:
            continue
        z = [
            [r[k] for r in runs if r.get(k) is not None and np.isfinite(r[k])]
            for k in ("z_marked", "z_benign")
        ]
        rows.append(
            (
                cell.label,
                cell.paper,
                rate([r["published"] for r in runs], "hits", "marked"),
                rate([r["published"] for r in runs], "alarms", "benign"),
                rate([r["calibrated"] for r in runs], "hits", "marked"),
                rate([r["calibrated"] for r in runs], "alarms", "benign"),
                " / ".join(f"{np.mean(v):.1f}" if v else "-" for v in z),
            )
        )
    head = (
        "setting", "paper: TPR / FPR in %", "gamma = 4: found", "false alarms",
        "calibrated: found", "false alarms", "mean Z marked / benign",
    )  # fmt: skip
    return table(head, rows) if rows else []


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    return [*lines, *("| " + " | ".join(r) + " |" for r in rows), ""]
