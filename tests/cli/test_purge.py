"""What is purged, what stays readable, and what is said."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from fedaudit.decide.diff.compare import diff
from fedaudit.errors import TraceError
from fedaudit.setup.toml import to_toml
from fedaudit.study import report
from fedaudit.study import run as run_one
from fedaudit.study.lock import alone_in
from fedaudit.study.seal import gone
from fedaudit.trace import SERVER, Recorder, Trace
from fedaudit.trace.purge import NOTE

WEIGHT = np.zeros((2, 3), np.float32)
SMALL = {
    "seed": 1,
    "data": {"name": "gaussian-mixture", "records": 80},
    "task": {"kind": "mlp", "hidden": [3]},
    "federation": {"clients": 3, "rounds": 2},
    "audits": {"coverage": {}, "fingerprint": {}},
    "trace": {"retention": "30 days"},
}


def recorded(folder, retention):
    recorder = Recorder(folder, like={"w": WEIGHT}, purpose="pilot", retention=retention)
    with recorder.round() as wire:
        wire.send("delta", "east", SERVER, {"w": WEIGHT})
    recorder.close()


@pytest.fixture
def command(in_process, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return in_process


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "run"
    run_one(SMALL, out)
    return out


@pytest.fixture
def run(finished, tmp_path):
    return Path(shutil.copytree(finished, tmp_path / "run"))


def age(folder, days):
    file = folder / "trace" / "manifest.json"
    then = file.stat().st_mtime - 86_400 * days
    os.utime(file, (then, then))


def test_only_what_is_over_is_purged_and_a_note_stays(command, tmp_path):
    recorded(tmp_path / "a" / "old", "until 2020-01-31, then delete")
    recorded(tmp_path / "a" / "new", "until 2999-12-31")
    recorded(tmp_path / "open", "")
    (tmp_path / "a" / "old" / "mine.txt").write_text("not of the trace")
    assert "would be removed: a/old" in command("purge", ".", "--expired").out
    assert (tmp_path / "a" / "old" / "manifest.json").exists()
    said = command("purge", ".", "--expired", "--yes").out
    assert "removed: a/old: 2 files" in said
    assert "mine.txt" in said
    assert sorted(p.name for p in (tmp_path / "a" / "old").iterdir()) == ["mine.txt", NOTE]
    assert json.loads((tmp_path / "a" / "old" / NOTE).read_text())["purpose"] == "pilot"
    for kept in ("a/new", "open"):
        Trace.open(tmp_path / kept)


@pytest.mark.parametrize(("days", "kept"), [(29, True), (32, False)])
def test_a_run_is_purged_when_its_days_are_over(command, run, days, kept):
    age(run, days)
    assert command("purge", ".", "--expired", "--yes").code == 0
    assert (run / "trace").exists() == kept


def test_results_and_report_outlive_the_recording(command, run, finished):
    before = {(f.audit, f.verdict, f.statement) for f in report(run).findings}
    assert command("purge", "run", "--yes").code == 0
    assert {p.name for p in run.iterdir() if p.is_dir()} == {"results"}
    assert set(gone(run)) == {"trace", "truth", "checkpoint"}
    done = command("report", "run")
    assert (done.code, "Purged" in done.out) == (0, True)
    after = report(run)
    assert {(f.audit, f.verdict, f.statement) for f in after.findings} == before
    assert after.summary["state"].startswith("purged on ")
    assert "Purged: " in (run / "report.html").read_text()
    assert command("verify", "run").code == 0
    # nothing can be shown of it any more
    (run.parent / "p.toml").write_text('[[limit]]\nmetric = "coverage.verdict"\n')
    failed = command("gate", "run", "--policy", "p.toml")
    assert (failed.code, "purged" in failed.out) == (4, True)
    assert command("purge", "run", "--yes").code == 3
    # and nothing is recorded over it
    with pytest.raises(TraceError, match="was purged on"):
        run_one(SMALL, run)
    with pytest.raises(TraceError, match="was purged on"):
        diff(run, finished)
    assert command("report", "run").code == 0
    run_one(SMALL, run, fresh=True)
    assert command("verify", "run").code == 0


def test_the_truth_can_be_kept(command, run):
    assert command("purge", "run", "--keep", "truth", "--yes").code == 0
    assert (run / "truth" / "truth.json").is_file()
    assert set(gone(run)) == {"trace", "checkpoint"}
    assert command("verify", "run").code == 0
    assert command("purge", "run", "--keep", "thruth").code == 2


def test_a_run_whose_files_were_altered_can_be_purged(command, run):
    (run / "results" / "coverage.json").write_text("{}")
    assert command("purge", "run", "--yes").code == 0
    assert not (run / "trace").exists()
    assert command("report", "run").code == 3  # and what was altered is still refused


def test_what_an_audit_copied_is_purged_too(command, run):
    assert command("audit", "run", "--only", "coverage", "--as", "shuffle", "-q").code == 0
    copy = run.parent / "run-as-shuffle"
    assert (copy / "truth" / "truth.json").is_file()
    assert command("purge", "run", "--yes").code == 0
    assert not (copy / "trace").exists()
    assert not (copy / "truth" / "truth.json").exists()
    assert command("report", copy).code == 0


def test_the_audit_of_a_trace_outlives_the_trace(command, tmp_path):
    recorded(tmp_path / "theirs", "1 day")
    assert command("audit", "theirs", "--only", "coverage", "-q").code == 0
    assert command("purge", "theirs", "--yes").code == 0
    done = command("report", "theirs-audit")
    assert (done.code, "Purged" in done.out) == (0, True), done.err
    assert command("verify", "theirs-audit").code == 0


def test_cells_of_a_search_are_purged(command, tmp_path):
    from fedaudit.study.sweep import sweep

    (tmp_path / "c.toml").write_text(to_toml(SMALL))
    sweep("c.toml", ["training.learning_rate=0.1,0.2"], "sw", workers=1, keep_traces=True)
    assert command("purge", "sw", "--yes").code == 0
    assert not list((tmp_path / "sw").rglob("truth.json"))


def test_a_run_at_work_is_not_purged(command, run):
    with alone_in(run):
        assert command("purge", "run", "--yes").code == 2
    assert (run / "trace").exists()


def test_a_study_is_purged_run_by_run(command, tmp_path):
    config = SMALL | {"compare": {"base": "plain", "shuffled": {"protections": {"shuffle": {}}}}}
    from fedaudit.study import study

    study.study(study.plan([config]), tmp_path / "s")
    assert command("purge", "s", "--yes").code == 0
    assert not list((tmp_path / "s").glob("*/trace"))
    assert "Purged: the recording" in " ".join(command("report", "s").out.split())


@pytest.mark.parametrize("more", [(), ("--yes",)])
@pytest.mark.parametrize(
    ("folder", "expired", "code", "said"),
    [
        ("absent", True, 3, "absent is not a folder"),
        ("file", True, 3, "file is not a folder"),
        ("absent", False, 3, "absent is not a folder"),
        ("empty", False, 3, "nothing to purge in empty"),
        ("empty", True, 0, "nothing to purge below empty"),
    ],
)
def test_purging_where_nothing_is_says_so(command, tmp_path, more, folder, expired, code, said):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    done = command("purge", folder, *(["--expired"] if expired else []), *more)
    assert done.code == code
    assert said in (done.err if code else done.out)
    assert "removed" not in done.out
