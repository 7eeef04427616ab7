"""Attribution by templates at 50 clients against one round of their training.

Two things cost: the gradients of 63 templates, once a round, and the test over all rounds together.
Both are compared with the training of one round of 50 clients: `digits`, MLP 64-64-10, five local
epochs; with `--text` adapters on the smaller tiny GPT, 72 steps of 8 windows, 48 windows a
template.

    python benchmarks/attribution.py [--text] [--repeats 5]

Prints medians of interleaved repetitions; with --cpu, seconds of this process's own computing.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time

import numpy as np
import torch
from timing import Clock, interleaved, ratio

from fedaudit.audits.attribution import template
from fedaudit.setup.config import load
from fedaudit.setup.marks import templates_of
from fedaudit.setup.prepare import Prepared, build
from fedaudit.stats import query_plans

CLIENTS, ROUNDS, UNUSED, RECORDS = 50, 10, 60, 48
SHARE = 0.67  # the corpora are small: so large a share gives sets of 48 records
KINDS = {
    "canary": {
        "data": {"name": "digits"},
        "task": {"kind": "mlp", "hidden": [64]},
        "training": {"learning_rate": 0.3, "epochs": 5, "batch_size": 16},
    },
    "fictitious": {
        "data": {"name": "docs"},
        "task": {"kind": "lora", "rank": 16, "width": 64, "depth": 2},
        "training": {"optimizer": "adam", "learning_rate": 0.005, "steps": 72, "batch_size": 8},
    },
}


def compare(kind: str, repeats: int) -> None:
    made = Prepared(
        load(
            {
                "seed": 1,
                **KINDS[kind],
                "federation": {"clients": CLIENTS},
                "marks": {"kind": kind, "share": SHARE},
            }
        )
    )
    federation, _ = build(made)
    planted = made.marks
    assert planted is not None
    templates = templates_of(planted.family, planted.keys, RECORDS, 1)
    model, everybody = made.task.initial(), np.arange(CLIENTS)
    keys, rng = len(templates.keys), np.random.default_rng(0)
    plan = query_plans.cycled_partitions(CLIENTS, 5, ROUNDS, rng).astype(np.float64)
    inner = rng.standard_normal((ROUNDS, CLIENTS, keys + UNUSED))

    def test() -> None:
        found = [
            template.round_rows(p, p @ each, keys) for p, each in zip(plan, inner, strict=True)
        ]
        rows = [r for r in found if r is not None]
        template.decide(rows, keys, 0.05)
        template.sequential(rows, keys, 0.05)

    taken = interleaved(
        {
            "one round of training": lambda: federation.train(model, everybody, 1),
            "templates of one round": lambda: templates.gradients(model.numpy(), UNUSED),
            "test over all rounds": test,
        },
        repeats,
        warm=kind == "canary",
    )
    for name, seconds in taken.items():
        print(f"{kind}, {name}: {statistics.median(seconds):.3f} s")
    train, grads = taken["one round of training"], taken["templates of one round"]
    print(f"training of a round is {ratio(train, grads):.1f} x the templates of a round, ")
    print(f"{ratio(train, taken['test over all rounds']):.1f} x the test over {ROUNDS} rounds")
    whole = [ROUNDS * g + t for g, t in zip(grads, taken["test over all rounds"], strict=True)]
    print(f"{ratio(train, whole):.2f} x everything over {ROUNDS} rounds")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text", action="store_true")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--cpu", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.cpu:
        Clock.now = staticmethod(time.process_time)
    print(f"load {os.getloadavg()[0]:.1f}")
    compare("fictitious" if given.text else "canary", given.repeats)
    print(f"load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
