"""Runs that the package records and audits by itself: who is found, and what it took."""

from __future__ import annotations

import copy
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedaudit.knowledge import KnowledgeBuilder
from fedaudit.randomness import Seed
from fedaudit.results import AuditResult
from fedaudit.setup.config import Config, load
from fedaudit.study.auditing import audit_one
from fedaudit.study.run import simulate
from fedaudit.trace import Trace, Truth
from reproductions.attribution import setting

Row = dict[str, Any]


@dataclass(frozen=True)
class Recorded:
    """A run and its attribution: processor seconds of each, bytes of the trace, what was found."""

    trained: float
    attributed: float
    size: int
    result: AuditResult | None


def record(config: Config, *, audit: bool = True) -> Recorded:
    """Simulate, and read the recording as the package does."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "run"
        began = time.process_time()
        simulate(config, home)
        trained = time.process_time() - began
        size = sum(f.stat().st_size for f in (home / "trace").rglob("*") if f.is_file())
        result, began = None, time.process_time()
        if audit:
            trace, truth = Trace.open(home / "trace"), Truth.open(home / "truth")
            builder = KnowledgeBuilder(trace, truth, Seed(config.seed), None, config)
            result = audit_one(config.audits["attribution"], trace, truth, config.seed, builder)
        return Recorded(trained, time.process_time() - began, size, result)


def found(config: Config) -> Row:
    """Hits and false alarms of the published threshold and of the calibrated reading."""
    run = record(config)
    assert run.result is not None
    rows = [r for r in run.result.per_client.values() if "published_z" in r]
    z = {
        k: [float(r["published_z"] or 0) for r in rows if bool(r["marked"]) is k]
        for k in (True, False)
    }
    return {
        "seconds": {"training": run.trained, "attribution": run.attributed},
        "published": _counts(rows, lambda r: r["published_z"] > 4),
        "calibrated": _counts(rows, lambda r: bool(r["named"])),
        "z_marked": float(np.mean(z[True])) if z[True] else None,
        "z_benign": float(np.mean(z[False])) if z[False] else None,
    }


def _counts(rows: list[Any], flag: Callable[[Mapping[str, Any]], bool]) -> Row:
    return {
        "hits": sum(bool(r["marked"]) and flag(r) for r in rows),
        "marked": sum(bool(r["marked"]) for r in rows),
        "alarms": sum(not r["marked"] and flag(r) for r in rows),
        "benign": sum(not r["marked"] for r in rows),
    }


def partial(seed: int, unused: int, *, c: float, clients: int = 20, rounds: int = 10) -> Row:
    """[FedAttr] Table 20: a share `c` of the clients takes part in each round.

    Masks are left out: they change no sum.
    """
    raw = copy.deepcopy(setting.TEXT)
    config = load(
        {
            "seed": seed,
            **raw,
            "federation": {"clients": clients, "rounds": rounds, "participation": c},
            "marks": {"kind": "fictitious", "clients": round(0.3 * clients)},
            "protections": {
                "secure_aggregation": {
                    "threshold": 5, "subset_size": 5, "plan": "paired",
                    "refuse_isolating": False, "masks": "skipped",
                }
            },
            "audits": {"attribution": {"prompts": setting.PROMPTS, "unused_keys": unused}},
        }
    )  # fmt: skip
    return found(config)
