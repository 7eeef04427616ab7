"""Recorder: a whole round or nothing, equal payloads once, only what crossed the wire."""

import re
from pathlib import Path

import numpy as np
import pytest

from fedaudit.errors import IntegrityError, TraceError, UsageError
from fedaudit.layout import Layout
from fedaudit.trace import ANONYMOUS, PUBLIC, SERVER, WIRETAP, Recorder, Trace
from fedaudit.trace import recorder as recorder_module

RNG = np.random.default_rng(1)
LIKE = {"w": np.zeros((2, 3), np.float32), "heads[0].b": np.zeros(2, np.float32)}
FLAT = {"model": Layout.of([("x", (500,))])}


def model(seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {k: rng.standard_normal(v.shape).astype(np.float32) for k, v in LIKE.items()}


def test_three_calls(tmp_path: Path) -> None:
    sent, back = model(0), model(1)
    recorder = Recorder(tmp_path, like=LIKE)
    with recorder.round() as messages:
        messages.send("model", SERVER, "client-0", sent)
        messages.send("model", "client-0", SERVER, back)
    recorder.close()
    trace = Trace.open(tmp_path)
    update = trace.seen_by(SERVER).updates(1)
    expected = np.concatenate([(back[k] - sent[k]).reshape(-1) for k in LIKE])
    assert np.array_equal(update.rows[0], expected)
    assert trace.manifest.complete
    assert trace.parties() == (SERVER, "client-0")


def test_clients_one_after_another_without_steps(tmp_path: Path) -> None:
    """A simulator's loop: send to one client, receive its answer, continue."""
    recorder = Recorder(tmp_path, like=LIKE)
    with recorder.round() as messages:
        for c in range(3):
            messages.send("model", SERVER, f"c{c}", model(c))
            messages.send("model", f"c{c}", SERVER, model(10 + c))
    recorder.close()
    trace = Trace.open(tmp_path)
    assert [m.step for m in trace.messages(1)] == [0, 1, 2, 3, 4, 5]
    rows = trace.seen_by(SERVER).updates(1, "w").rows
    for c in range(3):
        assert np.array_equal(rows[c], (model(10 + c)["w"] - model(c)["w"]).reshape(-1))


def test_equal_payloads_are_stored_once(tmp_path: Path) -> None:
    rows = RNG.standard_normal((4, 500)).astype(np.float32)
    rows[2] = rows[0]
    recorder = Recorder(tmp_path, layouts=FLAT)
    with recorder.round() as wire:
        wire.send_rows("delta", list("abcd"), [SERVER] * 4, rows, step=0)
        wire.send("delta", "e", SERVER, rows[3])
        assert wire.put_once("model", rows[1]) == 1
    trace = Trace.open(tmp_path)
    assert [m.parts["model"] for m in trace.messages(1)] == [0, 1, 0, 2, 2]
    assert trace.block(1).shape == (3, 500)
    assert np.array_equal(trace.seen_by(SERVER).updates(1).rows, rows[[0, 1, 2, 3, 3]])


def test_equal_means_equal_bytes(tmp_path: Path) -> None:
    """NaN equals itself, minus zero differs from zero, and a full hash decides."""
    zero = np.zeros(500, np.float32)
    minus, one, two = zero.copy(), zero.copy(), zero.copy()
    minus[1] = -0.0
    one[2], two[2] = 1.0, 2.0  # between the sampled columns
    nan = np.full(500, np.nan, np.float32)
    recorder = Recorder(tmp_path, layouts=FLAT)
    with recorder.round() as wire:
        for row in (zero, minus, one, two, nan, nan, two, one, minus, zero):
            wire.send("delta", "a", SERVER, row)
    trace = Trace.open(tmp_path)
    assert [m.parts["model"] for m in trace.messages(1)] == [0, 1, 2, 3, 4, 4, 3, 2, 1, 0]
    assert np.signbit(trace.block(1)[1]).sum() == 1


def test_send_copies(tmp_path: Path) -> None:
    row = np.ones(500, np.float32)
    recorder = Recorder(tmp_path, layouts=FLAT)
    with recorder.round() as wire:
        wire.send("model", SERVER, "a", row)
        row += 1.0
        wire.send("model", "a", SERVER, row)
    assert (Trace.open(tmp_path).seen_by(SERVER).updates(1).rows == 1.0).all()


def test_rows_that_change_before_the_round_ends_are_refused(tmp_path: Path) -> None:
    rows = RNG.standard_normal((2, 500)).astype(np.float32)
    recorder = Recorder(tmp_path, layouts=FLAT)

    def careless() -> None:
        with recorder.round() as wire:
            wire.send_rows("delta", ["a", "b"], [SERVER] * 2, rows, step=0)
            np.multiply(rows, 2, out=rows)

    with pytest.raises(UsageError, match="rows changed"):
        careless()
    assert recorder.rounds == 0


def test_selection_and_half_precision(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, like=LIKE, tensors=["heads[0].b"], dtype="float16")
    with recorder.round() as wire:
        wire.send("model", SERVER, "a", model(0))
        wire.send("model", "a", SERVER, model(1))
    trace = Trace.open(tmp_path)
    assert trace.layout.names == ("heads[0].b",)
    assert trace.block(1).dtype == np.float16
    got = trace.seen_by(SERVER).updates(1)
    assert got.rows.dtype == np.float32
    expected = model(1)["heads[0].b"] - model(0)["heads[0].b"]
    assert np.allclose(got.rows[0], expected, atol=2e-3)
    # the size counts what crossed, not what is stored
    assert trace.messages(1)[0].size == 4 * 8


def test_a_number_too_large_for_half_precision_is_refused(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, like={"x": np.zeros(2)}, dtype="float16")
    with pytest.raises(UsageError, match="does not fit float16"), recorder.round() as wire:
        wire.send("delta", "a", SERVER, {"x": [1.0, 7e4]})
    with recorder.round() as wire:  # an infinity that was sent is an infinity
        wire.send("delta", "a", SERVER, {"x": [1.0, np.inf]})
    assert Trace.open(tmp_path).seen_by(SERVER).updates(1).rows.tolist() == [[1.0, np.inf]]


def test_an_exception_leaves_nothing(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, like=LIKE)
    before = sorted(f.name for f in tmp_path.iterdir())

    def failing() -> None:
        with recorder.round() as wire:
            wire.send("model", SERVER, "a", model(0))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        failing()
    assert sorted(f.name for f in tmp_path.iterdir()) == before
    assert len(Trace.open(tmp_path).rounds) == 0
    with recorder.round() as wire:
        wire.send("delta", "a", SERVER, model(0))
    assert list(Trace.open(tmp_path).rounds) == [1]


class Killed(BaseException):
    pass


def record_two(folder: Path, **options) -> Recorder:
    recorder = Recorder(folder, like=LIKE, federation={"clients": ["a"]}, **options)
    while recorder.rounds < 2:
        with recorder.round() as wire:
            wire.send("delta", "a", SERVER, model(recorder.rounds))
    recorder.close()
    return recorder


def test_killed_between_round_and_manifest(tmp_path: Path, monkeypatch) -> None:
    whole = tmp_path / "whole"
    record_two(whole)
    torn = tmp_path / "torn"
    recorder = Recorder(torn, like=LIKE, federation={"clients": ["a"]})
    with recorder.round() as wire:
        wire.send("delta", "a", SERVER, model(0))

    def die(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(recorder_module, "write_atomically", die)
        with pytest.raises(Killed), recorder.round() as wire:
            wire.send("delta", "a", SERVER, model(5))
    (torn / "round-00003.safetensors.part").write_bytes(b"half")
    (torn / "manifest.json.part").write_bytes(b"half")
    assert (torn / "round-00002.safetensors").exists()
    assert list(Trace.open(torn).rounds) == [1]  # it does not count
    assert not Trace.open(torn).manifest.complete

    again = record_two(torn, resume=True)
    assert again.rounds == 2
    assert {f.name: f.read_bytes() for f in torn.iterdir()} == {
        f.name: f.read_bytes() for f in whole.iterdir()
    }


def test_resume_needs_the_same_experiment(tmp_path: Path) -> None:
    record_two(tmp_path)
    with pytest.raises(TraceError, match="already holds a trace"):
        Recorder(tmp_path, like=LIKE)
    other = {"like": LIKE, "federation": {"clients": ["a"]}}
    for change in (
        {"like": {"w": np.zeros((3, 2), np.float32)}},
        {"federation": {"clients": ["b"]}},
        {"declared": [{"name": "shuffle"}]},
        {"tensors": "w"},
        {"dtype": "float16"},
    ):
        with pytest.raises(TraceError, match="another experiment"):
            Recorder(tmp_path, **{**other, **change}, resume=True)
    assert record_two(tmp_path, resume=True).rounds == 2


def test_resume_refuses_a_torn_round(tmp_path: Path) -> None:
    record_two(tmp_path)
    (tmp_path / "round-00001.safetensors").write_bytes(b"half")
    with pytest.raises(IntegrityError, match="round-00001"):
        record_two(tmp_path, resume=True)


def test_rounds_without_a_manifest_are_not_overwritten(tmp_path: Path) -> None:
    record_two(tmp_path)
    (tmp_path / "manifest.json").unlink()
    with pytest.raises(TraceError, match="without a manifest"):
        Recorder(tmp_path, like=LIKE, resume=True)


def test_rounds_that_are_redone_have_to_come_out_equal(tmp_path: Path) -> None:
    recorder = record_two(tmp_path)
    before = {f.name: f.read_bytes() for f in tmp_path.iterdir()}
    recorder.redo_after(0)
    assert recorder.rounds == 0
    with pytest.raises(IntegrityError, match="round 1 came out different"), recorder.round() as w:
        w.send("delta", "a", SERVER, model(7))
    assert {f.name: f.read_bytes() for f in tmp_path.iterdir()} == before
    assert recorder.rounds == 0


@pytest.mark.parametrize("how", ["empty", "gone"])
def test_a_last_round_that_was_lost_is_recorded_anew(tmp_path: Path, how: str) -> None:
    record_two(tmp_path)
    last = tmp_path / "round-00002.safetensors"
    last.write_bytes(b"") if how == "empty" else last.unlink()
    recorder = Recorder(tmp_path, like=LIKE, federation={"clients": ["a"]}, resume=True)
    assert (recorder.rounds, recorder.recovered) == (1, True)
    with recorder.round() as wire:
        wire.send("model", SERVER, "a", LIKE)
    assert list(Trace.open(tmp_path).rounds) == [1, 2]


def test_a_lost_round_in_the_middle_is_refused(tmp_path: Path) -> None:
    record_two(tmp_path)
    (tmp_path / "round-00001.safetensors").write_bytes(b"")
    recorder = Recorder(tmp_path, like=LIKE, federation={"clients": ["a"]}, resume=True)
    with pytest.raises(IntegrityError, match="later ones are not"), recorder.round() as wire:
        wire.send("model", SERVER, "a", LIKE)


def test_an_emptied_manifest_costs_no_recorded_round(tmp_path: Path) -> None:
    record_two(tmp_path)
    rounds = {f.name: f.read_bytes() for f in tmp_path.glob("round-*")}
    (tmp_path / "manifest.json").write_bytes(b"")
    recorder = Recorder(tmp_path, like=LIKE, resume=True)
    with pytest.raises(IntegrityError, match="manifest"), recorder.round() as wire:
        wire.send("model", SERVER, "a", LIKE)
    assert {f.name: f.read_bytes() for f in tmp_path.glob("round-*")} == rounds


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TraceError, match="cannot write a trace"):
        Recorder(tmp_path / "file" / "trace", like=LIKE)


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, like=LIKE)
    rows = np.zeros((2, 8), np.float32)

    def failing(what: str, act) -> None:
        with pytest.raises(UsageError, match=re.escape(what)), recorder.round() as wire:
            act(wire)

    failing("wrong shape", lambda w: w.send("delta", "a", SERVER, {**LIKE, "w": np.zeros(6)}))
    failing("missing: ['w']", lambda w: w.send("delta", "a", SERVER, {"heads[0].b": [0, 0]}))
    failing("does not know", lambda w: w.send("delta", "a", SERVER, {**LIKE, "v": 1}))
    failing("does not fit its layout", lambda w: w.send("delta", "a", SERVER, np.zeros(7)))
    failing("does not fit its layout", lambda w: w.send("delta", "a", SERVER, np.array(["x"] * 8)))
    failing("no layout 'integers'", lambda w: w.put_once("integers", rows[0]))
    failing("kind 'weights'", lambda w: w.send("weights", "a", SERVER, LIKE))
    failing("reserved word", lambda w: w.send("delta", WIRETAP, SERVER, LIKE))
    failing("only a sender can be anonymous", lambda w: w.send("delta", "a", ANONYMOUS, LIKE))
    failing("finite", lambda w: w.send("delta", "a", SERVER, LIKE, weight=np.nan))
    failing("metadata", lambda w: w.send("delta", "a", SERVER, LIKE, metadata={"x": np.inf}))
    failing("metadata", lambda w: w.send("delta", "a", SERVER, LIKE, metadata={"x": [1]}))
    failing("receivers", lambda w: w.send_rows("delta", ["a", "b"], [SERVER], rows, step=0))
    failing("rows", lambda w: w.send_rows("delta", ["a"], [SERVER], rows, step=0))
    failing("no row 0", lambda w: w.send_rows("delta", ["a"], [SERVER], 0, step=0))
    assert recorder.rounds == 0
    for options, said in (
        ({}, "neither"),
        ({"like": LIKE, "layouts": FLAT}, "both"),
        ({"like": {"x": np.zeros(2, complex)}}, "complex128"),
        ({"like": {"x": np.zeros(2, np.uint64)}}, "uint64"),
        ({"like": {"x": np.array(["a"])}}, "cannot hold"),
        ({"like": LIKE, "dtype": "int8"}, "int8"),
        ({"like": LIKE, "tensors": "nothing.*"}, "no tensor matches"),
        ({"like": LIKE, "federation": {"n": np.int64(3)}}, "int64"),
        ({"like": LIKE, "federation": {"rate": float("nan")}}, "nan"),
        ({"like": LIKE, "federation": {"hubs": "server"}}, "hubs"),
    ):
        with pytest.raises(UsageError, match=said):
            Recorder(tmp_path / "other", **options)
    assert not (tmp_path / "other").exists()


def test_numpy_scalars_travel_as_numbers(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, like=LIKE)
    with recorder.round() as wire:
        metadata = {"examples": np.int64(5), "loss": np.float32(0.5), "ok": np.bool_(True)}
        wire.send("delta", "a", SERVER, LIKE, weight=np.float32(0.5), metadata=metadata)
    m = Trace.open(tmp_path).messages(1)[0]
    assert m.weight == 0.5
    assert dict(m.metadata) == {"examples": 5, "loss": 0.5, "ok": True}


def test_integers_and_statistics_get_their_own_place(tmp_path: Path) -> None:
    like = {
        "w": np.zeros(2, np.float64),
        "norm.running_mean": np.zeros(2, np.float32),
        "norm.num_batches_tracked": np.array(3),
        "mask": np.array([True, False]),
    }
    recorder = Recorder(tmp_path, like=like)
    with recorder.round() as wire:
        wire.send("delta", "a", SERVER, like)
        wire.send("delta", "a", SERVER, {"w": [1, 2], "norm.running_mean": [3, 4]})
    trace = Trace.open(tmp_path)
    roles = {e.name: e.role for la in trace.manifest.layouts.values() for e in la.entries}
    assert roles == {
        "w": "parameter",
        "norm.running_mean": "buffer",
        "norm.num_batches_tracked": "buffer",
        "mask": "buffer",
    }
    view = trace.seen_by(SERVER)
    assert view.payload(1, 0, layout="integers").tolist() == [3, 1, 0]
    assert view.payload(1, 1, "norm.*").tolist() == [3, 4]
    assert "integers" not in trace.messages(1)[1].parts


def test_an_empty_round_is_a_round(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, like=LIKE)
    with recorder.round():
        pass
    trace = Trace.open(tmp_path)
    assert trace.messages(1) == ()
    assert trace.block(1).shape == (0, 8)


def test_the_last_round_can_be_added_to(tmp_path):
    w, b = np.arange(3, dtype=np.float32), np.ones(2, dtype=np.float32)
    recorder = Recorder(tmp_path / "t", like={"w": w, "b": b}, tensors="w")
    for number in range(2):
        with recorder.round() as wire:
            wire.send("model", SERVER, "client-0", {"w": w + number, "b": b}, step=0)
    before = Trace.open(tmp_path / "t")
    first, kept = before.manifest.rounds[0], before.messages(2)
    with recorder.last_round() as wire:
        wire.send("model", SERVER, PUBLIC, {"w": w * 7, "b": b}, step=1)
    recorder.close()
    trace = Trace.open(tmp_path / "t")
    assert trace.manifest.complete
    assert trace.manifest.rounds[0] == first
    assert trace.messages(2)[:-1] == kept
    np.testing.assert_array_equal(trace.block(2), [w + 1, w * 7])
    np.testing.assert_array_equal(trace.seen_by(PUBLIC).released(), w * 7)
    # the replaced file is gone, and recording continues
    assert len(list((tmp_path / "t").glob("round-*"))) == 2
    with recorder.round() as wire:
        wire.send("model", SERVER, "client-0", {"w": w, "b": b})
    assert len(Trace.open(tmp_path / "t").rounds) == 3


def test_an_error_while_adding_leaves_the_round_as_it_was(tmp_path):
    recorder = Recorder(tmp_path / "t", like={"w": np.zeros(2, np.float32)})
    with pytest.raises(UsageError, match="no round to add to"), recorder.last_round():
        pass
    with recorder.round() as wire:
        wire.send("model", SERVER, "client-0", {"w": np.ones(2)})
    sealed = Trace.open(tmp_path / "t").sha256

    def stopped():
        with recorder.last_round() as wire:
            wire.send("model", SERVER, PUBLIC, {"w": np.ones(2)})
            raise RuntimeError("stopped")

    with pytest.raises(RuntimeError):
        stopped()
    assert Trace.open(tmp_path / "t").sha256 == sealed
