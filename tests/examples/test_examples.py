"""The example scripts, run as a reader would: each in a process and a folder of its own."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = {path.stem: path for path in sorted((ROOT / "examples").glob("*.py"))}


@pytest.fixture
def run_example(tmp_path):
    """Runs an example by name; gives the folder that it filled and what it printed."""

    def run(name):
        environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [sys.executable, "-W", "error", str(EXAMPLES[name]), str(tmp_path / "made")],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert [p.name for p in tmp_path.iterdir()] == ["made"]  # nothing is written elsewhere
        return tmp_path / "made", done.stdout

    return run


def findings(folder):
    """Audit -> verdict and measured value, as stored."""
    stored = json.loads((folder / "findings.json").read_text(encoding="utf-8"))
    return {f["audit"]: (f["verdict"], (f["estimate"] or {}).get("value")) for f in stored}


def test_all_are_short_and_all_are_run_here():
    for name, path in EXAMPLES.items():
        assert len(path.read_text(encoding="utf-8").splitlines()) < 60, name
        assert "subprocess" not in path.read_text(encoding="utf-8"), name
        assert f'run_example("{name}")' in Path(__file__).read_text(encoding="utf-8")


def test_a_table_of_patients_is_audited_and_fails_the_gate(run_example):
    made, printed = run_example("audit_own_csv")
    verdict, share = findings(made / "run" / "patients-shuffled")["fingerprint"]
    assert verdict == "leak"
    assert share > 1 / 6  # six hospitals
    named = findings(made / "run" / "patients-as-it-is")["fingerprint"]
    assert named == ("leak", 1.0)  # names on the updates need no attack
    assert "all limits kept: False" in printed
    report = (made / "run" / "report.html").read_text(encoding="utf-8")
    assert "client 1" in report
    assert not re.search(r"\bH[0-5]\b", report)  # hospitals' names are not the reader's business


def test_a_loop_of_other_software_is_recorded_and_linked(run_example):
    made, printed = run_example("record_foreign_training")
    verdict, share = findings(made / "trace-as-shuffle")["fingerprint"]
    assert verdict == "leak"
    assert share > 1 / 5
    assert f"{100 * share:.1f} %" in printed
    assert (made / "trace-as-shuffle" / "report.html").is_file()


def test_noise_takes_linkage_away_and_costs_accuracy(run_example):
    made, printed = run_example("compare_protections")
    told = json.loads((made / "study" / "study.json").read_text(encoding="utf-8"))["runs"]
    assert [r["variant"] for r in told] == ["shuffled", "DP-SGD"]
    plain, noisy = (findings(made / "study" / r["path"])["fingerprint"] for r in told)
    assert plain[0] == "leak"
    assert noisy[1] < plain[1]
    assert "better" in printed
    assert "fingerprint: leak -> " in printed
    assert (made / "study" / "report.html").is_file()
