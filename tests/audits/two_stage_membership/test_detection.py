"""Power of stage I if updates carry their own noise: pure noise gives no power."""

import numpy as np
import pytest

from fedaudit.audits.audit import Noise
from fedaudit.audits.two_stage_membership import TwoStageMembership, detection
from fedaudit.audits.two_stage_membership.survival import contributions, survival
from fedaudit.audits.two_stage_membership.theory import detection_power
from fedaudit.results import Estimate, Underpowered

POWER = "update_detection_power (at 5 %)"
CLIENTS = 5


def strength_of(rng, snr, width, rounds=4):
    """Observed strengths of updates with a given true SNR, noise of deviation 1 on every upload."""
    squared, error = [], []
    for _ in range(rounds):
        rows = rng.standard_normal((CLIENTS, width)).astype(np.float32)
        rows[:, 0] += snr * np.sqrt(CLIENTS)
        parts = contributions(rows, np.ones(CLIENTS))
        stage = survival(parts, 1 / np.sqrt(CLIENTS), np.full(CLIENTS, 1 / CLIENTS))
        squared += list(stage.snr_squared)
        error += list(stage.snr_error)
    most = np.full(len(squared), np.inf)
    return detection.Strength(np.array(squared), np.array(error), most)


def stated(rng, snr, width):
    names = [f"client-{c}" for c in range(CLIENTS)] * 4
    return detection.power(strength_of(rng, snr, width), names, TwoStageMembership(), rng)


@pytest.mark.parametrize("width", [100, 1000, 10_000])
def test_noise_alone_is_given_no_power(width):
    """Single updates would give a mean power of 0.22, 0.37 and 0.48 here."""
    rng = np.random.default_rng(width)
    found = [stated(rng, 0.0, width) for _ in range(100)]
    wrong = [f for f in found if isinstance(f, Estimate) and f.low > 0.051]
    # 2.5 % are to be expected: 9 or more of 100 would happen once in 1000
    assert len(wrong) <= 8
    unstated = [f for f in found if isinstance(f, Underpowered)]
    assert len(unstated) + len(wrong) == len(found)
    assert all(f.needed > f.have for f in unstated)


@pytest.mark.parametrize("width", [100, 10_000])
@pytest.mark.parametrize("snr", [0.0, 1.0, 3.0, 6.0])
def test_squared_readings_are_unbiased_and_intervals_hold_the_truth(width, snr):
    rng = np.random.default_rng(7)
    means, held = [], []
    for _ in range(60):
        of = strength_of(rng, snr, width)
        means.append(of.squared.mean())
        ends = detection.pooled(of, 0.95)
        held.append(ends.low <= snr <= ends.high)
    error = np.std(means, ddof=1) / np.sqrt(len(means))
    assert abs(np.mean(means) - snr**2) < 4 * error
    assert np.mean(held) >= 0.88


def test_what_is_strong_enough_is_stated_and_right():
    rng, held = np.random.default_rng(3), []
    for snr, width in ((6.0, 1000), (3.0, 100)):
        for _ in range(30):
            found = stated(rng, snr, width)
            assert isinstance(found, Estimate)
            held.append(found.low <= float(detection_power(snr, 0.05)) <= found.high)
    # 95 % intervals: 52 or fewer of 60 would happen once in 100
    assert sum(held) >= 53


@pytest.mark.parametrize(("snr", "power"), [(0.0, 0.05), (3.0, 0.912)])
def test_updates_that_the_run_kept_give_the_power_exactly(by_hand, snr, power):
    """Power without an update is the false-positive rate, whatever noise was recorded."""
    rng = np.random.default_rng(5)
    clean = np.zeros((3, CLIENTS, 43), np.float32)
    clean[:, :, 1] = 0.01 * snr * np.sqrt(CLIENTS)
    noisy = clean + 0.01 * rng.standard_normal(clean.shape).astype(np.float32)
    names = [f"client-{c:02d}" for c in range(CLIENTS)]
    noise = Noise(
        aggregate=0.01 / np.sqrt(CLIENTS),
        uploads=dict.fromkeys(names, 0.01),
        rule="update_noise",
        clip=1.0,
    )
    result = by_hand(list(noisy), raw=list(clean)).audit(noise=noise)
    assert result.estimates[POWER].value == pytest.approx(power, abs=1e-3)
    assert result.per_client["client-00"]["SNR"] == pytest.approx(snr, rel=1e-3, abs=1e-6)
    assert any("before their noise" in n for n in result.notes)
    # without raw updates the result claims nothing that noise could cause
    blind = by_hand(list(noisy)).audit(noise=noise)
    if not snr:
        assert POWER not in blind.estimates
        assert any(POWER in u.what for u in blind.underpowered)
        assert any("power at most" in n for n in blind.notes)
    row = blind.per_client["client-00"]
    assert row["SNR_at_most"] >= snr
    assert row["SNR"] is None or row["SNR"] <= row["SNR_at_most"]


def test_without_noise_every_update_is_found_and_two_clients_are_no_certainty():
    rng = np.random.default_rng(8)
    of = detection.Strength(np.full(4, np.inf), np.zeros(4), np.full(4, np.inf))
    found = detection.power(of, ["a", "a", "b", "b"], TwoStageMembership(), rng)
    assert found.value == 1.0
    assert found.low < 0.5
    assert found.baseline == 0.05


def test_clipping_bounds_what_can_be_found(by_hand):
    """Updates of length 1 at most behind noise of deviation 1: SNR below 1 / sqrt(5)."""
    rng = np.random.default_rng(6)
    names = [f"client-{c:02d}" for c in range(CLIENTS)]
    noise = Noise(aggregate=0.45, uploads=dict.fromkeys(names, 1.0), rule="update_noise", clip=1.0)
    rows = [rng.standard_normal((CLIENTS, 43)).astype(np.float32) for _ in range(3)]
    result = by_hand(rows).audit(noise=noise)
    for row in result.per_client.values():
        assert row["SNR_at_most"] <= 1 / np.sqrt(CLIENTS) + 1e-9
