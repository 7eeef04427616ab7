"""Checks of one declaration: a measured value, the declared one, and what a contradiction means."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fedaudit.results import Bound, Estimate


@dataclass(frozen=True, kw_only=True)
class Check:
    """A measured `value` beside its declared one.

    `ends`: tail -> the ends of its interval, each missed with that probability if the declaration
    holds; None for counts. `above` and `below`: what it means if the interval lies beyond the
    declared value; empty where that side contradicts nothing.
    """

    name: str
    value: float
    declared: float
    n: int
    ends: Callable[[float], tuple[float, float]] | None
    source: str
    above: str = ""
    below: str = ""
    method: str = ""

    @property
    def sides(self) -> int:
        return 0 if self.ends is None else bool(self.above) + bool(self.below)


def tail_of(checks: Sequence[Check], false_alarms: float) -> float:
    """The error of each side that can contradict, epsilon itself being one more (Bonferroni)."""
    return false_alarms / (1 + sum(c.sides for c in checks))


def compared(
    checks: Sequence[Check], false_alarms: float
) -> tuple[dict[str, Estimate], dict[str, Bound]]:
    """Estimates and bounds of all checks; with epsilon they alarm falsely in `false_alarms`."""
    tail = tail_of(checks, false_alarms)
    estimates, bounds = {}, {}
    for c in checks:
        low, high = (c.value, c.value) if c.ends is None else c.ends(tail)
        estimates[c.name] = Estimate(
            value=c.value,
            low=min(low, c.value),
            high=max(high, c.value),
            n=c.n,
            confidence=1.0 if c.ends is None else 1 - tail,
            baseline=c.declared,
            method=c.method or ("exact" if c.ends is None else "one error rate for all checks"),
        )
        for kind, meaning in (("upper", c.above), ("lower", c.below)):
            if meaning:
                side = "at most" if kind == "upper" else "at least"
                bounds[f"{c.name}, {side}"] = Bound(
                    value=c.declared,
                    kind=kind,  # type: ignore[arg-type]
                    of=c.name,
                    source=c.source,
                    assumes="the declaration",
                    suspect=meaning,
                )
    return estimates, bounds
