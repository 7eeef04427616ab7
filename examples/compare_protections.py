"""One federation with and without noise: a study of two variants, and what differs between them.

    python examples/compare_protections.py [FOLDER]

`compare` lays changes over the plain config. Every variant becomes a run of its own, with one
report over all of them. `fedaudit.diff` says what differs beyond the intervals.
"""

import sys
from pathlib import Path

import fedaudit

CONFIG = {
    "seed": 3,
    "data": {"name": "digits"},
    "task": {"kind": "mlp", "hidden": [16]},
    "federation": {"clients": 10, "rounds": 6},
    "training": {"learning_rate": 0.5, "batch_size": 16},
    "protections": {"shuffle": {}},
    "audits": {"coverage": {}, "fingerprint": {}},
    "compare": {
        "base": "shuffled",
        "DP-SGD": {"protections": {"dp_sgd": {"noise_multiplier": 2.0}}},
    },
}


def main(folder: Path) -> None:
    study = fedaudit.run(CONFIG, folder / "study")
    shuffled, noisy = study.runs
    (change,) = fedaudit.diff(shuffled, noisy)
    shown = ["audit", "measure", "change", "first", "second", "low", "high"]
    print(change.to_frame()[shown].to_string(index=False), "\n")
    for verdict in change.verdicts:
        print(f"{verdict.audit}: {verdict.first} -> {verdict.second} ({verdict.change})")
    print("accuracy:", shuffled.metrics["accuracy"], "->", noisy.metrics["accuracy"])
    print("report over both:", study.report)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "example-compare"))
