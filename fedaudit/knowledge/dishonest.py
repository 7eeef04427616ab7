"""Rounds of a run in which the server plants weights: the first round again, from other weights.

Same clients, records, protections and local steps; the model that clients receive keeps its
architecture. The audit sees what the server sees of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from torch import nn

from fedaudit.arrays import Floats
from fedaudit.audits.active_membership.own_model import OwnModel
from fedaudit.audits.active_membership.probe import Planting
from fedaudit.audits.reconstruction.dishonest import PlantedRound
from fedaudit.audits.reconstruction.planting import Kind, PlantedLayers, plant
from fedaudit.audits.records.seen import EVERYBODY, rows_of
from fedaudit.errors import FedauditError, NotApplicable
from fedaudit.knowledge.probing.own_model import own_model
from fedaudit.knowledge.records import Records
from fedaudit.knowledge.rehearsal import recorded
from fedaudit.randomness import Seed
from fedaudit.setup.prepare import Prepared, build
from fedaudit.trace import SERVER, Trace

if TYPE_CHECKING:
    from fedaudit.federation.engine import Federation

NOT_TRIED = "no dishonest server was tried"


def planted_rounds(
    made: Prepared | None,
    trace: Trace,
    records: Records,
    kinds: Sequence[Kind],
    vantage: str,
    seed: Seed,
) -> tuple[tuple[PlantedRound, ...], tuple[str, ...]]:
    """One round of the run per kind of planted weights, and notes; none where nothing can be
    planted. Thresholds come from held-out records."""
    parties = vantage.split("+")
    x = records.task.encode(records.others).x
    if not kinds or SERVER not in parties or not x.is_floating_point():
        return (), ()
    own = x.reshape(len(x), -1).numpy().astype(np.float64)
    try:
        model = _plantable(made, own.shape[1])
        assert made is not None
        rows, senders = rows_of(trace.seen_by(*parties), 1)
    except FedauditError as error:
        return (), (f"{NOT_TRIED}: {error.what} ({error.got})",)
    federation, _ = build(made)
    names = trace.manifest.federation.get("clients", ())
    if len(names) == len(federation.party):
        federation = replace(federation, party=tuple(names))
    total = int(federation.clients_data.sizes.sum())
    behind = total if EVERYBODY in senders else max(1, round(total / len(rows)))
    played = tuple(
        _play(federation, model, kind, own, behind, seed.generator(f"planted/{kind}"), parties)
        for kind in kinds
    )
    return played, (f"dishonest server: {', '.join(kinds)} planted in round 1",)


def _plantable(made: Prepared | None, features: int) -> OwnModel:
    """The run's model, if ReLU units can be planted in it and steps keep a ratio of sums."""

    if made is None:
        raise _refused("how clients train is not known", "a recording")
    training = made.config.training
    if made.config.federation.aggregation == "gossip":
        raise _refused("no server sends models", "gossip")
    if training.optimizer != "sgd":
        raise _refused("the optimizer rescales every weight", training.optimizer)
    model = own_model(made.task, training, features)
    rough = [m for m in made.task.module.modules() if isinstance(m, nn.GELU)]
    if rough:
        raise _refused("GELU units are never quite closed", "GELU")
    return model


def _refused(what: str, got: str) -> NotApplicable:
    return NotApplicable(
        what,
        code="architecture_fixed",
        expected="a server, SGD, and linear layers with ReLU between them",
        got=got,
        remedy="read the honest server's part of the result",
    )


def _play(
    federation: Federation,
    model: OwnModel,
    kind: Kind,
    own: Floats,
    records: int,
    rng: np.random.Generator,
    parties: Sequence[str],
) -> PlantedRound:
    """The federation's first round from planted weights."""
    after = model.second[1].stop - model.second[1].start
    layers = plant(kind, own, model.neurons, after, records, rng)
    row = planted_row(model, layers)
    once = replace(federation.rounds, rounds=1)
    trace, held = recorded(replace(federation, rounds=once, probe=Planting(row), test=None))
    return PlantedRound(
        kind=kind,
        view=trace.seen_by(*parties),
        weight=model.first[0],
        bias=model.first[1],
        largest=float(max(np.abs(layers.weight).max(), np.abs(layers.bias).max())),
        held=held,
    )


def planted_row(model: OwnModel, layers: PlantedLayers) -> npt.NDArray[np.float32]:
    """The run's initial weights (w,) with planted first layers."""
    row = model.start.copy()
    (weight, bias), (after, bias_after) = model.first, model.second
    row[weight], row[bias] = layers.weight.ravel(), layers.bias
    row[after], row[bias_after] = layers.weight_after.ravel(), layers.bias_after
    return row
