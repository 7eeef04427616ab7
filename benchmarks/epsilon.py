"""Bounds on epsilon from one run: time, cost of a rehearsal, coverage and tightness.

    python benchmarks/epsilon.py [--repeats 5] [--json FILE]
    python benchmarks/epsilon.py --table [--simulations 1000]      # minutes
    python benchmarks/epsilon.py --peer                            # needs jax-privacy (see below)

bounds     L0 and L1 from 5,000 coins, without and with the curves of the search still to compute.
rehearsal  a rehearsal with 1,000 canaries against the federation itself, trained and recorded.
table      coverage and medians of all bounds in simulated games of the declared mechanism, whose
           epsilon is therefore exactly the declared one.
peer       the auditor of jax-privacy on equal scores, in an environment of its own
           (`.bench/jax-privacy`, made on first use): equal bounds and the ratio of times.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics as middle
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from timing import Clock, interleaved, ratio

from fedaudit.accounting import Exposure, PrivacyCurve, calibrate
from fedaudit.audits.epsilon.canaries import Promise
from fedaudit.audits.epsilon.outcome import bound_of, ceiling_of
from fedaudit.audits.epsilon.scores import calls, guesses_on, log_ratio
from fedaudit.stats import epsilon as bounds
from fedaudit.stats.intervals import clopper_pearson_bounds

DELTA = 1e-5
RECORD = Exposure(sampling_rate=0.1, steps=5, rounds=20)
CLIENT = Exposure(sampling_rate=1.0, steps=1, rounds=20)
EPSILONS = (2.0, 4.0, 8.0, 16.0)
PEER = Path(__file__).resolve().parents[1] / ".bench" / "jax-privacy"


def promise(exposure: Exposure, epsilon: float) -> Promise:
    """A schedule whose noise meets `epsilon` at DELTA."""
    return Promise(
        exposure=exposure,
        multiplier=calibrate(epsilon, exposure, DELTA),
        clip=1.0,
        epsilon=epsilon,
        delta=DELTA,
        unit="record",
        relation="add_or_remove" if exposure.sampling_rate < 1 else "zero_out",
        records=1000,
    )


# -- simulated games -------------------------------------------------------------------------------


def ratios(p: Promise, coins: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Log-likelihood ratios (m,) of a game whose canaries are independent."""
    e = p.exposure
    total = np.zeros(len(coins))
    variance = e.steps * p.multiplier**2
    for _ in range(e.rounds):
        draws = rng.binomial(e.steps, e.sampling_rate, len(coins)) * coins
        seen = draws + np.sqrt(variance) * rng.standard_normal(len(coins))
        total += log_ratio(seen, variance, e.steps, e.sampling_rate)
    return total


def simulated(p: Promise, m: int, runs: int, seed: int) -> Iterator[dict[str, float]]:
    """Every bound at 95 % from one game after the other."""

    @lru_cache
    def one_curve(guesses: int, right: int) -> float:
        return bound_of(m, guesses, right, p, 0.95)

    @lru_cache
    def all_coins(right: int) -> float:
        share = float(clopper_pearson_bounds(right, m, 0.05)[0])
        return p.epsilon_of_share(share)

    for run in range(runs):
        rng = np.random.default_rng([seed, run])
        coins = rng.random(m) < 0.5
        found = ratios(p, coins, rng)
        call = calls(found, np.zeros(m, dtype=np.int64), p.curve().total_variation)
        made = call != 0
        right = int(((call > 0) == coins)[made].sum())
        guesses = int(made.sum())
        yield {
            "L0": bounds.coins_bound(m, guesses, right, delta=DELTA),
            "L1": one_curve(guesses, right),
            "L2": all_coins(int(((found > 0) == coins).sum())),
        }


def betting(p: Promise, runs: int, seed: int) -> list[float]:
    """Bounds from 300 rehearsals of 100 canaries; shares of right guesses are drawn exactly."""
    rng = np.random.default_rng([seed, 1])
    coins = rng.random(200_000) < 0.5
    share = float(((ratios(p, coins, rng) > 0) == coins).mean())
    drawn = rng.binomial(100, share, (runs, 300)) / 100
    return [p.epsilon_of_share(bounds.rehearsals_bound(own)) for own in drawn]


def table(runs: int, m: int = 2000) -> list[dict[str, Any]]:
    out = []
    for kind, exposure in (("record", RECORD), ("client", CLIENT)):
        for epsilon in EPSILONS:
            p = promise(exposure, epsilon)
            exact = p.curve().epsilon_at(DELTA)
            found = list(simulated(p, m, runs, int(epsilon)))
            row: dict[str, Any] = {"kind": kind, "declared": epsilon, "games": runs, "coins": m}
            columns = {name: [f[name] for f in found] for name in ("L0", "L1", "L2")}
            columns["betting"] = betting(p, runs, int(epsilon))
            for name, values in columns.items():
                row[name] = middle.median(values)
                row[f"{name} covers"] = float(np.mean([v <= exact + 1e-9 for v in values]))
            guesses = guesses_on(m, p.curve().total_variation)
            row["ceiling"] = ceiling_of(m, guesses, p, 0.95)
            out.append(row)
            print(json.dumps(row), flush=True)
    return out


# -- time ------------------------------------------------------------------------------------------


def bounds_in_time(repeats: int) -> dict[str, Any]:
    p = promise(RECORD, 8.0)

    def fresh() -> None:
        from fedaudit import accounting

        accounting._curve.cache_clear()
        accounting._composed_losses.cache_clear()
        bound_of(5000, 500, 430, p, 0.95)

    taken = interleaved(
        {
            "L0": lambda: bounds.coins_bound(5000, 500, 430, delta=DELTA),
            "L1 with new curves": fresh,
            "L1 with known curves": lambda: bound_of(5000, 500, 430, p, 0.95),
        },
        repeats,
        warm=True,
    )
    return {name: middle.median(each) for name, each in taken.items()}


def rehearsal(repeats: int, hidden: int) -> dict[str, Any]:
    """Digits at twenty clients with DP-SGD: a rehearsal against the run, both recorded."""
    from fedaudit.audits.epsilon import EpsilonAudit
    from fedaudit.knowledge.rehearsal import rehearsals_of
    from fedaudit.randomness import Seed
    from fedaudit.setup.config import load
    from fedaudit.setup.prepare import build
    from fedaudit.trace import MemoryRecorder

    federation, _ = build(load(WORKLOAD | {"task": {"kind": "mlp", "hidden": [hidden]}}))
    audit = EpsilonAudit()
    taken = interleaved(
        {
            "run": lambda: federation.run(MemoryRecorder(**federation.about())),
            "rehearsal": lambda: rehearsals_of(audit, federation, federation.party, Seed(1)),
        },
        repeats,
        warm=True,
    )
    return {
        "seconds": {name: middle.median(each) for name, each in taken.items()},
        "rehearsal over run": ratio(taken["rehearsal"], taken["run"]),
    }


WORKLOAD: dict[str, Any] = {
    "seed": 1,
    "data": {"name": "digits"},
    "federation": {"clients": 20, "rounds": 20},
    "training": {"learning_rate": 0.1, "batch_size": 16, "epochs": 2},
    "protections": {"dp_sgd": {"noise_multiplier": 1.0}},
}


# -- the peer --------------------------------------------------------------------------------------

GAMES = [(m, shift, seed) for m in (1000, 5000) for shift in (1.0, 2.0, 3.0) for seed in range(3)]
"""Canaries, mean score of inserted ones, seed. Scores at or above 2 are guessed as inserted."""
THRESHOLD = 2.0
PEER_CODE = """
import json, sys, time
import numpy as np
from jax_privacy import auditing
out = []
for m, shift, seed in json.loads(sys.argv[1]):
    rng = np.random.default_rng(seed)
    scores = rng.normal(shift, 1, m // 2), rng.normal(0, 1, m // 2)
    chosen = auditing.Explicit(float(sys.argv[2]))
    start = time.perf_counter()
    auditor = auditing.CanaryScoreAuditor(*scores)
    low = auditor.epsilon_one_run(0.05, 1e-5, threshold_strategy=chosen)
    middle = time.perf_counter()
    gaussian = auditor.epsilon_one_run_fdp(0.05, 1e-5, threshold_strategy=chosen)
    out.append((float(low), float(gaussian), middle - start, time.perf_counter() - middle))
print(json.dumps(out))
"""


def gaussian_bound(m: int, guesses: int, right: int) -> float:
    """[FDPOneRun] for Gaussian mechanisms, as the peer has it: the largest refuted shift."""
    low, high = 1e-6, 50.0

    def curve(shift: float) -> PrivacyCurve:
        return PrivacyCurve(np.zeros(1), np.zeros(1), shift)

    if not bounds.f_dp_refutes(m, guesses, right, curve(low).least_false, 0.05):
        return 0.0
    while high - low > 1e-9:
        middle_shift = 0.5 * (low + high)
        refuted = bounds.f_dp_refutes(m, guesses, right, curve(middle_shift).least_false, 0.05)
        low, high = (middle_shift, high) if refuted else (low, middle_shift)
    return curve(low).epsilon_at(DELTA)


def against_peer(python: Path) -> dict[str, Any]:
    """Bounds and times on equal scores and the same threshold."""
    done = subprocess.run(
        [python, "-c", PEER_CODE, json.dumps(GAMES), str(THRESHOLD)],
        capture_output=True,
        text=True,
        check=True,
    )
    rows = {"L0": ([], []), "L1, Gaussian": ([], [])}
    for (m, shift, seed), theirs in zip(GAMES, json.loads(done.stdout), strict=True):
        rng = np.random.default_rng(seed)
        inside, outside = rng.normal(shift, 1, m // 2), rng.normal(0, 1, m // 2)
        right = int((inside >= THRESHOLD).sum())
        guesses = right + int((outside >= THRESHOLD).sum())
        own = {
            "L0": lambda m=m, r=guesses, v=right: bounds.coins_bound(m, r, v, delta=DELTA),
            "L1, Gaussian": lambda m=m, r=guesses, v=right: gaussian_bound(m, r, v),
        }
        for at, (name, bound) in enumerate(own.items()):
            apart, faster = rows[name]
            apart.append(abs(bound() - theirs[at]))
            faster.append(theirs[2 + at] / middle.median(interleaved({"": bound}, 3)[""]))
    return {
        name: {"largest difference": max(apart), "times faster": middle.median(faster)}
        for name, (apart, faster) in rows.items()
    }


def peer_python() -> Path:
    python = PEER / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", PEER], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "jax-privacy"], check=True)
    return python


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--cpu", action="store_true", help="seconds of computing, not on the wall")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--simulations", type=int, default=1000)
    parser.add_argument("--peer", action="store_true")
    parser.add_argument("--peer-python", type=Path, help="an interpreter that has jax-privacy")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.cpu:
        Clock.now = staticmethod(time.process_time)
    print("load average", os.getloadavg())
    out: dict[str, Any]
    if args.table:
        out = {"table": table(args.simulations)}
    elif args.peer or args.peer_python:
        out = {"peer": against_peer(args.peer_python or peer_python())}
    else:
        out = {
            "bounds": bounds_in_time(args.repeats),
            "rehearsal": {hidden: rehearsal(args.repeats, hidden) for hidden in (128, 1024)},
        }
    print(json.dumps(out, indent=2))
    print("load average", os.getloadavg())
    if args.json:
        args.json.write_text(json.dumps(out, indent=2), encoding="utf-8")


if __name__ == "__main__":
    main()
