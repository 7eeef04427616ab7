"""A recording that fails, is limited or breaks a policy: what happens to the run beside it."""

import functools
import io
import json
import resource

import numpy as np
import pytest

from fedaudit.errors import LimitBroken, UsageError
from fedaudit.trace import PUBLIC, SERVER, Trace
from fedaudit.trace.examination import examine
from fedaudit.trace.limits import RecordingLimits

flwr = pytest.importorskip("flwr", reason='Flower is not installed: pip install "fedaudit[flower]"')

from flwr.app import Array  # noqa: E402
from flwr.serverapp import strategy as strategies  # noqa: E402

from fedaudit.flower import RecordingStrategy  # noqa: E402
from fedaudit.recorders.flower.arrays import named  # noqa: E402


def values(result):
    return {k: a.numpy().tobytes() for k, a in result.arrays.items()}


def small_files(test):
    """Lifts the limit of `full_disk` when `test` ends.

    Before pytest reports, that is: what it prints to may be a longer file.
    """

    @functools.wraps(test)
    def limited(*args, **given):
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        try:
            return test(*args, **given)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    return limited


@pytest.fixture
def full_disk():
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (3000, hard))


@small_files
def test_a_full_disk_stops_the_recording_and_not_the_run(apps, tmp_path, full_disk, caplog):
    plain = apps.run(strategies.FedAvg())

    class Filling(strategies.FedAvg):
        def aggregate_train(self, server_round, replies):
            if server_round == 1:
                full_disk()
            return super().aggregate_train(server_round, replies)

    long = {"remark": 40.0, **{f"metric-{i:03d}": float(i) for i in range(200)}}
    recorded = apps.run(RecordingStrategy(Filling(), tmp_path / "t"), metrics=long)
    assert values(recorded) == values(plain)
    trace = Trace.open(tmp_path / "t")
    assert not trace.manifest.complete
    assert len(trace.rounds) == 1
    assert "cannot write" in trace.manifest.federation["recording_stopped"]
    assert "training goes on" in caplog.text
    health = examine(trace)
    assert "stopped" in {p.code for p in health.problems}
    assert any("recording stopped" in line for line in health.summary())
    assert not list((tmp_path / "t").glob("*.part"))


def test_numbers_too_large_for_their_dtype_leave_out_that_message_alone(apps, tmp_path):
    """The next model overflows too: it goes to every node, written by reference to the first."""

    def behave(partition, number, out):
        return {k: np.full_like(a, 1e6) for k, a in out.items()} if partition == 1 else out

    plain = apps.run(strategies.FedAvg(), behave=behave)
    strategy = RecordingStrategy(strategies.FedAvg(), tmp_path / "t", dtype="float16")
    assert values(apps.run(strategy, behave=behave)) == values(plain)
    trace = Trace.open(tmp_path / "t")
    assert trace.manifest.complete
    assert examine(trace).whole
    for t in trace.rounds:
        replies = [m for m in trace.messages(t) if m.receiver == SERVER]
        (odd,) = (m for m in replies if m.sender.endswith("1"))
        assert "does not fit float16" in odd.notes["refused"]
        assert odd.size > 0
        if t == 1:
            assert sum(bool(m.parts) for m in replies) == len(replies) - 1


def test_a_strategy_that_renames_arrays_is_recorded_until_then_and_the_names_are_told(
    apps, tmp_path
):
    class Renaming(strategies.FedAvg):
        def aggregate_train(self, server_round, replies):
            arrays, metrics = super().aggregate_train(server_round, replies)
            return type(arrays)({f"v{server_round}.{k}": a for k, a in arrays.items()}), metrics

    def behave(partition, number, out):
        return {f"v{number - 1}.{k}" if number > 1 else k: a for k, a in out.items()}

    class Renamed(dict):  # the training function asks for the first names
        def __missing__(self, key):
            return next(a for k, a in self.items() if k.endswith(key))

    with pytest.warns(UserWarning, match="not recorded"):
        apps.run(
            RecordingStrategy(Renaming(fraction_evaluate=0.0), tmp_path / "t"),
            behave=behave,
            view=Renamed,
            rounds=2,
        )
    trace = Trace.open(tmp_path / "t")
    assert len(trace.seen_by(SERVER).updates(1).rows) == 4
    problems = [p for p in examine(trace).problems if p.code == "not_kept"]
    # four models, four answers, and the model that is released
    assert [p.party for p in problems].count(PUBLIC) == 1
    assert len(problems) == 9
    assert all("v1.layer." in p.what or "v2.layer." in p.what for p in problems)


def test_dtypes_that_a_trace_cannot_hold_are_noted_and_do_not_stop_the_run(apps, tmp_path):
    def behave(partition, number, out):
        if (partition, number) == (1, 2):
            return {**out, "layer.bias": out["layer.bias"].astype(np.complex64)}
        return out

    class Real(strategies.FedAvg):
        def aggregate_train(self, server_round, replies):
            few = [r for r in replies if r.metadata.src_node_id != 1001]
            return super().aggregate_train(server_round, few)

    with pytest.warns(UserWarning, match="complex64"):
        apps.run(RecordingStrategy(Real(), tmp_path / "t"), behave=behave)
    trace = Trace.open(tmp_path / "t")
    assert trace.manifest.complete
    (odd,) = (m for m in trace.messages(2) if "refused" in m.notes)
    assert odd.sender == "node-1001"
    assert "complex64" in odd.notes["refused"]
    assert odd.size > 0


def test_a_first_model_of_another_dtype_is_refused_before_anything_is_sent(apps, tmp_path):
    class Complex(strategies.FedAvg):
        def configure_train(self, server_round, arrays, config, grid):
            odd = {k: Array(a.numpy().astype(np.complex64)) for k, a in arrays.items()}
            odd = flwr.app.ArrayRecord(odd)
            return super().configure_train(server_round, odd, config, grid)

    with pytest.raises(UsageError, match="complex64"):
        apps.run(RecordingStrategy(Complex(), tmp_path / "t"))


NUMBERS = (
    "float64", "float32", "float16", "int64", "int32", "int16", "int8",
    "uint32", "uint16", "uint8", "bool",
)  # fmt: skip


@pytest.mark.parametrize("dtype", NUMBERS)
def test_every_dtype_arrives_as_it_was(dtype):
    sent = np.array([[0, 1], [1, 0]]).astype(dtype)
    found = named({"w": Array(sent)})["w"]
    np.testing.assert_array_equal(found, sent)


def test_bfloat16_is_widened_exactly():
    """As NumPy writes an array of `ml_dtypes.bfloat16`: two bytes that it gives no meaning."""
    sent = np.array([1.0, -2.5, 3.140625, 1e30], np.float32)
    words = (sent.view(np.uint32) >> 16).astype(np.uint16)
    buffer = io.BytesIO()
    np.save(buffer, words.view("V2"), allow_pickle=False)
    array = Array(dtype="bfloat16", shape=(4,), stype="numpy.ndarray", data=buffer.getvalue())
    found = named({"w": array})["w"]
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, (words.astype(np.uint32) << 16).view(np.float32))


@pytest.mark.parametrize("dtype", ["complex64", "uint64", "<U3"])
def test_other_dtypes_are_refused_with_a_remedy(dtype):
    with pytest.raises(UsageError) as refused:
        named({"w": Array(np.zeros(2).astype(dtype))})
    assert "leave it out" in str(refused.value)


def test_the_last_round_is_written_once(apps, tmp_path, monkeypatch):
    import fedaudit.trace.recorder as recorder

    written = []
    inner = recorder.write_round
    monkeypatch.setattr(
        recorder, "write_round", lambda path, *a: (written.append(path.name), inner(path, *a))[1]
    )
    result = apps.run(RecordingStrategy(strategies.FedAvg(), tmp_path / "t"))
    assert written == [f"round-{n:05d}.safetensors" for n in (1, 2, 3)]
    trace = Trace.open(tmp_path / "t")
    last = trace.layout.flatten({k: a.numpy() for k, a in result.arrays.items()})
    np.testing.assert_array_equal(trace.seen_by(PUBLIC).released(), last)


def test_a_last_round_that_cannot_be_averaged_is_on_record(apps, tmp_path):
    class Failing(strategies.FedAvg):
        def aggregate_train(self, server_round, replies):
            if server_round == 3:
                raise RuntimeError("no average")
            return super().aggregate_train(server_round, replies)

    with pytest.raises(RuntimeError, match="no average"):
        apps.run(RecordingStrategy(Failing(), tmp_path / "t"))
    assert len(Trace.open(tmp_path / "t").seen_by(SERVER).updates(3).rows) == 4


def test_payloads_of_some_rounds_leave_all_messages(apps, tmp_path):
    limits = RecordingLimits(every=2)
    apps.run(RecordingStrategy(strategies.FedAvg(), tmp_path / "some", limits=limits), rounds=4)
    apps.run(RecordingStrategy(strategies.FedAvg(), tmp_path / "all"), rounds=4)
    some, whole = Trace.open(tmp_path / "some"), Trace.open(tmp_path / "all")
    for number in whole.rounds:
        a, b = some.messages(number), whole.messages(number)
        assert [(m.sender, m.weight, m.metadata, m.size) for m in a] == [
            (m.sender, m.weight, m.metadata, m.size) for m in b
        ]
    np.testing.assert_array_equal(
        some.seen_by(SERVER).updates(3).rows, whole.seen_by(SERVER).updates(3).rows
    )
    assert all(not m.parts for m in some.messages(2))
    np.testing.assert_array_equal(some.seen_by(PUBLIC).released(), whole.seen_by(PUBLIC).released())
    assert examine(some).arrived == examine(whole).arrived == 16


def test_a_path_may_name_the_run(apps, tmp_path):
    from flwr.server.strategy import FedAvg

    from fedaudit.flower import RecordingLegacyStrategy

    strategy = RecordingStrategy(strategies.FedAvg(), tmp_path / "trace-{run_id}")
    apps.run(strategy, rounds=1)
    assert strategy.path == tmp_path / "trace-1"
    assert len(Trace.open(tmp_path / "trace-1").rounds) == 1
    with pytest.raises(UsageError, match="run's number"):
        RecordingLegacyStrategy(FedAvg(), tmp_path / "trace-{run_id}")


# -- a policy -------------------------------------------------------------------------------------

POLICY = {"limit": [{"metric": "coverage.verdict", "forbid": ["leak"]}]}


def test_a_broken_limit_is_logged_once_and_the_run_goes_on(apps, tmp_path, caplog):
    plain = apps.run(strategies.FedAvg())
    caplog.clear()
    strategy = RecordingStrategy(strategies.FedAvg(), tmp_path / "t", policy=POLICY)
    assert values(apps.run(strategy)) == values(plain)
    said = [r.message for r in caplog.records if "breaks a limit" in r.message]
    assert len(said) == 1
    assert "parameter tensors in the clear" in said[0]
    assert Trace.open(tmp_path / "t").manifest.complete


def test_a_broken_limit_stops_the_federation_with_the_finding(apps, tmp_path):
    strategy = RecordingStrategy(strategies.FedAvg(), tmp_path / "t", policy=POLICY, stop=True)
    with pytest.raises(LimitBroken, match="round 1 breaks a limit") as stopped:
        apps.run(strategy)
    assert "parameter tensors in the clear" in str(stopped.value)
    trace = Trace.open(tmp_path / "t")
    assert (len(trace.rounds), trace.manifest.complete) == (1, True)


def test_an_epsilon_is_spent_round_by_round(apps, tmp_path):
    inner = strategies.DifferentialPrivacyServerSideFixedClipping(strategies.FedAvg(), 2.0, 1.0, 4)
    policy = {"limit": [{"metric": "epsilon", "at_most": 4.0}]}
    strategy = RecordingStrategy(inner, tmp_path / "t", policy=policy, stop=True)
    with pytest.raises(LimitBroken, match="breaks a limit") as stopped:
        apps.run(strategy, rounds=8)
    spent = Trace.open(tmp_path / "t")
    assert 1 < len(spent.rounds) < 8
    assert "epsilon" in str(stopped.value)
    assert json.dumps(spent.manifest.federation)
