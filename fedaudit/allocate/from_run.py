"""What noise per client would do for a run whose clients all have the same."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from fedaudit.allocate.clients import Clients
from fedaudit.allocate.document import document_of
from fedaudit.allocate.leverages import leverage_of
from fedaudit.errors import FedauditError
from fedaudit.files import Unreadable, read_text, write_atomically
from fedaudit.protections.noise_allocation import allocate as allocate_noise
from fedaudit.setup.config import Config
from fedaudit.setup.identity import code_sha256
from fedaudit.trace import Truth


def of_run(config: Config, truth: Truth) -> dict[str, Any] | None:
    """What noise per client would do for a run whose clients all have the same, as a document.

    At the budget of the run: the same noise in all, dealt out by size and organisation. None where
    the run has no such noise, or every client the same leverage.
    """
    hook = config.protections.get("dp_sgd")
    if hook is None or not isinstance(hook.noise_multiplier, float) or hook.epsilon is not None:
        return None
    if hook.unit == "person" or config.federation.participation < 1:
        return None  # other steps and rates than these count
    told = truth.clients
    batch = config.training.batch_size
    organisations = [about.get("organisation") for about in told.values()]
    groups: tuple[str, ...] | None = None
    if None not in organisations and 1 < len(set(organisations)) < len(organisations):
        groups = tuple(f"group {o}" for o in organisations)  # else it tells nobody apart
    sizes = np.array([about["examples"] for about in told.values()])
    if not hook.noise_multiplier > 0 or batch is None or batch > sizes.min() or len(sizes) < 2:
        return None
    who = Clients(names=tuple(told), numbered=False, sizes=sizes, groups=groups, edges=None)
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
    """Write what `of_run` finds, once: the same run has the same allocation.

    It is an extra beside the audits: where it cannot be worked out, there is none.
    """
    key = hashlib.sha256(
        json.dumps([config.raw, truth.clients, code_sha256()], sort_keys=True).encode()
    ).hexdigest()
    kept = truth.path / f"{file.name}.key"
    try:
        if file.is_file() and read_text(kept, limit=1024) == key:
            return
    except Unreadable:
        pass  # worked out anew
    try:
        found = of_run(config, truth)
    except FedauditError:
        found = None
    if found is None:
        file.unlink(missing_ok=True)
        return
    write_atomically(file, json.dumps(found, indent=1, allow_nan=False) + "\n")
    write_atomically(kept, key, private=True)
