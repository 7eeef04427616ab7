import datetime
import math

import numpy as np
import pytest

from fedaudit.errors import NotObservable, TraceError, UsageError
from fedaudit.trace import PUBLIC, SERVER, Trace
from fedaudit.trace.examination import examine
from fedaudit.trace.purge import purge

flwr = pytest.importorskip("flwr", reason='Flower is not installed: pip install "fedaudit[flower]"')

from flwr.app import Array, ArrayRecord, RecordDict  # noqa: E402
from flwr.serverapp import strategy as strategies  # noqa: E402

from fedaudit.flower import RecordingStrategy, record_mod, run_in_process  # noqa: E402
from fedaudit.recorders.flower.arrays import answer_of, weight_of  # noqa: E402


def fixed_dp(inner):
    return strategies.DifferentialPrivacyServerSideFixedClipping(inner, 0.3, 1.0, 4)


def adaptive_dp(inner):
    return strategies.DifferentialPrivacyServerSideAdaptiveClipping(inner, 0.3, 4)


STRATEGIES = {
    "fedavg": strategies.FedAvg,
    "fedadam": lambda: strategies.FedAdam(eta=0.1, tau=0.01),
    "fedavgm": lambda: strategies.FedAvgM(server_learning_rate=0.7, server_momentum=0.5),
    "krum": lambda: strategies.Krum(num_malicious_nodes=1),
    "median": strategies.FedMedian,
    "dp": lambda: fixed_dp(strategies.FedAvg()),
    "adaptive dp": lambda: adaptive_dp(strategies.FedAvg()),
}


def arrays_of(result):
    return {k: a.numpy() for k, a in result.arrays.items()}


def same(a, b):
    assert list(a) == list(b)
    for name in a:
        assert a[name].dtype == b[name].dtype
        assert a[name].tobytes() == b[name].tobytes(), name


@pytest.mark.parametrize("name", STRATEGIES)
def test_recording_changes_no_bit_of_the_result(name, apps, tmp_path):
    plain = apps.run(STRATEGIES[name]())
    recorded = apps.run(RecordingStrategy(STRATEGIES[name](), tmp_path / "trace"))
    same(arrays_of(plain), arrays_of(recorded))
    assert plain.train_metrics_clientapp == recorded.train_metrics_clientapp
    assert plain.evaluate_metrics_clientapp == recorded.evaluate_metrics_clientapp
    trace = Trace.open(tmp_path / "trace")
    assert trace.manifest.complete
    assert len(trace.rounds) == 3
    released = trace.seen_by(PUBLIC).released()
    expected = trace.layout.flatten(arrays_of(recorded))
    np.testing.assert_array_equal(released, expected)


def test_a_trace_holds_what_every_client_sent(apps, one_step, tmp_path):
    apps.run(RecordingStrategy(strategies.FedAvg(), tmp_path / "trace", name_by=None))
    trace = Trace.open(tmp_path / "trace")
    assert trace.layout.names == ("layer.weight", "layer.bias")
    view = trace.seen_by(SERVER)
    model = {"layer.weight": np.zeros((1, 5)), "layer.bias": np.zeros(1)}
    for number in trace.rounds:
        updates = view.updates(number)
        nodes = [int(s.removeprefix("node-")) - 1000 for s in updates.senders]
        assert sorted(nodes) == [0, 1, 2, 3]
        np.testing.assert_array_equal(updates.weights, [12 + i for i in nodes])
        sent = [one_step({k: np.float32(v) for k, v in model.items()}, i) for i in nodes]
        for i, own in enumerate(sent):
            expected = trace.layout.flatten(own) - trace.layout.flatten(model)
            np.testing.assert_allclose(updates.rows[i], expected, atol=1e-6)
        shares = updates.weights / updates.weights.sum()
        model = {k: sum(s * own[k] for s, own in zip(shares, sent, strict=True)) for k in model}
    assert trace.manifest.federation["clients"] == [f"node-{1000 + i}" for i in range(4)]
    assert trace.manifest.federation["aggregation"] == "FedAvg"
    told = view.messages(2)[0]
    assert told.sender == SERVER
    assert told.metadata["server-round"] == 2
    np.testing.assert_allclose(
        trace.seen_by(PUBLIC).released(), trace.layout.flatten(model), atol=1e-6
    )


def test_the_recording_may_stand_inside_a_wrapper_and_does_not_know_what_is_released(
    apps, tmp_path
):
    plain = apps.run(fixed_dp(strategies.FedAvg()))
    inside = RecordingStrategy(strategies.FedAvg(), tmp_path / "trace")
    recorded = apps.run(fixed_dp(inside))
    same(arrays_of(plain), arrays_of(recorded))
    inside.close()
    trace = Trace.open(tmp_path / "trace")
    assert trace.manifest.complete
    norms = np.linalg.norm(trace.seen_by(SERVER).updates(1).rows, axis=1)
    assert (norms < 1.001).all()  # what the wrapper handed on: clipped
    with pytest.raises(NotObservable):
        trace.seen_by(PUBLIC).released()


def test_outside_of_a_wrapper_it_sees_what_the_server_sees(apps, tmp_path):
    strategy = RecordingStrategy(fixed_dp(strategies.FedAvg()), tmp_path / "trace")
    apps.run(strategy)
    trace = Trace.open(tmp_path / "trace")
    norms = np.linalg.norm(trace.seen_by(SERVER).updates(1).rows, axis=1)
    assert (norms > 1.001).any()
    (declared,) = trace.manifest.declared
    assert declared["name"] == "central_dp"
    assert declared["unit"] == "client"
    assert declared["noise_multiplier"] == 0.3
    assert "server" in declared["trust"]


def test_a_strategy_with_a_loop_of_its_own_is_recorded(apps, tmp_path):
    class Own(strategies.FedAvg):
        def start(self, grid, initial_arrays, num_rounds, **settings):
            # trains only, and twice as long
            result = strategies.Result()
            arrays = initial_arrays
            for number in range(1, 2 * num_rounds + 1):
                sent = self.configure_train(number, arrays, flwr.app.ConfigRecord(), grid)
                arrays, _ = self.aggregate_train(number, grid.send_and_receive(sent))
            result.arrays = arrays
            return result

    plain = apps.run(Own(), rounds=2)
    inner = Own()
    recorded = apps.run(RecordingStrategy(inner, tmp_path / "trace"), rounds=2)
    same(arrays_of(plain), arrays_of(recorded))
    assert len(Trace.open(tmp_path / "trace").rounds) == 4
    assert "configure_train" not in vars(inner)


def test_a_strategy_may_number_its_rounds_as_it_likes_and_leave_one(apps, tmp_path):
    class Own(strategies.FedAvg):
        def start(self, grid, initial_arrays, num_rounds, **settings):
            result, arrays = strategies.Result(), initial_arrays
            for number in (0, 5, 7):
                sent = self.configure_train(number, arrays, flwr.app.ConfigRecord(), grid)
                if number == 5:
                    continue  # nobody is asked after all
                arrays, _ = self.aggregate_train(number, grid.send_and_receive(sent))
            result.arrays = arrays
            return result

    plain = apps.run(Own())
    recorded = apps.run(RecordingStrategy(Own(), tmp_path / "t"))
    same(arrays_of(plain), arrays_of(recorded))
    trace = Trace.open(tmp_path / "t")
    assert [a.arrived for a in examine(trace).by_round.values()] == [4, 0, 4]


def test_partial_participation(apps, tmp_path):
    strategy = strategies.FedAvg(fraction_train=0.5, min_train_nodes=2)
    apps.run(RecordingStrategy(strategy, tmp_path / "trace"), rounds=4, seed=5)
    trace = Trace.open(tmp_path / "trace")
    view = trace.seen_by(SERVER)
    seen = [set(view.updates(n).senders) for n in trace.rounds]
    assert all(len(s) == 2 for s in seen)
    assert len(set.union(*seen)) > 2
    # those who were not asked are part of the federation all the same
    assert len(trace.manifest.federation["clients"]) == 4


def test_counters_are_kept_as_whole_numbers_and_pass_untouched(apps, tmp_path):
    plain = apps.run(strategies.FedAvg(), counter=True)
    strategy = RecordingStrategy(strategies.FedAvg(), tmp_path / "trace")
    recorded = apps.run(strategy, counter=True)
    same(arrays_of(plain), arrays_of(recorded))
    trace = Trace.open(tmp_path / "trace")
    assert trace.manifest.layouts["integers"].names == ("norm.num_batches_tracked",)
    assert trace.layout.names == ("layer.weight", "layer.bias")
    view = trace.seen_by(SERVER)
    for number in trace.rounds:
        for i, m in view.indexed(number):
            if m.sender != SERVER:
                assert view.payload(number, i, layout="integers")[0] == 3 * number


def test_a_node_that_fails_is_on_record(apps, tmp_path):
    def behave(partition, number, out):
        if partition == 1 and number == 2:
            raise RuntimeError("out of memory")
        return out

    plain = apps.run(strategies.FedAvg(), behave=behave)
    recorded = apps.run(RecordingStrategy(strategies.FedAvg(), tmp_path / "t"), behave=behave)
    same(arrays_of(plain), arrays_of(recorded))
    trace = Trace.open(tmp_path / "t")
    view = trace.seen_by(SERVER)
    assert [len(view.updates(n).rows) for n in trace.rounds] == [4, 3, 4]
    (failed,) = [m for m in trace.messages(2) if "failed" in m.notes]
    assert failed.sender == "node-1001"
    assert "out of memory" in failed.notes["failed"]
    assert not failed.parts


def test_replies_of_other_shapes_are_refused_by_name_and_the_round_is_kept(apps, tmp_path):
    def behave(partition, number, out):
        if partition == 2 and number == 2:
            return {**out, "layer.weight": np.zeros((2, 5), dtype=np.float32)}
        return out

    plain = apps.run(strategies.FedAvg(), behave=behave)  # the mean is taken all the same
    strategy = RecordingStrategy(strategies.FedAvg(), tmp_path / "t")
    with pytest.warns(UserWarning, match="not recorded: layer.weight of shape"):
        recorded = apps.run(strategy, behave=behave)
    same(arrays_of(plain), arrays_of(recorded))
    trace = Trace.open(tmp_path / "t")
    assert len(trace.seen_by(SERVER).updates(2).rows) == 3
    (refused,) = [m for m in trace.messages(2) if "refused" in m.notes]
    assert refused.notes["refused"] == "layer.weight of shape (2, 5), the model has (1, 5)"
    assert refused.size == 2 * 5 * 4 + 4
    # from here on the model has the other shape
    assert all("refused" in m.notes and not m.parts for m in trace.messages(3))


def test_a_strategy_that_raises_leaves_the_round_that_it_could_not_use(apps, tmp_path):
    class Picky(strategies.FedAvg):
        def aggregate_train(self, server_round, replies):
            if server_round == 2:
                raise ValueError("cannot use these")
            return super().aggregate_train(server_round, replies)

    with pytest.raises(ValueError, match="cannot use these"):
        apps.run(RecordingStrategy(Picky(), tmp_path / "t"))
    trace = Trace.open(tmp_path / "t")
    assert not trace.manifest.complete
    assert len(trace.seen_by(SERVER).updates(2).rows) == 4


def test_losses_that_are_not_finite_do_not_stop_a_run(apps, tmp_path):
    strategy = RecordingStrategy(strategies.FedAvg(), tmp_path / "t")
    apps.run(strategy, metrics={"loss": float("nan"), "history": [1.0, 2.0]})
    replies = [m for m in Trace.open(tmp_path / "t").messages(1) if m.sender != SERVER]
    assert replies[0].metadata["loss"] == "nan"
    assert replies[0].metadata["history"] == "list of 2"


class Meddling:
    """A grid that delivers replies twice, late, or not at all."""

    def __init__(self, grid, deliver):
        self._grid, self._deliver, self._round = grid, deliver, 0

    def __getattr__(self, name):
        return getattr(self._grid, name)

    def send_and_receive(self, messages, *, timeout=None):
        messages = list(messages)
        replies = list(self._grid.send_and_receive(messages, timeout=timeout))
        if messages and messages[0].metadata.message_type == "train":
            self._round += 1
            return self._deliver(self._round, replies)
        return replies


def test_a_node_that_answers_twice_is_on_record_twice(apps, tmp_path):
    def twice(number, replies):
        return [*replies, replies[0]] if number == 2 else replies

    strategy = RecordingStrategy(strategies.FedAvg(), tmp_path / "t")
    apps.run(strategy, grids=lambda grid: Meddling(grid, twice))
    replies = [m for m in Trace.open(tmp_path / "t").messages(2) if m.sender != SERVER]
    again = [m for m in replies if m.notes.get("again")]
    assert len(replies) == 5
    assert [m.sender for m in again] == [replies[0].sender]
    assert again[0].parts == replies[0].parts


def test_a_late_reply_is_measured_against_the_model_it_was_trained_from(apps, one_step, tmp_path):
    kept = []

    def late(number, replies):
        if number == 1:
            kept.append(next(r for r in replies if r.metadata.src_node_id == 1003))
            return [r for r in replies if r is not kept[0]]
        return [*replies, kept.pop()] if number == 2 else replies

    strategy = RecordingStrategy(strategies.FedAvg(), tmp_path / "t")
    apps.run(strategy, grids=lambda grid: Meddling(grid, late))
    trace = Trace.open(tmp_path / "t")
    view = trace.seen_by(SERVER)
    silent = [m for m in trace.messages(1) if m.notes.get("failed") == "no answer in time"]
    assert [m.sender for m in silent] == ["node-1003"]
    updates = view.updates(2)
    index = {int(i): at for at, i in enumerate(updates.messages)}
    (where,) = [i for i, m in enumerate(trace.messages(2)) if m.notes.get("late")]
    zero = {"layer.weight": np.zeros((1, 5), np.float32), "layer.bias": np.zeros(1, np.float32)}
    np.testing.assert_allclose(
        updates.rows[index[where]], trace.layout.flatten(one_step(zero, 3)), atol=1e-6
    )
    assert len(updates.rows) == 5


def test_a_folder_is_not_used_twice_and_rounds_do_not_start_again(apps, tmp_path):
    strategy = RecordingStrategy(strategies.FedAvg(), tmp_path / "t")
    apps.run(strategy, rounds=2)
    apps.run(strategy, rounds=2)  # goes on, unrecorded: the first start's models are not lost
    first = Trace.open(tmp_path / "t")
    assert len(first.rounds) == 2
    assert "does not follow" in first.manifest.federation["recording_stopped"]
    with pytest.raises(TraceError, match="already holds a trace"):
        RecordingStrategy(strategies.FedAvg(), tmp_path / "t")
    again = RecordingStrategy(strategies.FedAvg(), tmp_path / "t", resume=True)
    apps.run(again, rounds=2)
    apps.run(again, rounds=1)
    trace = Trace.open(tmp_path / "t")
    assert len(trace.rounds) == 5
    assert trace.manifest.complete


@pytest.mark.parametrize(
    "given",
    [
        {"dtype": "fp16"},
        {"retention": "30 dys"},
        {"purpose": 5},
        {"limits": {"every": 2}},
        {"sends": "modle"},
        {"stop": True},
    ],
)
def test_wrong_options_are_refused_when_the_strategy_is_made(given, tmp_path):
    with pytest.raises(UsageError):
        RecordingStrategy(strategies.FedAvg(), tmp_path / "t", **given)


def test_a_pattern_that_fits_no_tensor_is_refused_before_anything_is_sent(apps, tmp_path):
    with pytest.raises(UsageError, match="no tensor matches"):
        apps.run(RecordingStrategy(strategies.FedAvg(), tmp_path / "t", tensors="*.wieght"))
    assert not (tmp_path / "t" / "manifest.json").exists()


def test_a_link_that_does_not_name_its_nodes_ends_no_run(apps, tmp_path, monkeypatch, caplog):
    class Silent:
        def __init__(self, grid):
            self._grid, self.asked = grid, 0

        def __getattr__(self, name):
            return getattr(self._grid, name)

        def get_node_ids(self):
            self.asked += 1
            if self.asked > 2:  # the strategy has sampled; the recorder asks once more
                raise ConnectionError("gone for a moment")
            return self._grid.get_node_ids()

    class Sampling(strategies.FedAvg):
        def configure_train(self, server_round, arrays, config, grid):
            grid.asked = -9  # whatever Flower asks is answered
            messages = list(super().configure_train(server_round, arrays, config, grid))
            grid.asked = 9
            return messages

        def start(self, grid, *args, **settings):
            return super().start(Silent(grid), *args, **settings)

    strategy = RecordingStrategy(Sampling(fraction_evaluate=0.0), tmp_path / "t")
    apps.run(strategy, rounds=2)
    assert "gone for a moment" in caplog.text
    assert len(Trace.open(tmp_path / "t").rounds) == 2


def test_a_clients_recording_costs_the_same_in_every_round(apps, tmp_path, monkeypatch):
    """Each message continues the trace: hashing all rounds before it would add up."""

    def hashed(_file):
        raise AssertionError("an earlier round was read")

    monkeypatch.setattr("fedaudit.trace.store.sha256_of", hashed)
    apps.run(strategies.FedAvg(), mods=[record_mod(tmp_path)], rounds=3)
    (own, *_) = sorted(tmp_path.glob("run-*/node-*"))
    assert len(Trace.open(own, verify_hashes=False).rounds) == 3


def test_an_infinite_weight_ends_no_recording():
    assert [weight_of({"n": x}, "n") for x in (math.inf, math.nan, -1, True, 7)] == [1, 1, 1, 1, 7]


def test_a_record_that_cannot_be_read_is_a_note_whatever_the_fault():
    def broken(_record):
        raise RecursionError("deep")

    with pytest.MonkeyPatch.context() as m:
        m.setattr("fedaudit.recorders.flower.arrays.named", broken)
        found = answer_of(RecordDict({"arrays": ArrayRecord({"w": Array(np.zeros(3))})}), "arrays")
    assert found.lacks == "RecursionError: deep"
    assert found.size >= 24


def test_resuming_needs_the_same_model(apps, tmp_path):
    apps.run(RecordingStrategy(strategies.FedAvg(), tmp_path / "t"), rounds=1)
    again = RecordingStrategy(strategies.FedAvg(), tmp_path / "t", resume=True)
    with pytest.raises(TraceError, match="another experiment"):
        apps.run(again, rounds=1, counter=True)


def test_rounds_in_which_nobody_is_asked_keep_their_number(apps, tmp_path):
    class Sometimes(strategies.FedAvg):
        def configure_train(self, server_round, arrays, config, grid):
            if server_round == 1:
                return []
            return super().configure_train(server_round, arrays, config, grid)

    apps.run(RecordingStrategy(Sometimes(), tmp_path / "t"), rounds=3)
    trace = Trace.open(tmp_path / "t")
    assert [len(trace.messages(n)) for n in trace.rounds] == [0, 8, 9]


def test_records_beside_the_model_are_kept_apart(apps, tmp_path):
    """Control variates, as SCAFFOLD sends them: a second record of arrays in every reply."""
    from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp

    app = ClientApp()

    @app.train()
    def train(message, context):
        own = {k: a.numpy() + 1 for k, a in message.content["arrays"].items()}
        records = {
            "variates": ArrayRecord({"layer.bias": Array(np.full(1, 7, np.float32))}),
            "arrays": ArrayRecord({k: Array(a) for k, a in own.items()}),
            "metrics": MetricRecord({"num-examples": 2}),
        }
        return Message(RecordDict(records), reply_to=message)

    class Two(strategies.FedAvg):
        def aggregate_train(self, server_round, replies):
            return next(iter(replies)).content["arrays"], None

    results = []
    strategy = RecordingStrategy(Two(fraction_evaluate=0.0), tmp_path / "t")
    run_in_process(apps.server(strategy, results), app, 2)
    view = Trace.open(tmp_path / "t").seen_by(SERVER)
    np.testing.assert_array_equal(view.updates(2).rows, np.ones((2, 6)))
    i, m = next((i, m) for i, m in view.indexed(2) if m.sender != SERVER)
    assert sorted(m.parts) == ["model", "record-variates"]
    assert view.payload(2, i, layout="record-variates") == [7]


def test_adapters_keep_their_names(tmp_path):
    """The layout of get_peft_model_state_dict, as LoRA apps send it."""
    from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp

    names = [
        f"base_model.model.model.layers.{i}.self_attn.{p}_proj.lora_{m}.weight"
        for i in range(2)
        for p in "qv"
        for m in "AB"
    ]
    shapes = {n: (2, 8) if "lora_A" in n else (8, 2) for n in names}
    client, server = ClientApp(), ServerApp()

    @client.train()
    def train(message, context):
        out = {k: Array(a.numpy() + np.float32(0.5)) for k, a in message.content["arrays"].items()}
        told = MetricRecord({"num-examples": 2})
        return Message(RecordDict({"arrays": ArrayRecord(out), "m": told}), reply_to=message)

    @server.main()
    def main(grid, context):
        start = ArrayRecord({n: Array(np.zeros(s, np.float32)) for n, s in shapes.items()})
        strategy = RecordingStrategy(strategies.FedAvg(fraction_evaluate=0.0), tmp_path / "t")
        strategy.start(grid=grid, initial_arrays=start, num_rounds=2)

    run_in_process(server, client, 2)
    trace = Trace.open(tmp_path / "t")
    assert trace.layout.names == tuple(names)
    rows = trace.seen_by(SERVER).updates(2, "*.layers.1.*.lora_B.weight").rows
    np.testing.assert_array_equal(rows, np.full((2, 32), 0.5))


def test_selected_tensors_and_half_precision(apps, tmp_path):
    strategy = RecordingStrategy(
        strategies.FedAvg(),
        tmp_path / "t",
        tensors="*.weight",
        dtype="float16",
        purpose="audit of the pilot",
        retention="until 2027-01-31",
    )
    apps.run(strategy)
    trace = Trace.open(tmp_path / "t")
    assert trace.layout.names == ("layer.weight",)
    assert trace.layout.dtype == "float16"
    assert trace.seen_by(PUBLIC).released().shape == (5,)
    assert trace.manifest.purpose == "audit of the pilot"
    assert trace.manifest.retention == "until 2027-01-31"


def test_a_sketch_keeps_angles_and_nothing_else(apps, tmp_path):
    apps.run(RecordingStrategy(strategies.FedAvg(), tmp_path / "full"))
    apps.run(RecordingStrategy(strategies.FedAvg(), tmp_path / "t", sketch=6))
    full = Trace.open(tmp_path / "full").seen_by(SERVER).updates(2).rows
    trace = Trace.open(tmp_path / "t")
    assert trace.layout.names == ("sketch",)
    rows = trace.seen_by(SERVER).updates(2).rows
    # as wide as the model, a sketch is a change of signs: all angles stay
    np.testing.assert_allclose(rows @ rows.T, full @ full.T, rtol=1e-4)
    assert not np.allclose(np.abs(rows), 0)
    with pytest.raises(NotObservable):
        trace.seen_by(PUBLIC).released()
    with pytest.raises(UsageError, match="whole updates"):
        RecordingStrategy(strategies.FedAvg(), tmp_path / "x", sketch=5, tensors="*.weight")


def test_a_resumed_sketch_keeps_its_signs(apps, tmp_path):
    """A second process links its updates with those of the first."""
    full, path = tmp_path / "full", tmp_path / "t"
    for _ in range(2):
        apps.run(RecordingStrategy(strategies.FedAvg(), full, resume=True), rounds=1)
        apps.run(RecordingStrategy(strategies.FedAvg(), path, sketch=6, resume=True), rounds=1)
    seed = tmp_path / "t.sketch-seed"
    assert seed.stat().st_mode & 0o077 == 0
    assert seed.read_text().strip() not in (path / "manifest.json").read_text()
    one, two = (Trace.open(path).seen_by(SERVER).updates(n).rows for n in (1, 2))
    exact, again = (Trace.open(full).seen_by(SERVER).updates(n).rows for n in (1, 2))
    np.testing.assert_allclose(one @ two.T, exact @ again.T, rtol=1e-4)
    purge(path, datetime.date(2026, 1, 31))
    assert not seed.exists()
    apps.run(RecordingStrategy(strategies.FedAvg(), tmp_path / "new", sketch=6), rounds=1)
    assert not (tmp_path / "new.sketch-seed").exists()


def test_a_sketch_without_its_signs_is_not_resumed(apps, tmp_path):
    apps.run(RecordingStrategy(strategies.FedAvg(), tmp_path / "t", sketch=6), rounds=1)
    with pytest.raises(TraceError, match="cannot be continued") as refused:
        RecordingStrategy(strategies.FedAvg(), tmp_path / "t", sketch=6, resume=True)
    assert "resume=True from the first start" in refused.value.remedy
    (tmp_path / "t.sketch-seed").write_text("no number")
    again = RecordingStrategy(strategies.FedAvg(), tmp_path / "t", sketch=6, resume=True)
    with pytest.raises(TraceError, match="sketch-seed"):
        apps.run(again, rounds=1)


def test_a_mod_records_a_clients_own_messages(apps, tmp_path):
    plain = apps.run(strategies.FedAvg())
    mods = [record_mod(tmp_path / "mine")]
    recorded = apps.run(RecordingStrategy(strategies.FedAvg(), tmp_path / "t"), mods=mods)
    same(arrays_of(plain), arrays_of(recorded))
    whole = Trace.open(tmp_path / "t").seen_by("node-1002")
    own = Trace.open(tmp_path / "mine" / "run-1" / "node-1002").seen_by("node-1002")
    assert len(own.rounds) == 3
    for number in own.rounds:
        mine, theirs = own.updates(number), whole.updates(number)
        np.testing.assert_array_equal(mine.rows, theirs.rows)
        assert mine.senders == theirs.senders == ("node-1002",)
        assert mine.weights == theirs.weights


def test_a_mod_sees_what_leaves_after_the_mods_that_follow_it(apps, tmp_path):
    from flwr.clientapp.mod import LocalDpMod

    noise = LocalDpMod(clipping_norm=0.5, sensitivity=1.0, epsilon=1.0, delta=1e-5)
    mods = [record_mod(tmp_path / "out"), noise, record_mod(tmp_path / "in")]
    strategy = RecordingStrategy(strategies.FedAvg(), tmp_path / "t")
    apps.run(strategy, mods=mods)
    at = ("run-1", "node-1000")
    outside = Trace.open(tmp_path.joinpath("out", *at)).seen_by("node-1000").updates(1).rows
    inside = Trace.open(tmp_path.joinpath("in", *at)).seen_by("node-1000").updates(1).rows
    server = Trace.open(tmp_path / "t").seen_by(SERVER).updates(1, senders=["node-1000"]).rows
    np.testing.assert_array_equal(outside, server)
    assert not np.allclose(inside, server, atol=0.1)


def test_a_mod_keeps_failures(apps, tmp_path):
    def behave(partition, number, out):
        if partition == 1 and number == 2:
            raise RuntimeError("disk full")
        return out

    apps.run(strategies.FedAvg(), behave=behave, mods=[record_mod(tmp_path)])
    trace = Trace.open(tmp_path / "run-1" / "node-1001")
    assert len(trace.rounds) == 3
    assert "disk full" in trace.messages(2)[-1].notes["failed"]


def test_a_mod_that_cannot_record_lets_its_node_train(apps, tmp_path, caplog):
    plain = apps.run(strategies.FedAvg(), rounds=1)
    (tmp_path / "file").write_text("no folder")
    mods = [record_mod(tmp_path / "file")]
    recorded = apps.run(strategies.FedAvg(), rounds=1, mods=mods)
    same(arrays_of(plain), arrays_of(recorded))
    assert sum("training goes on" in r.message for r in caplog.records) == 4


def test_strategies_of_the_older_kind_are_pointed_to_their_recorder(tmp_path):
    from flwr.server.strategy import FedAvg

    with pytest.raises(UsageError, match="RecordingLegacyStrategy"):
        RecordingStrategy(FedAvg(), tmp_path / "t")


def test_the_wrapped_strategys_own_settings_are_reachable(tmp_path):
    strategy = RecordingStrategy(strategies.FedAvg(fraction_train=0.25), tmp_path / "t")
    assert strategy.fraction_train == 0.25
    with pytest.raises(AttributeError):
        strategy.no_such_thing  # noqa: B018
