"""Flower's strategies are recorded beside Flower, NumPy and safetensors alone."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedaudit.trace import SERVER, Trace
from fedaudit.trace.examination import examine

pytest.importorskip("flwr", reason='Flower is not installed: pip install "fedaudit[flower]"')
ROOT = Path(__file__).resolve().parents[3]

#: what fedaudit depends on and Flower does not
PROGRAM = """
import importlib.abc, re, sys
from importlib.metadata import PackageNotFoundError, packages_distributions, requires

def needs(name, seen):
    key = re.sub(r"[-_.]+", "-", name).lower()
    if key in seen:
        return seen
    seen.add(key)
    try:
        wanted = requires(name) or []
    except PackageNotFoundError:
        return seen
    for text in wanted:
        if "extra ==" not in text:
            needs(re.match(r"[A-Za-z0-9._-]+", text).group(), seen)
    return seen

allowed = needs("flwr", set()) | {"numpy", "safetensors", "fedaudit"}
alone = needs("fedaudit", set()) - allowed
assert {"torch", "scipy"} <= alone, alone
blocked = {
    top
    for top, names in packages_distributions().items()
    if top not in sys.modules and all(re.sub(r"[-_.]+", "-", n).lower() in alone for n in names)
}

class Block(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in blocked:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Block())

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from fedaudit.flower import RecordingStrategy, run_in_process, site_name_mod

app, server = ClientApp(), ServerApp()

@app.train(mods=[site_name_mod()])
def train(message, context):
    own = int(context.node_config["partition-id"])
    w = message.content["arrays"]["w"].numpy() + np.float32(own)
    records = {"arrays": ArrayRecord({"w": Array(w)}), "metrics": MetricRecord({"num-examples": 5})}
    return Message(RecordDict(records), reply_to=message)

@server.main()
def main(grid, context):
    sketch = int(sys.argv[2]) or None
    strategy = RecordingStrategy(FedAvg(fraction_evaluate=0.0), sys.argv[1], sketch=sketch)
    start = ArrayRecord({"w": Array(np.zeros(40, np.float32))})
    strategy.start(grid=grid, initial_arrays=start, num_rounds=2, timeout=60)

run_in_process(server, app, 3)
loaded = blocked & {name.partition(".")[0] for name in sys.modules}
assert not loaded, loaded
"""


@pytest.mark.parametrize("sketch", [0, 7])
def test_a_server_without_torch_records_a_sealed_trace(sketch, tmp_path):
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "trace"), str(sketch)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    trace = Trace.open(tmp_path / "trace")
    assert trace.manifest.complete
    assert examine(trace).whole
    updates = trace.seen_by(SERVER).updates(1)
    assert sorted(updates.senders) == ["client-0", "client-1", "client-2"]
    assert updates.rows.shape == (3, sketch or 40)
    if not sketch:
        rows = dict(zip(updates.senders, updates.rows, strict=True))
        np.testing.assert_array_equal(rows["client-2"], np.full(40, 2.0))
