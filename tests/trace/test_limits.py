"""A recording beside training by other software: threads, full disks, limits, bare imports."""

import functools
import logging
import resource
import subprocess
import sys
import threading
from contextlib import nullcontext

import numpy as np
import pytest

from fedaudit.errors import TraceError, UsageError
from fedaudit.trace import PUBLIC, SERVER, Recorder, Trace
from fedaudit.trace.examination import examine
from fedaudit.trace.limits import RecordingLimits
from fedaudit.trace.numbers import as_numbers

LIKE = {"w": np.zeros(2000, np.float32)}
STEADY = RecordingLimits(on_error="stop")


def played(recorder, rounds, clients=3):
    for number in range(rounds):
        with recorder.round() as messages:
            model = {"w": np.full(2000, number, np.float32)}
            for i in range(clients):
                messages.send("model", SERVER, f"c{i}", model)
            for i in range(clients):
                messages.send("delta", f"c{i}", SERVER, {"w": model["w"] + i}, weight=2.0)


def test_threads_may_send_at_once(tmp_path):
    recorder = Recorder(tmp_path, like=LIKE)
    senders = [f"c{i:02d}" for i in range(32)]
    with recorder.round() as messages:
        for name in senders:
            messages.send("model", SERVER, name, LIKE)
        threads = [
            threading.Thread(
                target=messages.send,
                args=("delta", name, SERVER, {"w": np.full(2000, i, np.float32)}),
            )
            for i, name in enumerate(senders)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    recorder.close()
    updates = Trace.open(tmp_path).seen_by(SERVER).updates(1)
    found = dict(zip(updates.senders, updates.rows[:, 7], strict=True))
    assert found == {name: float(i) for i, name in enumerate(senders)}


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
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))


@pytest.mark.parametrize("limits", [None, STEADY])
@small_files
def test_a_full_disk_is_the_callers_error_or_ends_the_recording(
    limits, tmp_path, full_disk, caplog
):
    recorder = Recorder(tmp_path, like=LIKE, limits=limits)
    played(recorder, 1)
    full_disk()
    if limits is None:
        with pytest.raises(TraceError, match="cannot write"):
            played(recorder, 1)
        return
    with caplog.at_level(logging.ERROR, "fedaudit.recorder"):
        played(recorder, 3)
    recorder.close()
    assert len(caplog.records) == 1
    assert "training goes on" in caplog.text
    trace = Trace.open(tmp_path)
    assert len(trace.rounds) == 1
    assert not trace.manifest.complete
    assert trace.manifest.federation["recording_stopped"] == recorder.stopped
    assert "stopped" in {p.code for p in examine(trace).problems}


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"x": np.zeros(3)}, "tensors that the trace does not know"),
        ({"w": np.full(2000, 1e6), "n": np.zeros(2)}, "does not fit float16"),
        ({"w": np.zeros(2000), "n": np.array([np.nan, 0.0])}, "does not fit int64"),
        ({"w": np.zeros(3), "n": np.zeros(2)}, "wrong shape"),
        ({"w": "many", "n": np.zeros(2)}, "w"),
        ({}, "without tensors"),
    ],
)
def test_one_payload_that_does_not_fit_leaves_those_of_the_others(given, why, tmp_path, caplog):
    like = LIKE | {"n": np.zeros(2, np.int64)}
    recorder = Recorder(tmp_path, like=like, dtype="float16", limits=STEADY)
    with caplog.at_level(logging.WARNING, "fedaudit.recorder"):
        for _ in range(2):
            with recorder.round() as messages:
                for name in ("c0", "c1", "c2"):
                    messages.send("model", SERVER, name, like)
                for name in ("c0", "c1", "c2"):
                    own = given if name == "c1" else {"w": np.ones(2000), "n": np.ones(2)}
                    messages.send("delta", name, SERVER, own, weight=3.0)
    recorder.close()
    trace = Trace.open(tmp_path)
    assert not recorder.stopped
    assert trace.manifest.complete
    assert examine(trace).whole
    for t in (1, 2):
        (odd,) = (m for m in trace.messages(t) if m.lost)
        assert (odd.sender, dict(odd.parts)) == ("c1", {})
        assert why in odd.notes["refused"]
        view = trace.seen_by(SERVER).updates(t)
        assert [*view.senders] == ["c0", "c2"]
        np.testing.assert_array_equal(view.rows, 1.0)
    assert len(caplog.records) == (2 if given else 0)
    assert all("delta from c1" in r.getMessage() for r in caplog.records)


def test_values_that_a_table_cannot_hold_are_named_and_end_no_steady_recording(tmp_path):
    recorder = Recorder(tmp_path, like=LIKE, limits=STEADY)
    with recorder.round() as messages:
        for weight, told in ((np.nan, {}), (2.0, {"loss": np.nan, "n": 5, "who": [1]})):
            messages.send("delta", f"c{len(told)}", SERVER, LIKE, weight=weight, metadata=told)
    assert not recorder.stopped
    unweighted, kept = Trace.open(tmp_path).messages(1)
    assert "weight nan" in unweighted.notes["refused"]
    assert (dict(kept.metadata), kept.notes["left out"]) == ({"n": 5}, "loss, who")
    assert kept.parts


def test_a_payload_that_does_not_fit_is_the_callers_error_and_an_empty_one_is_named(tmp_path):
    recorder = Recorder(tmp_path, like=LIKE)
    with pytest.raises(UsageError, match="does not know"), recorder.round() as messages:
        messages.send("delta", "c0", SERVER, {"x": np.zeros(3)})
    with recorder.round() as messages:
        messages.send("delta", "c0", SERVER, {})
        messages.send("delta", "c1", SERVER, None, size=9)
    empty, sealed = Trace.open(tmp_path).messages(1)
    assert "without tensors" in empty.notes["refused"]
    assert not sealed.notes


@pytest.mark.parametrize("declared", [{"nam": "dp"}, {"name": ""}, {"name": 3}, "dp"])
def test_a_declared_protection_needs_a_name(declared, tmp_path):
    with pytest.raises(UsageError, match="has no name"):
        Recorder(tmp_path / "t", like=LIKE, declared=[declared])
    assert not (tmp_path / "t").exists()


def test_whatever_goes_wrong_in_a_steady_recorder_stays_there(tmp_path, monkeypatch):
    """An error that nobody foresaw ends the recording, never the training beside it."""
    recorder = Recorder(tmp_path, like=LIKE, limits=STEADY)
    played(recorder, 1)
    monkeypatch.setattr("fedaudit.trace.recorder.write_round", lambda *_: {}["no such key"])
    played(recorder, 2)
    assert recorder.stopped == "KeyError: 'no such key'"
    assert Trace.open(tmp_path).manifest.federation["recording_stopped"] == recorder.stopped


def test_the_training_beside_a_steady_recorder_keeps_its_own_errors(tmp_path):
    recorder = Recorder(tmp_path, like=LIKE, limits=STEADY)
    with pytest.raises(KeyError), recorder.round():
        raise KeyError("training")
    played(recorder, 1)
    with pytest.raises(KeyError), recorder.last_round():
        raise KeyError("training")
    assert recorder.stopped == ""
    recorder.close()
    assert examine(Trace.open(tmp_path)).whole


@pytest.mark.parametrize("fault", ["full disk", "lost file", "no round"])
@small_files
def test_a_released_model_that_cannot_be_added_stops_a_steady_recording(
    fault, tmp_path, full_disk, caplog
):
    recorder = Recorder(tmp_path, like=LIKE, limits=STEADY)
    if fault != "no round":
        played(recorder, 1)
    if fault == "lost file":
        (tmp_path / "round-00001.safetensors").unlink()
    if fault == "full disk":
        full_disk()
    with recorder.last_round() as messages:
        messages.send("model", SERVER, PUBLIC, {"w": np.arange(2000.0)}, step=9)
    recorder.close()
    assert recorder.stopped
    assert len(caplog.records) == 1
    if fault == "full disk":  # the round is as it was
        trace = Trace.open(tmp_path)
        assert len(trace.seen_by(SERVER).updates(1).rows) == 3
        assert trace.manifest.federation["recording_stopped"] == recorder.stopped


def test_a_stopped_recording_keeps_nothing_in_memory(tmp_path):
    recorder = Recorder(tmp_path, like=LIKE, limits=STEADY)
    recorder.stop("the disk was full")
    with recorder.round() as messages:
        assert messages.put_once("model", np.zeros(2000, np.float32)) == -1
        assert messages.send("model", SERVER, "c0", LIKE) == -1
        assert messages.send_rows("delta", ["c0"], [SERVER], np.zeros((1, 2000)), step=1) == -1
    assert messages.messages == []
    assert messages._pieces() == {}


def test_the_released_model_is_kept_whichever_rounds_are(tmp_path):
    recorder = Recorder(tmp_path, like=LIKE, limits=RecordingLimits(every=3))
    played(recorder, 1)
    with recorder.round() as messages:
        messages.send("delta", "c0", SERVER, LIKE)
        messages.send("model", SERVER, PUBLIC, {"w": np.arange(2000.0)})
    recorder.close()
    trace = Trace.open(tmp_path)
    assert [bool(m.parts) for m in trace.messages(2)] == [False, True]
    np.testing.assert_array_equal(trace.seen_by(PUBLIC).released(), np.arange(2000))


def test_fractions_for_whole_numbers_are_rounded_and_noted(tmp_path):
    recorder = Recorder(tmp_path, like={**LIKE, "steps": np.zeros(2, np.int64)})
    with recorder.round() as messages:
        messages.send("model", SERVER, "c0", {**LIKE, "steps": np.array([1, 2])})
        messages.send("model", SERVER, "c1", {**LIKE, "steps": np.array([2.7, -0.6])})
    recorder.close()
    trace = Trace.open(tmp_path)
    assert [dict(m.notes) for m in trace.messages(1)] == [{}, {"rounded": "steps"}]
    np.testing.assert_array_equal(trace.seen_by("c1").payload(1, 1, layout="integers"), [3, -1])


def test_a_stopped_recording_can_be_continued(tmp_path):
    first = Recorder(tmp_path, like=LIKE, limits=STEADY)
    played(first, 1)
    first.stop("the disk was full")
    again = Recorder(tmp_path, like=LIKE, limits=STEADY, resume=True)
    played(again, 1)
    again.close()
    trace = Trace.open(tmp_path)
    assert len(trace.rounds) == 2
    assert not list(tmp_path.glob("*.part"))


def test_a_size_limit_ends_the_recording_before_it_is_exceeded(tmp_path):
    limits = RecordingLimits(most_bytes=100_000, on_error="stop")
    recorder = Recorder(tmp_path, like=LIKE, limits=limits)
    played(recorder, 10)
    size = sum(f.stat().st_size for f in tmp_path.glob("round-*"))
    assert 50_000 < size <= 100_000
    assert "size limit" in recorder.stopped


def test_rounds_without_payloads_keep_their_messages(tmp_path):
    some = Recorder(tmp_path / "some", like=LIKE, limits=RecordingLimits(every=3))
    whole = Recorder(tmp_path / "whole", like=LIKE)
    for recorder in (some, whole):
        played(recorder, 4)
        recorder.close()
    a, b = Trace.open(tmp_path / "some"), Trace.open(tmp_path / "whole")
    for number in b.rounds:
        kept = number in (1, 4)
        for m, n in zip(a.messages(number), b.messages(number), strict=True):
            assert (m.sender, m.weight, m.size) == (n.sender, n.weight, n.size)
            assert bool(m.parts) == kept
            assert ("left out" in m.notes) != kept
    assert examine(a).arrived == examine(b).arrived == 12
    np.testing.assert_array_equal(
        a.seen_by(SERVER).updates(4).rows, b.seen_by(SERVER).updates(4).rows
    )
    assert sum(r.size for r in a.manifest.rounds) < 0.7 * sum(r.size for r in b.manifest.rounds)


@pytest.mark.parametrize(
    "given",
    [
        {"every": 0},
        {"every": "5"},
        {"every": 1.5},
        {"most_bytes": 0},
        {"most_bytes": "1GB"},
        {"on_error": "ignore"},
    ],
)
def test_limits_without_a_meaning_are_refused(given):
    with pytest.raises(UsageError, match="cannot be kept"):
        RecordingLimits(**given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"like": {}}, "needs to know the tensors"),
        ({"like": "model.pt"}, "needs to know the tensors"),
        ({"limits": {"every": 2}}, "no limits of a recording"),
        ({"purpose": 5}, "purpose is not a text"),
        ({"dtype": "fp16"}, "not written in this dtype"),
        ({"retention": "30 dys"}, "cannot be read"),
        ({"tensors": "*.wieght"}, "no tensor matches"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_written(given, message, tmp_path):
    with pytest.raises(UsageError, match=message):
        Recorder(tmp_path / "t", **{"like": LIKE, **given})
    assert not (tmp_path / "t").exists()


@pytest.mark.parametrize("steady", [True, False])
def test_rounds_of_one_recording_do_not_overlap(steady, tmp_path):
    recorder = Recorder(tmp_path, like=LIKE, limits=STEADY if steady else None)
    played(recorder, 1)
    refused = nullcontext() if steady else pytest.raises(UsageError, match="open already")
    with refused, recorder.round(), recorder.round():
        pass
    assert ("open already" in recorder.stopped) == steady
    assert len(Trace.open(tmp_path).rounds) == 1
    if not steady:  # the error is the caller's, and the next round is a round
        played(recorder, 1)
        assert len(Trace.open(tmp_path).rounds) == 2


def test_a_message_after_its_round_is_refused_or_logged_and_never_lost_in_silence(tmp_path, caplog):
    recorder = Recorder(tmp_path / "a", like=LIKE)
    with recorder.round() as messages:
        messages.send("model", SERVER, "c0", LIKE)
    with pytest.raises(UsageError, match="after the end of its round"):
        messages.send("delta", "c0", SERVER, LIKE)
    recorder = Recorder(tmp_path / "b", like=LIKE, limits=STEADY)
    with recorder.round() as messages:
        messages.send("model", SERVER, "c0", LIKE)
    assert messages.send("delta", "c0", SERVER, LIKE) == -1
    assert "after the end of its round" in caplog.text
    played(recorder, 1)  # one straggler does not end the recording
    assert recorder.stopped == ""
    assert recorder.rounds == 2


def test_rows_that_do_not_fit_their_senders_stop_a_steady_recording(tmp_path):
    recorder = Recorder(tmp_path, like=LIKE, limits=STEADY)
    with recorder.round() as messages:
        rows = np.zeros((1, 2000), np.float32)
        assert messages.send_rows("delta", ["c0"], [SERVER, SERVER], rows, step=1) == -1
    assert "receivers do not fit the senders" in recorder.stopped


def test_continuing_by_lengths_reads_no_round_and_still_sees_a_short_one(tmp_path, monkeypatch):
    played(Recorder(tmp_path, like=LIKE), 2)
    with monkeypatch.context() as m:
        m.setattr("fedaudit.trace.store.sha256_of", lambda _: pytest.fail("a round was hashed"))
        played(Recorder(tmp_path, like=LIKE, resume="lengths"), 1)
    assert len(Trace.open(tmp_path).rounds) == 3
    file = tmp_path / "round-00002.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(TraceError, match="bytes"):
        Recorder(tmp_path, like=LIKE, resume="lengths")


def test_torch_tensors_of_every_real_dtype_are_recorded(tmp_path):
    torch = pytest.importorskip("torch")
    given = {
        "half": torch.tensor([0.5, 2.0], dtype=torch.float16),
        "brain": torch.tensor([0.5, -3.140625], dtype=torch.bfloat16),
        "tiny": torch.tensor([0.5, 2.0]).to(torch.float8_e4m3fn),
        "double": torch.tensor([0.1], dtype=torch.float64),
        "count": torch.tensor([3], dtype=torch.int32),
        "flag": torch.tensor([True]),
    }
    recorder = Recorder(tmp_path, like=given, dtype="float64")
    with recorder.round() as messages:
        messages.send("model", SERVER, "c0", given)
        messages.send("model", "c0", SERVER, given)
    recorder.close()
    trace = Trace.open(tmp_path)
    row = trace.layout.unflatten(trace.block(1)[0])
    assert row["brain"].tolist() == [0.5, -3.140625]
    assert row["tiny"].tolist() == [0.5, 2.0]
    assert row["double"].tolist() == [0.1]
    nothing = {"device": "meta"}  # a tensor without values
    for odd in ({"dtype": torch.complex64}, {"dtype": torch.int4}, {"dtype": torch.uint1}, nothing):
        with pytest.raises(UsageError, match="cannot hold") as refused:
            as_numbers("w", torch.empty(1, **odd))
        assert "leave it out" in str(refused.value)
    assert as_numbers("w", torch.eye(2).to_sparse()).tolist() == [[1, 0], [0, 1]]
    assert as_numbers("w", torch.tensor([1j]).conj().imag).tolist() == [-1.0]


BARE = """
import importlib.abc, sys
allowed = {"numpy", "safetensors", "fedaudit"}
class Block(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top not in allowed and top not in sys.stdlib_module_names:
            raise ModuleNotFoundError(f"{name} is not installed here", name=name)
sys.meta_path.insert(0, Block())
import numpy as np
from safetensors.numpy import load_file
from fedaudit import SERVER, Recorder, Trace
from fedaudit.trace.limits import RecordingLimits
import fedaudit.recorders.flower.declared
import fedaudit.stats.count_sketch
like = {"w": np.zeros(3, np.float32), "n": np.zeros(1, np.int64)}
limits = RecordingLimits(every=2, most_bytes=10**6, on_error="stop")
out = sys.argv[1]
recorder = Recorder(out, like=like, dtype="float16", retention="30 days", limits=limits)
for _ in range(2):
    with recorder.round() as messages:
        messages.send("model", SERVER, "a", like)
        messages.send("model", "a", SERVER, like)
recorder.close()
assert Trace.open(out).manifest.complete
assert load_file(f"{out}/round-00001.safetensors")["model"].dtype == np.float16
"""


def test_numpy_and_safetensors_are_enough_to_record(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", BARE, str(tmp_path / "trace")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_a_bare_installation_says_what_the_command_line_needs():
    blocked = BARE.partition("import numpy as np")[0] + "import runpy\nsys.argv = ['f', '--help']\n"
    done = subprocess.run(
        [sys.executable, "-c", blocked + "runpy.run_module('fedaudit', run_name='__main__')"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "bare installation" in done.stderr
    assert "Traceback" not in done.stderr
