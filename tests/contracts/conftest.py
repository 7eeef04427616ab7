"""Tiny federations that every audit meets, recorded once per session and kept in memory.

    plain      uploads under their senders' names
    shuffled   the same behind a shuffler
    sums       marked clients behind secure aggregation, sums of random groups
    noisy      the same as `plain`, trained with DP-SGD

`renamed` gives the same federations with other client names.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest

from fedaudit.knowledge import KnowledgeBuilder, of_config
from fedaudit.randomness import Seed
from fedaudit.results import AuditResult
from fedaudit.setup.config import Config, load
from fedaudit.setup.prepare import build
from fedaudit.study.auditing import audit_one
from fedaudit.trace import MemoryRecorder, MemoryTruth

SEED = 1
BASE = {
    "seed": 3,
    "data": {"name": "digits", "test_fraction": 0.3},
    "partition": {"kind": "dirichlet", "alpha": 1.0},
    "task": {"kind": "mlp", "hidden": [16]},
    "federation": {"clients": 6, "rounds": 3},
    "training": {"batch_size": 32},
    "trace": {"raw_updates": True},
}
SUMS = {"threshold": 3, "plan": "partitions", "refuse_isolating": False, "masks": "skipped"}
FEDERATIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "shuffled": {"protections": {"shuffle": {}}},
    "sums": {
        "protections": {"secure_aggregation": SUMS},
        "federation": {"clients": 6, "rounds": 12},
        "training": {"learning_rate": 0.3, "epochs": 5, "batch_size": 16},
        "marks": {"clients": 2, "share": 0.2},
    },
    "noisy": {"protections": {"dp_sgd": {"noise_multiplier": 1.0}}},
}


@dataclass(frozen=True)
class Played:
    """A finished federation, and what an audit of it needs."""

    config: Config
    trace: Any
    truth: MemoryTruth

    def builder(self, seed: int = SEED) -> KnowledgeBuilder:
        records = functools.partial(of_config, self.config, self.trace, self.truth)
        return KnowledgeBuilder(self.trace, self.truth, Seed(seed), records, self.config)

    def bare(self, seed: int = SEED) -> KnowledgeBuilder:
        """The builder of an adversary who has the trace and nothing else."""
        return KnowledgeBuilder(self.trace, self.truth, Seed(seed), None)

    def audited(self, audit: Any, seed: int = SEED) -> AuditResult:
        return audit_one(audit, self.trace, self.truth, seed, self.builder(seed))


def relabelled(value: Any, names: Mapping[str, str]) -> Any:
    """The same facts with other names as keys."""
    if not isinstance(value, dict):
        return value
    return {names.get(k, k): relabelled(v, names) for k, v in value.items()}


def play(sections: Mapping[str, Any], names: Callable[[int], str] | None = None) -> Played:
    """Run a federation in memory; `names` turns a client's number into its name on the wire."""
    config = load({**BASE, **sections})
    federation, facts = build(config)
    if names is not None:
        after = {party: names(c) for c, party in enumerate(federation.party)}
        federation = replace(federation, party=tuple(after.values()))
        facts = relabelled(facts, after)
    recorder = MemoryRecorder(**federation.about())
    truth = MemoryTruth(facts)
    federation.run(recorder, truth, keep_raw=True)
    return Played(config, recorder.trace(), truth)


def opposite(number: int) -> str:
    """Names that sort the other way round than `client-00`, `client-01`, ..."""
    return f"site-{90 - number}"


@pytest.fixture(params=FEDERATIONS)
def federation(request) -> str:
    """Each of the federations in turn, by name."""
    return request.param


@pytest.fixture(scope="session")
def federations() -> tuple[str, ...]:
    return tuple(FEDERATIONS)


@pytest.fixture(scope="session")
def played() -> Callable[[str], Played]:
    """Name of a federation -> what was recorded of it."""
    return functools.cache(lambda name: play(FEDERATIONS[name]))


@pytest.fixture(scope="session")
def renamed() -> Callable[[str], Played]:
    """The same with other client names, which sort in the opposite order."""
    return functools.cache(lambda name: play(FEDERATIONS[name], names=opposite))
