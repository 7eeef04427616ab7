"""The trade-off as a figure: who is found against what the server learns of a client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np

from fedaudit.reporting import plots
from fedaudit.stats.intervals import wilson

Cells = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Found:
    """One plan: filled, the share of marked clients found; hollow, of benign ones flagged.

    `points`: (x, label, (value, low, high) found, the same flagged).
    """

    name: str
    points: tuple[tuple[float, str, tuple[float, ...], tuple[float, ...]], ...]

    def svg(self, frame: plots.Frame, colour: str) -> str:
        out = []
        for x, label, *both in self.points:
            at = frame.px(x)
            for (value, low, high), fill in zip(both, (colour, "none"), strict=True):
                out.append(
                    f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{frame.py(low):.1f}" '
                    f'y2="{frame.py(high):.1f}" stroke="{colour}" stroke-opacity=".5"/>'
                    f'<circle cx="{at:.1f}" cy="{frame.py(value):.1f}" r="4.5" fill="{fill}" '
                    f'stroke="{colour}" stroke-width="1.5"/>'
                )
            y = frame.py(both[0][0])
            out.append(f'<text x="{at + 7:.1f}" y="{y - 6:.1f}">{escape(label)}</text>')
        return "".join(out)


def trade_off(drawn: Mapping[str, Sequence[tuple[str, Cells]]]) -> str:
    """Plan -> (label, its cells of all seeds): one mark for each, with Wilson's intervals."""
    layers = [
        Found(
            plan,
            tuple(
                (
                    _guessed(cells),
                    label,
                    _share(cells, "hits", "marked"),
                    _share(cells, "alarms", "benign"),
                )
                for label, cells in points
            ),
        )
        for plan, points in drawn.items()
    ]
    x = plots.PlotAxis("cosine of the server's best guess with a client's mean update", 0.2, 1.02)
    y = plots.PlotAxis("marked found (filled), benign flagged (hollow)", 0.0, 1.0)
    return plots.draw(x, y, layers, height=400)


def _guessed(cells: Cells) -> float:
    return max(0.2, float(np.mean([c.get("guessed", c["across"]) for c in cells])))


def _share(cells: Cells, hits: str, of: str) -> tuple[float, float, float]:
    e = wilson(sum(c[hits] for c in cells), sum(c[of] for c in cells))
    return e.value, e.low, e.high
