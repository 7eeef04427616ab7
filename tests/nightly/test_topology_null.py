"""Topology inference on labels that belong to other clients: how often does it cry leak?"""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from fedaudit.audits.topology_inference import channels as ch
from fedaudit.audits.topology_inference import regressors as rg
from fedaudit.audits.topology_inference import scores
from fedaudit.audits.topology_inference.features import Place
from fedaudit.knowledge.shadows import of_run
from fedaudit.randomness import Seed
from fedaudit.reporting.findings import judge
from fedaudit.setup.config import load
from fedaudit.setup.prepare import build
from fedaudit.trace import WIRETAP, MemoryRecorder, MemoryTruth

pytestmark = pytest.mark.nightly

RUNS = 100


def toys():
    """The toy federations of the audit's own tests."""
    tests = Path(__file__).resolve().parents[1]
    file = tests / "audits" / "topology_inference" / "conftest.py"
    spec = importlib.util.spec_from_file_location("toys", file)
    module = importlib.util.module_from_spec(spec)
    import sys

    sys.modules["toys"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("regressor", "channels"),
    [("ridge", tuple(ch.PARTS)), ("lightgbm", ("A1", "A2-full", "org"))],
)
def test_whole_audits_of_permuted_runs(regressor, channels):
    """Parameters full of signal, labels of other clients: no channel in more than 5 % of runs."""
    audited = toys().audit_toy
    alarms: dict[str, int] = {}
    leaks = 0
    for seed in range(RUNS):
        settings = {
            "regressor": regressor, "channels": list(channels), "by_rounds": False, "sums": False
        }  # fmt: skip
        _, result, _ = audited(seed, permuted=True, coupled=False, settings=settings)
        leaks += judge(result)[-1].verdict == "leak"
        for name, e in result.estimates.items():
            if name.startswith("lift ("):
                alarms[name] = alarms.get(name, 0) + (e.low > 0)
    assert leaks <= 0.05 * RUNS
    assert len(alarms) == len(channels)
    assert max(alarms.values()) <= 0.05 * RUNS, alarms


@pytest.fixture(scope="module")
def corpus():
    """Real shadows: digits, class mixes tied to organisations, DP-SGD."""
    config = load(
        {
            "seed": 3,
            "data": {"name": "digits"},
            "partition": {"kind": "coupled", "eta": 0.7, "position": "region"},
            "topology": {"kind": "hierarchical"},
            "task": {"kind": "mlp", "hidden": [16]},
            "federation": {"clients": 20, "rounds": 5},
            "protections": {"dp_sgd": {"noise_multiplier": 0.5}},
        }
    )
    federation, facts = build(config)
    recorder = MemoryRecorder(
        **federation.about(),
    )
    federation.run(recorder, MemoryTruth(facts))
    trace = recorder.trace()
    place = Place.of(trace.seen_by(WIRETAP).federation)
    shadows = of_run(config, trace, Seed(1), count=41, vantage=WIRETAP)
    return ch.gather(shadows, place, (0,))


def test_permuted_labels_on_real_updates(corpus):
    """Every federation in turn as the target, its labels and the others' dealt at random."""
    rng = np.random.default_rng(5)
    tables = ch.tables(corpus, None)
    n = corpus.p.shape[1]
    alarms = dict.fromkeys(ch.PARTS, 0)
    for run in range(RUNS):
        dealt = ch.permute_shares(corpus.p, rng)
        target = run % corpus.federations
        rest = corpus.row_federation() != target
        for channel in ch.PARTS:
            x, _ = tables.of(channel)
            fitted = rg.fit(
                "lightgbm", x[rest], dealt.ravel()[rest], corpus.row_federation()[rest], rng
            )
            own = fitted(x[target * n : (target + 1) * n])
            alarms[channel] += scores.lift_over_clients(own, dealt[target], rng=rng).low > 0
    assert max(alarms.values()) <= 0.05 * RUNS, alarms
    # and the same labels where they belong are read: the design could have shown something
    x, _ = tables.of("A2-full")
    guessed = ch.cross_validated("lightgbm", x, corpus.p, rng)
    assert scores.lifts_by_federation(guessed, corpus.p).mean() > 0.5 * corpus.variance


def test_coverage_of_the_low_end_with_few_clients():
    """Guesses that follow nothing, few clients: the low end lies above zero in 2.5 % at most."""
    rng = np.random.default_rng(6)
    for n in (5, 8, 20):
        alarms = 0
        for _ in range(1000):
            p = rng.beta(0.3, 1.5, size=n)
            guess = np.clip(p.mean() + 0.05 * rng.normal(size=n), 0, 1)
            alarms += scores.lift_over_clients(guess, p, rng=rng).low > 0
        # 2.5 % of 1000 is 25; 41 or more would happen once in 500 at that rate
        assert alarms < 41, n
