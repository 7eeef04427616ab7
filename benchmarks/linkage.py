"""Linking anonymous updates: products against loops over pairs, and 10,000 updates in one go.

    python benchmarks/linkage.py [--clients 500] [--columns 300000] [--json FILE]

pair      one pair of rounds (K rows each): cosines and their assignment. Twins: a double loop in
          Python with one cosine per pair, norms computed anew each time, as it stands in many
          public repositories: `np.dot(x, y) / (np.linalg.norm(x) * np.linalg.norm(y))`, and the
          same loop with `torch.nn.functional.cosine_similarity`. Both are timed on a few rows
          against **all** rows of the next round and scaled: rows that fit the cache would flatter
          them. Peer: `sklearn.metrics.pairwise.cosine_similarity` of the two blocks, as in the
          published code. Assignment and, in the sketched case, folding are inside our timer.
cluster   1,000 updates of 50 clients: folding, strongest directions and k-means with ten restarts
          against `KMeans` on raw rows, with ten restarts (its default when the attack was
          published) and with one (its default today).
many      10,000 updates (K=500, T=20) of a stored trace, in a process of its own: reading and
          folding, linking by `joint` and `greedy`, scoring; and the peak memory of that process.
          Reading grows with the columns (--stored-columns), the rest and the memory do not.

On a busy machine: `OMP_NUM_THREADS=1 python benchmarks/linkage.py --cpu`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from timing import Clock, interleaved, ratio, seconds

from fedaudit.audits.audit import Knowledge
from fedaudit.audits.fingerprint import Fingerprint
from fedaudit.audits.fingerprint.linkers import distances, kmeans, match
from fedaudit.audits.rows.features import (
    collect,
    cosines,
    detectable_cosine,
)
from fedaudit.layout import Layout
from fedaudit.stats import clustering
from fedaudit.stats.count_sketch import CountSketch
from fedaudit.stats.products import inverse_lengths
from fedaudit.trace import ANONYMOUS, SERVER, Recorder, Trace, Truth, TruthRecorder


def by_numpy(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """What a first version looks like: cosine by cosine."""
    out = np.empty((len(a), len(b)))
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            out[i, j] = np.dot(x, y) / (np.linalg.norm(x) * np.linalg.norm(y))
    return out


def by_torch(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The same by those who hold tensors."""
    import torch

    out = np.empty((len(a), len(b)))
    rows, columns = torch.from_numpy(a), torch.from_numpy(b)
    for i, x in enumerate(rows):
        for j, y in enumerate(columns):
            out[i, j] = torch.nn.functional.cosine_similarity(x, y, dim=0).item()
    return out


def folded(rows: np.ndarray, fold: CountSketch) -> np.ndarray:
    """Unit rows (K, m) as the audit folds them out of a trace."""
    out = np.zeros((len(rows), fold.width), np.float32)
    out *= inverse_lengths(fold.add(out, rows, 0))[:, None]
    return out


def sender_rows(rng: np.random.Generator, base: np.ndarray, noise: float) -> np.ndarray:
    out = rng.standard_normal(base.shape, dtype=np.float32)
    out *= np.float32(noise)
    out += base
    return out


def pair(args: argparse.Namespace, rng: np.random.Generator) -> dict[str, float]:
    from sklearn.metrics.pairwise import cosine_similarity

    k, d, few = args.clients, args.columns, 2
    base = rng.standard_normal((k, d), dtype=np.float32)
    a, b = sender_rows(rng, base, 2.0), sender_rows(rng, base, 2.0)
    del base
    fold = CountSketch(d, args.width, rng)

    def exact() -> np.ndarray:
        return match(1.0 - cosines(a, b))[1]

    def sketched() -> np.ndarray:
        return match(distances(folded(a, fold), folded(b, fold)))[1]

    np.testing.assert_allclose(by_numpy(a[:few], b), cosines(a[:few], b), atol=1e-4)
    taken = interleaved(
        {
            "numpy": lambda: by_numpy(a[:few], b),
            "torch": lambda: by_torch(a[:few], b),
            "sklearn": lambda: match(1.0 - cosine_similarity(a, b)),
            "exact": exact,
            "sketched": sketched,
        },
        args.repeats,
    )
    scale = k / few
    loops = {name: scale * statistics.median(taken[name]) for name in ("numpy", "torch")}
    print(
        f"one pair of rounds, K={k}, d={d:,}: per pair by numpy {loops['numpy']:.0f} s, "
        f"by torch {loops['torch']:.0f} s (both scaled)"
    )
    out = {}
    for name, work in (("exact", exact), ("sketched", sketched)):
        own = {
            "numpy": ratio(taken["numpy"], taken[name], scale),
            "torch": ratio(taken["torch"], taken[name], scale),
            "sklearn": ratio(taken["sklearn"], taken[name]),
        }
        right = float((work() == np.arange(k)).mean())
        print(
            f"  {name:8} {statistics.median(taken[name]):.3f} s: {own['numpy']:.0f}x numpy per"
            f" pair, {own['torch']:.0f}x torch per pair, {own['sklearn']:.1f}x sklearn's block;"
            f" right {right:.3f}"
        )
        out |= {f"{name} / {peer}": value for peer, value in own.items()}
    work_done = 2.0 * k * k * d / statistics.median(taken["exact"]) / 1e9
    print(f"  exact runs at {work_done:.0f} GFLOP/s: what is left is the speed of the product")
    print(f"  sketched shows cosines above {detectable_cosine(args.width):.3f} (here 0.2)")
    return out


def cluster(args: argparse.Namespace, rng: np.random.Generator) -> dict[str, float]:
    from sklearn.cluster import KMeans

    k, rounds, d = 50, 20, args.columns
    base = rng.standard_normal((k, d), dtype=np.float32)
    rows = np.empty((k * rounds, d), dtype=np.float32)
    for t in range(rounds):
        rows[t * k : (t + 1) * k] = sender_rows(rng, base, 4.0)
    truth = np.tile(np.arange(k), rounds)
    fold = CountSketch(d, args.width, rng)
    labels: dict[str, np.ndarray] = {}

    def ours() -> None:
        found = kmeans(np.split(folded(rows, fold), rounds), k, np.random.default_rng(0))
        labels["ours"] = np.concatenate(found)

    def raw(restarts: int) -> None:
        labels[f"raw {restarts}"] = KMeans(k, n_init=restarts, random_state=0).fit(rows).labels_

    fast = [seconds(ours) for _ in range(2)]
    out: dict[str, float] = {}
    for restarts in args.restarts:
        slow = seconds(lambda n=restarts: raw(n))
        fast.append(seconds(ours))
        out[f"raw, {restarts} restarts"] = slow
    own = statistics.median(fast)
    ari = clustering.scores(truth, labels["ours"])["adjusted_rand"]
    print(f"clustering {len(rows):,} updates of d={d:,}: {own:.2f} s, ten restarts, ARI {ari:.3f}")
    for restarts in args.restarts:
        slow = out[f"raw, {restarts} restarts"]
        other = clustering.scores(truth, labels[f"raw {restarts}"])["adjusted_rand"]
        print(
            f"  KMeans on raw rows, {restarts} restart(s): {slow:.1f} s, ARI {other:.3f}: "
            f"{slow / own:.0f}x"
        )
        out[f"ratio, {restarts} restarts"] = slow / own
    return out


def record(folder: Path, clients: int, rounds: int, columns: int) -> None:
    """A shuffled trace of clients with a direction each, cosine 0.2 between rounds."""
    rng = np.random.default_rng(0)
    base = rng.standard_normal((clients, columns), dtype=np.float32)
    names = [f"client-{c:03d}" for c in range(clients)]
    about = {"hubs": [SERVER], "clients": names, "parties": [SERVER, "shuffler", *names]}
    layouts = {"model": Layout.of([("weight", (columns, 1))])}
    recorder = Recorder(folder / "trace", layouts=layouts, federation=about)
    truth = TruthRecorder(folder / "truth", {"clients": {}})
    for number in range(1, rounds + 1):
        who = rng.permutation(clients)
        rows = sender_rows(rng, base[who], 2.0)
        with recorder.round() as wire:
            row = wire.put_once("model", np.zeros(columns, dtype=np.float32))
            wire.send_rows("model", [SERVER] * clients, names, row, step=0)
            hidden = [ANONYMOUS] * clients
            first = wire.send_rows("delta", hidden, [SERVER] * clients, rows, step=1)
        truth.round(number, {first + i: names[c] for i, c in enumerate(who)})
    recorder.close()


def peak_memory() -> float:
    """Bytes that this process held at most. `ru_maxrss` would count its parent's, too."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return float(line.split()[1]) * 1024
    raise SystemExit("no peak memory: /proc/self/status has no VmHWM")


def audit_stored(folder: Path, width: int) -> dict[str, float]:
    """Seconds of each stage of the default audit of a stored trace, and this process's peak."""
    trace = Trace.open(folder / "trace", verify_hashes=False)
    truth = Truth.open(folder / "truth")
    audit = Fingerprint(sketch=width)
    view = trace.seen_by(SERVER)
    reading = seconds(lambda: collect(view, ("weight",), np.random.default_rng(1), sketch=width))
    start = Clock.now()
    guess = audit.attack(view, Knowledge(), np.random.default_rng(1))
    attacked = Clock.now()
    result = audit.score(guess, truth, np.random.default_rng(2))
    scored = Clock.now()
    return {
        "updates": float(sum(len(m) for m in guess.messages)),
        "read and fold": reading,
        "link": attacked - start - reading,
        "score": scored - attacked,
        "right": result.estimates["linkage_accuracy"].value,
        "right (greedy)": result.estimates["linkage_accuracy (greedy)"].value,
        "peak GB": peak_memory() / 1e9,
    }


def many(args: argparse.Namespace) -> dict[str, float]:
    rounds, d = 20, args.stored_columns
    with tempfile.TemporaryDirectory() as place:
        record(Path(place), args.clients, rounds, d)
        runs = []
        for _ in range(args.repeats):
            done = subprocess.run(
                [sys.executable, __file__, "--stored", place, "--width", str(args.width)]
                + ["--cpu"] * args.cpu,
                check=True,
                capture_output=True,
                text=True,
            )
            runs.append(json.loads(done.stdout))
    out = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
    size = args.clients * rounds * d * 4 / 1e9
    print(
        f"{out['updates']:,.0f} updates of d={d:,} in a trace of {size:.1f} GB, joint and greedy:"
    )
    print(
        f"  read and fold {out['read and fold']:.2f} s, link {out['link']:.2f} s, "
        f"score {out['score']:.2f} s; right {out['right']:.3f} and {out['right (greedy)']:.3f}; "
        f"peak memory of the whole process {out['peak GB']:.2f} GB"
    )
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--clients", type=int, default=500)
    parser.add_argument("--columns", type=int, default=300_000)
    parser.add_argument("--stored-columns", type=int, default=30_000)
    parser.add_argument("--width", type=int, default=8191)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--restarts", type=int, nargs="*", default=[1, 10])
    parser.add_argument("--only", choices=("pair", "cluster", "many"), action="append")
    parser.add_argument("--stored", help=argparse.SUPPRESS)
    parser.add_argument(
        "--cpu",
        action="store_true",
        help="CPU seconds: with OMP_NUM_THREADS=1, ratios that a busy machine hardly changes",
    )
    parser.add_argument("--json")
    args = parser.parse_args()
    if args.cpu:
        Clock.now = staticmethod(time.process_time)
    if args.stored:
        print(json.dumps(audit_stored(Path(args.stored), args.width)))
        return
    chosen = args.only or ("pair", "cluster", "many")
    print(f"cores {os.cpu_count()}, load {os.getloadavg()[0]:.1f}")
    rng = np.random.default_rng(0)
    rows = {}
    if "many" in chosen:
        rows["many"] = many(args)
    if "pair" in chosen:
        rows["pair"] = pair(args, rng)
    if "cluster" in chosen:
        rows["cluster"] = cluster(args, rng)
    print(f"load {os.getloadavg()[0]:.1f}")
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
