"""Shadow federations of the membership audit as one computation, against a plain loop.

256 shadows of 20 clients, 10 rounds, MLP 64-128-10 on `digits`, batches of 16, one local epoch.
Timed is everything between the records and the statistics: dealing records, training, recording
what crosses the wire, and the scores of every candidate under every model that the server sees.

    python benchmarks/membership.py [--shadows 256] [--repeats 4] [--cpu] [--json FILE]

The peer trains the same clients one after another with `torch.optim.SGD` and averages them; it
neither records nor scores. A few of its client rounds are timed in every repetition, between blocks
of ours, and scaled by their number. Each repetition gives one ratio; the median is printed.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import statistics
import time
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from timing import Clock, ratio, seconds
from torch import nn

from fedaudit.audits.membership import Membership
from fedaudit.knowledge import KnowledgeBuilder, of_config
from fedaudit.randomness import Seed
from fedaudit.setup.config import load
from fedaudit.setup.prepare import build
from fedaudit.trace import MemoryRecorder, MemoryTruth

CLIENTS, ROUNDS, BATCH, RATE = 20, 10, 16, 0.1


def setting(shadows: int) -> tuple[Any, Any, Membership, Any]:
    """A recorded target, what the adversary brings, the audit, and the target's federation."""
    config = load(
        {
            "data": {"name": "digits"},
            "task": {"kind": "mlp", "hidden": [128]},
            "federation": {"clients": CLIENTS, "rounds": ROUNDS},
            "training": {"batch_size": BATCH, "learning_rate": RATE},
        }
    )
    federation, facts = build(config)
    recorder, truth = MemoryRecorder(**federation.about()), MemoryTruth(facts)
    federation.run(recorder, truth)
    trace = recorder.trace()
    records = functools.partial(of_config, config, trace, truth)
    audit = Membership(shadows=shadows)
    known, _ = KnowledgeBuilder(trace, truth, Seed(1), records, config).knowledge_for(audit)
    return trace.seen_by("server"), known, audit, federation


def loop_clients(module: nn.Module, parts: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """One round of some clients, one after another."""
    start = {k: v.clone() for k, v in module.state_dict().items()}
    total = {k: torch.zeros_like(v) for k, v in start.items()}
    for x, y in parts:
        module.load_state_dict(start)
        optimizer = torch.optim.SGD(module.parameters(), lr=RATE)
        for rows in torch.randperm(len(x)).split(BATCH):
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(x[rows]), y[rows]).backward()
            optimizer.step()
        for name, value in module.state_dict().items():
            total[name] += value
    module.load_state_dict(start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--shadows", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--peers", type=int, default=200, help="client rounds per repetition")
    parser.add_argument("--cpu", action="store_true", help="processor seconds")
    parser.add_argument("--json")
    args = parser.parse_args()
    if args.cpu:
        Clock.now = staticmethod(time.process_time)
    print(f"threads {torch.get_num_threads()}, load {os.getloadavg()[0]:.1f}")
    block = max(8, args.shadows // args.repeats)
    view, known, audit, target = setting(block)
    parts = [target.data.of(c) for c in range(CLIENTS)]
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    warm = replace(known, shadows=replace(known.shadows, count=8))
    audit.attack(view, warm, np.random.default_rng(0))
    loop_clients(module, parts)
    ours, theirs = [], []
    for r in range(args.repeats):
        fresh = replace(known.shadows, seed=Seed(known.shadows.seed.key("benchmark", r)))
        mine = replace(known, shadows=fresh)
        ours.append(
            seconds(lambda mine=mine: audit.attack(view, mine, np.random.default_rng(0))) / block
        )
        few = [parts[(r * args.peers + i) % CLIENTS] for i in range(args.peers)]
        each = seconds(lambda few=few: loop_clients(module, few)) / args.peers
        theirs.append(each * CLIENTS * ROUNDS)
    times = ratio(theirs, ours)
    own, other = statistics.median(ours), statistics.median(theirs)
    print(
        f"{block * args.repeats} shadows of {CLIENTS} clients, {ROUNDS} rounds: "
        f"{1e3 * own:.1f} ms per shadow (256: {256 * own:.0f} s)"
    )
    print(f"a loop over clients: {1e3 * other:.0f} ms per shadow (256: {256 * other:.0f} s)")
    print(f"ratio {times:.1f}x; load {os.getloadavg()[0]:.1f}")
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump({"ratio": times, "seconds per shadow": own, "loop": other}, file, indent=1)


if __name__ == "__main__":
    main()
