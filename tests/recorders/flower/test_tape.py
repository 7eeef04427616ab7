"""What a tape notes of a message, without Flower itself."""

import numpy as np
import pytest

from fedaudit.recorders.flower.arrays import Content
from fedaudit.recorders.flower.tape import Reply, Sent, Tape, TapeOptions
from fedaudit.trace import SERVER, Trace


def content(value, **told):
    model = {"w": np.full(3, value, np.float32), "steps": np.array([2])}
    return Content(model, scalars=told)


class Numbered:
    """The part of a Flower message that a tape reads."""

    def __init__(self, number):
        self.metadata = type("Metadata", (), {"message_id": number})()


def played(path, rounds):
    """rounds [(nodes that are sent a model, replies), ...]"""
    tape = Tape(path, TapeOptions(), about={})
    for number, (nodes, replies) in enumerate(rounds, 1):
        model = content(number)
        sent = [Sent(n, model, Numbered(f"{number}/{n}")) for n in nodes]
        tape.begin(number, sent, nodes)
        tape.record_replies(replies)
    tape.close(content(9).model)
    return Trace.open(path)


def test_notes_of_every_kind_stand_beside_the_metadata(tmp_path):
    half = Content({"w": np.ones(3, np.float32), "steps": np.array([2.5])}, scalars={"loss": 1.0})
    wrong = Content({"w": np.ones(4, np.float32), "steps": np.array([2])}, scalars={"loss": 2.0})
    with pytest.warns(UserWarning, match="not recorded"):
        trace = played(
            tmp_path / "t",
            [
                ((1, 2, 3), [Reply(1, half), Reply(2, wrong)]),
                (
                    (1, 2, 4),
                    [
                        Reply(3, content(5, loss=3.0), answers="1/3"),
                        Reply(1, content(6)),
                        Reply(1, content(7)),
                        Reply(2, None, "out of memory"),
                        Reply(4, content(8)),
                    ],
                ),
            ],
        )
    first = {m.sender: m for m in trace.messages(1) if m.sender != SERVER}
    assert dict(first["node-1"].notes) == {"rounded": "steps"}
    assert dict(first["node-1"].metadata) == {"loss": 1.0}
    assert set(first["node-2"].notes) == {"refused"}
    assert dict(first["node-2"].metadata) == {"loss": 2.0}
    assert dict(first["node-3"].notes) == {"failed": "no answer in time"}
    second = [m for m in trace.messages(2) if m.sender != SERVER]
    assert [(m.sender, dict(m.notes)) for m in second] == [
        ("node-3", {"late": True}),
        ("node-1", {}),
        ("node-1", {"again": True}),
        ("node-2", {"failed": "out of memory"}),
        ("node-4", {"joined": True}),
    ]
    assert dict(second[0].metadata) == {"loss": 3.0}
    joined = [m.receiver for m in trace.messages(2) if m.sender == SERVER and m.notes]
    assert joined == ["node-4"]
