"""Measure the guard's judgement of behaviour: honest runs, and plants at several rounds.

python -m reproductions.guard.behaviour runs --seeds 11
python -m reproductions.guard.behaviour long --seeds 4
python -m reproductions.guard.behaviour plants --seeds 8
python -m reproductions.guard.behaviour meaning --seeds 8

A run is `rounds.honest_runs`: five clients, of which the first one guards, and judges every model.
Plants (`plants`) change the newest model, or the newest few, with the target among the client's
records and without it.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedaudit.protections.guard import LocalSteps, guard, local_steps
from fedaudit.protections.guard.exposure import ExposureReport, exposure, membership
from fedaudit.protections.guard.tampering import HISTORY, ModelHistory
from fedaudit.stats.intervals import clopper_pearson
from reproductions.guard.plants import PLANTS, Family
from reproductions.guard.rounds import KINDS, Behaved, State, answer, honest_runs, pool

RESULTS = Path(__file__).with_name("behaviour.json")
LOOKED_AT = (3, 12)
HONEST, LONG, PLANTED, GAMES = 10_000, 20_000, 30_000, 40_000
"""First seeds: none was looked at before the thresholds were fixed."""
MANY = 100
"""Rounds of long runs."""
LONG_KINDS = tuple(k for k in KINDS if k[0] in ("mlp", "tanh mlp", "tiny mlp", "batch norm", "cnn"))
LATE = ("matched filter", "one bias", "imprint", "trap weights", "amplified outgoing")
"""Plants that are also put into round 100."""


# -- honest runs -----------------------------------------------------------------------------------


def history(run: Behaved, upto: int, kept: np.ndarray | None = None) -> ModelHistory:
    """The first `upto` models of a run on the client's records, or on the `kept` ones."""
    x, y = run.own if kept is None else (part[kept] for part in run.own)
    out = ModelHistory(x, y)
    for state in run.states[:upto]:
        out.add(answer(run, state))
    return out


def exposed(run: Behaved, state: State, local: LocalSteps | None = None) -> ExposureReport:
    """By the local steps of the run, or by others."""
    steps = local_steps.run(answer(run, state), *run.own, local or run.local)
    return exposure(steps.values())


def judged(run: Behaved) -> list[int]:
    """Rounds of an honest run whose model is called altered."""
    own, out = history(run, HISTORY), []
    for t in range(HISTORY, len(run.states)):
        module = answer(run, run.states[t])
        if own.judge(module).verdict == "altered":
            out.append(t)
        own.add(module)
    return out


def honest(seeds: int, rounds: int, kinds: Sequence[tuple[str, str, str]], first: int) -> Any:
    """Alarms in any round of whole runs, and what their models expose and weigh like."""
    rows: dict[str, Any] = {}
    alarms: list[bool] = []
    models = exposing = weights = looked_at = 0
    for kind in kinds:
        runs = honest_runs(*kind[:2], range(first, first + seeds), rounds, kind[2])
        found = [judged(run) for run in runs]
        rows[", ".join(kind)] = _rate(sum(map(bool, found)), len(found))
        alarms += [bool(f) for f in found]
        models += sum(len(run.states) - HISTORY for run in runs)
        for run in runs:
            module = answer(run, run.states[-1])
            report = guard(module, [answer(run, s) for s in run.states[-2:-1]], run.own)
            weights += report.flagged
            for t in LOOKED_AT if rounds == max(LOOKED_AT) else (rounds,):
                looked_at += 1
                exposing += bool(exposed(run, run.states[t]).exposed)
        print(kind, rows[", ".join(kind)], flush=True)
    return {
        "rounds": rounds,
        "models judged": models,
        "runs altered": _rate(sum(alarms), len(alarms)),
        "models that expose a record": _rate(exposing, looked_at),
        "last models whose weights alone raise an alarm": _rate(weights, len(alarms)),
        "by kind": rows,
    }


# -- plants ----------------------------------------------------------------------------------------


def planted(seeds: int, families: Sequence[Family], first: int = PLANTED) -> dict[str, Any]:
    """Every family in every host: rates by family, and by family, host and round."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    runs: dict[tuple[str, str, str], list[Behaved]] = {}
    for name, plant, hosts in families:
        lasts = 10 if "10" in name else 3 if "drift" in name else 1
        for host in hosts:
            if host not in runs:
                runs[host] = honest_runs(*host[:2], range(first, first + seeds), 24, host[2])
            for number, run in enumerate(runs[host]):
                for t in LOOKED_AT:
                    at = max(t, 2 * lasts) if t == LOOKED_AT[0] else max(t, 24 * (lasts == 10))
                    cut = replace(run, states=run.states[: at + 1])
                    rng = np.random.default_rng([first, number, at])
                    states, target = plant(cut, int(rng.integers(len(run.own[0]))), rng)
                    _count(cut, states, target, (counts[name], counts[f"{name}: {host}, {at}"]))
        print(name, dict(counts[name]), flush=True)
    return {name: _rates(c) for name, c in counts.items()}


def late(seeds: int) -> dict[str, Any]:
    """Some plants in round 100."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    runs = honest_runs("mlp", "digits", range(PLANTED + 500, PLANTED + 500 + seeds), MANY)
    for number, run in enumerate(runs):
        own = history(run, MANY)
        for name, plant, _ in (f for f in PLANTS if f[0] in LATE):
            rng = np.random.default_rng([number, MANY])
            (state,), target = plant(run, int(rng.integers(len(run.own[0]))), rng)
            _note(counts[name], "altered", own.judge(answer(run, state)).verdict == "altered")
            if target is not None:
                for what, yes in _named(run, state, target).items():
                    _note(counts[name], what, yes)
    return {name: _rates(c) for name, c in counts.items()}


def _count(
    run: Behaved, states: Sequence[State], target: int | None, into: Sequence[Counter[str]]
) -> None:
    """One plant: an alarm in any round that it changed, and whether its target is named."""
    every = np.ones(len(run.own[0]), dtype=bool)
    before = len(run.states) - len(states)

    def alarmed(kept: np.ndarray) -> bool:
        own, found = history(run, before, kept), False
        for state in states:
            module = answer(run, state)
            found |= own.judge(module).verdict == "altered"
            own.add(module)
        return found

    outcome = {"altered": alarmed(every)}
    if target is not None:
        outcome |= _named(run, states[-1], target)
        every[target] = False
        outcome["altered, target absent"] = alarmed(every)
    for counter in into:
        for what, yes in outcome.items():
            _note(counter, what, yes)


NAMED = {"target named, one step": LocalSteps(), "target named": None}
"""By one local step on all records, and by the ten steps of the run."""


def _named(run: Behaved, state: State, target: int) -> dict[str, bool]:
    return {
        what: target in {r.record for r in exposed(run, state, local).exposed}
        for what, local in NAMED.items()
    }


def _note(counter: Counter[str], what: str, yes: bool) -> None:
    counter[what] += yes
    counter[f"{what}, tried"] += 1


def _rates(c: Counter[str]) -> dict[str, Any]:
    kinds = ("altered", "altered, target absent", *NAMED)
    return {k: _rate(c[k], c[f"{k}, tried"]) for k in kinds if c[f"{k}, tried"]}


# -- what a ratio means ----------------------------------------------------------------------------


BINS = (1.0, 3.0, 10.0, 30.0, 100.0, float("inf"))
DRAWS = 100
HOSTS = (("mlp", "digits"), ("mlp", "breast-cancer"), ("mlp", "docs"), ("deep mlp", "digits"))


def meaning(seeds: int) -> list[dict[str, Any]]:
    """How often a server is right about membership, by the exposure that a client of 100 computes.

    One local step, models of rounds 3 and 12, honest and with a matched filter. For each record the
    server takes the update's product with what the record adds to its most exposed unit, and says
    "in" above a threshold that it sets on draws of its own. The other 99 records are drawn anew
    from all of the data; half of the draws have the record. Records of one run resemble each other:
    the interval (95 %) is that of whole runs drawn anew.
    """
    by_run: list[dict[int, list[int]]] = []
    for kind, data in HOSTS:
        for number, run in enumerate(honest_runs(kind, data, range(GAMES, GAMES + seeds), 12)):
            rng = np.random.default_rng(number)
            found: dict[int, list[int]] = defaultdict(list)
            for t in LOOKED_AT:
                cut = replace(run, states=run.states[: t + 1])
                (state,), _ = PLANTS[0][1](cut, int(rng.integers(len(run.own[0]))), rng)
                for model in (run.states[t], state):
                    for at, hits in _games(run, model, pool(data), rng):
                        found[at].append(hits)
            by_run.append(found)
        print(kind, data, flush=True)
    rng = np.random.default_rng(0)
    out = []
    for i in range(len(BINS) - 1):
        own = [f[i] for f in by_run if f[i]]
        if not own:
            continue
        drawn = [
            np.mean(np.concatenate([own[j] for j in rng.integers(len(own), size=len(own))]))
            for _ in range(1000)
        ]
        low, high = np.quantile(drawn, (0.025, 0.975)) / (2 * DRAWS)
        share = np.mean(np.concatenate(own)) / (2 * DRAWS)
        out.append(
            {
                "from": BINS[i],
                "records": sum(map(len, own)),
                "runs": len(own),
                "right": round(float(share), 3),
                "low": round(float(low), 3),
                "high": round(float(high), 3),
            }
        )
    return out


def _games(
    run: Behaved, state: State, every: tuple[torch.Tensor, torch.Tensor], rng: np.random.Generator
) -> Iterator[tuple[int, int]]:
    """(bin of the exposure, right answers of 2 x DRAWS) of every own record, at its best unit."""
    module = answer(run, state)
    x, y = (torch.cat(pair) for pair in zip(run.own, every, strict=True))
    n = len(run.own[0])
    layers = list(local_steps.run(module, x, y, LocalSteps()).values())
    ratios = [membership(v.inputs[:, :n], v.errors[:, :n], bias=True, noise=0.0)[0] for v in layers]
    for i in range(n):
        layer = max(range(len(layers)), key=lambda at: ratios[at][i].max())
        e, u = ratios[layer][i].max(), int(ratios[layer][i].argmax())
        if e < BINS[0]:
            continue
        h, d = layers[layer].inputs[0], layers[layer].errors[0][:, u]
        k = d[i] * d * (h @ h[i] + 1)
        others = np.delete(k[n:], np.flatnonzero((every[0] == run.own[0][i]).flatten(1).all(1)))
        without = rng.choice(others, size=(2, DRAWS, n)).sum(axis=2)
        holding = rng.choice(others, size=(2, DRAWS, n - 1)).sum(axis=2) + k[i]
        # the server sets its threshold on draws of its own
        tried = np.sort(np.concatenate([without[0], holding[0]]))
        right = (without[0] < tried[:, None]).sum(1) + (holding[0] >= tried[:, None]).sum(1)
        cut = tried[right.argmax()]
        hits = (without[1] < cut).sum() + (holding[1] >= cut).sum()
        yield int(np.searchsorted(BINS, e, side="right")) - 1, int(hits)


def _rate(count: int, of: int) -> dict[str, Any]:
    share = clopper_pearson(count, of)
    return {"count": count, "of": of, "low": round(share.low, 3), "high": round(share.high, 3)}


def _update(out: Path, result: dict[str, Any]) -> None:
    """Write some entries of the results, and keep the others."""
    kept = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {}
    out.write_text(json.dumps({**kept, **result}, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("runs", "long", "plants", "meaning"))
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--out", type=Path, default=RESULTS)
    chosen = parser.parse_args()
    seeds = chosen.seeds
    if chosen.what == "runs":
        result = {"honest": honest(seeds, max(LOOKED_AT), KINDS, HONEST)}
    elif chosen.what == "long":
        result = {"honest, long": honest(seeds, MANY, LONG_KINDS, LONG), "late": late(seeds)}
    elif chosen.what == "plants":
        result = {"planted": planted(seeds, PLANTS)}
    else:
        result = {"membership by exposure": meaning(seeds)}
    _update(chosen.out, result)


if __name__ == "__main__":
    main()
