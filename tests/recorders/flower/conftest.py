"""Small federations for Flower: least squares in numpy, one ClientApp for all nodes."""

import contextlib
import logging
import os
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from fedaudit.flower import QUIET

os.environ.update(QUIET)

ROOT = Path(__file__).resolve().parents[3]
BIN = Path(sys.executable).parent


@pytest.fixture(autouse=True)
def quiet():
    """Flower logs every step of a strategy."""
    logging.getLogger("flwr").setLevel(logging.CRITICAL)


def data(partition):
    rng = np.random.default_rng(partition)
    x = rng.normal(size=(12 + partition, 5)).astype(np.float32)
    centre = np.linspace(-1, 1, 5) * (partition + 1)
    return x, (x @ centre).astype(np.float32)


def step(arrays, partition):
    """One pass of gradient descent of a client: named arrays in, named arrays out."""
    x, y = data(partition)
    w, b = arrays["layer.weight"].astype(np.float32), arrays["layer.bias"].astype(np.float32)
    for _ in range(3):
        error = x @ w[0] + b[0] - y
        w = w - 0.05 * (error[:, None] * x).mean(axis=0)[None].astype(np.float32)
        b = b - np.float32(0.05 * error.mean())
    out = {"layer.weight": w.astype(np.float32), "layer.bias": b.astype(np.float32)}
    if "norm.num_batches_tracked" in arrays:
        out["norm.num_batches_tracked"] = np.int64(arrays["norm.num_batches_tracked"]) + 3
    return {k: np.asarray(v) for k, v in out.items()}


class Apps:
    """ClientApps and starting points; `behave(partition, round, arrays)` may change a reply."""

    @staticmethod
    def start(counter=False):
        from flwr.app import Array, ArrayRecord

        arrays = {
            "layer.weight": np.zeros((1, 5), dtype=np.float32),
            "layer.bias": np.zeros(1, dtype=np.float32),
        }
        if counter:
            arrays["norm.num_batches_tracked"] = np.asarray(np.int64(0))
        return ArrayRecord({k: Array(v) for k, v in arrays.items()})

    @staticmethod
    def client(behave=None, mods=None, metrics=None, view=dict):
        from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
        from flwr.clientapp import ClientApp

        app = ClientApp(mods=mods)

        @app.train()
        def train(message, context):
            partition = int(context.node_config["partition-id"])
            arrays = view((k, a.numpy()) for k, a in message.content["arrays"].items())
            out = step(arrays, partition)
            number = message.content["config"]["server-round"]
            if behave is not None:
                out = behave(partition, number, out)
            told = {"num-examples": len(data(partition)[0]), "loss": 0.5, **(metrics or {})}
            if "partition-id" in told:
                told["partition-id"] = partition
            records = {
                "arrays": ArrayRecord({k: Array(np.asarray(v)) for k, v in out.items()}),
                "metrics": MetricRecord(told),
            }
            return Message(RecordDict(records), reply_to=message)

        @app.evaluate()
        def evaluate(message, context):
            return Message(
                RecordDict({"metrics": MetricRecord({"num-examples": 1, "loss": 1.0})}),
                reply_to=message,
            )

        return app

    @staticmethod
    def server(strategy, results, rounds=3, counter=False, grids=None):
        from flwr.serverapp import ServerApp

        app = ServerApp()

        @app.main()
        def main(grid, context):
            if grids is not None:
                grid = grids(grid)
            results.append(
                strategy.start(
                    grid=grid, initial_arrays=Apps.start(counter), num_rounds=rounds, timeout=600
                )
            )

        return app

    @staticmethod
    def run(strategy, *, nodes=4, rounds=3, counter=False, grids=None, seed=0, **client):
        """The result of a strategy after a run in this process."""
        from fedaudit.flower import run_in_process

        random.seed(seed)  # Flower draws nodes and noise from the global generators
        np.random.seed(seed)
        results = []
        run_in_process(
            Apps.server(strategy, results, rounds, counter, grids), Apps.client(**client), nodes
        )
        return results[0]


@pytest.fixture(scope="session")
def apps():
    return Apps


@pytest.fixture(scope="session")
def one_step():
    return step


# -- programs beside the tests ---------------------------------------------------------------------


def descendants(pid):
    """Ids of all processes below one, from /proc."""
    children = {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = file.read_text().rpartition(")")[2].split()
            children.setdefault(int(fields[1]), []).append(int(file.parent.name))
    found, todo = [], [pid]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def end(process):
    """End a process and all that it started."""
    family = [process.pid, *descendants(process.pid)]
    for how in (signal.SIGTERM, signal.SIGKILL):
        for pid in filter(is_alive, family):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, how)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=60)
        limit = time.monotonic() + 60
        while any(map(is_alive, family)) and time.monotonic() < limit:
            time.sleep(0.1)
    return [pid for pid in family if is_alive(pid)]


@pytest.fixture
def start(tmp_path):
    """Starts programs of this environment, in sessions of their own; ends them by their ids."""
    started = []

    def begin(name, *arguments):
        home = tmp_path / f"home-{name}"
        home.mkdir()
        surroundings = {
            **os.environ,
            **QUIET,
            "FLWR_HOME": str(home),
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",  # they start programs by name
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "PYTHONWARNINGS": "ignore",
        }
        with (tmp_path / f"{name}.log").open("w") as log:
            started.append(
                subprocess.Popen(
                    [str(BIN / arguments[0]), *map(str, arguments[1:])],
                    env=surroundings,
                    cwd=tmp_path,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )

    yield begin
    left = [pid for process in reversed(started) for pid in end(process)]
    assert left == []


class Port:
    """Numbers of ports on loopback."""

    @staticmethod
    def free():
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            return s.getsockname()[1]

    @staticmethod
    def wait_for(port):
        limit = time.monotonic() + 600
        while time.monotonic() < limit:
            with socket.socket() as s:
                if s.connect_ex(("127.0.0.1", port)) == 0:
                    return
            time.sleep(0.2)
        raise TimeoutError(f"nobody listens at port {port}")


@pytest.fixture(scope="session")
def port():
    return Port
