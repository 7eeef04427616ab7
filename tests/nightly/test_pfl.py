"""pfl-research, recorded by the plain recorder: the trace is what its simulation computed."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedaudit.trace import SERVER, Trace

pytest.importorskip("pfl", reason="pfl-research is not installed: make nightly-pfl")
pytestmark = pytest.mark.nightly
ROOT = Path(__file__).resolve().parents[2]


def test_the_next_model_is_the_weighted_mean_of_the_uploads(tmp_path):
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    done = subprocess.run(
        [sys.executable, ROOT / "examples/pfl/train.py", tmp_path / "trace"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path, "PFL_PYTORCH": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    trace = Trace.open(tmp_path / "trace")
    assert trace.manifest.complete
    assert len(trace.rounds) == 3
    view = trace.seen_by(SERVER)
    for t in trace.rounds:
        updates = view.updates(t)
        assert sorted(updates.senders) == [f"user-{i}" for i in range(5)]
        assert sorted(updates.weights) == [8, 9, 10, 11, 12]
        mean = view.received(t, "user-0") + np.average(
            updates.rows, axis=0, weights=updates.weights
        )
        after = view.released() if t == trace.rounds[-1] else view.received(t + 1, "user-0")
        np.testing.assert_allclose(mean, after, atol=1e-6)
