"""One test over readings and clients: null rate, power, naive twin, and the AUC it would see."""

import numpy as np
import pytest

from fedaudit.audits.records import readings
from fedaudit.audits.records.readings import readings_test
from fedaudit.stats.roc import plain_auc

P, N = 6, 24


def scores(rng, shift=0.0, reading=0, clients=slice(None)):
    """Five readings that share most of their noise; members are shifted in one of them."""
    shared = rng.normal(size=(P, N))
    found = {f"r{i}": 0.8 * shared + 0.6 * rng.normal(size=(P, N)) for i in range(5)}
    classes = np.tile(np.arange(N) % 3, (P, 1))
    member = np.zeros((P, N), bool)
    for p in range(P):
        for kind in range(3):
            own = np.flatnonzero(classes[p] == kind)
            member[p, rng.permutation(own)[: len(own) // 2]] = True
    found[f"r{reading}"][clients] += shift * member[clients]
    return found, member, classes


def run_test(rng, **how):
    found, member, classes = scores(rng, **how)
    present = np.ones((P, N), bool)
    return readings_test(found, member, present, classes, 0.95, rng)


def test_without_a_leak_alarms_stay_at_the_stated_level(monkeypatch):
    """Readings and clients together, over 1,000 federations: at most 2.5 %, plus chance."""
    monkeypatch.setattr(readings, "DRAWS", 399)
    rng = np.random.default_rng(0)
    alarms = 0
    for _ in range(1000):
        one = run_test(rng)
        alarms += bool(one.test.significant or (one.clients <= one.test.level).any())
    assert alarms / 1000 <= 0.025 + 3 * np.sqrt(0.025 * 0.975 / 1000)


def test_a_leak_in_one_reading_decides_by_its_name(monkeypatch):
    monkeypatch.setattr(readings, "DRAWS", 999)
    rng = np.random.default_rng(1)
    found = [run_test(rng, shift=1.0, reading=3) for _ in range(40)]
    assert np.mean([one.test.significant for one in found]) > 0.9
    assert np.mean([one.test.decided == "r3" for one in found]) > 0.9


def test_a_single_exposed_client_is_found_in_the_same_family(monkeypatch):
    monkeypatch.setattr(readings, "DRAWS", 999)
    rng = np.random.default_rng(2)
    found = [run_test(rng, shift=4.0, clients=slice(2, 3)) for _ in range(20)]
    assert np.mean([one.clients[2] <= one.test.level for one in found]) > 0.9
    others = np.array([np.delete(one.clients, 2) for one in found])
    assert np.mean(others <= 0.025) <= 0.05


def test_the_smallest_auc_that_would_be_seen_is_where_the_test_turns():
    rng = np.random.default_rng(3)
    found, member, classes = scores(rng)
    present = np.ones((P, N), bool)
    for shift in (0.0, 0.3, 0.5, 0.7, 1.0):
        own = dict.fromkeys(("r0",), found["r0"] + shift * member)
        one = readings_test(own, member, present, classes, 0.95, np.random.default_rng(4))
        value = plain_auc(own["r0"].ravel(), member.ravel())
        assert (one.test.adjusted["r0"] <= 0.025) == (value >= one.detectable)


def test_padding_and_absent_clients_do_not_count():
    rng = np.random.default_rng(5)
    found, member, classes = scores(rng, shift=1.0)
    present = np.ones((P, N), bool)
    present[0, 12:] = False
    absent = {name: values.copy() for name, values in found.items()}
    for values in absent.values():
        values[4] = np.nan
    one = readings_test(absent, member & present, present, classes, 0.95, rng)
    assert np.isnan(one.clients[4])
    assert np.isfinite(np.delete(one.clients, 4)).all()
    assert one.test.significant


@pytest.mark.parametrize("candidates", [1, 2])
def test_too_few_candidates_see_no_value(candidates):
    member = np.array([[True, False]] * candidates)
    present, classes = np.ones_like(member), np.zeros(member.shape, dtype=np.int64)
    values = {"r0": member + 0.0}
    one = readings_test(values, member, present, classes, 0.95, np.random.default_rng(0))
    assert not one.test.significant
    assert one.detectable == np.inf
