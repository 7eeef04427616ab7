"""What attribution costs beside training ([FedAttr] Tables 18 and 19), with the real protocol.

The paper counts subset sums as free; here each is a run of the protocol with masks of all pairs.
Seconds are processor time of one process that plays all clients and the server.
"""

from __future__ import annotations

import copy
import tempfile
import time
from pathlib import Path
from typing import Any

from fedaudit.experiment.auditing import audit_one
from fedaudit.experiment.config import load
from fedaudit.experiment.knowledge import Desk
from fedaudit.experiment.run import simulate
from fedaudit.randomness import Seed
from fedaudit.trace import Trace, Truth

PLANS: dict[str, dict[str, Any]] = {
    "none": {},
    "total": {"threshold": 5},
    "published": {"threshold": 5, "plan": "paired", "refuse_isolating": False},
    "safe": {"threshold": 5, "plan": "partitions"},
}
ROUNDS = 2
SHORT = {
    "data": {"name": "docs"},
    "task": {"kind": "lora", "rank": 8},
    "training": {"optimizer": "adam", "learning_rate": 0.005, "steps": 12, "batch_size": 8},
}
"""The larger of the built-in models, and little training: what is asked is what a round costs."""


def measure(seed: int, unused: int) -> dict[str, Any]:
    """Plan -> seconds a round of the run, of the attribution; megabytes of the trace a round."""
    out: dict[str, Any] = {}
    for name, protection in PLANS.items():
        raw: dict[str, Any] = {
            "seed": seed,
            **copy.deepcopy(SHORT),
            "federation": {"clients": 10, "rounds": ROUNDS},
            "marks": {"clients": 3},
            "audits": {"attribution": {"unused_keys": unused}},
        }
        if protection:
            raw["protections"] = {"secure_aggregation": protection}
        config = load(raw)
        with tempfile.TemporaryDirectory() as folder:
            home = Path(folder) / "run"
            began = time.process_time()
            simulate(config, home)
            ran = time.process_time() - began
            size = sum(f.stat().st_size for f in (home / "trace").rglob("*") if f.is_file())
            trace, truth = Trace.open(home / "trace"), Truth.open(home / "truth")
            began = time.process_time()
            if "plan" in protection:
                desk = Desk(trace, truth, Seed(1), None, config)
                audit_one(config.audits["attribution"], trace, truth, 1, desk)
            spent = time.process_time() - began
        out[name] = {
            "run": ran / ROUNDS, "attribution": spent / ROUNDS, "megabytes": size / 1e6 / ROUNDS
        }  # fmt: skip
    return out
