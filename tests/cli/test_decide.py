"""`fedaudit gate`, `diff` and `power` as commands: exit codes, files, messages."""

import json
import shutil
import tomllib
from pathlib import Path
from xml.etree import ElementTree

import pytest

from fedaudit import study
from fedaudit.study.seal import seal

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
def command(tmp_path, monkeypatch, in_process):
    monkeypatch.chdir(tmp_path)
    return in_process


def policy(text):
    Path("policy.toml").write_text(text)
    return "policy.toml"


KEPT = '[[limit]]\nname = "links"\nmetric = "fingerprint.linkage_accuracy"\nat_most = 1.0\n'
BROKEN = KEPT.replace("1.0", "0.0")
LOST = '[[limit]]\nname = "names"\nmetric = "attribution.clients_named"\nat_most = 3\n'


def test_the_exit_code_is_the_decision(command, finished):
    assert command("gate", finished, "--policy", policy(KEPT))[0] == 0
    assert command("gate", finished, "--policy", policy(BROKEN))[0] == 4
    assert command("gate", finished, "--policy", policy(KEPT + LOST))[0] == 4
    assert command("gate", finished, "--policy", policy(KEPT + LOST), "--allow", "names")[0] == 0
    assert command("gate", "nowhere", "--policy", policy(KEPT))[0] == 3
    assert command("gate", finished, "--policy", policy("[[limit]]"))[0] == 2
    assert command("gate", finished, "--policy", "none.toml")[0] == 2


def test_an_unknown_metric_is_a_message_with_the_nearest(command, finished):
    wrong = KEPT.replace("linkage_accuracy", "linkage_acuracy")
    code, out, err = command("gate", finished, "--policy", policy(wrong))
    assert code == 2
    assert out == ""
    assert "did you mean 'fingerprint.linkage_accuracy'?" in err
    assert "Traceback" not in err


def test_all_files_are_written_also_when_the_policy_fails(command, finished):
    code, out, _ = command(
        "gate", finished, "--policy", policy(BROKEN + LOST), "--junit", "j.xml", "--sarif",
        "s.sarif", "--json-file", "g.json",
    )  # fmt: skip
    assert code == 4
    assert "FAILED" in out
    assert "NO EVIDENCE" in out
    suite = ElementTree.parse("j.xml").getroot()
    assert (suite.get("failures"), suite.get("errors")) == ("1", "1")
    assert json.loads(Path("s.sarif").read_text())["version"] == "2.1.0"
    assert json.loads(Path("g.json").read_text())["counts"]["missing"] == 1


def test_a_policy_that_starts_from_a_run_is_kept_by_it_and_says_what_it_cannot_show(
    command, finished
):
    assert command("gate", finished, "--init", "first.toml")[0] == 0
    written = Path("first.toml").read_text()
    limits = {x["metric"]: x for x in tomllib.loads(written)["limit"]}
    assert limits["accuracy"]["at_least"] > 0
    assert any(name.startswith(("coverage.", "fingerprint.")) for name in limits)
    assert "1.5 x chance" in written
    assert command("gate", finished, "--policy", "first.toml")[0] == 0
    # a little tighter, and one limit at least breaks: they are no looser than they need be
    least = limits["accuracy"]["at_least"]
    Path("tight.toml").write_text(
        written.replace(f"at_least = {least}", f"at_least = {least + 0.01}")
    )
    assert command("gate", finished, "--policy", "tight.toml")[0] == 4


def test_json_goes_to_standard_output_alone(command, finished):
    code, out, _ = command("gate", finished, "--policy", policy(KEPT), "--json")
    assert code == 0
    assert json.loads(out)["passed"] is True


def test_a_place_that_cannot_be_written_is_a_usage_error(command, finished):
    code, _, err = command("gate", finished, "--policy", policy(KEPT), "--junit", "no/j.xml")
    assert code == 2
    assert "cannot write no/j.xml" in err


def test_the_example_policy_is_written_once(command, finished):
    assert command("gate", "--init", "example.toml")[0] == 0
    code, _, err = command("gate", "--init", "example.toml")
    assert code == 2
    assert "--force" in err
    assert command("gate", "--init", "example.toml", "--force")[0] == 0
    code, out, err = command("gate", finished, "--policy", "example.toml")
    assert code == 4, err  # nothing was promised, and nothing was asked of members
    assert "epsilon" in out


@pytest.mark.parametrize(
    "arguments",
    ["gate", "gate run", "gate --policy p", "gate --policy q --init p", "power"],
)
def test_an_incomplete_command_says_what_is_missing(command, arguments):
    code, _, err = command(*arguments.split())
    assert code == 2
    assert "try:" in err


def test_no_output_names_a_client(command, finished):
    text = KEPT.replace("linkage_accuracy", "share").replace("1.0", '0.0\nper = "client"')
    files = ("--junit", "j.xml", "--sarif", "s.sarif", "--json-file", "g.json")
    code, out, err = command("gate", finished, "--policy", policy(text), *files)
    assert code == 4
    for said in (out, err, *(Path(f).read_text() for f in files[1::2])):
        assert "client-0" not in said
    assert "client 4" in Path("g.json").read_text()


def test_a_diff_prints_and_can_fail(command, finished, tmp_path):
    other = Path(shutil.copytree(finished, tmp_path / "other"))
    file = other / "results" / "fingerprint.json"
    raw = json.loads(file.read_text())
    head = raw["result"]["estimates"]["linkage_accuracy"]
    head.update(value=1.0, low=0.999, high=1.0)
    file.write_text(json.dumps(raw))
    head.update(value=0.0, low=0.0, high=0.001)
    third = Path(shutil.copytree(finished, tmp_path / "third"))
    (third / "results" / "fingerprint.json").write_text(json.dumps(raw))
    for run in (other, third):
        seal(run, "results")
    code, out, _ = command("diff", "third", "other", "--all")
    assert code == 0
    assert "worse" in out
    assert "linkage" in out  # the name may be wrapped
    assert "MOVER" in out
    assert command("diff", "third", "other", "--fail-on-worse")[0] == 4
    assert command("diff", "other", "third", "--fail-on-worse")[0] == 0
    code, out, _ = command("diff", "third", "other", "--json")
    assert json.loads(out)["worse"] is True


def test_a_diff_fails_where_a_result_was_deleted_or_says_less(command, finished, tmp_path):
    less = Path(shutil.copytree(finished, tmp_path / "less"))
    (less / "results" / "fingerprint.json").unlink()
    seal(less, "results")
    code, out, _ = command("diff", finished, "less", "--fail-on-worse")
    assert code == 4
    assert "evidence lost: fingerprint: only in the first run" in out
    assert command("diff", "less", finished, "--fail-on-worse")[0] == 0
    raw = json.loads((finished / "results" / "fingerprint.json").read_text())
    raw["result"]["estimates"]["linkage_accuracy"] |= {"value": 1, "low": 0.99, "high": 1}
    raw["result"]["test"]["adjusted"] |= {"linkage_accuracy": 0.001}
    raw["result"]["test"]["decided"] = "linkage_accuracy"
    leak = json.dumps(raw)
    lost = {"status": "blind", "need": {"code": "no_truth", "what": "no truth"}, "known": False}
    raw["result"] |= {"headline": None, "estimates": {}, "bounds": {}, "test": None, **lost}
    for name, text in (("leaking", leak), ("mute", json.dumps(raw))):
        copy = Path(shutil.copytree(finished, tmp_path / name))
        (copy / "results" / "fingerprint.json").write_text(text)
        seal(copy, "results")
    for before, now in (("mute", "leaking"), ("leaking", "mute")):
        code, out, _ = command("diff", before, now, "--fail-on-worse")
        assert code == 4
        assert "(worse" in out


def test_a_diff_of_two_federations_is_refused(command, finished, tmp_path):
    study.run(SMALL | {"federation": {"clients": 3, "rounds": 3}}, tmp_path / "three")
    code, _, err = command("diff", finished, "three")
    assert code == 2
    assert "different federations" in err
    assert "4 and 3 clients" in err
    code, out, _ = command("diff", finished, "three", "--anyway")
    assert code == 0
    assert "different federations: 4 and 3 clients" in out


def test_power_prints_a_table_with_and_without_a_run(command, finished):
    code, out, _ = command("power", finished)
    assert code == 0
    assert "linkage_accuracy" in out
    assert "saw from" in out
    code, out, _ = command("power", "--audit", "fingerprint", "--clients", "50", "--json")
    assert code == 0
    (need,) = json.loads(out)["needs"]
    assert need["chance"] == pytest.approx(0.02)
    assert need["needed"] > 0
    code, _, err = command("power", finished, "--clients", "5")
    assert code == 2
    code, _, err = command("power", "--audit", "fingerprnt")
    assert code == 2
    assert "fingerprint" in err
