"""What a hardening finds: `Point` is one protection as measured, `Hardened` the whole search."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fedaudit.decide.gate.outcome import LimitCheck, LimitReading
from fedaudit.files import read_text
from fedaudit.frames import Row, SvgFigure, Tabular
from fedaudit.results import Estimate

KEPT = ("passed", "allowed")


@dataclass(frozen=True, kw_only=True)
class Point:
    """One protection: what it is, whom it trusts, what it costs, how the limits fared.

    `cost` is what it takes away from the held-out `measure`; `risks` maps a metric to what was
    estimated; `epsilon` is the largest that was promised to a client, `promise` the unit and delta
    that it holds for. `failed` says why it could not be run, or is empty.
    """

    label: str
    series: str
    level: float = 0.0
    noise: str = ""
    trusted: tuple[str, ...] = ()
    checks: tuple[LimitCheck, ...] = ()
    cost: Estimate | None = None
    utility: Estimate | None = None
    risks: Mapping[str, Estimate] = field(default_factory=dict)
    epsilon: float | None = None
    promise: str = ""
    runs: int = 0
    failed: str = ""
    folders: tuple[str, ...] = ()

    @property
    def met(self) -> bool:
        return not self.failed and bool(self.checks) and not self.broken

    @property
    def broken(self) -> tuple[LimitCheck, ...]:
        return tuple(c for c in self.checks if c.status not in KEPT)

    @property
    def who(self) -> str:
        return ", ".join(self.trusted) or "nobody but the clients"

    @property
    def excess(self) -> float:
        """How far beyond its limits, in parts of each; infinite where a number is missing."""
        return sum(
            max((_part(r) for r in check.readings if not r.kept), default=math.inf)
            for check in self.broken
        )


def _part(r: LimitReading) -> float:
    if r.bound is None or r.limit is None:
        return math.inf
    return abs(r.bound - r.limit) / max(abs(r.limit), 0.01)


@dataclass(frozen=True, kw_only=True)
class Hardened(Tabular):
    """A search and its end.

    `chosen` as it was found, `confirmed` the same on seeds that the search had not seen;
    `rejected` were found and did not hold there. `nearest` breaks least where nothing was
    confirmed. `conflicts` are the smallest sets of limits that nothing measured keeps together;
    `instead` maps each of their limits to what keeps all others and breaks this one least.
    `left_out` says what was not tried, and why; `stopped` why the search ended early. `searched`
    counts what it chose from: points for the curve alone come on top.
    """

    path: str
    limits: tuple[tuple[str, str], ...]
    points: tuple[Point, ...]
    measure: str = "accuracy"
    chosen: Point | None = None
    confirmed: Point | None = None
    rejected: tuple[Point, ...] = ()
    nearest: Point | None = None
    conflicts: tuple[tuple[str, ...], ...] = ()
    instead: Mapping[str, Point] = field(default_factory=dict)
    left_out: tuple[tuple[str, str], ...] = ()
    stopped: str = ""
    seeds: int = 1
    searched: int = 0
    reused: int = 0
    config: str = ""
    policy: str = ""

    @property
    def succeeded(self) -> bool:
        return self.confirmed is not None

    @property
    def metrics(self) -> list[str]:
        """The risks that were estimated."""
        return list(dict.fromkeys(m for p in self.points for m in p.risks))

    @property
    def figures(self) -> tuple[SvgFigure, ...]:
        """The trade-off curves that the search wrote."""
        files = sorted(Path(self.path).glob("tradeoff*.svg"))
        return tuple(SvgFigure(svg=read_text(f), title=f.stem) for f in files)

    def rows(self) -> Sequence[Row]:
        """One row per protection that was measured, with a column per risk."""
        return [
            {
                "protection": p.label,
                "keeps_all_limits": p.met,
                "chosen": self.chosen is not None and p.label == self.chosen.label,
                "cost": None if p.cost is None else p.cost.value,
                "epsilon": p.epsilon,
                "trusted": p.who,
                **{m: p.risks[m].value if m in p.risks else None for m in self.metrics},
                "failed": p.failed,
            }
            for p in self.points
        ]
