"""`fedaudit audit --opacus`: what a user's own loop spent, beside what was linked."""

import contextlib
import io
import json
import sys

import numpy as np
import pytest

from fedaudit import cli
from fedaudit.accounting import Exposure, epsilon
from fedaudit.trace import SERVER, Recorder, Trace

CLIENTS = [f"site-{c}" for c in range(6)]


@pytest.fixture
def command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["fedaudit", *map(str, arguments)])
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                cli.main()
                code = 0
            except SystemExit as stop:
                code = stop.code or 0
        return code, out.getvalue(), err.getvalue()

    return run


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
        assert row["epsilon per record"] == pytest.approx(right, rel=1e-6)
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
    assert "epsilon per record" not in one_result(tmp_path / "seen")["per_client"][CLIENTS[0]]
    code, _, err = command(*asked, "--opacus", "state.json")
    assert code == 0, err
    rows = one_result(tmp_path / "seen")["per_client"]
    for c, name in enumerate(CLIENTS):
        right = spent(1.0, 10 * (c + 1), 1e-5)
        assert rows[name]["epsilon per record"] == pytest.approx(right, rel=1e-6)


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
