"""One federation: its config, its recorded rounds, and what the audit makes of them."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedaudit import knowledge
from fedaudit.audits.two_stage_membership import TwoStageMembership
from fedaudit.audits.two_stage_membership.detection import strengths
from fedaudit.audits.two_stage_membership.risk import contributions
from fedaudit.audits.two_stage_membership.survey import Survey
from fedaudit.audits.two_stage_membership.theory import phi
from fedaudit.randomness import Seed
from fedaudit.results import AuditResult, Estimate
from fedaudit.setup.config import Config, load
from fedaudit.study.run import simulate
from fedaudit.trace import Trace, Truth

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

TAU = 0.1
KEPT = ("sur", "lambda", "r", "j", "j others", "auc")
SCENARIOS = {"IID": "iid", "non-IID": "by_label", "inverted": "inverted"}


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Sizes of everything. The published ones, but for data, model and what is asked about."""

    sets: tuple[str, ...] = ("digits", "mnist")
    seeds: tuple[int, ...] = (1, 2, 3, 4, 5)
    clients: int = 5
    rounds: int = 20
    epochs: int = 3
    many_clients: int = 100
    long_rounds: int = 240
    long_epochs: int = 20
    hidden: int = 64
    latent: int = 8
    images: int = 50
    steps: int = 30
    angles: int = 50
    grid: int = 80
    noises: tuple[float, ...] = (0.0, 0.001, 0.003, 0.01, 0.03, 0.1)


FULL = Scale()
QUICK = Scale(
    sets=("digits",),
    seeds=(1, 2),
    clients=3,
    rounds=3,
    epochs=2,
    many_clients=8,
    long_rounds=6,
    long_epochs=2,
    hidden=8,
    latent=3,
    images=3,
    steps=6,
    angles=7,
    grid=12,
    noises=(0.0, 0.1),
)

LIMIT = 2000  # records that images are drawn from, as published
TRAINED = 1000  # records that a federation trains on: half, so that five seeds take an evening


def data_of(name: str, records: int = TRAINED) -> dict[str, Any]:
    """A fifth is held out: the records that nobody trains on."""
    own = {} if name == "digits" else {"records": records * 5 // 4}
    return {"name": name, "test_fraction": 0.2, **own}


def task_of(name: str, scale: Scale) -> dict[str, Any]:
    """Smooth autoencoders: a small one for 8 x 8 digits, the published one for 28 x 28 images."""
    if name == "digits":
        return {
            "kind": "vae",
            "hidden": scale.hidden,
            "latent": scale.latent,
            "activation": "gelu",
        }
    return {"kind": "vae", "published": True, "latent": 32}


def config_of(name: str, scale: Scale, seed: int, **changed: Mapping[str, Any]) -> Config:
    """The published federation on data set `name`; `changed` replaces settings by section.

    Local training takes whole-batch steps, as the public code does (the paper does not say).
    """
    raw: dict[str, Any] = {
        "seed": seed,
        "data": data_of(name),
        "partition": {"kind": "iid"},
        "task": task_of(name, scale),
        "federation": {"clients": scale.clients, "rounds": scale.rounds},
        "training": {
            "optimizer": "adam",
            "learning_rate": 1e-3,
            "epochs": scale.epochs,
            "batch_size": 0,
        },
    }
    for section, values in changed.items():
        same = section in ("federation", "training")
        raw[section] = {**raw[section], **values} if same else dict(values)
    return load(raw)


def audit_of(name: str) -> TwoStageMembership:
    """The audit at a size that its data set affords: a pass of the published model is dear."""
    if name == "digits":
        return TwoStageMembership(threshold=TAU)
    return TwoStageMembership(threshold=TAU, records=16, noise_draws=1, checked_rounds=0)


@dataclass(frozen=True)
class Audited:
    """A federation that was recorded and attacked.

    `member` (P, n) tells the candidates apart, `width` counts parameters, `losses` are held-out,
    `epsilon` is the largest that a protection promises a client, None without one; `snr` (T, K)
    where noise is known, from updates before their noise if the run kept them.
    """

    survey: Survey
    member: Bools
    result: AuditResult
    losses: tuple[float, ...]
    width: int
    epsilon: float | None
    snr: Floats | None


def recorded(config: Config, use: Callable[[Trace, Truth], Any]) -> tuple[Any, tuple[float, ...]]:
    """Run one federation into a temporary folder and hand the recording to `use`."""
    losses: list[float] = []

    def watch(stage: str, done: int, total: int, note: str) -> None:
        if note.startswith("loss"):
            losses.append(float(note.split()[1].rstrip(",")))

    with tempfile.TemporaryDirectory(prefix="two-stage-") as folder:
        home = Path(folder)
        simulate(config, home, watch)
        return use(Trace.open(home / "trace"), Truth.open(home / "truth")), tuple(losses)


def audited(config: Config, audit: TwoStageMembership) -> Audited:
    """Run one federation and audit it from the server."""
    seed = Seed(config.seed)

    def use(trace: Trace, truth: Truth) -> Callable[[tuple[float, ...]], Audited]:
        builder = knowledge.KnowledgeBuilder(
            trace, truth, seed, lambda: knowledge.of_config(config, trace), config
        )
        known, answers = builder.knowledge_for(audit)
        survey = audit.attack(trace.seen_by("server"), known, seed.generator("attack"))
        assert answers is not None
        result = audit.score(survey, answers, seed.generator("score"))
        member = np.zeros_like(survey.present)
        for i, party in enumerate(survey.parties):
            member[i, : len(answers.members[party])] = answers.members[party]
        promised: Mapping[str, Any] = truth.facts.get("guarantees", {})
        spent = [float(g["epsilon"]) for of in promised.values() for g in of.values()]
        snr = None
        if survey.noise is not None and all(s.stage_one is not None for s in survey.rounds):
            parts = list(contributions(survey, answers, member))
            snr = strengths(parts, survey, answers).snr.reshape(len(survey.rounds), -1)
        width, epsilon = trace.layout.width, max(spent, default=None)
        return lambda losses: Audited(survey, member, result, losses, width, epsilon, snr)

    made, losses = recorded(config, use)
    return made(losses)


# -- what is kept of it ---------------------------------------------------------------------------


def figures(values: Any, digits: int = 5) -> Any:
    """Nested lists of so many significant digits; what is not finite becomes None."""
    if isinstance(values, list | tuple | np.ndarray):
        return [figures(v, digits) for v in values]
    number = float(values)
    return float(f"{number:.{digits}g}") if math.isfinite(number) else None


def by_round(found: Audited, names: Sequence[str] = KEPT) -> dict[str, Any]:
    """(T, K) tables over rounds and clients: SUR, lambda, r, J on members and on others, and the
    AUC that the same increments give."""
    out: dict[str, list[list[float]]] = {name: [] for name in names}
    for survey in found.survey.rounds:
        one = survey.stage_one
        assert one is not None
        assert survey.own is not None
        rows: dict[str, list[float]] = {name: [] for name in names}
        for p, party in enumerate(found.survey.parties):
            if party not in survey.senders:
                continue
            row = survey.senders.index(party)
            keep = found.survey.present[p]
            delta, inside = survey.own[p][keep], found.member[p][keep]
            values = {
                "sur": one.ratio[row],
                "lambda": one.alignment[row],
                "r": one.magnitude_ratio[row],
                "j": float(phi(delta[inside]).mean()),
                "j others": float(phi(delta[~inside]).mean()),
                "auc": auc(delta, inside),
            }
            for name in names:
                rows[name].append(values[name])
        for name in names:
            out[name].append(rows[name])
    return {name: figures(table, 4) for name, table in out.items()}


def auc(scores: Floats, member: Bools) -> float:
    """Chance that a member scores higher than another record, ties half."""
    from scipy.stats import rankdata

    ranks = rankdata(scores)
    inside = int(member.sum())
    outside = len(member) - inside
    return float((ranks[member].sum() - inside * (inside + 1) / 2) / (inside * outside))


def estimates(found: Audited) -> dict[str, list[float | None]]:
    """name -> [value, low, high, baseline] of everything the audit states."""

    def row(e: Estimate) -> list[float | None]:
        return [
            *figures([e.value, e.low, e.high]),
            None if e.baseline is None else figures(e.baseline),
        ]

    return {name: row(e) for name, e in found.result.estimates.items()}
