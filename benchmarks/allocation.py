"""Noise allocation: Newton on the gap against bisection (the paper's way) and scipy's brentq.

    python benchmarks/allocation.py [--clients 1000,10000000] [--repeats 5] [--json FILE]

All three get the same leverage and return K and every client's variance, which is timed too.
Bisection and brentq solve sum a / (K - l) = U for K on (max l, max l + n a / U] as far as
floating-point numbers go: bisection until no number lies between, brentq at its finest tolerance.
Residuals are |sum sigma^2 / U - 1| of the variances that come out, for
log-normal leverage and for one client that dominates a large budget, where K and max l agree in
nearly all their digits.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable

import numpy as np
from scipy.optimize import brentq

from fedaudit.protections.noise_allocation import allocate
from fedaudit.protections.noise_allocation.solver import solve, spent, variances

ROUNDS, BATCH = 100, 32
A = ROUNDS / (2 * BATCH**2)
FINEST = 4 * np.finfo(np.float64).eps  # that brentq takes
Solver = Callable[[np.ndarray, float], tuple[float, np.ndarray]]


def ours(leverage: np.ndarray, budget: float) -> tuple[float, np.ndarray]:
    root = solve(leverage, A, budget)
    return root.worst_case, variances(leverage, A, root)


def bisection(leverage: np.ndarray, budget: float) -> tuple[float, np.ndarray]:
    """What the paper describes, as it is usually written."""
    low = leverage.max()
    high = low + A * len(leverage) / budget
    while low < (middle := (low + high) / 2) < high:
        if np.sum(A / (middle - leverage)) > budget:
            low = middle
        else:
            high = middle
    return high, A / (high - leverage)


def brent(leverage: np.ndarray, budget: float) -> tuple[float, np.ndarray]:
    def f(k: float) -> float:
        return float(np.sum(A / (k - leverage)) - budget)

    # K is above max l; a hair more on the right, or rounding leaves no change of sign
    low = np.nextafter(leverage.max(), np.inf)
    high = leverage.max() + A * len(leverage) / budget * (1 + 1e-9)
    k = brentq(f, low, max(high, np.nextafter(low, np.inf)), xtol=1e-300, rtol=FINEST)
    return k, A / (k - leverage)


SOLVERS: dict[str, Solver] = {"fedaudit": ours, "bisection": bisection, "brentq": brent}


def lognormal(n: int, rng: np.random.Generator) -> tuple[np.ndarray, float]:
    return rng.lognormal(size=n), n * 0.01


def dominant(n: int, rng: np.random.Generator) -> tuple[np.ndarray, float]:
    values = rng.random(n)
    values[n // 2] = 1000.0
    return values, 5e9


CASES = {"log-normal": lognormal, "one dominant": dominant}


def timed(leverage: np.ndarray, budget: float, repeats: int) -> dict[str, float]:
    """Median seconds of each solver, interleaved; small problems are repeated within a turn."""
    inner = max(1, 200_000 // len(leverage))
    taken: dict[str, list[float]] = {name: [] for name in SOLVERS}
    for _ in range(repeats):
        for name, solver in SOLVERS.items():
            start = time.perf_counter()
            for _ in range(inner):
                solver(leverage, budget)
            taken[name].append((time.perf_counter() - start) / inner)
    return {name: statistics.median(t) for name, t in taken.items()}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", default="1000,10000000")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json")
    args = parser.parse_args()
    print(f"cores {os.cpu_count()}, load {os.getloadavg()[0]:.1f}")
    rows = []
    for n in (int(part) for part in args.clients.split(",")):
        for case, make in CASES.items():
            leverage, budget = make(n, np.random.default_rng(0))
            seconds = timed(leverage, budget, args.repeats)
            print(f"n = {n:,}, {case}")
            for name, solver in SOLVERS.items():
                _, sigma_squared = solver(leverage, budget)
                residual = abs(spent(sigma_squared) / budget - 1)
                ratio = seconds[name] / seconds["fedaudit"]
                print(
                    f"  {name:<10} {seconds[name] * 1e3:10.3f} ms   {ratio:6.1f}x   "
                    f"residual {residual:.1e}"
                )
                row = {"n": n, "case": case, "solver": name, "ratio": ratio}
                rows.append({**row, "residual": residual})
        start = time.perf_counter()
        allocate(leverage, rounds=ROUNDS, batch_size=BATCH, budget=budget)
        print(f"  allocate, with all checks and bounds: {time.perf_counter() - start:.3f} s")
    print(f"load {os.getloadavg()[0]:.1f}")
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
