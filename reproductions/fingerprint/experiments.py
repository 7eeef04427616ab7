"""What is run: every experiment as independent pieces that can be measured in any order.

A piece is (experiment, corpus, variant, seed); its result is a small dictionary whose leaves are
[value, half-width]. What needs no gradient per example comes first, then DP-SGD seed by seed: an
interrupted run then has all tables with fewer seeds rather than some tables with all.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedaudit.accounting import Exposure, epsilon
from reproductions.fingerprint import linking
from reproductions.fingerprint.setting import (
    FROZEN,
    Corpus,
    Plan,
    Recorded,
    Scale,
    corpus,
    federate,
    gradient_norms,
    pretrain,
)

Result = dict[str, Any]
RATES = (FROZEN, 0.1, 1.0)
MOMENTUM: dict[str, dict[str, Any]] = {
    "0.9": {"momentum": 0.9},
    "0.9, rate / 10": {"momentum": 0.9, "learning_rate": 0.01},
    "carried": {"carried": True},
    "carried, noise": {"carried": True, "noise": 1.0},
}
FINE = (0.01, 0.03, 0.1, 0.2)
PRIVATE = ("grid", "fine", "curve", "momentum")
CURVES = ("no DP", "clipping only", "z = 0.5", "z = 1", "z = 1.5")


@dataclass(frozen=True, kw_only=True)
class Piece:
    """One measurement."""

    experiment: str
    corpus: str
    variant: str
    seed: int

    @property
    def key(self) -> str:
        return f"{self.experiment}/{self.corpus}/{self.variant}/{self.seed}"


def pieces(scale: Scale, only: tuple[str, ...] = ()) -> list[Piece]:
    """All pieces of a scale, the cheap ones first, the others seed by seed."""
    out: list[Piece] = []

    def add(experiment: str, name: str, *variants: object) -> None:
        if only and experiment not in only:
            return
        for variant in variants or ("",):
            out.extend(
                Piece(experiment=experiment, corpus=name, variant=str(variant), seed=s)
                for s in scale.seeds
            )

    for name in scale.corpora:
        add("base", name)
        add("clients", name, *scale.clients[:-1], *([40] if name == "sotu" else []))
        add("rate", name, *RATES[1:])
        if name == "sotu":
            continue
        add("same", name, FROZEN, 1.0)
        add("half", name, FROZEN, 1.0)
        add("grid", name, *(f"{c:g} {z:g}" for c in scale.clips for z in scale.noises))
    first = scale.corpora[0]
    add("curve", first, *CURVES)
    add("momentum", first, *MOMENTUM)
    add("fine", first, *FINE)
    # DP-SGD on the first set before the second one's grid: it has more than the grid to tell
    return sorted(
        out, key=lambda p: (p.experiment in PRIVATE) * (1 + p.seed * 10 + (p.corpus != first))
    )


# -- the start of every federation ----------------------------------------------------------------


def prepare(name: str, scale: Scale, folder: Path) -> Result:
    """Pretrain the model of a corpus into `folder`; what the page says about it."""
    text = corpus(name, scale)
    start, losses = pretrain(text, scale)
    np.save(folder / f"{name}.npy", start.numpy(), allow_pickle=False)
    norms = gradient_norms(text)
    return {
        "owners": len(text.owners),
        "windows": len(text.rest),
        "numbers": text.task.layout.width,
        "pretraining": [round(v, 3) for v in losses],
        "norms": {f"{c:g}": round(float(np.quantile(norms, c)), 3) for c in scale.clips},
    }


@lru_cache(maxsize=4)
def _ready(name: str, scale: Scale, folder: Path) -> Corpus:
    start = np.load(folder / f"{name}.npy", allow_pickle=False)
    return corpus(name, scale, torch.from_numpy(start))


# -- measuring ------------------------------------------------------------------------------------


def measure(piece: Piece, scale: Scale, folder: Path, start: Result) -> Result:
    """The result of one piece."""
    torch.set_num_threads(1)  # pieces run side by side
    text = _ready(piece.corpus, scale, folder)
    return EXPERIMENTS[piece.experiment](piece, scale, text, start)


def _run(text: Corpus, plan: Plan, scale: Scale, seed: int, use: Callable[[Recorded], Any]) -> Any:
    return federate(text, plan, scale, seed, use)


def _all_methods(clients: int) -> Callable[[Recorded], Result]:
    def use(recorded: Recorded) -> Result:
        out: Result = linking.judge(*linking.rows_of(recorded, linking.tensors()), clients)
        return out | _losses(recorded)

    return use


def _losses(recorded: Recorded) -> Result:
    each = {str(t): [round(v, 4), 0.0] for t, v in enumerate(recorded.losses)}
    return {"loss": each} if each else {}


def _base(piece: Piece, scale: Scale, text: Corpus, start: Result) -> Result:
    """One long federation answers tables 2 to 5 and figure 2: shorter ones are its beginning."""
    count = min(scale.most, len(text.owners))

    def use(recorded: Recorded) -> Result:
        some = ("spectral", "greedy", "joint")
        rows, senders = linking.rows_of(recorded, linking.tensors())
        short = scale.rounds
        quarter = scale.long_rounds // 4
        looks = {
            **{part: (linking.tensors(part), "unit") for part in ("fc", "proj", "both")},
            "both, columns": (linking.tensors(), "column"),
        }
        deep = {str(n + 1): (linking.tensors(layer=n), "unit") for n in range(scale.depth)}

        def of(names: tuple[str, ...], how: Any) -> Result:
            own, _ = linking.rows_of(recorded, names, how)
            return linking.judge(own[:short], senders[:short], count, some)

        return {
            "clients": linking.judge(rows[:short], senders[:short], count),
            "rounds": {
                str(n): linking.judge(rows[:n], senders[:n], count, linking.METHODS[1:])
                for n in range(quarter, scale.long_rounds + 1, quarter)
                if n > 1
            },
            "features": {name: of(*chosen) for name, chosen in looks.items()},
            "layers": {name: of(*chosen) for name, chosen in deep.items()},
        }

    plan = Plan(clients=count, rounds=scale.long_rounds)
    return dict(_run(text, plan, scale, piece.seed, use))


def _clients(piece: Piece, scale: Scale, text: Corpus, start: Result) -> Result:
    count = int(piece.variant)
    plan = Plan(clients=count, rounds=scale.rounds)
    return dict(_run(text, plan, scale, piece.seed, _all_methods(count)))


def _ordinary(text: Corpus, scale: Scale) -> Plan:
    return Plan(clients=min(scale.most, len(text.owners)), rounds=scale.rounds)


def _rate(piece: Piece, scale: Scale, text: Corpus, start: Result) -> Result:
    plan = replace(_ordinary(text, scale), server_rate=float(piece.variant), measure=True)
    return dict(_run(text, plan, scale, piece.seed, _all_methods(plan.clients)))


def _same(piece: Piece, scale: Scale, text: Corpus, start: Result) -> Result:
    plan = replace(_ordinary(text, scale), server_rate=float(piece.variant), same_batches=True)
    return dict(_run(text, plan, scale, piece.seed, _all_methods(plan.clients)))


def _half(piece: Piece, scale: Scale, text: Corpus, start: Result) -> Result:
    plan = replace(
        _ordinary(text, scale),
        server_rate=float(piece.variant),
        participation=0.5,
        rounds=scale.long_rounds,
    )
    return dict(_run(text, plan, scale, piece.seed, _all_methods(plan.clients)))


def _momentum(piece: Piece, scale: Scale, text: Corpus, start: Result) -> Result:
    plan = replace(_ordinary(text, scale), **MOMENTUM[piece.variant])
    if plan.noise:
        plan = replace(plan, clip=_middle(start))
    return dict(_run(text, plan, scale, piece.seed, _all_methods(plan.clients)))


def _middle(start: Result) -> float:
    return float(start["norms"]["0.5"])


def _private(
    piece: Piece,
    scale: Scale,
    text: Corpus,
    *,
    clip: float,
    noise: float,
    utility: bool = True,
    clients: int | None = None,
) -> Result:
    """Linkage over all rounds near the start, and what one full server step does to the loss."""
    plan = replace(_ordinary(text, scale), clip=clip, noise=noise)
    plan = replace(plan, clients=clients or plan.clients)
    out = dict(_run(text, plan, scale, piece.seed, _all_methods(plan.clients)))
    if utility:
        once = replace(plan, rounds=1, server_rate=1.0, measure=True)
        out |= _run(text, once, scale, piece.seed, _losses)
    return out


def _grid(piece: Piece, scale: Scale, text: Corpus, start: Result) -> Result:
    quantile, noise = piece.variant.split()
    clip = float(start["norms"][quantile])
    return _private(piece, scale, text, clip=clip, noise=float(noise))


def _fine(piece: Piece, scale: Scale, text: Corpus, start: Result) -> Result:
    noise = float(piece.variant)
    return _private(piece, scale, text, clip=_middle(start), noise=noise, utility=False)


def _trade_off(piece: Piece, scale: Scale, text: Corpus, start: Result) -> Result:
    clients, noise = piece.variant.split()
    return _private(
        piece, scale, text, clip=_middle(start), noise=float(noise), clients=int(clients)
    )


def _moving(piece: Piece, scale: Scale, text: Corpus, start: Result) -> Result:
    """An ordinary server step after every round, without DP."""
    count = int(piece.variant)
    plan = Plan(clients=count, rounds=scale.rounds, server_rate=1.0, measure=True)
    return dict(_run(text, plan, scale, piece.seed, _all_methods(count)))


def _curve(piece: Piece, scale: Scale, text: Corpus, start: Result) -> Result:
    plan = replace(_ordinary(text, scale), rounds=scale.curve_rounds, server_rate=1.0, measure=True)
    if piece.variant != "no DP":
        _, _, noise = piece.variant.rpartition("= ")
        plan = replace(
            plan, clip=_middle(start), noise=0.0 if "only" in piece.variant else float(noise)
        )
    return dict(_run(text, plan, scale, piece.seed, _losses))


EXPERIMENTS: dict[str, Callable[[Piece, Scale, Corpus, Result], Result]] = {
    "base": _base,
    "clients": _clients,
    "rate": _rate,
    "same": _same,
    "half": _half,
    "grid": _grid,
    "momentum": _momentum,
    "fine": _fine,
    "curve": _curve,
    "trade_off": _trade_off,
    "moving": _moving,
}


# -- epsilon --------------------------------------------------------------------------------------


def epsilons(scale: Scale) -> Result:
    """Epsilon of one round and of all rounds, by both accountants, for both published schedules."""
    out: Result = {}
    for name, steps in (("News", 16), ("Dial", 8)):
        for noise in scale.noises:
            values = {}
            for rounds in (1, 10):
                exposure = Exposure(sampling_rate=1 / steps, steps=steps, rounds=rounds)
                for by in ("rdp", "pld"):
                    value = epsilon(exposure, noise, scale.delta, by=by)
                    values[f"{by} {rounds}"] = None if math.isinf(value) else round(value, 3)
            out[f"{name} {noise:g}"] = values
    return out


def described(scale: Scale) -> Result:
    return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(scale).items()}
