"""A small federation with DP-SGD, and engines with one fault each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from fedaudit.audits.audit import Knowledge
from fedaudit.audits.epsilon import EpsilonAudit
from fedaudit.federation.engine import Federation
from fedaudit.federation.local.schedule import Training
from fedaudit.federation.local.trainer import ClientData
from fedaudit.federation.rounds import Rounds
from fedaudit.knowledge.rehearsal import as_members, rehearsals_of
from fedaudit.protections.dp_sgd import DPSGD
from fedaudit.randomness import Seed
from fedaudit.results import AuditResult
from fedaudit.tasks.classifier import Classifier
from fedaudit.trace.truth import MembersOnly

CLIENTS, RECORDS, FEATURES, WIDTH, CLASSES = 4, 80, 30, 48, 4


def make_federation(
    kind: type[Federation] = Federation, *, seed: int = 0, hook: Any = None, **settings: Any
) -> Federation:
    """Four clients that learn four classes from noise around four centres."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(CLASSES, FEATURES))
    parts = []
    for _ in range(CLIENTS):
        y = rng.integers(0, CLASSES, RECORDS)
        x = centres[y] + rng.normal(size=(RECORDS, FEATURES))
        parts.append((torch.from_numpy(x).float(), torch.from_numpy(y)))
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        module = torch.nn.Sequential(
            torch.nn.Linear(FEATURES, WIDTH),
            torch.nn.ReLU(),
            torch.nn.Linear(WIDTH, WIDTH),
            torch.nn.ReLU(),
            torch.nn.Linear(WIDTH, CLASSES),
        )
    training = Training(learning_rate=0.1, steps=5, batch_size=16, sampling="poisson")
    return kind(
        task=Classifier(module, settings={"kind": "module"}),
        data=ClientData.join(parts),
        rounds=Rounds(clients=CLIENTS, rounds=12),
        training=settings.pop("training", training),
        seed=Seed(seed),
        protections=(hook or DPSGD(noise_multiplier=1.0, clip=0.5),),
        **settings,
    )


def rehearse_and_audit(made: Federation, seed: int = 1, **settings: Any) -> AuditResult:
    """Rehearse a federation, attack what the server saw, and score it."""
    audit = EpsilonAudit(**settings)
    played = rehearsals_of(audit, made, made.party, Seed(seed))
    knowledge = Knowledge(extra={"rehearsals": tuple(r.seen for r in played)})
    rng = np.random.default_rng(seed)
    guess = audit.attack(played[0].seen.view, knowledge, rng)
    return audit.score(guess, MembersOnly(as_members(played)), rng)


@pytest.fixture(scope="session")
def federation() -> Callable[..., Federation]:
    """Kind of federation, seed and hook -> a small federation with DP-SGD."""
    return make_federation


@pytest.fixture(scope="session")
def audited() -> Callable[..., AuditResult]:
    """Federation, seed and settings -> its audit."""
    return rehearse_and_audit
