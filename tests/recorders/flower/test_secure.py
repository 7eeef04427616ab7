"""Secure aggregation in the Message API: the plain mean from sums alone, and its trace."""

import json

import numpy as np
import pytest

flwr = pytest.importorskip("flwr", reason='Flower is not installed: pip install "fedaudit[flower]"')

from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict  # noqa: E402
from flwr.clientapp import ClientApp  # noqa: E402
from flwr.serverapp import ServerApp  # noqa: E402
from flwr.serverapp import strategy as strategies  # noqa: E402

from fedaudit.errors import NotObservable  # noqa: E402
from fedaudit.flower import (  # noqa: E402
    SecureSumStrategy,
    run_in_process,
    secure_sum_mod,
)
from fedaudit.protections.secure_aggregation import Budget, Identity, RunRefused  # noqa: E402
from fedaudit.recorders.flower import inprocess  # noqa: E402
from fedaudit.trace import SERVER, Trace  # noqa: E402
from fedaudit.trace.ledger import round_queries  # noqa: E402

NODES = 6


@pytest.fixture
def keys(tmp_path):
    folder = tmp_path / "keys"
    folder.mkdir()
    identities = {n: Identity.new() for n in (-1, *range(NODES))}
    for n, identity in identities.items():
        (folder / f"{n}.key").write_text(identity.secret.hex())
    public = {n: i.public.hex() for n, i in identities.items()}
    (folder / "public.json").write_text(json.dumps(public))
    return folder


def client_app(keys, mods=True, fails=(), seen=None, **settings):
    app = ClientApp(mods=[secure_sum_mod(keys=keys, threshold=3, **settings)] if mods else [])

    @app.train()
    def train(message, context):
        number = context.node_config["partition-id"]
        if seen is not None:
            seen.append(number)
        if number in fails:
            raise RuntimeError("no power")
        before = message.content["arrays"]["w"].numpy()
        after = before + np.float32(0.1) * (number + 1) * np.arange(4, dtype=np.float32)
        content = {
            "arrays": ArrayRecord({"w": Array(after.astype(np.float32))}),
            "metrics": MetricRecord({"num-examples": 10 + number}),
        }
        return Message(RecordDict(content), reply_to=message)

    return app


def trained(app, strategy):
    results = []
    server = ServerApp()

    @server.main()
    def main(grid, context):
        start = ArrayRecord({"w": Array(np.zeros(4, np.float32))})
        results.append(strategy.start(grid=grid, initial_arrays=start, num_rounds=2))

    run_in_process(server, app, NODES)
    arrays = results[0].arrays
    return None if not arrays else arrays["w"].numpy()


def fedavg():
    return strategies.FedAvg(fraction_evaluate=0.0)


def test_the_model_is_that_of_plain_averaging(keys, tmp_path):
    plain = trained(client_app(keys, mods=False), fedavg())
    strategy = SecureSumStrategy(fedavg(), keys=keys, threshold=3, path=tmp_path / "trace")
    masked = trained(client_app(keys), strategy)
    strategy.close()
    assert np.abs(plain).max() > 0.1
    assert np.allclose(plain, masked, rtol=2e-6)  # the last bits of float32
    trace = Trace.open(tmp_path / "trace")
    view = trace.seen_by(SERVER)
    with pytest.raises(NotObservable):
        view.updates(1)
    assert round_queries(view, 1).queries.tolist() == [[1] * NODES]
    ((at, total),) = [(i, m) for i, m in view.indexed(1) if m.kind == "sum"]
    # as the clients make it, in float32; its sum in float64
    row = np.arange(4, dtype=np.float32)
    made = [np.float32(0.1) * (n + 1) * row for n in range(NODES)]
    exact = sum((10 + n) * update.astype(np.float64) for n, update in enumerate(made))
    stored = view.payload(1, at).astype(np.float64)
    assert np.abs(stored - exact).max() <= total.metadata["error"]  # float32 storage included
    assert total.metadata["error"] < 1e-5
    assert total.metadata["total weight"] == sum(10 + n for n in range(NODES))
    assert trace.manifest.declared[0]["quorum"] == "two_thirds"
    assert not any(m.parts for m in trace.messages(1) if m.kind == "masked")


def test_half_of_the_bytes_cost_precision_that_is_stated(keys, tmp_path):
    """A weight of 10 out of 100,000: of an update's 31 bits 13 are left."""
    plain, errors = trained(client_app(keys, mods=False), fedavg()), {}
    for bits in (32, 64):
        path = tmp_path / str(bits)
        given = {"threshold": 3, "path": path, "modulus_bits": bits}
        strategy = SecureSumStrategy(fedavg(), keys=keys, **given)
        for before in keys.glob("*.ledger"):
            before.unlink()
        model = trained(client_app(keys, only_final=True), strategy)
        strategy.close()
        view = Trace.open(path).seen_by(SERVER)
        ((_, total),) = [(i, m) for i, m in view.indexed(2) if m.kind == "sum"]
        error = 2 * total.metadata["error"] / total.metadata["total weight"]  # of two rounds
        assert np.abs(model - plain).max() <= error + 1e-6
        errors[bits] = error
    assert errors[32] > 1000 * errors[64]


def test_a_node_that_fails_to_train_is_left_out(keys):
    plain = trained(client_app(keys, mods=False, fails={2}), fedavg())
    masked = trained(
        client_app(keys, fails={2}), SecureSumStrategy(fedavg(), keys=keys, threshold=3)
    )
    assert np.allclose(plain, masked, atol=1e-3)


def test_too_many_failures_leave_a_round_without_a_sum(keys, tmp_path):
    strategy = SecureSumStrategy(fedavg(), keys=keys, threshold=3, path=tmp_path / "trace")
    assert trained(client_app(keys, fails={1, 2, 3}), strategy) is None
    strategy.close()
    (asked,) = [m for m in Trace.open(tmp_path / "trace").messages(1) if m.kind == "query"]
    assert "too few" in asked.metadata["unanswered"]


def test_a_client_with_the_mod_answers_no_plain_request(keys):
    assert trained(client_app(keys), fedavg()) is None


class WithoutOne(strategies.FedAvg):
    """A server that trains all but one of the nodes."""

    def configure_train(self, server_round, arrays, config, grid):
        return list(super().configure_train(server_round, arrays, config, grid))[1:]


@pytest.mark.parametrize("budget", [Budget(), None])
def test_another_training_from_the_same_model_does_not_open_whom_it_leaves_out(
    keys, monkeypatch, budget
):
    """Equal updates: one sum less the other is an update. A ledger per training allowed it."""
    app, means = client_app(keys, budget=budget), []
    for run, inner in enumerate((strategies.FedAvg, WithoutOne)):
        monkeypatch.setattr(inprocess, "RUN", 700 + run)
        strategy = SecureSumStrategy(inner(fraction_evaluate=0.0), keys=keys, threshold=3)
        means.append(trained(app, strategy))
    assert means[0] is not None
    if budget is not None:
        assert means[1] is None
    else:  # given up by name: each of two rounds moves the model by the mean update
        weights, weight = 10 + np.arange(NODES), sum(range(10, 10 + NODES))
        opened = [(means[0] * weight - means[1] * (weight - w)) / 2 for w in weights]
        own = [w * 0.1 * (n + 1) * np.arange(4) for n, w in enumerate(weights)]
        found = [np.allclose(*pair, atol=1e-2) for pair in zip(opened, own, strict=True)]
        assert sum(found) == 1


def test_refusals_tell_no_client_s_weight_to_a_server_that_changes_the_limits(
    keys,
):
    """Weights above most_examples were refused one by one: a search for every client's weight."""
    small = SecureSumStrategy(fedavg(), keys=keys, threshold=3, most_examples=12)
    assert trained(client_app(keys), small) is None
    tight = SecureSumStrategy(fedavg(), keys=keys, threshold=3, bound=1.0)
    assert trained(client_app(keys), tight) is None
    agreed = client_app(keys, bound=1.0)
    tight = SecureSumStrategy(fedavg(), keys=keys, threshold=3, bound=1.0)
    assert trained(agreed, tight) is not None


class TwoScales(SecureSumStrategy):
    """A server that states another number of clients to all but one of them."""

    def _request(self, step, message):
        request = super()._request(step, message)
        request["clients"] = 1 if not self._sent else 2**20
        return request


def test_a_scale_that_the_server_states_is_refused(keys):
    """With 2**20 clients every other vector was rounded to zero, and the sum was the victim's."""
    assert trained(client_app(keys), TwoScales(fedavg(), keys=keys, threshold=3)) is None


class AnotherModel(SecureSumStrategy):
    """A server that sends all nodes but the first a model with which nobody can train."""

    def configure_train(self, server_round, arrays, config, grid):
        messages = list(super().configure_train(server_round, arrays, config, grid))
        dead = ArrayRecord({"w": Array(np.full(4, -1e6, np.float32))})
        for m in messages[1:]:
            m.content = RecordDict({**m.content, "arrays": dead})
        return messages


def test_clients_with_another_model_refuse_before_they_train(keys):
    """Dead units gave updates of zero, and the sum was the victim's update."""
    trained_by = []
    app = client_app(keys, seen=trained_by)
    assert trained(app, AnotherModel(fedavg(), keys=keys, threshold=3)) is None
    assert len(set(trained_by)) <= 2  # the first node of each round


class TwiceTheModel(SecureSumStrategy):
    """A server that asks for one upload again and again, and reads the reasons."""

    def configure_train(self, server_round, arrays, config, grid):
        messages = list(super().configure_train(server_round, arrays, config, grid))
        content = messages[0].content
        self.reasons = []
        for _ in range(3):
            node = messages[0].metadata.dst_node_id
            asked = Message(content, dst_node_id=node, message_type="train")
            for reply in grid.send_and_receive([asked]):
                self.reasons.append(reply.error.reason if reply.has_error() else "an upload")
        return messages


def test_a_repeated_request_to_train_trains_nobody_again(keys):
    trained_by = []
    app = client_app(keys, seen=trained_by)
    server = TwiceTheModel(fedavg(), keys=keys, threshold=3)
    assert trained(app, server) is not None
    assert server.reasons == ["an upload"] * 3
    assert len(trained_by) == 2 * NODES  # two rounds


def test_an_overflow_looks_like_any_failure_and_is_told_once(keys):
    app = client_app(keys, bound=1e-9)  # no update fits
    server = TwiceTheModel(fedavg(), keys=keys, threshold=3, bound=1e-9)
    assert trained(app, server) is None
    assert "training failed" in server.reasons[0]
    assert all("out_of_order" in r for r in server.reasons[1:])
    crashed = TwiceTheModel(fedavg(), keys=keys, threshold=3)
    assert trained(client_app(keys, fails=set(range(NODES))), crashed) is None
    assert crashed.reasons[0] == server.reasons[0]


class OtherSteps(SecureSumStrategy):
    """A server that calls what is no step of the protocol, and asks for keys twice."""

    def _ask(self, step, messages):
        if step == "advertise":
            self.dumps = super()._ask("dump", messages)
            again = super()._ask(step, messages)
            self.same = again == super()._ask(step, messages)
        return super()._ask(step, messages)


def test_only_steps_of_the_protocol_are_called_and_keys_are_made_once(keys):
    server = OtherSteps(fedavg(), keys=keys, threshold=3)
    assert trained(client_app(keys), server) is not None
    assert server.dumps == {}
    assert server.same


class Garbled(SecureSumStrategy):
    """One node answers one step with bytes that mean nothing."""

    step = "advertise"

    def _ask(self, step, messages):
        found = super()._ask(step, messages)
        if step == self.step:
            found[next(iter(found))] = b"nothing"
        return found


@pytest.mark.parametrize("step", ["advertise", "share", "confirm"])
def test_one_lying_node_does_not_end_the_round(keys, step):
    server = Garbled(fedavg(), keys=keys, threshold=3)
    server.step = step
    assert trained(client_app(keys), server) is not None


def test_a_weight_of_nothing_moves_no_model(keys):
    server = SecureSumStrategy(fedavg(), keys=keys, threshold=3)
    for weights in (5.0, 6 * 100_001.0, -3.0, float("nan")):
        with pytest.raises(RunRefused, match="one of them lies"):
            server._total_weight(weights * server._ring.step, 6)
    assert server._total_weight(6.0 * server._ring.step, 6) == 6
