"""FLARE's POC mode, processes of its own for server and sites, with a site that is killed."""

import importlib.util
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.filterwarnings("ignore"),  # FLARE's own, of libraries that it calls
    pytest.mark.skipif(
        importlib.util.find_spec("nvflare") is None, reason="NVIDIA FLARE is not installed"
    ),
]
ROOT = Path(__file__).resolve().parents[2]
JOBS = ROOT / "tests/recorders/nvflare"


def processes(workspace, site):
    """Ids of a site's processes in this workspace; of all sites for an empty name."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            words = file.read_bytes().decode(errors="replace")
            if str(workspace) in words and f"/{site}" in words:
                found.append(int(file.parent.name))
    return found


def kill(pid):
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


@pytest.fixture
def poc(tmp_path, monkeypatch):
    """A started POC environment; its processes import this repository and the job."""
    path = os.pathsep.join(filter(None, [str(ROOT), str(JOBS), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("PYTHONPATH", path)
    monkeypatch.setenv("NVFLARE_POC_WORKSPACE", str(tmp_path / "poc"))
    monkeypatch.setattr(sys, "path", [str(ROOT), str(JOBS), *sys.path])
    from nvflare.recipe.poc_env import PocEnv

    environment = PocEnv(num_clients=3)
    yield environment, tmp_path / "poc"
    environment.stop(clean_up=False)
    for pid in processes(tmp_path / "poc", ""):  # what a failed test leaves would hold the port
        kill(pid)


def deploy(environment, job):
    """Deploy a job. FLARE waits seconds for its server to listen: too short on a busy machine."""
    from nvflare.fuel.flare_api.api_spec import NoConnection

    submit, limit = environment.deploy, time.monotonic() + 180
    while True:
        try:
            return submit(job)
        except NoConnection:
            assert time.monotonic() < limit
            submit = environment._get_session_manager().submit_job


def test_a_site_that_is_killed_is_noted_and_the_others_are_recorded(poc, tmp_path):
    from faulty_job import MOMENTUM, ROUNDS, WIDTH, build, update, weight

    from fedaudit import SERVER, Trace

    environment, workspace = poc
    folder = tmp_path / "trace"
    deploy(environment, build(str(folder), faults=False, pause=2.0))
    killed, limit = False, time.monotonic() + 300
    while not ((folder / "manifest.json").exists() and Trace.open(folder).manifest.complete):
        assert time.monotonic() < limit
        if not killed and list(folder.glob("round-*.safetensors")):
            for pid in processes(workspace, "site-3"):
                kill(pid)
            killed = True
        time.sleep(1)
    assert killed
    trace = Trace.open(folder)
    assert trace.manifest.complete
    assert len(trace.rounds) == ROUNDS
    view, model, speed, silent = trace.seen_by(SERVER), np.zeros(WIDTH), 0.0, 0
    for t in trace.rounds:
        got = view.updates(t)
        assert {"site-1", "site-2"} <= set(got.senders)
        sent = {int(s[-1]): update(int(s[-1]), t - 1, faults=False) for s in got.senders}
        for sender, row in zip(got.senders, got.rows, strict=True):
            np.testing.assert_allclose(row, sent[int(sender[-1])], atol=1e-6)
            np.testing.assert_allclose(view.received(t, sender), model, atol=1e-6)
        notes = [m.notes.get("failed") for m in trace.messages(t) if m.sender == "site-3"]
        silent += notes == ["no answer in time"]
        speed = MOMENTUM * speed + np.average(
            [*sent.values()], axis=0, weights=[weight(i) for i in sent]
        )
        model = model + speed
    assert silent == 1  # asked once more, then known to be gone
    assert "site-3" not in view.updates(ROUNDS).senders
    np.testing.assert_allclose(view.released(), model, atol=1e-6)
