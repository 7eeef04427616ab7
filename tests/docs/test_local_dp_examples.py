"""What the pages on local DP and active membership show is run as it stands there."""

import re
import tomllib
from pathlib import Path

import numpy as np

from fedaudit.setup.config import load
from fedaudit.setup.prepare import build
from fedaudit.trace import MemoryRecorder, MemoryTruth

DOCS = Path(__file__).resolve().parents[2] / "docs"


def blocks(page, language):
    return re.findall(rf"```{language}\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)


def test_the_example_of_local_dp_runs_on_a_plain_table(tmp_path):
    """Columns from 0 to 1, as the page says: no mean of all clients is taken before they are
    randomised, and the promise is that of the mechanism."""
    rng = np.random.default_rng(1)
    rows = [[*r, int(r[0] > 0.5)] for r in rng.random((80, 3)).round(3).tolist()]
    lines = [",".join(map(str, row)) for row in rows]
    (tmp_path / "own.csv").write_text("\n".join(["a,b,c,y", *lines]) + "\n")
    example, by_column = blocks("local-dp.md", "toml")
    config = load(
        {
            "data": {"path": str(tmp_path / "own.csv"), "label": "y"},
            "federation": {"clients": 4, "rounds": 1},
            **tomllib.loads(example),
        }
    )
    assert config.data["standardise"] is False
    federation, facts = build(config)
    recorder = MemoryRecorder(layouts=federation.layouts(), federation=federation.describe())
    federation.run(recorder, MemoryTruth(facts))
    seen = federation.clients_data.x.numpy()
    assert set(np.unique(seen.astype(float).round(6))) <= {0.0, 0.333333, 0.666667, 1.0}
    (hook,) = federation.protections
    assert hook.declare()["exact_epsilon"] == 3.0

    names = {"path": str(tmp_path / "own.csv"), "label": "y"}
    text = (tmp_path / "own.csv").read_text()
    (tmp_path / "own.csv").write_text(text.replace("a,b,c,y", "age,pressure,c,y"))
    given = {"data": names, "federation": {"clients": 4}, **tomllib.loads(example + by_column)}
    given["protections"]["local_dp"]["bounds"]["pressure"] = [0, 250]
    (hook,) = build(load(given))[0].protections
    assert (hook.low, hook.high) == ((0.0, 0.0, 0.0), (120.0, 250.0, 1.0))


def test_the_python_of_active_membership_runs(capsys):
    (example,) = blocks("active-membership.md", "python")
    exec(compile(example, "active-membership.md", "exec"), {})
    first, about_one = map(float, capsys.readouterr().out.split())
    assert 0.5 < first <= 1.0
    assert 0.3 < about_one <= 1.0
