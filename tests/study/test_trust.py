"""Code that a stored folder names is not run, and no file of the working folder hides a module."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedaudit import foreign, study
from fedaudit.errors import UntrustedCode
from fedaudit.setup.config import load
from fedaudit.study.seal import seal

ROOT = Path(__file__).resolve().parents[2]

OWN = """
from torch import nn
def build():
    return nn.Sequential(nn.Flatten(), nn.Linear(8, 4))
def score(task, parameters, x, y, noise):
    return task.losses(parameters, x, y, noise)
"""
HOSTILE = """
from pathlib import Path
Path({marker!r}).write_text(__name__)
"""


def config(name):
    return {
        "seed": 2,
        "data": {"name": "gaussian-mixture", "records": 120, "dimension": 8, "classes": 4},
        "task": {"kind": "module", "factory": f"{name}:build"},
        "federation": {"clients": 4, "rounds": 2},
        "training": {"batch_size": 8},
        "audits": {"coverage": {}, "two_stage_membership": {}},
    }


@pytest.fixture
def received(tmp_path, monkeypatch):
    """A run whose stored config names a module, which now writes a marker when it is imported."""
    name = "own_" + "".join(c if c.isalnum() else "_" for c in tmp_path.name)
    monkeypatch.chdir(tmp_path)
    (tmp_path / f"{name}.py").write_text(OWN, encoding="utf-8")
    monkeypatch.setattr(sys, "path", [*sys.path])
    study.run(config(name), tmp_path / "run")
    sys.modules.pop(name)
    marker = tmp_path / "marker"
    (tmp_path / f"{name}.py").unlink()
    (tmp_path / "run" / f"{name}.py").write_text(
        HOSTILE.format(marker=str(marker)) + OWN, encoding="utf-8"
    )
    monkeypatch.chdir(tmp_path / "run")
    yield tmp_path / "run", marker
    sys.modules.pop(name, None)


def failed(done):
    return {r.audit for r in done.results if r.status == "failed"}


def test_an_audit_does_not_import_what_the_folder_names(received):
    _, marker = received
    done = study.audit(".", fresh=True)
    assert not marker.exists()
    assert failed(done) == {"two_stage_membership"}
    (told,) = [r for r in done.results if r.audit == "two_stage_membership"]
    assert "`trust_code=True`" in told.need.remedy
    assert foreign.allowed() is None  # the block is left
    trusted = study.audit(".", trust_code=True)
    assert marker.exists()
    assert not failed(trusted)


def test_a_score_that_the_folder_names_is_not_imported(received):
    run, marker = received
    file = run / "config.toml"
    text = file.read_text(encoding="utf-8")
    name = next(run.glob("own_*.py")).stem
    changed = text.replace(
        "[audits.two_stage_membership]", f'[audits.two_stage_membership]\nscore_by = "{name}:score"'
    )
    assert changed != text
    file.write_text(changed, encoding="utf-8")
    seal(run, "config")  # a forger can do so too
    with pytest.raises(UntrustedCode):
        study.audit(".")
    assert not marker.exists()


def test_a_score_that_the_user_types_is_imported(received):
    run, marker = received
    name = next(run.glob("own_*.py")).stem
    typed = {"two_stage_membership": {"score_by": f"{name}:score"}}
    with pytest.raises(UntrustedCode):  # the score is the user's word, the model is the folder's
        study.audit(".", ["two_stage_membership"], settings=typed)
    assert marker.exists()


def test_the_command_says_how_to_trust(received, in_process):
    _, marker = received
    done = in_process("audit", ".", "-q", "--only", "two_stage_membership", "--seed", 5)
    assert done.code == 1
    assert not marker.exists()
    trusted = in_process("audit", ".", "-q", "--only", "two_stage_membership", "--trust-code")
    assert trusted.code == 0
    assert marker.exists()


def test_reading_a_stored_config_imports_nothing(received):
    run, marker = received
    load(run / "truth" / "config.toml")
    assert not marker.exists()


@pytest.mark.parametrize("name", ["json", "numpy", "typing", "typer", "fedaudit_helper"])
def test_no_file_of_the_working_folder_hides_a_module(tmp_path, name):
    marker = tmp_path / "marker"
    (tmp_path / f"{name}.py").write_text(HOSTILE.format(marker=str(marker)), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "fedaudit", "list"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert not marker.exists()


def test_the_working_folder_is_looked_up_last(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    (tmp_path / "json.py").write_text("loads = 3\n", encoding="utf-8")
    monkeypatch.delitem(sys.modules, "json")
    found = foreign.load_function("json:loads", expected="a reader", example="json:loads")
    assert callable(found)
    assert sys.path[-1] == ""
    assert sys.path[0] != ""


def test_workers_load_no_more_than_their_parent():
    from fedaudit.workers import fan_out

    with foreign.only({"json:loads"}):
        ((_, one),) = fan_out(_load, {"a": ("json:loads",)}, 1)
        ((_, other),) = fan_out(_load, {"b": ("json:dumps",)}, 1)
    assert one is True
    assert "json:dumps" in other.why


def _load(where):
    return callable(foreign.load_function(where, expected="a function", example=where))
