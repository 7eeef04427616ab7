"""Sweeps and shadows on Ray's workers: the results of this machine, and nothing left running."""

import csv
import gc
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from fedaudit.errors import UsageError
from fedaudit.setup.config import load
from fedaudit.study.run import run
from fedaudit.study.sweep import sweep
from fedaudit.workers import use_workers

ray = pytest.importorskip("ray", reason='Ray is not installed: pip install "fedaudit[flower]"')

# Ray leaves handles of the processes that it has ended to the garbage collector
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

TINY = ("federation.rounds=2", "audits.fingerprint.methods=['greedy']")
GRID = ["federation.clients=3,4,5000"]  # there are not so many records


@pytest.fixture(autouse=True)
def collected():
    yield
    gc.collect()


def table(path):
    with open(path / "sweep.csv", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def of_ray():
    """Ids of Ray's processes below this one."""
    listed = subprocess.run(
        ["ps", "-ww", "-e", "-o", "pid=,ppid=,args="], capture_output=True, text=True, check=True
    )
    found = [line.split(None, 2) for line in listed.stdout.splitlines()]
    return {int(pid) for pid, _, args in found if "raylet" in args or "gcs_server" in args}


def test_ray_gives_the_table_of_the_processes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a sweep into a folder that is named from here
    before = of_ray()
    processes = sweep(None, GRID, "processes", overrides=TINY, workers=1)
    during, seen = set(), []

    def watch(what, done, total, label):
        during.update(of_ray() - before)
        seen.append((done, total))

    found = sweep(None, GRID, "ray", overrides=TINY, workers="ray", progress=watch)
    assert found.failed == processes.failed
    assert "5000 clients" in found.failed[0][1]
    assert during  # it was there
    assert seen[-1] == (3, 3)
    assert not ray.is_initialized()
    assert not of_ray() & during  # and is gone
    assert table(Path("ray")) == table(Path("processes"))
    assert {p.parent.name for p in Path("ray").glob("cells/*/cell.json")} == {
        p.parent.name for p in Path("processes").glob("cells/*/cell.json")
    }


def test_ray_is_ended_when_a_sweep_is(tmp_path):
    before = of_ray()

    def stop(what, done, total, label):
        if label:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sweep(None, GRID, tmp_path, overrides=TINY, workers="ray", progress=stop)
    assert not ray.is_initialized()
    assert not of_ray() - before


@pytest.mark.nightly
def test_a_cluster_at_an_address_gives_the_same_table(request, start, port, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    own, client = port.free(), port.free()
    # of its own, and short (sockets): in the usual place others would take it for their cluster
    place = tempfile.mkdtemp(prefix="ray")
    request.addfinalizer(lambda: shutil.rmtree(place, ignore_errors=True))
    start(
        "head",
        *("ray", "start", "--head", "--block", "--num-cpus", 2, "--include-dashboard", "false"),
        *("--port", own, "--ray-client-server-port", client, "--node-ip-address", "127.0.0.1"),
        *("--temp-dir", place),
    )
    port.wait_for(client)
    found = sweep(None, GRID, "ray", overrides=TINY, workers=f"ray://127.0.0.1:{client}")
    assert not ray.is_initialized()
    processes = sweep(None, GRID, "processes", overrides=TINY, workers=1)
    assert found.failed == processes.failed
    assert table(Path("ray")) == table(Path("processes"))


@pytest.mark.nightly  # its client waits half a minute
@pytest.mark.filterwarnings("ignore:Ray Client connection timed out")
def test_a_cluster_that_is_not_there(port, tmp_path):
    with pytest.raises(UsageError, match="could not be reached"):
        sweep(None, GRID, tmp_path, overrides=TINY, workers=f"ray://127.0.0.1:{port.free()}")


def test_shadows_trained_by_ray_are_those_of_this_process(tmp_path):
    raw = {
        "data": {"name": "digits"},
        "partition": {"kind": "coupled", "eta": 0.6, "position": "region"},
        "topology": {"kind": "hierarchical"},
        "task": {"kind": "mlp", "hidden": [8]},
        "federation": {"clients": 10, "rounds": 2},
        "audits": {"topology_inference": {"shadows": 20, "regressor": "ridge"}},
    }
    torch = pytest.importorskip("torch")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as every worker does
    try:
        alone = run(load(raw), tmp_path / "alone")
        with use_workers("ray"):
            helped = run(load(raw), tmp_path / "ray")
    finally:
        torch.set_num_threads(threads)
    assert not ray.is_initialized()
    (a,), (b,) = (
        [r for r in done.results if r.audit == "topology_inference"] for done in (alone, helped)
    )
    assert a.estimates
    assert a == b
