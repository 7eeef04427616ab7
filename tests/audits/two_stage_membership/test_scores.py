"""Parts of a scored survey, rounds, energies and deviations, against slow twins."""

import numpy as np
import pytest

from fedaudit.audits.two_stage_membership import attack, risk
from fedaudit.results import Estimate


@pytest.fixture(scope="module")
def surveyed(play):
    played = play()
    audit, guess, members = played.survey(checked_rounds=2, checked_records=4, records=24)
    return audit, guess, played.truth.with_members(members)


def scored(audit, guess, truth):
    return audit.score(guess, truth, np.random.default_rng(0))


def test_the_energy_of_every_round_adds_up(surveyed):
    audit, guess, truth = surveyed
    curve = scored(audit, guess, truth).curves["energy by round"]
    assert curve["round"] == (1.0, 2.0, 3.0)
    np.testing.assert_allclose(curve["sum"], 1.0, atol=1e-6)
    three = [curve[n] for n in ("|u|^2 / |dW|^2", "|B|^2 / |dW|^2", "2 <u, B> / |dW|^2")]
    np.testing.assert_allclose(np.sum(three, axis=0), 1.0, atol=1e-6)
    own = [np.mean(r.stage_one.ratio**2) for r in guess.rounds]
    np.testing.assert_allclose(three[0], own)


def test_the_headline_is_made_of_the_rounds_that_risk_is_held_against(surveyed):
    _, guess, truth = surveyed
    rounds = attack.round_statistics(guess)
    headline = next(iter(attack.statistics_of(guess).values()))
    np.testing.assert_array_equal(attack._stouffer(rounds), headline)
    member = np.zeros_like(guess.present)
    for i, party in enumerate(guess.parties):
        member[i, : len(truth.members[party])] = truth.members[party]
    for c in risk.contributions(guess, truth, member):
        p = guess.parties.index(c.party)
        np.testing.assert_array_equal(c.evidence, rounds[c.round - 1][p][guess.present[p]])
        np.testing.assert_array_equal(c.classes, guess.classes[p][guess.present[p]])


def test_deviation_of_the_empirical_from_the_true_advantage(surveyed):
    audit, guess, truth = surveyed
    result = scored(audit, guess, truth)
    found = result.estimates["empirical_from_true_advantage"]
    means = []
    for survey in guess.rounds:
        for i, party in enumerate(guess.parties):
            own = guess.present[i].copy()
            own[own] = truth.members[party]
            means.append(np.abs(survey.aggregate[i] - survey.isolated[i])[own].mean())
    assert found.value == pytest.approx(np.mean(means))
    assert isinstance(found, Estimate)
