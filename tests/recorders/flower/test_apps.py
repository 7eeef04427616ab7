"""Apps that are not the example: each is recorded, audited, and held against its own computation.

An app keeps what it computed, by itself and in double precision: the updates that its clients sent,
and the model that came out of every round. The recording has to say the same. In one process here;
Ray and a SuperLink with a killed node in `tests/nightly/test_flower.py`, SecAgg+ in
`test_secagg.py`, NVIDIA FLARE in `tests/recorders/nvflare`. The table is in docs/recorders.md.
"""

import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from fedaudit.study.auditing import audit
from fedaudit.trace import PUBLIC, SERVER, Trace
from fedaudit.trace.examination import examine

pytest.importorskip("flwr", reason='Flower is not installed: pip install "fedaudit[flower]"')

from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod, fixedclipping_mod
from flwr.common import ndarrays_to_parameters
from flwr.server import ServerAppComponents, ServerConfig
from flwr.server import strategy as legacy
from flwr.serverapp import ServerApp
from flwr.serverapp import strategy as strategies

from fedaudit.flower import (
    RecordingLegacyStrategy,
    RecordingStrategy,
    run_in_process,
)

ROUNDS, NODES = 3, 5
KINDS = {
    "half.weight": np.float16,
    "single.weight": np.float32,
    "double.weight": np.float64,
    "steps": np.int32,
    "mask": np.bool_,
}


@dataclass
class Own:
    """What an app computed: round -> partition -> the arrays that left the training function."""

    sent: dict[int, dict[int, dict[str, Any]]] = field(default_factory=dict)
    received: dict[int, dict[int, dict[str, Any]]] = field(default_factory=dict)
    results: list[Any] = field(default_factory=list)

    def train(self, number, partition, arrays, change):
        out = change(arrays, np.random.default_rng((partition, number)), partition)
        self.received.setdefault(number, {})[partition] = arrays
        self.sent.setdefault(number, {})[partition] = out
        return out


def weight(partition):
    return 10 + 3 * partition


def plain(arrays, rng, partition):
    return {k: (a + rng.normal(size=a.shape)).astype(a.dtype) for k, a in arrays.items()}


def batchnorm(arrays, rng, partition):
    out = plain({k: a for k, a in arrays.items() if a.dtype.kind == "f"}, rng, partition)
    out["bn.num_batches_tracked"] = arrays["bn.num_batches_tracked"] + 4
    return {k: np.asarray(out[k]) for k in arrays}


def mixed(arrays, rng, partition):
    """FedAvg averages counters and flags as well: a client turns them back."""
    out = {k: np.asarray(a + 1).astype(KINDS[k]) for k, a in arrays.items() if k != "mask"}
    return {**out, "mask": arrays["mask"] < 0.5}


def odd(arrays, rng, partition):
    """FedAvg averages tables as well: a client turns them back."""
    floats = {k: ODD[k] + rng.normal(size=ODD[k].shape) for k in ("fortran", "swapped", "empty")}
    return {k: np.asarray(floats.get(k, a), a.dtype, order="K") for k, a in ODD.items()}


def scikit(arrays, rng, partition):
    """One warm step of a real LogisticRegression, whose arrays are its coef_ and intercept_."""
    from sklearn.linear_model import LogisticRegression

    x = rng.normal(size=(40, 4))
    y = np.arange(40) % 2
    model = LogisticRegression(max_iter=50, warm_start=True)
    model.classes_ = np.array([0, 1])
    model.coef_, model.intercept_ = arrays["coef_"].copy(), arrays["intercept_"].copy()
    model.fit(x, y)
    return {"coef_": model.coef_, "intercept_": model.intercept_}


DENSE = {"a.weight": np.zeros((3, 4), np.float32), "a.bias": np.zeros(3, np.float32)}
NORM = {
    **DENSE,
    "bn.running_mean": np.zeros(3, np.float32),
    "bn.running_var": np.ones(3, np.float32),
    "bn.num_batches_tracked": np.asarray(np.int64(0)),
}
MIXED = {k: np.zeros(4, d) for k, d in KINDS.items()}
ODD = {
    "fortran": np.zeros((3, 2), np.float32, order="F"),
    "swapped": np.zeros(3, ">f4"),
    "empty": np.zeros((0, 3), np.float32),
    "large": np.asarray(np.int64(2**60 + 1)),
    "bytes": np.arange(4, dtype=np.uint8),
    "words": np.array([2**32 - 1], np.uint32),
}
LOGISTIC = {"coef_": np.zeros((1, 4)), "intercept_": np.zeros(1)}


def noisy_mod():
    return LocalDpMod(clipping_norm=0.5, sensitivity=1.0, epsilon=5.0, delta=1e-5)


def server_dp():
    inner = strategies.FedAvg()
    return strategies.DifferentialPrivacyServerSideFixedClipping(inner, 0.0, 0.5, NODES)


def client_dp():
    inner = strategies.FedAvg()
    return strategies.DifferentialPrivacyClientSideFixedClipping(inner, 0.0, 0.5, NODES)


def some_adam():
    return strategies.FedAdam(eta=0.1, tau=0.01, fraction_train=0.6, min_train_nodes=3)


# name -> strategy, first model, training, mods, whether the sent arrays are the trained ones, and
# whether the next model is their weighted mean
APPS = {
    "message API, FedAvg": (strategies.FedAvg, DENSE, plain, (), True, True),
    "FedAdam, partial participation": (some_adam, DENSE, plain, (), True, False),
    "BatchNorm": (strategies.FedAvg, NORM, batchnorm, (), True, True),
    "mixed dtypes": (strategies.FedAvg, MIXED, mixed, (), True, False),
    "odd buffers": (strategies.FedAvg, ODD, odd, (), True, False),
    "scikit-learn": (strategies.FedAvg, LOGISTIC, scikit, (), True, True),
    "Krum": (lambda: strategies.Krum(num_malicious_nodes=1), DENSE, plain, (), True, False),
    "DP at the server": (server_dp, DENSE, plain, (), True, False),
    "DP at the clients": (client_dp, DENSE, plain, (fixedclipping_mod,), False, True),
    "local DP": (strategies.FedAvg, DENSE, plain, (noisy_mod(),), False, True),
}


def client_app(own, change, mods):
    app = ClientApp()

    @app.train(mods=list(mods))
    def train(message, context):
        partition = int(context.node_config["partition-id"])
        arrays = {k: a.numpy() for k, a in message.content["arrays"].items()}
        number = message.content["config"]["server-round"]
        out = own.train(number, partition, arrays, change)
        records = {
            "arrays": ArrayRecord({k: Array(np.asarray(v)) for k, v in out.items()}),
            "metrics": MetricRecord({"num-examples": weight(partition)}),
        }
        return Message(RecordDict(records), reply_to=message)

    return app


def run(strategy, start, change, mods):
    own = Own()
    server = ServerApp()

    @server.main()
    def main(grid, context):
        arrays = ArrayRecord({k: Array(np.asarray(v)) for k, v in start.items()})
        own.results.append(
            strategy.start(grid=grid, initial_arrays=arrays, num_rounds=ROUNDS, timeout=60)
        )

    random.seed(1)
    np.random.seed(1)
    run_in_process(server, client_app(own, change, mods), NODES)
    return own


def strategy_without_evaluation(build):
    strategy = build()
    inner = strategy
    while "strategy" in vars(inner):
        inner = inner.strategy
    inner.fraction_evaluate = 0.0
    return strategy


def audited(trace):
    """The finding of an audit that needs a recording alone; it has to have looked at it."""
    done = audit(trace, ["coverage", "fingerprint"])
    assert {r.audit: r.status for r in done.results} == {"coverage": "ok", "fingerprint": "ok"}
    assert done.results[1].estimates["linkage_accuracy"].value == 1.0
    assert done.results[1].known


@pytest.mark.parametrize("name", APPS)
def test_an_app_is_recorded_audited_and_equal_to_its_own_computation(name, tmp_path):
    build, start, change, mods, as_trained, averaged = APPS[name]
    strategy = RecordingStrategy(strategy_without_evaluation(build), tmp_path / "trace")
    own = run(strategy, start, change, mods)
    trace = Trace.open(tmp_path / "trace")
    view = trace.seen_by(SERVER)
    floats = [k for k, a in start.items() if np.asarray(a).dtype.kind == "f"]

    def row(arrays):
        return np.concatenate([np.asarray(arrays[k], np.float64).reshape(-1) for k in floats])

    def near(a, b):
        scale = max(1.0, float(np.abs(b).max()))
        np.testing.assert_allclose(a, b, atol=2e-6 * scale)

    for number in trace.rounds:
        updates = view.updates(number)
        nodes = [int(s.removeprefix("node-")) - 1000 for s in updates.senders]
        assert sorted(nodes) == sorted(own.sent[number])
        np.testing.assert_array_equal(updates.weights, [weight(i) for i in nodes])
        for i, got in zip(nodes, updates.rows, strict=True):
            model = row(own.received[number][i])
            near(view.received(number, f"node-{1000 + i}"), model)
            if as_trained:
                near(got, row(own.sent[number][i]) - model)
        shares = updates.weights / updates.weights.sum()
        after = model + shares @ updates.rows
        if averaged and number < ROUNDS:
            near(row(next(iter(own.received[number + 1].values()))), after)
    released = {k: a.numpy() for k, a in own.results[0].arrays.items()}
    near(trace.seen_by(PUBLIC).released(), row(released))
    health = examine(trace)
    assert health.whole
    asked = sum(len(of) for of in own.sent.values())
    assert (health.arrived, health.expected) == (asked, asked)
    audited(trace)


@pytest.mark.parametrize(
    ("start", "change", "names"),
    [(MIXED, mixed, ("steps", "mask")), (ODD, odd, ("large", "bytes", "words"))],
)
def test_whole_numbers_and_booleans_of_an_app_are_recorded_beside_its_floats(
    start, change, names, tmp_path
):
    strategy = RecordingStrategy(strategy_without_evaluation(strategies.FedAvg), tmp_path / "trace")
    own = run(strategy, start, change, ())
    trace = Trace.open(tmp_path / "trace")
    layout = trace.layout_of("integers")
    for i, m in trace.seen_by(SERVER).indexed(1):
        if m.sender != SERVER:
            sent = own.sent[1][int(m.sender.removeprefix("node-")) - 1000]
            got = layout.unflatten(trace.seen_by(SERVER).payload(1, i, layout="integers"))
            for name in names:
                np.testing.assert_array_equal(got[name], sent[name].astype(np.int64))


def test_a_legacy_app_is_recorded_audited_and_equal_to_its_own_computation(tmp_path):
    own, names = Own(), list(DENSE)

    class Client(NumPyClient):
        def __init__(self, partition):
            self.partition = partition

        def fit(self, parameters, config):
            arrays = dict(zip(names, parameters, strict=True))
            out = own.train(config["round"], self.partition, arrays, plain)
            told = {"site": f"hospital-{self.partition}"}
            return [out[n] for n in names], weight(self.partition), told

    def server_fn(context):
        strategy = legacy.FedAvg(
            fraction_evaluate=0.0,
            initial_parameters=ndarrays_to_parameters([*DENSE.values()]),
            on_fit_config_fn=lambda number: {"round": number},
        )
        recorded = RecordingLegacyStrategy(
            strategy, tmp_path / "trace", names=names, rounds=ROUNDS, name_by="site"
        )
        return ServerAppComponents(strategy=recorded, config=ServerConfig(num_rounds=ROUNDS))

    client = ClientApp(
        client_fn=lambda context: Client(int(context.node_config["partition-id"])).to_client()
    )
    run_in_process(ServerApp(server_fn=server_fn), client, NODES)
    trace = Trace.open(tmp_path / "trace")
    view = trace.seen_by(SERVER)
    for number in trace.rounds:
        updates = view.updates(number)
        sites = [int(s.removeprefix("hospital-")) for s in updates.senders]
        for i, got in zip(sites, updates.rows, strict=True):
            sent, had = own.sent[number][i], own.received[number][i]
            expected = trace.layout.flatten(sent) - trace.layout.flatten(had)
            np.testing.assert_allclose(got, expected, atol=1e-6)
    told = {key for m in trace.messages(1) for key in m.metadata if m.sender != SERVER}
    assert told == {"num-examples"}
    assert trace.manifest.rounds[-1].file == f"round-{ROUNDS:05d}.safetensors"
    audited(trace)
