"""What attribution costs beside training ([FedAttr] Tables 18 and 19), with the real protocol.

The paper counts subset sums as free; here each is a run of the protocol with masks of all pairs.
Seconds are processor time of one process that plays all clients and the server.
"""

from __future__ import annotations

import copy
from typing import Any

from fedaudit.setup.config import load
from reproductions.attribution import recorded

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


CLIENTS = (10, 20, 50)


def measure(seed: int, unused: int, *, clients: int = 10) -> dict[str, Any]:
    """Plan -> seconds a round of the run, of the attribution; megabytes of the trace a round."""
    out: dict[str, Any] = {}
    for name, protection in PLANS.items():
        raw: dict[str, Any] = {
            "seed": seed,
            **copy.deepcopy(SHORT),
            "federation": {"clients": clients, "rounds": ROUNDS},
            "marks": {"clients": round(0.3 * clients)},
            "audits": {"attribution": {"unused_keys": unused}},
        }
        if protection:
            raw["protections"] = {"secure_aggregation": protection}
        run = recorded.record(load(raw), audit="plan" in protection)
        out[name] = {
            "run": run.trained / ROUNDS,
            "attribution": run.attributed / ROUNDS,
            "megabytes": run.size / 1e6 / ROUNDS,
        }
    return out
