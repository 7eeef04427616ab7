"""Protections in force during games."""

import pytest

from fedaudit.errors import ConfigError
from fedaudit.knowledge.probing.protections import for_clients
from fedaudit.protections.dp_sgd import DPSGD


def test_settings_for_every_client_are_repeated():
    hook = for_clients(DPSGD(noise_multiplier=(1.0, 2.0)), 5)
    assert hook.noise_multiplier == (1.0, 2.0, 1.0, 2.0, 1.0)
    assert for_clients(DPSGD(noise_multiplier=1.5), 5).noise_multiplier == 1.5


def test_a_target_epsilon_is_taken_as_the_noise_of_the_run(audited):
    result = audited({"recorded": 20}, dp_sgd={"epsilon": 2.0})
    assert 0.5 < result.bounds["one step of DP-SGD"].value < 1.0


def test_the_runs_own_mechanism_is_used_unless_the_audit_has_one(audited):
    own = audited({"recorded": 0}, local_dp={"epsilon": 2.0})
    assert any("local DP by grr: claimed epsilon 128" in note for note in own.notes)
    other = audited(
        {"recorded": 0, "local_dp": {"mechanism": "laplace", "epsilon": 1.0}},
        local_dp={"epsilon": 2.0},
    )
    assert any("local DP by laplace" in note for note in other.notes)
    assert any("instead of the run's" in note for note in other.notes)


def test_a_config_with_a_bad_mechanism_is_refused(audited):
    with pytest.raises(ConfigError, match="alphabet"):
        audited({"local_dp": {"epsilon": 1.0, "alphabet": 1}})


def test_what_if_protections_stand_before_the_server_in_games_too(audited):
    added = {"name": "secure_sum", "covers": ["sender"], "applied": "exactly"}
    result = audited({"recorded": 20}, as_if=[added])
    assert "right_client_named" in result.estimates
    assert any("games use secure_sum, as if" in note for note in result.notes)


def test_tokens_are_randomised_over_the_vocabulary(audited, text):
    own = {"recorded": 12, "records": 4, "local_dp": {"epsilon": 12.0}}
    result = audited(own, other=text)
    assert any("claimed epsilon 144 per record" in note for note in result.notes)
    assert result.estimates["success"].low > 0.6
    with pytest.raises(ConfigError, match="does not fit tokens"):
        audited({**own, "local_dp": {"mechanism": "laplace"}}, other=text)
