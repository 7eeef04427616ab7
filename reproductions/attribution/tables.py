"""Rows of results as cells with intervals, and tables of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fedaudit.stats.intervals import clustered_share, wilson
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
        notes = dict.fromkeys(r["note"] for r in runs if "note" in r)
        rows.append(
            (
                "; ".join([cell.label, *notes]),
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


PLANS = {
    "published": "published pairs",
    "safe": "fresh partitions",
    "swapped": "partitions, 40 % swap",
    "fixed": "fixed groups",
}


def plans_table(by_plan: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[str]:
    """Detection, false alarms, cost and leakage of each plan, from its cells of all seeds."""
    rows = []
    for label, cells in by_plan.items():
        mean = {
            k: float(np.mean([c.get(k, np.nan) for c in cells]))
            for k in ("queries", "uploads", "within", "across", "guessed")
        }
        rows.append(
            (
                label,
                rate(cells, "hits", "marked"),
                rate(cells, "alarms", "benign"),
                _pretended(cells),
                f"{mean['queries']:.0f}",
                f"{mean['uploads']:.0f}",
                str(min(c["smallest"] for c in cells)),
                *(f"{mean[k]:.2f}" for k in ("within", "across", "guessed")),
            )
        )
    head = (
        "plan", "found", "false alarms", "owners without a mark who name anybody", "sums a round",
        "uploads a client and round", "smallest group", "cosine in a round",
        "over rounds, least squares", "over rounds, best guess",
    )  # fmt: skip
    return table(head, rows)


def _pretended(cells: Sequence[Mapping[str, Any]]) -> str:
    own = [c["pretended"] for c in cells if "pretended" in c]
    if not own:
        return "-"
    e = clustered_share([r["owners alarmed"] for r in own], [r["owners"] for r in own])
    alarmed, owners = (sum(r[k] for r in own) for k in ("owners alarmed", "owners"))
    return f"{alarmed} of {owners}: {100 * e.value:.1f} % [{100 * e.low:.1f}, {100 * e.high:.1f}]"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    return [*lines, *("| " + " | ".join(r) + " |" for r in rows), ""]
