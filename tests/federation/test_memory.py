"""A run holds one round, however many there are; a round that memory cannot hold, in a file."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedaudit import rows
from fedaudit.setup.config import load
from fedaudit.study.run import simulate

CHILD = """
import resource, sys
from pathlib import Path
import numpy as np, torch
from fedaudit.data.dataset import Dataset
from fedaudit.federation import topology
from fedaudit.federation.engine import Federation
from fedaudit.federation.rounds import Rounds
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


LARGE = """
import resource, sys
from pathlib import Path
import numpy as np
from fedaudit import rows
from fedaudit.data.dataset import Dataset
from fedaudit.federation.engine import Federation
from fedaudit.federation.rounds import Rounds
from fedaudit.federation.local.schedule import Training
from fedaudit.federation.local.trainer import ClientData
from fedaudit.protections.clip import Clip
from fedaudit.protections.shuffle import Shuffle
from fedaudit.randomness import Seed
from fedaudit.tasks.catalogue import MLP
from fedaudit.trace import Recorder
from fedaudit.trace.recorder import MODEL

out, mapped = sys.argv[1], sys.argv[2] == "mapped"
clients, seed = 64, Seed(1)
x = np.random.default_rng(1).random((2 * clients, 1000)).astype(np.float32)
data = Dataset(name="wide", kind="features", x=x, y=np.arange(2 * clients) % 2)
task = MLP(hidden=(500,)).build(data, seed)
own = task.encode(data)
parts = [(own.x[i::clients], own.y[i::clients]) for i in range(clients)]
fed = Federation(
    task=task,
    data=ClientData.join(parts),
    rounds=Rounds(rounds=2, wire="model"),
    training=Training(batch_size=0),
    seed=seed,
    protections=[Clip(bound=0.01), Shuffle()],
)
fed.train(task.initial(), np.arange(2), 1)  # what is allocated once
if mapped:
    rows.memory = lambda: 64 << 20  # as on a machine of 64 MiB
size = 4 * clients * task.layout.width
assert size > 120 << 20
used = [line for line in Path("/proc/self/status").read_text().splitlines() if "VmData" in line]
limit = int(used[0].split()[1]) * 1024 + size // 2
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
fed.run(Recorder(out + "/trace", layouts={MODEL: task.layout}))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits of memory as on Linux")
def test_a_round_larger_than_memory_goes_through(tmp_path: Path) -> None:
    """Clipped, shuffled, sent as models and recorded in half of what its updates take."""

    def tried(how: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", LARGE, str(tmp_path / how), how],
            env={
                **os.environ,
                "PYTHONPATH": str(Path(__file__).resolve().parents[2]),
                "OMP_NUM_THREADS": "1",
            },
            capture_output=True,
            text=True,
            check=False,
        )

    plain, mapped = tried("plain"), tried("mapped")
    assert plain.returncode == 1
    assert "alloc" in plain.stderr.lower()
    assert mapped.returncode == 0, mapped.stderr


VARIANTS: dict[str, dict[str, Any]] = {
    "star": {},
    "models on the wire, shuffled": {
        "federation": {"wire": "model"},
        "protections": {"clip": {}, "shuffle": {}},
    },
    "noise": {"protections": {"update_noise": {}}},
    "hierarchy": {
        "federation": {"aggregation": "hierarchical"},
        "topology": {"kind": "hierarchical", "sizes": [2, 3]},
    },
    "gossip": {"federation": {"aggregation": "gossip"}, "topology": {"kind": "ring"}},
    "half precision, some tensors": {"trace": {"dtype": "float16", "tensors": ["*weight"]}},
    "adapters": {
        "data": {"name": "docs"},
        "task": {
            "kind": "lora",
            "depth": 1,
            "width": 16,
            "pretraining_steps": 1,
            "aggregation": "flora",
        },
    },
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_trace_does_not_depend_on_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variant: str
) -> None:
    raw: dict[str, Any] = {
        "data": {"name": "breast-cancer"},
        "task": {"kind": "mlp", "hidden": [8]},
        **VARIANTS[variant],
    }
    raw["federation"] = {"clients": 5, "rounds": 2, **raw.get("federation", {})}

    def sums(path: Path) -> list[str]:
        simulate(load(raw), path)
        files = sorted((path / "trace").glob("round-*"))
        return [hashlib.sha256(f.read_bytes()).hexdigest() for f in files]

    in_memory = sums(tmp_path / "in-memory")
    spaces: list[int] = []
    real = rows.empty_array

    def counted(n: int, width: int, dtype: Any = np.float32) -> Any:
        found = real(n, width, dtype)
        spaces.append(isinstance(found, np.memmap))
        return found

    monkeypatch.setattr(rows, "memory", lambda: 4)
    monkeypatch.setattr(rows, "empty_array", counted)
    assert sums(tmp_path / "mapped") == in_memory
    assert len(in_memory) == 2
    assert spaces
    assert all(spaces)
