"""One federation with and without noise: a study of two variants, and what differs between them.

    python examples/compare_protections.py [FOLDER]

`[compare]` lays changes over the plain config; every variant becomes a run of its own, and one
report stands over all of them. `fedaudit diff` then says what differs beyond the intervals.
"""

import subprocess
import sys
from pathlib import Path

CONFIG = """
seed = 3

[data]
name = "digits"

[task]
kind = "mlp"
hidden = [16]

[federation]
clients = 10
rounds = 6

[training]
learning_rate = 0.5
batch_size = 16

[protections.shuffle]

[audits.coverage]
[audits.fingerprint]

[compare]
base = "shuffled"

[compare."DP-SGD".protections.dp_sgd]   # the same federation, but for this
noise_multiplier = 2.0
"""


def fedaudit(folder: Path, *words: str) -> None:
    print("\n$ fedaudit", *words, flush=True)
    subprocess.run([sys.executable, "-m", "fedaudit", *words], cwd=folder, check=True)


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "images.toml").write_text(CONFIG, encoding="utf-8")
    fedaudit(folder, "run", "images.toml", "--out", "study", "--quiet")
    fedaudit(folder, "diff", "study/images-shuffled", "study/images-dp-sgd")
    print("\nreport over both:", folder / "study" / "report.html")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "example-compare"))
