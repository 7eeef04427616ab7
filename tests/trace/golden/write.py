"""Writes the golden trace. It was run once; the files beside it must never change again.

    python tests/trace/golden/write.py tests/trace/golden/trace

Two rounds, two clients, exact binary fractions. Round 1: models down, deltas up, one of them with
metadata and an integer tensor. Round 2: models up, behind a shuffler; the final model is released.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from fedaudit.trace import ANONYMOUS, PUBLIC, SERVER, SHUFFLER, Recorder


def tensors(*numbers: float) -> dict[str, np.ndarray]:
    values = np.array(numbers, dtype=np.float32)
    return {"w": values[:4].reshape(2, 2), "b": values[4:]}


FIRST = tensors(0.5, -1.0, 2.0, 0.25, 0.0, -0.0)
SECOND = tensors(0.75, -0.5, 1.5, 0.25, 1.0, -1.0)


def write(folder: Path) -> None:
    recorder = Recorder(
        folder,
        like={**FIRST, "steps": np.zeros((), dtype=np.int64)},
        federation={
            "hubs": ["server"],
            "clients": ["client-0", "client-1"],
            "parties": ["server", "shuffler", "client-0", "client-1"],
        },
        declared=[{"name": "shuffle", "covers": ["sender"], "trust": "the shuffler"}],
        task={"kind": "linear"},
        purpose="guards the format",
        retention="for ever",
    )
    with recorder.round() as wire:
        for client in ("client-0", "client-1"):
            wire.send("model", SERVER, client, FIRST)
        changed = tensors(0.25, 0.5, -0.5, 0.0, 1.0, -1.0)
        steps = {"steps": np.array(7)}
        wire.send("delta", "client-0", SERVER, {**changed, **steps}, weight=3.0)
        wire.send("delta", "client-1", SERVER, changed, weight=5.0, metadata={"examples": 5})
    with recorder.round() as wire:
        for client in ("client-0", "client-1"):
            wire.send("model", SERVER, client, SECOND, step=0)
        for client in ("client-0", "client-1"):
            wire.send("model", client, SHUFFLER, None, step=1, size=24)
        wire.send("model", ANONYMOUS, SERVER, tensors(1.0, 0.0, 1.5, 0.25, 1.0, 1.0), step=2)
        wire.send("model", ANONYMOUS, SERVER, tensors(0.5, -0.5, 1.5, 0.5, 1.0, -2.0), step=2)
        wire.send("model", SERVER, PUBLIC, tensors(0.75, -0.25, 1.5, 0.375, 1.0, -0.5), step=3)
    recorder.close()


if __name__ == "__main__":
    write(Path(sys.argv[1]))
