"""Measure the guard's judgement of behaviour: honest runs, and plants at several rounds.

python -m reproductions.guard.behaviour runs
python -m reproductions.guard.behaviour meaning --seeds 8

A run is plain federated averaging of five clients; the first one guards. Plants change the newest
model only, at rounds 3 and 12, with the target among the client's records and without it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

import fedaudit
from fedaudit.data import builtin
from fedaudit.protections.guard import LocalSteps, local_steps
from fedaudit.protections.guard.exposure import membership
from fedaudit.randomness import Seed
from fedaudit.stats.intervals import clopper_pearson
from fedaudit.tasks import models

RESULTS = Path(__file__).with_name("behaviour.json")
CLIENTS, RECORDS, LOOKED_AT = 5, 100, (2, 3, 6, 12)
State = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Behaved:
    """Models of an honest run, oldest first, and the first client's records and local steps."""

    states: list[State]
    own: tuple[torch.Tensor, torch.Tensor]
    build: Callable[[], nn.Module]
    local: LocalSteps


KINDS: tuple[tuple[str, str, str], ...] = (
    ("mlp", "digits", "sgd"),
    ("mlp", "digits", "adam"),
    ("mlp", "digits", "weight decay"),
    ("mlp", "digits", "lasso"),
    ("tanh mlp", "digits", "sgd"),
    ("deep mlp", "digits", "sgd"),
    ("wide mlp", "digits", "sgd"),
    ("tiny mlp", "digits", "sgd"),
    ("identity mlp", "digits", "sgd"),
    ("batch norm", "digits", "sgd"),
    ("mlp", "digits", "unlike clients"),
    ("mlp", "breast-cancer", "sgd"),
    ("mlp", "breast-cancer", "adam"),
    ("cnn", "digits", "sgd"),
    ("cnn", "digits", "adam"),
    ("vit", "digits", "adam"),
)
"""(model, data, training) of honest runs."""


def build(kind: str, inputs: int, classes: int) -> nn.Module:
    if kind == "cnn":
        return models.cnn((1, 8, 8), (8, 16), classes)
    if kind == "vit":
        return models.TinyViT((1, 8, 8), 4, 32, 2, 4, classes)
    if kind == "batch norm":
        return nn.Sequential(
            nn.Flatten(), nn.Linear(inputs, 64), nn.BatchNorm1d(64), nn.ReLU(),
            nn.Linear(64, classes),
        )  # fmt: skip
    hidden = {"deep mlp": (64, 64, 64), "wide mlp": (1024,), "tiny mlp": (8,)}.get(kind, (128,))
    made = models.mlp(inputs, hidden, classes, "tanh" if kind == "tanh mlp" else "relu")
    if kind == "identity mlp":
        first = made[1]
        assert isinstance(first, nn.Linear)
        with torch.no_grad():
            first.weight[:inputs] += torch.eye(inputs)
    return made


def honest_run(kind: str, data: str, seed: int, rounds: int, training: str = "sgd") -> Behaved:
    """Federated averaging: five clients of 100 records, two local epochs in batches of 20."""
    loaded = builtin.load(data, seed=Seed(seed))
    x = torch.as_tensor(np.asarray(loaded.x)).float()
    if data != "digits":
        x = (x - x.mean(0)) / x.std(0).clamp(min=1e-6)
    y = torch.as_tensor(loaded.y)
    inputs, classes = x[0].numel(), int(y.max()) + 1
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        order = torch.randperm(len(x))[: CLIENTS * RECORDS]
        if training == "unlike clients":
            order = order[y[order].argsort(stable=True)]
        parts = order.chunk(CLIENTS)
        local = LocalSteps(
            learning_rate=float(np.exp(np.random.default_rng(seed).uniform(-3.5, -1.2))),
            epochs=2,
            batch_size=20,
        )
        model = build(kind, inputs, classes)
        states = [_copied(model)]
        for _ in range(rounds):
            answers = []
            for rows in parts:
                own = build(kind, inputs, classes)
                own.load_state_dict(states[-1])
                answers.append(_trained(own, x[rows], y[rows], local, training))
            states.append(
                {k: torch.stack([a[k].float() for a in answers]).mean(0).to(v.dtype)
                 for k, v in states[-1].items()}
            )  # fmt: skip
    return Behaved(states, (x[parts[0]], y[parts[0]]), partial(build, kind, inputs, classes), local)


def _copied(model: nn.Module) -> State:
    return {k: v.detach().clone() for k, v in model.state_dict().items()}


def _trained(
    model: nn.Module, x: torch.Tensor, y: torch.Tensor, local: LocalSteps, training: str
) -> State:
    decay = 0.01 if training == "weight decay" else 0.0
    rate = local.learning_rate
    optimiser = (
        torch.optim.Adam(model.parameters(), lr=rate / 30)
        if training == "adam"
        else torch.optim.SGD(model.parameters(), lr=rate, weight_decay=decay)
    )
    for _ in range(local.epochs):
        for rows in torch.split(torch.randperm(len(x)), local.batch_size or len(x)):
            optimiser.zero_grad()
            loss = F.cross_entropy(model(x[rows]), y[rows])
            if training == "lasso":
                loss = loss + 1e-3 * sum(p.abs().sum() for p in model.parameters())
            torch.autograd.backward(loss)
            optimiser.step()
    return _copied(model)


# -- plants in a fully connected model -------------------------------------------------------------

Plant = Callable[[Behaved, int, np.random.Generator], tuple[State, int | None]]
FIRST, BIAS, SECOND = "1.weight", "1.bias", "3.weight"


def _alone(z: torch.Tensor, target: int) -> torch.Tensor:
    """The bias at which only the target's pre-activation is positive."""
    others = torch.cat([z[:target], z[target + 1 :]]).max()
    return -(others + z[target]) / 2


def matched_filter(run: Behaved, target: int, rng: np.random.Generator) -> tuple[State, int | None]:
    """One unit: the direction in which the target is farthest from the mean of all records."""
    state, u = _fresh(run, rng)
    x = run.own[0].flatten(1)
    whitened = torch.linalg.pinv(torch.cov(x.T) + 0.01 * torch.eye(x.shape[1]))
    w = whitened @ (x[target] - x.mean(0))
    state[FIRST][u] = w / w.norm() * 3 * state[FIRST].norm(dim=1).mean()
    z = x @ state[FIRST][u]
    state[BIAS][u] = _alone(z, target)
    return state, target


def one_bias(run: Behaved, target: int, rng: np.random.Generator) -> tuple[State, int | None]:
    """One changed number: the bias of a unit, so that only its strongest record is left."""
    state, u = _fresh(run, rng)
    z = run.own[0].flatten(1) @ state[FIRST][u]
    strongest = int(z.argmax())
    state[BIAS][u] = _alone(z, strongest)
    return state, strongest


def imprint(
    run: Behaved, target: int, rng: np.random.Generator, share: float = 1.0
) -> tuple[State, int | None]:
    """Bins of the mean pixel in a share of the units, which all go the same way afterwards."""
    state, _ = _fresh(run, rng)
    x = run.own[0].flatten(1)
    units = int(share * len(state[FIRST]))
    w = torch.ones(x.shape[1]) / x.shape[1] ** 0.5
    z = x @ w
    state[FIRST][:units] = w
    state[BIAS][:units] = -z.quantile(torch.linspace(0.02, 0.995, units))
    state[SECOND][:, :units] = state[SECOND][:, :1]
    order = z.argsort()
    alone = int(order[-1])  # only the largest is sure to be alone in a bin
    return state, alone if share == 1 else None


def trap_weights(run: Behaved, target: int, rng: np.random.Generator) -> tuple[State, int | None]:
    """All rows: half of the weights negative and slightly larger; few records get through."""
    state, _ = _fresh(run, rng)
    rows, width = state[FIRST].shape
    w = np.abs(rng.normal(size=(rows, width))) * 0.5
    for row in w:
        row[rng.permutation(width)[: width // 2]] *= -1.15
    state[FIRST] = torch.as_tensor(w).float()
    state[BIAS] = torch.zeros(rows)
    return state, None


def _fresh(run: Behaved, rng: np.random.Generator) -> tuple[State, int]:
    """A copy of the newest model, and a unit."""
    state = {k: v.clone() for k, v in run.states[-1].items()}
    return state, int(rng.integers(len(state[FIRST])))


PLANTS: dict[str, Plant] = {
    "matched filter": matched_filter,
    "one bias": one_bias,
    "imprint": imprint,
    "imprint in a quarter": partial(imprint, share=0.25),
    "trap weights": trap_weights,
}


# -- measurement -----------------------------------------------------------------------------------


def _looked_at(run: Behaved, state: State, t: int, kept: np.ndarray) -> Any:
    x, y = run.own
    return fedaudit.guard(
        state, run.states[:t], data=(x[kept], y[kept]), module=run.build(), local=run.local
    )


def evaluate(seeds: int, out: Path) -> None:
    """Honest runs from seed 100 on and plants from seed 200 on; writes after every seed."""
    honest: dict[str, list[int]] = defaultdict(list)
    exposing: Counter[str] = Counter()
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for number in range(seeds):
        for kind, data, training in KINDS:
            name = f"{kind}, {data}, {training}"
            run = honest_run(kind, data, 100 + number, max(LOOKED_AT), training)
            every = np.ones(len(run.own[0]), dtype=bool)
            reports = [_looked_at(run, run.states[t], t, every) for t in LOOKED_AT]
            honest[name].append(sum(r.tampering.verdict == "altered" for r in reports))
            exposing[name] += sum(bool(r.exposure.exposed) for r in reports)
        for data in ("digits", "breast-cancer"):
            _planted(honest_run("mlp", data, 200 + number, 12), 200 + number, data, found)
        _update(out, _results(honest, exposing, found))
        print(f"{number + 1} of {seeds} seeds", file=sys.stderr, flush=True)


def _results(
    honest: dict[str, list[int]], exposing: Counter[str], found: dict[str, Counter[str]]
) -> dict[str, Any]:
    looks = len(LOOKED_AT)
    runs = [a for each in honest.values() for a in each]
    return {
        "rounds": LOOKED_AT,
        "honest runs altered": _rate(sum(a > 0 for a in runs), len(runs)),
        "honest models altered": _rate(sum(runs), looks * len(runs)),
        "honest models that expose a record": _rate(exposing.total(), looks * len(runs)),
        "by kind": {
            n: {
                "runs altered": _rate(sum(x > 0 for x in a), len(a)),
                "models that expose a record": _rate(exposing[n], looks * len(a)),
            }
            for n, a in honest.items()
        },
        "planted": {
            n: {
                k: _rate(c[k], c[f"{k}, tried"])
                for k in ("altered", "altered, target absent", "target named")
                if c[f"{k}, tried"]
            }
            for n, c in sorted(found.items())
        },
    }


def _planted(run: Behaved, seed: int, data: str, found: dict[str, Counter[str]]) -> None:
    """All plants at rounds 3 and 12 of one run."""
    for t in (3, 12):
        before = Behaved(run.states[: t + 1], run.own, run.build, run.local)
        for name, plant in PLANTS.items():
            rng = np.random.default_rng(1000 * seed + t)
            state, target = plant(before, int(rng.integers(len(run.own[0]))), rng)
            every = np.ones(len(run.own[0]), dtype=bool)
            report = _looked_at(before, state, t, every)
            counts = found[f"{name}, {data}, round {t}"]
            counts["altered, tried"] += 1
            counts["altered"] += report.tampering.verdict == "altered"
            if target is None:
                continue
            counts["target named, tried"] += 1
            counts["target named"] += target in {r.record for r in report.exposure.exposed}
            every[target] = False
            absent = _looked_at(before, state, t, every)
            counts["altered, target absent, tried"] += 1
            counts["altered, target absent"] += absent.tampering.verdict == "altered"


BINS = (1.0, 3.0, 10.0, 30.0, 100.0, float("inf"))
DRAWS = 100


def meaning(seeds: int) -> list[dict[str, Any]]:
    """How often a server is right about membership, by the exposure that a client of 100 computes.

    One local step. For each record the server takes the update's product with what the record adds
    to its most exposed unit, and says "in" above a threshold that it sets on draws of its own. The
    other 99 records are drawn anew from all of the data; half of the draws have the record. Records
    of one run resemble each other: `records` counts them, and the shares have no interval.
    """
    right, told = Counter[int](), Counter[int]()
    for number in range(seeds):
        for data in ("digits", "breast-cancer"):
            run = honest_run("mlp", data, 300 + number, 12)
            rng = np.random.default_rng(number)
            pool = _pool(data, 300 + number)
            for t in (3, 12):
                for at, hits in _games(run, run.states[t], pool, rng):
                    right[at] += hits
                    told[at] += 2 * DRAWS
    return [
        {
            "from": BINS[i],
            "records": told[i] // (2 * DRAWS),
            "right": round(right[i] / told[i], 3),
        }
        for i in range(len(BINS) - 1)
        if told[i]
    ]


def _pool(data: str, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """All records of a data set, as `honest_run` reads them."""
    loaded = builtin.load(data, seed=Seed(seed))
    x = torch.as_tensor(np.asarray(loaded.x)).float()
    if data != "digits":
        x = (x - x.mean(0)) / x.std(0).clamp(min=1e-6)
    return x, torch.as_tensor(loaded.y)


def _games(
    run: Behaved, state: State, pool: tuple[torch.Tensor, torch.Tensor], rng: np.random.Generator
) -> Iterator[tuple[int, int]]:
    """(bin of the exposure, right answers of 2 x DRAWS) of every own record, at its best unit."""
    module = run.build()
    module.load_state_dict(state)
    x, y = (torch.cat([own, every]) for own, every in zip(run.own, pool, strict=True))
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
        others = np.delete(k[n:], np.flatnonzero((pool[0] == run.own[0][i]).flatten(1).all(1)))
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
    parser.add_argument("what", choices=("runs", "meaning"))
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--out", type=Path, default=RESULTS)
    chosen = parser.parse_args()
    if chosen.what == "runs":
        evaluate(chosen.seeds, chosen.out)
    else:
        _update(chosen.out, {"membership by exposure": meaning(chosen.seeds)})


if __name__ == "__main__":
    main()
