"""Planted models, as a client would receive them, and the disguises they may wear.

A disguise that only reorders or rescales keeps what the model computes; noise does not, and costs
the adversary the more the larger it is; rotation keeps the attack and changes what it looks like.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache, partial

import numpy as np

from fedaudit.audits.active_membership import attention
from fedaudit.data import builtin
from fedaudit.randomness import Seed
from fedaudit.tasks import models
from fedaudit.tasks.task import seeded

State = dict[str, np.ndarray]


# -- fully connected ------------------------------------------------------------------------------


def fully_connected(
    rng: np.random.Generator, x: np.ndarray, *, hidden: int | None = None, rotated: bool = False
) -> State:
    """[ActiveMembership] Eqs. (2, 3) for a record of x (n, r), as the first layers of a classifier
    of 10 classes. `hidden` units in the first layer, of which 2 r are planted; None: all are.
    `rotated`: distances along random directions in place of the axes."""
    n, r = x.shape
    target = x[rng.integers(n)].astype(np.float64)
    axes = np.linalg.qr(rng.normal(size=(r, r)))[0] if rotated else np.eye(r)
    width = 2 * r if hidden is None else hidden
    second = 1 if hidden is None else 64
    honest = seeded(Seed(int(rng.integers(1 << 30))), "host", models.mlp, r, (width, second), 10)
    state = {k: v.numpy().copy() for k, v in honest.state_dict().items()}
    first, bias, after = state["1.weight"], state["1.bias"], state["3.weight"]
    first[: 2 * r] = np.concatenate([axes, -axes])
    bias[: 2 * r] = np.concatenate([-axes @ target, axes @ target])
    after[0] = 0.0
    after[0, : 2 * r] = -1.0
    others = np.abs(x - target).sum(axis=1)
    state["3.bias"][0] = 0.5 * others[others > 0].min()  # tau
    state["5.weight"][:, 0] = 0.0
    state["5.weight"][-1, 0] = 1.0
    return state


def adaptive(rng: np.random.Generator, x: np.ndarray, times: int = 4) -> State:
    """A detector by somebody who knows the checks: 2 r random directions g_i in place of the axes,
    without mirror images, random weights u_i in place of ones, one unit in `times` of the layer.

    sum_i u_i max(g_i (X - T), 0) is still about proportional to the distance from the target.
    """
    n, r = x.shape
    target = x[rng.integers(n)].astype(np.float64)
    hidden = 2 * r * times
    honest = seeded(Seed(int(rng.integers(1 << 30))), "host", models.mlp, r, (hidden, 64), 10)
    state = {k: v.numpy().copy() for k, v in honest.state_dict().items()}
    g = rng.normal(size=(2 * r, r)) * float(state["1.weight"].std())
    u = np.abs(rng.normal(size=2 * r)) * float(state["3.weight"].std())
    state["1.weight"][: 2 * r], state["1.bias"][: 2 * r] = g, -g @ target
    state["3.weight"][0] = 0.0
    state["3.weight"][0, : 2 * r] = -u
    away = np.maximum((x - target) @ g.T, 0.0) @ u
    state["3.bias"][0] = 0.5 * away[away > 0].min()
    return reorder_units(state, rng)


def reorder_units(state: State, rng: np.random.Generator) -> State:
    """Hidden units of the first layer in another order: the same function."""
    order = rng.permutation(len(state["1.weight"]))
    return {
        **state,
        "1.weight": state["1.weight"][order],
        "1.bias": state["1.bias"][order],
        "3.weight": state["3.weight"][:, order],
    }


def rescale_units(state: State, rng: np.random.Generator) -> State:
    """Hidden units times random factors from 1/4 to 4, taken back in the next layer: the same
    function."""
    factor = np.exp(rng.uniform(-math.log(4), math.log(4), len(state["1.weight"])))
    return {
        **state,
        "1.weight": state["1.weight"] * factor[:, None].astype(np.float32),
        "1.bias": state["1.bias"] * factor.astype(np.float32),
        "3.weight": state["3.weight"] / factor.astype(np.float32),
    }


def shrink_units(state: State, factor: float = 1e-25) -> State:
    """The first layer times a factor whose square is nothing in single precision, taken back in
    the next one: the same function."""
    f = np.float32(factor)
    return {
        **state,
        "1.weight": state["1.weight"] * f,
        "1.bias": state["1.bias"] * f,
        "3.weight": state["3.weight"] / f,
    }


def whole_numbers(state: State) -> State:
    """Tensors of whole numbers as integers: a module that loads them casts them back."""
    return {k: t.astype(np.int64) if (t == np.round(t)).all() else t for k, t in state.items()}


# -- attention ------------------------------------------------------------------------------------


def memory(rng: np.random.Generator, d: int = 32, *, rotated: bool = False) -> State:
    """[ActiveMembership] Algorithm 3 with its own tensors, four heads of (d - 1, d), beside the
    blocks of an honest vision transformer. `rotated`: every head in a basis of its own."""
    beta, gamma = float(np.exp(rng.uniform(-1, 3))), float(rng.uniform(0.05, 1.0))
    target, other = rng.normal(size=(2, d))
    row = attention.weights(target, other, beta=beta, gamma=gamma, classes=10, rng=rng)
    shapes = {
        "query": (4, d - 1, d),
        "key": (4, d - 1, d),
        "value": (4, d, d),
        "out_weight": (2 * d, 4 * d),
        "out_bias": (2 * d,),
        "head.weight": (11, 1),
        "head.bias": (11,),
    }
    ends = np.cumsum([math.prod(s) for s in shapes.values()])[:-1]
    parts = np.split(row.copy(), ends)
    own = {k: p.reshape(s) for (k, s), p in zip(shapes.items(), parts, strict=True)}
    if rotated:
        for h in range(4):
            turn = _turn(rng, d - 1)
            own["query"][h], own["key"][h] = turn @ own["query"][h], turn @ own["key"][h]
            turn = _turn(rng, d)
            own["value"][h] = turn @ own["value"][h]
            own["out_weight"][:, h * d : (h + 1) * d] = (
                own["out_weight"][:, h * d : (h + 1) * d] @ turn.T
            )
    seed = Seed(int(rng.integers(1 << 30)))
    host = seeded(seed, "host", models.TinyViT, (1, 8, 8), 2, 32, 2, 4, 10)
    blocks = {k: v.numpy().copy() for k, v in host.state_dict().items() if k.startswith("blocks.1")}
    return {**{f"first.{k}": v.astype(np.float32) for k, v in own.items()}, **blocks}


def fused(rng: np.random.Generator, width: int = 64, *, rotated: bool = False) -> State:
    """The same inside a vision transformer of `width` with its usual tensors: four heads of
    width / 4, which see the first width / 4 numbers of a token."""
    seed = Seed(int(rng.integers(1 << 30)))
    host = seeded(seed, "host", models.TinyViT, (1, 8, 8), 2, width, 2, 4, 10)
    state = {k: v.numpy().copy() for k, v in host.state_dict().items()}
    d = width // 4
    own = {k.removeprefix("first."): v for k, v in memory(rng, d, rotated=rotated).items()}
    qkv = np.zeros((3, 4, d, width), dtype=np.float32)
    qkv[0, :, : d - 1, :d], qkv[1, :, : d - 1, :d] = own["query"], own["key"]
    qkv[2, :, :, :d] = own["value"]
    state["blocks.0.attn.qkv.weight"] = qkv.reshape(3 * width, width)
    state["blocks.0.attn.proj.weight"][: 2 * d] = own["out_weight"]
    state["blocks.0.attn.proj.bias"][: 2 * d] = own["out_bias"]
    return state


def _turn(rng: np.random.Generator, d: int) -> np.ndarray:
    return np.linalg.qr(rng.normal(size=(d, d)))[0]


def reorder_heads(state: State, rng: np.random.Generator) -> State:
    """Dimensions of attention, of values, and units of the output layer in another order."""
    out = dict(state)
    a, e = state["first.query"].shape[1], state["first.value"].shape[1]
    one, two = rng.permutation(a), rng.permutation(e)
    units = rng.permutation(len(state["first.out_bias"]))
    columns = np.concatenate([h * e + two for h in range(4)])
    out["first.query"], out["first.key"] = state["first.query"][:, one], state["first.key"][:, one]
    out["first.value"] = state["first.value"][:, two]
    out["first.out_weight"] = state["first.out_weight"][units][:, columns]
    out["first.out_bias"] = state["first.out_bias"][units]
    return out


def rescale_heads(state: State, rng: np.random.Generator) -> State:
    """Dimensions of attention, and of values, times random factors that are taken back."""
    out = dict(state)
    heads, a, _ = state["first.query"].shape
    factor = np.exp(rng.uniform(-math.log(4), math.log(4), (heads, a, 1))).astype(np.float32)
    out["first.query"], out["first.key"] = (
        state["first.query"] * factor,
        state["first.key"] / factor,
    )
    e = state["first.value"].shape[1]
    factor = np.exp(rng.uniform(-math.log(4), math.log(4), (heads, e, 1))).astype(np.float32)
    out["first.value"] = state["first.value"] * factor
    out["first.out_weight"] = state["first.out_weight"] / factor.reshape(1, -1)
    return out


def shrink_heads(state: State, factor: float = 1e-25) -> State:
    """Queries and values times a tiny factor, taken back in keys and the output layer."""
    f = np.float32(factor)
    out = dict(state)
    for name in ("query", "value"):
        out[f"first.{name}"] = state[f"first.{name}"] * f
    for name in ("key", "out_weight"):
        out[f"first.{name}"] = state[f"first.{name}"] / f
    return out


# -- noise, and the list --------------------------------------------------------------------------


def noisy(state: State, share: float, rng: np.random.Generator) -> State:
    """Every tensor plus Gaussian noise with `share` of the tensor's norm."""
    out = {}
    for name, t in state.items():
        size = share * float(np.linalg.norm(t)) / math.sqrt(t.size)
        out[name] = (t + size * rng.normal(size=t.shape)).astype(np.float32)
    return out


@lru_cache
def records(name: str) -> np.ndarray:
    """All records (n, r) of a built-in data set."""
    x = np.asarray(builtin.load(name, seed=Seed(1)).x)
    return x.reshape(len(x), -1)


NOISE = (0.01, 0.05, 0.1, 0.3, 0.5, 1.0)
HIDDEN = (2, 4, 8, 16)
"""The planted units are one in so many of the layer."""

Make = Callable[[np.random.Generator], State]


def _with_noise(make: Make, share: float) -> Make:
    return lambda rng: noisy(make(rng), share, rng)


def fc_cases(data: str) -> dict[str, Make]:
    def plain(rng: np.random.Generator, **settings: object) -> State:
        return fully_connected(rng, records(data), **settings)  # type: ignore[arg-type]

    def among(rng: np.random.Generator, times: int) -> State:
        x = records(data)
        return reorder_units(fully_connected(rng, x, hidden=2 * x.shape[1] * times), rng)

    cases: dict[str, Make] = {
        "as published": plain,
        "permuted": lambda rng: reorder_units(plain(rng), rng),
        "scaled": lambda rng: rescale_units(plain(rng), rng),
        "scaled by 1e-25": lambda rng: shrink_units(plain(rng)),
        "whole numbers": lambda rng: whole_numbers(plain(rng)),
    }
    for times in HIDDEN:
        cases[f"one unit in {times}"] = partial(among, times=times)
    for share in NOISE:
        cases[f"noise {share:.0%}"] = _with_noise(plain, share)
    cases["one unit in 4, permuted, scaled, noise 10%"] = lambda rng: noisy(
        rescale_units(among(rng, 4), rng), 0.1, rng
    )
    cases["rotated"] = lambda rng: plain(rng, rotated=True)
    cases["rotated, noise 10%"] = lambda rng: noisy(plain(rng, rotated=True), 0.1, rng)
    for times in (4, 16):
        cases[f"adaptive, one unit in {times}"] = partial(adaptive, x=records(data), times=times)
    return cases


def attention_cases() -> dict[str, Make]:
    cases: dict[str, Make] = {
        "as published": memory,
        "in a vision transformer": fused,
        "permuted": lambda rng: reorder_heads(memory(rng), rng),
        "scaled": lambda rng: rescale_heads(memory(rng), rng),
        "scaled by 1e-25": lambda rng: shrink_heads(memory(rng)),
        "whole numbers": lambda rng: whole_numbers(memory(rng)),
    }
    for share in NOISE:
        cases[f"noise {share:.0%}"] = _with_noise(memory, share)
    cases["permuted, scaled, noise 10%"] = lambda rng: noisy(
        rescale_heads(reorder_heads(memory(rng), rng), rng), 0.1, rng
    )
    cases["rotated"] = lambda rng: memory(rng, rotated=True)
    cases["rotated, noise 10%"] = lambda rng: noisy(memory(rng, rotated=True), 0.1, rng)
    return cases


GROUPS: dict[str, dict[str, Make]] = {
    "fc, digits": fc_cases("digits"),
    "fc, breast-cancer": fc_cases("breast-cancer"),
    "attention": attention_cases(),
}
