"""Traces: what recording and reading cost beside the bytes themselves, and beside the usual peers.

    python benchmarks/trace.py [--clients 50] [--width 1000000] [--repeats 7] [--folder DIR]

Every figure is a ratio of medians from one run: alternatives take turns, so that a slow disk or a
busy machine meets all of them. Files are written to a temporary folder and removed; nobody calls
fsync. Reading starts with a warm page cache, a trace that was verified once, and nothing mapped.

A recording hashes on one core while it writes on another. It cannot be faster than SHA-256, which
is slower than a copy into the page cache: without a free core it costs the sum of the two.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch

from fedaudit.layout import Layout
from fedaudit.trace import SERVER, Recorder, Trace

Work = Callable[[], object]


def medians(alternatives: Mapping[str, Work], repeats: int) -> dict[str, float]:
    """Median seconds of each alternative; they take turns."""
    times: dict[str, list[float]] = {name: [] for name in alternatives}
    for turn in range(repeats + 1):
        for name, work in alternatives.items():
            gc.collect()
            start = time.perf_counter()
            work()
            if turn:  # the first turn warms caches up
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(t) for name, t in times.items()}


def show(title: str, seconds: Mapping[str, float], base: str) -> None:
    print(f"\n{title}")
    for name, t in seconds.items():
        print(f"  {name:<44} {t * 1e3:9.2f} ms {t / seconds[base]:8.2f}x")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--width", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--folder", type=Path, default=None, help="where to put the files")
    given = parser.parse_args()
    clients, width = given.clients, given.width
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((clients, width), dtype=np.float32)
    model = rng.standard_normal(width, dtype=np.float32)
    parties = [f"client-{i:03d}" for i in range(clients)]
    quarter = width // 4
    shapes = [(f"block.{i}", (quarter,)) for i in range(3)] + [("block.3", (width - 3 * quarter,))]
    layouts = {"model": Layout.of(shapes)}
    print(
        f"round of {clients} x {width:,} float32 = {rows.nbytes / 1e6:.0f} MB; "
        f"cores {os.cpu_count()}, torch threads {torch.get_num_threads()}, "
        f"load average {os.getloadavg()[0]:.2f}"
    )

    def record(folder: Path) -> None:
        recorder = Recorder(folder, layouts=layouts)
        with recorder.round() as wire:
            row = wire.put_once("model", model)
            wire.send_rows("model", [SERVER] * clients, parties, row, step=0)
            wire.send_rows("delta", parties, [SERVER] * clients, rows, step=1)
        recorder.close()

    with tempfile.TemporaryDirectory(dir=given.folder) as made:
        base = Path(made)

        def fresh(name: str) -> Path:
            """A new file name; what stood there before is gone, outside of nobody's timer."""
            path = base / name
            for old in [*path.glob("*")] if path.is_dir() else [path] if path.exists() else []:
                old.unlink()
            return path

        def write_once() -> None:
            with open(fresh("plain"), "wb", buffering=0) as file:
                view = memoryview(rows.reshape(-1).view(np.uint8))
                while view:
                    view = view[file.write(view) :]

        tensor = torch.from_numpy(rows)
        show(
            "recording a round",
            medians(
                {
                    "write the bytes once": write_once,
                    "sha256 of the bytes, nothing written": lambda: hashlib.sha256(rows).digest(),
                    "Recorder (hashed, deduplicated)": lambda: record(fresh("trace")),
                    "numpy.save": lambda: np.save(fresh("a.npy"), rows),
                    "numpy.savez": lambda: np.savez(fresh("a.npz"), rows=rows),
                    "torch.save": lambda: torch.save(tensor, fresh("a.pt")),
                },
                given.repeats,
            ),
            "write the bytes once",
        )

        trace_path = base / "trace"
        Trace.open(trace_path)  # verified once: the peers check nothing

        def through_view() -> object:
            view = Trace.open(trace_path, verify_hashes=False).seen_by(SERVER)
            return view.updates(1).rows.sum(axis=0)

        opened = Trace.open(trace_path).seen_by(SERVER)
        assert np.array_equal(opened.updates(1).rows, rows)
        show(
            "reading a round and summing over clients",
            medians(
                {
                    "sum of the array in memory": lambda: rows.sum(axis=0),
                    "View.updates, file opened and mapped anew": through_view,
                    "View.updates, trace open": lambda: opened.updates(1).rows.sum(axis=0),
                    "numpy.load of npz": lambda: np.load(base / "a.npz")["rows"].sum(axis=0),
                    "torch.load": lambda: torch.load(base / "a.pt", weights_only=True).sum(0),
                    "Trace.open with all hashes, then sum": lambda: (
                        Trace.open(trace_path).seen_by(SERVER).updates(1).rows.sum(axis=0)
                    ),
                },
                given.repeats,
            ),
            "sum of the array in memory",
        )

        at = clients + clients // 2  # one upload in the middle

        def one_row_anew() -> object:
            view = Trace.open(trace_path, verify_hashes=False).seen_by(SERVER)
            return view.payload(1, at).copy()

        show(
            "one client's row, copied out",
            medians(
                {
                    "copy of a row in memory": lambda: rows[clients // 2].copy(),
                    "View.payload, file opened and mapped anew": one_row_anew,
                    "View.payload, trace open": lambda: opened.payload(1, at).copy(),
                    "View.payload of one tensor of four": lambda: opened.payload(
                        1, at, "block.1"
                    ).copy(),
                    "numpy.load of npz": lambda: np.load(base / "a.npz")["rows"][1].copy(),
                    "torch.load": lambda: torch.load(base / "a.pt", weights_only=True)[1].clone(),
                },
                given.repeats,
            ),
            "copy of a row in memory",
        )
    print(f"\nload average at the end {os.getloadavg()[0]:.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
