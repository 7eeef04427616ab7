"""Estimate what noise per client would change for a run with equal noise."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from fedaudit.allocate.clients import Clients
from fedaudit.allocate.document import document_of
from fedaudit.allocate.leverages import leverage_of
from fedaudit.codec import to_json
from fedaudit.errors import FedauditError
from fedaudit.files import Unreadable, read_text, write_atomically
from fedaudit.hooks import Hook
from fedaudit.protections.noise_allocation import allocate as allocate_noise
from fedaudit.setup.config import Config
from fedaudit.setup.identity import code_sha256
from fedaudit.trace import Truth


def _adds_noise_to_steps(hook: Hook) -> bool:
    added = hook.noise(hook.declare(), clients=1)
    return added is not None and added.place == "step"


def of_run(config: Config, truth: Truth) -> dict[str, Any] | None:
    """What noise per client would change for a run with equal noise, as a document.

    The budget is that of the run, allocated by size and organisation. None if the run does not use
    equal noise, or if every client has the same leverage.
    """
    hook = next((h for h in config.protections.values() if _adds_noise_to_steps(h)), None)
    if hook is None or not isinstance(hook.noise_multiplier, float) or hook.epsilon is not None:
        return None
    if hook.unit == "person" or config.federation.participation < 1:
        return None  # the steps and sampling rates below would not hold
    clients = truth.clients
    batch = config.training.batch_size
    organisations = [about.get("organisation") for about in clients.values()]
    groups: tuple[str, ...] | None = None
    if None not in organisations and 1 < len(set(organisations)) < len(organisations):
        groups = tuple(f"group {o}" for o in organisations)  # else groups carry no information
    sizes = np.array([about["examples"] for about in clients.values()])
    if not hook.noise_multiplier > 0 or batch is None or batch > sizes.min() or len(sizes) < 2:
        return None
    who = Clients(names=tuple(clients), numbered=False, sizes=sizes, groups=groups, edges=None)
    described, values = leverage_of(who, None, None, None)
    if np.ptp(values) == 0:
        return None
    found = allocate_noise(
        values,
        rounds=config.federation.rounds,
        batch_size=batch,
        budget=len(sizes) * (hook.noise_multiplier / batch) ** 2,
        sizes=sizes,
        delta=hook.delta,
        steps_per_round=config.training.steps_of(sizes),
        clients=who.names,
    )
    return document_of(who, found, described, "the run", "equal", None, None, unit=hook.unit)


def keep_allocation(config: Config, truth: Truth, file: Path) -> None:
    """Write the allocation of `of_run` once: the same run has the same allocation.

    It is an extra beside the audits: if it cannot be computed, no file is written.
    """
    key = hashlib.sha256(
        json.dumps([config.raw, truth.clients, code_sha256()], sort_keys=True).encode()
    ).hexdigest()
    kept = truth.path / f"{file.name}.key"
    try:
        if file.is_file() and read_text(kept, limit=1024) == key:
            return
    except Unreadable:
        pass  # compute it again
    try:
        found = of_run(config, truth)
    except FedauditError:
        found = None
    if found is None:
        file.unlink(missing_ok=True)
        return
    write_atomically(file, to_json(found) + "\n")
    write_atomically(kept, key, private=True)
