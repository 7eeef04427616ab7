"""Plants by somebody who had read docs/guard.md and none of the code of the guard or of its plants.

Three ideas that the page does not list. Each takes a model, the target and records of the server's
own, and returns an altered copy. Measured once, as they stand:

    python -m reproductions.guard.outsiders --seeds 6


- ``climbed``: no unit is built. The server trains the loss of the target up and that of its own
  records back down (Nasr et al. 2019); a client that holds the target undoes it in one round.
- ``sharpened``: the head is shifted so that the target lies between its two best classes, and
  scaled until other records have no gradient left: the answer is the target's.
- ``twinned``: two units get one ordinary direction and two thresholds, the target between them.
  Each sees many records; their difference sees one.
"""

from __future__ import annotations

import argparse
import copy
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, jvp
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from fedaudit.protections.guard.tampering import HISTORY
from reproductions.guard import behaviour, plants
from reproductions.guard.plants import Planted
from reproductions.guard.rounds import Behaved, State, answer, honest_runs, pool

OUTSIDERS = 60_000
"""First seed of the runs."""
AUXILIARY = 200
"""Records of the server's own, none of them the client's."""
DRAWS = 200
"""Answers with the target, and as many without, that show what a plant gains."""


def _linears(model: nn.Module) -> list[nn.Linear]:
    return [part for part in model.modules() if isinstance(part, nn.Linear)]


def climbed(
    model: nn.Module,
    target: tuple[Tensor, Tensor],
    others: tuple[Tensor, Tensor],
    *,
    loss: float = 5.0,
    rate: float = 0.05,
    steps: int = 200,
) -> nn.Module:
    """Ascent on the target's loss until it is ``loss`` nats, with descent on ``others`` beside.

    ``target`` is one record as a batch, (1, ...) and (1,); ``others`` (n, ...) and (n,).
    """
    planted = copy.deepcopy(model)
    optimiser = torch.optim.SGD(planted.parameters(), lr=rate)
    for _ in range(steps):
        high = F.cross_entropy(planted(target[0]), target[1])
        if high >= loss:
            break
        optimiser.zero_grad()
        torch.autograd.backward(F.cross_entropy(planted(others[0]), others[1]) - high)
        nn.utils.clip_grad_norm_(planted.parameters(), 1.0)
        optimiser.step()
    return planted


def sharpened(
    model: nn.Module,
    target: tuple[Tensor, Tensor],
    others: tuple[Tensor, Tensor],
    *,
    left: float = 0.01,
    largest: float = 100.0,
) -> nn.Module:
    """The target keeps half of its error; the median other record at most ``left`` of its own."""
    planted = copy.deepcopy(model)
    head = _linears(planted)[-1]
    with torch.no_grad():
        logits = planted(target[0])[0]
        first, second = logits.topk(2).indices
        half = (logits[first] - logits[second]) / 2
        head.bias[first] -= half
        head.bias[second] += half
        outputs = planted(others[0])
        scale = 1.0
        while scale < largest:
            error = 1 - F.softmax(scale * outputs, 1).max(1).values
            if error.median() <= left:
                break
            scale *= 1.25
        head.weight.mul_(scale)
        head.bias.mul_(scale)
    return planted


def twinned(
    model: nn.Module, target: tuple[Tensor, Tensor], others: tuple[Tensor, Tensor]
) -> nn.Module:
    """Overwrite the two least used units of the first layer with one row and two thresholds.

    The row is the one of the layer along which the target is farthest from its nearest neighbour
    among ``others``, in standard deviations; thresholds lie half way to the neighbours. Both units
    get the same outgoing weights, so that what each other record adds to them is the same.
    """
    planted = copy.deepcopy(model)
    first, after = _linears(planted)[:2]
    with torch.no_grad():
        flat = others[0].flatten(1)
        seen = flat @ first.weight.T  # (n, units)
        mine = (target[0].flatten(1) @ first.weight.T)[0]  # (units,)
        away = seen - mine
        infinite = torch.full_like(away, torch.inf)
        above = torch.where(away > 0, away, infinite).min(0).values
        below = torch.where(away < 0, -away, infinite).min(0).values
        gap = torch.minimum(above, below) / seen.std(0)
        gap[~torch.isfinite(gap)] = -1.0  # outermost targets need no twins
        row = int(gap.argmax())
        used = ((seen + first.bias) > 0).sum(0)
        used[row] = len(seen) + 1
        low, high = used.argsort()[:2].tolist()
        out = after.weight[:, [low, high]].mean(1)
        for unit, threshold in (
            (low, mine[row] - below[row] / 2),
            (high, mine[row] + above[row] / 2),
        ):
            first.weight[unit] = first.weight[row]
            first.bias[unit] = -threshold
            after.weight[:, unit] = out
    return planted


# -- evaluation ------------------------------------------------------------------------------------

Batch = tuple[Tensor, Tensor]
Alter = Callable[[nn.Module, Batch, Batch], nn.Module]


def strangers(run: Behaved, rng: np.random.Generator) -> Batch:
    """All records of the run's data that are not the client's, in random order."""
    for data in ("digits", "breast-cancer", "wine"):
        x, y = pool(data)
        if x.shape[1:] != run.own[0].shape[1:]:
            continue
        own = (x.flatten(1)[:, None] == run.own[0].flatten(1)[None]).all(2).any(1)
        rows = torch.as_tensor(rng.permutation(np.flatnonzero(~own.numpy())))
        return x[rows], y[rows]
    raise ValueError("no data of this shape")


def plant(alter: Alter, run: Behaved, target: int, rng: np.random.Generator) -> Planted:
    x, y = strangers(run, rng)
    one = (run.own[0][[target]], run.own[1][[target]])
    module = alter(answer(run, run.states[-1]), one, (x[:AUXILIARY], y[:AUXILIARY]))
    return [{k: v.detach().clone() for k, v in module.state_dict().items()}], target


def gain(run: Behaved, state: State, target: int, rng: np.random.Generator) -> float:
    """AUC of a server that tells answers with the target from answers without it.

    One local step on as many records as the client has, drawn anew; the score is the product of the
    answer with the target's own gradient, or with the part of it that `twinned` looks at.
    """
    model = answer(run, state)
    weights = dict(model.named_parameters())

    def losses(w: State, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(model, w, (x,)), y, reduction="none")

    one = (run.own[0][[target]], run.own[1][[target]])
    x, y = strangers(run, rng)
    along = grad(lambda w: losses(w, *one).sum())(weights)
    if twins := _twins(state):
        low, high = twins
        kept = along["1.weight"][low] - along["1.weight"][high]
        along = {k: torch.zeros_like(v) for k, v in along.items()}
        along["1.weight"][low], along["1.weight"][high] = kept, -kept
    x, y = torch.cat([one[0], x]), torch.cat([one[1], y])
    with sdpa_kernel(SDPBackend.MATH):  # the others have no forward derivative
        k = jvp(lambda w: losses(w, x, y), (weights,), (along,))[1].detach().numpy()
    n = len(run.own[0])
    without = rng.choice(k[1:], size=(DRAWS, n)).sum(1)
    holding = rng.choice(k[1:], size=(DRAWS, n - 1)).sum(1) + k[0]
    wins = (holding[:, None] > without).mean() + 0.5 * (holding[:, None] == without).mean()
    return float(wins)


def _twins(state: State) -> tuple[int, int] | None:
    """Two units of the first layer with the same row, the one with the larger bias first."""
    rows = state.get("1.weight")
    if rows is None or rows.dim() != 2:
        return None
    same = torch.triu((rows[:, None] == rows).all(2) & rows.any(1), 1).nonzero()
    if len(same) != 1:
        return None
    a, b = same[0].tolist()
    return (a, b) if state["1.bias"][a] > state["1.bias"][b] else (b, a)


MANY = (*plants.TABLES, ("deep mlp", "digits", "sgd"), *plants.IMAGES)
FAMILIES: tuple[plants.Family, ...] = (
    ("the target's loss trained up", partial(plant, climbed), (*MANY, plants.VIT)),
    ("a head with the target on the edge", partial(plant, sharpened), (*MANY, plants.VIT)),
    ("two units with one direction", partial(plant, twinned), (*plants.TABLES, MANY[4])),
)


def measured(seeds: int) -> dict[str, Any]:
    """Rates of all families, alarms of the same runs left honest, and what plants gain."""
    hosts = {host for _, _, some in FAMILIES for host in some}
    controls: Counter[str] = Counter()
    gains: dict[str, list[float]] = defaultdict(list)
    for host in sorted(hosts):
        runs = honest_runs(*host[:2], range(OUTSIDERS, OUTSIDERS + seeds), 24, host[2])
        for number, run in enumerate(runs):
            short = replace(run, states=run.states[: max(behaviour.LOOKED_AT) + 1])
            found = behaviour.judged(short)
            controls["runs"] += 1
            controls["runs altered"] += bool(found)
            controls["models"] += len(short.states) - HISTORY
            controls["models altered"] += len(found)
            for at in behaviour.LOOKED_AT:
                cut = replace(run, states=run.states[: at + 1])
                for name, family, some in FAMILIES:
                    if host not in some:
                        continue
                    rng = np.random.default_rng([OUTSIDERS, number, at])  # as in `planted`
                    target = int(rng.integers(len(run.own[0])))
                    (state,), _ = family(cut, target, rng)
                    gains[name].append(gain(cut, state, target, rng))
                    gains[f"{name}: honest"].append(gain(cut, run.states[at], target, rng))
        print(host, dict(controls), flush=True)
    return {
        **behaviour.planted(seeds, FAMILIES, OUTSIDERS),
        "honest models": behaviour._rate(controls["models altered"], controls["models"]),
        "honest runs": behaviour._rate(controls["runs altered"], controls["runs"]),
        "AUC of the server": {
            k: {"median": round(float(np.median(v)), 3), "at least 0.9": sum(a >= 0.9 for a in v)}
            for k, v in gains.items()
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--out", type=Path, default=behaviour.RESULTS)
    chosen = parser.parse_args()
    behaviour._update(chosen.out, {"outsiders": measured(chosen.seeds)})


if __name__ == "__main__":
    main()
