"""`fedaudit plan` as a user meets it."""

import json
from functools import partial

import numpy as np
import pytest

from fedaudit.audits.query_plan import audit_plan
from fedaudit.decide import query_plans as plan
from fedaudit.stats.query_algebra import added_by


@pytest.fixture
def command(tmp_path, monkeypatch, in_process):
    """Run `fedaudit plan ...` in this process and in an empty folder: code, out, err."""
    monkeypatch.chdir(tmp_path)

    return lambda *arguments: in_process("plan", *arguments)


DESIGN = ("design", "--clients", 6, "--threshold", 3, "--rounds", 12, "--runs", 20)


def test_a_leaking_plan_is_named_with_its_clients(command, tmp_path):
    (tmp_path / "p.csv").write_text("round,ann,bob,cy,dee\n1,1,1,1,0\n", encoding="utf-8")
    code, out, _ = command("check", "p.csv")
    assert code == 4
    assert "LEAK" in out
    assert "dee" in out
    code, out, _ = command("check", "p.csv", "--no-training", "--threshold", 3)
    assert code == 0
    assert "exposes fewer than 3 clients" in out
    code, out, _ = command("check", "p.csv", "--no-training", "--add", "ann,bob")
    assert "rank +1, would lay open cy; smallest group then 1" in out
    assert code == 4  # the plan itself keeps its promise, with that query it would not
    assert command("check", "p.csv", "--no-training")[0] == 0
    assert command("check", "p.csv", "--json")[0] == 4


def test_everybody_who_is_laid_open_is_named(command, tmp_path):
    (tmp_path / "q.csv").write_text("ann,bob,cy,di\n1,1,0,0\n1,0,0,0\n", encoding="utf-8")
    code, out, _ = command("check", "q.csv")
    assert code == 4
    assert "2 clients are laid open: ann, bob" in out


def test_a_plan_that_is_not_decided_is_not_certified(command, tmp_path, monkeypatch):
    """Round 1 is known to expose ten and no fewer, round 2 anything from 3 to 13."""
    rows = np.vstack([np.repeat(np.eye(4), 10, axis=1), np.random.default_rng(0).random((14, 40))])
    lines = [
        ",".join(map(str, (1 + (i > 3), *row))) for i, row in enumerate(rows.round().astype(int))
    ]
    head = ",".join(["round", *(f"c{i}" for i in range(40))])
    (tmp_path / "p.csv").write_text("\n".join([head, *lines]), encoding="utf-8")
    monkeypatch.setattr(plan, "audit_plan", partial(audit_plan, work=20_000))
    monkeypatch.setattr(plan, "added_by", partial(added_by, work=20_000))
    check = ("check", "p.csv", "--no-training", "--threshold")
    code, out, _ = command(*check, 8)
    assert code == 4
    assert "UNDECIDED: no group below 8 was found, none below 3 exists" in out
    assert "(round 2)" in out
    code, out, _ = command(*check, 3)
    assert code == 0
    assert "exposes fewer than 3 clients" in out  # what was proven, not what was found
    ten = ",".join(f"c{i}" for i in range(10))
    assert command(*check, 3, "--add", ten, "--round", 1)[0] == 0
    assert command(*check, 8, "--add", ten, "--round", 1)[0] == 4


def test_a_design_is_printed_written_and_passes_its_own_check(command, tmp_path):
    code, out, _ = command(*DESIGN, "--csv", "plan.csv")
    assert code == 0
    for word in ("partitions", "groups", "paired (published)", "rounds needed", "persistence"):
        assert word in out
    lines = (tmp_path / "plan.csv").read_text(encoding="utf-8").splitlines()
    assert lines[0].startswith("round,query,client-00,client-01")
    assert len(lines) == 1 + 12 * 2
    code, out, _ = command("check", "plan.csv", "--threshold", 3)
    assert code == 0
    assert "1 to 12" in out  # rounds that look the same share a line
    assert "exposes fewer than 3 clients" in out


def test_json_is_json(command):
    code, out, _ = command(*DESIGN, "--json", "--csv", "g.csv", "--design", "groups")
    found = json.loads(out)
    assert code == 0
    assert [d["name"] for d in found["designs"]][:3] == ["cycled", "balanced", "groups"]
    code, out, _ = command("check", "g.csv", "--json")
    found = json.loads(out)
    assert found["stacked"]["rank"] == 2
    assert found["rounds"]["1"]["min_support"] == 3


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("check", "none.csv"), 3, "cannot read none.csv"),
        (("check", "bad.csv"), 3, "line 2"),
        (("check", "fine.csv", "--threshold", 0), 2, "threshold"),
        (("check", "fine.csv", "--threshold", 3), 2, "number of clients"),
        (("check", "nobody.csv"), 3, "line 3"),
        (("check", "fine.csv", "--add", "zoe"), 2, "not a client"),
        (("check", "fine.csv", "--add", ","), 2, "has no clients"),
        (("check", "fine.csv", "--add", "a,0"), 2, "'a' twice"),
        (("check", "fine.csv", "--add", "a", "--round", 9), 2, "no round 9"),
        (("design", "--clients", 9, "--threshold", 5, "--rounds", 3), 2, "divided"),
        ((*DESIGN, "--design", "partition"), 2, "did you mean"),
        ((*DESIGN, "--error", 0.7), 2, "out of range"),
        ((*DESIGN, "--runs", 0), 2, "runs is out of range"),
        (("design", "--clients", 10, "--threshold", 1, "--rounds", 3), 2, "sum over one client"),
        (("design", "--clients", 10, "--threshold", 0, "--rounds", 3), 2, "at least 2"),
        ((*DESIGN, "--csv", "no/where.csv"), 3, "cannot write no/where.csv"),
        (("design", "--clients", 9), 2, "Missing option"),
    ],
)
def test_mistakes_end_with_words_and_a_code(command, tmp_path, arguments, code, words):
    (tmp_path / "bad.csv").write_text("a,b\n1,maybe\n", encoding="utf-8")
    (tmp_path / "fine.csv").write_text("a,b\n1,1\n", encoding="utf-8")
    (tmp_path / "nobody.csv").write_text("a,b\n1,1\n0,0\n", encoding="utf-8")
    got, _, err = command(*arguments)
    assert got == code
    assert words in err
    assert "Traceback" not in err
