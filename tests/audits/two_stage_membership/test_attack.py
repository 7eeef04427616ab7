"""The attack's statistic and its AUC: slow twins, exact nulls, planted shifts."""

from types import SimpleNamespace

import numpy as np
import pytest

from fedaudit.audits.records import areas
from fedaudit.audits.two_stage_membership import attack
from fedaudit.results import Underpowered


def matched(rng, clients, classes, pairs, shift=0.0):
    """Candidates of every client and class in matched pairs; members lie higher by `shift`."""
    n = 2 * classes * pairs
    y = np.tile(np.repeat(np.arange(classes), 2 * pairs), (clients, 1))
    member = np.tile(np.tile([True] * pairs + [False] * pairs, classes), (clients, 1))
    values = rng.normal(size=(clients, n)) + shift * member
    guess = SimpleNamespace(classes=y, present=np.ones((clients, n), bool))
    return values, member, guess


# -- statistics -----------------------------------------------------------------------------------


def test_centring_against_a_loop():
    rng = np.random.default_rng(0)
    values, _, guess = matched(rng, 3, 2, 2)
    values[1] = np.nan  # did not take part
    guess.present[2, 5:] = False  # padding
    found = attack._centred(values, guess)
    assert np.isnan(found[1]).all()
    for p in (0, 2):
        for i in np.flatnonzero(guess.present[p]):
            same = guess.present[p] & (guess.classes[p] == guess.classes[p, i])
            assert found[p, i] == pytest.approx(values[p, i] - values[p, same].mean())


def test_rounds_count_alike_and_only_those_taken_part_in():
    present = np.ones((2, 3), bool)
    one = attack._standardised(np.array([[1.0, -1.0, 0.0], [3.0, -3.0, 0.0]]), present)
    assert one.std() == pytest.approx(1.0)
    away = np.array([[2.0, 2.0, 2.0], [np.nan] * 3])
    both = attack._stouffer([one, away])
    np.testing.assert_allclose(both[0], (one[0] + 2) / np.sqrt(2))
    np.testing.assert_allclose(both[1], one[1])
    np.testing.assert_allclose(attack._latest([one, away]), np.stack([away[0], one[1]]))
    assert np.isnan(attack._stouffer([np.full((1, 2), np.nan)])).all()
    still = attack._standardised(np.zeros((2, 3)), present)
    assert (still == 0).all()


def test_a_likelihood_ratio_of_two_gaussians_of_equal_spread():
    rng = np.random.default_rng(1)
    local, reference = rng.normal(size=(2, 4)), rng.normal(size=(2, 4))
    spread = np.array([[1.0, 1, 1, 1], [3.0, 3, 3, 3]])
    survey = SimpleNamespace(local=local, reference=reference, spread=spread)
    found = attack._likelihood_ratio(survey, np.ones((2, 4), bool))
    # spreads shrink halfway to their median, 2
    scale = np.sqrt(0.5 * spread**2 + 0.5 * 4.0)
    np.testing.assert_allclose(found, (local - reference) / scale)
    still = SimpleNamespace(local=local, reference=reference, spread=0 * spread)
    np.testing.assert_allclose(
        attack._likelihood_ratio(still, np.ones((2, 4), bool)), local - reference
    )


def test_rows_are_linked_by_the_candidates_of_a_client():
    rng = np.random.default_rng(2)
    order = rng.permutation(5)
    evidence = rng.normal(size=(5, 5, 40))
    for row, party in enumerate(order):
        evidence[row, party, :20] += 1.5  # half of the candidates are members
    survey = SimpleNamespace(local_by_row=evidence)
    found = attack.linked_rows(survey, np.ones((5, 40), bool))
    np.testing.assert_array_equal(order[found], np.arange(5))
    fewer = attack.linked_rows(SimpleNamespace(local_by_row=evidence[:3]), np.ones((5, 40), bool))
    assert sorted(found for found in fewer if found >= 0) == [0, 1, 2]
    own = attack._own_row(survey, np.ones((5, 40), bool))
    assert own[:, :20].mean() > own[:, 20:].mean() + 1


# -- the area under the curve ---------------------------------------------------------------------


def test_the_plain_auc_counts_pairs():
    rng = np.random.default_rng(3)
    values, member = np.round(rng.normal(size=30), 1), rng.random(30) < 0.4
    pairs = [(a > b) + 0.5 * (a == b) for a in values[member] for b in values[~member]]
    assert areas.plain_auc(values, member) == pytest.approx(np.mean(pairs))


def test_the_permutation_error_by_permuting():
    rng = np.random.default_rng(4)
    values, member, guess = matched(rng, 2, 3, 2)
    statistic = np.round(attack._centred(values, guess), 1)  # with ties
    stated = areas.permutation_error(statistic, member, guess.present, guess.classes)
    drawn = []
    for _ in range(1500):
        labels = member.copy()
        for p in range(2):
            for c in range(3):
                at = np.flatnonzero(guess.classes[p] == c)
                labels[p, at] = rng.permutation(labels[p, at])
        drawn.append(areas.plain_auc(statistic.ravel(), labels.ravel()))
    assert np.mean(drawn) == pytest.approx(0.5, abs=0.01)
    assert np.std(drawn) == pytest.approx(stated, rel=0.08)


@pytest.mark.parametrize(("clients", "classes", "pairs"), [(2, 16, 1), (2, 5, 3), (6, 4, 4)])
def test_exchangeable_candidates_raise_the_alarm_at_most_at_the_stated_rate(
    clients, classes, pairs
):
    """Pairs that are centred together are not independent: records alone would give 9 %."""
    rng = np.random.default_rng(5)
    alarms = 0
    for _ in range(400):
        values, member, guess = matched(rng, clients, classes, pairs)
        statistic = attack._centred(values, guess)
        e = areas.membership_auc(statistic, member, guess.present, guess.classes, 0.95)
        alarms += e.low > 0.5
    # 10 of 400 are expected at 2.5 %; 21 or more have a chance of 1 in 700
    assert alarms <= 20


def test_a_shift_is_found_and_its_interval_covers_it():
    from scipy.special import ndtr

    rng = np.random.default_rng(6)
    covered = 0
    for _ in range(60):
        values, member, guess = matched(rng, 8, 3, 6, shift=0.5)
        e = areas.membership_auc(values, member, guess.present, guess.classes, 0.95)
        covered += e.low <= float(ndtr(0.5 / np.sqrt(2))) <= e.high
        assert e.baseline == 0.5
        assert e.n == 8 * 36
    assert covered >= 53


def test_clients_that_differ_widen_the_interval():
    rng = np.random.default_rng(7)
    values, member, guess = matched(rng, 6, 2, 20)
    values += np.where(member, np.array([3, 3, 3, -3, -3, -2.0])[:, None], 0.0)
    e = areas.membership_auc(values, member, guess.present, guess.classes, 0.95)
    assert "over clients" in e.method
    assert e.low < 0.3
    assert e.high > 0.7


def test_one_record_of_a_kind_has_no_area():
    e = areas.membership_auc(
        np.array([[0.0, 1.0]]), np.array([[True, False]]), np.ones((1, 2), bool),
        np.zeros((1, 2), int), 0.95,
    )  # fmt: skip
    assert isinstance(e, Underpowered)


def test_rates_are_stated_only_with_enough_records():
    rng = np.random.default_rng(8)
    values, member, guess = matched(rng, 5, 10, 20, shift=1.0)
    found, short = areas.true_positive_rates(values, member, guess.present, 0.95)
    assert [*found] == ["true_positive_rate (at 1 %)"]
    assert found["true_positive_rate (at 1 %)"].value > 0.02
    assert [s.needed for s in short] == [10_000]
    few, lacking = areas.true_positive_rates(values[:1], member[:1], guess.present[:1], 0.95)
    assert not few
    assert [s.needed for s in lacking] == [1000, 10_000]
