"""What is run: independent pieces that can be measured in any order.

A piece is (experiment, set, variant). Estimates are stored as [value, low, high].
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedaudit.audits.active_membership import attention, games, scores, theory
from fedaudit.audits.active_membership.adversary import Attention, FullyConnected
from fedaudit.audits.active_membership.games import Challenge, Universe
from fedaudit.errors import UsageError
from fedaudit.randomness import Seed
from fedaudit.results import Estimate, Underpowered
from fedaudit.stats import roc
from fedaudit.stats.intervals import wilson
from reproductions.active_membership.setting import (
    CATEGORICAL,
    Features,
    Scale,
    features,
    fetched,
    local,
    patched,
    universe_of,
)

Result = dict[str, Any]
DRAWS = Seed(20)


@dataclass(frozen=True, kw_only=True)
class Piece:
    """One measurement."""

    experiment: str
    data: str
    variant: str

    @property
    def key(self) -> str:
        return f"{self.experiment}/{self.data}/{self.variant}"

    @property
    def rng(self) -> np.random.Generator:
        return DRAWS.generator(self.key)


def pieces(scale: Scale, only: tuple[str, ...] = ()) -> list[Piece]:
    """All pieces of a scale, the cheap ones first."""
    out: list[Piece] = []

    def add(experiment: str, data: str, variant: str) -> None:
        if not only or experiment in only:
            out.append(Piece(experiment=experiment, data=data, variant=variant))

    for kind, sizes in (("one-hot", scale.one_hot), ("spherical", scale.spherical)):
        for d in sizes:
            for n in scale.patterns:
                if n < d:
                    add("floor", kind, f"{n} {d}")
    for name in scale.sets:
        for mechanism in ("bitrand", "ome", *CATEGORICAL):
            grid = scale.categorical if mechanism in CATEGORICAL else scale.bitwise
            for epsilon in grid[:: 3 if mechanism == "ome" else 1]:
                add("fc", name, f"{mechanism} {epsilon:g}")
    image = scale.sets[-1]
    small = 49 if image != "digits" else 4
    first = scale.batches[0]
    for epsilon in scale.attention[:: 2 if len(scale.attention) > 2 else 1]:
        add("beta", image, f"{small} {first} bitrand {epsilon:g}")
    for mechanism in CATEGORICAL:
        for epsilon in scale.categorical[:4]:
            add("attention", image, f"{small} {first} {mechanism} {epsilon:g}")
    for batch in scale.batches:
        for epsilon in scale.attention:
            add("attention", image, f"{small} {batch} bitrand {epsilon:g}")
    if image != "digits":
        for batch in scale.batches:
            for epsilon in (1.0, 3.0, 6.0) if batch == first else (3.0,):
                add("attention", image, f"144 {batch} bitrand {epsilon:g}")
    return out


def measure(piece: Piece, scale: Scale) -> Result:
    import torch

    torch.set_num_threads(1)  # pieces run side by side
    return EXPERIMENTS[piece.experiment](piece, scale)


def _triple(e: Estimate | Underpowered | None) -> list[float] | None:
    if not isinstance(e, Estimate):
        return None
    return [round(v, 5) for v in (e.value, e.low, e.high)]


# -- Theorem 3 on synthetic patterns --------------------------------------------------------------


def _floor(piece: Piece, scale: Scale) -> Result:
    """[ActiveMembership] Figures 5 and 6: the floor of Theorem 3 over the noise's L1 norm, beta 10.

    Noise has a random direction; its L1 norm is given, its L2 norm is what enters the bound.
    """
    n, d = map(int, piece.variant.split())
    rng = piece.rng
    count = max(4, min(200, (1 << 25) // (n * d * 8)))
    if piece.data == "one-hot":
        clean = np.eye(d)[np.argsort(rng.random((count, d)), axis=1)[:, :n]]
    else:
        clean = rng.normal(size=(count, n, d))
        clean /= np.linalg.norm(clean, axis=2, keepdims=True)
    # one dimension more, which no pattern uses: the server chooses the model, and may leave it out
    clean = np.concatenate([clean, np.zeros((count, n, 1))], axis=2)
    unused = np.zeros((1, d + 1))
    unused[0, -1] = 1.0
    out: Result = {}
    for size in scale.noise:
        r = rng.normal(size=clean.shape)
        r *= size / np.abs(r).sum(axis=2, keepdims=True)
        row: Result = {"L2": round(float(np.linalg.norm(r, axis=2).mean()), 5)}
        for name, other in (("spare", unused), ("random", None)):
            try:
                f = attention.floor(
                    clean, clean + r, 10.0, records=1, rng=rng, draws=scale.draws, other=other
                )
            except UsageError as error:  # the theorem says nothing here, and so does the page
                row[name] = error.what
                continue
            parts = (f.value, f.low, f.near_target, f.near_other, f.in_box)
            row[name] = [round(v, 4) for v in parts]
        out[f"{size:g}"] = row
    return out


# -- the fully connected adversary ----------------------------------------------------------------


def _fc(piece: Piece, scale: Scale) -> Result:
    """[ActiveMembership] Figures 7, 8 and 15: success, bounds, and what is left to learn."""
    mechanism, text = piece.variant.split()
    data, rng = features(piece.data), piece.rng
    hook = local(mechanism, float(text), data.low, data.high)
    universe = universe_of(data.x, hook, scale.universe)
    played = games.trials(len(universe), scale.records, scale.trials, scale.games, rng)
    closest = -games.distances(universe, played, rng)
    out: Result = {"radius": round(universe.radius, 4), "universe": len(universe)}
    for how in ("tuned", "published", "theory"):
        made = FullyConnected.prepare(universe, scale.records, rng, threshold=how)  # type: ignore[arg-type]
        found = scores.by_trial(closest, played.member, played.trial, made.cut, 0.95, rng)
        out[how] = _triple(found["success"])
        out[f"tau {how}"] = round(made.tau, 4)
        out["AUC"] = _triple(found["AUC"])
    return out | _bounds(universe, scale, rng) | _utility(data, universe, hook, rng)


def _bounds(universe: Universe, scale: Scale, rng: np.random.Generator) -> Result:
    channel = universe.channel
    away = games.outside(universe, universe.snapped(universe.radius), rng)
    floor = [theory.theorem1(p, scale.records, len(universe)) for p in (away.value, away.high)]
    book = channel.codes
    table = None if book is None else book.transition
    top = None if table is None else theory.ceiling(table, universe.features)[0]
    return {
        "P_M": [round(v, 5) for v in (away.value, away.low, away.high)],
        "theorem 1": [round(theory.success(v), 5) for v in floor],
        "claimed": channel.claimed_epsilon,
        "exact": round(channel.exact_epsilon, 2),
        "theorem 2 claimed": round(theory.success(theory.theorem2(channel.claimed_epsilon)), 5),
        "theorem 2": round(theory.success(theory.theorem2(channel.exact_epsilon)), 5),
        "total variation": None if top is None else round(theory.success(top), 5),
    }


def _utility(data: Features, universe: Universe, hook: Any, rng: np.random.Generator) -> Result:
    """Accuracy on held-out records as they are, of a ridge classifier trained on protected ones."""
    from sklearn.linear_model import RidgeClassifier

    train = min(2000, len(data.x))
    shown, _ = hook.randomise(data.x[:train], rng)
    fit = RidgeClassifier(alpha=100.0).fit(shown, data.y[:train])
    right = int((fit.predict(data.test_x) == data.test_y).sum())
    plain = RidgeClassifier(alpha=100.0).fit(data.x[:train], data.y[:train])
    base = int((plain.predict(data.test_x) == data.test_y).sum())
    n = len(data.test_y)
    return {"accuracy": _triple(wilson(right, n)), "accuracy without": _triple(wilson(base, n))}


# -- attention ------------------------------------------------------------------------------------


def _prepared(piece: Piece, scale: Scale, beta: float | None) -> tuple[Attention, Challenge]:
    count, batch, mechanism, text = piece.variant.split()
    data, rng = patched(piece.data, int(count), scale.images), piece.rng
    hook = local(mechanism, float(text), -1.0, 1.0, levels=4)
    if mechanism == "bitrand":
        hook = replace(hook, bits=10, integer_bits=1)
    universe = universe_of(data.x, hook, scale.images)
    n = min(int(batch), len(universe) - 1)
    made = Attention.prepare(
        universe,
        data.identity,
        n,
        rng,
        beta=beta,
        betas=(0.5, 1.0, 4.0, 16.0, 64.0),
        simulated=min(100, 5 * scale.games),
    )
    # 40 x 100 where a record has 144 patterns, as published
    trials, games_ = (scale.trials, scale.games) if count != "144" else (40, 100)
    return made, games.trials(len(made.universe), n, trials, games_, rng)


def _attention(piece: Piece, scale: Scale) -> Result:
    """[ActiveMembership] Figures 9 and 16."""
    made, played = _prepared(piece, scale, None)
    rng = DRAWS.generator(piece.key + "/played")
    values = made.scores(played, rng)
    found = scores.by_trial(values, played.member, played.trial, made.cut, 0.95, rng)
    corner = roc.true_positive_rate_at(values, played.member, 0.01)
    other = roc.true_positive_rate_at(-values, ~played.member, 0.01)
    return {
        "beta": round(made.beta, 5),
        "gamma": round(made.gamma, 4),
        "success": _triple(found["success"]),
        "AUC": _triple(found["AUC"]),
        "TPR at 1 % FPR": _triple(corner),
        "TNR at 1 % FNR": _triple(other),
    }


def _beta(piece: Piece, scale: Scale) -> Result:
    """[ActiveMembership] Figure 10 and Table 3: success over beta, gamma tuned at each."""
    out: Result = {}
    small = replace(scale, games=max(10, scale.games // 4))
    for beta in scale.betas:
        made, played = _prepared(piece, small, beta)
        rng = DRAWS.generator(piece.key + "/played")
        values = made.scores(played, rng)
        found = scores.by_trial(values, played.member, played.trial, made.cut, 0.95, rng)
        out[f"{beta:g}"] = {"success": _triple(found["success"]), "AUC": _triple(found["AUC"])}
    clean, shown = made.sample(DRAWS.generator(piece.key + "/measured"), 1 << 22)
    m = attention.measure(clean, shown)
    enough = theory.smallest_beta(m.separation, m.patterns, m.norm)
    out["theory"] = {
        "separation": round(m.separation, 4),
        "beta": None if enough is None else round(enough, 4),
    }
    return out


# -- Figure 13 ------------------------------------------------------------------------------------


def grr_curves(records: int = 64, alphabet: int = 100) -> Result:
    """[ActiveMembership] Figure 13: closed forms, no draws."""
    rows = {}
    for epsilon in np.arange(0.0, 12.5, 0.5).tolist():
        table = np.full((alphabet, alphabet), 1.0 / (math.exp(epsilon) + alphabet - 1))
        np.fill_diagonal(table, math.exp(epsilon) / (math.exp(epsilon) + alphabet - 1))
        rows[f"{epsilon:g}"] = {
            "theorem 4": theory.theorem4(epsilon, records, alphabet),
            "exact": theory.grr_advantage(epsilon, records, alphabet),
            "total variation": theory.ceiling(table, 1)[0],
            "theorem 2": theory.theorem2(epsilon),
        }
    return rows


EXPERIMENTS: dict[str, Callable[[Piece, Scale], Result]] = {
    "floor": _floor,
    "fc": _fc,
    "attention": _attention,
    "beta": _beta,
}


def available(scale: Scale) -> tuple[Scale, list[str]]:
    """The scale without data sets that are not on this machine, and their names."""
    missing = [name for name in scale.sets if not fetched(name)]
    return replace(scale, sets=tuple(s for s in scale.sets if s not in missing)), missing
