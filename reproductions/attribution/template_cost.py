"""What template attribution costs beside the training that it reads.

`python -m reproductions.attribution.template_cost` trains one round of fictitious knowledge for
each number of clients and local steps, takes the templates of that round, and times the test of ten
rounds, on rows without marks: its cost does not depend on them. Processor seconds of one thread.
"""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from fedaudit.audits.attribution import Attribution, template
from fedaudit.setup.marks import templates_of
from fedaudit.setup.prepare import Prepared, build
from fedaudit.stats import query_plans
from fedaudit.trace.memory import MemoryRecorder, MemoryTruth
from reproductions.attribution.setting import config_of
from reproductions.attribution.template import GROUP, RESULTS, save

ROUNDS = 10
SIZES = ((10, 72), (20, 72), (50, 72), (50, 12))
"""Clients and local steps of eight windows; three in ten hold a key of their own."""


def measure(clients: int, steps: int, seed: int = 1) -> dict[str, float]:
    """Seconds of training and templates a round, and of the test of all rounds, look by look."""
    config = config_of(
        seed=seed, kind="fictitious", clients=clients, rounds=1, marked=3 * clients // 10,
        steps=steps,
    )  # fmt: skip
    made = Prepared(config)
    planted, asked = made.marks, Attribution()
    assert planted is not None
    federation, facts = build(made)
    began = time.process_time()
    replace(federation, test=None).run(MemoryRecorder(**federation.about()), MemoryTruth(facts))
    trained = time.process_time() - began
    templates = templates_of(planted.family, planted.keys, asked.windows, seed)
    templates.documents(asked.templates)
    began = time.process_time()
    units = templates.gradients(made.task.initial().numpy(), asked.templates)
    taken = time.process_time() - began
    keys, rng = len(planted.keys), np.random.default_rng(seed)
    plan = query_plans.cycled_partitions(clients, GROUP, ROUNDS, rng).astype(np.float64)
    inner = rng.standard_normal((ROUNDS, clients, len(units)))
    began = time.process_time()
    rows = [template.round_rows(q, q @ i, keys) for q, i in zip(plan, inner, strict=True)]
    known = [r for r in rows if r is not None]
    template.decide(known, keys, asked.error)
    template.sequential(known, keys, asked.error)
    return {"train": trained, "templates": taken, "test": time.process_time() - began}


def main() -> None:
    for clients, steps in SIZES:
        found = {k: round(v, 2) for k, v in measure(clients, steps).items()}
        save(RESULTS, f"cost/{clients}/{steps}/1", found)


if __name__ == "__main__":
    main()
