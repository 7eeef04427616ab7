"""What is run: independent pieces, each a small dictionary of plain numbers.

gap        figure 3: gaps of the allocation on nine topologies, over seeds of random graphs
pareto     figure 4: worst cases over budgets and windows, three settings
utility    table II: one pair of runs
elsewhere  the same on other data
channels   figures 5 and 6: lifts and AUROC of one eta, over target runs
mismatched the same with shadows that deal by Dirichlet shares
published  the same with classes by client index, and that index as "organisation"
noise      what the parameter channel reads as the noise grows, at eta = 0.5
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from fedaudit.accounting import Exposure, epsilon
from fedaudit.audits.topology_inference import channels as tadi
from fedaudit.audits.topology_inference import regressors, scores
from fedaudit.audits.topology_inference.features import Place
from fedaudit.federation import topology
from fedaudit.protections.noise_allocation import allocate
from fedaudit.protections.noise_allocation import leverage as proxies
from fedaudit.randomness import Seed
from fedaudit.results import Estimate
from fedaudit.stats import intervals
from fedaudit.trace import WIRETAP
from reproductions.topology import elsewhere, setting, utility
from reproductions.topology.setting import CLASSES, SENSITIVE, Scale
from reproductions.topology.several_runs import over_runs

Result = dict[str, Any]
ETAS = (0.25, 0.5, 0.75, 1.0)
WINDOWS = (25, 50, 100)
BUDGETS = (0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
GRAPHS: dict[str, tuple[str, dict[str, Any]]] = {
    "ring": ("ring", {}),
    "line": ("line", {}),
    "hierarchical": ("hierarchical", {"sizes": [20, 15, 10, 3, 2], "joined": "none"}),
    "ER p=0.3": ("erdos_renyi", {"p": 0.3}),
    "ER p=0.5": ("erdos_renyi", {"p": 0.5}),
    "ER p=0.7": ("erdos_renyi", {"p": 0.7}),
    "BA m=2": ("barabasi_albert", {"m": 2}),
    "BA m=4": ("barabasi_albert", {"m": 4}),
    "star": ("star", {"hub": "client"}),
}
REGRESSOR: regressors.Kind = "lightgbm"


@dataclass(frozen=True, kw_only=True)
class Piece:
    """One measurement."""

    experiment: str
    variant: str

    @property
    def key(self) -> str:
        return f"{self.experiment}/{self.variant}"


def pieces(scale: Scale, only: tuple[str, ...] = ()) -> list[Piece]:
    """All pieces of a scale, the cheap ones first."""
    wanted: list[tuple[str, object]] = [("gap", name) for name in GRAPHS]
    wanted += [("pareto", name) for name in "ABC"]
    wanted += [("channels", f"{eta:g}") for eta in scale.etas]
    wanted += [("mismatched", f"{scale.etas[-1]:g}")]
    wanted += [("noise", f"{z:g}") for z in scale.noises]
    wanted += [("published", f"{eta:g}") for eta in scale.index_etas]
    wanted += [
        ("utility", f"{t} {u:g} {s}")
        for t in scale.utility_rounds
        for s in scale.utility_seeds
        for u in scale.budgets
    ]
    wanted += [
        ("elsewhere", f"{name} {t} {u:g} {s}")
        for name in scale.sets
        for t in elsewhere.OWN[name].rounds
        for s in scale.utility_seeds
        for u in scale.budgets
    ]
    return [Piece(experiment=e, variant=str(v)) for e, v in wanted if not only or e in only]


def measure(piece: Piece, scale: Scale, published: Mapping[str, Any]) -> Result:
    """Run one piece."""
    return EXPERIMENTS[piece.experiment](piece.variant, scale, published)


# -- the allocation --------------------------------------------------------------------------------


def gap(name: str, scale: Scale, published: Mapping[str, Any]) -> Result:
    """Gaps K_uniform - K* at U = 0.5, T = 100, |B| = 64: of the published degrees, and of graphs
    that are drawn here."""
    kind, settings = GRAPHS[name]
    random = topology.KINDS[kind].random
    known = published["figure 3"]["degrees"][name]

    def gaps(degree: Any) -> list[float]:
        return [
            float(
                allocate(
                    proxies.coupled(degree, coupling=eta, classes=CLASSES),
                    rounds=100,
                    batch_size=64,
                    budget=0.5,
                ).gap
            )
            for eta in ETAS
        ]

    drawn = [
        gaps(topology.build(kind, 50, Seed(s), **settings).degree)
        for s in range(scale.graph_seeds if random else 1)
    ]
    out: Result = {"published degrees": gaps(known), "mean": np.mean(drawn, axis=0).tolist()}
    if random:
        found = [intervals.mean(np.array(drawn)[:, i]) for i in range(len(ETAS))]
        out["low"] = [e.low for e in found if isinstance(e, Estimate)]
        out["high"] = [e.high for e in found if isinstance(e, Estimate)]
        out["seeds"] = scale.graph_seeds
    return out


def pareto(name: str, scale: Scale, published: Mapping[str, Any]) -> Result:
    """Worst cases, uniform and allocated, over budgets and windows."""
    if name == "C":
        degree = topology.build("hierarchical", 50, Seed(1), **GRAPHS["hierarchical"][1]).degree
        leverage, batch = proxies.coupled(degree, coupling=0.5, classes=CLASSES), 64
    else:
        leverage = proxies.from_size(published["sizes"][name])
        batch = {"A": 32, "B": 16}[name]
    out: Result = {}
    for t in WINDOWS:
        found = [allocate(leverage, rounds=t, batch_size=batch, budget=u) for u in BUDGETS]
        out[str(t)] = {
            "allocated": [float(a.worst_case) for a in found],
            "uniform": [float(a.uniform_worst_case) for a in found],
            "clients with less noise": int(max(len(a.worse) for a in found)),
        }
    return out


def paired_run(variant: str, scale: Scale, published: Mapping[str, Any]) -> Result:
    rounds, budget, seed = variant.split()
    return dict(utility.pair(scale, int(rounds), float(budget), int(seed)))


def paired_elsewhere(variant: str, scale: Scale, published: Mapping[str, Any]) -> Result:
    name, rounds, budget, seed = variant.split()
    return dict(elsewhere.pair(name, scale, int(rounds), float(budget), int(seed)))


# -- the channels ----------------------------------------------------------------------------------


def channels(
    variant: str,
    scale: Scale,
    published: Mapping[str, Any],
    prior: Literal["matched", "dirichlet"] = "matched",
) -> Result:
    """Scores of every channel over target runs of one eta."""
    return _attacked(scale, float(variant), scale.multiplier, prior=prior)


def mismatched(variant: str, scale: Scale, published: Mapping[str, Any]) -> Result:
    return channels(variant, scale, published, "dirichlet")


def by_noise(variant: str, scale: Scale, published: Mapping[str, Any]) -> Result:
    return _attacked(scale, 0.5, float(variant), only=("A1",))


def epsilon_of(scale: Mapping[str, Any], noise: float, delta: float = 1e-5) -> float:
    """Epsilon per record of the smallest client over a whole run."""
    size = setting.training_records() // sum(scale["cliques"])
    batch = min(int(scale["batch"]), size)
    exposure = Exposure(
        sampling_rate=batch / size, steps=-(-size // batch), rounds=int(scale["rounds"])
    )
    return float(epsilon(exposure, noise, delta)) if noise else math.inf


def as_published(variant: str, scale: Scale, published: Mapping[str, Any]) -> Result:
    """Classes by client index, and a one-hot of that index in the place of the organisation."""
    return _attacked(scale, float(variant), scale.multiplier, position="index", memorise=True)


def _attacked(
    scale: Scale,
    eta: float,
    noise: float,
    *,
    prior: Literal["matched", "dirichlet"] = "matched",
    position: setting.Position = "region",
    memorise: bool = False,
    only: tuple[str, ...] = tuple(tadi.PARTS),
) -> Result:
    """Train shadows once, guess `scale.runs` targets, and score them over runs."""
    rng = np.random.default_rng(7)
    config = setting.config_of(scale, eta, noise, position)
    federation, histograms = setting.dealt(config, 0)
    first, truth = setting.recorded(federation, histograms)
    place = Place.of(first.seen_by(WIRETAP).federation)
    corpus = tadi.gather(setting.shadows_of(config, first, scale, prior), place, SENSITIVE)
    targets = [(first, truth)]
    for seed in range(1, scale.runs):
        other, histograms = setting.dealt(config, seed)
        targets.append(setting.recorded(other, histograms))
    shares = [tadi.share_of(known, place.clients, SENSITIVE) for _, known in targets]
    seen = [
        tadi.observe(trace.seen_by(WIRETAP), place, CLASSES, SENSITIVE).values
        for trace, _ in targets
    ]
    federations = corpus.row_federation()
    out: Result = {"variance": float(np.mean([p.var() for p in shares])), "noise": noise}
    null: dict[str, np.ndarray] = {}
    for features in ("all", "published"):
        guesses: list[dict[str, np.ndarray]] = [{} for _ in targets]
        for channel in only:
            if features == "published" and "parameters" not in tadi.PARTS[channel]:
                continue
            made = [_table(corpus, s, features == "published", memorise).of(channel) for s in seen]
            fitted = regressors.fit(REGRESSOR, made[0][0], corpus.p.ravel(), federations, rng)
            for guess, (_, x) in zip(guesses, made, strict=True):
                guess[channel] = fitted(x)
            if features == "all":
                dealt = tadi.permute_shares(corpus.p, rng)
                blind = tadi.cross_validated(REGRESSOR, made[0][0], dealt, rng)
                null[channel] = scores.lifts_by_federation(blind, dealt)
        outcomes = [
            scores.Outcome(p=p, guesses=g, shadow_mean=corpus.mean)
            for p, g in zip(shares, guesses, strict=True)
        ]
        out[features] = _scored(outcomes, rng)
    # the same null as in the audit: it raises, and then nothing of this piece is stored
    tadi.check_null(null, "p was permuted across clients")
    out["null"] = {c: float(v.mean()) for c, v in null.items()}
    return out


def _table(corpus: tadi.Corpus, target: Any, published: bool, memorise: bool) -> tadi.FeatureTables:
    made = tadi.tables(corpus, target, published=published)
    if memorise:
        own = np.eye(corpus.p.shape[1], dtype=np.float32)
        made.target["organisation"] = own
        made.shadows["organisation"] = np.tile(own, (corpus.federations, 1))
    return made


def _scored(outcomes: list[scores.Outcome], rng: np.random.Generator) -> Result:
    """Per measure [mean, low, high] over runs, Holm-adjusted p-values, and AUROC."""
    found = over_runs(outcomes, rng=rng)
    out: Result = {
        "lift": {},
        "contribution": {},
        "p": {},
        "explained": {},
        "auroc": {},
        "runs": {},
    }
    for name, one in found.items():
        assert isinstance(one.estimate, Estimate)
        e = one.estimate
        where = "lift" if name.startswith("lift") else "contribution"
        short = name.removeprefix("lift (").removesuffix(")") if where == "lift" else name
        out[where][short] = [e.value, e.low, e.high]
        out["runs"][name] = list(one.values)
        out["p"][name] = one.p_value
    for channel in outcomes[0].guesses:
        shares = [scores.lift(o.guesses[channel], o.p) / o.p.var() for o in outcomes]
        out["explained"][channel] = _over(shares)
        areas = [scores.auroc(o.guesses[channel], o.p, float(o.p.mean())) for o in outcomes]
        known = [a.value for a in areas if isinstance(a, Estimate)]
        if len(known) == len(areas):
            out["auroc"][channel] = _over(known)
    return out


def _over(values: list[float]) -> list[float]:
    e = intervals.mean(values)
    assert isinstance(e, Estimate)
    return [e.value, e.low, e.high]


EXPERIMENTS: dict[str, Callable[[str, Scale, Mapping[str, Any]], Result]] = {
    "gap": gap,
    "pareto": pareto,
    "channels": channels,
    "mismatched": mismatched,
    "noise": by_noise,
    "published": as_published,
    "utility": paired_run,
    "elsewhere": paired_elsewhere,
}
