"""Local DP as a protection: drawn once at the data hook, charged once, stated exactly."""

import json

import numpy as np
import pytest
import torch

from fedaudit.accounting import Exposure, Guarantee
from fedaudit.errors import ConfigError, DataError
from fedaudit.federation.engine import Federation
from fedaudit.federation.local.schedule import Training
from fedaudit.federation.local.trainer import ClientData
from fedaudit.federation.rounds import Rounds
from fedaudit.hooks import PLACES
from fedaudit.protections.local_dp import GRR, RAPPOR
from fedaudit.protections.local_dp.protection import LocalDP
from fedaudit.randomness import Seed
from fedaudit.study import run
from fedaudit.tasks.classifier import Classifier

SEED = Seed(3)
SMALL = {
    "seed": 1,
    "data": {"name": "gaussian-mixture", "records": 120},
    "task": {"kind": "mlp", "hidden": [8]},
    "federation": {"clients": 4, "rounds": 2},
    "audits": {"coverage": {}},
}
MECHANISMS = ("grr", "rappor", "dbitflip", "bitrand", "ome", "laplace", "gaussian")


def features(n=60, shape=(2, 5), seed=0):
    return torch.from_numpy(np.random.default_rng(seed).random((n, *shape))).float()


def apply(hook, x, client=0, seed=SEED):
    return hook.data(x, torch.zeros(len(x), dtype=torch.int64), client=client, seed=seed)[0]


def whole(rounds=7):
    return Exposure(sampling_rate=1.0, steps=11, rounds=rounds)


def test_it_acts_on_data_alone():
    assert [p for p in PLACES if LocalDP().acts_at(p)] == ["data"]


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_features_change_labels_and_shapes_stay_and_the_seed_decides(mechanism):
    hook = LocalDP(mechanism=mechanism, epsilon=2.0)
    x, y = features(), torch.arange(60) % 3
    a, labels = hook.data(x.clone(), y, client=1, seed=SEED)
    b, _ = LocalDP(mechanism=mechanism, epsilon=2.0).data(x.clone(), y, client=1, seed=SEED)
    other, _ = hook.data(x.clone(), y, client=2, seed=SEED)
    assert a.shape == x.shape
    assert a.dtype == x.dtype
    assert torch.equal(labels, y)
    assert torch.equal(a, b)
    assert not torch.equal(a, other)
    assert not torch.equal(a, x)
    assert torch.isfinite(a).all()


@pytest.mark.parametrize("mechanism", ["grr", "rappor", "dbitflip", "bitrand", "laplace"])
def test_with_a_large_epsilon_features_come_back_as_the_encoder_sees_them(mechanism):
    hook = LocalDP(mechanism=mechanism, epsilon=2000.0, outside="clip")
    x = features()
    encoder = hook.encoder()
    seen = encoder.decode(encoder.encode(x.numpy()).values)
    # BitRand's alpha leaves the last bit a coin at any epsilon, and a bit is 1/16 here
    tolerance = {"laplace": 0.02, "bitrand": 1 / 16 + 1e-6}.get(mechanism, 1e-6)
    assert np.abs(apply(hook, x).numpy() - seen).max() < tolerance


@pytest.mark.parametrize("mechanism", ["grr", "rappor", "dbitflip", "bitrand"])
def test_unbiased_decoding_is_right_on_average(mechanism):
    settings = {"integer_bits": 1} if mechanism == "bitrand" else {}
    hook = LocalDP(mechanism=mechanism, epsilon=2.0, decoder="unbiased", **settings)
    encoder = hook.encoder()
    x = torch.full((4000, 10), 0.7)
    seen = float(encoder.decode(encoder.encode(0.7).values))
    out = apply(hook, x).numpy()
    assert abs(out.mean() - seen) < 4.5 * out.std() / np.sqrt(out.size)


def test_a_large_report_is_read_in_blocks_of_the_same_law(monkeypatch):
    from fedaudit.protections.local_dp import protection

    hook = LocalDP(mechanism="rappor", epsilon=1.0, alphabet=4)
    x = torch.zeros(3000, 2)
    monkeypatch.setattr(protection, "_BLOCK", 100)
    out = apply(hook, x).numpy().ravel()
    kept = (out == 0).mean()
    exact = RAPPOR(epsilon=1.0, alphabet=4).decoded_transition()[0, 0]
    assert abs(kept - exact) < 4.5 * np.sqrt(exact * (1 - exact) / out.size)


# -- in a federation ------------------------------------------------------------------------------


def federation(hook, rounds=3):
    data = ClientData.join([(features(12, (6,), seed=c), torch.arange(12) % 2) for c in range(3)])
    torch.manual_seed(0)
    return Federation(
        task=Classifier(torch.nn.Linear(6, 2)),
        data=data,
        rounds=Rounds(clients=3, rounds=rounds),
        training=Training(learning_rate=0.1, batch_size=4),
        seed=SEED,
        protections=(hook,),
    )


def test_clients_are_drawn_once_for_all_rounds_and_apart_from_each_other(monkeypatch):
    """Fresh noise in every round could be averaged away."""
    drawn = []
    original = LocalDP.data

    def counted(self, x, y, *, client, seed):
        drawn.append(client)
        return original(self, x, y, client=client, seed=seed)

    monkeypatch.setattr(LocalDP, "data", counted)
    made = federation(LocalDP(epsilon=1.0), rounds=5)
    before = made._data.x.clone()
    made.run()
    assert drawn == [0, 1, 2]
    assert torch.equal(made._data.x, before)
    assert not torch.equal(before, made.data.x)


def test_making_the_federation_again_draws_the_same_and_counts_once():
    from dataclasses import replace

    hook = LocalDP(epsilon=1.0, low=0.2, high=0.8, outside="clip")
    first = federation(hook)
    said = hook.guarantee(0, whole())
    again = replace(first, protections=(hook.resolved(first.exposures()),))
    assert torch.equal(first._data.x, again._data.x)
    assert hook.guarantee(0, whole()) == said
    assert "of 216 values" in said.covers


# -- what is promised -----------------------------------------------------------------------------


@pytest.mark.parametrize(("mechanism", "claimed"), [("grr", 20.0), ("bitrand", 2.0), ("ome", 2.0)])
def test_the_promise_is_the_exact_worst_case_and_the_claim_stands_beside_it(mechanism, claimed):
    hook = LocalDP(mechanism=mechanism, epsilon=2.0)
    apply(hook, features())
    promise = hook.guarantee(0, whole())
    mechanism = hook.of(10)
    assert promise.epsilon == mechanism.worst_case_epsilon()
    assert mechanism.claimed_epsilon == claimed
    assert f"claims {claimed:g}" in promise.covers
    assert (promise.unit, promise.relation, promise.delta) == ("record", "replace", 0.0)
    assert promise.trust.startswith("nobody")
    assert Guarantee.from_dict(json.loads(json.dumps(promise.to_dict()))) == promise
    declared = hook.declare()
    assert declared["exact_epsilon"] == promise.epsilon
    assert ("does not hold" in declared["note"]) == (promise.epsilon > claimed)
    assert "labels are not" in declared["note"]


def test_the_promise_does_not_grow_with_rounds():
    hook = LocalDP(epsilon=1.0)
    apply(hook, features())
    assert hook.guarantee(0, whole(1)) == hook.guarantee(0, whole(100))


def test_gaussian_promises_are_made_at_their_delta():
    hook = LocalDP(mechanism="gaussian", epsilon=1.0, delta=1e-4)
    apply(hook, features())
    promise = hook.guarantee(0, whole())
    assert promise.delta == 1e-4
    assert promise.epsilon < 10.0
    assert "at delta 0.0001" in hook.declare()["note"]


def test_nothing_is_promised_before_the_number_of_features_is_known():
    hook = LocalDP()
    assert hook.guarantee(0, whole()) is None
    assert "note" not in hook.declare()


def test_clipped_values_are_counted_for_the_truth_and_not_declared():
    hook = LocalDP(epsilon=1.0, high=0.5, outside="clip")
    x = features()
    apply(hook, x)
    beyond = int((x > 0.5).sum())
    assert f"{beyond} of 600 values" in hook.guarantee(0, whole()).covers
    assert "clipped" not in json.dumps(hook.declare())


# -- bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ({"epsilon": 0.0}, "epsilon"),
        ({"alphabet": 1}, "nothing to hide"),
        ({"bits": 10}, "not a setting of grr"),
        ({"mechanism": "bitrand", "alphabet": 4}, "not a setting of bitrand"),
        ({"mechanism": "ome", "bits": 9}, "even"),
        ({"mechanism": "bitrand", "integer_bits": 10}, "integer_bits"),
        ({"mechanism": "laplace", "decoder": "published"}, "single value"),
        ({"mechanism": "rappor", "filter_bits": 16, "decoder": "unbiased"}, "single value"),
        ({"mechanism": "gaussian", "delta": 0.0}, "delta"),
        ({"low": 1.0, "high": 0.0}, "bounds"),
        ({"mechanism": "gr"}, "mechanism"),
    ],
)
def test_settings_that_make_no_sense_are_refused_at_birth(wrong, match):
    with pytest.raises(ConfigError, match=match):
        LocalDP(**wrong)


def test_data_that_cannot_be_protected_are_refused():
    with pytest.raises(DataError, match="outside"):
        apply(LocalDP(), features() * 3)
    with pytest.raises(DataError, match="not finite"):
        apply(LocalDP(outside="clip"), torch.full((2, 3), float("nan")))
    with pytest.raises(ConfigError, match="features"):
        apply(LocalDP(), torch.zeros(2, 3, dtype=torch.int64))
    assert apply(LocalDP(), torch.zeros(0, 3)).shape == (0, 3)
    assert apply(LocalDP(), torch.zeros(4)).shape == (4,)


# -- a whole run ----------------------------------------------------------------------------------


def test_a_run_states_claim_and_truth_and_draws_the_same_again(tmp_path):
    settings = {"mechanism": "bitrand", "epsilon": 5.0, "outside": "clip", "integer_bits": 2}
    raw = {**SMALL, "protections": {"local_dp": settings}}
    first, second = (run(raw, tmp_path / name) for name in ("a", "b"))
    assert first.results[0].trace_sha256 == second.results[0].trace_sha256
    said = next(iter(first.guarantees["local_dp"].values()))
    exact = LocalDP(**settings).of(said_features(said)).worst_case_epsilon()
    assert said["epsilon"] == exact
    page = (first.path / "report.html").read_text(encoding="utf-8")
    assert "claims epsilon 5 per record" in page
    assert f"exact worst case {exact:,.4g}: the claim does not hold" in page
    assert "were clipped" in page
    manifest = (first.path / "trace" / "manifest.json").read_text(encoding="utf-8")
    assert "clipped" not in manifest


def said_features(said):
    return int(said["covers"].split(" features")[0].rsplit(" ", 1)[1])


def test_more_noise_costs_accuracy_and_little_costs_little(tmp_path):
    """Utility is that of the same federation: digits at 8, at 1 and at 0.05 per feature."""
    raw = {
        "data": {"name": "digits"},
        "task": {"kind": "mlp", "hidden": [32]},
        "federation": {"clients": 5, "rounds": 6},
        "training": {"learning_rate": 0.2, "epochs": 2, "batch_size": 16},
        "audits": {"coverage": {}},
    }
    reached = {}
    for epsilon in (8.0, 1.0, 0.05):
        protected = {**raw, "protections": {"local_dp": {"epsilon": epsilon}}}
        done = run(protected, tmp_path / f"at-{epsilon}")
        reached[epsilon] = done.metrics["accuracy"]
    assert reached[8.0] > 0.85
    assert reached[8.0] > reached[1.0] + 0.05
    assert reached[1.0] > reached[0.05] + 0.1


def test_its_default_is_randomised_response():
    assert isinstance(LocalDP().of(3), GRR)
