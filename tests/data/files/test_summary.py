from __future__ import annotations

import json
from pathlib import Path

from fedaudit.data.builtin import load
from fedaudit.data.files import describe, read
from fedaudit.randomness import Seed


def test_describe_counts(patients: Path) -> None:
    data = read(patients, label="diagnosis", client="hospital")
    summary = describe(data)
    assert summary["records"] == 5
    assert summary["classes"] == {"sick": 2, "well": 3}
    assert summary["clients"]["sizes"] == {"north": 3, "south": 2}
    assert (summary["clients"]["count"], summary["clients"]["largest"]) == (2, 3)
    assert summary["features"] == data.x.shape[1]
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary
    docs = describe(load("docs", seed=Seed(0)))
    assert docs["characters"] > 400_000
    assert "shape" not in docs
