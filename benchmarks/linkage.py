"""Linking anonymous updates: one matrix product against a loop over pairs, sketched and exact.

    python benchmarks/linkage.py [--clients 500] [--columns 300000] [--json FILE]

The per-pair loop is timed on a few rows and scaled to all pairs (it would take minutes). Then
10,000 updates (K=500, T=20) are linked from folded rows, and 1,000 updates are clustered from
folded rows against scikit-learn's KMeans on the raw ones, with the adjusted Rand index of both.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from fedaudit.audits.fingerprint.features import Fold, detectable_cosine, unit_norm
from fedaudit.audits.fingerprint.linkers import distances, greedy, joint, kmeans, match
from fedaudit.stats.clustering import adjusted_rand


def seconds(work: Callable[[], Any], repeats: int) -> float:
    taken = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def by_pairs(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """What a first version looks like: cosine by cosine."""
    out = np.empty((len(a), len(b)))
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            out[i, j] = 1 - np.dot(x, y) / (np.linalg.norm(x) * np.linalg.norm(y))
    return out


def folded(rows: np.ndarray, fold: Fold) -> np.ndarray:
    out = np.zeros((len(rows), fold.width), np.float32)
    fold.add(out, rows, 0)
    return unit_norm(out)


def sender_rows(rng: np.random.Generator, base: np.ndarray, noise: float) -> np.ndarray:
    return base + noise * rng.standard_normal(base.shape, dtype=np.float32)


def pair(args: argparse.Namespace, rng: np.random.Generator) -> dict[str, float]:
    k, d = args.clients, args.columns
    base = rng.standard_normal((k, d), dtype=np.float32)
    a, b = sender_rows(rng, base, 2.0), sender_rows(rng, base, 2.0)
    few = 12
    naive = seconds(lambda: by_pairs(a[:few], b[:few]), 3) * (k / few) ** 2
    exact = seconds(lambda: match(distances(unit_norm(a), unit_norm(b))), 3)
    fold = Fold(d, args.width, rng)
    sketched = seconds(lambda: match(distances(folded(a, fold), folded(b, fold))), 3)
    right = [
        float((match(distances(x, y))[1] == np.arange(k)).mean())
        for x, y in ((unit_norm(a), unit_norm(b)), (folded(a, fold), folded(b, fold)))
    ]
    print(f"one pair of rounds, K={k}, d={d:,}: per-pair loop {naive:.1f} s (scaled)")
    print(f"  exact    {exact:.3f} s  {naive / exact:6.0f}x   right {right[0]:.3f}")
    print(
        f"  sketched {sketched:.3f} s  {naive / sketched:6.0f}x   right {right[1]:.3f}   "
        f"shows cosines above {detectable_cosine(args.width):.3f} (here 0.2)"
    )
    return {"exact": naive / exact, "sketched": naive / sketched}


def many(args: argparse.Namespace, rng: np.random.Generator) -> dict[str, float]:
    k, rounds = args.clients, 20
    base = rng.standard_normal((k, args.width), dtype=np.float32)
    rows = [unit_norm(sender_rows(rng, base, 2.0)) for _ in range(rounds)]
    taken = {}
    for name, linker in (("greedy", greedy), ("joint", joint)):
        start = time.perf_counter()
        labels = linker(rows, k, np.random.default_rng(0))
        taken[name] = time.perf_counter() - start
        truth = np.tile(np.arange(k), rounds)
        score = adjusted_rand(truth, np.concatenate(labels))
        print(
            f"{k * rounds:,} folded updates linked by {name}: {taken[name]:.2f} s, ARI {score:.3f}"
        )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"  peak memory of this process so far {peak:.2f} GiB")
    return taken


def cluster(args: argparse.Namespace, rng: np.random.Generator) -> dict[str, float]:
    from sklearn.cluster import KMeans

    k, rounds, d = 50, 20, args.columns
    base = rng.standard_normal((k, d), dtype=np.float32)
    raw = [sender_rows(rng, base, 4.0) for _ in range(rounds)]
    truth = np.tile(np.arange(k), rounds)
    fold = Fold(d, args.width, rng)
    ours_labels: list[np.ndarray] = []

    def ours() -> None:
        ours_labels[:] = kmeans([folded(r, fold) for r in raw], k, np.random.default_rng(0))

    fast = seconds(ours, 1)
    rows = np.concatenate(raw)
    start = time.perf_counter()
    found = KMeans(k, n_init=1, random_state=0).fit(rows)
    slow = time.perf_counter() - start
    ari = adjusted_rand(truth, np.concatenate(ours_labels)), adjusted_rand(truth, found.labels_)
    print(
        f"clustering {len(rows):,} updates of d={d:,}: KMeans on raw rows {slow:.1f} s (n_init=1)"
    )
    print(
        f"  folded {fast:.2f} s (n_init=10)  {slow / fast:.0f}x   ARI {ari[0]:.3f} / {ari[1]:.3f}"
    )
    return {"clustering": slow / fast, "ari": ari[0], "ari_raw": ari[1]}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, default=500)
    parser.add_argument("--columns", type=int, default=300_000)
    parser.add_argument("--width", type=int, default=8191)
    parser.add_argument("--json")
    args = parser.parse_args()
    print(f"threads {torch.get_num_threads()}, load {os.getloadavg()[0]:.1f}")
    rng = np.random.default_rng(0)
    rows = {"many": many(args, rng), "pair": pair(args, rng), "cluster": cluster(args, rng)}
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
