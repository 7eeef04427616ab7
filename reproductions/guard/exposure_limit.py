"""Measure the exposure limit: exact records and membership in answers with and without it.

python -m reproductions.guard.exposure_limit

A client of 100 records answers a model of round 6 (`rounds.honest_run`, `digits`) in plain
torch, as received or with a plant. `exact`: own records within 0.05 median distances of a dW / db
of one unit, or of two neighbours. `auc`: a server that planted a matched filter tells answers with
the target from answers with another record in its place, by the change of that unit along it.
`accuracy`: of whole federations with `protections.exposure_limit`.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import fedaudit
from fedaudit.protections import ExposureLimit
from fedaudit.protections.guard import LocalSteps
from fedaudit.protections.guard.exposure import EXACT, distances, median_distance, reconstructed
from fedaudit.protections.guard.local_steps import LayerVisits
from fedaudit.stats.intervals import clopper_pearson
from reproductions.guard import plants, rounds
from reproductions.guard.plants import BIAS, FIRST, Plant
from reproductions.guard.rounds import Behaved, State

RESULTS = Path(__file__).with_name("exposure_limit.json")
CLIP = 1.0
ARMS: dict[str, ExposureLimit | None] = {
    "no protection": None,
    "clipping alone": ExposureLimit(noise_multiplier=0.0, least_records=1, clip=CLIP),
    "dropping alone": ExposureLimit(noise_multiplier=0.0, clip=1e6),
    "noise alone, z = 0.001": ExposureLimit(noise_multiplier=0.001, least_records=1, clip=CLIP),
    "limit, z = 0.001": ExposureLimit(noise_multiplier=0.001, clip=CLIP),
    "noise alone, z = 0.1": ExposureLimit(least_records=1, clip=CLIP),
    "limit, z = 0.1": ExposureLimit(clip=CLIP),
}
MODELS: dict[str, Plant] = {
    "honest": lambda run, target, rng: ([run.states[-1]], None),
    "trap weights": plants.trap_weights,
    "imprint": plants.imprint,
}


def trained_plainly(
    module: nn.Module, x: torch.Tensor, y: torch.Tensor, local: LocalSteps
) -> State:
    """The local steps of a client, in plain torch."""
    optimiser = torch.optim.SGD(module.parameters(), lr=local.learning_rate)
    for _ in range(local.epochs):
        for rows in torch.split(torch.randperm(len(x)), local.batch_size or len(x)):
            optimiser.zero_grad()
            torch.autograd.backward(nn.functional.cross_entropy(module(x[rows]), y[rows]))
            optimiser.step()
    return {k: v.detach().clone() for k, v in module.state_dict().items()}


def answered(
    run: Behaved, state: State, local: LocalSteps, limit: ExposureLimit | None, seed: int
) -> State:
    """What the client sends back, trained on `run.own` in plain torch."""
    own = run.build()
    own.load_state_dict(state)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        with nullcontext() if limit is None else limit.dropping():
            trained = trained_plainly(own, *run.own, local)
    if limit is None:
        return trained
    return limit.answer(state, trained, torch.Generator().manual_seed(seed))


def exact(run: Behaved, state: State, answer: State) -> int:
    """Own records that dW / db of the first layer hands over."""
    none = np.zeros((1, 1, 1))
    before, after = ((s[FIRST].numpy(), s[BIAS].numpy()) for s in (state, answer))
    x, _ = reconstructed(
        LayerVisits("1", none, none, before[0], after[0], before[1], after[1], True)
    )
    records = run.own[0].flatten(1).double().numpy()
    if not len(x):
        return 0
    apart = distances(records, np.asarray(x, dtype=np.float64)) / median_distance(records)
    return int((apart.min(axis=1) < EXACT).sum())


def auc(run: Behaved, limit: ExposureLimit | None, target: int, seed: int, games: int) -> float:
    """How well the change of a planted unit tells whether the target was trained on."""
    rng = np.random.default_rng(seed)
    (state,), _ = plants.matched_filter(run, target, rng)
    u = int((state[FIRST] != run.states[-1][FIRST]).any(dim=1).nonzero()[0])
    x, y = run.own
    pool_x, pool_y = rounds.pool("digits")
    pool_x = pool_x.view(len(pool_x), *x.shape[1:])
    scores: dict[bool, list[float]] = {True: [], False: []}
    for game in range(games):
        for there in (True, False):
            other = int(rng.integers(len(pool_x)))
            own_x, own_y = x.clone(), y.clone()
            if not there:
                own_x[target], own_y[target] = pool_x[other], pool_y[other]
            guarded = Behaved(run.states, (own_x, own_y), run.build, run.local)
            answer = answered(guarded, state, run.local, limit, 2 * game + there)
            moved = (answer[FIRST][u] - state[FIRST][u]) @ x[target].flatten()
            scores[there].append(abs(float(moved + answer[BIAS][u] - state[BIAS][u])))
    a, b = np.array(scores[True])[:, None], np.array(scores[False])
    return float((a > b).mean() + 0.5 * (a == b).mean())


def accuracy(limit: ExposureLimit | None, seeds: int) -> list[float]:
    """Accuracy of federations of ten clients after 12 rounds on `digits`."""
    out = []
    for seed in range(seeds):
        own = {} if limit is None else {limit.name: _settings(limit)}
        config: dict[str, Any] = {
            "seed": seed,
            "data": {"name": "digits"},
            "task": {"kind": "mlp", "hidden": [128]},
            "federation": {"clients": 10, "rounds": 12},
            "training": {"learning_rate": 0.1, "epochs": 2, "batch_size": 20},
            "protections": own,
        }
        with tempfile.TemporaryDirectory() as folder:
            study = fedaudit.run(config, Path(folder) / "run")
            out.append(round(float(study.runs[0].metrics["accuracy"]), 4))
    return out


def _settings(limit: ExposureLimit) -> dict[str, Any]:
    return {k: getattr(limit, k) for k in ("noise_multiplier", "clip", "least_records")}


def evaluate(seeds: int) -> dict[str, Any]:
    out: dict[str, Any] = {name: {} for name in ARMS}
    counts: dict[tuple[str, str], list[int]] = {}
    aucs: dict[str, list[float]] = {}
    for number in range(seeds):
        run = rounds.honest_run("mlp", "digits", 400 + number, 6)
        for name, limit in ARMS.items():
            for model, plant in MODELS.items():
                (state,), _ = plant(run, number, np.random.default_rng(number))
                answer = answered(run, state, run.local, limit, number)
                counts.setdefault((name, model), []).append(exact(run, state, answer))
            aucs.setdefault(name, []).append(auc(run, limit, number, number, games=8))
    for (name, model), found in counts.items():
        share = clopper_pearson(sum(found), rounds.RECORDS * seeds)
        mean = sum(found) / seeds
        out[name][model] = {
            "exact": mean,
            "of": rounds.RECORDS,
            "share": [round(share.low or 0.0, 4), round(share.high or 1.0, 4)],
        }
    for name, values in aucs.items():
        out[name]["matched filter, auc"] = round(float(np.mean(values)), 3)
        out[name]["accuracy"] = accuracy(ARMS[name], 3)
    return {"seeds": seeds, "clip": CLIP, "arms": out}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    found = evaluate(given.seeds)
    given.out.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    for name, row in found["arms"].items():
        print(name, json.dumps(row))


if __name__ == "__main__":
    main()
