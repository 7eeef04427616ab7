"""Shadow federations as one computation, against a loop of Opacus clients.

200 shadows of 50 clients, 20 rounds, MLP 64-128-10 on `digits` with DP-SGD (noise multiplier 1,
clip 1, Poisson batches of 16, one local epoch). Timed is everything an adversary does with them:
drawing and dealing records, training, recording what crosses the wire, and the signals of every
client and round.

    python benchmarks/shadows.py [--shadows 200] [--repeats 3] [--json FILE]

The peer trains the same clients one after another by Opacus (`make_private`, as a Flower or plain
client does it) and averages them; nothing is recorded. Training all of it would take hours: a few
clients are timed in every repetition, interleaved with blocks of ours, and scaled by the number of
client rounds. Each repetition gives one ratio; the median is printed.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import statistics
import warnings
from dataclasses import replace

import torch
from timing import ratio, seconds
from torch import nn

from fedaudit.audits.topology_inference.channels import gather
from fedaudit.audits.topology_inference.features import Place
from fedaudit.federation.engine import Federation
from fedaudit.knowledge.shadows import ShadowFederations, of_run
from fedaudit.randomness import Seed
from fedaudit.setup.config import load
from fedaudit.setup.prepare import build
from fedaudit.trace import WIRETAP, MemoryRecorder, MemoryTruth

CLIENTS, ROUNDS, BATCH = 50, 20, 16


def setting() -> tuple[ShadowFederations, Place, Federation]:
    """Shadows of a target run, where its clients stand, and the target itself."""
    config = load(
        {
            "data": {"name": "digits"},
            "partition": {"kind": "coupled", "eta": 0.5, "position": "region"},
            "topology": {"kind": "hierarchical"},
            "task": {"kind": "mlp", "hidden": [128]},
            "federation": {"clients": CLIENTS, "rounds": ROUNDS},
            "training": {"batch_size": BATCH, "learning_rate": 0.1},
            "protections": {"dp_sgd": {"noise_multiplier": 1.0, "clip": 1.0}},
        }
    )
    federation, facts = build(config)
    recorder = MemoryRecorder(
        **federation.about(),
    )
    federation.run(recorder, MemoryTruth(facts))
    trace = recorder.trace()
    shadows = of_run(config, trace, Seed(1), count=200, vantage=WIRETAP)
    return shadows, Place.of(trace.seen_by(WIRETAP).federation), federation


def some(shadows: ShadowFederations, first: int, count: int) -> ShadowFederations:
    """`count` shadows with records and noise of their own."""
    return replace(
        shadows,
        count=count,
        seed=Seed(shadows.seed.key("benchmark", first)),
        edges=shadows.edges[:count],
        organisations=shadows.organisations[:count],
    )


def opacus_clients(
    module: nn.Module, parts: list[tuple[torch.Tensor, torch.Tensor]]
) -> list[dict[str, torch.Tensor]]:
    """One round of some clients: each makes its model private and trains for one local epoch."""
    from opacus import PrivacyEngine
    from torch.utils.data import DataLoader, TensorDataset

    out = []
    for x, y in parts:
        model = copy.deepcopy(module)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loader = DataLoader(TensorDataset(x, y), batch_size=min(BATCH, len(x)))
        private, optimizer, loader = PrivacyEngine(accountant="rdp").make_private(
            module=model,
            optimizer=optimizer,
            data_loader=loader,
            noise_multiplier=1.0,
            max_grad_norm=1.0,
        )
        for bx, by in loader:
            if len(bx):
                optimizer.zero_grad()
                nn.functional.cross_entropy(private(bx), by).backward()
                optimizer.step()
        out.append(private._module.state_dict())
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--shadows", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--peers", type=int, default=100, help="Opacus client rounds per repetition"
    )
    parser.add_argument("--json")
    args = parser.parse_args()
    warnings.filterwarnings("ignore")
    print(f"threads {torch.get_num_threads()}, load {os.getloadavg()[0]:.1f}")
    shadows, place, target = setting()
    parts = [target.data.of(c) for c in range(CLIENTS)]
    module = target.task.module
    block = max(10, -(-args.shadows // args.repeats))
    gather(some(shadows, -1 % 2**32, 10), place, (0,))
    opacus_clients(module, parts[:2])
    ours, theirs = [], []
    for r in range(args.repeats):
        ours.append(seconds(lambda r=r: gather(some(shadows, r, block), place, (0,))) / block)
        few = [parts[(r * args.peers + i) % CLIENTS] for i in range(args.peers)]
        each = seconds(lambda few=few: opacus_clients(module, few)) / args.peers
        theirs.append(each * CLIENTS * ROUNDS)
    times = ratio(theirs, ours)
    own, other = statistics.median(ours), statistics.median(theirs)
    print(
        f"{block * args.repeats} shadows of {CLIENTS} clients, {ROUNDS} rounds: {own:.3f} s per "
        f"shadow (all {args.shadows}: {own * args.shadows:.0f} s), {shadows._at_once()} at once"
    )
    print(
        f"Opacus, one client after another: {other:.1f} s per shadow, scaled from {args.peers} "
        f"client rounds in each of {args.repeats} repetitions"
    )
    print(f"ratio {times:.1f}x; load {os.getloadavg()[0]:.1f}")
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump({"ratio": times, "seconds per shadow": own, "Opacus": other}, file, indent=1)


if __name__ == "__main__":
    main()
