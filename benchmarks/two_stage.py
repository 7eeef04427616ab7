"""Leave-one-out models of a round, scored in one batched pass against a loop over clients.

    python benchmarks/two_stage.py [--clients 20] [--records 32 64 128] [--json FILE]

round     all K models W + dW - u_k of a round, each on its own records (candidates of that client),
          4 draws of noise for an autoencoder. Twin: a loop over clients with
          `torch.func.functional_call` under `no_grad`, one forward pass per client and draw, as a
          first version is written. Both start from the flat contributions (K, d); forming the
          models is inside the timer. The more records, the more of the time is the matrix product
          itself, which both must do.
step      one whole-batch gradient of the published autoencoder on 400 images, as the federations of
          the reproduction take it: in slices that stay in the cache, against all at once, and
          against the peer's way, the module itself with `backward`.
linear    the whole audit (attack and score) of a recorded federation at three sizes of clients,
          rounds and records: four times as much should cost at most about four times as much.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from timing import interleaved, ratio
from torch import Tensor
from torch.func import functional_call

from fedaudit import knowledge
from fedaudit.audits.records.scoring import RecordBatch, Scorer
from fedaudit.audits.two_stage_membership import TwoStageMembership
from fedaudit.randomness import Seed
from fedaudit.setup.config import load
from fedaudit.study.run import simulate
from fedaudit.tasks.classifier import Classifier
from fedaudit.tasks.models import cnn, mlp, mlp_vae, published_vae
from fedaudit.tasks.task import Task
from fedaudit.tasks.vae import Autoencoder
from fedaudit.trace import Trace, Truth

DRAWS = 4


# name -> task, shape of one record
CASES: dict[str, tuple[Callable[[], Task], tuple[int, ...]]] = {
    "classifier, MLP 64-128-10": (lambda: Classifier(mlp(64, (128,), 10)), (1, 8, 8)),
    "VAE 64-64-8": (lambda: Autoencoder(mlp_vae(64, 64, 8, 10)), (1, 8, 8)),
    "VAE 64-128-16": (lambda: Autoencoder(mlp_vae(64, 128, 16, 10)), (1, 8, 8)),
    "VAE 784-400-20": (lambda: Autoencoder(mlp_vae(784, 400, 20, 10)), (1, 28, 28)),
    "classifier, CNN 28x28": (lambda: Classifier(cnn((1, 28, 28), (16, 32), 10)), (1, 28, 28)),
    "published VAE 28x28": (lambda: Autoencoder(published_vae((1, 28, 28), 32, 10)), (1, 28, 28)),
}


def by_loop(task: Task, after: Tensor, updates: Tensor, asked: RecordBatch) -> Tensor:
    """One client after another, one pass per draw."""
    out = []
    with torch.no_grad():
        for k, u in enumerate(updates):
            named = task.named(after - u)
            draws = [None] if asked.noise is None else list(asked.noise[:, k])
            scores = []
            for z in draws:
                x, y = asked.x[k], asked.y[k]
                output = functional_call(task.module, named, task.inputs(x, y, z))
                scores.append(-task.criterion(output, x, y))
            out.append(torch.stack(scores).mean(0))
    return torch.stack(out)


def one_round(args: argparse.Namespace) -> dict[str, float]:
    out = {}
    for n in args.records:
        print(f"leave-one-out models of a round, K={args.clients}, {n} records each")
        for name in CASES:
            # the published model takes half a minute a pass, all of it convolution: by name only
            wanted = any(c in name for c in args.cases or ("",))
            if wanted and (args.cases or "published" not in name):
                out[f"{name}, {n} records"] = scored(args, name, n)
    return out


def scored(args: argparse.Namespace, name: str, n: int) -> float:
    """How many times faster than the loop."""
    make, shape = CASES[name]
    torch.manual_seed(1)
    task = make()
    task.module.eval()
    k, d = args.clients, task.layout.width
    after = task.initial()
    updates = 1e-3 * torch.randn(k, d)
    noise = task.noise_shape()
    asked = RecordBatch(
        torch.rand(k, n, *shape),
        torch.randint(0, 10, (k, n)),
        None if noise is None else torch.randn(DRAWS, k, n, *noise),
    )
    scorer = Scorer(task)
    work = {
        "loop": lambda: by_loop(task, after, updates, asked),
        "batched": lambda: scorer.each(after - updates, asked),
    }
    torch.testing.assert_close(work["batched"](), work["loop"](), rtol=1e-4, atol=1e-3)
    # seconds a pass: the check above has warmed it up
    taken = interleaved(work, args.repeats if d < 1_000_000 else 1)
    times = ratio(taken["loop"], taken["batched"])
    middle = {key: 1e3 * statistics.median(v) for key, v in taken.items()}
    print(
        f"  {name:28} d={d:9,}: loop {middle['loop']:8.2f} ms, batched "
        f"{middle['batched']:8.2f} ms: {times:.1f}x",
        flush=True,
    )
    return times


def step(args: argparse.Namespace, images: int = 400) -> dict[str, float]:
    """Ratios of one gradient on many images: {twin or peer: how many times as long}."""
    from fedaudit.federation.local import stacked

    task = Autoencoder(published_vae((1, 28, 28), 32, 10))
    rng = torch.Generator().manual_seed(1)
    x = torch.rand(1, images, 1, 28, 28, generator=rng)
    y = torch.randint(0, 10, (1, images), generator=rng)
    z = torch.randn(1, images, 32, generator=rng)
    p, weight = task.initial()[None], torch.ones(1, images)
    kernel = stacked.Stacked(task)

    def module() -> None:
        task.module.zero_grad()
        output = task.module(x[0], y[0], z[0])
        task.criterion(output, x[0], y[0]).sum().backward()

    taken = interleaved(
        {
            "slices": lambda: kernel.sums(p, x, y, weight, z),
            "at once": lambda: kernel._sums(p, x, y, weight, z),
            "module": module,
        },
        max(3, args.repeats // 3),
    )
    own = statistics.median(taken["slices"])
    ratios = {k: statistics.median(v) / own for k, v in taken.items() if k != "slices"}
    print(f"step on {images} images: {own:.2f} s in slices; at once {ratios['at once']:.2f}x, "
          f"the module {ratios['module']:.2f}x")  # fmt: skip
    return ratios


def audited(clients: int, rounds: int, records: int) -> float:
    """Seconds of attack and score on a recorded federation of this size."""
    raw = {
        "seed": 1,
        # a record of nobody for every member that is asked about
        "data": {
            "name": "gaussian-mixture",
            "records": 2 * clients * records,
            "test_fraction": 0.5,
        },
        "task": {"kind": "mlp", "hidden": [32]},
        "federation": {"clients": clients, "rounds": rounds},
        "training": {"batch_size": 0},
    }
    config = load(raw)
    audit = TwoStageMembership(records=records, checked_rounds=0)
    with tempfile.TemporaryDirectory() as place:
        home = Path(place)
        simulate(config, home)
        trace, truth = Trace.open(home / "trace"), Truth.open(home / "truth")
        builder = knowledge.KnowledgeBuilder(
            trace, truth, Seed(1), lambda: knowledge.of_config(config, trace), config
        )
        known, answers = builder.knowledge_for(audit)
        view = trace.seen_by("server")
        start = time.perf_counter()
        guess = audit.attack(view, known, np.random.default_rng(1))
        audit.score(guess, answers, np.random.default_rng(2))
        return time.perf_counter() - start


def linear(args: argparse.Namespace) -> dict[str, list[float]]:
    print("the whole audit at three sizes, from 40 clients, 20 rounds and 64 records on")
    base = {"clients": 40, "rounds": 20, "records": 64}
    audited(4, 2, 8)  # what is imported late is no part of it
    out = {}
    for axis in base:
        sizes = [base | {axis: base[axis] * factor} for factor in (1, 2, 4)]
        taken: list[list[float]] = [[] for _ in sizes]
        for _ in range(args.repeats):
            for i, size in enumerate(sizes):
                taken[i].append(audited(**size))
        middle = [statistics.median(t) for t in taken]
        growth = ratio(taken[-1], taken[0])
        cells = ", ".join(f"{size[axis]}: {t:.2f} s" for size, t in zip(sizes, middle, strict=True))
        print(f"  {axis:8} {cells}; 4 times as many cost {growth:.1f} times as much")
        out[axis] = [*middle, growth]
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--records", type=int, nargs="+", default=[32, 64, 128])
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--cases", nargs="*", help="words of the cases to run")
    parser.add_argument("--only", choices=("round", "step", "linear"), action="append")
    parser.add_argument("--json")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    print(f"cores {os.cpu_count()}, threads {args.threads}, load {os.getloadavg()[0]:.1f}")
    chosen = args.only or ("round", "step", "linear")
    rows: dict[str, Any] = {}
    if "round" in chosen:
        rows["round"] = one_round(args)
    if "step" in chosen:
        rows["step"] = step(args)
    if "linear" in chosen:
        rows["linear"] = linear(args)
    print(f"load {os.getloadavg()[0]:.1f}")
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
