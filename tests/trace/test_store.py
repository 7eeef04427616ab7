"""Damaged files are named and refused; nothing of them is used."""

import hashlib
import json
import os
import shutil
import struct
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import load_file

from fedaudit.errors import FedauditError, FormatError, IntegrityError, TraceError
from fedaudit.trace import SERVER, WIRETAP, Recorder, Trace
from fedaudit.trace.schema import Message, RoundFile, messages_from_json, messages_to_json
from fedaudit.trace.store import RoundReader, write_blocks

LIKE = {"w": np.arange(6.0, dtype=np.float32).reshape(2, 3), "n": np.array([3, 4])}
GOLDEN = Path(__file__).parent / "golden" / "trace"


def record(folder: Path, rounds: int = 1) -> Path:
    recorder = Recorder(folder, like=LIKE)
    for r in range(rounds):
        with recorder.round() as wire:
            wire.send("model", SERVER, "a", LIKE)
            wire.send("delta", "a", SERVER, {"w": LIKE["w"] + r})
    recorder.close()
    return folder


def reseal(folder: Path, change) -> None:
    """Alter a manifest and seal it again."""
    raw = json.loads((folder / "manifest.json").read_text())
    change(raw)
    raw["sha256"] = "0" * 64
    text = json.dumps(raw)
    seal = hashlib.sha256(text.encode()).hexdigest()
    (folder / "manifest.json").write_text(text.replace("0" * 64, seal))


def rewrite(folder: Path, change) -> Path:
    """Alter the header of round 1 and correct the hashes."""
    file = folder / "round-00001.safetensors"
    content = file.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    header = change(header) or header
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    put(folder, struct.pack("<Q", len(text)) + text + content[8 + length :])
    return file


def put(folder: Path, content: bytes) -> None:
    (folder / "round-00001.safetensors").write_bytes(content)

    def change(raw):
        raw["rounds"][0]["sha256"] = hashlib.sha256(content).hexdigest()
        raw["rounds"][0]["size"] = len(content)

    reseal(folder, change)


def read(folder: Path) -> None:
    trace = Trace.open(folder)
    for number in trace.rounds:
        trace.messages(number)


def refused(folder: Path, named: str = "round-00001.safetensors") -> IntegrityError:
    with pytest.raises(IntegrityError) as caught:
        read(folder)
    assert named in str(caught.value)
    return caught.value


def test_the_safetensors_library_reads_a_round(tmp_path: Path) -> None:
    file = record(tmp_path) / "round-00001.safetensors"
    tensors = load_file(file)
    assert tensors["model"].tolist() == [LIKE["w"].reshape(-1).tolist()]
    assert tensors["integers"].tolist() == [[3, 4]]
    assert tensors["integers"].dtype == np.int64
    with safe_open(file, framework="numpy") as opened:
        table = messages_from_json(opened.metadata()["messages"])
    assert table == Trace.open(tmp_path).messages(1)


def test_a_round_written_by_the_safetensors_library_is_read(tmp_path: Path) -> None:
    from safetensors.numpy import save

    table = messages_to_json([Message(0, "delta", "a", SERVER, parts={"model": 1}, size=24)])
    rows = np.arange(12, dtype=np.float32).reshape(2, 6)
    record(tmp_path)
    put(tmp_path, save({"model": rows}, metadata={"messages": table}))
    assert Trace.open(tmp_path).seen_by(SERVER).updates(1).rows.tolist() == rows[1:].tolist()


@pytest.mark.parametrize("keep", [0, 7, 8, 40, -1])
def test_truncated_round(tmp_path: Path, keep: int) -> None:
    file = record(tmp_path) / "round-00001.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[:keep])
    refused(tmp_path)
    # without hashes, too
    with pytest.raises(IntegrityError, match="round-00001"):
        Trace.open(tmp_path, verify_hashes=False).messages(1)


def test_flipped_byte_and_missing_file(tmp_path: Path) -> None:
    file = record(tmp_path, rounds=3) / "round-00002.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    assert "sha256" in str(refused(tmp_path, "round-00002"))
    file.unlink()
    assert "no such file" in str(refused(tmp_path, "round-00002"))
    with pytest.raises(IntegrityError, match="no such file"):
        Trace.open(tmp_path, verify_hashes=False).messages(2)


def test_a_file_changed_after_opening_is_refused(tmp_path: Path) -> None:
    file = record(tmp_path, rounds=2) / "round-00002.safetensors"
    trace = Trace.open(tmp_path)
    trace.messages(1)
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    os.utime(file, ns=(1, 1))
    with pytest.raises(IntegrityError, match="round-00002"):
        trace.messages(2)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda t: t.replace('"complete": true', '"complete": false'), "sha256"),
        (lambda t: t.replace('"w"', '"v"'), "sha256"),
        (lambda t: t[: len(t) // 2], "JSON"),
        (lambda t: "", "an empty file"),
        (lambda t: t.replace("[", "[" * 100_000, 1), "nested"),
        (lambda t: t.replace('"sha256"', '"sha265"'), "64 hex digits"),
        (lambda t: t.replace('"purpose": ""', '"purpose": NaN'), "NaN"),
    ],
)
def test_altered_manifest(tmp_path: Path, change, said: str) -> None:
    file = record(tmp_path) / "manifest.json"
    text = file.read_text()
    assert change(text) != text
    file.write_text(change(text))
    assert said in str(refused(tmp_path, "manifest.json"))


def test_manifest_in_other_bytes(tmp_path: Path) -> None:
    (record(tmp_path) / "manifest.json").write_bytes(b"\xff\xfe{}")
    assert "manifest.json" in str(refused(tmp_path, "manifest.json"))


def _outside(name: str):
    def change(raw) -> None:
        raw["rounds"][0]["file"] = name

    return change


@pytest.mark.parametrize(
    "name",
    ["../secret", "/etc/passwd", "a/b", "..", ".", "", ".hidden", "C:x", "a\\b", "a\n", "a\0", 3],
)
def test_file_names_stay_in_the_folder(tmp_path: Path, name) -> None:
    folder = record(tmp_path / "trace")
    shutil.copy(folder / "round-00001.safetensors", tmp_path / "secret")
    reseal(folder, _outside(name))
    assert "plain name" in str(refused(folder, "manifest.json"))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda raw: raw.pop("layouts"), "layouts"),
        (lambda raw: raw.update(rounds=raw["rounds"] * 2), "same file"),
        (lambda raw: raw["rounds"][0].update(size=-1), "size"),
        (lambda raw: raw["rounds"][0].update(sha256="ab"), "sha256"),
        (lambda raw: raw["layouts"]["model"].update(dtype="object"), "dtype"),
        (lambda raw: raw["layouts"]["model"].update(width=7), "width"),
        (lambda raw: raw["layouts"]["model"]["tensors"][0].update(offset=1), "column"),
        (lambda raw: raw["layouts"]["model"]["tensors"][0].update(shape=[-2, -3]), "shape"),
        (lambda raw: raw["layouts"]["model"]["tensors"][0].update(shape=[2.0, 3]), "whole"),
        (lambda raw: raw.update(federation=[]), "federation"),
        (lambda raw: raw.update(federation={"hubs": "server"}), "hubs"),
        (lambda raw: raw.update(complete="yes"), "complete"),
    ],
)
def test_manifest_that_says_nonsense(tmp_path: Path, change, said: str) -> None:
    reseal(record(tmp_path), change)
    assert said in str(refused(tmp_path, "manifest.json"))


def test_other_formats(tmp_path: Path) -> None:
    record(tmp_path)
    reseal(tmp_path, lambda raw: raw.update(version=2))
    with pytest.raises(FormatError, match="upgrade"):
        Trace.open(tmp_path)
    reseal(tmp_path, lambda raw: raw.update(version="1"))
    with pytest.raises(FormatError, match="record again"):
        Trace.open(tmp_path)
    (tmp_path / "manifest.json").write_text('{"name": "a browser extension"}')
    with pytest.raises(FormatError, match="not a trace"):
        Trace.open(tmp_path)
    with pytest.raises(TraceError, match="no such folder"):
        Trace.open(tmp_path / "nowhere")


def _model(**changes):
    return lambda header: header["model"].update(changes)


def _table(**changes):
    def change(header) -> None:
        table = json.loads(header["__metadata__"]["messages"])
        for column, value in changes.items():
            table[column][0] = value
        header["__metadata__"]["messages"] = json.dumps(table)

    return change


@pytest.mark.parametrize(
    "change",
    [
        _model(data_offsets=[-24, 0]),  # would show the header as numbers
        _model(data_offsets=[24, 0]),
        _model(data_offsets=[0, 48]),  # past the end
        _model(data_offsets=[16, 40]),  # overlaps, and leaves a gap
        _model(data_offsets=[0]),
        _model(data_offsets=[0.0, 24.0]),
        _model(shape=[2, 6]),
        _model(shape=[-1, 6]),
        _model(shape=[6]),
        _model(shape=[1, 3, 2]),
        _model(shape=[1, 5]),
        _model(shape=[True, 6]),
        _model(dtype="F64"),
        _model(dtype="I32"),
        _model(dtype="F8"),
        _model(dtype=None),
        lambda h: h.pop("model"),
        lambda h: h.update(other=h.pop("model")),
        lambda h: h.update(model=[]),
        lambda h: h.update(__metadata__=3),
        lambda h: h.update(__metadata__={"messages": 3}),
        lambda h: h.update(__metadata__={}),
        lambda h: b"[]",
        lambda h: b"{",
        lambda h: b'{"a":1,"a":1}',
        lambda h: b"\xff",
        lambda h: b"[" * 100_000,
        _table(parts={"model": 1}),
        _table(parts={"model": -1}),
        _table(parts={"model": 0.0}),
        _table(parts={"nothing": 0}),
        _table(parts=[]),
        _table(metadata={"loss": [1]}),
        _table(kind="pickle"),
        _table(sender=""),
        _table(sender="wiretap"),
        _table(receiver="network"),
        _table(receiver="anonymous"),
        _table(sender="public"),
        _table(sender=None),
        _table(step=-1),
        _table(step="0"),
        _table(size=1.5),
        _table(weight=float("nan")),
        _table(weight="1"),
        lambda h: h["__metadata__"].update(messages="{}"),
        lambda h: h["__metadata__"].update(messages="[]"),
        lambda h: h["__metadata__"].update(messages="not JSON"),
    ],
)
def test_wrong_headers_with_right_hashes(tmp_path: Path, change) -> None:
    rewrite(record(tmp_path), change)
    assert "round-00001.safetensors" in str(refused(tmp_path))


def test_columns_of_unequal_length(tmp_path: Path) -> None:
    def change(header) -> None:
        table = json.loads(header["__metadata__"]["messages"])
        table["kind"].pop()
        header["__metadata__"]["messages"] = json.dumps(table)

    rewrite(record(tmp_path), change)
    assert "round-00001.safetensors" in str(refused(tmp_path))


@pytest.mark.parametrize("length", [2**63, 2**64 - 1, 10_000, 0])
def test_header_length(tmp_path: Path, length: int) -> None:
    content = (record(tmp_path) / "round-00001.safetensors").read_bytes()
    put(tmp_path, struct.pack("<Q", length) + content[8:])
    assert "round-00001.safetensors" in str(refused(tmp_path))


def test_bytes_after_the_data(tmp_path: Path) -> None:
    content = (record(tmp_path) / "round-00001.safetensors").read_bytes()
    put(tmp_path, content + b"\0" * 8)
    assert "round-00001.safetensors" in str(refused(tmp_path))


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(
    which=st.sampled_from(sorted(f.name for f in GOLDEN.iterdir())),
    cut=st.none() | st.floats(0, 1),
    at=st.floats(0, 1),
    bit=st.integers(0, 7),
    check=st.booleans(),
)
def test_fuzz(which: str, cut: float | None, at: float, bit: int, check: bool) -> None:
    """Any damage gives a FedauditError; with hashes, never different content."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made) / "trace"
        shutil.copytree(GOLDEN, folder)
        content = bytearray((folder / which).read_bytes())
        if cut is not None:
            content = content[: int(cut * (len(content) - 1))]
        else:
            content[int(at * (len(content) - 1))] ^= 1 << bit
        (folder / which).write_bytes(content)
        try:
            trace = Trace.open(folder, verify_hashes=check)
            view = trace.seen_by(WIRETAP)
            for number in trace.rounds:
                view.updates(number)
        except FedauditError:
            return
        assert not check, "an altered file was read"


def test_nothing_stays_of_a_write_that_fails(tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").mkdir()  # cannot be replaced by a file
    with pytest.raises(TraceError, match="cannot write"):
        write_blocks(tmp_path / "x.safetensors", {"a": [np.zeros((1, 2), np.float32)]}, {})
    assert [f.name for f in tmp_path.iterdir()] == ["x.safetensors"]


def test_large_rounds_take_the_threaded_path(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).standard_normal((3, 1_000_003)).astype(np.float32)
    entry = write_blocks(tmp_path / "big.safetensors", {"model": [rows[:1], rows[1:]]}, {"k": "v"})
    content = (tmp_path / "big.safetensors").read_bytes()
    assert entry == RoundFile("big.safetensors", hashlib.sha256(content).hexdigest(), len(content))
    reader = RoundReader(tmp_path / "big.safetensors")
    assert np.array_equal(reader.blocks["model"], rows)
    assert not reader.blocks["model"].flags.writeable
    with pytest.raises(ValueError, match="WRITEABLE"):
        reader.blocks["model"].flags.writeable = True
