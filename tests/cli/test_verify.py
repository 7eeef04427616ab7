"""`fedaudit verify TRACE`: exit 0 when whole, 3 when torn, every problem by code."""

import json
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from fedaudit.cli import app
from fedaudit.errors import FedauditError, IntegrityError
from fedaudit.trace import SERVER, Recorder

W = np.zeros(4, np.float32)
NAMES = ["St. Mary", "Charite", "Inselspital"]


def record(path, *, lose=lambda number, m: False, change=lambda number, m: m):
    recorder = Recorder(path, like={"w": W}, federation={"clients": NAMES, "hubs": [SERVER]})
    for number in (1, 2, 3):
        with recorder.round() as wire:
            for name in NAMES:
                wire.send("model", SERVER, name, W + number, step=0)
            for at, name in enumerate(NAMES):
                wire.send("delta", name, SERVER, W + at, step=1)
            wire.messages[:] = [change(number, m) for m in wire.messages if not lose(number, m)]
    recorder.close()
    return path


def verify(*arguments):
    return CliRunner().invoke(app, ["verify", *map(str, arguments)])


def problems(path, *more):
    got = verify(path, "--json", *more)
    plain = json.loads(got.stdout)
    found = [(p["code"], p["round"], p["party"]) for p in plain["problems"]]
    return got.exit_code, found, plain


def test_a_whole_trace_ends_with_0(tmp_path):
    record(tmp_path / "run" / "trace")
    for place in (tmp_path / "run", tmp_path / "run" / "trace"):
        got = verify(place)
        assert got.exit_code == 0, got.output
        assert "9 of 9 answers arrived" in got.output
        assert problems(place)[:2] == (0, [])


def test_a_lost_downlink_ends_with_3_and_names_who_and_where(tmp_path):
    path = record(tmp_path / "t", lose=lambda n, m: n == 2 and m.receiver == "Charite")
    code, found, plain = problems(path)
    assert (code, found) == (IntegrityError.exit_code, [("no_new_model", 2, "client 2")])
    assert plain["problems"][0]["breaks"] == ["members", "updates"]
    assert plain["whole"] is False
    assert problems(path, "--names")[1] == [("no_new_model", 2, "Charite")]
    text = verify(path)
    assert text.exit_code == IntegrityError.exit_code
    assert "client 2" in text.output
    assert not any(name in text.output for name in NAMES)
    assert "Charite" in verify(path, "--names").output


def test_an_unknown_party_gets_a_pseudonym_too(tmp_path):
    def change(number, m):
        return replace(m, sender="Mallory Clinic") if (number, m.sender) == (3, "Charite") else m

    path = record(tmp_path / "t", change=change)
    code, found, _ = problems(path)
    assert code == 3
    assert {c for c, _, _ in found} == {"unknown_party", "answer_without_model", "no_answer"}
    assert "Mallory" not in verify(path).output


def test_answers_that_failed_are_counted_and_the_recording_is_whole(tmp_path):
    def change(number, m):
        return replace(m, parts={}, notes={"failed": "timeout"}) if m.sender == "Charite" else m

    code, found, plain = problems(record(tmp_path / "t", change=change))
    assert code == 0
    assert {c for c, _, _ in found} == {"answer_failed"}
    assert (plain["arrived"], plain["expected"]) == (6, 9)
    assert plain["by_party"]["client 2"] == {"expected": 3, "arrived": 0, "late": 0}


def test_every_damaged_file_is_listed(tmp_path):
    path = record(tmp_path / "t")
    for file in sorted(path.glob("round-*"))[1:]:
        raw = bytearray(file.read_bytes())
        raw[-1] ^= 1
        file.write_bytes(raw)
    code, found, _ = problems(path)
    assert (code, found) == (3, [("damaged_round", 2, None), ("damaged_round", 3, None)])


def test_a_payload_with_nan(tmp_path):
    recorder = Recorder(tmp_path / "t", like={"w": W})
    with recorder.round() as wire:
        wire.send("model", SERVER, "a", W)
        wire.send("delta", "a", SERVER, np.array([0, np.nan, 1, 2], np.float32))
    recorder.close()
    assert problems(tmp_path / "t")[:2] == (3, [("non_finite", 1, "client 1")])


def test_an_altered_manifest_and_a_folder_without_one_are_errors(tmp_path):
    path = record(tmp_path / "t")
    file = path / "manifest.json"
    file.write_text(file.read_text().replace("Charite", "Charity"))
    for place in (path, tmp_path):
        with pytest.raises(FedauditError) as raised:
            CliRunner().invoke(app, ["verify", str(place)], catch_exceptions=False)
        assert raised.value.exit_code == 3
