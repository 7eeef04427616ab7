"""Outcome of a hardening: `Point` is one measured protection, `Hardened` the whole search."""

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
    """One measured protection.

    cost: loss in the held-out metric against the unprotected federation
    risks: metric -> estimate
    epsilon, promise: largest promised epsilon, and its unit and delta
    epsilon_measured: what canaries showed of it, at least; None where no run was rehearsed
    failed: why it could not run; else empty
    """

    label: str
    series: str
    level: float = 0.0
    noise: str = ""
    trusted: tuple[str, ...] = ()
    outside_parties: int = 0
    checks: tuple[LimitCheck, ...] = ()
    cost: Estimate | None = None
    utility: Estimate | None = None
    risks: Mapping[str, Estimate] = field(default_factory=dict)
    epsilon: float | None = None
    promise: str = ""
    epsilon_measured: float | None = None
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
        return ", ".join(self.trusted) or "the clients alone"

    @property
    def excess(self) -> float:
        """Distance beyond the broken limits, summed; infinite if a number is missing."""
        return sum(_check_excess(check) for check in self.broken)

    @property
    def nearness(self) -> tuple[float, ...]:
        """Sort key, nearest to the limits first.

        Broken limits without a number, the distance to the others, and their count. The distance
        comes before the count: two limits missed by a hair are nearer than one missed by far.
        """
        each = [_check_excess(check) for check in self.broken]
        known = [x for x in each if math.isfinite(x)]
        return len(each) - len(known), sum(known), len(each)


def _check_excess(check: LimitCheck) -> float:
    if check.leak is not None:
        return check.leak
    return max((_excess(r) for r in check.readings if not r.kept), default=math.inf)


def _excess(r: LimitReading) -> float:
    """Distance of one number from its limit: absolute for a share, else relative to the limit.

    Relative to its limit, a loss of 4 points of accuracy where 2 are allowed would weigh more than
    a leak at 100 % where 60 % are.
    """
    if r.bound is None or r.limit is None:
        return math.inf
    e = r.estimate
    share = e is not None and max(abs(e.low), abs(e.high), abs(r.limit)) <= 1
    return abs(r.bound - r.limit) / (1.0 if share else max(abs(r.limit), 0.01))


@dataclass(frozen=True, kw_only=True)
class Hardened(Tabular):
    """Outcome of a search.

    chosen, confirmed: the cheapest point that keeps all limits, and the same on fresh seeds
    rejected: points that kept all limits in the search, but not on fresh seeds
    nearest: the point that breaks the limits least, if none is confirmed
    conflicts: smallest sets of limits that no point keeps together
    instead: limit of a conflict -> the point that breaks only this limit, and by the least
    left_out: (candidate, reason) of everything that was not tried
    stopped: why the search ended early; else empty
    searched: points to choose from, without those added for the curve
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
        """The estimated risks."""
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
