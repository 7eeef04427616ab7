"""Flower's own runtimes: the simulation on Ray, and a deployment on loopback.

Every process is started in a session of its own and ended by its id, also when a test fails.
"""

import contextlib
import json
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
from fedaudit.study import run
from fedaudit.trace import SERVER, Trace

pytest.importorskip("flwr", reason='Flower is not installed: pip install "fedaudit[flower]"')
pytestmark = pytest.mark.nightly

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
CONFIG = """
seed = 11
[data]
name = "digits"
[federation]
clients = 3
rounds = 3
[training]
epochs = 1
[protections.dp_sgd]
noise_multiplier = 0.5
[audits.coverage]
"""


@pytest.fixture
def local(tmp_path):
    (tmp_path / "config.toml").write_text(CONFIG)
    run(tmp_path / "config.toml", tmp_path / "local")
    return Trace.open(tmp_path / "local" / "trace")


def environment(home):
    home.mkdir(parents=True, exist_ok=True)
    return {
        **os.environ,
        **QUIET,
        "FLWR_HOME": str(home),
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",  # they start programs by name
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "PYTHONWARNINGS": "ignore",
    }


def agree(one, other):
    assert len(one.rounds) == len(other.rounds)
    for number in one.rounds:
        assert one.messages(number) == other.messages(number)
        assert np.abs(one.block(number) - other.block(number)).max() <= 1e-5


def command(folder, *arguments):
    done = subprocess.run(
        [sys.executable, "-m", "fedaudit", "run", "config.toml", *arguments],
        cwd=folder,
        env=environment(folder / "home"),
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_the_simulation_gives_the_trace_of_the_local_engine(local, tmp_path):
    code, said = command(tmp_path, "--engine", "flower", "--out", "flower")
    assert code == 0, said
    agree(local, Trace.open(tmp_path / "flower" / "trace"))


def test_the_driver_in_one_process_gives_the_result_of_the_simulation(tmp_path):
    """The same app of least squares on Ray and without: equal arrays and traces, bit for bit."""
    program = f"""
import json, logging, random, sys
sys.path.insert(0, {str(ROOT / "tests" / "recorders" / "flower")!r})
import conftest
from fedaudit.flower import RecordingStrategy, record_mod, run_in_process
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
logging.getLogger("flwr").setLevel(logging.ERROR)

class Sorted(FedAvg):
    # replies come in any order, and sums of floating-point numbers depend on it
    def aggregate_train(self, server_round, replies):
        by_size = sorted(replies, key=lambda m: m.content["metrics"]["num-examples"])
        return super().aggregate_train(server_round, by_size)

results = []
def server(name):
    everyone = Sorted(min_train_nodes=3, min_available_nodes=3)
    recorded = RecordingStrategy(everyone, name, name_by="partition-id")
    return conftest.Apps.server(recorded, results)

client = conftest.Apps.client(metrics={{"partition-id": 0}})
run_in_process(server("process"), client, 3)
client = conftest.Apps.client(metrics={{"partition-id": 0}}, mods=[record_mod({str(tmp_path)!r})])
run_simulation(server_app=server("ray"), client_app=client, num_supernodes=3,
    backend_config={{"init_args": {{"num_cpus": 2, "include_dashboard": False}},
    "client_resources": {{"num_cpus": 1, "num_gpus": 0.0}}}})
print("RESULT", json.dumps([[a.numpy().tolist() for a in r.arrays.values()] for r in results]))
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=environment(tmp_path / "home"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (line,) = [li for li in done.stdout.splitlines() if li.startswith("RESULT")]
    one, other = json.loads(line.removeprefix("RESULT"))
    assert one == other
    first, second = (Trace.open(tmp_path / name) for name in ("process", "ray"))
    assert first.manifest.complete
    assert second.manifest.complete
    for number in first.rounds:
        a, b = (t.seen_by(SERVER).updates(number) for t in (first, second))
        assert sorted(a.senders) == sorted(b.senders) == ["client-0", "client-1", "client-2"]
        for name in a.senders:
            rows = [u.rows[u.senders.index(name)] for u in (a, b)]
            np.testing.assert_array_equal(*rows)
    # every node kept its own messages, although any worker may have served it
    own = [Trace.open(p) for p in tmp_path.glob("run-*/node-*")]
    assert len(own) == 3
    assert all(len(t.rounds) == 3 for t in own)


# -- a deployment on loopback ----------------------------------------------------------------------


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def wait_for(port):
    end = time.monotonic() + 60
    while time.monotonic() < end:
        with socket.socket() as s:
            if s.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)
    raise TimeoutError(f"nobody listens at port {port}")


class Processes:
    """What was started, and how it is ended: by the id of its own session."""

    def __init__(self, folder):
        self.folder, self.started = folder, []

    def start(self, name, *arguments):
        log = (self.folder / f"{name}.log").open("w")
        process = subprocess.Popen(
            [str(BIN / arguments[0]), *arguments[1:]],
            env=environment(self.folder / f"home-{name}"),
            cwd=self.folder,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        log.close()
        self.started.append(process)
        return process

    @staticmethod
    def end(process, with_what=signal.SIGTERM):
        """End a process and all that it started, some of it in sessions of its own."""
        family = [process.pid, *descendants(process.pid)]
        for pid in family:
            signal_to(pid, with_what)
        try:
            process.wait(timeout=15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(timeout=15)
        end = time.monotonic() + 10
        while (alive := [p for p in family[1:] if is_alive(p)]) and time.monotonic() < end:
            time.sleep(0.2)
        for pid in alive:
            signal_to(pid, signal.SIGKILL)
        return family

    def end_all(self):
        """Ends all, and gives the ids of all that there was."""
        return [pid for process in reversed(self.started) for pid in self.end(process)]


def descendants(pid):
    """Ids of all processes below one, from /proc."""
    children = {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = file.read_text().rpartition(")")[2].split()
        except OSError:
            continue
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


def signal_to(pid, what):
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, what)


@pytest.fixture
def processes(tmp_path):
    own = Processes(tmp_path)
    yield own
    ended = own.end_all()
    end = time.monotonic() + 10
    while any(map(is_alive, ended)) and time.monotonic() < end:
        time.sleep(0.2)
    assert [pid for pid in ended if is_alive(pid)] == []


def super_node(processes, link, number):
    return processes.start(
        f"node-{number}-{random.randrange(10**6)}",
        "flower-supernode",
        *("--insecure", "--superlink", f"127.0.0.1:{link}"),
        *("--host", "127.0.0.1", "--port", str(free_port())),
        *("--node-config", f"partition-id={number} num-partitions=3"),
    )


def test_three_super_nodes_run_lose_one_and_go_on(local, processes, tmp_path):
    link = free_port()
    processes.start(
        "link",
        "flower-superlink",
        *("--insecure", "--host", "127.0.0.1", "--port", str(link)),
        "--disable-runtime-dependency-installation",
    )
    wait_for(link)
    nodes = [super_node(processes, link, i) for i in range(3)]
    arguments = ("--engine", "flower", "--superlink", f"127.0.0.1:{link}", "--out", "deployed")
    running = subprocess.Popen(
        [sys.executable, "-m", "fedaudit", "run", "config.toml", *arguments, "--timeout", "120"],
        cwd=tmp_path,
        env=environment(tmp_path / "home"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    processes.started.append(running)
    manifest = tmp_path / "deployed" / "trace" / "manifest.json"
    end = time.monotonic() + 300
    while time.monotonic() < end and running.poll() is None:
        if manifest.exists() and len(json.loads(manifest.read_text())["rounds"]) >= 1:
            break
        time.sleep(0.1)
    Processes.end(nodes[1], signal.SIGKILL)  # in the middle of a round
    said, _ = running.communicate(timeout=400)
    assert running.returncode == 3, said
    assert "did not train in round" in said
    assert "continues from there" in said
    trace = Trace.open(tmp_path / "deployed" / "trace")
    assert 1 <= len(trace.rounds) < 3
    assert not trace.manifest.complete

    super_node(processes, link, 1)
    code, said = command(tmp_path, *arguments)
    assert code == 0, said
    agree(local, Trace.open(tmp_path / "deployed" / "trace"))
