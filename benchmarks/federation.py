"""Speed of federated training: fedaudit against a plain loop, Flower's simulation and pfl-research.

    python benchmarks/federation.py                    # environments for the peers on first use
    python benchmarks/federation.py --cases cnn,vae    # some cases only
    python benchmarks/federation.py --shell            # also a whole run from the shell

Every contestant is a process of its own (`peers/`), reads the same clients from the same file,
warms up with one round, and then times whole rounds: shuffling, gathering, training, averaging;
nothing is recorded. Repetitions are interleaved, and the table holds medians of the ratios within
a repetition: absolute speeds of a shared machine drift, ratios within a minute less so.
All may use the same cores: `--threads` torch threads in one process, or that many Flower workers
with one thread each.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path[:0] = [str(ROOT)]

from fedaudit.data.builtin import load  # noqa: E402
from fedaudit.randomness import Seed  # noqa: E402

PACKAGES = {
    "flower": ["torch>=2.6,<2.14", "flwr[simulation]>=1.41,<1.42"],
    "pfl": ["torch>=2.6,<2.14", "pfl[pytorch]"],
}
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "PYTHONWARNINGS": "ignore",
}
Result = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """One workload: who takes part, and how many rounds make one timing, for each contestant."""

    name: str
    model: str
    clients: int
    rate: float
    rounds: dict[str, int]
    note: str


CASES = (
    Case(
        "mlp-50",
        "mlp",
        50,
        0.1,
        {"fedaudit": 40, "loop": 4, "pfl": 4, "flower": 4},
        "digits, MLP 64-128-10, 36 examples each",
    ),
    Case(
        "mlp-500",
        "mlp",
        500,
        0.1,
        {"fedaudit": 6, "loop": 1, "pfl": 1, "flower": 1},
        "digits drawn with replacement, 36 each (the set has 1,797 records), MLP 64-128-10",
    ),
    Case(
        "cnn-20",
        "cnn",
        20,
        0.05,
        {"fedaudit": 3, "loop": 2},
        "synthetic 28x28 images, 64 each, channels (16, 32)",
    ),
    Case(
        "vae-20",
        "vae",
        20,
        0.001,
        {"fedaudit": 3, "loop": 2},
        "synthetic 28x28 images, 64 each, VAE 784-400-20",
    ),
)
BATCH = 16


def write_clients(case: Case, folder: Path) -> Path:
    """The case's examples, client by client, as every contestant reads them."""
    rng = np.random.default_rng(7)
    if case.model == "mlp":
        digits = load("digits", seed=Seed(7))
        n = len(digits)
        if case.clients <= 50:
            parts = np.array_split(rng.permutation(n), case.clients)
        else:
            parts = [rng.integers(0, n, 36) for _ in range(case.clients)]
        rows = np.concatenate(parts)
        x, y, sizes = digits.x[rows], digits.y[rows], [len(p) for p in parts]
    else:
        sizes = [64] * case.clients
        x = rng.random((sum(sizes), 1, 28, 28), dtype=np.float32)
        y = rng.integers(0, 10, sum(sizes))
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    file = folder / f"{case.name}.npz"
    np.savez(file, x=x, y=y, starts=starts, sizes=np.array(sizes))
    return file


def environment(peer: str, given: str | None) -> str:
    """The interpreter of a peer: the one given, or one of its own under .bench/."""
    if given:
        return given
    folder = ROOT / ".bench" / peer
    python = folder / "bin" / "python"
    done = folder / "installed"
    if not done.exists():
        print(f"installing {peer} into {folder} ...", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        install = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        subprocess.run([*install, *PACKAGES[peer]], check=True)
        done.touch()
    return str(python)


def child_environment(folder: Path) -> dict[str, str]:
    # bytecode is kept, or a peer would compile its imports anew in every process
    env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    path = os.pathsep.join([str(ROOT), str(HERE / "peers")])
    return env | QUIET | {"FLWR_HOME": str(folder / "flower-home"), "PYTHONPATH": path}


def call(python: str, contestant: str, work: dict[str, Any], folder: Path) -> Result:
    """One process of one contestant; its last line of output is the result."""
    script = HERE / "peers" / f"{contestant}_peer.py"
    begin = time.perf_counter()
    done = subprocess.run(
        [python, str(script), json.dumps(work)],
        capture_output=True,
        text=True,
        env=child_environment(folder),
        timeout=1800,
        check=False,
    )
    elapsed = time.perf_counter() - begin
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        raise SystemExit(f"{contestant} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    result: Result = json.loads(lines[-1])
    if not result["all_seconds"]:
        raise SystemExit(f"{contestant} timed nothing:\n{done.stderr[-4000:]}")
    return result | {"process": elapsed, "rate": result["client_steps"] / result["seconds"]}


def run_case(case: Case, options: argparse.Namespace, pythons: dict[str, str], folder: Path) -> Any:
    """Repetitions of one case, contestants interleaved: {contestant: [Result]}."""
    data = write_clients(case, folder)
    results: dict[str, list[Result]] = {c: [] for c in case.rounds if c in pythons}
    for repetition in range(options.repetitions):
        for contestant, collected in results.items():
            work = {
                "data": str(data),
                "model": case.model,
                "batch": BATCH,
                "rate": case.rate,
                "rounds": case.rounds[contestant],
                "repeat": options.inner,
                "threads": options.threads,
            }
            collected.append(call(pythons[contestant], contestant, work, folder))
        rates = ", ".join(f"{c} {r[-1]['rate']:,.0f}" for c, r in results.items())
        print(f"  {case.name} {repetition + 1}/{options.repetitions}: {rates}", flush=True)
    return results


def table(case: Case, results: dict[str, list[Result]]) -> list[Result]:
    """Median speed of every contestant, and median of fedaudit's ratio to it, with its range."""
    ours = [r["rate"] for r in results["fedaudit"]]
    rows = []
    print(f"\n{case.name}: {case.clients} clients, batch {BATCH}; {case.note}")
    print(f"  {'contestant':<26}{'client-steps/s':>16}{'fedaudit is':>14}{'range':>18}")
    for contestant, repetitions in results.items():
        theirs = [r["rate"] for r in repetitions]
        rows.append(_row(contestant, theirs, ours))
        if contestant == "flower":
            # start-up included: all steps of the process, warm-up round too, over its whole time
            whole = [_whole(r, case.rounds["flower"]) for r in repetitions]
            own = [_whole(r, case.rounds["fedaudit"]) for r in results["fedaudit"]]
            rows.append(_row("flower, start-up included", whole, own))
    return rows


def _whole(result: Result, rounds: int) -> float:
    steps = result["client_steps"] * (len(result["all_seconds"]) + 1 / rounds)
    return steps / result["process"]


def _row(name: str, theirs: list[float], ours: list[float]) -> Result:
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    row = {
        "contestant": name,
        "client_steps_per_second": statistics.median(theirs),
        "ratio": statistics.median(ratios),
        "lowest": min(ratios),
        "highest": max(ratios),
    }
    spread = f"{row['lowest']:.1f} to {row['highest']:.1f}"
    print(
        f"  {name:<26}{row['client_steps_per_second']:>16,.0f}{row['ratio']:>13.1f}x{spread:>18}",
        flush=True,
    )
    return row


def shell(options: argparse.Namespace, pythons: dict[str, str], folder: Path) -> Result:
    """Whole processes: 20 rounds from the shell, start-up included, and `import torch` alone."""
    env = child_environment(folder) | {"OMP_NUM_THREADS": str(options.threads)}
    data = write_clients(CASES[0], folder)
    seconds: dict[str, list[float]] = {"import torch": [], "fedaudit run": []}

    def clock(name: str, command: list[str]) -> None:
        begin = time.perf_counter()
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        seconds[name].append(time.perf_counter() - begin)
        if done.returncode:
            raise SystemExit(f"{name} failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")

    for repetition in range(options.repetitions):
        clock("import torch", [sys.executable, "-c", "import torch"])
        out = folder / f"run-{repetition}"
        run = ["run", "--set", "federation.rounds=20", "--out", str(out), "-q"]
        clock("fedaudit run", [sys.executable, "-m", "fedaudit", *run])
        if "flower" in pythons:
            work = {"data": str(data), "model": "mlp", "batch": BATCH, "rate": 0.1}
            work |= {"rounds": 19, "repeat": 1, "threads": options.threads}  # and one to warm up
            result = call(pythons["flower"], "flower", work, folder)
            seconds.setdefault("flower, 20 rounds of 50 clients", []).append(result["process"])
    print("\nfrom the shell, start-up included (fedaudit records, audits and writes a report)")
    for name, values in seconds.items():
        print(f"  {name:<34}{statistics.median(values):>8.2f} s")
    return {name: statistics.median(values) for name, values in seconds.items()}


def machine(options: argparse.Namespace) -> Result:
    load_average = os.getloadavg()
    facts = {
        "threads": options.threads,
        "cores": os.cpu_count(),
        "load_average": load_average,
        "python": platform.python_version(),
        "torch": version("torch"),
        "repetitions": options.repetitions,
    }
    print(
        f"{options.threads} threads on {facts['cores']} cores, load average "
        f"{load_average[0]:.2f}, Python {facts['python']}, torch {facts['torch']}, "
        f"medians of {options.repetitions} interleaved repetitions",
        flush=True,
    )
    return facts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = ",".join(c.name for c in CASES)
    parser.add_argument("--cases", default=names, help=f"comma-separated, of {names}; or none")
    parser.add_argument("--peers", default="loop,pfl,flower", help="contestants beside fedaudit")
    parser.add_argument("--flower-python", help="an interpreter that has flwr[simulation]")
    parser.add_argument("--pfl-python", help="an interpreter that has pfl[pytorch]")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--inner", type=int, default=3, help="timings per process, median taken")
    parser.add_argument("--shell", action="store_true", help="also time whole shell commands")
    parser.add_argument("--json", type=Path, help="write all figures here")
    options = parser.parse_args()
    if options.repetitions < 5:
        print("fewer than five repetitions: do not quote these figures")

    peers = [p for p in options.peers.split(",") if p]
    wanted = [c for c in CASES if c.name in options.cases.split(",")]
    pythons = {"fedaudit": sys.executable}
    if "loop" in peers:
        pythons["loop"] = sys.executable
    for peer, given in (("pfl", options.pfl_python), ("flower", options.flower_python)):
        used = any(peer in c.rounds for c in wanted) or (peer == "flower" and options.shell)
        if peer in peers and used:
            pythons[peer] = environment(peer, given)

    report: dict[str, Any] = {"machine": machine(options), "cases": {}}
    with tempfile.TemporaryDirectory(prefix="fedaudit-bench-") as name:
        folder = Path(name)
        for case in wanted:
            results = run_case(case, options, pythons, folder)
            report["cases"][case.name] = {
                **asdict(case),
                "table": table(case, results),
                "results": results,
            }
        if options.shell:
            report["shell"] = shell(options, pythons, folder)
    report["machine"]["load_average_after"] = os.getloadavg()
    print(f"\nload average at the end {os.getloadavg()[0]:.2f}")
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
