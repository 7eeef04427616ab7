"""A guard before training, and local DP at the data, in Flower apps."""

import logging

import numpy as np
import pytest

from fedaudit.errors import DataError, UsageError

pytest.importorskip("flwr", reason='Flower is not installed: pip install "fedaudit[flower]"')

from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

from fedaudit.flower import guard_mod, protect_data, run_in_process
from fedaudit.protections.guard import GuardReport
from fedaudit.protections.local_dp.protection import LocalDP
from fedaudit.recorders.flower.data import local_guarantee
from fedaudit.recorders.flower.inprocess import as_server
from reproductions.guard import planted


def honest(seed):
    rng = np.random.default_rng(seed)
    shapes = {"1.weight": (128, 64), "1.bias": (128,), "3.weight": (10, 128), "3.bias": (10,)}
    return {k: rng.uniform(-0.1, 0.1, s).astype(np.float32) for k, s in shapes.items()}


def bad():
    rng = np.random.default_rng(0)
    return planted.fully_connected(rng, rng.random((50, 32)))


def send(mod, state, context, kind="train"):
    """The reply of a node, and whether it trained."""
    trained = []

    def app(message, context):
        trained.append(True)
        return Message(RecordDict({"metrics": MetricRecord({"x": 1})}), reply_to=message)

    record = ArrayRecord({k: Array(v) for k, v in state.items()})
    with as_server():
        message = Message(content=RecordDict({"arrays": record}), message_type=kind, dst_node_id=9)
    return mod(message, context, app), bool(trained)


def node():
    return Context(1, 9, {}, RecordDict(), {})


def test_a_planted_model_is_not_trained_on():
    reply, trained = send(guard_mod(), bad(), node())
    assert not trained
    assert reply.has_error()
    assert reply.error.code == ErrorCode.MOD_FAILED_PRECONDITION
    assert "one_entry" not in reply.error.reason  # the server is not told what gave it away
    reply, trained = send(guard_mod(), honest(0), node())
    assert trained
    assert not reply.has_error()


def test_a_warning_lets_training_go_on(caplog):
    with caplog.at_level(logging.WARNING, "fedaudit"):
        _, trained = send(guard_mod(action="warn"), bad(), node())
    assert trained
    assert "planted" in caplog.text
    assert "mirrored in 1.weight" in caplog.text
    with pytest.raises(UsageError, match="'refuse' or 'warn'"):
        guard_mod(action="stop")


def test_where_there_is_nothing_to_say_a_strict_guard_refuses(caplog):
    """Layers too narrow for any check."""
    rng = np.random.default_rng(0)
    narrow = {"1.weight": rng.normal(size=(6, 8)).astype(np.float32)}
    with caplog.at_level(logging.WARNING, "fedaudit"):
        _, trained = send(guard_mod(), narrow, node())
    assert trained
    assert "nothing to say" in caplog.text
    reply, trained = send(guard_mod(strict=True), narrow, node())
    assert not trained
    assert reply.has_error()


def test_what_is_not_a_model_is_not_trained_on_and_a_small_model_is():
    rng = np.random.default_rng(0)
    messages = {"model": rng.normal(size=(5, 400)).astype(np.float32)}
    reply, trained = send(guard_mod(), messages, node())
    assert not trained
    assert reply.has_error()
    # the protocol says that it is a model: small numbers are not taken for an update
    assert send(guard_mod(), {k: np.float32(0.01) * v for k, v in honest(0).items()}, node())[1]


def test_the_last_model_is_kept_at_the_node_and_reports_too(tmp_path):
    mod, context = guard_mod(reports=tmp_path), node()
    state = honest(0)
    for _ in range(2):
        assert send(mod, state, context)[1]
        state = {k: v + np.float32(1e-4) for k, v in state.items()}
    # written anew: nothing to do with what this node was sent before
    assert not send(mod, honest(5), context)[1]
    assert send(mod, state, context)[1]  # a model that was refused is not compared with
    files = sorted((tmp_path / "run-1" / "node-9").glob("*.json"))
    reports = [GuardReport.from_json(f.read_text()) for f in files]
    assert [r.verdict for r in reports] == ["no_evidence", "no_evidence", "planted", "no_evidence"]
    assert [c.name for c in reports[2].alarms] == ["rewritten"]
    assert "rewritten" not in {c.name for c in reports[0].checks}
    alone = node()
    send(guard_mod(compare=False), honest(0), alone)
    assert send(guard_mod(compare=False), honest(5), alone)[1]


def test_adapters_that_begin_at_zero_are_trained_on_round_after_round():
    rng = np.random.default_rng(0)
    state = {
        "lora_A.weight": rng.uniform(-0.1, 0.1, (8, 64)).astype(np.float32),
        "lora_B.weight": np.zeros((64, 8), np.float32),
        "head.weight": np.zeros((10, 64), np.float32),
    }
    mod, context = guard_mod(), node()
    for _ in range(3):
        assert send(mod, state, context)[1]
        state = {k: v + rng.normal(0, 0.01, v.shape).astype(np.float32) for k, v in state.items()}


def test_what_cannot_be_looked_at_is_refused_and_no_error_of_the_mod(caplog):
    mod, context = guard_mod(), node()
    assert send(mod, honest(0), context)[1]
    other = {k: v[:7] for k, v in honest(0).items()}
    for state in (other, {"bias": np.zeros(4, np.float32)}):
        with caplog.at_level(logging.WARNING, "fedaudit"):
            reply, trained = send(mod, state, context)
        assert not trained
        assert reply.error.code == ErrorCode.MOD_FAILED_PRECONDITION
    assert "does not fit" in caplog.text
    assert "no tensor that can be checked" in caplog.text
    assert send(mod, honest(0), context)[1]
    assert send(guard_mod(action="warn"), {"bias": np.zeros(4, np.float32)}, node())[1]


def test_a_model_that_is_not_finite_is_never_compared_with(caplog):
    mod, context = guard_mod(action="warn"), node()
    broken = {k: v * np.float32(np.nan) for k, v in honest(0).items()}
    with caplog.at_level(logging.WARNING, "fedaudit"):
        assert send(mod, broken, context)[1]
    assert "not_finite" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.WARNING, "fedaudit"):
        assert send(mod, honest(0), context)[1]
    assert not caplog.text


def test_evaluation_is_not_guarded():
    assert send(guard_mod(), bad(), node(), kind="evaluate")[1]


def test_a_strategy_goes_on_without_those_who_refuse():
    """Node 0 guards, node 1 does not: the planted model comes back from node 1 alone."""
    trained = []

    def only_first(message, context, call_next):
        if context.node_config["partition-id"] == 0:
            return guard_mod()(message, context, call_next)
        return call_next(message, context)

    app = ClientApp(mods=[only_first])

    @app.train()
    def train(message, context):
        trained.append(context.node_config["partition-id"])
        records = {
            "arrays": message.content["arrays"],
            "metrics": MetricRecord({"num-examples": 1}),
        }
        return Message(RecordDict(records), reply_to=message)

    server = ServerApp()

    @server.main()
    def main(grid, context):
        start = ArrayRecord({k: Array(v) for k, v in bad().items()})
        strategy = FedAvg(fraction_evaluate=0.0)
        strategy.start(grid=grid, initial_arrays=start, num_rounds=2, timeout=600)

    run_in_process(server, app, nodes=2)
    assert trained == [1, 1]


# -- local DP at the data --------------------------------------------------------------------------

GRR = {"mechanism": "grr", "epsilon": 2.0, "alphabet": 4}


def test_one_draw_for_all_rounds_and_processes(tmp_path):
    x = np.random.default_rng(0).random((300, 2, 3)).astype(np.float32)
    one = protect_data(x, tmp_path / "a" / "kept.npz", **GRR)
    again = protect_data(x, tmp_path / "a" / "kept.npz", **GRR)
    np.testing.assert_array_equal(one, again)
    assert one.shape == x.shape
    assert one.dtype == np.float32
    other = protect_data(x, tmp_path / "b.npz", **GRR)
    assert (one != other).mean() > 0.1  # from the operating system
    assert list((tmp_path / "a").iterdir()) == [tmp_path / "a" / "kept.npz"]


def test_values_follow_the_mechanism(tmp_path):
    """A feature keeps its level with probability e^eps / (e^eps + 3)."""
    x = np.zeros((20_000, 1))
    out = protect_data(x, tmp_path / "kept.npz", **GRR)
    kept = np.exp(2.0) / (np.exp(2.0) + 3)
    assert (out == 0).mean() == pytest.approx(kept, abs=0.01)
    raw = (tmp_path / "kept.npz").read_bytes()
    held = np.random.default_rng(1).random((10, 4))
    protect_data(held, tmp_path / "held.npz", **GRR)
    assert held.tobytes() not in (tmp_path / "held.npz").read_bytes()
    assert raw


def test_a_second_draw_is_refused(tmp_path):
    x = np.random.default_rng(0).random((20, 3))
    file = tmp_path / "kept.npz"
    protect_data(x, file, **GRR)
    with pytest.raises(DataError, match="other records"):
        protect_data(x + 1e-6, file, **GRR)
    with pytest.raises(DataError, match="other settings"):
        protect_data(x, file, **{**GRR, "epsilon": 3.0})
    with pytest.raises(DataError, match="other shape"):
        protect_data(x[:5], file, **GRR)
    file.write_bytes(b"torn")
    with pytest.raises(DataError, match="does not hold a draw"):
        protect_data(x, file, **GRR)
    with pytest.raises(DataError, match="do not have any"):
        protect_data(np.zeros((3, 2), int), tmp_path / "x.npz", **GRR)


def test_the_guarantee_is_that_of_the_protection():
    found = local_guarantee(3, **GRR)
    assert found.epsilon == pytest.approx(LocalDP(**GRR).of(3).worst_case_epsilon())
    assert found.epsilon == pytest.approx(6.0)
