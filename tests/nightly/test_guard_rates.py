"""Long statistics: error rates of `fedaudit guard` on models that it was not calibrated on."""

import pytest

from fedaudit.protections.guard.calibration import shipped
from reproductions.guard import run

pytestmark = pytest.mark.nightly


def test_false_alarms_over_honest_runs(monkeypatch):
    """Whole runs of 20 rounds, of the kinds that were calibrated on, with other seeds."""
    known = run.HELD_OUT[: run.CALIBRATED]
    monkeypatch.setattr(run, "HELD_OUT", known)
    rows = run.false_alarms(shipped(), 7)
    for checks in ("weights", "all"):
        alarms = sum(r["runs"]["count"] for r in rows if r["checks"] == checks)
        # 1 % of about 60 runs; the level itself varies from calibration to calibration, and at 3 %,
        # where one calibration in 60 may lie, 6 or more would happen once in 100
        assert alarms < 6


def test_detection_of_both_adversaries():
    """At least 95 % of planted models, as published and lightly disguised."""
    rows = run.detection(shipped(), 60)
    heavy = ("noise 30%", "noise 50%", "noise 100%", "adaptive")
    light = [r for r in rows if not r["disguise"].startswith(heavy)]
    assert len(light) > 30
    for r in light:
        assert r["found"]["low"] > 0.9, r
    found = sum(r["found"]["count"] for r in light)
    assert found >= 0.95 * sum(r["found"]["n"] for r in light)
