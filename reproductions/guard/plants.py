"""What a dishonest server plants in the newest model of an honest run.

A plant is a function of a run, a target among its own records, and random numbers. It returns the
newest models that it changed, oldest first (one, but for drift), and the record that they are
about, or None where that is no single one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from fedaudit.protections.guard.local_steps import by_position, watched
from reproductions.guard.rounds import Behaved, State, answer

Planted = tuple[list[State], int | None]
Plant = Callable[[Behaved, int, np.random.Generator], Planted]
FIRST, BIAS, SECOND = "1.weight", "1.bias", "3.weight"


@dataclass(frozen=True)
class Site:
    """A layer of linear units: its inputs (P, n, D) on own records, its weights (U, D), a bias."""

    name: str
    inputs: Tensor
    weight: Tensor
    bias: Tensor | None

    @property
    def outputs(self) -> Tensor:
        """(P, n, U)."""
        shift = 0.0 if self.bias is None else self.bias
        return self.inputs @ self.weight.T + shift


def site(run: Behaved, state: State, name: str) -> Site:
    module = answer(run, state).eval()
    layer = module.get_submodule(name)
    with torch.no_grad():
        calls, _ = watched(module, {name: layer}, run.own[0])
    inputs = by_position(layer, calls[name][0][0], len(run.own[0]), inputs=True)
    assert inputs is not None
    bias = state.get(f"{name}.bias")
    return Site(name, inputs, state[f"{name}.weight"].flatten(1), bias)


def newest(run: Behaved) -> State:
    return {k: v.clone() for k, v in run.states[-1].items()}


def _alone(z: Tensor, target: int) -> Tensor:
    """The bias at which only the target's output (P, n) is positive, and at one position."""
    at = z[:, target].max()
    others = torch.cat([z[:, :target], z[:, target + 1 :]], dim=1).max()
    return -(others + at) / 2


def _filter(at: Site, target: int, size: float) -> Tensor:
    """The direction (D,) in which the target stands out most, longer than usual rows."""
    every = at.inputs.flatten(0, 1)
    spread = torch.cov(every.T) + 0.01 * torch.eye(every.shape[1])
    apart = at.inputs[:, target] - every.mean(0)
    solved = torch.linalg.solve(spread, apart.T).T
    best = int((solved * apart).sum(1).argmax())
    w = solved[best]
    return w / w.norm() * size * at.weight.norm(dim=1).mean()


def _write(state: State, at: Site, u: int, w: Tensor, bias: Tensor | None) -> None:
    weight = state[f"{at.name}.weight"]
    weight[u] = w.view_as(weight[u])
    if bias is not None and at.bias is not None:
        state[f"{at.name}.bias"][u] = bias


def matched_filter(
    run: Behaved,
    target: int,
    rng: np.random.Generator,
    layer: str = "1",
    unit: int | None = None,
    size: float = 3.0,
) -> Planted:
    """One unit that only the target passes, `size` times as long as usual ones."""
    state = newest(run)
    at = site(run, state, layer)
    u = int(rng.integers(len(at.weight))) if unit is None else unit
    w = _filter(at, target, size)
    _write(state, at, u, w, _alone(at.inputs @ w, target))
    return [state], target


def one_bias(run: Behaved, target: int, rng: np.random.Generator, layer: str = "1") -> Planted:
    """One changed number: the bias of a unit, so that only its strongest record is left."""
    state = newest(run)
    at = site(run, state, layer)
    u = int(rng.integers(len(at.weight)))
    z = at.inputs @ at.weight[u]
    strongest = int(z.amax(0).argmax())
    state[f"{layer}.bias"][u] = _alone(z, strongest)
    return [state], strongest


def imprint(run: Behaved, target: int, rng: np.random.Generator, share: float = 1.0) -> Planted:
    """Bins of the mean of a record in a share of the units, which all go the same way after."""
    state = newest(run)
    x = run.own[0].flatten(1)
    units = int(share * len(state[FIRST]))
    w = torch.ones(x.shape[1]) / x.shape[1] ** 0.5
    z = x @ w
    state[FIRST][:units] = w
    state[BIAS][:units] = -z.quantile(torch.linspace(0.02, 0.995, units))
    # small: a sum of as many units as are open must not settle every answer
    state[SECOND][:, :units] = state[SECOND][:, :1] * 10 / units
    alone = int(z.argmax())  # only the largest is sure to be alone in a bin
    return [state], alone if share == 1 else None


def trap_weights(run: Behaved, target: int, rng: np.random.Generator) -> Planted:
    """All rows: half of the weights negative and slightly larger; few records get through."""
    state = newest(run)
    rows, width = state[FIRST].shape
    w = np.abs(rng.normal(size=(rows, width))) * 0.5
    for row in w:
        row[rng.permutation(width)[: width // 2]] *= -1.15
    state[FIRST] = torch.as_tensor(w).float()
    state[BIAS] = torch.zeros(rows)
    return [state], None


def published(run: Behaved, target: int, rng: np.random.Generator) -> Planted:
    """[ActiveMembership] Eqs. (2, 3) inside an MLP: distances from the target in 2 r units of the
    first layer, and one unit of the next layer that only the target passes."""
    state = newest(run)
    x = run.own[0].flatten(1)
    r = x.shape[1]
    axes = torch.eye(r)
    first, bias, after = state[FIRST], state[BIAS], state[SECOND]
    first[: 2 * r] = torch.cat([axes, -axes])
    bias[: 2 * r] = torch.cat([-x[target], x[target]])
    away = (x - x[target]).abs().sum(1)
    after[0] = 0.0
    after[0, : 2 * r] = -1.0
    state["3.bias"][0] = 0.5 * away[away > 0].min()
    return [state], target


def attention(
    run: Behaved, target: int, rng: np.random.Generator, layer: str = "blocks.0.attn.qkv"
) -> Planted:
    """A head that compares tokens along random directions, sharply: W_K is W_Q."""
    state = newest(run)
    weight = state[f"{layer}.weight"]
    width = weight.shape[1]
    size = width // 4
    turn = torch.linalg.qr(torch.as_tensor(rng.normal(size=(width, width))).float())[0][:size]
    head = int(rng.integers(4))
    at = head * size
    weight[at : at + size] = 4.0 * turn
    weight[width + at : width + at + size] = 4.0 * turn
    return [state], None


def amplified(run: Behaved, target: int, rng: np.random.Generator) -> Planted:
    """Outgoing weights of the unit that fewest records pass, times 30."""
    state = newest(run)
    z = site(run, state, "1").outputs[0]
    passing = (z > 0).sum(0)
    passing[passing == 0] = len(z) + 1
    u = int(passing.argmin())
    state[SECOND][:, u] *= 30.0
    strongest = int(z[:, u].argmax())
    return [state], strongest if int(passing[u]) == 1 else None


def decoys(run: Behaved, target: int, rng: np.random.Generator) -> Planted:
    """A matched filter among changes of the same size in two fifths of the other units."""
    (state,), named = matched_filter(run, target, rng)
    changed = (state[FIRST] != run.states[-1][FIRST]).any(1)
    for u in rng.permutation(len(changed))[: int(0.4 * len(changed))]:
        if not changed[u]:
            w = torch.as_tensor(rng.normal(size=state[FIRST].shape[1])).float()
            state[FIRST][u] = w / w.norm() * state[FIRST][changed].norm()
            state[BIAS][u] = 0.0
    return [state], named


def dead_unit(run: Behaved, target: int, rng: np.random.Generator) -> Planted:
    """A matched filter in the unit that fewest records pass, so that it is hardly missed."""
    z = site(run, run.states[-1], "1").outputs[0]
    return matched_filter(run, target, rng, unit=int((z > 0).sum(0).argmin()))


def secret_directions(run: Behaved, target: int, rng: np.random.Generator) -> Planted:
    """Four units along random directions, each with a threshold that one record passes."""
    state = newest(run)
    at = site(run, state, "1")
    found = None
    for u in rng.permutation(len(at.weight))[:4]:
        w = torch.as_tensor(rng.normal(size=at.weight.shape[1])).float()
        w = w / w.norm() * at.weight.norm(dim=1).mean()
        z = at.inputs @ w
        strongest = int(z.amax(0).argmax())
        _write(state, at, int(u), w, _alone(z, strongest))
        found = strongest if found is None else found
    return [state], found


def adapter(run: Behaved, target: int, rng: np.random.Generator) -> Planted:
    """A row of A that answers to the target, and a long column of B."""
    name = "blocks.0.mlp.fc"
    (state,), _ = matched_filter(run, target, rng, layer=f"{name}.lora_A", unit=0)
    after = state[f"{name}.lora_B.weight"]
    size = float(after.norm(dim=0).mean()) or 0.1
    column = torch.as_tensor(rng.normal(size=len(after))).float()
    after[:, 0] = column / column.norm() * 3 * size
    return [state], target


def drift(
    run: Behaved, target: int, rng: np.random.Generator, rounds: int, plant: Plant = matched_filter
) -> Planted:
    """A plant that is mixed in over some rounds, on top of honest training."""
    earlier = replace(run, states=run.states[:-rounds])
    (goal,), named = plant(earlier, target, rng)
    start = earlier.states[-1]
    moved = {k: (goal[k] != start[k]) for k in goal}
    out = []
    for j, honest in enumerate(run.states[-rounds:], 1):
        mixed = {
            k: torch.where(moved[k], (v + j / rounds * (goal[k] - v)).to(v.dtype), v)
            for k, v in honest.items()
        }
        out.append(mixed)
    return out, named


Family = tuple[str, Plant, tuple[tuple[str, str, str], ...]]
TABLES: tuple[tuple[str, str, str], ...] = (
    ("mlp", "digits", "sgd"),
    ("mlp", "breast-cancer", "sgd"),
    ("mlp", "wine", "sgd"),
    ("mlp", "digits", "adam"),
)
IMAGES = (("plain cnn", "digits", "sgd"),)
VIT, ADAPTERS = ("vit", "digits", "adam"), ("adapters", "digits", "adam")
DEEP = (("deep mlp", "wine", "sgd"),)
PLANTS: tuple[Family, ...] = (
    ("matched filter", matched_filter, TABLES),
    ("one bias", one_bias, TABLES),
    ("imprint", imprint, TABLES),
    ("imprint in a quarter", partial(imprint, share=0.25), TABLES),
    ("trap weights", trap_weights, TABLES),
    ("published", published, DEEP),
    ("amplified outgoing", amplified, TABLES),
    ("decoys", decoys, TABLES),
    ("dead unit", dead_unit, TABLES),
    ("secret directions", secret_directions, TABLES),
    ("convolution", partial(matched_filter, layer="2"), IMAGES),
    ("one bias of a convolution", partial(one_bias, layer="2"), IMAGES),
    ("in a vit", partial(matched_filter, layer="blocks.0.mlp.fc", size=30.0), (VIT,)),
    ("attention", attention, (VIT,)),
    ("adapter", adapter, (ADAPTERS,)),
    ("drift over 3", partial(drift, rounds=3), TABLES),
    ("drift over 10", partial(drift, rounds=10), TABLES),
)
"""(name, plant, runs that it is planted in)."""
