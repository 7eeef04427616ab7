"""Every command takes a run, its trace, a study, or a folder that holds one of them."""

import json
import shutil

import pytest

from fedaudit.study import study as studies

CONFIG = {
    "seed": 5,
    "data": {"name": "gaussian-mixture", "records": 60, "dimension": 4},
    "task": {"kind": "mlp", "hidden": [4]},
    "federation": {"clients": 4, "rounds": 2},
    "audits": {"fingerprint": {}, "coverage": {}},
    "compare": {
        "base": "plain",
        "summed": {"protections": {"secure_aggregation": {"threshold": 2}}},
    },
}
POLICY = '[[limit]]\nmetric = "coverage.kinds_outside_protection"\nat_most = 9\n'


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    home = tmp_path_factory.mktemp("folders")
    done = studies.study(studies.plan([CONFIG]), home / "above" / "study")
    assert not done.failed
    (home / "policy.toml").write_text(POLICY)
    return home


@pytest.fixture
def command(made, monkeypatch, in_process):
    monkeypatch.chdir(made)
    return in_process


@pytest.fixture
def places(made):
    study = made / "above" / "study"
    listed = json.loads((study / "study.json").read_text())["runs"]
    plain, summed = (study / entry["path"] for entry in listed)
    return {
        "run": plain,
        "trace": plain / "trace",
        "study": study,
        "above": made / "above",
        "summed": summed,
    }


@pytest.mark.parametrize("place", ["run", "trace", "study", "above"])
@pytest.mark.parametrize(
    "line",
    ["gate {} --policy policy.toml", "power {}", "report {} -q", "verify {}", "diff {} {}",
     "audit {} --only coverage -q"],
)  # fmt: skip
def test_every_command_descends(command, places, line, place):
    code, out, err = command(*(word.format(places[place]) for word in line.split()))
    assert (code, err) == (0, "")
    assert out


def test_gate_and_verify_answer_for_every_run_below(command, places, made):
    _, out, _ = command("gate", places["above"], "--policy", "policy.toml", "--json")
    assert len(json.loads(out)["checks"]) == 2
    _, out, _ = command("verify", places["above"])
    assert [line for line in out.splitlines() if line.endswith(":") and " " not in line] == [
        "study:",
        f"{places['run'].name}:",
        f"{places['summed'].name}:",
    ]


def test_guard_and_plan_check_look_at_what_a_study_records(command, places):
    code, out, err = command("guard", places["study"], "--json")
    assert (code, err) in ((5, ""), (0, ""), (4, ""))
    assert {s["party"].partition(",")[0] for s in json.loads(out)} == {
        places["run"].name,
        places["summed"].name,
    }
    assert command("plan", "check", places["summed"])[0] in (0, 4)
    code, _, err = command("plan", "check", places["study"])
    assert code == 2
    assert f"fedaudit plan check {places['run']}" in err


def test_audits_of_a_study_stand_in_its_report(command, places, tmp_path):
    study = shutil.copytree(places["study"], tmp_path / "study")
    code, out, err = command("audit", study, "--only", "fingerprint", "--seed", "7", "-q")
    assert (code, err) == (0, "")
    assert "summed" in out
    assert command("verify", study)[0] == 0


def test_what_belongs_to_one_recording_is_refused_for_several(command, places):
    code, _, err = command("audit", places["study"], "--out", "elsewhere")
    assert code == 2
    assert "--out belongs to one recording" in err
    assert f"fedaudit audit {places['run']} --out elsewhere" in err


def test_the_next_command_of_a_foreign_trace_works(command, places, tmp_path):
    trace = shutil.copytree(places["trace"], tmp_path / "recorded")
    code, out, _ = command("audit", trace, "--only", "coverage")
    assert code == 0
    (step,) = [line for line in out.splitlines() if line.startswith("$ fedaudit ")]
    words = step.removeprefix("$ fedaudit ").split()
    code, out, err = command(*words, "-q", "--only", "coverage")
    assert (code, err) == (0, "")


def test_a_run_in_place_of_a_config_means_its_settings(command, places):
    code, out, err = command("run", places["run"], "--dry-run")
    assert code == 0
    assert "4 clients" in out
    code, out, err = command("run", places["study"], "--dry-run")
    assert code == 2
    assert "expected: a regular file" in err
