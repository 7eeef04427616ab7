"""Games with the clients of a run: mechanisms as laws, and what protections leave of the answer."""

import math

import numpy as np
import pytest

from fedaudit.errors import ConfigError, DataError
from fedaudit.experiment.auditing import audit_one
from fedaudit.experiment.build import build
from fedaudit.experiment.config import load
from fedaudit.experiment.knowledge import Desk, of_config
from fedaudit.experiment.probing import channel_of, for_clients
from fedaudit.protections.dp_sgd import DPSGD
from fedaudit.protections.local_dp.protection import LocalDP
from fedaudit.randomness import Seed
from fedaudit.trace import MemoryRecorder, MemoryTruth

MECHANISMS = [
    LocalDP(mechanism="grr", epsilon=2.0, alphabet=5),
    LocalDP(mechanism="rappor", epsilon=3.0, alphabet=4),
    LocalDP(mechanism="rappor", epsilon=3.0, alphabet=4, decoder="published"),
    LocalDP(mechanism="dbitflip", epsilon=3.0, alphabet=4),
    LocalDP(mechanism="bitrand", epsilon=4.0, bits=6, integer_bits=0),
    LocalDP(mechanism="bitrand", epsilon=4.0, bits=6, integer_bits=0, decoder="published"),
    LocalDP(mechanism="ome", epsilon=4.0, bits=6, integer_bits=0),
]


@pytest.mark.parametrize("hook", MECHANISMS, ids=lambda h: f"{h.mechanism}-{h.decoder}")
def test_the_codebook_has_the_law_of_the_protection(hook):
    """What a client trains on, drawn by the hook itself, against the audit's codebook."""
    rng = np.random.default_rng(3)
    channel = channel_of(hook, 2)
    book = channel.codes
    x = np.array([[0.0, 0.7]])
    codes = book.encode(x).astype(np.int32)
    slow, _ = hook.randomise(np.repeat(x, 20_000, axis=0), rng)
    drawn = book.draw(np.repeat(codes, 20_000, axis=0).ravel(), rng)
    fast = (book.origin + book.step * book.level(drawn)).reshape(20_000, 2)
    for j in range(2):
        values = np.unique(np.concatenate([slow[:, j], fast[:, j]]).round(9))
        for v in values:
            a = np.mean(np.isclose(slow[:, j], v))
            b = np.mean(np.isclose(fast[:, j], v))
            assert abs(a - b) < 4.5 * math.sqrt(2 * max(a, b, 1e-4) / 20_000)
    levels = book.level(np.arange(book.alphabet, dtype=np.int32))
    assert book.transition.shape == (book.alphabet, book.alphabet)
    np.testing.assert_allclose(book.transition.sum(axis=1), 1.0)
    mean = book.transition[codes[0, 1]] @ (book.origin + book.step * levels)
    assert slow[:, 1].mean() == pytest.approx(mean, abs=4.5 * slow[:, 1].std() / math.sqrt(20_000))


def test_budgets_are_those_of_the_mechanism():
    channel = channel_of(LocalDP(mechanism="bitrand", epsilon=5.0), 512)
    assert channel.claimed_epsilon == 5.0
    assert channel.exact_epsilon == pytest.approx(9238.859, abs=1e-2)
    assert not channel.claim_holds
    assert channel_of(LocalDP(mechanism="grr", epsilon=1.5), 10).exact_epsilon == 15.0


def test_mechanisms_without_codes_stay_functions():
    for hook in (
        LocalDP(mechanism="laplace", epsilon=1.0),
        LocalDP(mechanism="grr", epsilon=1.0, decoder="unbiased"),
    ):
        assert channel_of(hook, 3).codes is None


def test_values_outside_the_encoder_are_refused_or_clipped():
    with pytest.raises(DataError, match="outside the encoder's range"):
        channel_of(LocalDP(epsilon=1.0), 1).clean(np.array([[2.0]]))
    clipped = channel_of(LocalDP(epsilon=1.0, outside="clip"), 1).clean(np.array([[2.0]]))
    assert clipped.item() == 1.0


def test_settings_for_every_client_are_repeated():
    hook = for_clients(DPSGD(noise_multiplier=(1.0, 2.0)), 5)
    assert hook.noise_multiplier == (1.0, 2.0, 1.0, 2.0, 1.0)
    assert for_clients(DPSGD(noise_multiplier=1.5), 5).noise_multiplier == 1.5


# -- in a federation ------------------------------------------------------------------------------


def audited(settings, seed=1, as_if=(), **protections):
    config = load(
        {
            "data": {"name": "digits"},
            "task": {"kind": "mlp", "hidden": [4]},
            "federation": {"clients": 6, "rounds": 1},
            "training": {"batch_size": 64},
            "protections": protections,
            "audits": {
                "active_membership": {
                    "games": 200,
                    "client_games": 0,
                    "simulated": 200,
                    "universe": 200,
                    "records": 8,
                    **settings,
                }
            },
        }
    )
    federation, facts = build(config)
    recorder = MemoryRecorder(
        layouts=federation.layouts(),
        federation=federation.describe(),
        declared=[*(p.declare() for p in federation.protections), *as_if],
    )
    truth = MemoryTruth(facts)
    federation.run(recorder, truth)
    trace = recorder.trace()
    desk = Desk(trace, truth, Seed(seed), lambda: of_config(config, trace), config)
    return audit_one(config.audits["active_membership"], trace, truth, seed, desk)


@pytest.mark.parametrize("how", ["secure_sum", "shuffle", "secure_aggregation"])
def test_a_sum_or_a_shuffle_hides_neither_membership_nor_whose(how):
    """One planted model for all: is it in the federation? One detector each: with whom?"""
    result = audited({"recorded": 30}, **{how: {}})
    assert result.estimates["success"].value == 1.0
    assert result.estimates["success"].n == 30
    named = result.estimates["right client named"]
    assert named.value == 1.0
    assert named.baseline == pytest.approx(1 / 6)
    assert any("as one sum or without names" in note for note in result.notes)


def test_local_dp_is_felt_in_the_federation_too():
    """The union of all clients' records: more of them, and a noisy one is found by chance."""
    strong = audited({"recorded": 60}, local_dp={"epsilon": 0.1}, secure_sum={})
    assert strong.estimates["success"].low < 0.5 < strong.estimates["success"].high


def test_dp_sgd_leaves_what_one_gaussian_step_allows():
    """An exact match moves one number by C beside noise z C: success Phi(1 / 2z)."""
    result = audited({"recorded": 400}, dp_sgd={"noise_multiplier": 0.5})
    e, top = result.estimates["success"], result.bounds["one step of DP-SGD"]
    expected = 0.5 * (1 + math.erf(1.0 / math.sqrt(2)))
    assert e.low <= expected <= e.high
    assert top.value == pytest.approx(0.5 * (1 + math.erf(2.0 / math.sqrt(2))))
    assert e.low <= top.value
    assert result.estimates["success (gradient in the clear)"].value == 1.0


def test_more_noise_in_training_never_reads_as_more_leak():
    areas = [
        audited({"recorded": 120}, dp_sgd={"noise_multiplier": z}).estimates["AUC"]
        for z in (0.2, 1.0, 5.0)
    ]
    assert areas[1].low <= areas[0].high
    assert areas[2].low <= areas[1].high
    assert areas[0].low > areas[2].high


def test_a_target_epsilon_is_taken_as_the_noise_of_the_run():
    result = audited({"recorded": 20}, dp_sgd={"epsilon": 2.0})
    assert 0.5 < result.bounds["one step of DP-SGD"].value < 1.0


def test_attention_refuses_noise():
    result = audited({"adversary": "attention"}, dp_sgd={"noise_multiplier": 0.5})
    assert "noise, which makes all of them non-zero" in result.not_applicable


def test_a_gossip_run_has_nobody_who_could_plant_weights():
    config = load(
        {
            "data": {"name": "digits"},
            "task": {"kind": "mlp", "hidden": [4]},
            "topology": {"kind": "ring"},
            "federation": {"clients": 5, "rounds": 1, "aggregation": "gossip"},
            "audits": {"active_membership": {}},
        }
    )
    federation, facts = build(config)
    recorder = MemoryRecorder(layouts=federation.layouts(), federation=federation.describe())
    truth = MemoryTruth(facts)
    federation.run(recorder, truth)
    trace = recorder.trace()
    desk = Desk(trace, truth, Seed(1), lambda: of_config(config, trace), config)
    result = audit_one(config.audits["active_membership"], trace, truth, 1, desk)
    assert "nobody sends models to all clients" in result.not_applicable


def test_the_runs_own_mechanism_is_used_unless_the_audit_has_one():
    own = audited({"recorded": 0}, local_dp={"epsilon": 2.0})
    assert any("local DP by grr: claimed epsilon 128" in note for note in own.notes)
    other = audited(
        {"recorded": 0, "local_dp": {"mechanism": "laplace", "epsilon": 1.0}},
        local_dp={"epsilon": 2.0},
    )
    assert any("local DP by laplace" in note for note in other.notes)
    assert any("in place of the run's" in note for note in other.notes)


def test_a_config_with_a_bad_mechanism_is_refused():
    with pytest.raises(ConfigError, match="alphabet"):
        audited({"local_dp": {"epsilon": 1.0, "alphabet": 1}})


def test_what_if_protections_stand_before_the_server_in_games_too():
    added = {"name": "secure_sum", "covers": ["sender"], "applied": "exactly"}
    result = audited({"recorded": 20}, as_if=[added])
    assert "right client named" in result.estimates
    assert any("behind secure_sum, as if" in note for note in result.notes)
