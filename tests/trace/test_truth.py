import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from fedaudit.errors import IntegrityError, TraceError
from fedaudit.trace import Truth, TruthRecorder
from fedaudit.trace.store import round_name, write_blocks

FACTS = {"seed": 7, "clients": {"c0": {"name": "ward", "records": [1, 2]}}}


def test_what_is_written_is_read(tmp_path: Path) -> None:
    raw = np.random.default_rng(0).standard_normal((2, 5)).astype(np.float32)
    recorder = TruthRecorder(tmp_path / "truth", FACTS)
    recorder.round(1, {3: "c0", 4: "c1"}, raw, ["c0", "c1"], {"accuracy": 0.5})
    recorder.round(2, {3: "c1"})
    truth = Truth.open(tmp_path)
    assert truth.facts == FACTS
    assert truth.clients["c0"]["records"] == [1, 2]
    assert truth.senders(1) == {3: "c0", 4: "c1"}
    names, rows = truth.raw_updates(1)
    assert names == ("c0", "c1")
    assert np.array_equal(rows, raw)
    assert truth.metrics(1) == {"accuracy": 0.5}
    assert truth.metrics(2) == {}
    with pytest.raises(TraceError, match="raw updates were not kept"):
        truth.raw_updates(2)
    with pytest.raises(IntegrityError, match="round-00003"):
        truth.senders(3)


def test_torn_truth_is_refused(tmp_path: Path) -> None:
    TruthRecorder(tmp_path, FACTS).round(1, {0: "c0"})
    file = tmp_path / "round-00001.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[:-9])
    with pytest.raises(IntegrityError, match="round-00001"):
        Truth.open(tmp_path).senders(1)
    file.write_bytes(whole.replace(b"senders", b"sanders"))
    with pytest.raises(IntegrityError, match="round-00001"):
        Truth.open(tmp_path).senders(1)
    for content in (b"{", b"\xff", b"[]"):
        (tmp_path / "truth.json").write_bytes(content)
        with pytest.raises(IntegrityError, match=r"truth\.json"):
            Truth.open(tmp_path)
    with pytest.raises(TraceError, match="holds no truth"):
        Truth.open(tmp_path / "nowhere")


def test_a_round_that_the_index_does_not_list_is_not_read(tmp_path: Path) -> None:
    recorder = TruthRecorder(tmp_path / "truth", FACTS)
    recorder.round(1, {0: "c0"})
    TruthRecorder(tmp_path / "other", FACTS).round(1, {0: "c1"}, metrics={"accuracy": 1.0})
    strange = (tmp_path / "other" / round_name(1)).read_bytes()
    (tmp_path / "truth" / round_name(2)).write_bytes(strange)
    truth = Truth.open(tmp_path / "truth")
    for ask in (truth.senders, truth.metrics, truth.raw_updates, truth.with_members({}).senders):
        with pytest.raises(IntegrityError, match="round-00002"):
            ask(2)
    assert truth.senders(1) == {0: "c0"}
    recorder.round(2, {0: "c0"})  # a run that goes on
    assert truth.senders(2) == {0: "c0"}


def test_facts_are_strict_json(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        TruthRecorder(tmp_path, {"x": float("nan")})
    TruthRecorder(tmp_path, FACTS)
    assert json.loads((tmp_path / "truth.json").read_text()) == FACTS


def facts_of(folder: Path, facts: object) -> Truth:
    """A truth with rewritten facts and a matching hash."""
    TruthRecorder(folder, {})
    raw = json.dumps(facts).encode()
    (folder / "truth.json").write_bytes(raw)
    index = json.loads((folder / "index.json").read_text())
    index["files"]["truth.json"] = {"sha256": hashlib.sha256(raw).hexdigest(), "size": len(raw)}
    (folder / "index.json").write_text(json.dumps(index))
    return Truth.open(folder)


GUARANTEE = {"epsilon": 1.0, "delta": 1e-5, "unit": "record"}


@pytest.mark.parametrize(
    "facts",
    [
        [],
        {"clients": []},
        {"clients": {"a": 5}},
        {"clients": {"a": {"examples": "many"}}},
        {"clients": {"a": {"records": 3}}},
        {"guarantees": "none"},
        {"guarantees": {"dp_sgd": []}},
        {"guarantees": {"dp_sgd": {"a": GUARANTEE | {"epsilon": "low"}}}},
        {"guarantees": {"dp_sgd": {"a": GUARANTEE | {"epsilon": "nan"}}}},
        {"guarantees": {"dp_sgd": {"a": GUARANTEE | {"epsilon": -1}}}},
        {"guarantees": {"dp_sgd": {"a": GUARANTEE | {"unit": "house"}}}},
        {"held_out": "ten"},
        {"guessing": [0.5]},
        {"notes": "one"},
        {"marked": ["a"]},
        {"data_sha256": 5},
    ],
)
def test_wrong_types_among_the_facts_are_refused(tmp_path: Path, facts: object) -> None:
    with pytest.raises(IntegrityError) as refused:
        facts_of(tmp_path / "truth", facts)
    assert refused.value.exit_code == 3
    assert refused.value.got
    assert refused.value.expected


def test_facts_of_the_right_types_are_read(tmp_path: Path) -> None:
    facts = {"guarantees": {"dp_sgd": {"a": GUARANTEE | {"epsilon": "inf"}}}, "more": [1]}
    assert facts_of(tmp_path / "truth", facts).facts == facts


@pytest.mark.parametrize(
    "note",
    [
        {"senders": 5, "clients": [], "metrics": {}},
        {"senders": {"0": 5}, "clients": [], "metrics": {}},
        {"senders": {"x": "a"}, "clients": [], "metrics": {}},
        {"senders": {}, "clients": {}, "metrics": {}},
        {"senders": {}, "clients": [], "metrics": {"accuracy": "high"}},
    ],
)
def test_wrong_types_in_a_round_are_refused(tmp_path: Path, note: object) -> None:
    recorder = TruthRecorder(tmp_path, {})
    recorder._list(
        write_blocks(tmp_path / round_name(1), {}, {"truth": json.dumps(note)}, private=True)
    )
    with pytest.raises(IntegrityError):
        Truth.open(tmp_path).senders(1)


def test_a_loss_that_is_no_number_is_read(tmp_path: Path) -> None:
    TruthRecorder(tmp_path, {}).round(1, {0: "a"}, metrics={"loss": float("nan")})
    assert np.isnan(Truth.open(tmp_path).metrics(1)["loss"])
