"""Inner products of clients' updates with templates, stored: whatever is read of a run reads these.

Training and gradients take a minute a run for text; a plan, a group size, or noise on the scalars
takes none, since sums do not change training. Drop-outs and a key that two clients hold do, and are
trained for.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedaudit.audits.attribution import Attribution
from fedaudit.setup.marks import templates_of
from fedaudit.setup.prepare import Prepared, build
from fedaudit.trace.ledger import round_queries
from fedaudit.trace.memory import MemoryRecorder, MemoryTruth
from reproductions.attribution.setting import config_of

Floats = npt.NDArray[np.float64]

ROUNDS = 10
PRETENDED = 30
"""Keys of pretended owners per federation."""

LEAST_LEFT = 3
"""Clients that a sum needs where clients drop out of every round."""


def _dropping_out(share: float) -> Mapping[str, Any]:
    secure = {"threshold": LEAST_LEFT, "dropout": share, "quorum": "threshold", "masks": "skipped"}
    return {"protections": {"secure_aggregation": secure}}


SETTINGS: dict[str, Mapping[str, Any]] = {
    "iid": {},
    "dirichlet 0.3": {"partition": {"kind": "dirichlet", "alpha": 0.3}},
    "20 % drop out": _dropping_out(0.2),
    "50 % drop out": _dropping_out(0.5),
    "two holders of a key": {"marked": 4},
    "20 clients, six marked": {"clients": 20, "marked": 6},
    "50 clients, 15 marked": {"clients": 50, "marked": 15},
}


@dataclass(frozen=True)
class Inner:
    """`values` (T, K, S + U + P): -<template, update> of the owner's keys, unused ones, and those
    of pretended owners. `present` (T, K); `holders` (K,): number of each client's key, or -1;
    `sizes` (T, K): the norms of updates. Processor seconds of training and of templates."""

    values: Floats
    present: npt.NDArray[np.bool_]
    holders: npt.NDArray[np.int64]
    sizes: Floats
    keys: int
    unused: int
    train_seconds: float
    template_seconds: float

    def save(self, file: Path) -> None:
        np.savez(file, **vars(self))

    @classmethod
    def load(cls, file: Path) -> Inner:
        raw: dict[str, Any] = dict(np.load(file))
        return cls(**{k: v if v.ndim else v.item() for k, v in raw.items()})


def stored(folder: Path, kind: str, setting: str, windows: int, seed: int) -> Inner:
    """The inner products of one run, measured unless `folder` holds them."""
    name = f"{kind}-{setting}-{windows}-{seed}".replace(" ", "_").replace("%", "percent")
    file = folder / f"{name}.npz"
    if not file.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        measure(kind, setting, windows, seed).save(file)
    return Inner.load(file)


def measure(kind: str, setting: str, windows: int, seed: int) -> Inner:
    """Train one federation, and meet its updates with the templates of every round."""
    made = Prepared(config_of(seed=seed, kind=kind, rounds=ROUNDS, **SETTINGS[setting]))
    planted = made.marks
    assert planted is not None
    if setting == "two holders of a key":
        planted = _shared(planted)
        made.__dict__["marks"] = planted  # a config refuses this: the run is about what it costs
    federation, facts = build(made)
    names = federation.party
    recorder = MemoryRecorder(**federation.about())
    truth = MemoryTruth(facts)
    began = time.process_time()
    replace(federation, test=None).run(recorder, truth, keep_raw=True)
    trained = time.process_time() - began
    server = recorder.trace().seen_by("server")
    began = time.process_time()
    asked = Attribution(windows=windows)
    templates = templates_of(planted.family, planted.keys, windows, seed)
    keys, unused = len(planted.keys), asked.templates
    values, present, sizes = [], [], []
    for number in server.rounds:
        model = server.received(number, names[0], before=1)
        assert model is not None
        updates = truth.raw_updates(number)[1].astype(np.float64)
        gradients = templates.gradients(model, unused + PRETENDED)
        # pretended owners' keys do not belong to the mean of unused ones
        gradients -= gradients[keys : keys + unused].mean(axis=0)
        gradients /= np.linalg.norm(gradients, axis=1, keepdims=True)
        values.append(-(updates @ gradients.T.astype(np.float64)))
        present.append(_in_sums(round_queries(server, number), names))
        sizes.append(np.linalg.norm(updates, axis=1))
    at = {key: number for number, key in enumerate(planted.keys)}
    return Inner(
        values=np.array(values),
        present=np.array(present),
        holders=np.array([at.get(planted.marked.get(c, -1), -1) for c in range(len(names))]),
        sizes=np.array(sizes),
        keys=keys,
        unused=unused,
        train_seconds=trained,
        template_seconds=time.process_time() - began,
    )


def _shared(planted: Any) -> Any:
    """The same marks, the last marked client with the key of the first."""
    first, *_, last = planted.marked
    marked = {**planted.marked, last: planted.marked[first]}
    return replace(planted, marked=marked, keys=tuple(sorted(set(marked.values()))))


def _in_sums(ledger: Any, names: tuple[str, ...]) -> npt.NDArray[np.bool_]:
    """Who was in the round's aggregate (K,): everybody, unless secure sums say otherwise."""
    if not len(ledger.answered):
        return np.full(len(names), not len(ledger.queries))
    inside = {n for n, m in zip(ledger.clients, ledger.answered[0], strict=True) if m}
    return np.array([n in inside for n in names])
