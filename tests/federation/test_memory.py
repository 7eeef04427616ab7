"""A run holds one round, however many there are."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

CHILD = """
import resource, sys
from pathlib import Path
import numpy as np, torch
from fedaudit.data.dataset import Dataset
from fedaudit.federation import topology
from fedaudit.federation.engine import Federation, Rounds
from fedaudit.federation.local.schedule import Training
from fedaudit.federation.local.trainer import ClientData
from fedaudit.randomness import Seed
from fedaudit.tasks.catalogue import MLP
from fedaudit.trace import Recorder, TruthRecorder
from fedaudit.trace.recorder import MODEL

clients, width, rounds = 16, 100, 14
seed, n = Seed(1), 2 * clients
x = np.random.default_rng(1).random((n, 1000)).astype(np.float32)
data = Dataset(name="wide", kind="features", x=x, y=np.arange(n) % 2)
task = MLP(hidden=(width,)).build(data, seed)
own = task.encode(data)
parts = [(own.x[i::clients], own.y[i::clients]) for i in range(clients)]
fed = Federation(
    task=task,
    data=ClientData.join(parts),
    rounds=Rounds(rounds=rounds, aggregation=sys.argv[1], server_momentum=float(sys.argv[2])),
    training=Training(batch_size=0),
    seed=seed,
    topology=topology.build("ring", clients, seed),
)
recorder = Recorder(sys.argv[3] + "/trace", layouts={MODEL: task.layout})
truth = TruthRecorder(sys.argv[3] + "/truth", {})
peaks = []
def note(number, metrics):
    for file in Path(sys.argv[3]).glob("*/round-*"):
        file.unlink()  # a run does not read what it has written: keep the disk free
    peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
fed.run(recorder, truth, checkpoint=sys.argv[3] + "/checkpoint", keep_raw=True, progress=note)
print(clients * task.layout.width * 4 // 1024, *peaks)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="ru_maxrss counts in KiB on Linux")
@pytest.mark.parametrize(("aggregation", "momentum"), [("fedavg", 0.5), ("gossip", 0.0)])
def test_memory_does_not_grow_with_the_rounds(
    tmp_path: Path, aggregation: str, momentum: float
) -> None:
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", CHILD, aggregation, str(momentum), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    one_round, *peaks = map(int, done.stdout.split())
    assert one_round > 6_000
    # ten more rounds, kept, would take ten times this; allocators settle within a few
    assert peaks[13] - peaks[3] < 5 * one_round
