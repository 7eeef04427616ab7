"""Audit your own table: one row per patient, and a column that says which hospital holds it.

    python examples/audit_own_csv.py [FOLDER]

Makes a small table (stand-in for yours), writes a config for it, runs and audits a federation with
one client per hospital, and checks it against a limit.
"""

import sys
from pathlib import Path

import numpy as np

import fedaudit

POLICY = {
    "limit": [
        {
            "name": "linkage",
            "metric": "fingerprint.linkage_accuracy",
            "at_most_times_chance": 1.5,
            "why": "shuffled updates should not be linked to one hospital",
        }
    ]
}


def make_table(path: Path, rng: np.random.Generator) -> None:
    """600 patients of 6 hospitals; hospitals differ in who comes to them."""
    hospital = rng.integers(0, 6, 600)
    age = rng.normal(50 + 4 * hospital, 10)
    marker = rng.normal(0.3 * hospital, 1.0)
    ill = rng.random(600) < 1 / (1 + np.exp(-(marker + (age - 60) / 10)))
    columns = zip(hospital, age, marker, ill, strict=True)
    rows = [f"H{h},{a:.0f},{m:.2f},{'yes' if i else 'no'}" for h, a, m, i in columns]
    path.write_text("\n".join(["hospital,age,marker,outcome", *rows]) + "\n", encoding="utf-8")


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    table, config = folder / "patients.csv", folder / "fedaudit.toml"
    make_table(table, np.random.default_rng(1))
    asked = {"label": "outcome", "client": "hospital", "shuffle": True}
    written = fedaudit.init(table, config, **asked, force=True)
    print(written.to_frame()[["setting", "value", "why"]].to_string(index=False), "\n")
    # the seed is for the same figures every time; for data of your own leave it out
    study = fedaudit.run(written, folder / "run", seed=1)
    shown = ["variant", "audit", "verdict", "value", "low", "high", "chance"]
    print(study.to_frame()[shown].to_string(index=False), "\n")
    gate = fedaudit.gate(study, POLICY)
    print(gate.to_frame()[["limit", "run", "status", "bound", "at"]].to_string(index=False))
    print("all limits kept:", gate.passed)
    print("report:", study.report)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "example-csv"))
