"""False names over more than 300 null client tests on real training, and with others marked."""

from dataclasses import replace

import numpy as np
import pytest

from fedaudit.audits.attribution import calibration
from reproductions.attribution import setting

pytestmark = pytest.mark.nightly


@pytest.mark.parametrize("plan", ["published", "safe"])
def test_false_names_without_marks_and_beside_marked_clients(plan):
    """Families: 20 federations without marks (200 clients), 20 with three marked (140 benign)."""
    wrong_families = wrong = tests = 0
    for seed in range(40):
        run = setting.play(seed=1000 + seed, rounds=10, marked=0 if seed < 20 else 3)
        made = setting.plan_of(plan, run, np.random.default_rng(seed))
        found = setting.read(made, run, unused=499)
        wrong += int((found.named & ~run.marked).sum())
        wrong_families += bool((found.named & ~run.marked).any())
        tests += int((~run.marked).sum())
    assert tests >= 300
    assert wrong_families <= 5  # 6 or more of 40 would happen in 1.4 % at 5 %
    assert wrong / tests <= 0.05


def test_false_names_where_all_rounds_are_read_together_and_others_hold_strong_marks():
    """Updates that persist by two thirds, scores far from linear: 300 runs, 2,100 benign clients.

    26 or more wrong runs of 300 would happen in 0.5 % at 5 %.
    """
    from tests.audits.attribution.test_over_rounds import read

    wrong = sum(
        bool(np.delete(read(3000 + seed, effect=7.0, marked=(0, 4, 8)).named, [0, 4, 8]).any())
        for seed in range(300)
    )
    assert wrong <= 25


def test_keys_that_nobody_used_hold_the_level_that_holm_asks_of_many_clients_and_keys():
    """Fictitious knowledge, 50 clients and 15 keys: 0.05 / 750, which no rank among 999 reaches.

    20,000 tuples of every entity are tested on the 35 benign clients against 999 others.
    """
    run = setting.play(seed=203, kind="fictitious", clients=50, marked=15, rounds=2, steps=36)
    level, design = 0.05 / 750, np.tile(np.eye(50), (2, 1))
    alarms = tests = 0
    for entity in run.marks.entities:
        alone = replace(run.marks, entities=(entity,))
        rows = []
        for start, sent in zip(run.models, run.updates, strict=False):
            raw = alone.statistics(np.vstack([start[None], start + sent]), 20_999)
            rows.append(raw[1:, 1:] - raw[0, 1:])
        found = calibration.decide(design, np.concatenate(rows), 20_000, 0.05, linear=False)
        alarms += int((found.p_values.p[~run.marked] <= level).sum())
        tests += 20_000 * int((~run.marked).sum())
    assert tests >= 10_000_000
    assert 0 < alarms <= level * tests
