"""Canaries in the run that counts: planted by the config, read from its own recording."""

import numpy as np
import pytest

import fedaudit
from fedaudit.audits.epsilon import EpsilonAudit
from fedaudit.errors import ConfigError, TraceError
from fedaudit.setup.config import load
from fedaudit.setup.prepare import build
from fedaudit.trace import MemoryRecorder

SETTINGS = {
    "seed": 3,
    "data": {"name": "digits"},
    "federation": {"clients": 4, "rounds": 6},
    "training": {"learning_rate": 0.1, "steps": 4, "batch_size": 64},
    "protections": {"dp_sgd": {"noise_multiplier": 1.0}},
    "audits": {
        "epsilon": {"mode": "production", "canaries": 200, "kinds": ["dense"], "norms": [1]}
    },
}
REHEARSED = {**SETTINGS, "audits": {"epsilon": {"canaries": 200, "kinds": ["dense"]}}}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("production") / "run"
    return fedaudit.run(SETTINGS, folder), folder


def test_the_run_itself_is_measured(finished):
    done, _ = finished
    (result,) = (r for r in done.results if r.audit == "epsilon")
    assert result.status == "ok", result.need
    assert result.notes[0].startswith("declared ")
    assert "200 canaries; at most" in result.notes[0]
    assert any(
        "add" in n and "power of the noise in the model that counts" in n for n in result.notes
    )
    assert result.estimates["epsilon"].low < result.bounds["declared"].value
    assert result.trace_sha256 == fedaudit.Trace.open(done.path / "trace").sha256
    assert not [f for f in done.findings if f.audit == "epsilon" and f.verdict == "disagreement"]


@pytest.mark.parametrize(("share", "passed"), [(0.9, True), (0.0, False)])
def test_a_policy_limits_measured_against_declared(share, passed, finished):
    _, folder = finished
    limit = {"metric": "epsilon.share_of_declared", "at_most": share}
    assert fedaudit.gate(folder, {"limit": [limit]}).passed is passed


def test_draws_follow_from_the_seed_without_training():
    trained, _ = build(load(SETTINGS))
    trained.run(MemoryRecorder(**trained.about()))
    replayed, _ = build(load(SETTINGS))
    replayed.replay_draws()
    for log in ("draws", "batches"):
        once, again = (
            np.concatenate(getattr(f.clients_data.planted, log)) for f in (trained, replayed)
        )
        assert np.array_equal(once[np.lexsort(once.T)], again[np.lexsort(again.T)])


def test_a_run_without_canaries_cannot_be_read_as_one_with(tmp_path):
    done = fedaudit.run(REHEARSED, tmp_path / "run")
    result = fedaudit.audit(
        done.path, ["epsilon"], settings={"epsilon": SETTINGS["audits"]["epsilon"]}
    ).results[0]
    assert result.status == "not_applicable"
    assert "without these canaries" in result.need.what


def test_canaries_belong_to_the_experiment(finished):
    _, folder = finished
    with pytest.raises(TraceError, match="holds another experiment") as caught:
        fedaudit.run(REHEARSED, folder)
    assert "canaries of the run itself" in caught.value.got


@pytest.mark.parametrize("wrong", [{"norms": (1.0, 1000.0)}, {"norms": (1.0,), "repeats": 2}])
def test_production_refuses_what_ruins_a_model(wrong):
    with pytest.raises(ConfigError, match="ruin the model that counts"):
        EpsilonAudit(mode="production", **wrong)


def test_production_needs_noise_on_batches():
    with pytest.raises(ConfigError, match="cannot plant canaries in this run"):
        build(load({**SETTINGS, "protections": {}}))
