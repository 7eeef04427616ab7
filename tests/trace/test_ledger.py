"""The ledger of a round, from queries and answers, or from sums alone."""

import numpy as np
import pytest

from fedaudit.errors import NotObservable
from fedaudit.layout import Layout
from fedaudit.trace import AGGREGATOR, NETWORK, SERVER, Recorder, Trace
from fedaudit.trace.ledger import QUERY, query_layout, round_queries
from fedaudit.trace.schema import UNANSWERED

NAMES = ("a", "b", "c", "d")
MODEL = Layout.of([("w", (3,))])


def write(path, fill, *, questions=True):
    layouts = {"model": MODEL} | ({QUERY: query_layout(NAMES)} if questions else {})
    recorder = Recorder(path, layouts=layouts, federation={"clients": list(NAMES)})
    with recorder.round() as wire:
        for name in NAMES[:3]:
            wire.send("model", SERVER, name, np.zeros(3, np.float32), step=0)
        fill(wire)
    recorder.close()
    return Trace.open(path)


def ask(wire, rows, notes):
    rows = np.array(rows, dtype=np.uint8)
    many = len(rows)
    wire.send_rows(
        "query", [SERVER] * many, [AGGREGATOR] * many, rows, step=1, metadata=notes, layout=QUERY
    )


def answer(wire, value, **note):
    row = np.full(3, value, np.float32)
    wire.send("sum", AGGREGATOR, SERVER, row, step=2, metadata=note)


def test_questions_meet_their_answers_by_number_in_any_order(tmp_path):
    def fill(wire):
        ask(
            wire,
            [[1, 1, 1, 0], [1, 1, 0, 0], [0, 1, 1, 0]],
            [{QUERY: 0}, {QUERY: 1, UNANSWERED: "too few"}, {QUERY: 2}],
        )
        answer(wire, 2.0, query=2)
        answer(wire, 0.0, query=0)

    view = write(tmp_path, fill).seen_by(SERVER)
    found = round_queries(view, 1)
    assert found.clients == NAMES
    assert found.queries.tolist() == [[1, 1, 1, 0], [1, 1, 0, 0], [0, 1, 1, 0]]
    assert [view.payload(1, int(i))[0] if i >= 0 else None for i in found.sums] == [0.0, None, 2.0]
    assert found.answered.tolist() == [[1, 1, 1, 0], [0, 1, 1, 0]]


def test_without_numbers_the_order_counts(tmp_path):
    def fill(wire):
        ask(wire, [[1, 1, 0, 0], [0, 0, 1, 1]], [{}, {}])
        answer(wire, 1.0)
        answer(wire, 2.0)

    view = write(tmp_path, fill).seen_by(SERVER)
    assert [view.payload(1, int(i))[0] for i in round_queries(view, 1).sums] == [1.0, 2.0]


def test_a_sum_nobody_asked_for_is_over_those_who_were_served(tmp_path):
    view = write(tmp_path, lambda wire: answer(wire, 1.0), questions=False).seen_by(SERVER)
    found = round_queries(view, 1)
    assert found.clients == NAMES[:3]
    assert found.queries.tolist() == [[1, 1, 1]]
    assert len(found.answered) == 1


def test_a_round_without_sums_has_an_empty_ledger(tmp_path):
    def fill(wire):
        for name in NAMES[:3]:
            wire.send("delta", name, SERVER, np.ones(3, np.float32), step=1)

    found = round_queries(write(tmp_path, fill, questions=False).seen_by(SERVER), 1)
    assert found.queries.shape == (0, 0)
    assert len(found.sums) == 0


def test_others_see_no_ledger(tmp_path):
    def fill(wire):
        ask(wire, [[1, 1, 1, 0]], [{QUERY: 0}])
        answer(wire, 1.0, query=0)

    trace = write(tmp_path, fill)
    assert len(round_queries(trace.seen_by("a"), 1).queries) == 0
    assert len(round_queries(trace.seen_by(NETWORK), 1).queries) == 0
    with pytest.raises(NotObservable):
        trace.seen_by("a").payload(1, 3, layout=QUERY)
