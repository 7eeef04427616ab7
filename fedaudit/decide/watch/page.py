"""A reading in words and as JSON."""

from __future__ import annotations

from typing import Any

from fedaudit.decide.gate.page import statement
from fedaudit.decide.watch.rounds import RoundReading


def line(reading: RoundReading) -> str:
    """One line for a terminal."""
    a = reading.arrivals
    late = f", {a.late} late" if a.late else ""
    parts = [
        f"round {reading.round}",
        f"{a.arrived} of {a.expected} uploads arrived{late}",
        _linkage(reading),
        f"{len(reading.outside)} kinds of data outside protection",
    ]
    if reading.epsilon is not None:
        e = reading.epsilon
        parts.append(
            f"epsilon {float(e['epsilon']):.3g} per {e['unit']} at delta {float(e['delta']):g}"
        )
    else:
        parts.append("no epsilon declared")
    if reading.broken:
        parts.append(f"BROKEN: {reading.reason}")
    return " | ".join(parts)


def _linkage(reading: RoundReading) -> str:
    if reading.linked is None:
        return "no single updates to link"
    if reading.linked == 0:
        return f"{reading.unscored} anonymous updates, links not scored"
    rest = f", {reading.unscored} anonymous" if reading.unscored else ""
    return f"{100 * reading.linked:.3g} % linked by name{rest}"


def plain(reading: RoundReading) -> dict[str, Any]:
    """The reading as plain data, one JSON object per round."""
    a = reading.arrivals
    return {
        "round": reading.round,
        "expected": a.expected,
        "arrived": a.arrived,
        "late": a.late,
        "linked_by_name": reading.linked,
        "anonymous_updates": reading.unscored,
        "outside_protection": list(reading.outside),
        "epsilon": None if reading.epsilon is None else dict(reading.epsilon),
        "broken": [
            {
                "limit": c.limit,
                "metric": c.metric,
                "rule": c.rule,
                "finding": c.explanation or statement(c),
            }
            for c in reading.broken
        ],
        "stopped": reading.stopped,
    }
