"""The report as strict JSON, with everything that the page shows.

    format, version     name and version of the format; the version rises if a reader must change
    fedaudit            version that wrote the file
    rules               id -> verdict and text; findings refer to these ids
    chapters            federation, variant, notices, summary, arrived, expected, clients,
                        findings, results, guarantees, trust, evidence, config

A NaN is null; an infinity is the string "inf" or "-inf".
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from fedaudit import __version__
from fedaudit.reporting.chapter import Chapter
from fedaudit.reporting.rules import RULES

FORMAT, VERSION = "fedaudit-report", 2


def machine(chapters: Sequence[Chapter], notices: Sequence[str] = ()) -> str:
    """One or several chapters as JSON; clients have the names of the chapters."""
    whole = {
        "format": FORMAT,
        "version": VERSION,
        "fedaudit": __version__,
        "rules": {r.id: {"verdict": r.verdict, "text": r.text} for r in RULES.values()},
        "notices": list(notices),
        "chapters": [_chapter(c) for c in chapters],
    }
    return json.dumps(whole, indent=1, allow_nan=False) + "\n"


def _chapter(c: Chapter) -> dict[str, Any]:
    return {
        "federation": c.federation,
        "variant": c.variant,
        "notices": list(c.notices),
        "summary": dict(c.summary),
        "arrived": c.arrived,
        "expected": c.expected,
        "clients": list(c.clients),
        "findings": [f.to_dict() for f in c.findings],
        "results": [json.loads(r.to_json()) for r in c.results],
        "guarantees": _plain(c.guarantees),
        "allocation": _plain(c.allocation),
        "trust": dict(c.trust),
        "evidence": dict(c.evidence),
        "config": c.config,
    }


def json_number(value: float | None) -> float | str | None:
    """A number for strict JSON: an infinity as "inf" or "-inf", a NaN as None."""
    if value is None or math.isfinite(value):
        return value
    return None if math.isnan(value) else "inf" if value > 0 else "-inf"


def _plain(value: Any) -> Any:
    """The value with all its numbers fit for strict JSON."""
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return json_number(value) if isinstance(value, float) else value
