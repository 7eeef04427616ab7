"""Kill a run at random moments, let it go on, and compare: `python -m fuzz.kills 100 --seed 7`.

Every kill is SIGKILL, at a moment drawn between the start of the process and the time that a whole
run takes. A run is resumed until it ends, then the next one starts in an empty folder. Its trace
has to be that of a run that nobody stopped, bit for bit.
"""

from __future__ import annotations

import argparse
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from fuzz.corpus import config, table

ROUNDS = 12
PATIENCE = 120.0
"""Seconds after which a run that was not killed hangs."""


@dataclass
class Killed:
    """`kills` that met a running process, `finished` runs, and what was wrong."""

    kills: int = 0
    finished: int = 0
    wrong: list[str] = field(default_factory=list)


def command(toml: Path, out: Path) -> list[str]:
    return [sys.executable, "-m", "fedaudit", "run", str(toml), "--out", str(out), "-q"]


def start(toml: Path, out: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command(toml, out),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        start_new_session=True,
    )


def trace_of(out: Path) -> str:
    from fedaudit.trace import Trace

    return Trace.open(out / "trace").sha256


def prepare(root: Path) -> Path:
    """A config of many short rounds."""
    from fedaudit.setup.toml import to_toml

    root.mkdir(parents=True, exist_ok=True)
    data = table(root / "hospitals.csv")
    toml = root / "run.toml"
    toml.write_text(to_toml(config(data, federation={"rounds": ROUNDS}, audits={"coverage": {}})))
    return toml


def kill_runs(root: Path, kills: int, seed: int) -> Killed:
    """At least `kills` kills of one run after another, and what came of them."""
    toml = prepare(root)
    began = time.monotonic()
    whole = start(toml, root / "whole")
    _, said = whole.communicate(timeout=PATIENCE)
    if whole.returncode:
        raise RuntimeError(f"the run that nobody stops fails: {said.decode()}")
    takes = time.monotonic() - began
    expected, rng, found = trace_of(root / "whole"), Random(seed), Killed()
    while found.kills < kills and not found.wrong:
        out = root / f"run-{found.finished}"
        _until_done(toml, out, rng, takes, found)
        if not found.wrong:
            if trace_of(out) != expected:
                found.wrong.append(f"{out.name} ended with another trace")
            found.finished += 1
            shutil.rmtree(out)
    return found


def _until_done(toml: Path, out: Path, rng: Random, takes: float, found: Killed) -> None:
    """Start, kill and resume one run until it ends by itself; at most ten kills."""
    for left in range(10, -1, -1):
        run = start(toml, out)
        try:
            _, said = run.communicate(timeout=rng.uniform(0, takes) if left else PATIENCE)
        except subprocess.TimeoutExpired:
            if not left:
                found.wrong.append("a run that was not killed hangs")
            os.killpg(run.pid, signal.SIGKILL)
            run.communicate()
            found.kills += 1
            continue
        if run.returncode:
            found.wrong.append(f"resuming ended with {run.returncode}: {said.decode()[-800:]}")
        return


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m fuzz.kills")
    parser.add_argument("kills", type=int, nargs="?", default=100)
    parser.add_argument("--seed", type=int, default=None)
    given = parser.parse_args()
    seed = secrets.randbelow(1 << 32) if given.seed is None else given.seed
    print(f"seed {seed}; again with: python -m fuzz.kills {given.kills} --seed {seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="fedaudit-kills-") as scratch:
        found = kill_runs(Path(scratch), given.kills, seed)
    print(f"{found.kills} kills, {found.finished} runs ended with the same trace")
    for text in found.wrong:
        print(f"wrong: {text}")
    return 1 if found.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
