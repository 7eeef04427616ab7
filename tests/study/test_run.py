"""A run directory: what it holds, what it keeps to itself, and that nothing computed is lost."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import numpy as np
import pytest

import fedaudit
from fedaudit import study
from fedaudit.errors import DataError, IntegrityError, TraceError, UsageError
from fedaudit.files import Unreadable
from fedaudit.setup.config import load
from fedaudit.study.seal import seal
from fedaudit.trace import SERVER, Recorder, Trace, Truth

SMALL = {
    "seed": 31337,
    "data": {"name": "gaussian-mixture", "records": 120, "dimension": 6},
    "partition": {"kind": "dirichlet", "alpha": 0.5},
    "task": {"kind": "mlp", "hidden": [8]},
    "federation": {"clients": 4, "rounds": 3},
    "protections": {"shuffle": {}},
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "run"
    study.run(SMALL, out)
    return out


@pytest.fixture
def copy(finished, tmp_path):
    return Path(shutil.copytree(finished, tmp_path / "run"))


def test_the_private_config_gives_the_same_trace_keys_and_all(tmp_path):
    marks = {"clients": 1, "keys": [11]}
    study.run(SMALL | {"marks": marks, "audits": {"coverage": {}}}, tmp_path / "one")
    study.run(tmp_path / "one" / "truth" / "config.toml", tmp_path / "two")
    one, two = (Trace.open(tmp_path / name / "trace") for name in ("one", "two"))
    assert two.sha256 == one.sha256
    public = load(tmp_path / "one" / "config.toml", seed=SMALL["seed"])
    assert not public.marks.keys, "keys stay in the truth"


def package_path():
    here = str(Path(fedaudit.__file__).parents[1])
    return os.pathsep.join(p for p in (here, os.environ.get("PYTHONPATH")) if p)


def outside_truth(run):
    return [
        f
        for f in run.rglob("*")
        if f.is_file() and f.relative_to(run).parts[0] not in ("truth", "checkpoint")
    ]


def sha(run):
    return Trace.open(run).sha256


# -- what is written ------------------------------------------------------------------------------


def test_the_directory_holds_every_stage(finished):
    names = {f.name for f in finished.iterdir()}
    assert names == {
        "config.toml",
        "run.json",
        "trace",
        "truth",
        "checkpoint",
        "results",
        "findings.json",
        "report.html",
        "report.md",
        "results.json",
        "seal.json",
    }
    assert {f.stem for f in (finished / "results").iterdir()} == {"coverage", "fingerprint"}


def test_the_seed_is_in_truth_alone(tmp_path):
    seed = 9_182_736_455_463_728
    study.run(SMALL, tmp_path / "run", seed=seed)
    inside = (tmp_path / "run" / "truth" / "config.toml").read_text()
    assert f"seed = {seed}" in inside
    for file in outside_truth(tmp_path / "run"):
        assert str(seed).encode() not in file.read_bytes(), file


def test_nothing_outside_the_trace_and_the_truth_depends_on_the_seed(finished, tmp_path):
    """A hash or a Monte-Carlo figure made from a small seed would let others try all of them."""
    other = study.run(SMALL, tmp_path / "run", seed=4).path
    for name in ("run.json", "config.toml"):
        assert (other / name).read_text() == (finished / name).read_text()
    # the same trace with the same truth gives the same results, whatever the run's seed was
    stored = (copy_of := shutil.copytree(finished, tmp_path / "other")) / "results"
    before = (stored / "fingerprint.json").read_text()
    shutil.rmtree(stored)
    study.audit(copy_of)
    assert (stored / "fingerprint.json").read_text() == before


def test_the_stored_config_reruns_the_same_trace(finished, tmp_path):
    stored = finished / "config.toml"
    assert "seed" not in tomllib.loads(stored.read_text())
    again = study.run(stored, tmp_path / "again", seed=SMALL["seed"])
    assert sha(again.path) == sha(finished)
    with_seed = study.run(finished / "truth" / "config.toml", tmp_path / "third")
    assert sha(with_seed.path) == sha(finished)


def test_names_of_the_users_clients_stay_in_truth(tmp_path, capfd):
    rng = np.random.default_rng(0)
    table = ["hospital,region,patient,a,b,label"]
    for i in range(80):
        a, b = rng.normal(size=2)
        where = f"Heliodor-{i % 4},Brixen-{i % 2}"
        table.append(f"{where},Xanthippe-{i // 2},{a:.3f},{b:.3f},{int(a > b)}")
    data = tmp_path / "table.csv"
    data.write_text("\n".join(table) + "\n")
    config = {
        "data": {
            "path": str(data),
            "label": "label",
            "client": "hospital",
            "organisation": "region",
            "person": "patient",
        },
        "partition": {"kind": "by_owner"},
        "federation": {"rounds": 2},
    }
    notes = []
    run = study.run(config, tmp_path / "run", progress=lambda *a: notes.append(str(a)))
    secret = [b"Heliodor", b"Brixen", b"Xanthippe"]
    assert all(s in (run.path / "truth" / "truth.json").read_bytes() for s in secret[:1])
    said = capfd.readouterr()
    public = [f.read_bytes() for f in outside_truth(run.path)]
    public += [said.out.encode(), said.err.encode(), "".join(notes).encode()]
    public += [repr(run.summary).encode(), repr(run.results).encode()]
    for text in public:
        for name in secret:
            assert name not in text
    assert set(Trace.open(run.path).manifest.federation["clients"]) == {
        f"client-{i:02d}" for i in range(4)
    }


def test_a_default_run_loads_no_slow_library(tmp_path):
    """A run of the built-in kind must start fast: a star needs no graphs, shares no scipy.stats."""
    code = """
import sys
from fedaudit import study
study.run(None, sys.argv[1], overrides=["federation.rounds=2", "task.hidden=[4]"])
slow = "networkx sklearn statsmodels scipy.stats pandas PIL dp_accounting opacus matplotlib"
print([name for name in slow.split() if name in sys.modules])
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "run")],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": package_path()},
    )
    assert done.stdout.strip() == "[]"


# -- resuming -------------------------------------------------------------------------------------


def test_a_finished_run_is_not_run_again(copy):
    before = {f: f.stat().st_mtime_ns for f in (copy / "trace").iterdir()}
    seen = []
    study.run(SMALL, copy, progress=lambda *a: seen.append(a))
    assert ("train", 3, 3, "already recorded") in seen
    assert {f: f.stat().st_mtime_ns for f in (copy / "trace").iterdir()} == before


def test_another_experiment_in_the_folder_is_refused_by_what_differs(copy):
    with pytest.raises(TraceError, match="another experiment") as caught:
        study.run(SMALL, copy, overrides=["federation.rounds=4", "task.hidden=[9]"])
    assert "federation.rounds" in caught.value.got
    assert "task.hidden" in caught.value.got
    with pytest.raises(TraceError, match="another experiment") as caught:
        study.run(SMALL, copy, seed=5)
    assert caught.value.got == "other values of seed"
    assert caught.value.exit_code == 3


def test_a_foreign_folder_is_refused_and_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(TraceError, match="not empty and not a run") as caught:
        study.run(SMALL, tmp_path)
    assert "thesis.tex" in caught.value.got
    assert [f.name for f in tmp_path.iterdir()] == ["thesis.tex"]


def test_an_output_that_cannot_be_written_is_refused(tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    for out in (file, file / "below"):
        with pytest.raises(TraceError, match="cannot use"):
            study.run(SMALL, out)


def test_a_run_killed_while_it_claimed_its_folder_goes_on(tmp_path):
    out = tmp_path / "run"
    out.mkdir()
    (out / "run.json.part").write_text("{")
    study.run(SMALL, out)
    assert (out / "report.html").exists()
    # killed between the two files
    other = tmp_path / "other"
    other.mkdir()
    shutil.copy(out / "run.json", other)
    assert sha(study.run(SMALL, other).path) == sha(out)


def test_a_run_whose_truth_was_taken_away_cannot_go_on(copy):
    shutil.rmtree(copy / "truth")
    with pytest.raises(TraceError, match="truth is gone") as caught:
        study.run(SMALL, copy)
    assert "fedaudit audit" in caught.value.remedy


def test_other_data_under_the_same_name_are_noticed(tmp_path):
    data = tmp_path / "x.npz"
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(60, 4)).astype("f4"), np.arange(60) % 2
    np.savez(data, x=x, y=y)
    config = load({"data": {"path": str(data)}, "federation": {"clients": 3, "rounds": 4}})

    class Stop(Exception):
        pass

    def stop(stage, done, total, note):
        if (stage, done) == ("train", 2):
            raise Stop

    with pytest.raises(Stop):
        study.run(config, tmp_path / "run", progress=stop)
    np.savez(data, x=x + 1, y=y)
    with pytest.raises(DataError, match="made of something else"):
        study.run(config, tmp_path / "run")
    np.savez(data, x=x, y=y)
    whole = study.run(config, tmp_path / "run")
    assert sha(whole.path) == sha(study.run(config, tmp_path / "fresh").path)


LONG = ["--set", "federation.rounds=300", "--seed", "7", "--quiet"]


def started(config, out, rounds):
    """A run in a process of its own that has recorded so many rounds."""
    process = subprocess.Popen(
        [sys.executable, "-m", "fedaudit", "run", str(config), *LONG, "--out", str(out)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": package_path()},
        # jobs in the background of a shell ignore Ctrl-C, and so would what they start
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    manifest = out / "trace" / "manifest.json"
    deadline = time.monotonic() + 600
    while process.poll() is None and time.monotonic() < deadline:
        if manifest.exists() and len(json.loads(manifest.read_text())["rounds"]) >= rounds:
            break
        time.sleep(0.005)
    return process


def test_a_run_that_is_stopped_or_killed_ends_with_the_same_trace(tmp_path):
    from fedaudit.setup.toml import to_toml

    config = tmp_path / "config.toml"
    config.write_text(to_toml(SMALL))
    out = tmp_path / "run"
    first = started(config, out, 3)
    first.send_signal(signal.SIGINT)
    _, err = first.communicate(timeout=600)
    assert first.returncode == 130
    assert "Traceback" not in err
    assert "fedaudit run" in err
    assert str(out) in err
    kept = len(Trace.open(out).rounds)
    assert 3 <= kept < 300
    second = started(config, out, kept + 3)
    second.kill()
    second.communicate(timeout=600)
    assert second.returncode == -signal.SIGKILL
    assert kept <= len(Trace.open(out).rounds) < 300
    seen = []
    overrides = ["federation.rounds=300"]
    resumed = study.run(
        config, out, overrides=overrides, seed=7, progress=lambda *a: seen.append(a)
    )
    # rounds that were there are not run again, but for one whose checkpoint was not written yet
    trained = [done for stage, done, _, note in seen if stage == "train" and "loss" in note]
    assert trained[0] >= kept + 3
    straight = study.run(config, tmp_path / "straight", overrides=overrides, seed=7)
    assert sha(resumed.path) == sha(straight.path)


# -- results are kept -----------------------------------------------------------------------------


def stamp(run, audit="fingerprint"):
    return (run / "results" / f"{audit}.json").stat().st_mtime_ns


def put_another_trace(run):
    """The same messages under another manifest, so that the truth still fits."""
    other = study.run(SMALL, run.parent / "other", overrides=["trace.purpose=another"])
    shutil.rmtree(run / "trace")
    shutil.copytree(other.path / "trace", run / "trace")


def test_results_are_reused_when_nothing_changed(copy):
    before = stamp(copy)
    study.run(SMALL, copy)
    study.audit(copy)
    assert stamp(copy) == before


@pytest.mark.parametrize("change", ["settings", "version", "truth", "seed", "torn", "edited"])
def test_results_are_redone_when_something_changed(copy, change, monkeypatch):
    before = stamp(copy)
    seed = 1
    audits = None
    if change == "settings":
        audits = {"fingerprint": {"confidence": 0.9}}
    elif change == "edited":
        file = copy / "results" / "fingerprint.json"
        file.write_text(file.read_text().replace('"value": ', '"value":  ', 1))
    elif change == "version":
        monkeypatch.setattr(sys.modules["fedaudit.study.auditing"], "__version__", "9.9")
    elif change == "truth":
        shutil.rmtree(copy / "truth")
    elif change == "seed":
        seed = 2
    else:
        (copy / "results" / "fingerprint.json").write_text("{")
    study.audit(copy, audits, seed=seed)
    assert stamp(copy) != before


def test_audits_can_be_added_to_a_run(tmp_path):
    config = {**SMALL, "audits": {"coverage": {}}}
    first = study.run(config, tmp_path / "run")
    assert [r.audit for r in first.results] == ["coverage"]
    second = study.run(SMALL, tmp_path / "run")
    assert {r.audit for r in second.results} == {"coverage", "fingerprint"}
    assert "fingerprint" in (tmp_path / "run" / "config.toml").read_text()


def test_auditing_a_run_again_uses_its_own_settings_and_keeps_the_rest(tmp_path):
    config = {**SMALL, "audits": {"coverage": {}, "fingerprint": {"confidence": 0.8}}}
    study.run(config, tmp_path / "run")
    again = study.audit(tmp_path / "run", ["coverage"])
    assert {r.audit for r in again.results} == {"coverage", "fingerprint"}
    (own,) = [r for r in again.results if r.audit == "fingerprint"]
    assert own.settings["confidence"] == 0.8
    everything = study.audit(tmp_path / "run")
    (own,) = [r for r in everything.results if r.audit == "fingerprint"]
    assert own.settings["confidence"] == 0.8


def test_a_report_can_be_written_again(copy):
    before = (copy / "findings.json").read_text()
    (copy / "report.html").unlink()
    (copy / "findings.json").unlink()
    study.report(copy)
    assert (copy / "findings.json").read_text() == before
    assert (copy / "report.html").exists()


def test_a_report_says_when_its_results_belong_to_another_trace(copy):
    put_another_trace(copy)
    with pytest.raises(IntegrityError, match="trace changed"):
        study.report(copy)
    with pytest.raises(IntegrityError, match="trace changed"):
        study.audit(copy)
    with pytest.raises(IntegrityError, match="trace changed"):
        study.run(SMALL, copy)
    seal(copy, "trace")
    told = study.report(copy)
    assert all("another state of the trace" in r.notes[-1] for r in told.results)


def test_a_report_needs_results(copy):
    shutil.rmtree(copy / "results")
    with pytest.raises(IntegrityError, match="results missing"):
        study.report(copy)
    seal(copy, "results")
    with pytest.raises(TraceError, match="no results yet"):
        study.report(copy)


# -- traces from elsewhere ------------------------------------------------------------------------


@pytest.fixture
def foreign(tmp_path):
    """A trace that other software wrote: named senders, no truth, a bare manifest."""
    rng = np.random.default_rng(0)
    like = {"w": np.zeros(6, dtype=np.float32)}
    recorder = Recorder(tmp_path / "theirs", like=like)
    own = rng.normal(size=(3, 6))
    for _ in range(4):
        with recorder.round() as messages:
            model = {"w": rng.normal(size=6).astype(np.float32)}
            for c in range(3):
                messages.send("model", SERVER, f"node-{c}", model, step=0)
            for c in range(3):
                update = {"w": (own[c] + 0.01 * rng.normal(size=6)).astype(np.float32)}
                messages.send("delta", f"node-{c}", SERVER, update, step=1)
    recorder.close()
    return tmp_path / "theirs"


def test_a_foreign_trace_is_audited_blindly_and_says_so(foreign):
    run = study.audit(foreign)
    assert "blind" in run.summary["truth"]
    assert run.summary["federation"].startswith("3 clients, 4 training rounds")
    verdicts = {f.audit: f for f in run.findings}
    assert verdicts["coverage"].verdict == "leak"
    assert (verdicts["fingerprint"].verdict, verdicts["fingerprint"].known) == ("leak", True)
    assert verdicts["two_stage_membership"].code == "no_records"
    # nothing is strewn into the folder that holds the trace
    assert {f.name for f in foreign.parent.iterdir()} == {"theirs", "theirs-audit"}
    assert run.path == foreign.parent / "theirs-audit"
    again = study.report(run.path)
    assert [f.to_dict() for f in again.findings] == [f.to_dict() for f in run.findings]


def test_names_on_updates_are_a_finding_with_the_remedy(copy):
    audits = {"fingerprint": {}, "query_plan": {}}
    run = study.run({**SMALL, "protections": {}, "audits": audits}, copy.parent / "named")
    for finding in run.findings:
        assert (finding.verdict, finding.rule, finding.known) == ("leak", "K1", True)
        assert finding.measure
    remedies = {f.audit: f.remedy for f in run.findings}
    assert "shuffle" in remedies["fingerprint"]
    assert "noise" not in remedies["fingerprint"]


def test_diverged_training_is_a_finding_and_not_a_crash(tmp_path):
    run = study.run(SMALL, tmp_path / "run", overrides=["training.learning_rate=1e30"])
    found = {f.audit: f for f in run.findings}
    assert found["coverage"].verdict == "leak"
    assert found["fingerprint"].verdict == "nothing_to_say"
    assert found["fingerprint"].code == "not_finite"


def test_the_truth_of_another_trace_is_refused(copy, foreign):
    with pytest.raises(TraceError, match="is not the truth of"):
        study.audit(foreign, truth=copy / "truth", out=foreign.parent / "mixed")


def test_a_torn_round_is_named(copy):
    file = copy / "trace" / "round-00002.safetensors"
    file.write_bytes(file.read_bytes()[:-7])
    with pytest.raises(IntegrityError, match="round-00002"):
        study.audit(copy)


def test_results_that_cannot_be_written_are_refused(copy):
    with pytest.raises(TraceError, match="cannot write"):
        study.audit(copy, out=copy / "run.json" / "below")


def test_an_unknown_audit_is_refused(copy):
    with pytest.raises(UsageError, match="unknown audit"):
        study.audit(copy, ["fingerprnt"])


def test_truth_knows_what_the_trace_does_not(finished):
    truth = Truth.open(finished)
    assert truth.facts["seed"] == SMALL["seed"]
    assert len(truth.clients) == 4


def test_a_mistake_in_the_first_config_does_not_cost_the_folder(tmp_path):
    table = tmp_path / "t.csv"
    table.write_text("a,b,outcome\n" + "".join(f"{i},{i % 7},{i % 2}\n" for i in range(60)))
    out = tmp_path / "run"
    wrong = {"data": {"path": str(table), "label": "outcom"}, "federation": {"clients": 2}}
    with pytest.raises(DataError):
        study.run(wrong, out)
    right = {"data": {"path": str(table), "label": "outcome"}, "federation": {"clients": 2}}
    right["federation"]["rounds"] = 2
    assert study.run(right, out).results
    with pytest.raises(TraceError, match="another experiment"):
        study.run({**right, "seed": 5}, out)


def test_a_torn_result_is_named_and_can_be_made_again(tmp_path):
    study.run(
        {"data": {"name": "digits"}, "federation": {"clients": 3, "rounds": 2}}, tmp_path / "run"
    )
    (tmp_path / "run" / "results" / "fingerprint.json").write_text("{")
    with pytest.raises(IntegrityError, match="results changed"):
        study.report(tmp_path / "run")
    seal(tmp_path / "run", "results")
    with pytest.raises(Unreadable, match=r"fingerprint\.json") as refused:
        study.report(tmp_path / "run")
    assert "audit again" in refused.value.remedy


def test_a_result_of_an_earlier_version_is_not_guessed_at(tmp_path):
    config = {"data": {"name": "digits"}, "federation": {"clients": 3, "rounds": 2}}
    study.run({**config, "audits": {"coverage": {}}}, tmp_path / "run")
    file = tmp_path / "run" / "results" / "coverage.json"
    stamped = json.loads(file.read_text())
    for key in ("status", "need", "known"):
        del stamped["result"][key]
    file.write_text(json.dumps({**stamped, "not_applicable": None}))
    seal(tmp_path / "run", "results")
    (old,) = study.report(tmp_path / "run").findings
    assert (old.verdict, old.code) == ("failed", "old_result")


def test_a_single_run_refuses_to_choose_among_variants(tmp_path):
    compared = SMALL | {"compare": {"other": {"training": {"learning_rate": 0.2}}}}
    with pytest.raises(UsageError) as caught:
        study.run(compared, tmp_path / "run")
    assert "fedaudit.run" in caught.value.remedy
    assert "'other'" in caught.value.got
    assert not (tmp_path / "run").exists()
