"""Measure the attribution tables on canaries and on marked text, keep figures, write the page.

python -m reproductions.attribution.run            all of it; continues where it stopped
python -m reproductions.attribution.run --quick    a small version, into a folder of its own
python -m reproductions.attribution.run --render   the page alone, from stored results
"""

from __future__ import annotations

import functools
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedaudit.audits.attribution import baselines, calibration
from fedaudit.results import Underpowered
from fedaudit.trace.store import write_atomically
from reproductions.attribution import overhead, page, setting
from reproductions.pieces import PAGE, parser

HERE = Path(__file__).resolve().parent

Row = dict[str, Any]
KINDS = ("fictitious", "kgw")


def _counts(flags: Any, run: setting.Played) -> Row:
    """Hits of marked, false alarms of benign clients."""
    return {
        "hits": int(flags[run.marked].sum()),
        "marked": int(run.marked.sum()),
        "alarms": int(flags[~run.marked].sum()),
        "benign": int((~run.marked).sum()),
    }


def methods(seed: int, unused: int, **changes: Any) -> Row:
    """Table 1: all methods on one run with the published defaults, T = 5."""
    run = setting.play(seed=seed, **changes)
    began = time.process_time()
    found = setting.read(setting.plan_of("published", run, _rng(seed)), run, unused=unused)
    seconds = time.process_time() - began
    assert found.published is not None
    assert found.published_z is not None
    safe = setting.read(setting.plan_of("safe", run, _rng(seed)), run, unused=unused)
    starts = run.models[:-1]
    influence = baselines.influence(run.gradients, run.updates)
    detector = baselines.fldetector_scores(run.models, run.updates)
    out = {
        "published threshold": found.published,
        "calibrated": found.named,
        "safe plan": safe.named,
        "direct oracle": baselines.direct(run.marks, starts, run.updates, unused=unused),
        "FLDetector": baselines.suspicious(detector, "kmeans"),
        "FLForensics, HDBSCAN": baselines.suspicious(influence, "hdbscan"),
        "FLForensics, k-means": baselines.suspicious(influence, "kmeans"),
    }
    z = baselines.global_test(run.marks, run.models[-1], unused=unused)
    own = found.published_z
    best = np.take_along_axis(own, own.mean(axis=0).argmax(axis=1)[None, :, None], axis=2)[..., 0]
    constants = calibration.assumption_constants(best, run.marked, _rng(seed))
    named = {
        k: None if isinstance(v, Underpowered) else [v.value, v.low, v.high]
        for k, v in vars(constants).items()
    }
    return {
        **{name: _counts(flags, run) for name, flags in out.items()},
        "global z": [float(v) for v in z],
        "constants": named,
        "quality": run.quality,
        "seconds": {"training": run.seconds, "attribution": seconds},
        "z": _mean_z(own, run),
    }


def _mean_z(own: Any, run: setting.Played) -> list[float | None]:
    """Mean over marked and over benign clients of the published Z, the largest over keys."""
    best = (own.sum(axis=0) / np.sqrt(run.rounds)).max(axis=1, initial=-np.inf)
    return [_mean(best[run.marked]), _mean(best[~run.marked])]


def trade_off(seed: int, unused: int, *, rounds: int = 10, **changes: Any) -> Row:
    """The headline: four plans on the same run."""
    run = setting.play(seed=seed, rounds=rounds, **changes)
    out = {}
    for name in ("published", "safe", "swapped", "fixed"):
        found = setting.read(setting.plan_of(name, run, _rng(seed)), run, unused=unused)
        out[name] = {
            **_counts(found.named, run),
            "queries": found.queries,
            "uploads": found.uploads,
            "smallest": found.smallest,
            "within": found.within,
            "across": found.across,
        }
    return out


def swept(seed: int, unused: int, **changes: Any) -> Row:
    """One cell of a sweep: the published plan, by its threshold and calibrated."""
    plan = {k: changes.pop(k) for k in ("others", "repeats") if k in changes}
    run = setting.play(seed=seed, **changes)
    made = setting.plan_of("published", run, _rng(seed), **plan)
    found = setting.read(made, run, unused=unused)
    assert found.published is not None
    assert found.published_z is not None
    total = found.published_z.sum(axis=0) / np.sqrt(run.rounds)
    best = total.max(axis=1, initial=-np.inf)
    return {
        "published": _counts(found.published, run),
        "calibrated": _counts(found.named, run),
        "z_marked": _mean(best[run.marked]),
        "z_benign": _mean(best[~run.marked]) if found.published_z.shape[2] else None,
    }


def _mean(values: Any) -> float | None:
    return float(np.mean(values)) if len(values) else None


def _rng(seed: int) -> np.random.Generator:
    return np.random.default_rng([seed, 7])


def pieces(quick: bool) -> dict[str, Callable[[int, int], Row]]:
    """Key -> what measures it, given a seed and the number of unused keys."""
    out: dict[str, Callable[[int, int], Row]] = {
        "methods": methods,
        "trade-off/5": lambda s, u: trade_off(s, u, rounds=5),
        "trade-off/10": trade_off,
        "trade-off/20": lambda s, u: trade_off(s, u, rounds=20),
    }

    def cell(name: str, **changes: Any) -> None:
        out[name] = lambda s, u: swept(s, u, **changes)

    for kind in KINDS:
        for way in ("fedit", "flora"):
            out[f"text/{kind}/{way}"] = functools.partial(methods, kind=kind, aggregation=way)

    for r in (0, 1, 5):
        cell(f"marked/{r}", marked=r)
    for n in (1, 2, 4, 6, 8):
        cell(f"N/{n}", others=n)
    for m in (2, 3, 10, 20):
        cell(f"M/{m}", repeats=m)
    for share in (0.05, 0.1, 0.3):
        cell(f"share/{share}", share=share)
    for alpha in (0.5, 0.1):
        cell(f"alpha/{alpha}", partition={"kind": "dirichlet", "alpha": alpha})
    for t in (10, 20):
        cell(f"T/{t}", rounds=t)
    for k in (20, 50):
        cell(f"K/{k}", clients=k, marked=round(0.3 * k), others=4)
    cell("default")
    for kind in KINDS:
        out[f"text-trade-off/{kind}"] = functools.partial(trade_off, kind=kind)
        cell(f"text-marked/{kind}/0", kind=kind, marked=0)
        cell(f"text-M/{kind}/2", kind=kind, repeats=2)
    out["overhead"] = overhead.measure
    if quick:
        keep = ("methods", "trade-off/10", "M/2", "default")
        out = {k: v for k, v in out.items() if k in keep}
    return out


def save(file: Path, results: Row) -> None:
    write_atomically(file, json.dumps(results, indent=1, sort_keys=True) + "\n")


def main(arguments: Sequence[str] | None = None) -> int:
    asked = parser(
        __doc__,
        quick="a small version, under a minute",
        only={"default": "", "help": "measure pieces that start with this"},
    ).parse_args(arguments)
    seeds, unused = ((1,), 199) if asked.quick else ((1, 2, 3), 999)
    home = asked.out or (Path(tempfile.mkdtemp(prefix="attribution-")) if asked.quick else None)
    file = (home or HERE) / "results.json"
    results: Row = {"seeds": list(seeds), "unused": unused, "measured": {}}
    if file.is_file():
        stored = json.loads(file.read_text(encoding="utf-8"))
        if {k: stored.get(k) for k in ("seeds", "unused")} == {"seeds": [*seeds], "unused": unused}:
            results = stored
    if not asked.render:
        began = time.monotonic()
        for seed in seeds:
            for name, measure in pieces(asked.quick).items():
                key = f"{name}/{seed}"
                if name.startswith(asked.only) and key not in results["measured"]:
                    results["measured"][key] = measure(seed, unused)
                    file.parent.mkdir(parents=True, exist_ok=True)
                    save(file, results)
                    print(f"{time.monotonic() - began:5.0f} s  {key}", flush=True)
    written = page.write(results, home or PAGE)
    print(f"page: {written}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
