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
from collections.abc import Sequence
from typing import Any

from fedaudit import __version__
from fedaudit.codec import encode, to_json
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
    return to_json(whole) + "\n"


def _chapter(c: Chapter) -> dict[str, Any]:
    return {
        "federation": c.federation,
        "variant": c.variant,
        "notices": [*c.notices, *c.data_notes],
        "summary": dict(c.summary),
        "arrived": c.arrived,
        "expected": c.expected,
        "clients": list(c.clients),
        "findings": [f.to_dict() for f in c.findings],
        "results": [json.loads(r.to_json()) for r in c.results],
        "guarantees": encode(c.guarantees, nan_as_null=True),
        "allocation": encode(c.allocation, nan_as_null=True),
        "trust": dict(c.trust),
        "evidence": dict(c.evidence),
        "config": c.config,
    }
