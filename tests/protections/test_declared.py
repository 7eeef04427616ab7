"""A declaration has the facts of its class, or those that it states itself."""

import json
from dataclasses import dataclass
from typing import ClassVar

import pytest

from fedaudit.audits.active_membership import probe
from fedaudit.audits.coverage import in_effect
from fedaudit.hooks import STATED, AddedNoise, Hook, declaration_of
from fedaudit.protections import (
    DPSGD,
    PROTECTIONS,
    SecAggPlus,
    SecureAggregation,
    SecureSum,
    UpdateNoise,
)
from fedaudit.protections.declared import class_of, has_fact, in_force, noise_of, trusted_of
from fedaudit.setup.catalogue import find


@dataclass(frozen=True, kw_only=True)
class OwnNoise(DPSGD):
    """A user's DP-SGD under a name of its own."""

    name: ClassVar[str] = "hospital_noise"


class OwnSum(SecureSum):
    name: ClassVar[str] = "hospital_sum"


def stored(hook):
    return json.loads(json.dumps(declaration_of(hook)))


@pytest.mark.parametrize("name", PROTECTIONS)
def test_a_listed_protection_is_found_by_its_name_alone(name):
    cls = find(PROTECTIONS, "protection", name)
    assert class_of({"name": name}) is cls
    assert [has_fact({"name": name}, f) for f in STATED] == [getattr(cls, f) for f in STATED]
    hook = cls()
    assert declaration_of(hook) == hook.declare()


@pytest.mark.parametrize(
    ("name", "cls"),
    [
        ("SecAgg+", SecAggPlus),
        ("Secure-Aggregation", SecureAggregation),
        ("Secure Sum v2", SecureSum),
        ("dp_sgd_2", Hook),
        ("", Hook),
    ],
)
def test_other_software_spells_names_its_own_way(name, cls):
    assert class_of({"name": name}) is cls


def test_a_users_own_noise_is_treated_as_dp_sgd():
    own = stored(OwnNoise(noise_multiplier=0.5, clip=2.0))
    ours = stored(DPSGD(noise_multiplier=0.5, clip=2.0))
    assert class_of(own) is Hook
    assert noise_of(own, clients=3) == noise_of(ours, clients=3) == AddedNoise("step", 0.5, 2.0)
    signals = [probe.noise_model([d], 4.0, 10, 3).signal for d in (own, ours)]
    assert signals[0] == signals[1]
    assert probe.gain_for([own], 99) == probe.gain_for([ours], 99)
    assert "noise_at_step" in in_force([own]) & in_force([ours])
    each = stored(OwnNoise(noise_multiplier=(0.5, 1.0)))
    assert noise_of(each, clients=2).multiplier == (0.5, 1.0)


def test_a_users_own_sum_is_treated_as_a_secure_sum():
    own = stored(OwnSum())
    assert in_effect(own, {"parameter"}) == in_effect(stored(SecureSum()), {"parameter"})
    assert "parameter" not in in_effect(own, {"parameter"})
    assert {"only_sums", "exact_afterwards"} <= in_force([own])
    assert "parameter" in in_effect(stored(UpdateNoise()), {"parameter"})


@pytest.mark.parametrize(("clients", "most"), [(3, 0), (4, 1), (20, 6), (100, 33), (200, 10)])
def test_trust_in_a_secure_sum_is_counted_for_the_clients_there_are(clients, most):
    """Fewer than a third may collude, of more than 100 clients one in twenty."""
    told = trusted_of(stored(SecureAggregation()), clients=clients)
    assert told == f"the clients' keys; at most {most} of {clients} colluding"


def test_other_software_and_other_protections_state_their_own_trust():
    own = {"name": "secure_aggregation", "trust": "their keys"}
    assert trusted_of(own, clients=4) == "their keys"
    assert trusted_of(stored(DPSGD()), clients=4) == DPSGD.trust
