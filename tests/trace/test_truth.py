import json
from pathlib import Path

import numpy as np
import pytest

from fedaudit.errors import IntegrityError, TraceError
from fedaudit.trace import Truth, TruthRecorder

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


def test_facts_are_strict_json(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        TruthRecorder(tmp_path, {"x": float("nan")})
    TruthRecorder(tmp_path, FACTS)
    assert json.loads((tmp_path / "truth.json").read_text()) == FACTS
