"""What every contestant trains: the data file, the plain models, one client's local work.

Imports neither fedaudit nor a peer for the MLP, so that it runs in every environment.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

STARTED = time.perf_counter()


@dataclass(frozen=True)
class Workload:
    """Read from JSON: `data` is an npz file with x (N, ...), y (N,), starts (K,), sizes (K,)."""

    data: str
    model: str  # "mlp", "cnn" or "vae"
    batch: int
    rate: float
    rounds: int  # timed rounds of one repetition
    repeat: int  # repetitions inside one process, after a warm-up round
    threads: int

    @property
    def client_steps(self) -> int:
        """Optimiser steps of all clients in one timed repetition, one local epoch a round."""
        return self.rounds * sum(-(-len(x) // self.batch) for x, _ in clients(self.data))


def from_command_line() -> Workload:
    return Workload(**json.loads(sys.argv[1]))


@lru_cache(maxsize=1)
def clients(data: str) -> list[tuple[Tensor, Tensor]]:
    """Examples and labels, client by client."""
    with np.load(data, allow_pickle=False) as file:
        x, y = torch.from_numpy(file["x"]), torch.from_numpy(file["y"])
        spans = list(zip(file["starts"].tolist(), file["sizes"].tolist(), strict=True))
    return [(x[a : a + n], y[a : a + n]) for a, n in spans]


def module(model: str) -> nn.Module:
    """The plain torch module of a workload."""
    if model == "mlp":
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    from fedaudit.tasks import models

    if model == "cnn":
        return models.cnn((1, 28, 28), (16, 32), 10)
    return models.mlp_vae(784, 400, 20, 10)


@lru_cache(maxsize=1)
def kept_module(model: str) -> nn.Module:
    """One module per process, with one thread, for workers that are called again and again."""
    torch.set_num_threads(1)
    return module(model)


def loss(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Mean loss of a batch: cross-entropy, or the negative evidence lower bound."""
    latent = getattr(net, "latent", None)
    if latent is None:
        return F.cross_entropy(net(x), y)
    logits, mean, log_variance = net(x, y, torch.randn(len(x), latent))
    likelihood = F.binary_cross_entropy_with_logits(logits, x.flatten(1), reduction="sum")
    divergence = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum()
    return (likelihood + divergence) / len(x)


def train_client(net: nn.Module, x: Tensor, y: Tensor, work: Workload) -> None:
    """One local epoch of SGD in shuffled batches, as one would write it."""
    optimiser = torch.optim.SGD(net.parameters(), lr=work.rate)
    order = torch.randperm(len(x))
    for low in range(0, len(x), work.batch):
        rows = order[low : low + work.batch]
        optimiser.zero_grad()
        loss(net, x[rows], y[rows]).backward()
        optimiser.step()


def timed(work: Workload, warm_up: Callable[[], Any], run: Callable[[], Any], **more: Any) -> None:
    """Warm up, time `run` (all rounds of the workload) `repeat` times, print the result."""
    warm_up()
    seconds = []
    for _ in range(work.repeat):
        begin = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - begin)
    report(work, seconds, **more)


def report(work: Workload, seconds: list[float], **more: Any) -> None:
    """One line of JSON, the last on standard output."""
    result = {
        "client_steps": work.client_steps,
        "seconds": statistics.median(seconds),
        "all_seconds": seconds,
        "in_process": time.perf_counter() - STARTED,
        "torch": torch.__version__,
        **more,
    }
    print(json.dumps(result), flush=True)
