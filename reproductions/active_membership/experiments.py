"""What is run: independent pieces that can be measured in any order.

A piece is (experiment, set, variant). Estimates are stored as [value, low, high].
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from fedaudit.audits.active_membership import attention, games, rates, theory
from fedaudit.audits.active_membership.adversary import AttentionAdversary, FullyConnected
from fedaudit.audits.active_membership.games import Challenge, Universe
from fedaudit.errors import UsageError
from fedaudit.knowledge.probing import channel_of
from fedaudit.protections.local_dp.protection import LocalDP
from fedaudit.randomness import Seed
from fedaudit.results import Estimate, Underpowered
from fedaudit.stats import roc
from fedaudit.stats.intervals import wilson
from reproductions.active_membership import text
from reproductions.active_membership.setting import (
    CATEGORICAL,
    DIMENSION,
    PUBLISHED_DIMENSION,
    Features,
    Scale,
    features,
    fetched,
    local,
    patched,
    universe_of,
)

Result = dict[str, Any]
Floats = npt.NDArray[np.float64]
DRAWS = Seed(20)
TEXT = "newsgroups"
DECODED = ("bitrand", "rappor", "dbitflip")
"""Mechanisms whose reports are not what is trained on: they were published with a decoder."""


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

    images = [name for name in scale.sets if name != TEXT]
    for kind, sizes in (("one-hot", scale.one_hot), ("spherical", scale.spherical)):
        for d in sizes:
            for n in scale.patterns:
                if n < d:
                    add("floor", kind, f"{n} {d}")
    for name in images:
        for mechanism in ("bitrand", "ome", *CATEGORICAL):
            grid = scale.categorical if mechanism in CATEGORICAL else scale.bitwise
            for epsilon in scale.ome if mechanism == "ome" else grid:
                add("fc", name, f"{mechanism} {epsilon:g}")
    image = images[-1]
    for mechanism in ("bitrand", "ome", *CATEGORICAL):
        add("utility", image, mechanism)
    for mechanism in DECODED:
        add("decoder", image, mechanism)
    add("budget", "512 features", "5")
    add("spread", image, "bitrand 7.5")
    if TEXT in scale.sets:
        settings = [f"{m} {e:g}" for e in scale.text for m in CATEGORICAL]
        for setting in ("none inf", *settings) if scale.text else ():
            add("text", TEXT, f"fc {setting}")
            add("text", TEXT, f"attention {setting}")
        for words in scale.other_words:
            add("alphabet", TEXT, f"{words} fc grr 6")
            add("alphabet", TEXT, f"{words} attention grr 6")
    small = 49 if image != "digits" else 4
    first = scale.batches[0]
    for epsilon in scale.attention[:: 2 if len(scale.attention) > 2 else 1]:
        add("beta", image, f"{small} {first} bitrand {epsilon:g}")
    for mechanism in CATEGORICAL:
        for epsilon in scale.categorical[:4]:
            add("attention", image, f"{small} {first} {mechanism} {epsilon:g}")
    # the smallest batch first, then every batch and size at one epsilon, then the rest
    middle = scale.attention[len(scale.attention) // 2]
    for batch in scale.batches:
        for epsilon in scale.attention if batch == first else (middle,):
            add("attention", image, f"{small} {batch} bitrand {epsilon:g}")
    if image != "digits":
        for batch in scale.batches:
            add("attention", image, f"144 {batch} bitrand {middle:g}")
        for epsilon in (scale.attention[0], scale.attention[-1]):
            add("attention", image, f"144 {first} bitrand {epsilon:g}")
        for epsilon in (middle, scale.attention[0], scale.attention[-1]):
            add("random", image, f"{small} {first} bitrand {epsilon:g}")
        for epsilon in (middle, scale.attention[0]):
            add("wide", image, f"{small} {first} bitrand {epsilon:g}")
        add("wide", image, f"144 {first} bitrand {middle:g}")
        for batch in scale.batches[1:]:
            add("wide", image, f"{small} {batch} bitrand {middle:g}")
    for batch in scale.batches[1:]:
        for epsilon in scale.attention:
            if epsilon != middle:
                add("attention", image, f"{small} {batch} bitrand {epsilon:g}")
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
    for size in scale.finer if piece.data == "one-hot" else scale.noise:
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
    mechanism, budget = piece.variant.split()
    data, rng = features(piece.data), piece.rng
    hook = local(mechanism, float(budget), data.low, data.high)
    universe = universe_of(data.x, hook, scale.universe)
    played = games.trials(len(universe), scale.records, scale.trials, scale.games, rng)
    closest = -games.distances(universe, played, rng)
    out: Result = {"radius": round(universe.radius, 4), "universe": len(universe)}
    for how in ("tuned", "published", "theory"):
        made = FullyConnected.prepare(universe, scale.records, rng, threshold=how)
        found = rates.from_trials(closest, played.member, played.trial, made.cut, 0.95, rng)
        out[how] = _triple(found["success"])
        out[f"tau {how}"] = round(made.tau, 4)
        out["AUC"] = _triple(found["auc"])
    return out | _bounds(universe, scale, rng) | _utility(data, universe, hook, rng)


def _bounds(universe: Universe, scale: Scale, rng: np.random.Generator) -> Result:
    channel = universe.channel
    away = games.escape_chance(universe, universe.snap(universe.radius), rng)
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


def _protected(piece: Piece, scale: Scale) -> Result:
    """Accuracy over epsilon where the records to be classified are protected as well."""
    from sklearn.linear_model import RidgeClassifier

    data, rng = features(piece.data), piece.rng
    grid = scale.categorical if piece.variant in CATEGORICAL else scale.bitwise
    train, out = min(2000, len(data.x)), {}
    for epsilon in scale.ome if piece.variant == "ome" else grid:
        hook = local(piece.variant, epsilon, data.low, data.high)
        shown, _ = hook.randomise(data.x[:train], rng)
        asked, _ = hook.randomise(data.test_x, rng)
        fit = RidgeClassifier(alpha=100.0).fit(shown, data.y[:train])
        right = int((fit.predict(asked) == data.test_y).sum())
        out[f"{epsilon:g}"] = _triple(wilson(right, len(asked)))
    return out


def _decoder(piece: Piece, scale: Scale) -> Result:
    """The same games over epsilon where reports are decoded as published."""
    data, rng = features(piece.data), piece.rng
    out: Result = {}
    for epsilon in scale.categorical if piece.variant in CATEGORICAL else scale.bitwise:
        sound = local(piece.variant, epsilon, data.low, data.high)
        universe = universe_of(data.x, replace(sound, decoder="published"), scale.universe)
        away = games.escape_chance(universe, universe.snap(universe.radius), rng)
        made = FullyConnected.prepare(universe, scale.records, rng)
        played = games.trials(len(universe), scale.records, scale.trials, scale.games, rng)
        values = made.scores(played, rng)
        found = rates.from_trials(values, played.member, played.trial, made.cut, 0.95, rng)
        out[f"{epsilon:g}"] = {
            "P_M": [round(v, 5) for v in (away.value, away.low, away.high)],
            "success": _triple(found["success"]),
        }
    return out


def _spread(piece: Piece, scale: Scale) -> Result:
    """What P_M owes to the spread of features: BitRand's noise is absolute, distances are not."""
    mechanism, budget = piece.variant.split()
    data, rng = features(piece.data), piece.rng
    out: Result = {}
    for factor in scale.spreads:
        hook = local(mechanism, float(budget), data.low, data.high)
        universe = universe_of(factor * data.x, hook, scale.universe)
        away = games.escape_chance(universe, universe.snap(universe.radius), rng)
        played = games.trials(len(universe), scale.records, scale.trials, scale.games, rng)
        made = FullyConnected.prepare(universe, scale.records, rng, threshold="theory")
        closest = -games.distances(universe, played, rng)
        found = rates.from_trials(closest, played.member, played.trial, made.cut, 0.95, rng)
        out[f"{factor:g}"] = {
            "radius": round(universe.radius, 4),
            "P_M": [round(v, 5) for v in (away.value, away.low, away.high)],
            "success": _triple(found["success"]),
        }
    return out


# -- attention ------------------------------------------------------------------------------------


def _prepared(
    piece: Piece,
    scale: Scale,
    beta: float | None,
    left_out: Literal["spare", "random"] = "spare",
    dimension: int = DIMENSION,
) -> tuple[AttentionAdversary, Challenge]:
    count, batch, mechanism, budget = piece.variant.split()
    data, rng = patched(piece.data, int(count), scale.images, dimension), piece.rng
    hook = local(mechanism, float(budget), -1.0, 1.0, levels=4)
    if mechanism == "bitrand":
        hook = replace(hook, bits=10, integer_bits=1)
    universe = universe_of(data.x, hook, scale.images)
    n = min(int(batch), len(universe) - 1)
    made = AttentionAdversary.prepare(
        universe,
        data.identity,
        n,
        rng,
        beta=beta,
        betas=(0.5, 1.0, 4.0, 16.0, 64.0),
        simulated=min(100, 5 * scale.games),
        left_out=left_out,
    )
    # 40 x 100 where a record has 144 patterns, as published
    trials, games_ = (scale.trials, scale.games) if count != "144" else (40, 100)
    return made, games.trials(len(made.universe), n, trials, games_, rng)


def _attention(piece: Piece, scale: Scale) -> Result:
    """[ActiveMembership] Figure 9; as published in what heads 2 and 4 leave out, and in width."""
    made, played = _prepared(
        piece,
        scale,
        None,
        "random" if piece.experiment == "random" else "spare",
        PUBLISHED_DIMENSION if piece.experiment == "wide" else DIMENSION,
    )
    rng = DRAWS.generator(piece.key + "/played")
    values = made.scores(played, rng)
    found = rates.from_trials(values, played.member, played.trial, made.cut, 0.95, rng)
    return {
        "beta": round(made.beta, 5),
        "gamma": round(made.gamma, 4),
        "success": _triple(found["success"]),
        "AUC": _triple(found["auc"]),
        **_corners(values, played),
    }


def _corners(values: Floats, played: Challenge) -> Result:
    corner = roc.true_positive_rate_at(values, played.member, 0.01)
    other = roc.true_positive_rate_at(-values, ~played.member, 0.01)
    return {"TPR at 1 % FPR": _triple(corner), "TNR at 1 % FNR": _triple(other)}


def _beta(piece: Piece, scale: Scale) -> Result:
    """[ActiveMembership] Figure 10 and Table 3: success over beta, gamma tuned at each."""
    out: Result = {}
    small = replace(scale, games=max(10, scale.games // 4))
    for beta in scale.betas:
        made, played = _prepared(piece, small, beta)
        rng = DRAWS.generator(piece.key + "/played")
        values = made.scores(played, rng)
        found = rates.from_trials(values, played.member, played.trial, made.cut, 0.95, rng)
        out[f"{beta:g}"] = {"success": _triple(found["success"]), "AUC": _triple(found["auc"])}
    clean, shown = made.sample(DRAWS.generator(piece.key + "/measured"), 1 << 22)
    m = attention.pattern_extremes(clean, shown)
    enough = theory.smallest_beta(m.separation, m.patterns, m.bound)
    out["theory"] = {
        "separation": round(m.separation, 4),
        "beta": None if enough is None else round(enough, 4),
    }
    return out


# -- text -----------------------------------------------------------------------------------------


def _text(piece: Piece, scale: Scale) -> Result:
    """[ActiveMembership] Tables 4 to 6 and Figure 16: every token is randomised by itself."""
    *other, adversary, mechanism, budget = piece.variant.split()
    words = int(other[0]) if other else scale.text_words
    data = text.newsgroups(scale.universe, words, scale.text_places)
    rng, n = piece.rng, scale.text_records
    top = words - 1.0
    hook = None if mechanism == "none" else local(mechanism, float(budget), 0.0, top, levels=words)
    universe = Universe.of(data.x, channel_of(hook, scale.text_places))
    if adversary == "attention":
        made = AttentionAdversary.prepare(
            universe, data.embedding, n, rng, betas=(0.5, 1.0, 4.0, 16.0, 64.0), simulated=200
        )
        universe, cut = made.universe, made.cut
        played = games.trials(len(universe), n, scale.trials, scale.games, rng)
        values = made.scores(played, rng)
        about = {"beta": round(made.beta, 5)}
    else:
        own = games.challenge(len(universe), n, 1000, rng)
        apart = data.apart
        cut = games.best_cut(-text.closest(universe, apart, own, rng), own.member)
        played = games.trials(len(universe), n, scale.trials, scale.games, rng)
        values = -text.closest(universe, apart, played, rng)
        about = {}
    found = rates.from_trials(values, played.member, played.trial, cut, 0.95, rng)
    channel = universe.channel
    finite = math.isfinite(channel.exact_epsilon)
    return {
        **about,
        "universe": len(universe),
        "claimed": round(channel.claimed_epsilon, 4) if finite else None,
        "success": _triple(found["success"]),
        "F1": _triple(found["f1"]),
        "AUC": _triple(found["auc"]),
        **_corners(values, played),
        "ROC": _curve(values, played),
    }


def _curve(values: Floats, played: Challenge) -> list[list[float]]:
    """A few points of the ROC curve, most of them in its corners."""
    found = roc.curve(values, played.member)
    if isinstance(found, Underpowered):
        return []
    corner = (0.0, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05)
    wanted = [*corner, *np.linspace(0.1, 0.9, 9), *(1.0 - v for v in reversed(corner))]
    x, y = found.false_positive_rate, found.true_positive_rate
    return [[round(float(f), 4), round(float(y[x <= f + 1e-12].max()), 4)] for f in wanted]


# -- budgets --------------------------------------------------------------------------------------

BUDGETED: dict[str, tuple[str, dict[str, Any]]] = {
    "bitrand, l = 10": ("bitrand", {"bits": 10, "integer_bits": 5}),
    "bitrand, l = 20": ("bitrand", {"bits": 20, "integer_bits": 5}),
    "ome, l = 10": ("ome", {"bits": 10, "integer_bits": 5}),
    "grr, 8 levels": ("grr", {"alphabet": 8}),
    "grr, 1,000 levels": ("grr", {"alphabet": 1000}),
    "rappor, 8 levels": ("rappor", {"alphabet": 8}),
    "rappor, 1,000 levels": ("rappor", {"alphabet": 1000}),
    "rappor, Bloom filter": ("rappor", {"alphabet": 1000, "hashes": 2, "filter_bits": 128}),
    "dbitflip, 8 levels": ("dbitflip", {"alphabet": 8}),
    "dbitflip, 1,000 levels": ("dbitflip", {"alphabet": 1000}),
    "laplace": ("laplace", {}),
    "gaussian": ("gaussian", {}),
}


def _budget(piece: Piece, scale: Scale) -> Result:
    """Claimed and exact budgets of a record of 512 features, and how long the exact one takes."""
    out: Result = {}
    for name, (mechanism, own) in BUDGETED.items():
        start = time.perf_counter()
        made = LocalDP(mechanism=mechanism, epsilon=float(piece.variant), **own).of(512)  # type: ignore[arg-type]
        exact = made.worst_case_epsilon()
        out[name] = {
            "claimed": round(made.claimed_epsilon, 3),
            "exact": round(exact, 1) if math.isfinite(exact) else None,
            "delta": made.delta,
            "seconds": round(time.perf_counter() - start, 5),
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
    "random": _attention,
    "wide": _attention,
    "beta": _beta,
    "decoder": _decoder,
    "spread": _spread,
    "utility": _protected,
    "text": _text,
    "alphabet": _text,
    "budget": _budget,
}


def available(scale: Scale) -> tuple[Scale, list[str]]:
    """The scale without data sets that are not on this machine, and their names."""
    missing = [name for name in scale.sets if not fetched(name)]
    return replace(scale, sets=tuple(s for s in scale.sets if s not in missing)), missing
