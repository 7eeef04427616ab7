"""Pieces of the calibration: blocks of federations of one design, and what is kept of each."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from fedaudit.audits import facts_of
from fedaudit.reporting.findings import DOUBT, judge
from fedaudit.results import AuditResult
from reproductions.calibration.designs import AGAIN, Design, design_for, play
from reproductions.calibration.designs import rows as all_rows

BLOCK = 20
"""Federations of a piece."""

FOUND = ("leak", "attributed", "disagreement")
"""Verdicts that are alarms; "disagreement" alone where an audit checks a declaration."""


Kind = Literal["null", "leak", "again"]
"""Federations without a leak, with one, and the latter trained again and again."""

FEW = 20
"""Federations that are trained again, AGAIN times each."""


@dataclass(frozen=True, kw_only=True)
class Piece:
    """Federations `first`, `first` + 1, ... of one kind of an audit."""

    audit: str
    kind: Kind
    first: int
    federations: int = BLOCK

    @property
    def key(self) -> str:
        return f"{self.audit}/{self.kind}/{self.first:04d}"

    @property
    def design(self) -> Design:
        pair = design_for(self.audit)
        return pair.without if self.kind == "null" else pair.with_leak


def pieces(audits: Sequence[str] = (), federations: int | None = None) -> list[Piece]:
    """Blocks of all designs, the designs in turn, so that a stopped run has some of each."""
    found = []
    for audit in audits or all_rows():
        pair = design_for(audit)
        every, of_each = federations or pair.federations, dict[Kind, tuple[int, int]]()
        of_each["null"] = of_each["leak"] = every, BLOCK
        if pair.with_leak.true is None:
            of_each["again"] = min(every, FEW), BLOCK // AGAIN
        found += [
            Piece(audit=audit, kind=kind, first=first, federations=min(block, count - first))
            for kind, (count, block) in of_each.items()
            for first in range(0, count, block)
        ]
    # a block of federations that are trained again is as much work as any other
    return sorted(found, key=lambda p: p.first * (AGAIN if p.kind == "again" else 1))


def current(measured: Mapping[str, Any]) -> dict[str, Any]:
    """What was measured on the designs as they are now."""
    digests = {
        f"{audit}/{name}": design.digest
        for audit in all_rows()
        for name, design in (
            ("null", design_for(audit).without),
            ("leak", design_for(audit).with_leak),
            ("again", design_for(audit).with_leak),
        )
    }
    return {k: v for k, v in measured.items() if v["design"] == digests.get(k.rpartition("/")[0])}


def measure(piece: Piece) -> dict[str, Any]:
    """Play and audit the federations of a piece: one row each, and the day."""
    start = piece.first + {"null": 0, "leak": 500_000, "again": 700_000}[piece.kind]
    runs = range(1, AGAIN + 1) if piece.kind == "again" else (0,)
    return {
        "date": datetime.now(tz=UTC).date().isoformat(),
        "design": piece.design.digest,
        "rows": [
            {"federation": number, **row(result, piece.design)}
            for number in range(start, start + piece.federations)
            for run in runs
            for result in play(piece.audit, piece.design, number, run)
        ],
    }


def row(result: AuditResult, design: Design) -> dict[str, Any]:
    """What is kept of one audit: whether any finding is a leak, and the headline.

    `level`: chance of a false alarm that the result states. `rules` of all findings. `true`: value
    of the headline in this federation, where it is known.
    """
    found = judge(result)
    alarms = FOUND if facts_of(result.audit).decision.found in FOUND else FOUND[-1:]
    kept: dict[str, Any] = {
        "status": result.status if result.need is None else result.need.code,
        "alarm": any(f.verdict in alarms for f in found),
        "rules": sorted({f.rule for f in found}),
        "level": level_of(result),
    }
    if result.headline is not None:
        e = result.estimates[result.headline]
        kept |= {"value": e.value, "low": e.low, "confidence": e.confidence}
        kept["high"] = e.high if math.isfinite(e.high) else None
        if callable(design.true):
            kept["true"] = design.true(result)
    return kept


def level_of(result: AuditResult) -> float | None:
    """The largest chance of a false alarm that a result states; None if nothing was measured.

    That of its test over all readings; else what its interval leaves below its low end, and as much
    again for single clients; the audit's own `error` where it states one; 0 of exact values. Bounds
    that can be doubted add DOUBT.
    """
    if result.headline is None:
        return None
    e = result.estimates[result.headline]
    doubt = DOUBT if any(b.kind in ("upper", "lower") for b in result.bounds.values()) else 0.0
    if result.test is not None:
        return result.test.level + doubt
    for setting in ("error", "false_alarms"):
        if isinstance(error := result.settings.get(setting), float):
            return error
    alone = facts_of(result.audit).decision.client_value
    return (1 - e.confidence) / 2 * (2 if alone else 1) + doubt
