"""docs/add-an-audit.md, executed: its audit, its line, its tests, and what a user then has."""

import importlib
import re
import sys
from pathlib import Path

import pytest

import fedaudit.audits
from fedaudit.audits import AUDITS, facts_of
from fedaudit.decide.gate import gate
from fedaudit.setup.config import load
from fedaudit.study.forecast import estimate_cost
from fedaudit.study.study import run

PAGE = Path(__file__).parents[2] / "docs" / "add-an-audit.md"
SMALL = {
    "seed": 5,
    "data": {"name": "digits"},
    "partition": {"kind": "dirichlet", "alpha": 0.5},
    "task": {"kind": "mlp", "hidden": [8]},
    "federation": {"clients": 8, "rounds": 4, "weighting": "size"},
    "protections": {"shuffle": {}},
    "audits": {"weight": {}},
}


def blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


@pytest.fixture
def added(tmp_path, monkeypatch):
    """The audit of the page in a folder of its own, registered by the page's line."""
    audit, line, tests = blocks()
    room = tmp_path / "audits"
    room.mkdir()
    (room / "weight.py").write_text(audit, encoding="utf-8")
    monkeypatch.setattr(fedaudit.audits, "__path__", [*fedaudit.audits.__path__, str(room)])
    ((name, place),) = eval("{" + line + "}").items()
    monkeypatch.setitem(AUDITS, name, place)
    facts_of.cache_clear()
    importlib.invalidate_caches()
    yield tests
    facts_of.cache_clear()
    sys.modules.pop("fedaudit.audits.weight", None)


def test_the_tests_of_the_page_pass(added):
    space: dict = {}
    exec(compile(added, "test_weight.py", "exec"), space)
    tests = [f for name, f in space.items() if name.startswith("test_")]
    assert len(tests) == 5
    for test in tests:
        test()


def test_one_file_and_one_line_are_enough(added, tmp_path):
    """Config, plan, report and gate know the audit; nothing else was told of it."""
    assert "weight" in {s.name for s in estimate_cost(load(SMALL)).stages}
    done = run(SMALL, out=tmp_path / "run")
    (found,) = done.findings
    assert (found.audit, found.measure, found.verdict) == ("weight", "linked", "leak")
    assert "give every client the same weight" in (tmp_path / "run/report.html").read_text("utf-8")
    limit = {"metric": "weight.linked", "at_most_times_chance": 1.5}
    assert not gate(tmp_path / "run", {"limit": [limit]}).passed
    summed = {**SMALL, "protections": {"secure_sum": {}}}
    run(summed, out=tmp_path / "summed")
    (check,) = gate(tmp_path / "summed", {"limit": [limit]}).checks
    assert (check.status, check.code) == ("passed", "nothing_left")
