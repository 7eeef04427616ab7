"""DP-SGD of many clients: fedaudit against Opacus' make_private, one client after another.

Same data, same model, same number of noisy steps; Poisson sampling, gathering and noise are timed
on both sides. Prints the median ratio of interleaved repetitions.

    python benchmarks/dp_sgd.py [--repeats 5] [--json FILE]
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import statistics
import time
import warnings

import torch
from torch import nn

from fedaudit.federation.engine import Federation
from fedaudit.federation.local.schedule import Training
from fedaudit.federation.local.trainer import ClientData
from fedaudit.federation.rounds import Rounds
from fedaudit.protections.dp_sgd import DPSGD
from fedaudit.randomness import Seed
from fedaudit.tasks.classifier import Classifier
from fedaudit.tasks.models import cnn, mlp
from fedaudit.tasks.task import seeded

SEED = Seed(1)


def clients(
    count: int, size: int, shape: tuple[int, ...]
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    g = torch.Generator().manual_seed(0)
    return [
        (torch.rand(size, *shape, generator=g), torch.randint(0, 10, (size,), generator=g))
        for _ in range(count)
    ]


def opacus_round(module: nn.Module, parts: list, batch: int, steps: int) -> int:
    """One round: every client makes its model private and takes `steps` noisy steps."""
    from opacus import PrivacyEngine
    from torch.utils.data import DataLoader, TensorDataset

    done = 0
    for x, y in parts:
        model = copy.deepcopy(module)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loader = DataLoader(TensorDataset(x, y), batch_size=batch)
        engine = PrivacyEngine(accountant="rdp")
        model, optimizer, loader = engine.make_private(
            module=model,
            optimizer=optimizer,
            data_loader=loader,
            noise_multiplier=1.0,
            max_grad_norm=1.0,
        )
        taken = 0
        while taken < steps:
            for bx, by in loader:
                if len(bx):
                    optimizer.zero_grad()
                    nn.functional.cross_entropy(model(bx), by).backward()
                    optimizer.step()
                taken += 1
                if taken == steps:
                    break
        done += taken
    return done


def measure(
    name: str, module: nn.Module, count: int, size: int, shape: tuple[int, ...], repeats: int
):
    batch, steps = 16, 4
    task, parts = Classifier(module), clients(count, size, shape)
    federation = Federation(
        task=task,
        data=ClientData.join(parts),
        rounds=Rounds(clients=count, rounds=1),
        training=Training(batch_size=batch, steps=steps, learning_rate=0.1),
        seed=SEED,
        protections=(DPSGD(noise_multiplier=1.0, clip=1.0),),
    )
    federation.run()
    opacus_round(module, parts[:2], batch, steps)
    ours, theirs = [], []
    for _ in range(repeats):
        start = time.perf_counter()
        federation.run()
        ours.append(count * steps / (time.perf_counter() - start))
        few = parts[: max(2, count // 5)]
        start = time.perf_counter()
        done = opacus_round(module, few, batch, steps)
        theirs.append(done / (time.perf_counter() - start))
    ratio = statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
    tier = federation._trainer.kernel(federation._data).name
    print(
        f"{name:<28} K={count:<4} {tier:<9} fedaudit {statistics.median(ours):>9.0f}/s   "
        f"Opacus {statistics.median(theirs):>7.0f}/s   ratio {ratio:.1f}x"
    )
    return {"name": name, "ratio": ratio, "fedaudit": statistics.median(ours)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json")
    args = parser.parse_args()
    warnings.filterwarnings("ignore")
    print(
        f"client-steps per second; threads {torch.get_num_threads()}, load {os.getloadavg()[0]:.1f}"
    )
    rows = [
        measure(
            "MLP 64-128-10", seeded(SEED, "w", mlp, 64, (128,), 10), 50, 36, (64,), args.repeats
        ),
        measure(
            "CNN 28x28, group norm",
            seeded(SEED, "w", cnn, (1, 28, 28), (16, 32), 10),
            20,
            64,
            (1, 28, 28),
            args.repeats,
        ),
    ]
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
