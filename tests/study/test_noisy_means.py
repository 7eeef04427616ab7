"""What Flower's noise promises, from recordings that need no Flower."""

import numpy as np
import pytest

from fedaudit.accounting import Exposure, composed_multiplier, epsilon
from fedaudit.study.noisy_means import EVERYONE, promise
from fedaudit.trace import ANONYMOUS, SERVER, Recorder, Trace

FIXED = {
    "name": "central_dp",
    "flower": "DifferentialPrivacyServerSideFixedClipping",
    "noise_multiplier": 1.2,
    "clip": 1.0,
    "clients": 2,
    "delta": 1e-5,
    "trust": "the server",
}


def record(path, rounds, declared=(FIXED,), about=None):
    """A trace of rounds [(sender, weight, metadata), ...]."""
    like = {"w": np.zeros(3, np.float32)}
    recorder = Recorder(path, like=like, declared=declared, federation=dict(about or {}))
    for replies in rounds:
        with recorder.round() as wire:
            for sender, weight, told in replies:
                payload = None if told else like
                wire.send("model", sender, SERVER, payload, weight=weight, metadata=told)
    recorder.close()
    return Trace.open(path)


def spent(*multipliers):
    """Epsilon of Gaussian mechanisms one after another, by dp-accounting itself."""
    import dp_accounting
    from dp_accounting import pld

    accountant = pld.PLDAccountant(value_discretization_interval=1e-3)
    for z in multipliers:
        accountant.compose(dp_accounting.GaussianDpEvent(z))
    return accountant.get_epsilon(1e-5)


def test_every_client_by_its_rounds_and_its_share_of_each_mean(tmp_path):
    trace = record(
        tmp_path / "t",
        [
            [("a", 1.0, {}), ("b", 3.0, {})],
            [("a", 1.0, {}), ("c", 1.0, {})],
            [("a", 1.0, {}), ("b", 9.0, {"failed": "no answer in time"})],
            [("a", 2.0, {}), ("a", 1.0, {}), ("b", 3.0, {})],  # it answered twice
        ],
    )
    given = {name: one["epsilon"] for name, one in promise(trace).items()}
    # noise is for 1/2 of a mean: z (1/2) / share
    assert given["a"] == pytest.approx(spent(2.4, 1.2, 0.6, 1.2), rel=2e-3)
    assert given["b"] == pytest.approx(spent(1.2 * 0.5 / 0.75, 1.2), rel=2e-3)
    assert given["c"] == pytest.approx(spent(1.2), rel=2e-3)
    words = {one["covers"] for one in promise(trace).values()}
    assert len(words) == 1
    assert "0.25 to 1 of a mean" in words.pop()


def test_whoever_counts_most_where_senders_are_hidden(tmp_path):
    rounds = [[(ANONYMOUS, 1.0, {}), (ANONYMOUS, 3.0, {})]] * 2
    hidden = record(tmp_path / "t", rounds)
    worst = spent(*[1.2 * 0.5 / 0.75] * 2)
    assert promise(hidden)[EVERYONE]["epsilon"] == pytest.approx(worst, rel=2e-3)
    named = record(tmp_path / "n", rounds, about={"clients": ["a", "b", "c"]})
    assert {n: one["epsilon"] for n, one in promise(named).items()} == dict.fromkeys(
        ["a", "b", "c"], promise(hidden)[EVERYONE]["epsilon"]
    )


def test_the_clients_clipping_is_an_assumption(tmp_path):
    own = {**FIXED, "flower": "DifferentialPrivacyClientSideFixedClipping"}
    trace = record(tmp_path / "t", [[("a", 1.0, {}), ("b", 1.0, {})]], declared=(own,))
    words = promise(trace)["a"]["covers"]
    assert "holds if every client clips" in words
    assert "holds if all clients count alike, as reported" in words


@pytest.mark.parametrize(
    "declared",
    [
        (),
        ({"name": "central_dp", "noise_multiplier": 1.0, "clip": 1.0},),  # another's
        ({**FIXED, "note": "epsilon unknown"},),
        (FIXED, FIXED),
        ({k: v for k, v in FIXED.items() if k != "delta"},),  # written by an older version
    ],
)
def test_nothing_is_promised_where_nothing_can_be_told(tmp_path, declared):
    trace = record(tmp_path / "t", [[("a", 1.0, {}), ("b", 1.0, {})]], declared=declared)
    assert promise(trace) == {}


def test_nothing_is_promised_by_a_run_without_replies(tmp_path):
    assert promise(record(tmp_path / "t", [[("a", 1.0, {"failed": "out of memory"})]])) == {}


def test_gaussian_mechanisms_compose_to_one():
    once = Exposure(sampling_rate=1.0, steps=1, rounds=1)
    for many in ([2.0], [1.0] * 9, [0.7, 1.9, 3.0]):
        together = epsilon(once, composed_multiplier(many), 1e-5)
        assert together == pytest.approx(spent(*many), rel=2e-3)
    assert composed_multiplier([1.0, 0.0]) == 0.0
    assert composed_multiplier([]) == np.inf
