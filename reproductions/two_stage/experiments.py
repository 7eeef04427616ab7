"""What is run: every experiment as independent pieces that can be measured in any order.

A piece is (experiment, data set, variant, seed). The cheap set comes first; on the published model,
where a federation takes half an hour, the pieces go seed by seed: an interrupted run then has all
scenarios with fewer seeds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from fedaudit.audits.two_stage_membership import TwoStageMembership
from fedaudit.audits.two_stage_membership.survival import contributions, survival
from fedaudit.audits.two_stage_membership.theory import detection_power
from fedaudit.data.dataset import Dataset
from fedaudit.randomness import Seed
from fedaudit.setup.config import Config
from fedaudit.setup.prepare import assign_records, load_data
from fedaudit.tasks.vae import Autoencoder
from reproductions.two_stage import faults, geometry
from reproductions.two_stage.setting import (
    LIMIT,
    SCENARIOS,
    TAU,
    Scale,
    audit_of,
    audited,
    by_round,
    config_of,
    data_of,
    estimates,
    figures,
    recorded,
)

Result = dict[str, Any]

SMALL = "digits"
CLIP = 5.0
CANCELLING = {"optimizer": "sgd", "learning_rate": 0.5, "epochs": 5, "batch_size": 0}
PROTECTED: dict[str, dict[str, Any]] = {
    "none": {},
    "clip": {"clip": {"bound": 0.5}},
    "dp_sgd": {"dp_sgd": {"noise_multiplier": 1.0, "clip": 1.0}},
    "secure_sum": {"secure_sum": {}},
    "shuffle": {"shuffle": {}},
}
NOISE = 0.1  # standard deviation per number, where updates cancel
TRIALS = 4000
RATE = 0.05


@dataclass(frozen=True, kw_only=True)
class Piece:
    """One measurement."""

    experiment: str
    name: str
    variant: str
    seed: int

    @property
    def key(self) -> str:
        return f"{self.experiment}/{self.name}/{self.variant}/{self.seed}"


def pieces(scale: Scale, only: tuple[str, ...] = ()) -> list[Piece]:
    """All pieces of a scale, in the order in which they are measured."""
    out: list[Piece] = []

    def add(experiment: str, name: str, variants: tuple[str, ...], seeds: tuple[int, ...]) -> None:
        if not only or experiment in only:
            out.extend(
                Piece(experiment=experiment, name=name, variant=v, seed=s)
                for s in seeds
                for v in variants
            )

    first, few = scale.seeds[:1], scale.seeds[:3]
    scenarios = tuple(SCENARIOS)
    add("surface", "synthetic", ("",), first)
    for name in scale.sets:
        small = name == SMALL
        add("bound", name, ("start", "trained"), first)
        add("alignment", name, ("start", "trained") if small else ("start",), first)
        add("example", name, ("",), first)
        add("trajectory", name, scenarios, scale.seeds)
        add(
            "faults",
            name,
            ("IID", "non-IID") if small else ("IID",),
            scale.seeds if small else first,
        )
        if small:
            add("batches", name, scenarios, few)
            add("long", name, scenarios, few)
            add("many", name, tuple(map(str, (scale.clients, scale.many_clients))), few)
            add("noise", name, tuple(f"{z:g}" for z in scale.noises), few)
            add("protected", name, tuple(PROTECTED), few)
            add("cancel", name, ("",), few)
    return out


def measure(piece: Piece, scale: Scale) -> Result:
    """The result of one piece."""
    torch.set_num_threads(1)  # pieces run side by side
    return EXPERIMENTS[piece.experiment](piece, scale)


# -- figures 1 to 3 -------------------------------------------------------------------------------


def _surface(piece: Piece, scale: Scale) -> Result:
    return geometry.surface(scale.grid, Seed(piece.seed))


def _model(piece: Piece, scale: Scale) -> tuple[Autoencoder, torch.Tensor, Dataset]:
    """A model as it starts, as in the paper, or after some training on all records."""
    seed = Seed(piece.seed)
    config = config_of(piece.name, scale, piece.seed, data=data_of(piece.name, LIMIT))
    train, _ = load_data(config, seed)
    task = config.task.build(train, seed)
    if piece.variant == "start":
        return task, task.initial(), train
    steps = 20 * scale.rounds if piece.name == SMALL else 2 * scale.rounds
    return task, geometry.trained(task, train, steps, 50, seed), train


def _bound(piece: Piece, scale: Scale) -> Result:
    task, model, train = _model(piece, scale)
    seed = Seed(piece.seed)
    images = geometry.asked(task, train, scale.images, seed)
    return geometry.bound(task, model, images, scale.steps, seed)


def _alignment(piece: Piece, scale: Scale) -> Result:
    task, model, train = _model(piece, scale)
    seed = Seed(piece.seed)
    images = geometry.asked(task, train, min(scale.images, 10 if piece.name == SMALL else 1), seed)
    return geometry.alignment(task, model, images, scale.angles, seed)


# -- federations ----------------------------------------------------------------------------------


def _whole(config: Config, audit: TwoStageMembership) -> Result:
    found = audited(config, audit)
    return {
        "rounds": by_round(found),
        "estimates": estimates(found),
        "loss": figures(found.losses),
    }


def _long(scale: Scale) -> dict[str, int]:
    """Training that is long enough for an attack to find something."""
    return {"batch_size": 16, "epochs": scale.long_epochs}


def _trajectory(piece: Piece, scale: Scale) -> Result:
    chosen = {"kind": SCENARIOS[piece.variant]}
    config = config_of(piece.name, scale, piece.seed, partition=chosen)
    return _whole(config, audit_of(piece.name))


def _example(piece: Piece, scale: Scale) -> Result:
    """The image of figure 5: the first record of the first client of the label-sorted partition."""
    seed = Seed(piece.seed)
    config = config_of(piece.name, scale, piece.seed, partition={"kind": "by_label"})
    train, _ = load_data(config, seed)
    own = assign_records(config, train, seed).parts.client_data(train, 0)
    assert not isinstance(own.x, tuple)
    return {"label": int(own.y[0]), "pixels": figures(own.x[0, 0], 2)}


def _batches(piece: Piece, scale: Scale) -> Result:
    """The same with batches of 16, over which the paper is silent."""
    training = {"batch_size": 16} if piece.experiment == "batches" else _long(scale)
    chosen = {"kind": SCENARIOS[piece.variant]}
    config = config_of(piece.name, scale, piece.seed, partition=chosen, training=training)
    return _whole(config, TwoStageMembership(threshold=TAU, checked_rounds=0))


def _many(piece: Piece, scale: Scale) -> Result:
    """Many clients with few records each, trained long enough for an attack to succeed."""
    config = config_of(
        piece.name,
        scale,
        piece.seed,
        federation={"clients": int(piece.variant)},
        training=_long(scale),
    )
    whole = _whole(config, TwoStageMembership(threshold=TAU, checked_rounds=0))
    means = {k: [figures(np.mean(row), 4) for row in v] for k, v in whole["rounds"].items()}
    return whole | {"rounds": means}


def _noise(piece: Piece, scale: Scale) -> Result:
    """Noise at the clients: SUR against SNR, and tau as given against tau from the noise."""
    z = float(piece.variant)
    # what noise this small promises is not asked here, and by PLD would take all memory
    own = {"noise_multiplier": z, "clip": CLIP, "accountant": "rdp"}
    guard: dict[str, Any] = {"update_noise": own}
    config = config_of(
        piece.name,
        scale,
        piece.seed,
        training=_long(scale),
        protections=guard,
        trace={"raw_updates": True},
    )
    found = audited(config, TwoStageMembership(threshold=TAU, checked_rounds=0))
    sigma = 0.0 if found.survey.noise is None else found.survey.noise.aggregate
    derived = []
    for survey in found.survey.rounds:
        one = survey.stage_one
        assert one is not None
        floor = sigma * np.sqrt(found.width) / one.moved
        derived.append(float((one.ratio > floor).mean()))
    # without noise every update is found
    snr = np.full((scale.rounds, scale.clients), np.inf) if found.snr is None else found.snr
    return {
        "rounds": by_round(found, ("sur", "j", "j others"))
        | {"snr": figures(snr, 4), "power": figures(detection_power(snr, RATE), 4)},
        "derived": figures(np.mean(derived)),
        "sigma": figures(sigma),
        "estimates": estimates(found),
        "loss": figures(found.losses[-1:]),
    }


def _protected(piece: Piece, scale: Scale) -> Result:
    """The same federation behind each protection: what is left to the attack and to TS-MIA."""
    guard = PROTECTED[piece.variant]
    config = config_of(piece.name, scale, piece.seed, training=_long(scale), protections=guard)
    found = audited(config, TwoStageMembership(threshold=TAU, checked_rounds=0))
    return {
        "estimates": estimates(found),
        "epsilon": None if found.epsilon is None else figures(found.epsilon),
        "loss": figures(found.losses[-1:]),
    }


def _cancel(piece: Piece, scale: Scale) -> Result:
    """Two clients with other classes pull ever harder against each other: lambda goes to -1.

    Softmax regression by whole-batch gradient descent comes to rest where their updates cancel.
    Beside SUR stands the power to find client 0's update in noise, by the formula and by trial:
    the test rejects where <u, Y - B> / (|u| sigma) > z, with u in Y, and without it.
    """
    config = config_of(
        piece.name,
        scale,
        piece.seed,
        partition={"kind": "by_label"},
        task={"kind": "mlp", "hidden": []},
        federation={"clients": 2, "rounds": scale.long_rounds},
        training=CANCELLING,
    )
    rng = Seed(piece.seed).generator("shift test")
    shown = np.unique(np.geomspace(1, scale.long_rounds, 16).round().astype(int))
    out: dict[str, list[float]] = {
        name: [] for name in ("round", "lambda", "r", "sur", "own", "power", "found", "false")
    }
    from scipy.special import ndtri

    def use(trace: Any, truth: Any) -> None:
        view = trace.seen_by("server")
        for number in shown.tolist():
            sent = view.updates(number)
            parts = contributions(sent.rows, sent.weights)
            one = survival(parts, NOISE)
            u = parts.u[0].astype(np.float64)
            background = parts.moved - u
            noise = NOISE * rng.standard_normal((2, TRIALS, len(u)))
            along = u / (np.linalg.norm(u) * NOISE)
            with_u = ((background + u + noise[0]) - background) @ along
            without = ((background + noise[1]) - background) @ along
            limit = float(ndtri(1 - RATE))
            for name, value in (
                ("round", number),
                ("lambda", one.alignment[0]),
                ("r", one.magnitude_ratio[0]),
                ("sur", one.ratio[0]),
                ("own", one.own[0]),
                ("power", detection_power(one.snr[0], RATE)),
                ("found", (with_u > limit).mean()),
                ("false", (without > limit).mean()),
            ):
                out[name].append(float(value))

    recorded(config, use)
    return {name: figures(values) for name, values in out.items()}


# -- the published loop ---------------------------------------------------------------------------


def _faults(piece: Piece, scale: Scale) -> Result:
    seed = Seed(piece.seed)
    chosen = {"kind": SCENARIOS[piece.variant]}
    config = config_of(piece.name, scale, piece.seed, partition=chosen)
    train, _ = load_data(config, seed)
    parts = assign_records(config, train, seed).parts
    task = config.task.build(train, seed)
    own = [task.encode(parts.client_data(train, c)) for c in range(scale.clients)]
    some = faults.VARIANTS if piece.name == SMALL else {"as published": faults.ALL}
    out = {}
    for name, wrong in some.items():
        found = faults.trajectory(
            task,
            [(e.x, e.y) for e in own],
            rounds=scale.rounds,
            epochs=scale.epochs,
            faults=wrong,
            seed=seed,
        )
        out[name] = {k: figures(v, 4) for k, v in found.items()}
    return out


EXPERIMENTS: dict[str, Callable[[Piece, Scale], Result]] = {
    "surface": _surface,
    "bound": _bound,
    "alignment": _alignment,
    "example": _example,
    "trajectory": _trajectory,
    "batches": _batches,
    "long": _batches,
    "many": _many,
    "noise": _noise,
    "protected": _protected,
    "cancel": _cancel,
    "faults": _faults,
}


def described(scale: Scale) -> Result:
    return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(scale).items()}
