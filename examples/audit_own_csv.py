"""Audit your own table: one row per patient, and a column that says which hospital holds it.

    python examples/audit_own_csv.py [FOLDER]

Makes a small table (stand-in for yours), then runs the commands that one types: init, run, gate.
"""

import subprocess
import sys
from pathlib import Path

import numpy as np

POLICY = """
[policy]
confidence = 0.95

[[limit]]
name = "linkage"
metric = "fingerprint.linkage_accuracy"
at_most_times_chance = 1.5
why = "shuffled updates should not be linked to one hospital"
"""


def make_table(path: Path, rng: np.random.Generator) -> None:
    """600 patients of 6 hospitals; hospitals differ in who comes to them."""
    hospital = rng.integers(0, 6, 600)
    age = rng.normal(50 + 4 * hospital, 10)
    marker = rng.normal(0.3 * hospital, 1.0)
    ill = rng.random(600) < 1 / (1 + np.exp(-(marker + (age - 60) / 10)))
    columns = zip(hospital, age, marker, ill, strict=True)
    rows = [f"H{h},{a:.0f},{m:.2f},{'yes' if i else 'no'}" for h, a, m, i in columns]
    path.write_text("\n".join(["hospital,age,marker,outcome", *rows]) + "\n", encoding="utf-8")


def fedaudit(folder: Path, *words: str) -> int:
    """One command as it would be typed; its exit code."""
    print("\n$ fedaudit", *words, flush=True)
    return subprocess.run([sys.executable, "-m", "fedaudit", *words], cwd=folder).returncode


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    make_table(folder / "patients.csv", np.random.default_rng(1))
    (folder / "policy.toml").write_text(POLICY, encoding="utf-8")
    columns = ("--label", "outcome", "--client", "hospital")
    if fedaudit(folder, "init", "patients.csv", *columns, "--force"):
        sys.exit("init failed")
    # the seed is for the same figures every time; for data of your own leave it out
    if fedaudit(folder, "run", "fedaudit.toml", "--out", "run", "--quiet", "--seed", "1"):
        sys.exit("run failed")
    kept = fedaudit(folder, "gate", "run", "--policy", "policy.toml")
    print("\nexit code of the gate:", kept, "(0: kept, 4: broken or no evidence)")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "example-csv"))
