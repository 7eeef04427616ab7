"""Pieces of the calibration: blocks of federations of one design, and what is kept of each."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from fedaudit.audits import facts_of
from fedaudit.reporting.findings import judge
from fedaudit.results import AuditResult
from reproductions.calibration.designs import Design, design_for, play
from reproductions.calibration.designs import rows as all_rows

BLOCK = 20
"""Federations of a piece."""

FOUND = ("leak", "attributed")
"""Verdicts that are alarms; also "disagreement" where an audit checks a declaration."""


@dataclass(frozen=True, kw_only=True)
class Piece:
    """Federations `first`, `first` + 1, ... of one design of an audit."""

    audit: str
    leak: bool
    first: int
    federations: int = BLOCK

    @property
    def key(self) -> str:
        return f"{self.audit}/{'leak' if self.leak else 'null'}/{self.first:04d}"

    @property
    def design(self) -> Design:
        pair = design_for(self.audit)
        return pair.with_leak if self.leak else pair.without


def pieces(audits: Sequence[str] = (), federations: int | None = None) -> list[Piece]:
    """Blocks of all designs, the designs in turn, so that a stopped run has some of each."""
    found = [
        Piece(
            audit=audit,
            leak=leak,
            first=first,
            federations=min(BLOCK, (federations or design_for(audit).federations) - first),
        )
        for audit in audits or all_rows()
        for leak in (False, True)
        for first in range(0, federations or design_for(audit).federations, BLOCK)
    ]
    return sorted(found, key=lambda p: p.first)


def current(measured: Mapping[str, Any]) -> dict[str, Any]:
    """What was measured on the designs as they are now."""
    digests = {
        f"{audit}/{name}": design.digest
        for audit in all_rows()
        for name, design in (
            ("null", design_for(audit).without),
            ("leak", design_for(audit).with_leak),
        )
    }
    return {k: v for k, v in measured.items() if v["design"] == digests.get(k.rpartition("/")[0])}


def measure(piece: Piece) -> dict[str, Any]:
    """Play and audit the federations of a piece: one row each, and the day."""
    which = 0 if not piece.leak else 500_000
    seeds = range(which + piece.first, which + piece.first + piece.federations)
    return {
        "date": datetime.now(tz=UTC).date().isoformat(),
        "design": piece.design.digest,
        "rows": [
            {"federation": seed, **row(result, piece.design)}
            for seed in seeds
            for result in play(piece.audit, piece.design, seed)
        ],
    }


def row(result: AuditResult, design: Design) -> dict[str, Any]:
    """What is kept of one audit: whether any finding is a leak, and the headline.

    `level`: chance of a false alarm that the result states. `rules` of all findings. `true`: value
    of the headline in this federation, where it is known.
    """
    found = judge(result)
    alarms = FOUND if facts_of(result.audit).decision.found in FOUND else ("disagreement",)
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
    again for single clients; the audit's own `error` where it states one; 0 of exact values.
    """
    if result.headline is None:
        return None
    e = result.estimates[result.headline]
    if result.test is not None:
        return result.test.level
    for setting in ("error", "false_alarms"):
        if isinstance(error := result.settings.get(setting), float):
            return error
    alone = facts_of(result.audit).decision.client_value
    return (1 - e.confidence) / 2 * (2 if alone else 1)
