"""Canaries among the clients' examples, and what is declared of the clients that hold them.

A rehearsal plants them in a run of its own (`knowledge.rehearsal`). With `mode = "production"` they
are planted in the run that is audited: few, of norm 1, since its model counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fedaudit.arrays import Bools
from fedaudit.audits.epsilon import EpsilonAudit
from fedaudit.audits.epsilon.canaries import CanaryVectors, Promise, place_canaries
from fedaudit.errors import ConfigError
from fedaudit.federation.local.planted import planted_in
from fedaudit.randomness import Seed
from fedaudit.tasks.lora import DenseLoRA

if TYPE_CHECKING:
    from torch import Tensor

    from fedaudit.federation.engine import Federation


def promises_of(
    federation: Federation, places: Sequence[str] = ("step",)
) -> tuple[Promise, ...] | None:
    """What the federation's noise at one of these places promises each client; None without any."""
    exposures = federation.exposures()
    whole = "step" not in places
    for hook in federation.protections:
        added = hook.noise(hook.declare(), clients=len(exposures))
        if added is None or added.place not in places:
            continue
        many = added.multiplier if isinstance(added.multiplier, tuple) else None
        found = []
        for c, exposure in enumerate(exposures):
            given = hook.guarantee(c, exposure)
            z = float(added.multiplier if many is None else many[c])  # type: ignore[arg-type]
            if given is None or z == 0:
                break
            found.append(
                Promise(
                    exposure=exposure.one_release_per_round if whole else exposure,
                    multiplier=z,
                    clip=added.scale,
                    epsilon=given.epsilon,
                    delta=given.delta,
                    unit=given.unit,
                    relation=given.relation,
                    records=len(exposures) if whole else _units(federation, c),
                    once=added.place == "aggregate",
                )
            )
        if len(found) == len(exposures):
            return tuple(found)
    return None


def _units(federation: Federation, client: int) -> int:
    """Units of privacy that a client holds: examples, records or persons."""
    data = federation.clients_data
    low, size = int(data.starts[client]), int(data.sizes[client])
    return size if data.person is None else len(np.unique(data.person[low : low + size].numpy()))


def plant(
    federation: Federation,
    audit: EpsilonAudit,
    seed: Seed,
    promises: Sequence[Promise],
    records: Sequence[tuple[Tensor, Tensor, float]] = (),
) -> tuple[Federation, CanaryVectors, Bools]:
    """The federation with canaries among its clients' examples, the canaries, and their coins.

    `records`: examples (x, y) with their sizes, dealt to clients in turn.
    """

    canaries, coins = _place(federation, audit, seed, len(records))
    first = len(canaries) - len(records)
    canaries = replace(
        canaries,
        norm=np.concatenate([canaries.norm[:first], [size for *_, size in records]]),
    )
    clip = np.array([promises[c].clip for c in canaries.client])
    values = canaries.unit * (canaries.norm * clip)[:, None].astype(np.float32)
    data = planted_in(
        federation.clients_data,
        np.where(coins, canaries.client, -1),
        torch.from_numpy(canaries.columns),
        torch.from_numpy(values),
        {first + i: (x, y) for i, (x, y, _) in enumerate(records)},
    )
    return replace(federation, data=data), canaries, coins


def _place(
    federation: Federation, audit: EpsilonAudit, seed: Seed, records: int
) -> tuple[CanaryVectors, Bools]:
    """Canaries and coins, drawn from a seed."""
    clients, task = len(federation.party), federation.task
    canaries = place_canaries(
        task.layout,
        kinds=audit.kinds,
        norms=audit.norms,
        count=max(1, audit.canaries - records),
        clients=clients,
        trained=task.trained,
        rng=seed.generator("canaries"),
    )
    if records:
        canaries = canaries.with_records(np.ones(records), clients)
    return canaries, seed.generator("coins").random(len(canaries)) < 0.5


# -- in production ---------------------------------------------------------------------------------


def planted_settings(audit: EpsilonAudit) -> dict[str, Any]:
    """The settings that decide which canaries a run holds."""
    return {"canaries": audit.canaries, "kinds": list(audit.kinds), "norms": list(audit.norms)}


def production_audit(audits: Mapping[str, Any]) -> EpsilonAudit | None:
    """The audit of a config that plants canaries in the run itself, if there is one."""
    found = audits.get(EpsilonAudit.name)
    own = isinstance(found, EpsilonAudit) and found.mode == "production"
    return found if own else None


def plant_in_production(federation: Federation, audit: EpsilonAudit) -> Federation:
    """The federation with the canaries of its own run."""
    promises = promises_of(federation)
    if promises is None or isinstance(federation.task, DenseLoRA):
        raise ConfigError(
            "audits.epsilon cannot plant canaries in this run",
            expected="noise on the sums of batches, and a task whose clients send their own steps",
            got="protections " + ", ".join(h.name for h in federation.protections)
            if promises is None
            else "FLoRA",
            remedy='[protections.dp_sgd], or mode = "rehearsal"',
        )
    return plant(federation, audit, _seed(federation), promises)[0]


def production_canaries(
    federation: Federation, audit: EpsilonAudit
) -> tuple[CanaryVectors, Bools, tuple[Promise, ...]]:
    """Canaries and coins that a run holds, and what is declared of its clients."""
    promises = promises_of(federation)
    assert promises is not None
    return *_place(federation, audit, _seed(federation), 0), promises


def _seed(federation: Federation) -> Seed:
    return Seed(federation.seed.key("production canaries"))


def added_power(canaries: CanaryVectors, promises: Sequence[Promise], width: int) -> str:
    """Power that inserted canaries add to the noise: m mu^2 / 2 d, with mu^2 = q / z^2 per draw."""
    own = promises[0]
    each = own.exposure.sampling_rate / own.multiplier**2
    share = len(canaries) / len(promises) * each / (2 * width)
    return (
        f"{len(canaries)} canaries, half of them inserted, add {100 * share:.2g} % to the power of "
        "the noise in the model that counts"
    )
