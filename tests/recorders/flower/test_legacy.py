import numpy as np
import pytest

from fedaudit.errors import UsageError
from fedaudit.trace import PUBLIC, SERVER, Trace

pytest.importorskip("flwr", reason='Flower is not installed: pip install "fedaudit[flower]"')

from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from flwr.common import ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server import ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.serverapp import ServerApp

from fedaudit.flower import RecordingLegacyStrategy, run_in_process
from fedaudit.recorders.flower.legacy import content_from

NAMES = ["layer.weight", "layer.bias"]


def run(wrap, one_step, fails=(), rounds=2):
    """An app of NumPyClients; the parameters that came out of each round."""

    class Client(NumPyClient):
        def __init__(self, partition):
            self.partition = partition

        def fit(self, parameters, config):
            if (self.partition, config["round"]) in fails:
                raise RuntimeError("gone")
            out = one_step(dict(zip(NAMES, parameters, strict=True)), self.partition)
            return [out[n] for n in NAMES], 12 + self.partition, {"loss": 0.25}

    came_out = []

    class Kept(FedAvg):
        def aggregate_fit(self, server_round, results, failures):
            # clients answer in any order: floating-point sums would differ
            results = sorted(results, key=lambda r: r[0].cid)
            found = super().aggregate_fit(server_round, results, failures)
            came_out.append(parameters_to_ndarrays(found[0]))
            return found

    def server_fn(context):
        start = [np.zeros((1, 5), np.float32), np.zeros(1, np.float32)]
        strategy = Kept(
            fraction_evaluate=0.0,
            initial_parameters=ndarrays_to_parameters(start),
            on_fit_config_fn=lambda number: {"round": number},
        )
        config = ServerConfig(num_rounds=rounds)
        return ServerAppComponents(strategy=wrap(strategy), config=config)

    def client_fn(context):
        return Client(int(context.node_config["partition-id"])).to_client()

    run_in_process(ServerApp(server_fn=server_fn), ClientApp(client_fn=client_fn), 3)
    return came_out


def test_an_app_of_numpy_clients_is_recorded_and_unchanged(one_step, tmp_path):
    plain = run(lambda strategy: strategy, one_step)
    recorded = run(
        lambda strategy: RecordingLegacyStrategy(strategy, tmp_path / "t", names=NAMES, rounds=2),
        one_step,
    )
    for a, b in zip(plain, recorded, strict=True):
        for x, y in zip(a, b, strict=True):
            assert x.tobytes() == y.tobytes()
    trace = Trace.open(tmp_path / "t")
    assert trace.manifest.complete
    assert trace.layout.names == tuple(NAMES)
    updates = trace.seen_by(SERVER).updates(1)
    zero = {"layer.weight": np.zeros((1, 5), np.float32), "layer.bias": np.zeros(1, np.float32)}
    for row, sender, weight in zip(updates.rows, updates.senders, updates.weights, strict=True):
        partition = int(sender.removeprefix("node-")) - 1000
        np.testing.assert_array_equal(row, trace.layout.flatten(one_step(zero, partition)))
        assert weight == 12 + partition
    released = trace.layout.flatten(dict(zip(NAMES, recorded[-1], strict=True)))
    np.testing.assert_array_equal(trace.seen_by(PUBLIC).released(), released)
    assert trace.messages(1)[0].metadata["round"] == 1


def test_a_client_that_raises_counts_as_silent(one_step, tmp_path):
    run(
        lambda strategy: RecordingLegacyStrategy(strategy, tmp_path / "t"),
        one_step,
        fails={(1, 1)},
    )
    trace = Trace.open(tmp_path / "t")
    assert not trace.manifest.complete  # nobody said when the run was over
    assert trace.layout.names == ("array-0", "array-1")
    failed = [m for m in trace.messages(1) if "failed" in m.notes]
    assert [m.sender for m in failed] == ["node-1001"]
    assert len(trace.seen_by(SERVER).updates(2).rows) == 3


def test_a_round_in_which_nobody_is_chosen_is_an_empty_one(one_step, tmp_path):
    def pausing(strategy):
        chosen = strategy.configure_fit
        strategy.configure_fit = lambda number, *given: (
            [] if number == 1 else chosen(number, *given)
        )
        return RecordingLegacyStrategy(strategy, tmp_path / "t", names=NAMES, rounds=2)

    run(pausing, one_step)
    trace = Trace.open(tmp_path / "t")
    assert trace.manifest.complete
    assert trace.messages(1) == ()
    assert len(trace.seen_by(SERVER).updates(2).rows) == 3


def test_strategies_of_the_newer_kind_and_wrong_names_are_refused(one_step, tmp_path):
    from flwr.serverapp.strategy import FedAvg as Newer

    with pytest.raises(UsageError, match="RecordingStrategy records"):
        RecordingLegacyStrategy(Newer(), tmp_path / "t")
    two = ndarrays_to_parameters([np.zeros(2), np.zeros(3)])
    with pytest.raises(UsageError, match="2 names, one per array"):
        content_from(two, ["one"], strict=True)
    later = content_from(two, ["one"], {"loss": 1.0})
    assert "the names do not fit the arrays" in later.lacks
    assert (later.model, later.scalars, later.size > 40) == ({}, {"loss": 1.0}, True)


def test_arrays_that_are_added_while_it_runs_do_not_stop_the_run(one_step, tmp_path):
    def growing(strategy):
        aggregate = strategy.aggregate_fit

        def more(number, results, failures):
            found, metrics = aggregate(number, results, failures)
            if number == 2:
                found = ndarrays_to_parameters([*parameters_to_ndarrays(found), np.zeros(1)])
            return found, metrics

        strategy.aggregate_fit = more
        return RecordingLegacyStrategy(strategy, tmp_path / "t", names=NAMES, rounds=2)

    assert len(run(growing, one_step)) == 2
    trace = Trace.open(tmp_path / "t")
    assert trace.manifest.complete
    assert len(trace.seen_by(SERVER).updates(2).rows) == 3
