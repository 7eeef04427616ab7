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
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import numpy as np

from fedaudit.audits.attribution import calibration, over_rounds, scoring
from fedaudit.audits.attribution.constants import assumption_constants
from fedaudit.files import write_atomically
from fedaudit.results import Underpowered
from reproductions.attribution import (
    baselines,
    cells,
    comparison,
    overhead,
    page,
    recorded,
    setting,
    theory,
)
from reproductions.pieces import PAGE, not_fetched, parser, say_skipped

HERE = Path(__file__).resolve().parent

Row = dict[str, Any]
Play = Callable[..., setting.Played]
KINDS = ("fictitious", "kgw")
PRETENDED = 100
"""Owners of unused keys that a run is read for: what they find is a false alarm."""


class Shelf:
    """The last run, for all pieces that read it: a shorter run is the beginning of a longer one."""

    def __init__(self) -> None:
        self._of, self._run = "", cast("setting.Played | None", None)

    def play(self, *, rounds: int = 5, **changes: Any) -> setting.Played:
        of = json.dumps(changes, sort_keys=True)
        if self._run is None or of != self._of or self._run.rounds < rounds:
            self._run = None  # two runs need not stand in memory
            self._of, self._run = of, setting.play(rounds=rounds, **changes)
        return self._run.first(rounds)


def _counts(flags: Any, run: setting.Played) -> Row:
    """Hits of marked, false alarms of benign clients."""
    return {
        "hits": int(flags[run.marked].sum()),
        "marked": int(run.marked.sum()),
        "alarms": int(flags[~run.marked].sum()),
        "benign": int((~run.marked).sum()),
    }


def methods(seed: int, unused: int, *, play: Play = setting.play, **changes: Any) -> Row:
    """Table 1: all methods on one run with the published defaults, T = 5."""
    run = play(seed=seed, **changes)
    began = time.process_time()
    found = setting.read(setting.plan_of("published", run, _rng(seed)), run, unused=unused)
    seconds = time.process_time() - began
    assert found.published is not None
    assert found.published_z is not None
    assert found.change_z is not None
    safe = setting.read(setting.plan_of("safe", run, _rng(seed)), run, unused=unused)
    starts = run.models[:-1]
    influence = baselines.influence(run.gradients, run.updates)
    detector = baselines.fldetector_scores(run.models, run.updates)
    out = {
        "published threshold": found.published,
        "published, unit of the change": found.change_z.max(axis=1) > 4,
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
    constants = assumption_constants(best, run.marked)
    named = {
        k: None if isinstance(v, Underpowered) else [v.value, v.low, v.high]
        for k, v in vars(constants).items()
    }
    return {
        **{name: _counts(flags, run) for name, flags in out.items()},
        "global z": [float(v) for v in z],
        "constants": named,
        "quality": run.quality[-1],
        "seconds": {"training": run.seconds * run.rounds, "attribution": seconds},
        "z": _mean_z(own, run),
        "of marked": _of_marked(found, run),
        "pretended": pretended(found, run),
    }


def _mean_z(own: Any, run: setting.Played) -> list[float | None]:
    """Mean over marked and over benign clients of the published Z, the largest over keys."""
    best = (own.sum(axis=0) / np.sqrt(run.rounds)).max(axis=1, initial=-np.inf)
    return [_mean(best[run.marked]), _mean(best[~run.marked])]


def _of_marked(found: comparison.Reading, run: setting.Played) -> Row:
    """Of each marked client: Z as published, in the unit of the change, and that of its updates."""
    assert found.published_z is not None
    assert found.change_z is not None
    keys, apart = len(run.marks.keys), bool(getattr(run.marks, "apart", False))
    by_client = found.scores.reshape(run.rounds, run.clients, -1)
    each = {
        "published": found.published_z.sum(axis=0) / np.sqrt(run.rounds),
        "change": found.change_z,
        "solved": scoring.standardised(by_client.sum(axis=0), keys, apart=apart),
        "round": np.mean([scoring.standardised(y, keys, apart=apart) for y in by_client], axis=0),
    }
    return {k: [float(v) for v in z.max(axis=1)[run.marked]] for k, z in each.items()}


def pretended(found: comparison.Reading, run: setting.Played) -> Row:
    """False alarms of owners with as many keys, none of them used, on all clients of a run.

    Each such owner is given keys of its own among the unused ones; the null of all is the rest.
    """
    keys, apart = len(run.marks.keys), bool(getattr(run.marks, "apart", False))
    blocks = scoring.blocks(found.scores.shape[1], keys, apart)
    many = min(PRETENDED, len(blocks[0].null) // (2 if apart else 2 * keys))
    clients, owners = 0, 0
    for j in range(many):
        if apart:  # every key has unused ones of its own
            own = [b.null[j] for b in blocks]
            rest = np.concatenate([b.null[many:] for b in blocks])
        else:
            own = [*blocks[0].null[keys * j : keys * (j + 1)]]
            rest = blocks[0].null[keys * many :]
        columns = np.concatenate([own, rest]).astype(np.int64)
        if found.tables is not None:
            some = over_rounds.select_columns(found.tables, columns)
            decision = over_rounds.decide(found.design, some, keys, 0.05, apart=apart)
        else:
            linear = bool(getattr(run.marks, "linear", True))
            decision = calibration.decide(
                found.design, found.scores[:, columns], keys, 0.05,
                apart=apart, linear=linear, row_rounds=found.row_rounds,
            )  # fmt: skip
        flags = decision.named.flagged
        clients, owners = clients + int(flags.sum()), owners + int(flags.any())
    return {
        "alarms": clients, "benign": many * run.clients, "owners alarmed": owners, "owners": many
    }  # fmt: skip


def trade_off(
    seed: int, unused: int, *, rounds: int = 10, play: Play = setting.play, **changes: Any
) -> Row:
    """The headline: four plans on the same run."""
    run = play(seed=seed, rounds=rounds, **changes)
    out = {}
    for name in ("published", "safe", "swapped", "fixed"):
        found = setting.read(setting.plan_of(name, run, _rng(seed)), run, unused=unused)
        out[name] = {
            **_counts(found.named, run),
            "queries": found.queries,
            "uploads": found.uploads,
            "smallest": found.smallest,
            **asdict(found.leaks),
            "pretended": pretended(found, run),
        }
    return out


def swept(seed: int, unused: int, *, play: Play = setting.play, **changes: Any) -> Row:
    """One cell of a sweep: the published plan, by its threshold and calibrated."""
    plan = {k: changes.pop(k) for k in ("others", "repeats") if k in changes}
    run = play(seed=seed, **changes)
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


def masking(seed: int, unused: int, draws: int = 100_000) -> Row:
    """Table 2: E[c] and its threshold by the formula, c by drawing, and how many draws pass."""
    rng, out = _rng(seed), {}
    for clients, others, repeats in ((10, 4, 5), (10, 5, 5), (20, 4, 5), (50, 4, 5), (50, 16, 5)):
        expected = theory.expected_masking(clients, others, repeats)
        passed = theory.acceptance_rate(clients, others, repeats, rng, draws=draws)
        out[f"{clients}/{others}/{repeats}"] = {
            "expected": expected,
            "drawn": _drawn_masking(clients, others, repeats, rng),
            "accepted": [passed.value, passed.low, passed.high],
        }
    return out


def _drawn_masking(clients: int, others: int, repeats: int, rng: np.random.Generator) -> float:
    """The mean of c = sum alpha^2 over 4,000 draws that nothing rejects."""
    order = rng.random((4000, 2, repeats, clients - 1)).argsort(axis=-1)
    chosen = (order < others).sum(axis=2)  # how often each of the others, with the target, without
    alpha = (chosen[:, 0] - chosen[:, 1]) / repeats
    return float((alpha**2).sum(axis=1).mean())


def _mean(values: Any) -> float | None:
    return float(np.mean(values)) if len(values) else None


def _rng(seed: int) -> np.random.Generator:
    return np.random.default_rng([seed, 7])


def pieces(quick: bool, without: Sequence[str] = ()) -> dict[str, Callable[[int, int], Row]]:
    """Key -> what measures it, given a seed and the number of unused keys.

    `without` names data sets that are not at hand.
    """
    out: dict[str, Callable[[int, int], Row]] = {
        "methods": methods,
        "trade-off/5": lambda s, u: trade_off(s, u, rounds=5),
        "trade-off/10": trade_off,
        "trade-off/20": lambda s, u: trade_off(s, u, rounds=20),
        "masking": masking,
    }

    # what reads one run stands together: the shelf holds the last one
    play = Shelf().play
    for kind in KINDS:
        own: dict[str, Any] = {"kind": kind, "aggregation": "fedit", "play": play}
        out[f"text-trade-off/{kind}"] = functools.partial(trade_off, **own)
        out[f"text/{kind}/fedit"] = functools.partial(methods, **own)
        if kind == "kgw":
            out["text-M/kgw/2"] = functools.partial(swept, repeats=2, **own)
    for kind in KINDS:
        out[f"text/{kind}/flora"] = functools.partial(methods, kind=kind, aggregation="flora")
    out["unmarked-text/kgw"] = functools.partial(swept, kind="kgw", marked=0)
    for cell in cells.CANARY:
        out[cell.name] = functools.partial(swept, **cell.changes)
    for clients in overhead.CLIENTS:
        name = "overhead" if clients == 10 else f"overhead/{clients}"
        out[name] = functools.partial(overhead.measure, clients=clients)
    own = {"kind": "fictitious", "aggregation": "fedit", "play": play}
    for cell in cells.TINY:
        if cell.changes.get("data", {}).get("name") in without:
            continue
        out[cell.name] = functools.partial(swept, **own, **cell.changes)
    for cell in cells.PARTIAL:
        out[cell.name] = functools.partial(recorded.partial, **cell.changes)
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
        lacking = not_fetched((cells.OTHER,))
        say_skipped(lacking)
        for seed in seeds:
            for name, measure in pieces(asked.quick, without=lacking).items():
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
