"""`fedaudit audit --as`, repeated, and `--compare-as`: what a protection would have left."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from fedaudit.cli import app
from fedaudit.errors import UsageError
from fedaudit.protections import SecAggPlus, SecureSum
from fedaudit.study.auditing import audit
from fedaudit.trace import SERVER, Recorder


@pytest.fixture
def trace(tmp_path):
    """Three clients by name, with weights and a metric each, as Flower sends them."""
    rng = np.random.default_rng(3)
    like = {"layer.weight": np.zeros((4, 5), np.float32)}
    recorder = Recorder(
        tmp_path / "trace", like=like, federation={"hubs": ["server"], "clients": ["a", "b", "c"]}
    )
    for _ in range(2):
        with recorder.round() as messages:
            for name in "abc":
                messages.send("model", SERVER, name, like)
            for i, name in enumerate("abc"):
                own = {"layer.weight": rng.normal(size=(4, 5)).astype(np.float32)}
                messages.send(
                    "model", name, SERVER, own, weight=10.0 + i, metadata={"num-examples": 10 + i}
                )
    recorder.close()
    return tmp_path / "trace"


def outside(run):
    (coverage,) = run.results
    return coverage.notes


def test_secaggplus_leaves_what_an_ideal_sum_hides(trace):
    ideal = audit(trace, ["coverage"], as_if=[SecureSum()])
    real = audit(trace, ["coverage"], as_if=[SecAggPlus()])
    assert outside(ideal) == ()
    said = " ".join(outside(real))
    assert len(outside(real)) == 3
    assert "num-examples" in said
    assert "sender's name" in said
    assert "aggregation weights" in said
    assert real.results[0].status == ideal.results[0].status == "ok"


def called(*words):
    return CliRunner().invoke(app, [str(w) for w in words])


def test_protections_stand_side_by_side(trace):
    given = ["audit", trace, "--only", "coverage", "--compare-as", "shuffle"]
    done = called(*given, "--compare-as", "secaggplus", "--quiet")
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("coverage\n  as recorded ")
    assert "  as shuffle " in done.stdout
    assert "  as secaggplus " in done.stdout
    plain = json.loads(called(*given, "--compare-as", "secure_sum", "--json").stdout)
    assert list(plain) == ["as recorded", "as shuffle", "as secure_sum"]


def test_two_meanings_at_once_are_refused(trace):
    done = called("audit", trace, "--as", "shuffle", "--compare-as", "secure_sum")
    assert isinstance(done.exception, UsageError)
    assert "stands alone" in str(done.exception)
