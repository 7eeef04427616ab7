"""The recorder's notes: stored beside a message, never part of what crossed the wire."""

import json

import numpy as np
import pytest

from fedaudit.audits.audit import Knowledge
from fedaudit.audits.coverage import Coverage
from fedaudit.errors import UsageError
from fedaudit.trace import NETWORK, SERVER, WIRETAP, Message, Recorder, Trace
from fedaudit.trace.schema import messages_from_json, messages_to_json

W = np.zeros(3, np.float32)


def recorded(path, **told):
    recorder = Recorder(path, like={"w": W}, federation={"clients": ["a", "b"]})
    with recorder.round() as wire:
        for name in ("a", "b"):
            wire.send("model", SERVER, name, W)
            wire.send("delta", name, SERVER, W + 1, **told)
    recorder.close()
    return Trace.open(path)


def test_notes_survive_the_file_and_stay_out_of_every_view(tmp_path):
    notes = {"late": True, "rounded": "steps", "again": np.bool_(True), "left out": "x (3 bytes)"}
    trace = recorded(tmp_path / "t", metadata={"examples": 3}, notes=notes)
    sent = [m for m in trace.messages(1) if m.sender == "a"]
    assert [dict(m.notes) for m in sent] == [{**notes, "again": True}]
    for party in (SERVER, "a", WIRETAP, NETWORK):
        assert not any(m.notes for m in trace.seen_by(party).messages(1))
    seen = [m for m in trace.seen_by(SERVER).messages(1) if m.sender == "a"]
    assert [dict(m.metadata) for m in seen] == [{"examples": 3}]


def test_coverage_counts_what_travelled_and_not_what_was_noted(tmp_path):
    def counted(trace):
        audit, rng = Coverage(), np.random.default_rng(0)
        return audit.attack(trace.seen_by(WIRETAP), Knowledge(), rng).items

    plain = counted(recorded(tmp_path / "plain"))
    notes = {"late": True, "rounded": "steps", "again": True, "left out": "x"}
    assert counted(recorded(tmp_path / "noted", notes=notes)) == plain
    told = counted(recorded(tmp_path / "told", metadata=notes))
    assert "late" in told["metadata"][0]  # the same words, where they did cross the wire


def test_a_table_without_notes_is_the_table_of_before():
    plain = [Message(0, "delta", "a", "server")]
    table = json.loads(messages_to_json(plain))
    assert "notes" not in table
    assert messages_from_json(json.dumps(table)) == tuple(plain)
    noted = [*plain, Message(0, "delta", "b", "server", notes={"failed": "no answer in time"})]
    assert messages_from_json(messages_to_json(noted)) == tuple(noted)


@pytest.mark.parametrize("notes", [[{}, {}], {}, [3], "x", [{"late": None}], [{"late": [1]}]])
def test_notes_that_are_none_are_refused(notes):
    table = json.loads(messages_to_json([Message(0, "delta", "a", "server")]))
    with pytest.raises(ValueError, match=r"notes|argument"):
        messages_from_json(json.dumps({**table, "notes": notes}))


def test_a_note_that_json_cannot_hold_is_refused(tmp_path):
    with pytest.raises(UsageError, match="cannot be recorded"):
        recorded(tmp_path / "t", notes={"late": float("nan")})


def test_an_answer_that_was_lost_says_so_also_in_traces_without_notes():
    assert Message(0, "delta", "a", "server", notes={"failed": "gone"}).lost
    assert Message(0, "delta", "a", "server", metadata={"refused": "shape"}).lost
    # a field of that name beside a payload is the client's own metadata
    assert not Message(0, "delta", "a", "server", 1.0, {"model": 0}, 3, {"failed": 2}).lost
