"""A small federation, played in memory."""

import json

import pytest

from fedaudit.knowledge import (
    of_config,
)
from fedaudit.setup.config import load
from fedaudit.setup.prepare import build
from fedaudit.study.seal import seal
from fedaudit.trace import MemoryRecorder, MemoryTruth

SMALL = {
    "seed": 3,
    "data": {"name": "digits", "test_fraction": 0.3},
    "partition": {"kind": "dirichlet", "alpha": 0.5},
    "task": {"kind": "mlp", "hidden": [8]},
    "federation": {"clients": 5, "rounds": 2},
}


def play(**sections):
    """(config, trace, truth) of a small federation."""
    config = load(SMALL | sections)
    federation, facts = build(config)
    recorder = MemoryRecorder(
        **federation.about(),
    )
    truth = MemoryTruth(facts)
    federation.run(recorder, truth, keep_raw=True)
    return config, recorder.trace(), truth


@pytest.fixture(scope="session")
def played():
    """Sections of a config -> (config, trace, truth) of a small federation."""
    return play


@pytest.fixture(scope="module")
def small():
    config, trace, truth = play()
    return config, trace, truth, of_config(config, trace, truth)


@pytest.fixture
def tamper():
    """Mark a stored result: what is kept bears the mark, what is done again does not."""

    def mark(folder, name="two_stage_membership"):
        file = folder / "results" / f"{name}.json"
        stamped = json.loads(file.read_text())
        stamped["result"]["notes"] = ["kept"]
        file.write_text(json.dumps(stamped))
        seal(folder, "results")

    return mark
