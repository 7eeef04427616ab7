"""Guarantees of Flower's own protections, against Flower's own accountant."""

import math
from statistics import NormalDist

import numpy as np
import pytest

from fedaudit.multipliers import joint_multiplier
from fedaudit.recorders.flower import protections
from fedaudit.recorders.flower.protections import (
    central,
    effective_multiplier,
    local,
)


@pytest.mark.parametrize(("z", "rounds"), [(1.0, 1), (1.0, 10), (0.7, 5), (4.0, 100)])
def test_central_dp_agrees_with_flowers_accountant(z, rounds):
    accounting = pytest.importorskip("flwr.supercore.privacy_accounting", reason="needs Flower")
    from flwr.supercore.privacy_accounting.rdp_accountant import RdpAccountant

    config = accounting.PrivacyConfig(
        target_delta=1e-5,
        population_size=20,
        neighboring_relation=accounting.NeighboringRelation.ADD_OR_REMOVE_ONE,
        sampling_method=accounting.SamplingMethod.NO_AMPLIFICATION,
    )
    theirs = RdpAccountant(config)
    theirs.compose(accounting.GaussianPrivacyEvent(z, 10, 20), rounds)
    spent = theirs.get_privacy_spent()
    ours = central(z, rounds, 1e-5, by="rdp")
    # two grids of orders
    assert ours.epsilon == pytest.approx(spent.epsilon, rel=5e-3)
    assert (ours.unit, ours.by) == ("client", "rdp")
    # privacy losses are tighter than Renyi divergences
    assert central(z, rounds, 1e-5).epsilon <= spent.epsilon * 1.001


def test_flowers_wrapper_with_its_accountant_spends_what_we_say(apps, tmp_path):
    """A whole run: equal weights, which Flower asks for."""
    accounting = pytest.importorskip("flwr.supercore.privacy_accounting", reason="needs Flower")
    from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg
    from flwr.supercore.privacy_accounting.rdp_accountant import RdpAccountant

    from fedaudit.flower import RecordingStrategy

    config = accounting.PrivacyConfig(
        target_delta=1e-5,
        population_size=4,
        neighboring_relation=accounting.NeighboringRelation.ADD_OR_REMOVE_ONE,
        sampling_method=accounting.SamplingMethod.NO_AMPLIFICATION,
    )
    strategy = DifferentialPrivacyServerSideFixedClipping(
        FedAvg(), 1.5, 1.0, 4, accountant=RdpAccountant(config)
    )
    recorded = RecordingStrategy(strategy, tmp_path / "t")
    apps.run(recorded, metrics={"num-examples": 7})
    spent = recorded.privacy_spent()
    assert spent.num_releases == 3
    (declared,) = protections.declared_by(recorded)
    assert declared["clients"] == 4
    ours = central(declared["noise_multiplier"], 3, 1e-5, weights=[7] * 4, by="rdp")
    assert ours.epsilon == pytest.approx(spent.epsilon, rel=5e-3)


def test_unequal_weights_cost_what_the_largest_client_moves():
    assert effective_multiplier(2.0, [5, 5, 5, 5]) == 2.0
    assert effective_multiplier(2.0, []) == 2.0
    # mean of 90 % and 10 %: the large client moves it by 0.9 C, the noise is for C / 2
    assert effective_multiplier(1.0, [9, 1]) == pytest.approx(0.5 / 0.9)
    equal = central(1.0, 5, 1e-5)
    assert central(1.0, 5, 1e-5, weights=[9, 1]).epsilon > 1.5 * equal.epsilon


def test_the_noise_on_a_weighted_mean_is_what_we_account_for():
    """Sensitivity over noise, measured: replacing one clipped update by zero."""
    weights, clip, z = np.array([8.0, 1.0, 1.0]), 0.5, 1.2
    update = np.array([clip, 0.0])
    shares = weights / weights.sum()
    moved = max(np.linalg.norm(s * update) for s in shares)
    noise = z * clip / len(weights)  # what Flower adds to the mean
    assert effective_multiplier(z, list(weights)) == pytest.approx(noise / moved)


def test_adaptive_clipping_releases_two_things():
    differential_privacy = pytest.importorskip(
        "flwr.supercore.differential_privacy", reason="needs Flower"
    )
    count, z = differential_privacy.compute_adaptive_noise_params(0.8, 40, None)
    assert joint_multiplier(z, count) == pytest.approx(0.8)
    assert joint_multiplier(0.0, 2.0) == 0.0


def test_local_dp_is_accounted_for_by_the_noise_that_is_added():
    pytest.importorskip("flwr", reason="needs Flower")
    from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
    from flwr.clientapp.mod import LocalDpMod

    from fedaudit.recorders.flower.inprocess import as_server

    mod = LocalDpMod(clipping_norm=1.0, sensitivity=2.0, epsilon=0.5, delta=1e-5)
    zeros = ArrayRecord({"w": Array(np.zeros(200_000, np.float32))})
    with as_server():
        message = Message(content=RecordDict({"a": zeros}), message_type="train", dst_node_id=5)
    context = Context(1, 5, {}, RecordDict(), {})
    np.random.seed(0)
    # an update of zeros alone cannot be clipped by Flower: it divides by its length
    trained = ArrayRecord({"w": Array(np.full(200_000, 1e-6, np.float32))})
    reply = mod(message, context, lambda m, c: Message(RecordDict({"a": trained}), reply_to=m))
    measured = reply.content["a"]["w"].numpy().std()
    assert measured == pytest.approx(protections.local_noise(2.0, 0.5, 1e-5), rel=0.01)
    once = local(1.0, 2.0, 0.5, 1e-5, 1)
    # the classical formula is careful below epsilon 1
    assert 0.3 < once.epsilon <= 0.5
    assert once.relation == "replace"
    assert local(1.0, 2.0, 0.5, 1e-5, 10).epsilon > 2 * once.epsilon
    # half the sensitivity is half the noise: the promise of 0.5 does not hold
    assert local(1.0, 1.0, 0.5, 1e-5, 1).epsilon > 0.5
    assert math.isinf(protections.local_noise(1.0, 0.0, 1e-5))


# -- what a recorded run promises ------------------------------------------------------------------


def promised_by(apps, folder, wrapper, rounds=3, nodes=4, **client):
    """The guarantees and the report of a recorded run, audited."""
    from fedaudit.flower import RecordingStrategy
    from fedaudit.study import audit

    recorded = RecordingStrategy(wrapper, folder / "t", name_by="partition-id", delta=1e-6)
    metrics = {"partition-id": 0, **client.pop("metrics", {})}
    apps.run(recorded, rounds=rounds, nodes=nodes, metrics=metrics, **client)
    run = audit(folder / "t", ["coverage"])
    page = (run.path / "report.md").read_text(encoding="utf-8").replace("\\", "")
    return run.guarantees.get("central_dp", {}), page + run.summary["protected by"]


def test_the_report_of_a_recorded_run_has_what_fixed_clipping_promises(apps, tmp_path):
    pytest.importorskip("flwr", reason="needs Flower")
    from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg

    wrapper = DifferentialPrivacyServerSideFixedClipping(FedAvg(), 1.5, 1.0, 4)
    given, page = promised_by(apps, tmp_path, wrapper, metrics={"num-examples": 7})
    assert set(given) == {f"client-{i}" for i in range(4)}
    right = central(1.5, 3, 1e-6).epsilon
    for one in given.values():
        assert one["epsilon"] == pytest.approx(right, rel=2e-3)
        assert one["delta"] == 1e-6
    assert f"central_dp: epsilon {given['client-0']['epsilon']:.4g} per client at delta" in page
    assert "3 noisy means, z = 1.5; holds if all clients count alike, as reported" in page
    assert "Flower does not bound weights" in page


def test_clients_that_count_more_are_promised_less(apps, tmp_path):
    pytest.importorskip("flwr", reason="needs Flower")
    from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg

    wrapper = DifferentialPrivacyServerSideFixedClipping(FedAvg(), 1.5, 1.0, 4)
    given, page = promised_by(apps, tmp_path, wrapper)  # clients of 12, 13, 14 and 15 records
    found = [given[f"client-{i}"]["epsilon"] for i in range(4)]
    assert found == sorted(found)
    largest = central(1.5, 3, 1e-6, weights=[12, 13, 14, 15]).epsilon
    assert found[-1] == pytest.approx(largest, rel=2e-3)
    assert "holds for the weights that were reported, 0.222 to 0.278 of a mean" in page


def test_adaptive_clipping_is_accounted_for_mean_and_count_together(apps, tmp_path):
    pytest.importorskip("flwr", reason="needs Flower")
    from flwr.serverapp.strategy import DifferentialPrivacyServerSideAdaptiveClipping, FedAvg

    wrapper = DifferentialPrivacyServerSideAdaptiveClipping(FedAvg(), 0.2, 6)
    (declared,) = protections.declared_by(wrapper)
    assert declared["noise_multiplier"] == pytest.approx(0.2)
    assert declared["mean_multiplier"] == pytest.approx(wrapper.noise_multiplier)
    assert declared["mean_multiplier"] > 0.21
    given, page = promised_by(apps, tmp_path, wrapper, nodes=6, metrics={"num-examples": 7})
    # b is at most 1 plus noise, in all rounds but with a tenth of delta
    b = 1 - NormalDist().inv_cdf(1e-7 / 3) * wrapper.clipped_count_stddev / 6
    smaller = wrapper.noise_multiplier * math.exp(-0.2 * (b - 0.5))
    z = joint_multiplier(smaller, wrapper.clipped_count_stddev)
    assert given["client-0"]["epsilon"] == pytest.approx(central(z, 3, 9e-7).epsilon, rel=5e-3)
    assert given["client-0"]["epsilon"] > central(0.2, 3, 1e-6).epsilon
    assert "central_dp: epsilon" in page
    assert "z = 0.2 together" in page
    assert "clipping norm of the next round" in page


def test_flower_scales_noise_to_the_next_clipping_norm():
    """Why adaptive clipping promises less than its setting: all are clipped, so C shrinks."""
    pytest.importorskip("flwr", reason="needs Flower")
    from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
    from flwr.serverapp.strategy import DifferentialPrivacyServerSideAdaptiveClipping, FedAvg

    from fedaudit.recorders.flower.inprocess import as_server

    start = ArrayRecord({"w": Array(np.zeros(50_000, np.float32))})
    large = ArrayRecord({"w": Array(np.ones(50_000, np.float32))})
    wrapper = DifferentialPrivacyServerSideAdaptiveClipping(
        FedAvg(), 1.0, 4, initial_clipping_norm=1.0, clip_norm_lr=2.0, clipped_count_stddev=0.6
    )
    wrapper.current_arrays = start
    content = {"arrays": large, "metrics": MetricRecord({"num-examples": 7})}
    with as_server():
        replies = [
            Message(content=RecordDict(dict(content)), message_type="train", dst_node_id=i)
            for i in range(4)
        ]
    np.random.seed(0)
    arrays, _ = wrapper.aggregate_train(1, replies)
    measured = arrays["w"].numpy().std()
    assert wrapper.clipping_norm < 0.7
    stated = wrapper.noise_multiplier / 4  # for the norm that clipped, which was 1
    assert measured == pytest.approx(stated * wrapper.clipping_norm, rel=0.02)


def test_noise_around_what_is_no_mean_has_no_epsilon(apps, tmp_path):
    pytest.importorskip("flwr", reason="needs Flower")
    from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAdam, FedAvg

    class Own(FedAvg):
        pass

    for inner in (FedAdam(), Own()):
        (declared,) = protections.declared_by(
            DifferentialPrivacyServerSideFixedClipping(inner, 1.5, 1.0, 4)
        )
        assert type(inner).__name__ in declared["note"]
    wrapper = DifferentialPrivacyServerSideFixedClipping(Own(), 1.5, 1.0, 4)
    given, page = promised_by(apps, tmp_path, wrapper)
    assert given == {}
    assert "epsilon unknown" in page
