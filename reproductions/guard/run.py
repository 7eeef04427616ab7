"""Calibrate `fedaudit guard`, and measure its error rates on models that it was not calibrated on.

python -m reproductions.guard.run calibrate
python -m reproductions.guard.run evaluate [--quick]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from multiprocessing import Pool
from pathlib import Path
from typing import Any

import numpy as np

from fedaudit.protections.guard import Calibration, HonestRun, guard
from fedaudit.protections.guard.calibration import SHIPPED
from fedaudit.protections.guard.guard import UNITS
from fedaudit.randomness import Seed
from fedaudit.stats.intervals import clopper_pearson
from reproductions.guard import honest, planted

RESULTS = Path(__file__).with_name("results.json")
FIRST, SCALING, RANKED = 30, 50, 149
"""The seed of the first honest run; runs for the scale of the checks, and for the ranks."""
WITHOUT = ("rewritten", "silent", "one_record")
"""Checks that need more than the weights."""

HELD_OUT: tuple[tuple[str, str, str | None, int], ...] = (
    ("mlp", "digits", None, 30),
    ("cnn", "digits", None, 12),
    ("vit", "digits", None, 6),
    ("gpt", "docs", None, 5),
    ("lora", "docs", None, 5),
    ("pretrained gpt", "docs", None, 2),
    ("logistic", "digits", None, 8),
    ("wide mlp", "digits", None, 3),
    ("words mlp", "words", None, 8),
    ("mlp", "breast-cancer", None, 10),
    ("mlp", "gaussian-mixture", None, 8),
    ("mlp", "breast-cancer, not scaled", None, 5),
    ("vae", "digits", None, 5),
    ("mlp", "digits", "orthogonal", 5),
    ("vit", "digits", "orthogonal", 2),
)
"""(architecture, data set, how it trains, runs): from breast-cancer on, of no kind that was
calibrated on."""
CALIBRATED = 9
"""So many of them are of kinds that were."""


def calibrate(out: Path, scaling: int = SCALING, ranked: int = RANKED) -> Calibration:
    runs: list[HonestRun] = []
    with Pool(2, _single) as pool:
        for one in pool.imap(_calibrated, range(FIRST, FIRST + scaling + ranked)):
            runs.append(one)
            print(f"run {len(runs)}/{scaling + ranked}: {one.kind}", file=sys.stderr, flush=True)
    table = tabulated(runs, scaling)
    table.write(out)
    return table


def tabulated(runs: list[HonestRun], scaling: int) -> Calibration:
    """The first runs set the scale, the others are ranked."""
    kinds = Counter(r.kind.split(",")[0] for r in runs[scaling:])
    middle, end = FIRST + scaling, FIRST + len(runs)
    source = {
        "made_by": "python -m reproductions.guard.run calibrate",
        "seeds": f"{FIRST} to {middle - 1} for the scale, {middle} to {end - 1} ranked",
        "models": f"{honest.ROUNDS} rounds of every run: what was sent, from the first model on",
        "kinds": dict(sorted(kinds.items())),
        "data": "digits; docs for language models; bags of words; at most 300 records",
        "training": "5 clients; SGD, Adam, DP-SGD or noise on updates, half or 80 % of each "
        "matrix pruned, biases from zero or one constant, output layer from zero",
    }
    return Calibration.of(runs[:scaling], runs[scaling:], UNITS, source)


def _single() -> None:
    import torch

    torch.set_num_threads(1)


def _calibrated(number: int) -> HonestRun:
    return honest.largest(honest.run(number))


def _alarms(job: tuple[Calibration, float, int, str, str, str | None]) -> Any:
    """Of one honest run: alarms (models, 2) from the weights and from all checks, by which, and
    models on which nothing can be said."""
    table, level, number, model, data, how = job
    name, _, scale = data.partition(", ")
    one = honest.run(
        number, model=model, data=name, condition=how, prefix="held out", scaled=not scale
    )
    called, by, unsaid = [], Counter[str](), 0
    before = None
    for state in one.states:
        report = guard(
            state,
            before,
            one.records,
            level,
            module=None if one.records is None else one.module,
            calibration=table,
        )
        weights = {c.name: c.value for c in report.checks if c.name not in WITHOUT}
        called.append([table.p_value(weights) <= level, report.flagged])
        by.update(c.name for c in report.alarms)
        unsaid += report.verdict == "nothing_to_say"
        before = state
    return np.array(called), by, unsaid


def false_alarms(
    table: Calibration, most: int | None = None, level: float = 0.01
) -> list[dict[str, Any]]:
    """Honest runs of other seeds: whole runs with an alarm in any round, and single models."""
    rows = []
    with Pool(2, _single) as pool:
        for which, (model, data, how, count) in enumerate(HELD_OUT):
            first = 100_000 + 1_000 * which
            per_kind = min(count, most or count)
            jobs = [(table, level, first + i, model, data, how) for i in range(per_kind)]
            done = pool.map(_alarms, jobs, chunksize=1)
            by: Counter[str] = sum((b for _, b, _ in done), Counter())
            for i, checks in enumerate(("weights", "all")):
                rows.append(
                    {
                        "model": model,
                        "data": data,
                        "how": how or "mixed",
                        "checks": checks,
                        "runs": _rate(sum(bool(a[:, i].any()) for a, _, _ in done), per_kind),
                        "models": _rate(
                            sum(int(a[:, i].sum()) for a, _, _ in done),
                            sum(len(a) for a, _, _ in done),
                        ),
                        "nothing_to_say": sum(u for _, _, u in done),
                        "by": dict(by),
                    }
                )
                print(rows[-1], file=sys.stderr, flush=True)
    return rows


def _detected(job: tuple[Calibration, float, str, str, int]) -> tuple[int, Counter[str]]:
    """How many of some planted models are found, and by which checks."""
    table, level, group, name, each = job
    found, by = 0, Counter[str]()
    for i in range(each):
        rng = Seed(i).generator(f"guard/planted/{group}")
        report = guard(planted.GROUPS[group][name](rng), level=level, calibration=table)
        found += report.verdict == "planted"
        by.update(c.name for c in report.alarms)
    return found, by


def detection(table: Calibration, each: int, level: float = 0.01) -> list[dict[str, Any]]:
    """Planted models by disguise, from the weights alone."""
    rows = []
    cases = [(group, name) for group, own in planted.GROUPS.items() for name in own]
    with Pool(2, _single) as pool:
        jobs = [(table, level, group, name, each) for group, name in cases]
        for (group, name), (found, by) in zip(cases, pool.imap(_detected, jobs), strict=True):
            rows.append({"adversary": group, "disguise": name, "found": _rate(found, each)})
            rows[-1]["by"] = {k: v / each for k, v in by.most_common()}
            print(rows[-1], file=sys.stderr, flush=True)
    return rows


def _rate(count: int, n: int) -> dict[str, float]:
    e = clopper_pearson(count, n)
    return {"count": count, "n": n, "value": e.value, "low": e.low, "high": e.high}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("what", choices=("calibrate", "evaluate"))
    parser.add_argument("--out", type=Path, help="where the table or the results go")
    parser.add_argument("--quick", action="store_true", help="a few runs of each kind")
    given = parser.parse_args(arguments)
    if given.what == "calibrate":
        sizes = (4, 8) if given.quick else (SCALING, RANKED)
        calibrate(given.out or SHIPPED, *sizes)
        return
    table = Calibration.read()
    results = {
        "level": 0.01,
        "runs_ranked": len(table.runs),
        "detection": detection(table, 5 if given.quick else 60),
        "false_alarms": false_alarms(table, 2 if given.quick else None),
    }
    (given.out or RESULTS).write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
