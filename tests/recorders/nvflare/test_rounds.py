"""Tasks and answers of a job as rounds of a trace."""

import threading

import numpy as np
import pytest

from fedaudit import PUBLIC, SERVER, Trace
from fedaudit.errors import TraceError
from fedaudit.recorders.nvflare.messages import Tensors
from fedaudit.recorders.nvflare.rounds import JobRounds
from fedaudit.trace.examination import examine
from fedaudit.trace.limits import RecordingLimits
from fedaudit.trace.schema import FAILED, JOINED, LATE, LEFT_OUT, REFUSED, ROUNDED

KEEP = {"tensors": "*", "dtype": None, "purpose": "", "retention": ""}


def content(value, kind="model", weight=1.0, shape=(2,)):
    arrays = {"w": np.full(shape, value, np.float32)}
    return Tensors(kind=kind, arrays=arrays, weight=weight, size=4 * shape[0])


@pytest.fixture
def log():
    return []


@pytest.fixture
def rounds(tmp_path, log):
    return JobRounds(tmp_path / "trace", {"engine": "nvflare"}, KEEP, log.append)


def play(rounds, number, model, answers):
    for client in answers:
        rounds.sent(number, client, content(model))
    for client, answer in answers.items():
        if answer is not None:
            rounds.answered(number, client, answer)


def test_naive_updates_are_answers_minus_models(rounds, tmp_path):
    play(rounds, 0, 0.0, {"a": content(1.0), "b": content(3.0, weight=3.0)})
    play(rounds, 1, 2.5, {"a": content(3.0), "b": content(0.5, kind="delta")})
    rounds.close({"w": np.full(2, 9.0, np.float32)})
    trace = Trace.open(tmp_path / "trace")
    view = trace.seen_by(SERVER)
    np.testing.assert_allclose(view.updates(1).rows[:, 0], [1.0, 3.0])
    np.testing.assert_allclose(view.updates(2).rows[:, 0], [0.5, 0.5])
    assert [*view.updates(1).weights] == [1.0, 3.0]
    assert view.released()[0] == 9.0
    assert trace.manifest.complete


def test_who_is_silent_fails_or_is_late_is_noted(rounds, tmp_path):
    play(rounds, 0, 0.0, {"a": content(1.0), "b": None, "c": None})
    rounds.answered(0, "c", None, "EXECUTION_EXCEPTION")
    play(rounds, 1, 1.0, {"a": content(2.0)})
    rounds.answered(0, "b", content(1.0))
    play(rounds, 2, 1.0, {"d": content(2.0)})
    rounds.close()
    trace = Trace.open(tmp_path / "trace")
    first, second, third = (
        {m.sender: m.notes for m in trace.messages(t) if m.sender != SERVER} for t in trace.rounds
    )
    assert first["c"][FAILED] == "EXECUTION_EXCEPTION"
    assert FAILED in first["b"]
    assert second["b"][LATE]
    assert third["d"][JOINED]


def test_another_architecture_is_refused_by_name(rounds, tmp_path):
    play(rounds, 0, 0.0, {"a": content(1.0, shape=(3,)), "b": content(1.0)})
    rounds.close()
    notes = {m.sender: m.notes for m in Trace.open(tmp_path / "trace").messages(1)}
    assert "(3,)" in notes["a"][REFUSED]
    assert REFUSED not in notes["b"]


def test_numbers_too_large_for_their_dtype_leave_out_that_answer_alone(tmp_path, log):
    keep = {**KEEP, "dtype": "float16", "limits": RecordingLimits(on_error="stop")}
    rounds = JobRounds(tmp_path / "trace", {}, keep, log.append)
    for number in range(2):
        play(rounds, number, 0.0, {"a": content(1e6), "b": content(1.0)})
    rounds.close()
    trace = Trace.open(tmp_path / "trace")
    assert trace.manifest.complete
    assert not log
    for t in (1, 2):
        (odd,) = (m for m in trace.messages(t) if m.notes)
        assert (odd.sender, "does not fit float16" in odd.notes[REFUSED]) == ("a", True)
        assert [*trace.seen_by(SERVER).updates(t).senders] == ["b"]


def test_an_occupied_folder_and_patterns_that_fit_nothing_are_told_before_any_answer(tmp_path, log):
    (tmp_path / "manifest.json").write_text("{}")
    occupied = JobRounds(tmp_path, {}, KEEP, log.append)
    occupied.begin()
    assert "already holds a trace" in occupied.stopped
    typo = JobRounds(tmp_path / "t", {}, {**KEEP, "tensors": "convv*"}, log.append)
    typo.begin()
    assert not typo.stopped
    typo.sent(0, "a", content(0.0))
    assert "convv*" in typo.stopped
    play(typo, 0, 0.0, {"a": content(1.0)})
    typo.close()
    assert len(log) == 2
    assert all("the job goes on" in line for line in log)


def test_a_server_and_a_site_that_go_on_in_the_same_memory_change_no_recording(rounds, tmp_path):
    model, answer = np.zeros(2, np.float32), np.ones(2, np.float32)
    rounds.sent(0, "a", Tensors(arrays={"w": model}, size=8))
    rounds.sent(0, "b", Tensors(arrays={"w": model}, size=8))
    rounds.answered(0, "a", Tensors(arrays={"w": answer}, size=8))
    model += 5.0
    answer *= 3.0
    rounds.close()
    trace = Trace.open(tmp_path / "trace")
    view = trace.seen_by(SERVER)
    np.testing.assert_array_equal(view.received(1, "b"), [0.0, 0.0])
    np.testing.assert_array_equal(view.updates(1).rows, [[1.0, 1.0]])
    assert len(trace.block(1)) == 2  # one model, one answer


def test_a_job_of_which_nothing_can_be_recorded_says_so(rounds, log):
    rounds.sent(0, "a", Tensors(kind="masked", size=50, lacks="homomorphically encrypted"))
    rounds.close()
    assert "cannot be recorded" in log[0]
    assert "homomorphically encrypted" in log[0]


def test_encrypted_answers_are_masked(rounds, tmp_path):
    play(rounds, 0, 0.0, {"a": Tensors(kind="masked", size=50, lacks="encrypted")})
    rounds.close()
    (answer,) = (m for m in Trace.open(tmp_path / "trace").messages(1) if m.sender == "a")
    assert (answer.kind, answer.size, answer.parts) == ("masked", 50, {})


def test_answers_from_many_threads_all_arrive(rounds, tmp_path):
    clients = [f"c{i:02d}" for i in range(24)]
    for client in clients:
        rounds.sent(0, client, content(0.0))
    threads = [
        threading.Thread(target=rounds.answered, args=(0, c, content(float(i))))
        for i, c in enumerate(clients)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rounds.close()
    updates = Trace.open(tmp_path / "trace").seen_by(SERVER).updates(1)
    found = dict(zip(updates.senders, updates.rows[:, 0], strict=True))
    assert found == {c: float(i) for i, c in enumerate(clients)}


def test_a_full_disk_stops_the_recording_and_not_the_job(rounds, tmp_path, log, monkeypatch):
    play(rounds, 0, 0.0, {"a": content(1.0)})
    play(rounds, 1, 1.0, {"a": content(2.0)})  # writes round 1

    def full(*_args, **_kwargs):
        raise TraceError("no space left", expected="space", got="none", remedy="free some")

    monkeypatch.setattr("fedaudit.trace.recorder.RoundWriter.send", full)
    play(rounds, 2, 2.0, {"a": content(3.0)})
    play(rounds, 3, 3.0, {"a": content(4.0)})
    rounds.close()
    assert len(log) == 1
    assert "the job goes on" in log[0]
    trace = Trace.open(tmp_path / "trace")
    assert (len(trace.rounds), trace.manifest.complete) == (1, False)
    assert "no space left" in trace.manifest.federation["recording_stopped"]


def test_after_every_round_a_watch_may_look(rounds, tmp_path):
    seen = []
    rounds.after_round = lambda path: seen.append(len(Trace.open(path).rounds))
    play(rounds, 0, 0.0, {"a": content(1.0)})
    play(rounds, 1, 1.0, {"a": content(2.0)})
    rounds.close()
    assert seen == [1, 2]


def test_the_last_round_is_written_once(rounds, tmp_path):
    play(rounds, 0, 0.0, {"a": content(1.0)})
    rounds.close({"w": np.full(2, 9.0, np.float32)})
    trace = Trace.open(tmp_path / "trace")
    assert trace.manifest.rounds[-1].file == "round-00001.safetensors"
    assert trace.seen_by(SERVER).released()[0] == 9.0


def test_filters_that_sites_name_are_declared(rounds, tmp_path):
    named = Tensors(arrays={"w": np.ones(2, np.float32)}, filters=("SVTPrivacy",), size=8)
    play(rounds, 0, 0.0, {"a": named, "b": content(1.0)})
    rounds.close()
    (declared,) = Trace.open(tmp_path / "trace").manifest.declared
    assert (declared["name"], declared["sites"]) == ("SVTPrivacy", ["a"])


def test_a_folder_with_a_trace_is_left_alone(tmp_path, log):
    for _ in range(2):
        rounds = JobRounds(tmp_path / "trace", {}, KEEP, log.append)
        play(rounds, 0, 0.0, {"a": content(1.0)})
        rounds.close()
    assert "already holds a trace" in log[0]


def test_a_workflow_without_round_numbers_starts_one_when_a_client_is_asked_again(rounds, tmp_path):
    for value in (1.0, 2.0):
        play(rounds, None, 0.0, {"a": content(value), "b": content(value)})
    rounds.close()
    assert len(Trace.open(tmp_path / "trace").rounds) == 2


def test_arrays_beside_the_model_and_fractions_of_whole_numbers_are_noted(rounds, tmp_path):
    def holding(steps):
        arrays = {"w": np.zeros(2, np.float32), "steps": np.array([steps])}
        return Tensors(arrays=arrays, beside=("control (8 bytes)",))

    rounds.sent(0, "a", Tensors(arrays=holding(0).arrays))
    rounds.answered(0, "a", holding(2.7))
    rounds.close()
    trace = Trace.open(tmp_path / "trace")
    first, second = trace.messages(1)
    assert dict(first.notes) == {}
    assert dict(second.notes) == {LEFT_OUT: "control (8 bytes)", ROUNDED: "steps"}
    assert trace.seen_by(SERVER).payload(1, 1, layout="integers")[0] == 3


def test_a_first_model_of_whole_numbers_hides_no_fraction_of_what_comes_back(rounds, tmp_path):
    """`model=[0, 0]`, and sites that answer with real weights."""
    rounds.sent(0, "a", Tensors(arrays={"w": np.zeros(2, np.int64)}))
    rounds.answered(0, "a", Tensors(arrays={"w": np.array([0.25, -0.5])}))
    rounds.close()
    updates = Trace.open(tmp_path / "trace").seen_by(SERVER).updates(1)
    np.testing.assert_allclose(updates.rows, [[0.25, -0.5]])


def test_a_released_model_that_does_not_fit_is_named(rounds, tmp_path):
    play(rounds, 0, 0.0, {"a": content(1.0)})
    rounds.close({"v": np.zeros(2, np.float32)})
    trace = Trace.open(tmp_path / "trace")
    last = trace.messages(1)[-1]
    assert (last.receiver, dict(last.parts), last.size) == (PUBLIC, {}, 8)
    assert last.notes[REFUSED] == "other tensors than the first model: v, w"
    (problem,) = [p for p in examine(trace).problems if p.party == PUBLIC]
    assert problem.what.endswith("other tensors than the first model: v, w")


@pytest.mark.parametrize("moved", [True, False])
def test_a_first_model_is_not_taken_for_the_released_one(moved, rounds, tmp_path):
    """A cyclic workflow passes models on and leaves the first one in FLARE's context."""
    play(rounds, 0, 0.0, {"a": content(1.0)})
    play(rounds, 1, float(moved), {"b": content(2.0)})
    rounds.close({"w": np.zeros(2, np.float32)})
    trace = Trace.open(tmp_path / "trace")
    last = trace.messages(2)[-1]
    assert bool(last.parts) != moved
    assert ("the workflow names no other" in str(last.notes.get(REFUSED))) == moved
    np.testing.assert_allclose(trace.seen_by(SERVER).updates(2).rows, 2.0 - moved)


def test_a_fault_while_a_message_is_read_stops_the_recording_once(rounds, tmp_path, log):
    play(rounds, 0, 0.0, {"a": content(1.0)})
    play(rounds, 1, 1.0, {"a": content(2.0)})

    def reading():
        raise RuntimeError("no such header")

    rounds.guarded(reading)
    rounds.guarded(reading)
    rounds.answered(1, "a", content(2.0))
    rounds.close()
    assert len(log) == 1
    trace = Trace.open(tmp_path / "trace")
    assert (len(trace.rounds), trace.manifest.complete) == (1, False)
    assert trace.manifest.federation["recording_stopped"] == "RuntimeError: no such header"
