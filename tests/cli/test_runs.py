"""`fedaudit run`, `report`, `audit` as commands: what was stopped, what is not there, and
`--opacus`: what a user's own loop spent, beside what was linked."""

import importlib
import json
import shutil

import numpy as np
import pytest

from fedaudit.accounting import Exposure, epsilon
from fedaudit.study import study
from fedaudit.study.lock import alone_in
from fedaudit.trace import SERVER, Recorder, Trace

CLIENTS = [f"site-{c}" for c in range(6)]


@pytest.fixture
def command(tmp_path, monkeypatch, in_process):
    monkeypatch.chdir(tmp_path)
    return in_process


@pytest.fixture
def foreign(tmp_path):
    """A trace as other software writes it: named uploads, no truth."""
    rng = np.random.default_rng(0)
    base = rng.normal(size=(len(CLIENTS), 40)).astype(np.float32)
    recorder = Recorder(tmp_path / "trace", like={"w": np.zeros((20, 2), np.float32)})
    for _ in range(4):
        with recorder.round() as wire:
            for name in CLIENTS:
                wire.send("model", SERVER, name, {"w": np.zeros((20, 2), np.float32)})
            for name, own in zip(CLIENTS, base, strict=True):
                row = own + 0.3 * rng.normal(size=40)
                wire.send("delta", name, SERVER, {"w": row.reshape(20, 2).astype(np.float32)})
    recorder.close()
    return Trace.open(tmp_path / "trace")


def state(z, steps):
    from opacus.accountants import RDPAccountant

    accountant = RDPAccountant()
    for _ in range(steps):
        accountant.step(noise_multiplier=z, sample_rate=0.05)
    return accountant.state_dict()


def spent(z, steps, delta):
    return epsilon(Exposure(sampling_rate=0.05, steps=steps, rounds=1), z, delta)


def one_result(folder):
    stored = json.loads((folder / "results" / "fingerprint.json").read_text())
    return stored["result"]


def test_the_state_of_one_accountant_stands_beside_what_was_linked(command, foreign, tmp_path):
    (tmp_path / "state.json").write_text(json.dumps(state(1.1, 40)))
    asked = ["audit", "trace", "--as", "shuffle", "--only", "fingerprint"]
    code, _, err = command(*asked, "--opacus", "state.json", "--delta", "1e-6", "--out", "seen")
    assert code == 0, err
    result = one_result(tmp_path / "seen")
    right = spent(1.1, 40, 1e-6)
    assert set(result["per_client"]) == set(CLIENTS)
    for row in result["per_client"].values():
        assert row["epsilon (record)"] == pytest.approx(right, rel=1e-6)
    notes = " ".join(result["notes"])
    assert "opacus spends epsilon" in notes
    assert "void" in notes  # this trace is linkable
    page = (tmp_path / "seen" / "report.html").read_text()
    assert f"opacus: epsilon {right:,.4g} per record at delta 1e-06" in page
    assert "40 steps recorded by Opacus" in page
    # the report can be written again, and an audit without the option keeps what was handed over
    code, _, err = command("report", "seen")
    assert code == 0, err
    assert "opacus: epsilon" in (tmp_path / "seen" / "report.html").read_text()
    code, _, err = command(*asked, "--out", "seen")
    assert code == 0, err
    assert one_result(tmp_path / "seen") == result


def test_every_client_has_its_own_state_and_another_state_is_another_score(
    command, foreign, tmp_path
):
    own = {name: state(1.0, 10 * (c + 1)) for c, name in enumerate(CLIENTS)}
    (tmp_path / "state.json").write_text(json.dumps(own))
    asked = ["audit", "trace", "--as", "shuffle", "--only", "fingerprint", "--out", "seen"]
    assert command(*asked)[0] == 0
    assert "epsilon (record)" not in one_result(tmp_path / "seen")["per_client"][CLIENTS[0]]
    code, _, err = command(*asked, "--opacus", "state.json")
    assert code == 0, err
    rows = one_result(tmp_path / "seen")["per_client"]
    for c, name in enumerate(CLIENTS):
        right = spent(1.0, 10 * (c + 1), 1e-5)
        assert rows[name]["epsilon (record)"] == pytest.approx(right, rel=1e-6)


def test_without_truth_the_promise_is_in_the_report_alone(command, tmp_path):
    recorder = Recorder(tmp_path / "trace", like={"w": np.zeros((4, 2), np.float32)})
    rng = np.random.default_rng(1)
    for _ in range(3):
        with recorder.round() as wire:
            for _ in range(5):
                row = rng.normal(size=(4, 2)).astype(np.float32)
                wire.send("delta", "anonymous", SERVER, {"w": row})
    recorder.close()
    (tmp_path / "state.json").write_text(json.dumps(state(1.1, 40)))
    code, _, err = command("audit", "trace", "--only", "fingerprint", "--opacus", "state.json")
    assert code == 0, err
    page = (tmp_path / "trace-audit" / "report.html").read_text()
    assert f"opacus: epsilon {spent(1.1, 40, 1e-5):,.4g} per record" in page


@pytest.mark.parametrize(
    ("text", "word"),
    [
        (None, "could not be read"),
        ("{", "could not be read"),
        ("[1, 2]", "could not be read"),
        ('{"history": [[1.0, 2.0, 3]]}', "Opacus"),
        ('{"history": "none"}', "Opacus"),
        ('{"site-9": {"history": [[1.0, 0.1, 3]]}}', "site-9"),
    ],
)
def test_other_files_are_refused(command, foreign, tmp_path, text, word):
    if text is not None:
        (tmp_path / "state.json").write_text(text)
    code, _, err = command(
        "audit", "trace", "--as", "shuffle", "--only", "fingerprint", "--opacus", "state.json"
    )
    assert code == 2
    assert word in err
    assert "expected:" in err
    assert "Traceback" not in err


def test_a_delta_out_of_range_is_refused(command, foreign, tmp_path):
    (tmp_path / "state.json").write_text(json.dumps(state(1.1, 4)))
    code, _, err = command("audit", "trace", "--opacus", "state.json", "--delta", "2")
    assert code == 2
    assert "delta" in err
    # a delta alone
    code, _, err = command("audit", "trace", "--only", "coverage", "--delta", "1e-6")
    assert (code, "--delta needs --opacus" in err) == (2, True)


SMALL = """
[data]
name = "gaussian-mixture"
records = 60
[task]
kind = "mlp"
hidden = [2]
[federation]
clients = 3
"""
RUN = (
    SMALL
    + """rounds = 2
[audits.coverage]
"""
)


def test_a_run_is_asked_what_its_config_asks_and_records_that_nobody_asks_about_are_refused(
    command, tmp_path
):
    (tmp_path / "r.toml").write_text(RUN)
    (tmp_path / "mine.csv").write_text("a,b,y,site\n1,2,0,client-0\n")
    assert command("run", "r.toml", "--out", "run", "-q")[0] == 0
    code, out, err = command("audit", "run", "--json")
    assert code == 0, err
    assert {f["audit"] for f in json.loads(out)["findings"]} == {"coverage"}
    # the module is not there either: nobody would have looked
    given = ("--data", "mine.csv", "--model", "not_a_module:f", "--label", "y", "--client", "site")
    code, _, err = command("audit", "run", *given)
    assert code == 2
    assert "of the run's config: coverage" in err
    for word in ("expected:", "two_stage_membership", "try:"):
        assert word in err
    code, _, err = command("audit", "run", "--only", "query_plan", *given)
    assert (code, "to run: query_plan" in err) == (2, True)
    # where one does ask, the same options are looked at
    for name in ("two_stage_membership", "reconstruction"):
        code, _, err = command("audit", "run", "--only", name, *given)
        assert code == 2
        assert "not_a_module" in err


def test_settings_of_audits_and_of_records_can_be_given_for_a_stored_trace(command, tmp_path):
    (tmp_path / "r.toml").write_text(RUN + "[protections.shuffle]\n")
    assert command("run", "r.toml", "--out", "run", "-q")[0] == 0
    asked = ("audit", "run", "--only", "fingerprint", "--set")
    code, _, err = command(*asked, "audits.fingerprint.methods=['kmeans']", "-q")
    assert code == 0, err
    stored = json.loads((tmp_path / "run" / "results" / "fingerprint.json").read_text())
    assert "kmeans" in json.dumps(stored)
    assert "tracking" not in json.dumps(stored.get("settings", stored))
    assert "--set" in (tmp_path / "run" / "report.md").read_text()
    for given, words in (
        (("audits.fingerprint.method=1",), ("unknown key", "methods")),
        (("federation.rounds=3",), ("not a setting of an audit", "fedaudit run --set")),
        (("audits.two_stage_membership.records=4",), ("which does not run", "--only two_stage")),
        (("audits.nothing.records=4",), ("which does not run", "active_membership")),
        (("data.missing=drop",), ("no records", "--data")),
    ):
        code, _, err = command(*asked, *given)
        assert code == 2
        for word in words:
            assert word in err


def test_the_help_says_which_audits_run_by_default(command):
    code, out, _ = command("audit", "--help")
    assert code == 0
    plain = " ".join(out.replace("│", " ").split())
    assert "those of a run's config" in plain
    assert "default: all" not in plain


STUDY = (
    SMALL
    + """rounds = 3
[protections.shuffle]
[audits.fingerprint]
[compare]
base = "shuffled"
[compare.noise.protections.dp_sgd]
"""
)


def stop_after(monkeypatch, rounds):
    """Ctrl-C once so many rounds are recorded in all."""
    runs = importlib.import_module("fedaudit.study.run")  # the package has a function `run`
    heard = []
    inside = runs.simulate

    def counting(config, path, progress, **more):
        def hear(stage, done, total, note):
            progress(stage, done, total, note)
            heard.append(note)
            if stage == "train" and sum("loss" in n for n in heard) == rounds:
                raise KeyboardInterrupt

        inside(config, path, hear, **more)

    monkeypatch.setattr(runs, "simulate", counting)


@pytest.mark.parametrize("rounds", [2, 4])
def test_the_report_of_a_study_that_was_stopped_says_what_is_missing(
    command, tmp_path, monkeypatch, rounds
):
    (tmp_path / "s.toml").write_text(STUDY)
    with monkeypatch.context() as patched:
        stop_after(patched, rounds)
        code, _, err = command("run", "s.toml", "--out", "study", "-q")
    assert code == 130
    assert "complete results are kept" in err
    code, out, _ = command("report", "study")
    assert code == 0
    told = " ".join(out.split())
    if rounds < 3:
        assert "2 of 3 rounds are recorded so far" in told
        assert "Unfinished: not run yet: s, noise" in told
    else:
        assert "1 of 3 rounds are recorded so far" in told
    assert "report: study/report.html" in told


def test_a_part_that_was_not_begun_is_named_below_what_there_is(command, tmp_path, monkeypatch):
    (tmp_path / "s.toml").write_text(STUDY)
    with monkeypatch.context() as patched:
        stop_after(patched, 4)
        command("run", "s.toml", "--out", "study", "-q")
    shutil.rmtree(tmp_path / "study" / "s-noise")
    code, out, err = command("report", "study")
    assert (code, err) == (0, "")
    told = " ".join(out.split())
    assert "Unfinished: not run yet: s, noise." in told
    assert "report: study/report.html" in told
    assert "s-shuffled/report.html" not in told


def test_what_is_not_there_is_said_to_be_not_there(command, tmp_path):
    code, _, err = command("report", "nothing")
    assert code == 3
    assert "there is no run nothing" in err
    assert "no such folder" in err
    (tmp_path / "s.toml").write_text(STUDY)
    assert command("run", "s.toml", "--out", "study", "-q")[0] == 0
    code, _, err = command("audit", "study", "--truth", "elsewhere")
    assert code == 2
    assert "study/s-shuffled" in err
    assert "study/s-noise" in err


def test_stopped_while_planning_nothing_is_said_to_be_kept(command, tmp_path, monkeypatch):
    def stop(parts):
        raise KeyboardInterrupt

    (tmp_path / "s.toml").write_text(STUDY)
    monkeypatch.setattr(study, "estimate_costs", stop)
    code, _, err = command("run", "s.toml", "--out", "study")
    assert code == 130
    assert "stopped before anything began" in err
    assert "kept" not in err
    assert not (tmp_path / "study").exists()


def test_a_mistake_in_a_config_is_the_first_thing_that_a_log_says(command, tmp_path):
    (tmp_path / "s.toml").write_text(STUDY.replace("hidden", "hiden"))
    code, _, err = command("run", "s.toml")
    assert code == 2
    assert err.startswith("fedaudit: ")
    code, _, err = command("harden", "s.toml", "--limit", "accuracy >= 0.1")
    assert (code, err.startswith("fedaudit: ")) == (2, True)
    code, _, err = command("audit", "none")
    assert (code, err.startswith("fedaudit: ")) == (3, True)


def test_a_second_run_into_a_folder_is_told_that_another_is_at_work(command, tmp_path):
    (tmp_path / "s.toml").write_text(STUDY)
    with alone_in(tmp_path / "study"):
        code, _, err = command("run", "s.toml", "--out", "study", "-q")
    assert code == 2
    assert "another process is at work in study" in err


def test_a_study_ends_with_at_most_15_lines_and_verbose_with_all(command, tmp_path):
    (tmp_path / "s.toml").write_text(STUDY)
    code, out, err = command("run", "s.toml", "--out", "study")
    assert (code, err.count("\n") <= 7) == (0, True)
    lines = out.splitlines()
    assert len(lines) <= 15
    assert max(map(len, lines)) <= 80
    assert lines[-2].startswith("$ fedaudit ")
    assert lines[-1] == "report: study/report.html"
    _, told, _ = command("report", "study", "--verbose")
    assert "bound: none known; trust: " in " ".join(told.split())
    assert len(told.splitlines()) > len(lines)


def test_several_runs_make_one_index_with_the_limits_of_a_policy(command, tmp_path):
    (tmp_path / "s.toml").write_text(STUDY)
    command("run", "s.toml", "--out", "study", "-q")
    limit = '[[limit]]\nmetric = "fingerprint.linkage_accuracy"\nat_most = 0.4\n'
    (tmp_path / "policy.toml").write_text(limit)
    runs = ["study/s-shuffled", "study/s-noise"]
    code, out, _ = command("report", *runs, "--policy", "policy.toml", "--out", "index")
    assert code == 0
    assert "over 2 runs: index/index.html" in out
    html = (tmp_path / "index" / "index.html").read_text()
    assert html.count("limit fingerprint.linkage_accuracy") == 1
    assert 'href="../study/s-noise/report.html"' in html
    code, _, err = command("report", "study/s-noise", "--policy", "policy.toml")
    assert code == 2
    assert "a single run has no time line" in err
