"""Recorders: processor time of one upload, and of a watch beside a round.

    python benchmarks/recorders.py [--width 10000000] [--repeats 7] [--folder DIR]

Processor time of this process (user and system, all threads), medians. An upload is what the
recorder adds to a server that has the arrays already: copy, hash, write, flush. The hash runs in a
thread of its own while the same bytes are written. The floor is one copy, one SHA-256, one write.
Flower's row reads its messages as well and runs where Flower is installed.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fedaudit.trace import SERVER, Recorder

CLIENTS = [f"client-{i}" for i in range(8)]
WATCHED = 1_200_000


def spent(work: Callable[[], object]) -> tuple[float, float]:
    """Processor and wall seconds."""
    cpu, wall = time.process_time(), time.perf_counter()
    work()
    return time.process_time() - cpu, time.perf_counter() - wall


def show(name: str, times: list[tuple[float, float]], per: int = 1) -> float:
    cpu, wall = (statistics.median(t) / per for t in zip(*times, strict=True))
    print(f"  {name:<52} {cpu * 1e3:8.1f} ms processor {wall * 1e3:8.1f} ms wall")
    return cpu


def floor(row: np.ndarray[Any, Any], file: Path) -> None:
    copied = row.copy()
    hashlib.sha256(copied).digest()
    with open(file, "wb", buffering=0) as out:
        out.write(copied.data)
        os.fsync(out.fileno())


def uploads(width: int, repeats: int, folder: Path) -> None:
    rng = np.random.default_rng(0)
    model = {"w": rng.standard_normal(width, dtype=np.float32)}
    sent = [{"w": model["w"] + np.float32(i + 1)} for i in range(len(CLIENTS))]
    print(f"one upload of {width:,} numbers")
    show(
        "copied, hashed and written once (the floor)",
        [spent(lambda: floor(sent[0]["w"], folder / "floor")) for _ in range(repeats)],
    )

    def one_round(recorder: Recorder) -> None:
        with recorder.round() as wire:
            for i, _ in enumerate(sent):
                wire.send("model", SERVER, CLIENTS[i], model, step=0)
            for i, own in enumerate(sent):
                wire.send("model", CLIENTS[i], SERVER, own, step=1)

    recorder = Recorder(folder / "plain", like=model)
    times = [spent(lambda: one_round(recorder)) for _ in range(repeats)]
    show("Recorder, the model to every client included", times, len(sent))
    if importlib.util.find_spec("flwr") is not None:
        flower(model, sent, repeats, folder)


def flower(model: dict[str, Any], sent: list[dict[str, Any]], repeats: int, folder: Path) -> None:
    from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict

    from fedaudit.recorders.flower.arrays import answer_of, content_of
    from fedaudit.recorders.flower.tape import Reply, Sent, Tape, TapeOptions

    def packed(arrays: dict[str, Any]) -> RecordDict:
        own = ArrayRecord({k: Array(v) for k, v in arrays.items()})
        return RecordDict({"arrays": own, "metrics": MetricRecord({"num-examples": 9})})

    down, up = packed(model), [packed(own) for own in sent]
    tape = Tape(folder / "flower", TapeOptions(), about={})

    def one_round() -> None:
        content = content_of(down, "arrays")
        tape.begin(tape.rounds_done + 1, [Sent(i, content) for i, _ in enumerate(up)])
        tape.record_replies([Reply(i, answer_of(own, "arrays")) for i, own in enumerate(up)])

    show(
        "RecordingStrategy's tape, messages read",
        [spent(one_round) for _ in range(repeats)],
        len(up),
    )


def watched(repeats: int, folder: Path) -> None:
    """A watch with limits, beside the recording of the same rounds: the least a round can take."""
    from fedaudit.decide.watch import Watch

    rng = np.random.default_rng(1)
    model = {"w": rng.standard_normal(WATCHED, dtype=np.float32)}
    sent = [{"w": model["w"] + np.float32(i + 1)} for i in range(len(CLIENTS))]
    about = {"hubs": [SERVER], "clients": CLIENTS, "parties": [SERVER, *CLIENTS]}
    recorder = Recorder(folder / "watched", like=model, federation=about)
    limits = ({"metric": "fingerprint.linkage_accuracy", "at_most": 1.0},)
    watch = Watch(
        {"limit": [*limits, {"metric": "coverage.kinds_outside_protection", "at_most": 9}]}
    )

    def one_round() -> None:
        with recorder.round() as wire:
            for name in CLIENTS:
                wire.send("model", SERVER, name, model, step=0)
            for name, own in zip(CLIENTS, sent, strict=True):
                wire.send("model", name, SERVER, own, step=1)

    print(f"\na round of {len(CLIENTS)} clients and {WATCHED:,} numbers, {8 * repeats} rounds")
    recorded, read = [], []
    for _ in range(8 * repeats):
        recorded.append(spent(one_round))
        read.append(spent(lambda: watch.update(recorder.path)))
    round_ = show("recording", recorded)
    print(f"  the watch: {show('watch', read) / round_:.1%} of the recording alone")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--width", type=int, default=10_000_000)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--folder", type=Path, default=None, help="where to put the files")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as made:
        uploads(given.width, given.repeats, Path(made))
        watched(given.repeats, Path(made))
    return 0


if __name__ == "__main__":
    sys.exit(main())
