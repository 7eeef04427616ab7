"""Looking at a received model: against loops over pairs, a peer, and the training it precedes.

    python benchmarks/guard.py [--repeats 5] [--json FILE]

pairs     most opposite and most similar other row of every row (R, n): blocks of products against
          a double loop with one cosine per pair (timed on a few rows and scaled), and against
          `sklearn.metrics.pairwise.cosine_similarity` of the whole matrix with its extremes taken.
model     all checks on the weights of one model, against one local epoch of training it on 200
          records: what a guard adds to a round.
behave    exposure of 200 records over that epoch (of which its local steps, which it repeats on a
          copy), and tampering of a new model beside a history of eleven, in epochs.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import torch
from timing import interleaved, ratio
from torch import nn

from fedaudit.protections.guard import LocalSteps, guard, local_steps
from fedaudit.protections.guard.exposure import exposure
from fedaudit.protections.guard.tampering import ROUNDS, ModelHistory
from fedaudit.protections.guard.twins import extremes
from fedaudit.tasks import models

SOME = 8
"""Rows that the double loop is timed on."""


def naive(rows: np.ndarray, some: int) -> np.ndarray:
    out = np.empty((some, 2))
    for i in range(some):
        each = [
            float(np.dot(rows[i], b) / (np.linalg.norm(rows[i]) * np.linalg.norm(b)))
            for j, b in enumerate(rows)
            if j != i
        ]
        out[i] = min(each), max(each)
    return out


def peer(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    from sklearn.metrics.pairwise import cosine_similarity

    cosines = cosine_similarity(rows)
    np.fill_diagonal(cosines, 0.0)
    return cosines.min(axis=1), cosines.max(axis=1)


def pairs(repeats: int) -> dict[str, Any]:
    out = {}
    for count, width in ((512, 784), (4096, 768)):
        rows = np.random.default_rng(0).normal(size=(count, width)).astype(np.float32)
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        np.testing.assert_allclose(
            np.stack(extremes(rows)[:2], axis=1)[:SOME], naive(rows, SOME), atol=1e-5
        )
        taken = interleaved(
            {
                "ours": lambda r=rows: extremes(r),
                "naive": lambda r=rows: naive(r, SOME),
                "peer": lambda r=rows: peer(r),
            },
            repeats,
        )
        out[f"{count} x {width}"] = {
            "seconds": statistics.median(taken["ours"]),
            "times_naive": ratio(taken["naive"], taken["ours"], count / SOME),
            "times_peer": ratio(taken["peer"], taken["ours"]),
        }
    return out


def epoch(module: nn.Module, shape: tuple[int, ...], records: int = 200) -> None:
    x, y = torch.randn(records, *shape), torch.randint(0, 10, (records,))
    optimiser = torch.optim.SGD(module.parameters(), lr=1e-4)
    for low in range(0, records, 16):
        optimiser.zero_grad()
        nn.functional.cross_entropy(module(x[low : low + 16]), y[low : low + 16]).backward()
        optimiser.step()


def cases() -> dict[str, tuple[nn.Module, tuple[int, ...]]]:
    return {
        "mlp 64-128-10": (models.mlp(64, (128,), 10), (64,)),
        "mlp 784-512-512-10": (models.mlp(784, (512, 512), 10), (784,)),
        "cnn 16, 32": (models.cnn((1, 28, 28), (16, 32), 10), (1, 28, 28)),
        "vit 128 x 4": (models.TinyViT((1, 28, 28), 7, 128, 4, 4, 10), (1, 28, 28)),
    }


def behaviour(repeats: int, records: int = 200) -> dict[str, Any]:
    out = {}
    steps = LocalSteps(learning_rate=1e-4, batch_size=16)
    for name, (module, shape) in cases().items():
        x, y = torch.randn(records, *shape), torch.randint(0, 10, (records,))
        history = ModelHistory(x, y)
        for _ in range(max(ROUNDS) + 1):
            epoch(module, shape)
            history.add(module)
        taken = interleaved(
            {
                "exposure": lambda m=module, x=x, y=y: exposure(
                    local_steps.run(m, x, y, steps).values()
                ),
                "steps": lambda m=module, x=x, y=y: local_steps.run(m, x, y, steps),
                "tampering": lambda m=module, h=history: h.judge(m),
                "epoch": lambda m=module, s=shape: epoch(m, s, records),
            },
            repeats,
        )
        out[name] = {
            "exposure_epochs": 1 / ratio(taken["epoch"], taken["exposure"]),
            "of_which_steps": 1 / ratio(taken["epoch"], taken["steps"]),
            "tampering_epochs": 1 / ratio(taken["epoch"], taken["tampering"]),
        }
    return out


def whole(repeats: int) -> dict[str, Any]:
    out = {}
    for name, (module, shape) in cases().items():
        state = {k: v.clone() for k, v in module.state_dict().items()}
        taken = interleaved(
            {
                "guard": lambda s=state: guard(s, s),
                "epoch": lambda m=module, s=shape: epoch(m, s),
            },
            repeats,
        )
        out[name] = {
            "milliseconds": 1e3 * statistics.median(taken["guard"]),
            "share_of_an_epoch": 1 / ratio(taken["epoch"], taken["guard"]),
        }
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    print(f"threads {torch.get_num_threads()}, load {os.getloadavg()[0]:.1f}")
    results = {"pairs": pairs(given.repeats), "model": whole(given.repeats)}
    results["behave"] = behaviour(given.repeats)
    for part, rows in results.items():
        for name, values in rows.items():
            text = ", ".join(f"{k.replace('_', ' ')} {v:.3g}" for k, v in values.items())
            print(f"{part:<6} {name:<20} {text}")
    if given.json:
        given.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
