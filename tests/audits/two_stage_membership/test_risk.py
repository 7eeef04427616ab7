"""The published risk: known shares, and its stages against each other."""

from types import SimpleNamespace

import numpy as np
import pytest

from fedaudit.audits.two_stage_membership import risk, theory
from fedaudit.audits.two_stage_membership.risk import Contribution
from fedaudit.randomness import Seed


def part(party, number, delta, member, ratio=1.0):
    """A client's update of one round, which stage I finds with certainty, at SUR `ratio`."""
    stage = SimpleNamespace(ratio=np.array([ratio]), snr=np.array([np.inf]))
    return Contribution(
        round=number,
        party=party,
        client=int(party, 36),
        row=0,
        survey=SimpleNamespace(stage_one=stage, threshold=0.1, messages=range(16)),
        delta=np.asarray(delta),
        member=np.asarray(member),
        deviation=None,
        evidence=np.asarray(delta),
        classes=np.zeros(len(delta), int),
    )


def fake_audit():
    return SimpleNamespace(confidence=0.95, sample=4, false_positive_rate=0.05)


def test_the_share_of_draws_with_positive_advantage():
    rng = np.random.default_rng(9)
    assert risk.positive_share(np.array([0.1, 2.0]), 5, rng) == 1.0
    assert risk.positive_share(np.array([-0.1, -2.0]), 5, rng) == 0.0
    # nothing moved: J is 0, which is not above 0
    assert risk.positive_share(np.zeros(4), 5, rng) == 0.0
    # one record drawn: the share of records with a positive increment
    delta = np.array([1.0] * 30 + [-3.0] * 70)
    shares = [risk.positive_share(delta, 1, rng) for _ in range(50)]
    assert np.mean(shares) == pytest.approx(0.3, abs=0.02)


def test_risk_is_survival_times_attribution():
    rng = np.random.default_rng(10)
    member = np.array([True, True, False, False])
    up, down = [1.0, 1.0, -1.0, -1.0], [-1.0, -1.0, -1.0, -1.0]
    parts = [
        part("a", 1, up, member),
        part("a", 2, up, member, ratio=0.05),  # does not survive
        part("b", 1, down, member),
        part("b", 2, up, member),
        part("c", 1, up, member, ratio=np.nan),  # the model did not move: undefined
    ]
    found = risk.risk(fake_audit(), parts, Seed(int(rng.integers(2**63))))
    assert found["ts_mia"].value == pytest.approx(2 / 4)
    assert found["ts_mia"].baseline == 0.0
    survive = found["stage_1_survival"]
    attribute = found["stage_2_advantage"]
    assert survive.value == pytest.approx(3 / 4)
    assert attribute.value == pytest.approx(2 / 3)
    # Pr(S and A) = Pr(S) Pr(A | S)
    assert found["ts_mia"].value == pytest.approx(survive.value * attribute.value)
    expected = np.mean([theory.phi(1.0), theory.phi(1.0), theory.phi(-1.0), theory.phi(1.0)])
    assert found["j_on_members"].value == pytest.approx(float(expected))
    assert found["j_on_members"].baseline == pytest.approx(float(theory.phi(-1.0)))
    # 16 equal orthogonal updates: SUR 1/4, above the floor of 0.1
    assert (found["sur"].baseline, survive.baseline) == (0.25, 1.0)
    assert risk.risk(fake_audit(), parts[-1:], Seed(int(rng.integers(2**63)))) == {}


def test_the_baseline_of_the_risk_has_an_interval_and_a_paired_difference():
    member = np.array([True, True, False, False])
    parts = [part(name, 1, [1.0, 1.0, -1.0, -1.0], member) for name in "abcdef"]
    parts += [part(name, 2, [1.0, 1.0, 1.0, 1.0], member) for name in "abcdef"]
    found = risk.risk(fake_audit(), parts, Seed(1))
    others, above = found["ts_mia_of_non_members"], found["ts_mia_above_non_members"]
    assert others.value == found["ts_mia"].baseline == 0.5
    assert others.low < 0.5 < others.high
    assert above.value == pytest.approx(found["ts_mia"].value - others.value)
    assert above.baseline == 0.0
    # without any difference there is no spread, but no certainty either
    same = risk.risk(fake_audit(), parts[6:], Seed(1))["ts_mia_above_non_members"]
    assert same.value == 0.0
    assert same.low < 0.0 < same.high


def test_numbers_do_not_depend_on_what_was_drawn_before():
    rng = np.random.default_rng(3)
    member = np.arange(8) < 4
    parts = [part(name, t, rng.normal(size=8), member) for name in "abcd" for t in (1, 2)]
    whole = risk.risk(fake_audit(), parts, Seed(5))
    alone = [risk.share_above_zero(parts[3], True, 4, Seed(5)) for _ in range(2)]
    assert alone[0] == alone[1]
    backwards = risk.risk(fake_audit(), parts[::-1], Seed(5))
    assert backwards["ts_mia"] == whole["ts_mia"]
    assert backwards["sur"] == whole["sur"]
