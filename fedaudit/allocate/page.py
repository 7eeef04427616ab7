"""An allocation in words: what each number means, what it assumes, and who pays.

Written from the plain document of `fedaudit allocate` alone. No bound is overstated: the published
one is not a guarantee, and a sound one above ln(n + 1) nats is called vacuous.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fedaudit.reporting.text import clean

if TYPE_CHECKING:
    from rich.console import Console

MOST_NAMES = 20
MOST_ROWS = 40
_MARGIN = 15


def statements(document: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(about, text) of every statement, most important first."""
    rows = document["clients"]
    out = [("leverage", _leverage(document)), ("worst case", _worst(document))]
    out.append(("published", _published(document, rows)))
    out.append(("dataset level", _dataset(rows)))
    out.append(("record level", _record(document, rows)))
    out.append(("scale", _scale(document)))
    out.append(("who pays", _payers(rows)))
    low = [r for r in rows if r["noise_multiplier"] < document["low_multiplier"]]
    if low:
        out.append(
            (
                "too little",
                f"WARNING: the noise multiplier is below {document['low_multiplier']:g} for "
                f"{_some(low, rows)}: {_names(r['client'] for r in low)}. Noise this small hardly "
                "covers one record. Raise the budget or the batch.",
            )
        )
    out.append(("model noise", _model(document)))
    if document["window"] is not None:
        out.append(("window", _window(document, rows)))
    out += _doubts(document, rows)
    return out


def _leverage(document: Mapping[str, Any]) -> str:
    return (
        f"{document['leverage']}: a proxy; the leverage in nats is not known for any client "
        "([TopologyAwareDP] Section V-E)"
    )


def _worst(document: Mapping[str, Any]) -> str:
    k, uniform = document["worst_case"], document["uniform_worst_case"]
    which = "published" if document["objective"] == "published" else "dataset-level"
    saved = 100 * document["gap"] / uniform
    text = (
        f"K* = {k:.6g} nats, uniform noise {uniform:.6g}: {document['gap']:.4g} nats less "
        f"({saved:.1f} %), for the {which} bound, budget {document['budget']:.6g}; "
        "[TopologyAwareDP] Theorem V.3"
    )
    if document["gap"] == 0:
        text += ". All clients have the same leverage: this is the uniform allocation"
    return text


def _published(document: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> str:
    text = (
        "not a guarantee: [TopologyAwareDP] Eq. (2) uses the effect of one record for that of a "
        "whole data set, and assumes a leverage that no proxy is proved to reach. "
        f"Largest: {_largest(rows, 'published')}"
    )
    if document["steps_per_round"] != [1]:
        text += ". It counts a round as one step; here a round has several"
    if "most_there_is" in rows[0]:
        beyond = sum(r["published_after"] >= r["most_there_is"] for r in rows)
        if beyond:
            text += f". Even so it is vacuous for {beyond} of {len(rows)} clients"
    return text


def _dataset(rows: Sequence[Mapping[str, Any]]) -> str:
    text = (
        f"largest: {_largest(rows, 'dataset')}. Holds if noise is independent, batches are "
        "Poisson samples (or of fixed size), clients keep no state, and the leverage is at least "
        "the information in the other clients' data"
    )
    if "vacuous" not in rows[0]:
        return text + ". Without sizes it cannot be compared with ln(n + 1), the most there is"
    empty = sum(r["vacuous"] for r in rows)
    if not empty:
        return text + ". Below ln(n + 1) nats, the most there is, for every client"
    return text + (
        f". Vacuous for {empty} of {len(rows)} clients: a class mix of n records holds at most "
        "ln(n + 1) nats, and the bound is at least that"
    )


def _largest(rows: Sequence[Mapping[str, Any]], bound: str) -> str:
    after, before = (max(r[f"{bound}_{when}"] for r in rows) for when in ("after", "before"))
    return f"{figure(after)} nats (uniform noise {figure(before)})"


def _record(document: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> str:
    if "epsilon" not in rows[0]:
        return "not computed: epsilons need the sizes of the clients (`size_column`)"
    spans = []
    for key in ("epsilon", "uniform_epsilon"):
        values = [r[key] for r in rows]
        spans.append(f"{figure(min(values))} to {figure(max(values))}")
    by = {"pld": "privacy loss distributions", "rdp": "Renyi divergences"}[document["accountant"]]
    text = (
        f"epsilon {spans[0]} (uniform noise {spans[1]}) at delta {document['delta']:g}: holds for "
        f"one {document.get('unit', 'record')} added to or removed from a client, over all steps "
        "of all rounds, against "
        f"everyone who sees the uploads, if the client's own code is honest; by {by}"
    )
    if document["epsilon_rounded"] > 1:
        percent = 100 * (document["epsilon_rounded"] - 1)
        text += (
            f". Similar clients share one computation, rounded towards a larger epsilon: noise and "
            f"rates within {percent:.2g} %"
        )
    return text


def _scale(document: Mapping[str, Any]) -> str:
    parts = [
        f"{s['scale']:g} x: {s['worst_case']:.4g} (uniform noise {s['uniform_worst_case']:.4g})"
        for s in document["scales"]
    ]
    return "K* depends on the unit of the leverage, which is a choice: " + ", ".join(parts)


def _payers(rows: Sequence[Mapping[str, Any]]) -> str:
    worse = [r for r in rows if r["less_noise_than_uniform"]]
    if not worse:
        return "no client gets less noise than uniform"
    if "epsilon" in rows[0]:
        shown = [
            f"{r['client']} ({figure(r['uniform_epsilon'])} to {figure(r['epsilon'])})"
            for r in worse
        ]
        what = "a larger epsilon than with uniform noise"
    else:
        shown = [
            f"{r['client']} (multiplier {figure(r['uniform_noise_multiplier'])} to "
            f"{figure(r['noise_multiplier'])})"
            for r in worse
        ]
        what = "less noise than uniform"
    return f"{_some(worse, rows)} get {what}: {_names(shown)}"


def _model(document: Mapping[str, Any]) -> str:
    words = {"size": "weighted by size", "equal": "with equal weights"}
    parts = [
        f"{noise['ratio']:.3g} x that of uniform noise {words[name]}"
        for name, noise in document["model_noise"].items()
    ]
    counted = (
        "the budget counts every client's noise alike, as published"
        if document["budget_counts"] == "equal"
        else "the budget counts the noise in the average weighted by size"
    )
    return f"in the averaged model: {', '.join(parts)}; {counted}"


def _window(document: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> str:
    w = document["window"]
    text = (
        f"if keys change after {w['rounds']} rounds, an observer with the key of one window "
        f"faces a published bound of {figure(w['published'])} nats (not a guarantee) and a sound "
        f"one of {figure(w['dataset'])} (without a window {figure(w['dataset_without_window'])}), "
        f"of which up to {figure(w['dataset_through_models'])} come through the models of the "
        f"other rounds (average {'weighted by size' if w['average'] == 'size' else 'of equals'}, "
        "plain SGD). This does not protect against the server, which reads every round"
    )
    if w["vacuous"]:
        text += f". The sound one is vacuous for {w['vacuous']} of {len(rows)} clients"
    return text


def _doubts(
    document: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]
) -> list[tuple[str, str]]:
    out = []
    if document["delta"] is not None:
        large = [r for r in rows if document["delta"] * r["records"] > 1]
        if large:
            out.append(
                (
                    "delta",
                    f"WARNING: {document['delta']:g} is above 1 / records for "
                    f"{_some(large, rows)}: {_names(r['client'] for r in large)}. Such a delta "
                    "allows a mechanism that publishes a record now and then",
                )
            )
    tiny = [r for r in rows if r["noise_multiplier"] < document["least_amplified_multiplier"]]
    if tiny and document["delta"] is not None:
        out.append(
            (
                "amplification",
                f"epsilons below a multiplier of {document['least_amplified_multiplier']:g} do not "
                f"use amplification by sampling: {_names(r['client'] for r in tiny)}",
            )
        )
    if document["lone_members"]:
        out.append(
            (
                "lone members",
                f"alone in their group: {_names(document['lone_members'])}. A group label then "
                "names its client, yet the published proxy gives it the least leverage",
            )
        )
    return out


def _some(part: Sequence[Any], whole: Sequence[Any]) -> str:
    return f"{len(part)} of {len(whole)} clients"


def _names(names: Any) -> str:
    every = [str(name) for name in names]
    shown = ", ".join(every[:MOST_NAMES])
    left = len(every) - MOST_NAMES
    return shown if left <= 0 else f"{shown}, and {left} more (all in allocation.json)"


# -- the terminal ----------------------------------------------------------------------------------

NOISE = {
    "client": "client",
    "leverage": "leverage",
    "sigma": "sigma",
    "noise_multiplier": "multiplier",
    "epsilon": "epsilon",
    "uniform_epsilon": "uniform",
    "before": "before",
    "after": "after",
}
"""Columns of the first table. `before` and `after`: the balanced bound with uniform noise, and
with this allocation."""

BOUNDS = {
    "client": "client",
    "published_before": "published before",
    "published_after": "published after",
    "dataset_before": "dataset before",
    "dataset_after": "dataset after",
    "most_there_is": "ln(n+1)",
    "standing": "dataset bound",
}


def show(console: Console, document: Mapping[str, Any]) -> None:
    """Print the noise of every client, all bounds, and what they mean.

    A long table shows the clients with the largest leverage.
    """
    from rich.text import Text

    objective = document["objective"]
    rows = document["clients"]
    shown = rows
    if len(rows) > MOST_ROWS:
        shown = sorted(rows, key=lambda r: -r["leverage"])[:MOST_ROWS]
    shown = [
        {
            **row,
            "before": row[f"{objective}_before"],
            "after": row[f"{objective}_after"],
            **(
                {"standing": "vacuous" if row["vacuous"] else "says something"}
                if "vacuous" in row
                else {}
            ),
        }
        for row in shown
    ]
    which = "published, not a guarantee" if objective == "published" else "dataset level"
    _table(console, f"noise, epsilon, and the bound that was balanced ({which})", NOISE, shown)
    _table(
        console,
        "all bounds in nats: before = with uniform noise, after = with this noise",
        BOUNDS,
        shown,
    )
    if len(rows) > len(shown):
        rest = f"and {len(rows) - len(shown)} more of less leverage: see allocation.csv"
        console.print(Text(rest, style="dim"))
    console.print()
    width = max(console.width, _MARGIN + 20) - _MARGIN
    for statement in document["statements"]:
        text = clean(statement["text"])
        # keep a number and its unit on one line; `clean` has removed control characters like \0
        tied = text
        for unit in ("%", "nats", "x:", "x that"):
            tied = tied.replace(f" {unit}", f"\0{unit}")
        lines = [
            line.replace("\0", " ")
            for line in textwrap.wrap(tied, width, break_on_hyphens=False) or [""]
        ]
        style = "bold yellow" if text.startswith("WARNING") else "bold"
        head = Text.assemble((f"{statement['about']:<{_MARGIN}}", style), lines[0])
        console.print(head, soft_wrap=True)
        for line in lines[1:]:
            console.print(Text(" " * _MARGIN + line), soft_wrap=True)


def _table(
    console: Console,
    title: str,
    columns: Mapping[str, str],
    rows: Sequence[Mapping[str, Any]],
) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    there = [c for c in columns if c in rows[0]]
    for column in there:
        words = column in ("client", "standing")
        table.add_column(columns[column], justify="left" if words else "right", overflow="fold")
    for row in rows:
        cells = (row[c] if isinstance(row[c], str) else figure(row[c]) for c in there)
        table.add_row(*(Text(clean(c)) for c in cells))
    console.print()
    console.print(Text(title, style="bold"))
    console.print(table)


def figure(value: float) -> str:
    """Four digits, without an exponent for numbers of ordinary size."""
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e9 else f"{value:.4g}"
