"""`fedaudit harden` as a command: exit codes, files, JSON, messages."""

import json
from pathlib import Path

import pytest

CONFIG = """\
seed = 4
[data]
name = "gaussian-mixture"
records = 160
dimension = 6
[task]
kind = "mlp"
hidden = [8]
[federation]
clients = 4
rounds = 2
[audits.fingerprint]
methods = ["greedy"]
"""
LIMITS = """\
[[limit]]
name = "links"
metric = "fingerprint.linkage_accuracy"
at_most_times_chance = 1.2
"""


@pytest.fixture
def command(tmp_path, monkeypatch, in_process):
    monkeypatch.chdir(tmp_path)
    Path("fed.toml").write_text(CONFIG)
    Path("limits.toml").write_text(LIMITS)

    return in_process


def test_limits_of_a_file_and_of_the_line_are_kept_by_the_written_config(command):
    cost = "accuracy_loss <= 5 points"
    search = ("harden", "fed.toml", "--limits", "limits.toml", "--limit", cost)
    code, out, err = command(*search, "--workers", 1, "--curve", 0, "--budget", "10m")
    assert code == 0
    assert "keeps every limit" in out
    assert "hardened.toml" in out
    assert err.startswith("harden 1/3")
    code, out, _ = command(*search, "--workers", 1, "--curve", 0, "--json")
    found = json.loads(out)
    assert code == 0
    assert found["succeeded"]
    assert found["reused"] == 5  # three ways, then the choice and its unprotected twin
    assert command("run", "fedaudit-harden/hardened.toml", "--out", "run", "-q")[0] == 0
    assert command("gate", "run", "--policy", "fedaudit-harden/policy.toml")[0] == 0


def test_what_cannot_be_kept_ends_with_its_own_exit_code(command):
    code, out, _ = command(
        *("harden", "fed.toml", "--limit", "accuracy >= 1", "--workers", 1, "--out", "none", "-q")
    )
    assert code == 4
    assert "no measured protection keeps accuracy (at least 1)" in " ".join(out.split())
    assert Path("none/nearest.toml").exists()
    assert not Path("none/hardened.toml").exists()


def test_mistakes_are_messages_with_a_remedy(command):
    for arguments, said in (
        ((), "no limit is given"),
        (("--limit", "epsilonn <= 8"), "did you mean 'epsilon'"),
        (("--limit", "epsilon <= 8", "--budget", "soon"), "--budget 10m"),
        (("--limit", "accuracy >= 0.9", "--limit", "accuracy <= 0.1"), "contradict"),
        (("--limits", "none.toml"), "cannot read the limits"),
    ):
        code, out, err = command("harden", "fed.toml", *arguments)
        assert code == 2
        assert said in err
        assert out == ""
        assert "Traceback" not in err
