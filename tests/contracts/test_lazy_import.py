"""Starting must be quick: what is heavy is loaded when it is first used."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HEAVY = {
    "torch",
    "matplotlib",
    "plotly",
    "sklearn",
    "scipy",
    "statsmodels",
    "networkx",
    "pandas",
    "PIL",
    "dp_accounting",
    "transformers",
    "flwr",
}


def loaded_after(code: str) -> set[str]:
    """Top-level modules in a fresh interpreter after `code`, and `scipy.stats` by its full name."""
    program = f"{code}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    path = os.pathsep.join(p for p in (str(ROOT), os.environ.get("PYTHONPATH")) if p)
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    names = json.loads(done.stdout.splitlines()[-1])
    return {name.split(".")[0] for name in names} | {n for n in names if n == "scipy.stats"}


def test_the_probe_sees_what_is_loaded():
    assert "networkx" in loaded_after("import networkx")
    assert "scipy.stats" in loaded_after("import scipy.stats")


def test_importing_the_package_loads_nothing_heavy():
    assert loaded_after("import fedaudit; dir(fedaudit); fedaudit.__version__") & HEAVY == set()


@pytest.mark.parametrize("room", ["stats", "federation/topology.py"])
def test_modules_load_nothing_heavy_by_themselves(room):
    place = ROOT / "fedaudit" / room
    files = [place] if place.is_file() else sorted(place.glob("*.py"))
    names = [".".join(f.relative_to(ROOT).with_suffix("").parts) for f in files]
    assert names
    code = "\n".join(f"import {name.removesuffix('.__init__')}" for name in names)
    assert loaded_after(code) & HEAVY == set()


def test_everyday_statistics_do_without_the_slow_libraries():
    code = """
import numpy as np
from fedaudit.stats import clustering, combine, epsilon, intervals, roc
rng = np.random.default_rng(0)
intervals.wilson(5, 10)
intervals.clopper_pearson(5, 10)
intervals.mean([1.0, 2.0])
intervals.bootstrap(np.arange(9.0), rng=rng, interval="bca")
member = np.arange(2000) < 500
scores = rng.normal(size=2000)
roc.auc(scores, member)
roc.true_positive_rate_at(scores, member, 0.01)
epsilon.from_scores(scores, member, rng=rng)
combine.fisher([0.1, 0.2])
clustering.scores([0, 1, 1], [1, 0, 0])
clustering.chance([0, 1, 0, 1], [0, 0, 1, 1], rng=rng, draws=100)
"""
    loaded = loaded_after(code)
    assert loaded & {"scipy.stats", "sklearn", "statsmodels", "pandas"} == set()
    assert "scipy" in loaded
