"""Canary clients: noise on updates and on their sum, and faults in it."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from fedaudit.audits.audit import Knowledge
from fedaudit.audits.epsilon import EpsilonAudit
from fedaudit.errors import NotApplicable, NotObservable
from fedaudit.knowledge.rehearsal import rehearsals_of
from fedaudit.protections.central_dp import CentralDP
from fedaudit.protections.secure_sum import SecureSum
from fedaudit.protections.shuffle import Shuffle
from fedaudit.protections.update_noise import UpdateNoise
from fedaudit.randomness import Seed
from fedaudit.reporting.findings import judge_all, settled
from fedaudit.trace import PUBLIC

CENTRAL = CentralDP(noise_multiplier=3.0, clip=0.5)
LOCAL = UpdateNoise(noise_multiplier=6.0, clip=0.5)


def protected(federation, *hooks, **rounds):
    made = federation()
    return replace(made, protections=hooks, rounds=replace(made.rounds, **rounds))


def contradictions(result):
    return {
        f.measure: f.statement for f in judge_all([settled(result)]) if f.verdict == "disagreement"
    }


@pytest.mark.parametrize(
    "hooks", [(CENTRAL,), (CENTRAL, SecureSum()), (LOCAL,)], ids=["central", "sums", "local"]
)
def test_canary_clients_measure_some_of_what_is_declared(hooks, federation, audited):
    result = audited(protected(federation, *hooks), canaries=600)
    epsilon, declared = result.estimates["epsilon"], result.bounds["declared"]
    assert 0.5 < epsilon.low < declared.value == pytest.approx(5.17, abs=0.05)
    assert declared.unit == "client"
    assert contradictions(result) == {}
    assert result.per_client == {}
    assert f"({result.vantage}, 600 canaries; at most " in result.notes[0]


def test_a_guess_is_right_as_often_as_the_mechanism_allows(federation, audited):
    """Close to (1 + TV) / 2 of the composed Gaussian, for both neighbourhoods."""
    for hook in (CENTRAL, LOCAL):
        guessed = audited(protected(federation, hook), canaries=400).estimates["guessed"]
        assert guessed.value == pytest.approx(guessed.baseline, abs=4 * 0.5 / 400**0.5)


@pytest.mark.parametrize("hooks", [(LOCAL, Shuffle()), (LOCAL, SecureSum())], ids=["rows", "sums"])
def test_nobody_is_told_apart_in_a_crowd(hooks, federation, audited):
    result = audited(protected(federation, *hooks), canaries=300)
    assert result.estimates["epsilon"].low == 0.0
    assert contradictions(result) == {}


def test_a_server_with_momentum_is_read_round_by_round(federation, audited):
    made = protected(federation, CENTRAL, server_momentum=0.9, server_learning_rate=0.5)
    result = audited(made, canaries=600)
    assert result.estimates["noise_between_rounds"].value == pytest.approx(1.0, abs=0.1)
    assert result.estimates["epsilon"].low > 0.5


def test_clients_that_sit_out_are_guessed_from_their_own_rounds(federation, audited):
    result = audited(protected(federation, CENTRAL, participation=0.5), canaries=300)
    assert result.estimates["steps"].value <= 12
    assert contradictions(result) == {}


# -- faults ----------------------------------------------------------------------------------------


class OnTheMean(CentralDP):
    def aggregate(self, total, *, round_number, seed):
        noise = super().aggregate(torch.zeros_like(total), round_number=round_number, seed=seed)
        return total + noise / 300


class NotClipped(CentralDP):
    def upload(self, uploads, *, round_number, seed):
        return uploads


class SumClipped(CentralDP):
    def upload(self, uploads, *, round_number, seed):
        return uploads

    def aggregate(self, total, *, round_number, seed):
        cut = total * (self.clip / total.norm()).clamp_max(1.0)
        return super().aggregate(cut, round_number=round_number, seed=seed)


class SameEveryRound(CentralDP):
    def aggregate(self, total, *, round_number, seed):
        return super().aggregate(total, round_number=0, seed=seed)


@dataclass(frozen=True, kw_only=True)
class SharedNoise(UpdateNoise):
    def upload(self, uploads, *, round_number, seed):
        origin = uploads.origin
        same = replace(uploads, origin=np.zeros_like(origin))
        return replace(super().upload(same, round_number=round_number, seed=seed), origin=origin)


FAULTS = (
    (OnTheMean, CENTRAL, "noise (2.weight)", "less noise than declared"),
    (NotClipped, CENTRAL, "gain (norm 1000)", "Clipping is broken"),
    (SumClipped, CENTRAL, "gain (norm 1)", "other than single clients was clipped"),
    (SameEveryRound, CENTRAL, "noise_between_rounds", "repeats from round to round"),
    (SharedNoise, LOCAL, "noise_between_clients", "Clients share their noise"),
)


@pytest.mark.parametrize(
    ("kind", "hook", "measure", "says"), FAULTS, ids=[f[0].__name__ for f in FAULTS]
)
def test_faults_in_noise_for_whole_clients_are_caught(
    kind, hook, measure, says, federation, audited
):
    broken = kind(noise_multiplier=hook.noise_multiplier, clip=hook.clip)
    said = contradictions(audited(protected(federation, broken), canaries=300))
    assert measure in said
    assert says in said[measure]


# -- what cannot be rehearsed ----------------------------------------------------------------------


def test_one_release_shows_no_rounds(federation):
    made = protected(federation, CENTRAL)
    audit = EpsilonAudit(canaries=20, vantage=PUBLIC)
    (played,) = rehearsals_of(audit, made, made.party, Seed(1))
    known = Knowledge(extra={"rehearsals": (played.seen,)})
    with pytest.raises(NotObservable, match="models of all rounds"):
        audit.attack(played.seen.view, known, np.random.default_rng(0))


def test_weighted_sums_hold_no_canary_clients(federation):
    made = protected(federation, LOCAL, SecureSum(), weighting="size")
    with pytest.raises(NotApplicable, match="canary clients cannot take part"):
        rehearsals_of(EpsilonAudit(canaries=20), made, made.party, Seed(1))


def test_noise_for_clients_needs_canary_clients(federation):
    made = protected(federation, CENTRAL)
    with pytest.raises(NotApplicable, match="no protection declares an epsilon"):
        rehearsals_of(EpsilonAudit(kinds=("dense",)), made, made.party, Seed(1))


def test_whoever_receives_every_model_may_be_the_adversary(federation, audited):
    result = audited(protected(federation, CENTRAL), canaries=600, vantage="client-00+public")
    assert result.vantage == "client-00+public"
    assert result.estimates["epsilon"].low > 0.5
