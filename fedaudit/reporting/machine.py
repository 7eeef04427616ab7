"""The report for machines: everything that the page shows, as strict JSON.

    format, version     what this is; the version rises when a reader must change
    fedaudit            which version wrote it
    rules               id -> verdict and text: what the findings refer to
    chapters            federation, variant, notices, summary, arrived, expected, clients,
                        findings, results, guarantees, trust, evidence, config

There is no NaN; an infinity is the string "inf" or "-inf".
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
    """One or several chapters as JSON; clients under the names that the chapters have."""
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


def _plain(value: Any) -> Any:
    """Guarantees come from other software too: no number that JSON does not have."""
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else "inf" if value > 0 else "-inf"
    return value
