"""A small run with the audit, from settings alone."""

import pytest

from fedaudit.knowledge import KnowledgeBuilder, of_config
from fedaudit.randomness import Seed
from fedaudit.setup.config import load
from fedaudit.setup.prepare import build
from fedaudit.study.auditing import audit_one
from fedaudit.trace import MemoryRecorder, MemoryTruth


@pytest.fixture
def audited():
    """The result of active membership: audited(its settings, other=..., dp_sgd={...})."""
    return _audited


@pytest.fixture
def text():
    """Settings of a run on windows of tokens."""
    return {
        "data": {"name": "docs"},
        "task": {
            "kind": "gpt",
            "width": 32,
            "depth": 1,
            "heads": 2,
            "length": 12,
            "vocabulary_size": 400,
        },
    }


def _audited(settings, seed=1, as_if=(), other=None, **protections):
    config = load(
        {
            "data": {"name": "digits"},
            "task": {"kind": "mlp", "hidden": [8]},
            "federation": {"clients": 6, "rounds": 1},
            "training": {"batch_size": 64},
            **(other or {}),
            "protections": protections,
            "audits": {
                "active_membership": {
                    "adversary": "fc",
                    "games": 200,
                    "client_games": 0,
                    "simulated": 200,
                    "universe": 200,
                    "records": 8,
                    **settings,
                }
            },
        }
    )
    federation, facts = build(config)
    recorder = MemoryRecorder(
        layouts=federation.layouts(),
        federation=federation.describe(),
        declared=[*(p.declare() for p in federation.protections), *as_if],
    )
    truth = MemoryTruth(facts)
    federation.run(recorder, truth)
    trace = recorder.trace()
    builder = KnowledgeBuilder(trace, truth, Seed(seed), lambda: of_config(config, trace), config)
    return audit_one(config.audits["active_membership"], trace, truth, seed, builder)
