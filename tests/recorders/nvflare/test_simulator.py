"""FLARE's own simulator, recorded: the trace is what the federation computed.

Runs where FLARE is installed (`make test-nvflare`), beside NumPy and safetensors alone: a server
that records needs no torch.
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("nvflare") is None, reason="NVIDIA FLARE is not installed"
)
ROOT = Path(__file__).resolve().parents[3]


def simulate(home, *arguments, folder):
    """Run a program on FLARE in `home`; imports from `folder`."""
    path = os.pathsep.join(filter(None, [str(ROOT), str(folder), os.environ.get("PYTHONPATH", "")]))
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=home,
        env={**os.environ, "PYTHONPATH": path},
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    from fedaudit import Trace

    home = tmp_path_factory.mktemp("flare")
    program = f"""
from nvflare.app_common.filters.exclude_vars import ExcludeVars
import job
filters = (ExcludeVars(exclude_vars=["no-such-layer"]),)
job.main({str(home / "trace-{job_id}")!r}, {str(home / "workspace")!r}, filters=filters)
"""
    simulate(home, "-c", program, folder=ROOT / "examples/nvflare")
    (folder,) = home.glob("trace-*")
    return Trace.open(folder)


@pytest.fixture(scope="module")
def faulty(tmp_path_factory):
    from fedaudit import Trace

    home = tmp_path_factory.mktemp("faulty")
    here = Path(__file__).parent
    simulate(home, here / "faulty_job.py", home / "trace", home / "workspace", folder=here)
    return Trace.open(home / "trace")


def test_every_model_and_every_answer_is_there(trace):
    from fedaudit import SERVER

    assert trace.manifest.complete
    assert [*trace.rounds] == [1, 2, 3]
    for t in trace.rounds:
        updates = trace.seen_by(SERVER).updates(t)
        assert sorted(updates.senders) == ["site-1", "site-2", "site-3"]
        assert {*updates.weights} == {100.0}


def test_the_next_model_is_the_weighted_mean_of_the_answers(trace):
    from fedaudit import SERVER

    view = trace.seen_by(SERVER)
    for t in trace.rounds:
        updates = view.updates(t)
        model = view.received(t, "site-1")
        mean = model + np.average(updates.rows, axis=0, weights=updates.weights)
        after = view.released() if t == trace.rounds[-1] else view.received(t + 1, "site-1")
        np.testing.assert_allclose(mean, after, atol=1e-6)


def test_what_sites_say_they_filter_is_declared_and_promises_nothing(trace):
    (declared,) = trace.manifest.declared
    assert declared["name"] == "ExcludeVars"
    assert declared["sites"] == ["site-1", "site-2", "site-3"]
    assert declared["covers"] == []


def test_the_last_round_holds_the_released_model_and_was_written_once(trace):
    assert [r.file for r in trace.manifest.rounds] == [
        f"round-{n:05d}.safetensors" for n in (1, 2, 3)
    ]
    assert "FedAvg" in trace.manifest.federation["aggregation"]


def test_failing_sites_and_a_server_that_steps_in_place_are_recorded(faulty, monkeypatch):
    from fedaudit import SERVER

    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    from faulty_job import MOMENTUM, SITES, WIDTH, update, weight

    view, model, speed = faulty.seen_by(SERVER), np.zeros(WIDTH), 0.0
    for t in faulty.rounds:
        sent = {i: u for i in range(1, SITES + 1) if (u := update(i, t - 1)) is not None}
        got = view.updates(t)
        assert dict(zip(got.senders, got.weights, strict=True)) == {
            f"site-{i}": weight(i) for i in sent
        }
        for sender, row in zip(got.senders, got.rows, strict=True):
            np.testing.assert_allclose(row, sent[int(sender[-1])], atol=1e-6)
            np.testing.assert_allclose(view.received(t, sender), model, atol=1e-6)
        mean = np.average([*sent.values()], axis=0, weights=[weight(i) for i in sent])
        speed = MOMENTUM * speed + mean
        model = model + speed
    np.testing.assert_allclose(view.released(), model, atol=1e-6)


def test_the_reason_of_a_failure_and_the_scope_of_a_job_are_on_record(faulty):
    failed = {
        (t, m.sender): m.notes["failed"]
        for t in faulty.rounds
        for m in faulty.messages(t)
        if "failed" in m.notes
    }
    assert failed == {(2, "site-3"): "EXECUTION_RESULT_ERROR", (3, "site-2"): "BAD_TASK_DATA"}
    (declared,) = faulty.manifest.declared
    assert (declared["name"], declared["scope"]) == ("privacy_scope", "research")


def test_an_occupied_folder_is_told_when_the_run_starts_and_ends_no_job(tmp_path, caplog):
    from nvflare.apis.event_type import EventType
    from nvflare.apis.fl_context import FLContext

    from fedaudit.recorders.nvflare import FedauditRecorder

    (tmp_path / "round-00001.safetensors").write_bytes(b"")
    component = FedauditRecorder(str(tmp_path))
    for event in (EventType.START_RUN, EventType.AFTER_TASK_DATA_FILTER, EventType.END_RUN):
        component.handle_event(event, FLContext())
        assert caplog.text.count("fedaudit stopped recording") == 1
    assert "without a manifest" in caplog.text
    assert [f.name for f in tmp_path.iterdir()] == ["round-00001.safetensors"]


@pytest.mark.parametrize(
    "given",
    [
        {"dtype": "fp16"},
        {"every": "5"},
        {"retention": "30 dys"},
        {"stop": True},
        {"declared": [{"nam": "dp"}]},
    ],
)
def test_wrong_options_are_refused_when_the_job_is_made(given):
    from fedaudit.errors import UsageError
    from fedaudit.recorders.nvflare import FedauditRecorder

    with pytest.raises(UsageError):
        FedauditRecorder("never-written", **given)


@pytest.mark.parametrize("which", ["trace", "faulty"])
def test_a_whole_fedaudit_audits_what_a_bare_one_recorded(which, request, tmp_path):
    command = os.environ.get("FEDAUDIT")
    if not command:
        pytest.skip("no whole fedaudit: make test-nvflare names one")
    folder = request.getfixturevalue(which).path
    done = subprocess.run(
        [command, "audit", folder, "--only", "fingerprint", "--out", tmp_path / "run"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "run/results/fingerprint.json").read_text())["result"]
    assert found["estimates"]["linkage_accuracy"]["value"] == 1.0
